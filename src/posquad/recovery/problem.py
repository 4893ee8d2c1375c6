"""The problem that the solvers of `recover` work on: an operator and the responses to fit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import host
from posquad.core.twofold import from_doubles
from posquad.problems.held import HeldMeasurements


@dataclass(frozen=True, eq=False)
class Problem:
    """Fit the responses `y = A(UU')`, for one problem or a batch."""

    operator: HeldMeasurements
    y: Tensor  # [..., n]
    unit: Tensor | None = None  # [..., n]  a w with A*(w) = I, in coordinates that have one

    @property
    def n(self) -> int:
        """Number of samples."""
        return self.operator.n

    @property
    def d(self) -> int:
        """Dimension of the inputs."""
        return self.operator.d

    @cached_property
    def size(self) -> Tensor:
        """`||y||`, or 1 if y = 0, `[...]`."""
        size = torch.linalg.vector_norm(self.y, dim=-1)
        return torch.where(size > 0, size, 1.0)

    def residual(self, Z: Tensor) -> Tensor:
        """Return `e = A(UU') - y` for `Z = project(U)`."""
        return self.operator.forms(Z) - self.y

    def relative(self, e: Tensor) -> Tensor:
        """Return `||e|| / ||y||`."""
        return torch.linalg.vector_norm(e, dim=-1) / self.size

    def relative_residual(self, U: Tensor) -> Tensor:
        """Return `||A(UU') - y|| / ||y||`, `[...]`."""
        return self.relative(self.residual(self.operator.project(U)))

    def select(self, index: Tensor) -> Problem:
        """Return the problems of a batch at these indices."""
        unit = None if self.unit is None else self.unit[index]
        return Problem(self.operator.select(index), self.y[index], unit)

    def where(self, mask: Tensor) -> tuple[Problem, Tensor | None]:
        """Return the problems of a batch where the mask holds, and their indices.

        None stands for all indices, also for those of a single problem.
        """
        if mask.ndim != 1 or bool(mask.all()):
            return self, None
        chosen = mask.nonzero()[:, 0]
        return self.select(chosen), chosen


@dataclass(frozen=True, eq=False)
class Given:
    """The same problem in the user's coordinates, in which an answer is returned and measured.

    Responses are in units of a power of four, factors in units of its root, so that squares of
    neither leave the range of the precision; a change of these units is exact.
    """

    operator: HeldMeasurements  # those of the user
    rows: Tensor | None  # [..., n]  factors of the rows, for weights or equal lengths
    y: Tensor  # [..., n]  responses times the square of these factors, in these units
    unit: Tensor  # [...]  the root of the unit

    @classmethod
    def of(cls, operator: HeldMeasurements, rows: Tensor | None, y: Tensor, scale: Tensor) -> Given:
        """Choose units for responses `y[..., n]` of size `scale[...]`."""
        unit = (scale.log2() / 2).round().exp2()
        return cls(operator, rows, y / unit[..., None] / unit[..., None], unit)

    @cached_property
    def size(self) -> Tensor:
        """`||y||`, or 1 if y = 0, `[...]`."""
        size = torch.linalg.vector_norm(self.y, dim=-1)
        return torch.where(size > 0, size, 1.0)

    def errors(self, U: Tensor) -> tuple[Tensor, np.ndarray]:
        """Return `e_i = s_i^2 <A_i, UU'> - y_i`, `[..., n]`, and a bound on their rounding.

        `s` are the factors of the rows. The bound `[...]` is on the norm of what `rounding`
        returns, over that of the responses.
        """
        V = U / self.unit[..., None, None]
        forms, rounding = self.operator.measured(V, self.rows)
        return forms - self.y, host(torch.finfo(V.dtype).eps * (1 + rounding / self.size))

    def rounding(self, U: Tensor) -> Tensor:
        """Return what the rounding of the numbers in U contributes to each error, `[..., n]`."""
        V = U / self.unit[..., None, None]
        terms = self.operator.scaled_rounding(V, self.rows) + self.y.abs()
        return torch.finfo(terms.dtype).eps * terms

    def precise_errors(self, U: Tensor) -> Tensor:
        """Return the same errors `[..., n]`, computed in double-double arithmetic."""
        forms = self.operator.precise_forms(U / self.unit[..., None, None], self.rows)
        e = forms + -from_doubles(self.y.double())
        return e.high.to(self.y.dtype)

    def one(self) -> Given:
        """Return one problem as a batch of one."""
        rows = None if self.rows is None else self.rows[None]
        return Given(self.operator.expanded(1), rows, self.y[None], self.unit[None])

    def select(self, index: Tensor) -> Given:
        """Return the problems of a batch at these indices."""
        rows = None if self.rows is None else self.rows[index]
        return Given(self.operator.select(index), rows, self.y[index], self.unit[index])
