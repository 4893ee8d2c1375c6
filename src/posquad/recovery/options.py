"""The arguments of one call of `recover`, but for the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from posquad.core.arrays import Array
from posquad.core.progress import Progress
from posquad.recovery.acceptance import Acceptance
from posquad.recovery.budget import Budget, History
from posquad.recovery.losses import LossName
from posquad.recovery.search_options import SearchOptions

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """The arguments of `recover`, which explains them."""

    rank: int | None
    seed: int = 0
    tolerance: float | None = None
    max_rank: int | None = None
    max_starts: int | None = None
    max_steps: int = 100_000
    time_limit: float | None = None
    precision: Literal["float64", "input"] = "float64"
    progress: Callable[[Progress], None] | None = None
    certify: bool = False
    diagnose: bool = True
    start: Array | None = None
    acceptance: Acceptance | None = None
    loss: LossName = "least-squares"
    scale: float | None = None

    @property
    def wanted(self) -> SearchOptions:
        """Those that do not depend on where the rows are."""
        return SearchOptions(self.rank, self.max_rank, self.max_starts, self.seed, self.tolerance)

    def history(self, progress: Callable[[Progress], None] | None) -> History:
        """A new history with the budget of this call."""
        return History(Budget(max_steps=self.max_steps, time_limit=self.time_limit), progress)

    def keywords(self, *names: str) -> dict[str, Any]:
        """These arguments by name, by default all."""
        given = vars(self)
        return {name: given[name] for name in names or given}
