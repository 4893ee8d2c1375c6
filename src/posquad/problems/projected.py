"""Measurements with other terms eliminated: least squares in the matrix alone.

For `f_i = <A_i, Q> + z_i'b` with free coefficients b, the best b for a given Q is that of a linear
least-squares problem, and what it leaves of the errors is `P (A(Q) - y)`, where P projects on the
complement of the columns `z` (variable projection, Golub and Pereyra 1973). So the matrix alone is
measured by `PA`, with the responses Py.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from posquad.core.symmetric import svec, symmetric_matrix
from posquad.core.twofold import Twofold, from_doubles
from posquad.problems.dense import Dense
from posquad.problems.held import HeldMeasurements

# Size of what is left of a column, over that of the column, up to which it is explained. A choice:
# the tolerance of responses; inputs that differ by rounding leave more than rounding.
_EXPLAINED = 1e-10


class Projected(HeldMeasurements):
    """The measurements `(I - ZZ^+) A` for a base operator A and columns `Z[..., n, m]`.

    A and Z are kept apart, so that measurements can be weighted and selected; the projection is
    then that of what is left. Products go through those of the base operator: with rows, they take
    O(nr + dr) memory beside X and Z. `norms`, `jacobian_size`, `absolute_moments` and
    `largest_term` are those of the base operator, which bound the sizes and are used as scales.

    >>> from posquad.problems.measurements import RankOne
    >>> X = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
    >>> constant = torch.ones(3, 1, dtype=torch.float64)
    >>> Projected(RankOne(X), constant).apply(torch.eye(1, dtype=torch.float64)).round(decimals=3)
    tensor([-3.6670, -0.6670,  4.3330], dtype=torch.float64)
    """

    own_dimensions = 1

    def __init__(self, base: HeldMeasurements, Z: Tensor, basis: Tensor | None = None) -> None:
        self.base, self.Z = base, Z
        self.n, self.d = base.n, base.d
        self.batch_shape, self.dtype, self.device = base.batch_shape, base.dtype, base.device
        self.basis = column_basis(Z) if basis is None else basis  # [..., n, k]  orthonormal
        self._rescaled: tuple[Tensor, Tensor] | None = None

    def eliminated(self, e: Tensor) -> Tensor:
        return _outside(self.basis, e)

    # The data of a measurement are those of the base operator and a row of Z.

    @cached_property
    def data(self) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        own = self.base.data.flatten(-self.base.own_dimensions)
        return torch.cat([own, self.Z], dim=-1)

    def holding(self, data: Tensor) -> Projected:
        own, Z = data.split([data.shape[-1] - self.Z.shape[-1], self.Z.shape[-1]], dim=-1)
        shape = self.base.data.shape[-self.base.own_dimensions :]
        return Projected(self.base.holding(own.unflatten(-1, shape)), Z)

    @property
    def entries(self) -> int:
        return self.base.entries + self.n * self.Z.shape[-1]

    def at_rows(self, index: Tensor) -> Projected:
        return Projected(self.base.at_rows(index), self.Z[..., index, :])

    def double(self) -> Projected:
        return Projected(self.base.double(), self.Z.double())

    def transformed(self, T: Tensor) -> Projected:
        return Projected(self.base.transformed(T), self.Z, self.basis)

    def weighted(self, s: Tensor) -> Projected:
        return Projected(self.base.weighted(s), s[..., None] * self.Z)

    def normalized(self) -> Projected:
        """The same operator: short measurements may have long rows of Z, which must not grow."""
        return self

    def absolute_moments(self) -> Tensor:
        return self.base.absolute_moments()

    def largest_term(self) -> Tensor:
        return self.base.largest_term()

    # Kernels: those of the base operator, with P behind A and in front of A*.

    def apply_kernel(self, Q: Tensor) -> Tensor:
        return self.eliminated(self.base.apply_kernel(Q))

    def adjoint_kernel(self, z: Tensor) -> Tensor:
        return self.base.adjoint_kernel(self.eliminated(z))

    def apply_factor_kernel(self, U: Tensor) -> Tensor:
        return self.eliminated(self.base.apply_factor_kernel(U))

    def apply_tangent(self, U: Tensor, Delta: Tensor) -> Tensor:
        return self.eliminated(self.base.apply_tangent(U, Delta))

    def adjoint_factor_kernel(self, z: Tensor, U: Tensor) -> Tensor:
        return self.base.adjoint_factor_kernel(self.eliminated(z), U)

    def project(self, U: Tensor) -> Tensor:
        return self.base.project(U)

    def forms(self, Z: Tensor) -> Tensor:
        return self.eliminated(self.base.forms(Z))

    def paired(self, Z: Tensor, W: Tensor) -> Tensor:
        return self.eliminated(self.base.paired(Z, W))

    def weighted_adjoint(self, w: Tensor, Z: Tensor) -> Tensor:
        return self.base.weighted_adjoint(self.eliminated(w), Z)

    @property
    def matrices(self) -> Tensor:
        return symmetric_matrix(self.system, self.d)

    @cached_property
    def norms(self) -> Tensor:
        return self.base.norms

    def jacobian(self, Z: Tensor) -> Tensor:
        return _outside_columns(self.basis, self.base.jacobian(Z))

    def jacobian_size(self, Z: Tensor) -> Tensor:
        return self.base.jacobian_size(Z)

    def normal_equations(self, Z: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        K, right = self.base.normal_equations(Z, self.eliminated(e))
        # N'J, a row for each column of the basis N
        columns = self.basis.movedim(-1, 0)  # [k, ..., n]
        columns = columns.reshape(
            len(columns), *(1,) * (e.ndim + 1 - columns.ndim), *columns.shape[1:]
        )
        explained = 2 * self.base.weighted_adjoint(columns, Z).flatten(-2).movedim(0, -2)
        return K - explained.mT @ explained, right

    def dual_system(self, Z: Tensor) -> Tensor:
        return self._both_sides(self.base.dual_system(Z))

    def inner_products(self, D: Tensor | None = None) -> Tensor:
        return self._both_sides(self.base.inner_products(D))

    @cached_property
    def system(self) -> Tensor:
        return _outside_columns(self.basis, self.base.system)

    @cached_property
    def fourth_moments(self) -> Tensor:
        explained = svec(self.base.adjoint_kernel(self.basis.movedim(-1, 0))).movedim(0, -2)
        return self.base.fourth_moments - explained.mT @ explained

    def _both_sides(self, K: Tensor) -> Tensor:
        """Return PKP for `K[..., n, n]`."""
        return _outside_columns(self.basis, _outside_columns(self.basis, K).mT).mT

    def measured(self, U: Tensor, s: Tensor | None) -> tuple[Tensor, Tensor]:
        values, rounding = self.base.measured(U, s)
        return _outside(self._basis_of(s), values), rounding

    def scaled_rounding(self, U: Tensor, s: Tensor | None) -> Tensor:
        own, sizes = self.base.scaled_rounding(U, s), self._basis_of(s).abs()
        return own + (sizes @ (sizes.mT @ own[..., None]))[..., 0]

    def precise_forms(self, U: Tensor, s: Tensor | None) -> Twofold:
        values = self.base.precise_forms(U, s)
        return from_doubles(_outside(self._basis_of(s).double(), values.high + values.low))

    def _basis_of(self, s: Tensor | None) -> Tensor:
        """Return the basis of the columns that are eliminated where A_i is multiplied by s_i^2."""
        if s is None:
            return self.basis
        if self._rescaled is None or self._rescaled[0] is not s:
            self._rescaled = s, column_basis(s.square()[..., None] * self.Z)
        return self._rescaled[1]

    # Fewer measurements of one problem, of which none depends on the others through Z.

    def compressed(self) -> Dense:
        """The measurements `C'A`, for an orthonormal basis `C[n, n - k]` of the complement of Z.

        A coordinate that the columns of Z explain, up to the tolerance of responses, is zero.
        """
        system = self.base.system
        left = self._turned(system)
        before, after = (torch.linalg.vector_norm(S, dim=0) for S in (system, left))
        seen = after > _EXPLAINED * before
        return Dense.of_checked(symmetric_matrix(torch.where(seen, left, 0.0), self.d))

    def compress(self, e: Tensor) -> Tensor:
        """`C'e`, `[n - k]`, for `e[n]`."""
        return self._turned(e[:, None])[:, 0]

    def _turned(self, values: Tensor) -> Tensor:
        a, tau = torch.geqrf(self.basis)
        return torch.ormqr(a, tau, values, transpose=True)[self.basis.shape[-1] :]


def column_basis(Z: Tensor) -> Tensor:
    """Return an orthonormal basis `[..., n, k]` of the span of the columns of `Z[..., n, m]`.

    In a batch k = m, and columns that are not needed are zero.
    """
    lengths = torch.linalg.vector_norm(Z, dim=-2, keepdim=True)
    frame, R = torch.linalg.qr(Z / torch.where(lengths > 0, lengths, 1.0))
    left, s, _ = torch.linalg.svd(R)
    seen = s > Z.shape[-2] * torch.finfo(Z.dtype).eps * s[..., :1]
    basis = frame @ left[..., : s.shape[-1]]
    return basis[:, seen] if Z.ndim == 2 else torch.where(seen[..., None, :], basis, 0.0)


def _outside(basis: Tensor, e: Tensor) -> Tensor:
    """Return the part of `e[..., n]` orthogonal to the basis; twice, to rounding."""
    for _ in range(2):
        if basis.ndim == 2:
            e = e - (e @ basis) @ basis.mT
        else:
            e = e - ((e[..., None, :] @ basis) @ basis.mT)[..., 0, :]
    return e


def _outside_columns(basis: Tensor, values: Tensor) -> Tensor:
    """Return the part of the columns of `values[..., n, q]` orthogonal to the basis."""
    for _ in range(2):
        values = values - basis @ (basis.mT @ values)
    return values
