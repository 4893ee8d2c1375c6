"""What is asked of a search, and what it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from posquad.recovery.budget import History


@dataclass(frozen=True)
class Task:
    """What is asked of a search, whatever the problem."""

    tolerance: float  # relative residual at which responses count as reproduced
    seed: int
    history: History


@dataclass(frozen=True, eq=False)
class Candidates:
    """The best factors that a search at one rank has found, for a problem or a batch."""

    rank: int
    U: Tensor  # [..., d, rank]
    residual: Tensor  # [...]  ||A(UU') - y|| / ||y||
    starts: Tensor  # [...]  starts used
    agreeing: Tensor  # [...]  starts that ended at this residual
    settled: Tensor  # [...]  the least residual is known, or was reached by enough starts
    bound: Tensor  # [...]  no positive semidefinite matrix has a lower residual; 0 if unknown
    farkas: Tensor | None = None  # [..., n]  the vector that proves the bound, if there is one
    known: Tensor | None = None  # [..., rank]  the singular values of U, if they are known

    @cached_property
    def singular_values(self) -> Tensor:
        """Singular values of U, `[..., rank]`, descending."""
        return torch.linalg.svdvals(self.U) if self.known is None else self.known

    def one(self) -> Candidates:
        """Return those of one problem as a batch of one."""
        return self._each(lambda value: value[None])

    def select(self, index: Tensor) -> Candidates:
        """Return those of the problems of a batch at these indices."""
        return self._each(lambda value: value[index])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Candidates:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        tensors = {k: change(v) for k, v in values.items() if isinstance(v, Tensor)}
        return Candidates(rank=self.rank, **tensors)
