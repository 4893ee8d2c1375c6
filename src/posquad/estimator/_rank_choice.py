"""Choice of the rank where `recover` cannot do it: with an intercept, or by cross-validation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from posquad.core.arrays import positive_number
from posquad.core.errors import DomainError
from posquad.core.status import Status
from posquad.estimator._intercept import FittedFactor, fit_with_intercept
from posquad.estimator._samples import WeightedSamples, merged
from posquad.geometry import dimension
from posquad.recovery import Recovery, recover
from posquad.recovery.ranks import bic, highest_rank, trial_starts, try_ranks

RankTable = dict[str, np.ndarray]
"""Ranks tried: columns `rank`, `residual`, `score` (lower is better) and `standard_error`."""


class Solver:
    """Fits one problem at one rank; all fits together share one time limit."""

    def __init__(
        self, *, intercept: bool, max_starts: int | None, time_limit: float | None, **options: Any
    ) -> None:
        self.intercept, self.max_starts, self.options = intercept, max_starts, options
        self.deadline = None
        if time_limit is not None:
            self.deadline = time.monotonic() + positive_number("time_limit", time_limit)
        self.steps, self.stopped = 0, False

    def __call__(
        self, samples: WeightedSamples, rank: int | None, max_starts: int | None = None
    ) -> FittedFactor:
        """Return the fit at a rank, with at most `max_starts` starts."""
        if self.intercept and rank is not None:
            return fit_with_intercept(self.search, samples, rank, max_starts)
        found = self.search(samples, rank, max_starts)
        return FittedFactor(found, found.U, 0.0)

    def search(
        self, samples: WeightedSamples, rank: int | None, max_starts: int | None = None
    ) -> Recovery:
        """Run `recover`; count its steps, and give it the time that is left."""
        options = dict(self.options)
        starts = [count for count in (self.max_starts, max_starts) if count is not None]
        if starts:
            options["max_starts"] = min(starts)
        if self.deadline is not None:
            options["time_limit"] = max(1e-3, self.deadline - time.monotonic())
        weights = None if samples.weights is None else samples.relative
        found = recover(samples.X, samples.y, rank, weights=weights, **options)
        self.steps += found.steps
        self.stopped |= found.status is Status.INTERRUPTED
        return found


class Trial(NamedTuple):
    """The result of trying one rank; a `posquad.recovery.ranks.Trial`."""

    score: float
    residual: float
    standard_error: float
    reproduced: bool


def by_information(
    solve: Solver, samples: WeightedSamples, max_rank: int | None, level: float
) -> tuple[int, RankTable]:
    """Return the rank of the lowest Bayesian information criterion, and the ranks tried."""
    n, d = samples.X.shape
    size = np.sqrt(np.average(samples.y**2, weights=samples.mass)) or 1.0

    def trial(rank: int) -> Trial:
        fit = solve(samples, rank, trial_starts(dimension(d, rank)))
        errors = samples.y - fit.predict(samples.X)
        # The criterion is relative to y at every rank; the residual is relative to y - c.
        share = float(np.sqrt(np.average(errors**2, weights=samples.mass)) / size)
        score = bic(share, n, dimension(d, rank) + 1)
        residual = float(fit.found.residual)
        return Trial(score, residual, np.nan, residual <= level)

    return _lowest(trial, solve, n, d, max_rank)


def by_validation(
    solve: Solver,
    samples: WeightedSamples,
    folds: Iterable[tuple[np.ndarray, np.ndarray]],
    max_rank: int | None,
    level: float,
) -> tuple[int, RankTable]:
    """Return the rank of the lowest mean squared error on left-out samples, and the ranks tried.

    The folds index the samples as they were given, including those without weight.
    """
    d = samples.X.shape[1]
    parts = [(samples.take(train).counted(), samples.take(test).counted()) for train, test in folds]
    parts = [(merged(train), test) for train, test in parts if len(train.y) and len(test.y)]
    if not parts:
        expected = "a fold with samples of positive weight on both sides"
        raise DomainError("cv", expected=expected, got="none")
    size = np.sqrt(np.average(samples.y**2, weights=samples.mass)) or 1.0

    def trial(rank: int) -> Trial:
        inside, outside = [], []
        for train, test in parts:
            fit = solve(train, rank, trial_starts(dimension(d, rank)))
            errors = (test.y - fit.predict(test.X)) / size
            outside.append(float(np.average(errors**2, weights=test.mass)))
            inside.append(float(fit.found.residual))
        several = len(outside) > 1
        spread = float(np.std(outside, ddof=1) / np.sqrt(len(outside))) if several else np.nan
        reproduced = max(inside) <= level
        return Trial(float(np.mean(outside)), float(np.mean(inside)), spread, reproduced)

    least = min(len(train.y) for train, _ in parts)
    return _lowest(trial, solve, least, d, max_rank)


def _lowest(
    trial: Callable[[int], Trial], solve: Solver, n: int, d: int, max_rank: int | None
) -> tuple[int, RankTable]:
    """Return the chosen rank and the ranks tried, as long as n exceeds the unknowns."""
    highest = highest_rank(d, max_rank, lambda rank: dimension(d, rank) < n)
    trials, best = try_ranks(trial, highest, lambda: solve.stopped)
    columns = {name: np.array([getattr(t, name) for t in trials]) for name in Trial._fields[:3]}
    return best + 1, {"rank": np.arange(1, len(trials) + 1), **columns}
