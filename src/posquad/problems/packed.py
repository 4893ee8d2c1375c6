"""Measurements by symmetric matrices that are stored as rows `svec(A_i)`, half of their entries."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from posquad.core.symmetric import (
    solve_reduced,
    svec,
    symmetric_congruence,
    symmetric_matrix,
)
from posquad.problems.held import HeldMeasurements

# Entries n d^2 up to which all A_i are also kept in full. Derived: 64 MB.
_HELD = 2**23


class Packed(HeldMeasurements):
    """Measurements `<A_i, Q> = R_i svec(Q)` by the rows of `R[..., n, D]`, with D = d(d+1)/2.

    Where R is known to be upper triangular with D rows, the linear system is solved by
    substitution. If the A_i are combinations of positive semidefinite matrices whose responses are
    the same combinations of nonnegative ones, as sums over rows are, responses bound solutions.

    >>> operator = Packed(torch.tensor([[1.0, 0.0, 2.0]], dtype=torch.float64))
    >>> operator.apply(torch.eye(2, dtype=torch.float64))
    tensor([3.], dtype=torch.float64)
    """

    own_dimensions = 1

    def __init__(self, R: Tensor, *, triangular: bool = False, bounded: bool = False) -> None:
        self.R, self.triangular, self.bounded = R, triangular, bounded
        self.n, D = R.shape[-2:]
        self.d = (math.isqrt(8 * D + 1) - 1) // 2
        self.batch_shape = R.shape[:-2]
        self.dtype, self.device = R.dtype, R.device

    @property
    def data(self) -> Tensor:
        return self.R

    def holding(self, data: Tensor) -> Packed:
        return Packed(data, bounded=self.bounded)

    def double(self) -> Packed:
        R = self.R.double()
        return Packed(R, triangular=self.triangular, bounded=self.bounded)

    def apply_kernel(self, Q: Tensor) -> Tensor:
        q = svec(Q)
        if not self.batch_shape:
            return q @ self.R.mT
        return (self.R @ q[..., None])[..., 0]

    def adjoint_kernel(self, z: Tensor) -> Tensor:
        if not self.batch_shape:
            return symmetric_matrix(z @ self.R, self.d)
        return symmetric_matrix((z[..., None, :] @ self.R)[..., 0, :], self.d)

    @property
    def system(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.R

    @property
    def matrices(self) -> Tensor:
        return symmetric_matrix(self.R, self.d)

    @cached_property
    def norms(self) -> Tensor:
        return torch.linalg.vector_norm(self.R, dim=-1)

    @cached_property
    def squares(self) -> Tensor:
        parts = [block @ block.mT for block in map(self._block, range(self.d))]
        return torch.stack(parts).sum(0)

    def _block(self, a: int) -> Tensor:
        """Row a of all A_i, `[..., d, n]`."""
        if self._full is not None:
            return self._full[a]
        place, scale = self._layout
        return self.R.mT.index_select(-2, place[a]) * scale[a, :, None]

    def _row_products(self, columns: Tensor) -> Tensor:
        """`A_i V` for the columns of `V[d, c]`, `[c, d, n]`; half of the entries are not copied."""
        (place, scale), rows, (d, c) = self._layout, self.R.mT, columns.shape
        products, copied = rows.new_empty(c, d, self.n), rows.new_empty(d, self.n)
        for a in range(d):
            scaled, begin = (columns * scale[a, :, None]).mT, int(place[a, a])
            part = scaled[:, a:] @ rows[begin : begin + d - a]
            if a:
                torch.index_select(rows, 0, place[a, :a], out=copied[:a])
                part.addmm_(scaled[:, :a], copied[:a])
            products[:, a] = part
        return products

    @cached_property
    def _layout(self) -> tuple[Tensor, Tensor]:
        """Positions of the entries of a matrix in its svec, and the scale of these, `[d, d]`."""
        i, j = torch.triu_indices(self.d, self.d, device=self.device)
        place = torch.zeros(self.d, self.d, dtype=torch.int64, device=self.device)
        place[i, j] = place[j, i] = torch.arange(len(i), device=self.device)
        scale = torch.full(place.shape, math.sqrt(0.5), dtype=self.R.dtype, device=self.device)
        return place, scale.fill_diagonal_(1.0)

    @cached_property
    def _full(self) -> Tensor | None:
        """All A_i, `[d, d, n]`, of one small problem."""
        if self.batch_shape or self.n * self.d**2 > _HELD:
            return None
        return self.matrices.permute(1, 2, 0).contiguous()

    def jacobian(self, Z: Tensor) -> Tensor:
        n, d, r = self.n, self.d, Z.shape[-1]
        if self.batch_shape:
            return (2 * (self.matrices @ Z[..., None, :, :])).flatten(-2)
        columns = 2 * Z.movedim(-2, 0).reshape(d, -1)  # one product for all starts
        if self._full is not None:
            J = columns.mT @ self._full.flatten(1)
        else:
            J = self._row_products(columns)
        J = J.reshape(*Z.shape[:-2], r, d, n)
        return J.movedim(-1, -3).transpose(-1, -2).reshape(*Z.shape[:-2], n, d * r)

    def inner_products(self, D: Tensor | None = None) -> Tensor:
        if D is None:
            return self.R @ self.R.mT
        return self.R @ symmetric_congruence(D) @ self.R.mT

    def scaled_rounding(self, U: Tensor, s: Tensor | None) -> Tensor:
        terms = self.jacobian(U).unflatten(-1, U.shape[-2:]) * U[..., None, :, :]
        sizes = torch.linalg.vector_norm(terms, dim=(-2, -1))
        return sizes if s is None else s.square() * sizes

    def symmetric_fit(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return solve_reduced(self.R, y, self.d) if self.triangular else super().symmetric_fit(y)

    def transformed(self, T: Tensor) -> Packed:
        """The operator with the matrices `T'A_i T`, for `T[..., d, k]`."""
        return self.holding(self.R @ symmetric_congruence(T))

    def weighted(self, s: Tensor) -> Packed:
        """The operator with the matrices `s_i A_i`, for `s[..., n]`."""
        return self.holding(s[..., None] * self.R)

    def normalized(self) -> Packed:
        """The operator with matrices of norm one; zero ones stay."""
        return self.weighted(1 / torch.where(self.norms > 0, self.norms, 1.0))

    def absolute_moments(self) -> Tensor:
        """`sum_i |A_i|`, `[..., d, d]`: zero where no measurement joins two coordinates."""
        return symmetric_matrix(self.R.abs().sum(-2), self.d)

    def largest_term(self) -> Tensor:
        """The largest entry of all A_i in absolute value, a scalar."""
        return symmetric_matrix(self.R.abs().flatten(0, -2).amax(0), self.d).amax()
