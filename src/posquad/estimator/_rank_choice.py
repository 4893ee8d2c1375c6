"""Which rank, where `recover` alone cannot choose it: with a constant, or by cross-validation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from posquad.core.arrays import positive_number
from posquad.core.errors import DomainError
from posquad.core.status import Status
from posquad.estimator._intercept import Fit, fit_with_intercept
from posquad.estimator._samples import Samples, merged
from posquad.geometry import dimension
from posquad.recovery import Recovery, recover
from posquad.recovery.ranks import MOST, RISES, information, trial_starts

Path = dict[str, np.ndarray]
"""Columns `rank`, `residual`, `score` (the lower the better) and, if known, `standard_error`."""


class Solver:
    """Solves one problem at one rank, within a time limit for all of them together."""

    def __init__(
        self, *, intercept: bool, max_starts: int | None, time_limit: float | None, **options: Any
    ) -> None:
        self.intercept, self.max_starts, self.options = intercept, max_starts, options
        self.deadline = None
        if time_limit is not None:
            self.deadline = time.monotonic() + positive_number("time_limit", time_limit)
        self.steps, self.stopped = 0, False

    def __call__(self, samples: Samples, rank: int | None, most: int | None = None) -> Fit:
        """The fit with all starts, or with at most so many."""
        if self.intercept and rank is not None:
            return fit_with_intercept(self.search, samples, rank, most)
        found = self.search(samples, rank, most)
        return Fit(found, found.U, 0.0)

    def search(self, samples: Samples, rank: int | None, most: int | None = None) -> Recovery:
        """`recover`, counted and timed."""
        options = dict(self.options)
        starts = [count for count in (self.max_starts, most) if count is not None]
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
    """One rank that was tried."""

    score: float
    residual: float
    standard_error: float
    reproduced: bool


def by_information(
    solve: Solver, samples: Samples, max_rank: int | None, level: float
) -> tuple[int, Path]:
    """The rank of the lowest Bayesian information criterion, and the path."""
    n, d = samples.X.shape
    size = np.sqrt(np.average(samples.y**2, weights=samples.mass)) or 1.0

    def trial(rank: int) -> Trial:
        fit = solve(samples, rank, trial_starts(dimension(d, rank)))
        errors = samples.y - fit.predict(samples.X)
        # For the criterion all ranks have one scale; the residual is relative to y - c.
        share = float(np.sqrt(np.average(errors**2, weights=samples.mass)) / size)
        score = information(share, n, dimension(d, rank) + 1)
        residual = float(fit.found.residual)
        return Trial(score, residual, np.nan, residual <= level)

    return _lowest(trial, solve, n, d, max_rank)


def by_validation(
    solve: Solver,
    samples: Samples,
    folds: Iterable[tuple[np.ndarray, np.ndarray]],
    max_rank: int | None,
    level: float,
) -> tuple[int, Path]:
    """The rank of the lowest mean squared error on samples left out, and the path.

    Folds are those of the samples as they were given, also of those without weight.
    """
    d = samples.X.shape[1]
    parts = [(samples.take(train).counted(), samples.take(test).counted()) for train, test in folds]
    parts = [(merged(train), test) for train, test in parts if len(train.y) and len(test.y)]
    if not parts:
        raise DomainError("cv", expected="a fold with weight on both sides", got="none")
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
) -> tuple[int, Path]:
    """Ranks from 1 upwards, to the first that reproduces, or until the score only rises."""
    trials: list[Trial] = []
    best = 0
    for rank in range(1, min(d, max_rank or MOST) + 1):
        if rank > 1 and dimension(d, rank) >= n:
            break
        trials.append(trial(rank))
        best = min(range(len(trials)), key=lambda k: trials[k].score)
        if trials[-1].reproduced or rank - 1 - best >= RISES or solve.stopped:
            break
    chosen = len(trials) if trials[-1].reproduced else best + 1
    path = {name: np.array([getattr(t, name) for t in trials]) for name in Trial._fields[:3]}
    return chosen, {"rank": np.arange(1, len(trials) + 1), **path}
