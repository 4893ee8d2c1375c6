"""The budget of a computation in steps and seconds, and the history of its steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
        self.steps = 0

    @property
    def spent(self) -> bool:
        """Whether nothing more may be computed."""
        return self.late or self.steps >= self.max_steps

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
        return {"max_steps": max(1, self.max_steps - self.steps), "time_limit": limit}

    def count(self, steps: int) -> None:
        """Count the steps of another call."""
        self.steps += steps

    def rule(self) -> Rule[Any]:
        """Rule that ends a run when the budget is spent."""
        return Status.INTERRUPTED, lambda state: torch.full_like(state.running, self.spent)

    def quota(self, steps: int) -> Rule[Any]:
        """Rule that ends a run, one part of the computation, after this many steps."""
        end = self.steps + steps
        return Status.STEPS_EXHAUSTED, lambda s: torch.full_like(s.running, self.steps >= end)


class _Counted(Method[S]):
    """A method whose steps are counted in a budget, before the rules judge them."""

    def __init__(self, method: Method[S], budget: Budget) -> None:
        self.method, self.budget = method, budget

    def advance(self, state: S) -> S:
        new = self.method.advance(state)
        self.budget.count(1)
        return new

    def record_due(self, state: S) -> bool:
        return self.method.record_due(state)


class History:
    """Relative residuals and the last state of a computation; counts its steps in the budget.

    The start of every run is recorded too, but it is not a step. The last state is kept so that an
    interrupted run can still return what it has.
    """

    def __init__(self, budget: Budget, progress: Callable[[Progress], None] | None = None) -> None:
        if progress is not None:
            require_callable("progress", progress, "progress(Progress)")
        self.budget = budget
        self.progress = progress
        # One record per start of a run and per step, or the least one of it; and its rank.
        self.residuals: list[Tensor | float] = []
        self.ranks: list[int] = []
        self.rank = 0  # of the current search
        self.is_recording = True
        self.rescale: Callable[[Any], Any] = lambda residual: residual
        self.last: Any = None
        self.best: Any = None  # what an interrupted search had found

    def __call__(self, state: Any) -> None:
        """Record a state, and report it to the progress callback."""
        self.last = state
        self._record(state.residual, state.residual, state.running)

    def note(self, residual: np.ndarray, running: np.ndarray, *, step: bool = True) -> None:
        """Record one step of a run that keeps its own last state, or what is not a step."""
        if step:
            self.budget.count(1)
        self._record(float(residual.min()) if residual.size else 0.0, residual, running)

    def _record(self, record: Tensor | float, residual: Any, running: Any) -> None:
        if self.is_recording:
            self.add([self.rescale(record)])
        if self.progress is not None:
            worst = float(self.rescale(residual.max())) if math.prod(residual.shape) else 0.0
            done, end = float(self.budget.steps), float(self.budget.max_steps)
            self.progress(Progress(done, end, worst, int(running.sum())))

    def run(
        self, method: Method[S], start: S, ends: Sequence[Rule[Any]], *, steps: int | None = None
    ) -> S:
        """Iterate until one of the rules `ends` or the budget ends the run; count every step.

        `steps` is the maximum number of steps of this run alone.
        """
        self.last = start
        rules = [*ends, self.budget.rule()]
        if steps is not None:
            rules.append(self.budget.quota(steps))
        return iterate(_Counted(method, self.budget), start, rules, record=self)

    def add(self, residuals: Sequence[Tensor | float]) -> None:
        """Add records of the current search."""
        self.residuals += residuals
        self.ranks += [self.rank] * len(residuals)

    def restart(self, rescale: Callable[[Any], Any]) -> None:
        """Forget the records, of a problem with other rows or weights.

        `rescale` gives the recorded residual from that of a search.
        """
        self.residuals, self.ranks, self.rescale = [], [], rescale

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing of what is done meanwhile; steps count, and progress is reported."""
        before, self.is_recording = self.is_recording, False
        try:
            yield
        finally:
            self.is_recording = before

    def least_residuals(self, rank: int | None = None) -> tuple[list[float], list[int]]:
        """Return the least residual of each record, and its rank.

        If a rank is given, only those on the way to an answer of this rank: its own, and those of
        lower ranks before.
        """
        told, ranks = [], []
        for residual, own in zip(self.residuals, self.ranks, strict=True):
            if isinstance(residual, Tensor) and not residual.numel():
                continue
            if rank is None or own == rank or (own < rank and rank not in ranks):
                told.append(float(residual.amin()) if isinstance(residual, Tensor) else residual)
                ranks.append(own)
        return told, ranks
