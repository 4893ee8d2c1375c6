"""The problem that the solvers of `recover` work on: an operator and the responses to fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import host
from posquad.core.twofold import from_doubles
from posquad.problems.held import HeldMeasurements
from posquad.problems.projected import Projected


@dataclass(frozen=True, eq=False)
class Problem:
    """Fit the responses `y = A(UU')`, for one problem or a batch."""

    operator: HeldMeasurements
    y: Tensor  # [..., n]
    unit: Tensor | None = None  # [..., n]  a w with A*(w) = I, in coordinates that have one
    spread: Tensor | None = None  # [...]  size to which residuals are relative, by default ||y||

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
        """Size to which residuals are relative: `||y||`, unless another is given; 1 if it is 0."""
        return _size(self.y, self.spread)

    @cached_property
    def least(self) -> np.ndarray:
        """The relative residual of Q = 0, `[...]`."""
        return host(self.relative(self.y))

    @cached_property
    def row_basis(self) -> tuple[Tensor, Tensor, Tensor]:
        """Factors `[..., n]` that make rows unit vectors, and Q, R of the unit rows."""
        squares = self.operator.norms
        factors = torch.where(squares > 0, squares, 1.0).rsqrt()
        X = self.operator.project(torch.eye(self.d, dtype=self.y.dtype, device=self.y.device))
        return factors, *torch.linalg.qr(factors[..., None] * X)

    def residual(self, Z: Tensor) -> Tensor:
        """Return `e = A(UU') - y` for `Z = project(U)`."""
        return self.operator.forms(Z) - self.y

    def relative(self, e: Tensor) -> Tensor:
        """Return the size of errors relative to that of the responses."""
        return torch.linalg.vector_norm(e, dim=-1) / self.size

    def relative_residual(self, U: Tensor) -> Tensor:
        """Return the relative size of `A(UU') - y`, `[...]`."""
        return self.relative(self.residual(self.operator.project(U)))

    def select(self, index: Tensor) -> Problem:
        """Return the problems of a batch at these indices."""
        unit, spread = (None if t is None else t[index] for t in (self.unit, self.spread))
        return Problem(self.operator.select(index), self.y[index], unit, spread)

    def at_rows(self, index: Tensor) -> Problem:
        """Return the problem of the measurements at these indices, `[m]`, which ascend."""
        operator = self.operator.at_rows(index)
        return Problem(operator, operator.eliminated(self.y[..., index]))

    def compressed(self) -> Problem:
        """Return the same problem with independent measurements, where other terms are eliminated.

        Residuals are the same.
        """
        if not isinstance(self.operator, Projected):
            return self
        y = self.operator.compress(self.y)
        return Problem(self.operator.compressed(), y, spread=self.size)

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
    spread: Tensor | None = None  # [...]  size to which residuals are relative, by default ||y||

    @classmethod
    def of(cls, operator: HeldMeasurements, rows: Tensor | None, y: Tensor, scale: Tensor) -> Given:
        """Choose units for responses `y[..., n]` of size `scale[...]`."""
        unit = (scale.log2() / 2).round().exp2()
        return cls(operator, rows, y / unit[..., None] / unit[..., None], unit)

    @cached_property
    def size(self) -> Tensor:
        """Size to which residuals are relative: `||y||`, unless another is given; 1 if it is 0."""
        return _size(self.y, self.spread)

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
        spread = None if self.spread is None else self.spread[None]
        return Given(self.operator.expanded(1), rows, self.y[None], self.unit[None], spread)

    def select(self, index: Tensor) -> Given:
        """Return the problems of a batch at these indices."""
        rows, spread = (None if v is None else v[index] for v in (self.rows, self.spread))
        return Given(self.operator.select(index), rows, self.y[index], self.unit[index], spread)


@dataclass(frozen=True, eq=False)
class GivenSums(Given):
    """The same of one problem whose measurements are sums over samples.

    They exist in working coordinates only, and so an answer is measured there.
    """

    back: Tensor = field(default_factory=lambda: torch.empty(0))  # [k, d]  V = back U / unit
    known: float = 0.0  # size of errors that are rounding of the responses

    def errors(self, U: Tensor) -> tuple[Tensor, np.ndarray]:
        """Return `A(VV') - y` for the factor V in working coordinates, and the relative rounding.

        The rounding is that of the responses.
        """
        e = self.operator.apply_factor_kernel(self.back @ (U / self.unit)) - self.y
        return e, host(self.known / self.size)

    def rounding(self, U: Tensor) -> Tensor:
        """Return the share of each error in the rounding, `[n]`."""
        del U
        return torch.full_like(self.y, self.known / max(1, len(self.y)) ** 0.5)

    def precise_errors(self, U: Tensor) -> Tensor:
        """Return the errors `[n]`, which the sums know to these digits only."""
        return self.errors(U)[0]


def _size(y: Tensor, spread: Tensor | None) -> Tensor:
    size = torch.linalg.vector_norm(y, dim=-1) if spread is None else spread
    return torch.where(size > 0, size, 1.0)
