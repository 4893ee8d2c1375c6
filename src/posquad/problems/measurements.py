"""Linear maps A from symmetric matrices to measurements, `A(Q)_i = <A_i, Q>`.

The methods come in two layers. `apply`, `apply_factor`, `adjoint`, `adjoint_factor` and `normal`
are for users: they accept torch or NumPy and check their arguments. The kernels are the protocol
of an operator, for its authors and for the rest of the library: their arguments are tensors that
have been checked, in one dtype and on one device, with shapes that fit. Leading dimensions are
batches, of the operator and of its arguments.

An operator must implement two kernels, `apply_kernel` and `adjoint_kernel`. The others follow from
them and are overridden where a faster way exists: `apply_factor_kernel`, `apply_tangent`,
`adjoint_factor_kernel`, `normal_kernel`, `gradient_sweep`, `linearize` and `log_sizes`.

`RankOne` is the operator of quadratic networks, `A_i = x_i x_i'`. It never forms an object of size
n d^2 and, for a loss with its gradient or a Hessian product, reads X once: rows are processed in
blocks that stay in cache while both products with the block are computed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from torch import Tensor

from posquad.core.arrays import (
    A,
    Array,
    converted_tensor,
    dtype_of,
    like,
    positive_integer,
    require_batch,
    require_instance,
    require_shape,
    require_symmetric,
    tensors,
    unified,
)
from posquad.core.errors import DtypeError, ShapeError
from posquad.core.linalg import symmetric_part
from posquad.core.symmetric import svec, symmetric_fit, symmetric_gram, symmetric_matrix

__all__ = ["Dense", "GaussianPopulation", "Measurements", "RankOne"]

_BLOCK_BYTES = {"cpu": 2 * 2**20}
_BLOCK_BYTES_ELSEWHERE = 2**30  # accelerators work best with few large products
_PADDED_ENTRIES = 2**18  # entries of a matrix from which rows of zeros pay
_JACOBIAN_ENTRIES = 2**22  # entries of a block of rows of a Jacobian


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
        require_shape("z", w, (self.n,), "(..., n)")
        self._require_batch(z=w.shape[:-1])
        return like(z, self.adjoint_kernel(w))

    def adjoint_factor(self, z: A, U: A) -> A:
        """`A*(z) U` (`eq:measurement-adjoint`): `[..., n]` and `[..., d, r]` to `[..., d, r]`."""
        w, u = self.admit(z=z, U=U)
        require_shape("z", w, (self.n,), "(..., n)")
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
        unit, log_unit = _largest_entry(U)
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


class RankOne(Measurements):
    """Quadratic measurements `A_i = x_i x_i'`, `A(Q)_i = x_i'Q x_i`.

    `eq:gaussian-measurement-operator`. `X[..., n, d]` holds the inputs in rows.

    `apply_factor`, `adjoint_factor`, a loss with its gradient (see `LeastSquares`) and a Hessian
    product each read X once; a Hessian product also needs XU at the point, which is one more
    pass. `apply_factor` makes one product of n d r multiplications and additions, the others two.
    Memory beyond X is one block of rows and O(nr + dr); `apply` and `adjoint` also hold the d x d
    matrix that they take or return.

    >>> RankOne(np.array([[1.0, 2.0], [0.0, 1.0]])).apply(np.diag([1.0, 10.0]))
    array([41., 10.])
    """

    def __init__(self, X: Array) -> None:
        (self.X,) = tensors(X=X)
        if self.X.ndim < 2 or 0 in self.X.shape[-2:]:
            raise ShapeError(
                "X", expected="shape (..., n, d) with n, d >= 1", got=f"shape {tuple(self.X.shape)}"
            )
        self.n, self.d = self.X.shape[-2:]
        self.batch_shape = self.X.shape[:-2]
        self.dtype, self.device = self.X.dtype, self.X.device

    def double(self) -> RankOne:
        return RankOne(self.X.double())

    def single(self) -> RankOne:
        """The same operator with its data in single precision."""
        return RankOne(self.X.float())

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Row blocks of X that are small enough to stay in cache between two uses."""
        row_bytes = self.d * self.X.element_size() * max(1, math.prod(self.batch_shape))
        budget = _BLOCK_BYTES.get(self.X.device.type, _BLOCK_BYTES_ELSEWHERE)
        rows = max(64, budget // row_bytes)
        for start in range(0, self.n, rows):
            block = slice(start, min(start + rows, self.n))
            yield block, self.X[..., block, :]

    def apply_kernel(self, Q: Tensor) -> Tensor:
        return torch.cat([((Xb @ Q) * Xb).sum(-1) for _, Xb in self._blocks()], dim=-1)

    def adjoint_kernel(self, z: Tensor) -> Tensor:
        total = _RunningSum()
        for block, Xb in self._blocks():
            total.add_product(Xb.mT, z[..., block, None] * Xb)
        # The two triangles of the sum agree only up to rounding.
        return symmetric_part(total.value)

    def apply_factor_kernel(self, U: Tensor) -> Tensor:
        return _product(self.X, U).square().sum(-1)

    def log_sizes(self, U: Tensor) -> tuple[Tensor, Tensor]:
        unit, log_unit = _largest_entry(U)
        low, high = torch.aminmax(self.X.flatten(-2), dim=-1)
        product = _product(self.X, U / unit).abs().amax((-2, -1)).log() + log_unit
        return 2 * product, torch.maximum(-low, high).log() + product

    def apply_tangent(self, U: Tensor, Delta: Tensor) -> Tensor:
        return 2 * (_product(self.X, U) * _product(self.X, Delta)).sum(-1)

    # Kernels for rank-one measurements only. All but `gram` and `symmetric_fit`, which are for
    # small problems, are products with a block of rows, or sums over blocks of small matrices.

    def project(self, U: Tensor) -> Tensor:
        """`XU`, `[..., n, r]`, for `U[..., d, r]`; dimensions in front of those of X are starts."""
        return _product(self.X, U)

    def weighted_adjoint(self, w: Tensor, Z: Tensor) -> Tensor:
        """`X' diag(w) Z`, `[..., d, r]`, for `w[..., n]` and `Z[..., n, r]`."""
        return _adjoint_product(self.X, w[..., None] * Z)

    @cached_property
    def squared_lengths(self) -> Tensor:
        """`||x_i||^2`, `[..., n]`."""
        parts = [torch.linalg.vector_norm(Xb, dim=-1).square() for _, Xb in self._blocks()]
        return torch.cat(parts, dim=-1)

    @cached_property
    def second_moments(self) -> Tensor:
        """`X'X / n`, `[..., d, d]`."""
        total = _RunningSum()
        for _, Xb in self._blocks():
            total.add_product(Xb.mT, Xb)
        return total.value / self.n

    @cached_property
    def fourth_moments(self) -> Tensor:
        """`sum_i svec(x_i x_i') svec(x_i x_i')'`, `[..., D, D]`, where D = d(d+1)/2."""
        return symmetric_gram(self.X)

    def normal_equations(self, Z: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        """`J'J` and `J'e` for `Z = XU` and `e[..., n]`, where `(J Delta)_i = 2 x_i'Delta U'x_i`."""
        width = self.d * Z.shape[-1]
        rows = max(1, _JACOBIAN_ENTRIES // (width * max(1, e[..., 0].numel())))
        matrix, right = _RunningSum(), _RunningSum()
        parts = zip(self.X.split(rows, -2), Z.split(rows, -2), e.split(rows, -1), strict=True)
        for Xb, Zb, eb in parts:
            J = 2 * (Xb[..., :, None] * Zb[..., None, :]).flatten(-2)  # [..., rows, dr]
            matrix.add(J.mT @ J)
            right.add((J.mT @ eb[..., None])[..., 0])
        return matrix.value, right.value

    def absolute_moments(self) -> Tensor:
        """`|X|'|X|`, `[..., d, d]`: zero where two coordinates share no row."""
        total = _RunningSum()
        for _, Xb in self._blocks():
            total.add(Xb.abs().mT @ Xb.abs())
        return total.value

    def largest_entry(self) -> Tensor:
        """The largest `|X_ij|`, a scalar."""
        low, high = torch.aminmax(self.X)
        return torch.maximum(-low, high)

    def gram(self, D: Tensor | None = None) -> Tensor:
        """`X D X'`, `[..., n, n]`, for `D[..., d, d]`, by default the identity."""
        return self._inner_products if D is None else self.X @ D @ self.X.mT

    @cached_property
    def _inner_products(self) -> Tensor:
        return self.X @ self.X.mT

    def symmetric_fit(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The symmetric S of least `||A(S) - y||`, and whether the system determines it, `[...]`.

        Needs `n >= d(d+1)/2`, and forms the n x d(d+1)/2 matrix of the system.
        """
        return symmetric_fit(self.X, y)

    def transformed(self, T: Tensor) -> RankOne:
        """The operator with inputs `T'x_i`, for `T[..., d, k]`."""
        return RankOne(self.X @ T)

    def normalized(self) -> RankOne:
        """The operator with rows of length one; zero rows stay."""
        lengths = self.squared_lengths.sqrt()[..., None]
        return RankOne(self.X / torch.where(lengths > 0, lengths, 1.0))

    def select(self, index: Tensor) -> RankOne:
        """The operators of a batch at these indices."""
        return RankOne(self.X[index])

    def adjoint_factor_kernel(self, z: Tensor, U: Tensor) -> Tensor:
        total = _RunningSum()
        for block, Xb in self._blocks():
            total.add(_adjoint_product(Xb, z[..., block, None] * _product(Xb, U)))
        return total.value

    def gradient_sweep(self, U: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        total, residuals = _RunningSum(), []
        for block, Xb in self._blocks():
            Z = _product(Xb, U)  # [..., rows, r]
            e = Z.square().sum(-1) - y[..., block]
            residuals.append(e)
            total.add(_adjoint_product(Xb, e[..., None] * Z))
        return torch.cat(residuals, dim=-1), total.value

    def linearize(self, U: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        Z = _product(self.X, U)  # [..., n, r], reused by every product at this point
        e = Z.square().sum(-1) - y

        def product(Delta: Tensor) -> Tensor:
            total = _RunningSum()
            for block, Xb in self._blocks():
                Zb, Db = Z[..., block, :], _product(Xb, Delta)
                a = 2 * (Zb * Db).sum(-1)
                total.add(_adjoint_product(Xb, a[..., None] * Zb + e[..., block, None] * Db))
            return total.value

        return product


class Dense(Measurements):
    """Measurements by arbitrary symmetric matrices `A[..., n, d, d]`, stored in full.

    >>> Dense(np.array([[[1.0, 0.0], [0.0, 2.0]]])).apply(np.eye(2))
    array([3.])
    """

    def __init__(self, A: Array) -> None:
        (self.A,) = tensors(A=A)
        if self.A.ndim < 3 or 0 in self.A.shape[-3:]:
            raise ShapeError(
                "A",
                expected="shape (..., n, d, d) with n, d >= 1",
                got=f"shape {tuple(self.A.shape)}",
            )
        require_symmetric("A", self.A)
        self.n, self.d = self.A.shape[-3:-1]
        self.batch_shape = self.A.shape[:-3]
        self.dtype, self.device = self.A.dtype, self.A.device

    def double(self) -> Dense:
        return Dense(self.A.double())

    def apply_kernel(self, Q: Tensor) -> Tensor:
        return torch.einsum("...iab,...ab->...i", self.A, Q)

    def adjoint_kernel(self, z: Tensor) -> Tensor:
        return torch.einsum("...i,...iab->...ab", z, self.A)


class GaussianPopulation(Measurements):
    """The Gaussian population operator `T(H) = 2H + tr(H) I`.

    T is that of Lemma 3.1 (`lem:gaussian-population-operator`). The distribution of x enters every
    loss only through T, so the population is represented by the `n = d(d+1)/2 + 1` measurements
    `A(H) = sqrt(n) (sqrt(2) svec(H), tr H)`, for which `A*A/n = T` exactly (svec stacks the
    diagonal and sqrt(2) times the upper triangle, an isometry).

    >>> GaussianPopulation(2).normal(np.diag([1.0, 2.0]))
    array([[5., 0.],
           [0., 7.]])
    """

    def __init__(self, d: int) -> None:
        self.d = positive_integer("d", d)
        self.n = self.d * (self.d + 1) // 2 + 1
        self.batch_shape = torch.Size()

    def apply_kernel(self, Q: Tensor) -> Tensor:
        traces = Q.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
        return math.sqrt(self.n) * torch.cat([math.sqrt(2) * svec(Q), traces], dim=-1)

    def adjoint_kernel(self, z: Tensor) -> Tensor:
        eye = torch.eye(self.d, dtype=z.dtype, device=z.device)
        matrix = math.sqrt(2) * symmetric_matrix(z[..., :-1], self.d)
        return math.sqrt(self.n) * (matrix + z[..., -1, None, None] * eye)

    def normal_kernel(self, H: Tensor) -> Tensor:
        eye = torch.eye(self.d, dtype=H.dtype, device=H.device)
        return 2 * H + H.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] * eye


def require_measurements(measurements: object) -> None:
    """Require a measurement operator."""
    expected = "a Measurements operator such as RankOne(X)"
    require_instance("measurements", measurements, Measurements, expected)


def _product(M: Tensor, V: Tensor) -> Tensor:
    """`M @ V`, computed as `(V'M')'`, which is faster for few columns."""
    return _few_rows(V.mT, M.mT).mT


def _adjoint_product(M: Tensor, V: Tensor) -> Tensor:
    """`M'V`, computed as `(V'M)'`, which is faster for few columns."""
    return _few_rows(V.mT, M).mT.contiguous()  # optimizers flatten gradients with `view`


def _few_rows(R: Tensor, M: Tensor) -> Tensor:
    """`R @ M`; a batch of R with one M becomes one product, so that M is read once.

    BLAS works on groups of four rows, and others take up to twice as long. A large M is worth a
    copy of R with rows of zeros.
    """
    if M.ndim > 2:
        return R @ M
    rows = R.reshape(R.shape[:-1].numel(), R.shape[-1])
    count = len(rows)
    if count > 2 and count % 4 and M.numel() >= _PADDED_ENTRIES:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, -count % 4))
    return (rows @ M)[:count].reshape(*R.shape[:-1], M.shape[-1])


class _RunningSum:
    """Running sum of blocks, in place unless a gradient is being recorded."""

    def __init__(self) -> None:
        self._value: Tensor | None = None

    def add(self, term: Tensor) -> None:
        if self._value is None:
            self._value = term
        elif self._value.requires_grad or term.requires_grad:
            self._value = self._value + term
        else:
            self._value += term

    def add_product(self, left: Tensor, right: Tensor) -> None:
        """Add `left @ right`, without a temporary matrix of its size where that is possible."""
        value, plain = self._value, left.ndim == right.ndim == 2
        recorded = left.requires_grad or right.requires_grad
        if value is None or not plain or recorded or value.requires_grad:
            self.add(left @ right)
        else:
            value.addmm_(left, right)

    @property
    def value(self) -> Tensor:
        assert self._value is not None, "an operator has at least one row"
        return self._value


def _largest_entry(U: Tensor) -> tuple[Tensor, Tensor]:
    """Largest entry of each factor in absolute value, `[..., 1, 1]`, and its logarithm, `[...]`."""
    largest = U.abs().amax((-2, -1), keepdim=True)
    unit = torch.where(largest > 0, largest, 1.0)
    return unit, unit[..., 0, 0].log()
