"""What a measurement operator is: the methods for users, and the kernels behind them.

`apply`, `apply_factor`, `adjoint`, `adjoint_factor` and `normal` are for users: they accept torch
or NumPy and check their arguments. The kernels are the protocol of an operator, for its authors and
for the rest of the library: their arguments are tensors that have been checked, in one dtype and on
one device, with shapes that fit. Leading dimensions are batches, of the operator and of its
arguments.

An operator must implement two kernels, `apply_kernel` and `adjoint_kernel`. The others follow from
them and are overridden where a faster way exists: `apply_factor_kernel`, `apply_tangent`,
`adjoint_factor_kernel`, `normal_kernel`, `gradient_sweep`, `linearize` and `log_sizes`.

`recover` asks for more. A search keeps `Z = project(U)` of a factor, which is linear in U: XU for
rows, and U itself where nothing smaller shows all products. `forms`, `paired`, `weighted_adjoint`,
`gauss_newton_product`, `jacobian`, `jacobian_size`, `normal_equations` and `dual_system` follow
from it. What they cost without rows, a product with every A_i, is that of `Dense`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from posquad.core.arrays import (
    A,
    Array,
    converted_tensor,
    dtype_of,
    like,
    require_batch,
    require_instance,
    require_shape,
    require_symmetric,
    unified,
)
from posquad.core.errors import DtypeError, ShapeError
from posquad.core.symmetric import reduced_system, solve_reduced, svec
from posquad.core.twofold import Twofold, from_doubles

_TERM_ENTRIES = 2**17  # terms of a product in double-double arithmetic that are formed at a time


class Measurements(ABC):
    """A linear map on symmetric d x d matrices with n measurements (`eq:measurement-operator`).

    Subclasses set `d`, `n` and `batch_shape` (and `dtype` and `device` if they hold data) and
    implement `apply_kernel` and `adjoint_kernel`. The other kernels have default implementations.
    """

    d: int
    n: int
    batch_shape: torch.Size
    dtype: torch.dtype | None = None  # None: that of the argument
    device: torch.device | None = None

    @property
    def held(self) -> int:
        """Number of measurements that this process holds: all, unless rows are shared."""
        return self.n

    def total(self, value: Tensor) -> Tensor:
        """Return the sum of a small tensor over everyone who holds measurements."""
        return value

    def largest(self, value: Tensor) -> Tensor:
        """Return the largest of everyone's small tensors, elementwise."""
        return value

    def lower_median(self, values: Tensor) -> Tensor:
        """Return the lower median of `values[..., n]` over the measurements of everyone."""
        return values.median(-1).values

    def apply(self, Q: A) -> A:
        """`A(Q)_i = <A_i, Q>` (`eq:measurement-operator`): `Q[..., d, d]` to `[..., n]`."""
        return like(Q, self.apply_kernel(self._symmetric("Q", Q)))

    def apply_factor(self, U: A) -> A:
        """`A(UU')` (`eq:measurement-operator`) from the factor `U[..., d, r]`: `[..., n]`."""
        (u,) = self.admit(U=U)
        self._require_columns(u)
        self._require_batch(U=u.shape[:-2])
        return like(U, self.apply_factor_kernel(u))

    def adjoint(self, z: A) -> A:
        """`A*(z) = sum_i z_i A_i` (`eq:measurement-adjoint`): `z[..., n]` to `[..., d, d]`."""
        (w,) = self.admit(z=z)
        require_shape("z", w, (self.held,), "(..., n)")
        self._require_batch(z=w.shape[:-1])
        return like(z, self.adjoint_kernel(w))

    def adjoint_factor(self, z: A, U: A) -> A:
        """`A*(z) U` (`eq:measurement-adjoint`): `[..., n]` and `[..., d, r]` to `[..., d, r]`."""
        w, u = self.admit(z=z, U=U)
        require_shape("z", w, (self.held,), "(..., n)")
        self._require_columns(u)
        self._require_batch(z=w.shape[:-1], U=u.shape[:-2])
        return like(z, self.adjoint_factor_kernel(w, u))

    def normal(self, H: A) -> A:
        """Normal operator `T(H) = A*(A(H)) / n` (`eq:empirical-normal-operator`)."""
        return like(H, self.normal_kernel(self._symmetric("H", H)))

    def admit(self, **named: Array) -> tuple[Tensor, ...]:
        """Convert arguments to one dtype and device that fit the operator, or raise."""
        converted = {name: converted_tensor(name, value) for name, value in named.items()}
        for name, tensor in converted.items():
            if self.device is not None and tensor.device != self.device:
                expected = f"the operator's device, {self.device}"
                raise DtypeError(name, expected=expected, got=f"{tensor.device}")
            # Widening is exact; narrowing would lose digits silently.
            if self.dtype == torch.float32 and tensor.dtype == torch.float64:
                expected = "float32, as the operator's data"
                raise DtypeError(name, expected=expected, got=dtype_of(named[name]))
        return tuple(tensor.to(self.dtype or tensor.dtype) for tensor in unified(**converted))

    # Kernels on checked tensors. The first two are required, the others follow from them.

    @abstractmethod
    def apply_kernel(self, Q: Tensor) -> Tensor:
        """`A(Q)`, `[..., n]`, for symmetric `Q[..., d, d]`. Required."""

    @abstractmethod
    def adjoint_kernel(self, z: Tensor) -> Tensor:
        """`A*(z)`, symmetric `[..., d, d]`, for `z[..., n]`. Required."""

    def apply_factor_kernel(self, U: Tensor) -> Tensor:
        """`A(UU')`, `[..., n]`, for `U[..., d, r]`."""
        return self.apply_kernel(U @ U.mT)

    def apply_tangent(self, U: Tensor, Delta: Tensor) -> Tensor:
        """`A(Delta U' + U Delta')`, `[..., n]`, for `U` and `Delta` of shape `[..., d, r]`."""
        half = Delta @ U.mT
        return self.apply_kernel(half + half.mT)

    def adjoint_factor_kernel(self, z: Tensor, U: Tensor) -> Tensor:
        """`A*(z) U`, `[..., d, r]`, for `z[..., n]` and `U[..., d, r]`."""
        return self.adjoint_kernel(z) @ U

    def normal_kernel(self, H: Tensor) -> Tensor:
        """`A*(A(H)) / n`, `[..., d, d]`, for symmetric `H[..., d, d]`."""
        return self.adjoint_kernel(self.apply_kernel(H)) / self.n

    def log_sizes(self, U: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of the largest `|A(UU')_i|` and of the size of `A_i U`, both `[...]`.

        They are finite also where the products themselves overflow or underflow, and -inf if all
        A_i vanish.
        """
        unit, log_unit = factor_scale(U)
        k = torch.arange(self.d, dtype=U.dtype, device=U.device)
        probe = torch.cos(1 + k[:, None] * k + k[:, None] + k)  # generic: sees every nonzero A_i
        largest = self.apply_kernel(probe).abs().amax(-1).log()
        values = self.apply_factor_kernel(U / unit).abs().amax(-1).log()
        return values + 2 * log_unit, largest + log_unit

    def gradient_sweep(self, U: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Residual `e = A(UU') - y`, `[..., n]`, and `A*(e) U`, `[..., d, r]`."""
        e = self.apply_factor_kernel(U) - y
        return e, self.adjoint_factor_kernel(e, U)

    def linearize(self, U: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the map `Delta -> A*(A(Delta U' + U Delta')) U + A*(A(UU') - y) Delta`.

        Work that depends on U alone is done once, here. Leading dimensions of Delta broadcast.
        """
        e = self.apply_factor_kernel(U) - y

        def product(Delta: Tensor) -> Tensor:
            curved = self.adjoint_factor_kernel(self.apply_tangent(U, Delta), U)
            return curved + self.adjoint_factor_kernel(e, Delta)

        return product

    # What a search keeps of a factor, `Z = project(U)`, and the kernels that work on it. J is the
    # Jacobian of the predictions, with the rows `2 vec(A_i U)`.

    def project(self, U: Tensor) -> Tensor:
        """What is kept of `U[..., d, r]`, linear in U, `[..., k, r]`."""
        return U

    def forms(self, Z: Tensor) -> Tensor:
        """`A(UU')`, `[..., n]`, for `Z = project(U)`."""
        return self.apply_factor_kernel(Z)

    def paired(self, Z: Tensor, W: Tensor) -> Tensor:
        """`<A_i, UD'>`, `[..., n]`, half of J D, for `Z = project(U)` and `W = project(D)`."""
        return self.apply_tangent(Z, W) / 2

    def weighted_adjoint(self, w: Tensor, Z: Tensor) -> Tensor:
        """`A*(w) U`, `[..., d, r]`, half of `J'w`, for `w[..., n]` and `Z = project(U)`."""
        return self.adjoint_factor_kernel(w, Z)

    def gauss_newton_product(self, Z: Tensor) -> Callable[[Tensor], Tensor]:
        """The map `D -> A*(A(UD' + DU')) U`, half of `J'J`, of `[..., d, r]`."""
        return lambda D: 2 * self.weighted_adjoint(self.paired(Z, self.project(D)), Z)

    @property
    def matrices(self) -> Tensor:
        """All A_i, `[..., n, d, d]`."""
        eye = torch.eye(self.n, dtype=self.dtype or torch.float64, device=self.device)
        shape = (self.n, *(1 for _ in self.batch_shape), self.n)
        return self.adjoint_kernel(eye.reshape(shape)).movedim(0, -3)

    @cached_property
    def norms(self) -> Tensor:
        """`||A_i||_F`, `[..., n]`."""
        return torch.linalg.matrix_norm(self.matrices)

    @cached_property
    def squares(self) -> Tensor:
        """`sum_i A_i^2`, `[..., d, d]`; its range is that of all A_i together."""
        return torch.einsum("...iab,...ibc->...ac", self.matrices, self.matrices)

    def jacobian(self, Z: Tensor) -> Tensor:
        """J, `[..., n, dr]`, for `Z = project(U)`."""
        return (2 * (self.matrices @ Z[..., None, :, :])).flatten(-2)

    def jacobian_size(self, Z: Tensor) -> Tensor:
        """`||J||_F^2 / 4`, `[...]`, for `Z = project(U)`."""
        return (Z * (self.squares @ Z)).sum((-2, -1))

    def normal_equations(self, Z: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        """`J'J` and `J'e`, for `Z = project(U)` and `e[..., n]`."""
        J = self.jacobian(Z)
        return J.mT @ J, (J.mT @ e[..., None])[..., 0]

    def dual_system(self, Z: Tensor) -> Tensor:
        """`JJ'`, `[..., n, n]`, for `Z = project(U)`."""
        J = self.jacobian(Z)
        return J @ J.mT

    @cached_property
    def system(self) -> Tensor:
        """Rows `svec(A_i)`, `[..., n, D]` with D = d(d+1)/2, of the system `A(S) = y`."""
        return svec(self.matrices)

    def inner_products(self, D: Tensor | None = None) -> Tensor:
        """`<A_i, D A_j D>`, `[..., n, n]`, for symmetric `D[..., d, d]`; D = I by default."""
        if D is None:
            return self.system @ self.system.mT
        turned = D[..., None, :, :] @ self.matrices @ D[..., None, :, :]
        return svec(turned) @ self.system.mT

    @cached_property
    def row_space(self) -> Tensor:
        """Orthonormal basis `[..., d^2, k]` of the span of all A_i; columns may be zero."""
        norms = torch.where(self.norms > 0, self.norms, 1.0)
        rows = (self.matrices / norms[..., None, None]).flatten(-2)
        _, s, basis = torch.linalg.svd(rows, full_matrices=False)
        least = max(rows.shape[-2:]) * torch.finfo(s.dtype).eps * s[..., :1]
        return torch.where((s > least)[..., None], basis, 0.0).mT

    @cached_property
    def fourth_moments(self) -> Tensor:
        """`sum_i svec(A_i) svec(A_i)'`, `[..., D, D]`, where D = d(d+1)/2."""
        return self.system.mT @ self.system

    def symmetric_fit(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The symmetric S of least `||A(S) - y||`, and whether the system determines it, `[...]`.

        Needs `n >= d(d+1)/2`, and forms the n x d(d+1)/2 matrix of the system.
        """
        R, right = reduced_system(self.system, y[..., None])
        return solve_reduced(R, right[..., 0], self.d)

    # What is measured of an answer. `s[..., n]` are factors of the rows, or None.

    def measured(self, U: Tensor, s: Tensor | None) -> tuple[Tensor, Tensor]:
        """`s_i^2 <A_i, UU'>`, `[..., n]`, and a bound on the norm of `scaled_rounding`, `[...]`."""
        values = self.apply_factor_kernel(U)
        values = values if s is None else s.square() * values
        return values, torch.linalg.vector_norm(self.scaled_rounding(U, s), dim=-1)

    def scaled_rounding(self, U: Tensor, s: Tensor | None) -> Tensor:
        """What rounding each number of U by eps changes in these values, over eps, `[..., n]`."""
        terms = (self.matrices @ U[..., None, :, :]) * U[..., None, :, :]
        sizes = 2 * torch.linalg.vector_norm(terms, dim=(-2, -1))
        return sizes if s is None else s.square() * sizes

    def precise_forms(self, U: Tensor, s: Tensor | None) -> Twofold:
        """`s_i^2 <A_i, UU'>`, `[..., n]`, as if computed with twice the digits of U."""
        u, A = U.double()[..., None, :, :], self.matrices.double()
        parts = []
        step = max(1, _TERM_ENTRIES // max(1, self.d * u.numel()))
        for some in A.split(step, -3):
            products = from_doubles(some[..., None]).times(u[..., None, :, :]).sum(-2)  # A_i U
            parts.append(products.times(u).sum(-1).sum(-1))
        values = Twofold(*(torch.cat(column, -1) for column in zip(*parts, strict=True)))
        return values if s is None else values.times(s.double()).times(s.double())

    def _symmetric(self, name: str, Q: Array) -> Tensor:
        (q,) = self.admit(**{name: Q})
        require_shape(name, q, (self.d, self.d), "(..., d, d)")
        require_symmetric(name, q)
        self._require_batch(**{name: q.shape[:-2]})
        return q

    def _require_columns(self, u: Tensor) -> None:
        if u.ndim < 2 or u.shape[-2] != self.d or u.shape[-1] < 1:
            expected = f"shape (..., {self.d}, r), that is (..., d, r), r >= 1"
            raise ShapeError("U", expected=expected, got=f"shape {tuple(u.shape)}")

    def _require_batch(self, **shapes: torch.Size) -> None:
        require_batch(operator=self.batch_shape, **shapes)

    def double(self) -> Measurements:
        """The same operator with its data in double precision; itself if it holds no data."""
        return self

    def __repr__(self) -> str:
        batch = f", batch={tuple(self.batch_shape)}" if self.batch_shape else ""
        return f"{type(self).__name__}(n={self.n}, d={self.d}{batch})"


def require_measurements(measurements: object) -> None:
    """Require a measurement operator."""
    expected = "a Measurements operator such as RankOne(X)"
    require_instance("measurements", measurements, Measurements, expected)


def factor_scale(U: Tensor) -> tuple[Tensor, Tensor]:
    """Largest entry of each factor in absolute value, `[..., 1, 1]`, and its logarithm, `[...]`."""
    largest = U.abs().amax((-2, -1), keepdim=True)
    unit = torch.where(largest > 0, largest, 1.0)
    return unit, unit[..., 0, 0].log()
