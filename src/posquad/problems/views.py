"""Rank-one measurements in other coordinates, without a copy of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from torch import Tensor

from posquad.problems.measurements import RankOne


class RankOneView(RankOne):
    """The operator of the inputs `s_i T'x_i`, for `T[d, k]` and scales `s[n]` of the rows of X.

    Products go through those of the base operator, `A(TQT')` times `s_i^2`, so that nothing of the
    size of X is kept. What needs all rows in these coordinates (`gram`, `fourth_moments`, `X`)
    computes them, and is meant for small problems.
    """

    def __init__(self, base: RankOne, T: Tensor, rows: Tensor | None = None) -> None:
        self.base, self.T, self.rows = base, T, rows
        self.n, self.d = base.n, T.shape[-1]
        self.batch_shape = base.batch_shape
        self.dtype, self.device = base.dtype, base.device

    @property
    def X(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The rows in these coordinates, computed anew."""
        return torch.cat([block for _, block in self._blocks()], dim=-2)

    def double(self) -> RankOne:
        rows = None if self.rows is None else self.rows.double()
        return RankOneView(self.base.double(), self.T.double(), rows)

    def single(self) -> RankOne:
        rows = None if self.rows is None else self.rows.float()
        return RankOneView(self.base.single(), self.T.float(), rows)

    @property
    def single_entries(self) -> int:
        return self.base.single_entries

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for block, Xb in self.base._blocks():
            rows = Xb @ self.T
            yield block, rows if self.rows is None else self.rows[block, None] * rows

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        return self._blocks()

    def _scaled(self, values: Tensor) -> Tensor:
        """Values `[..., n]` times the square of the scales."""
        return values if self.rows is None else self.rows.square() * values

    def apply_kernel(self, Q: Tensor) -> Tensor:
        return self._scaled(self.base.apply_kernel(self.T @ Q @ self.T.mT))

    def adjoint_kernel(self, z: Tensor) -> Tensor:
        return self.T.mT @ self.base.adjoint_kernel(self._scaled(z)) @ self.T

    def apply_factor_kernel(self, U: Tensor) -> Tensor:
        return self._scaled(self.base.apply_factor_kernel(self.T @ U))

    def apply_tangent(self, U: Tensor, Delta: Tensor) -> Tensor:
        return self._scaled(self.base.apply_tangent(self.T @ U, self.T @ Delta))

    def adjoint_factor_kernel(self, z: Tensor, U: Tensor) -> Tensor:
        return self.T.mT @ self.base.adjoint_factor_kernel(self._scaled(z), self.T @ U)

    def gradient_sweep(self, U: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        e = self.apply_factor_kernel(U) - y
        return e, self.adjoint_factor_kernel(e, U)

    def linearize(self, U: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        Z = self.project(U)
        e = Z.square().sum(-1) - y

        def product(Delta: Tensor) -> Tensor:
            D = self.project(Delta)
            a = 2 * (Z * D).sum(-1)
            one = torch.ones_like(a)
            return self.weighted_adjoint(one, a[..., None] * Z + e[..., None] * D)

        return product

    def project(self, U: Tensor) -> Tensor:
        Z = self.base.project(self.T @ U)
        return Z if self.rows is None else self.rows[:, None] * Z

    def weighted_adjoint(self, w: Tensor, Z: Tensor) -> Tensor:
        w = w if self.rows is None else self.rows * w
        return self.T.mT @ self.base.weighted_adjoint(w, Z)

    def gauss_newton_product(self, Z: Tensor) -> Callable[[Tensor], Tensor]:
        Z = Z if self.rows is None else self.rows[:, None] * Z
        product = self.base.gauss_newton_product(Z)
        return lambda D: self.T.mT @ product(self.T @ D)

    def transformed(self, T: Tensor) -> RankOne:
        return RankOneView(self.base, self.T @ T, self.rows)

    @cached_property
    def second_moments(self) -> Tensor:
        return self.adjoint_kernel(self.T.new_ones(self.n)) / self.n
