"""Fits at a rank that is given, chosen by `recover`, or chosen by cross-validation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import check_cv

from posquad.core.arrays import positive_number
from posquad.core.errors import DomainError, Interrupted
from posquad.core.progress import Progress
from posquad.core.status import Status
from posquad.estimator._model import Fit, Terms, count_terms, count_unknowns, from_function
from posquad.estimator._samples import WeightedSamples, ordered
from posquad.geometry import dimension
from posquad.recovery import (
    Budget,
    Options,
    highest_rank,
    recover_with_terms,
    reproduction_level,
    trial_starts,
    try_ranks,
)

RankTable = dict[str, np.ndarray]
"""Ranks tried: columns `rank`, `residual`, `score` (lower is better) and `standard_error`."""


# Starts of a fit that begins at another one: the other one, linear, spectral. A choice.
_CONTINUED = 3


class Solver:
    """Fits one problem at one rank; all fits together share one time limit."""

    def __init__(
        self,
        *,
        terms: Terms,
        max_starts: int | None,
        time_limit: float | None,
        tolerance: float | None,
        max_steps: int,
        seed: int,
        progress: Callable[[Progress], None] | None,
        max_rank: int | None,
    ) -> None:
        self.terms: Terms = terms
        self.max_starts, self.tolerance = max_starts, tolerance
        self.max_steps, self.seed, self.progress = max_steps, seed, progress
        self.max_rank = max_rank
        self.deadline = None
        if time_limit is not None:
            self.deadline = time.monotonic() + positive_number("time_limit", time_limit)
        self.steps, self.stopped = 0, False

    def __call__(
        self,
        samples: WeightedSamples,
        rank: int | None,
        max_starts: int | None = None,
        start: np.ndarray | None = None,
    ) -> Fit:
        """Return the fit at a rank, with at most `max_starts` starts; rank None chooses it."""
        weights = None if samples.weights is None else samples.relative
        options = Options(
            rank=rank,
            max_rank=self.max_rank,
            max_starts=self._starts(max_starts),
            time_limit=self._time_left(),
            tolerance=self.tolerance,
            max_steps=self.max_steps,
            seed=self.seed,
            progress=self.progress,
            start=start,
        )
        try:
            found = recover_with_terms(samples.X, samples.y, weights, self.terms, options)
        except Interrupted as stop:
            raise Interrupted(from_function(stop.result)) from stop
        self.steps += found.recovery.steps
        self.stopped |= found.recovery.status is Status.INTERRUPTED
        return from_function(found)

    @contextmanager
    def counted(self) -> Iterator[Budget]:
        """Give a part of the work its limits, and count its steps."""
        budget = Budget(max_steps=self.max_steps, time_limit=self._time_left())
        yield budget
        self.steps += budget.steps

    def continued(self, samples: WeightedSamples, last: Fit, rank: int | None) -> Fit:
        """Return the fit to slightly different samples, from the last one and few other starts."""
        U = last.function.U
        d, found = U.shape
        if self.terms != "none":
            start = U if found else None
            return self(samples, found if rank is None else rank, _CONTINUED, start)
        # A positive definite Q is the answer to a convex problem, which needs no start.
        start = U if 0 < found < d else None
        return self(samples, rank or max(1, found), 1, start)

    def level(self, samples: WeightedSamples) -> float:
        """Return the relative residual at which responses count as reproduced."""
        narrow = np.float32 in (samples.X.dtype, samples.y.dtype)
        return reproduction_level(self.tolerance, narrow=narrow)

    def _starts(self, max_starts: int | None) -> int | None:
        given = [count for count in (self.max_starts, max_starts) if count is not None]
        return min(given) if given else None

    def _time_left(self) -> float | None:
        return None if self.deadline is None else max(1e-3, self.deadline - time.monotonic())


class Trial(NamedTuple):
    """The result of trying one rank; a `posquad.recovery.ranks.Trial`."""

    score: float
    residual: float
    standard_error: float
    reproduced: bool


def fit_at_rank(
    solve: Solver,
    rank: int | None,
    given: WeightedSamples,
    samples: WeightedSamples,
    *,
    criterion: str,
    cv: Any,
) -> tuple[Fit, RankTable, float]:
    """Return the fit at the given or chosen rank, the ranks tried, and the confidence.

    The fit uses the `samples` of positive weight. The criterion "cv" splits the `given` ones into
    the folds `cv`, a number or a scikit-learn splitter.
    """
    if rank is not None:
        return solve(samples, rank), {}, 1.0
    if criterion == "cv" and len(given.y) > 1:
        number = isinstance(cv, int | np.integer) and not isinstance(cv, bool)
        folds: Any = min(cv, len(given.y)) if number else cv
        splitter: Any = check_cv(folds)
        best, path = by_validation(solve, given, splitter.split(given.X, given.y))
        return solve(samples, best), path, np.nan
    fit = solve(samples, None)
    tried = fit.recovery.rank_path
    path = {} if tried is None else dict(vars(tried))
    confidence = float(fit.recovery.rank_confidence) if solve.terms == "none" else np.nan
    return fit, path, confidence


def by_validation(
    solve: Solver,
    samples: WeightedSamples,
    folds: Iterable[tuple[np.ndarray, np.ndarray]],
) -> tuple[int, RankTable]:
    """Return the rank of the lowest mean squared error on left-out samples, and the ranks tried.

    The folds index the samples as they were given, including those without weight.
    """
    d, level = samples.X.shape[1], solve.level(samples)
    parts = [(samples.take(train).counted(), samples.take(test).counted()) for train, test in folds]
    parts = [(ordered(train), test) for train, test in parts if len(train.y) and len(test.y)]
    if not parts:
        expected = "a fold with samples of positive weight on both sides"
        raise DomainError("cv", expected=expected, got="none")
    size = np.sqrt(np.average(samples.y**2, weights=samples.mass)) or 1.0

    def trial(rank: int) -> Trial:
        inside, outside = [], []
        for train, test in parts:
            fit = solve(train, rank, trial_starts(count_unknowns(d, rank)))
            errors = (test.y - fit.predict(test.X)) / size
            outside.append(float(np.average(errors**2, weights=test.mass)))
            inside.append(fit.residual)
        several = len(outside) > 1
        spread = float(np.std(outside, ddof=1) / np.sqrt(len(outside))) if several else np.nan
        reproduced = max(inside) <= level
        return Trial(float(np.mean(outside)), float(np.mean(inside)), spread, reproduced)

    least = min(len(train.y) for train, _ in parts)
    return _lowest(trial, solve, least, d)


def _lowest(trial: Callable[[int], Trial], solve: Solver, n: int, d: int) -> tuple[int, RankTable]:
    """Return the chosen rank and the ranks tried, as long as n exceeds the unknowns.

    With other terms, rank 0 is tried too.
    """
    others = count_terms(solve.terms, d)
    highest = highest_rank(d, solve.max_rank, lambda rank: dimension(d, rank) + others < n)
    first = 1
    trials: list[Trial] = []
    if others:
        first, trials = 0, [trial(0)]
        if trials[0].reproduced:
            highest = 0
    more, _ = try_ranks(trial, highest, lambda: solve.stopped)
    trials += more
    best = min(range(len(trials)), key=lambda k: (not trials[k].reproduced, trials[k].score))
    columns = {name: np.array([getattr(t, name) for t in trials]) for name in Trial._fields[:3]}
    return first + best, {"rank": np.arange(first, first + len(trials)), **columns}
