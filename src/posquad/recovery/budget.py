"""The budget of a computation in steps and seconds, and the history of its steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import positive_integer, positive_number, require_callable
from posquad.core.progress import Progress
from posquad.core.status import Status
from posquad.dynamics.loop import Method, Rule, S, iterate

# Seconds that another call is given at least. A choice: it needs a positive limit, and ends at
# once.
_LEAST_SECONDS = 1e-3


class Budget:
    """Steps and seconds that a computation may take."""

    def __init__(self, *, max_steps: int, time_limit: float | None = None) -> None:
        self.max_steps = positive_integer("max_steps", max_steps)
        limit = None if time_limit is None else positive_number("time_limit", time_limit)
        self.deadline = None if limit is None else time.perf_counter() + limit
        self.steps = -1  # the record of the first start is not a step

    @property
    def spent(self) -> bool:
        """Whether nothing more may be computed."""
        return self._is_spent_after(self.steps)

    @property
    def late(self) -> bool:
        """Whether the time limit has passed."""
        return self.deadline is not None and time.perf_counter() > self.deadline

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit; infinity if there is none, and not below 0."""
        left = math.inf if self.deadline is None else self.deadline - time.perf_counter()
        return max(left, 0.0)

    @property
    def limits(self) -> dict[str, Any]:
        """What is left, as the arguments `max_steps` and `time_limit` of another call."""
        limit = None if self.deadline is None else max(_LEAST_SECONDS, self.seconds_left)
        return {"max_steps": max(1, self.max_steps - max(self.steps, 0)), "time_limit": limit}

    def count(self, steps: int) -> None:
        """Count the steps of another call."""
        self.steps = max(self.steps, 0) + steps

    def _is_spent_after(self, steps: int) -> bool:
        return self.late or steps >= self.max_steps

    def rule(self) -> Rule[Any]:
        """Rule that ends a run when the budget is spent."""
        # The rules judge a step before the history counts it.
        return (
            Status.INTERRUPTED,
            lambda state: torch.full_like(state.running, self._is_spent_after(self.steps + 1)),
        )

    def quota(self, steps: int) -> Rule[Any]:
        """Rule that ends a run, one part of the computation, after this many steps."""
        end = self.steps + steps
        return Status.STEPS_EXHAUSTED, lambda s: torch.full_like(s.running, self.steps >= end)


class History:
    """Relative residuals and the last state of a computation; counts its steps in the budget.

    The last state is kept so that an interrupted run can still return what it has.
    """

    def __init__(self, budget: Budget, progress: Callable[[Progress], None] | None = None) -> None:
        if progress is not None:
            require_callable("progress", progress, "progress(Progress)")
        self.budget = budget
        self.progress = progress
        self.residuals: list[Tensor | float] = []  # one record per step, or the least one of it
        self.last: Any = None
        self.best: Any = None  # what an interrupted search had found

    def __call__(self, state: Any) -> None:
        """Record one step, and report it to the progress callback."""
        self.last = state
        self._count(state.residual, state.residual, state.running)

    def note(self, residual: np.ndarray, running: np.ndarray) -> None:
        """Record one step of starts that keep their own last state."""
        self._count(float(residual.min()) if residual.size else 0.0, residual, running)

    def _count(self, record: Tensor | float, residual: Any, running: Any) -> None:
        self.budget.steps += 1
        self.residuals.append(record)
        if self.progress is not None:
            worst = float(residual.max()) if math.prod(residual.shape) else 0.0
            done, end = float(self.budget.steps), float(self.budget.max_steps)
            self.progress(Progress(done, end, worst, int(running.sum())))

    def run(
        self, method: Method[S], start: S, ends: Sequence[Rule[Any]], *, steps: int | None = None
    ) -> S:
        """Iterate until one of the rules `ends` or the budget ends the run; record every step.

        `steps` is the maximum number of steps of this run alone.
        """
        self.last = start
        rules = [*ends, self.budget.rule()]
        if steps is not None:
            rules.append(self.budget.quota(steps))
        return iterate(method, start, rules, record=self)

    def least_residuals(self) -> list[float]:
        """Return the least residual of each step."""
        full = [r for r in self.residuals if not isinstance(r, Tensor) or r.numel()]
        return [float(r.amin()) if isinstance(r, Tensor) else r for r in full]
