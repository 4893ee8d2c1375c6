"""What is asked of a search, and what it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from posquad.core.arrays import host
from posquad.recovery.budget import History


@dataclass(frozen=True)
class Task:
    """What is asked of a search, whatever the problem."""

    tolerance: float  # relative residual at which responses count as reproduced
    seed: int
    history: History


def singular_values(U: Tensor) -> np.ndarray:
    """Return the singular values of factors `U[..., d, r]`, `[..., r]`, descending."""
    return np.linalg.svd(host(U), compute_uv=False)


def visible(s: np.ndarray, negligible: float) -> np.ndarray:
    """Return which eigenvalues `s^2` of `UU'` are not negligible beside the largest, `[..., r]`.

    `s` are the singular values of U, descending, and `negligible` is `Acceptance.negligible`. No
    eigenvalue of the zero matrix is visible.
    """
    squares = s**2
    return squares > negligible * squares[..., :1]


@dataclass(frozen=True, eq=False)
class Candidates:
    """The best factors that a search at one rank has found, for a problem or a batch."""

    rank: int
    U: Tensor  # [..., d, rank]
    residual: np.ndarray  # [...]  ||A(UU') - y|| / ||y||
    starts: np.ndarray  # [...]  starts used
    agreeing: np.ndarray  # [...]  starts that ended at this residual
    settled: np.ndarray  # [...]  the least residual is known, or was reached by enough starts
    bound: np.ndarray  # [...]  no positive semidefinite matrix has a lower residual; 0 if unknown
    farkas: Tensor | None = None  # [..., n]  the vector that proves the bound, if there is one
    known: np.ndarray | None = None  # [..., rank]  the singular values of U, if they are known

    @cached_property
    def singular_values(self) -> np.ndarray:
        """Singular values of U, `[..., rank]`, descending."""
        return singular_values(self.U) if self.known is None else self.known

    def one(self) -> Candidates:
        """Return those of one problem as a batch of one."""
        return self._each(lambda value: value[None])

    def select(self, index: Tensor) -> Candidates:
        """Return those of the problems of a batch at these indices."""
        where = host(index)
        return self._each(lambda v: v[index] if isinstance(v, Tensor) else v[where])

    def _each(self, change: Callable[[Any], Any]) -> Candidates:
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "rank"}
        changed: dict[str, Any] = {k: v if v is None else change(v) for k, v in values.items()}
        return Candidates(rank=self.rank, **changed)
