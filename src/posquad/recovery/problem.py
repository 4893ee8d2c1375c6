"""The problem that the solvers of `recover` work on: an operator and the responses to fit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from posquad.problems.measurements import RankOne


@dataclass(frozen=True, eq=False)
class Problem:
    """Fit the responses `y_i = ||U'x_i||^2`, for one problem or a batch."""

    operator: RankOne
    y: Tensor  # [..., n]

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
        """Return `e_i = ||z_i||^2 - y_i` for the rows of `Z = XU`."""
        return Z.square().sum(-1) - self.y

    def relative(self, e: Tensor) -> Tensor:
        """Return `||e|| / ||y||`."""
        return torch.linalg.vector_norm(e, dim=-1) / self.size

    def relative_residual(self, U: Tensor) -> Tensor:
        """Return `||A(UU') - y|| / ||y||`, `[...]`."""
        return self.relative(self.residual(self.operator.project(U)))

    def select(self, index: Tensor) -> Problem:
        """Return the problems of a batch at these indices."""
        return Problem(self.operator.select(index), self.y[index])

    def where(self, mask: Tensor) -> tuple[Problem, Tensor | None]:
        """Return the problems of a batch where the mask holds, and their indices.

        None stands for all indices, also for those of a single problem.
        """
        if mask.ndim != 1 or bool(mask.all()):
            return self, None
        chosen = mask.nonzero()[:, 0]
        return self.select(chosen), chosen
