"""Choice of the rank: the smallest that reproduces the responses, or the one of the lowest BIC."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from posquad.core.results import Result
from posquad.geometry import dimension
from posquad.recovery.diagnose import needed_samples
from posquad.recovery.search import Search

__all__ = ["RankPath", "bic", "highest_rank", "trial_starts", "try_ranks"]

NEGLIGIBLE = 1e-7  # eigenvalues below this share of the largest may be zero
_FEW, _FEWER, _LARGE = 24, 8, 150  # starts per rank tried: few, or fewer above 150 unknowns
_HIGHEST = 12  # highest rank tried if neither a rank nor a limit is given
_NEARLY = 1e-3  # residuals above this share of the tolerance reproduce, but not exactly
_GAIN = 1e-2  # residual ratio required to accept a higher rank
_UNIMPROVED = 4  # consecutive ranks without a better score that end the trials

Solve = Callable[[int, int], Search]
"""Runs a search at a given rank, with at most a given number of starts."""


class Trial(Protocol):
    """What `try_ranks` needs to know about a rank that was tried."""

    @property
    def score(self) -> float:
        """The lower the better."""
        ...

    @property
    def reproduced(self) -> bool:
        """Whether the responses are reproduced at this rank."""
        ...


_T = TypeVar("_T", bound=Trial)


@dataclass(frozen=True, eq=False, repr=False)
class RankPath(Result):
    """The ranks that were tried, in order, with their residuals and scores (lower is better)."""

    rank: Any  # [k]
    residual: Any  # [k]  relative residual of the fit
    score: Any  # [k]  Bayesian information criterion


def trial_starts(unknowns: int) -> int:
    """Return the number of starts for a rank that may be wrong, fewer if starts are expensive.

    >>> trial_starts(20), trial_starts(2000)
    (24, 8)
    """
    return _FEW if unknowns <= _LARGE else _FEWER


def bic(residual: float, n: int, unknowns: int) -> float:
    """Return the Bayesian information criterion `2 n log(residual) + p log n`.

    `residual` is relative to the responses, n the number of samples and p that of unknowns.

    >>> bic(1.0, 1, 5), bic(0.1, 100, 6) < bic(0.1, 100, 11)
    (0.0, True)
    """
    return 2 * n * math.log(max(residual, 1e-300)) + unknowns * math.log(n)


def highest_rank(d: int, max_rank: int | None, allowed: Callable[[int], bool]) -> int:
    """Return the highest rank to try: at most d and `max_rank` (12 by default), and allowed.

    `allowed(rank)` says whether there are enough samples for a rank; rank 1 is always tried.

    >>> highest_rank(20, None, lambda rank: rank <= 5), highest_rank(20, None, lambda rank: True)
    (5, 12)
    """
    highest = min(d, max_rank or _HIGHEST)
    while highest > 1 and not allowed(highest):
        highest -= 1
    return highest


def try_ranks(
    trial: Callable[[int], _T], highest: int, stopped: Callable[[], bool]
) -> tuple[list[_T], int]:
    """Try ranks from 1 upwards; return the trials, and the index of the chosen one.

    The first rank that reproduces the responses is chosen, else the one of the lowest score. The
    trials also end when four ranks in a row do not improve the score, or when `stopped()`.

    >>> class Scored(NamedTuple):
    ...     score: float
    ...     reproduced: bool = False
    >>> trials, best = try_ranks(lambda rank: Scored(abs(rank - 2)), 10, lambda: False)
    >>> len(trials), best
    (6, 1)
    """
    trials: list[_T] = []
    best = 0
    for rank in range(1, highest + 1):
        trials.append(trial(rank))
        if trials[-1].reproduced:
            return trials, len(trials) - 1
        best = min(range(len(trials)), key=lambda k: trials[k].score)
        if len(trials) - 1 - best >= _UNIMPROVED or stopped():
            break
    return trials, best


def lower_if_possible(search: Search, solve: Solve, distinct: int) -> Search:
    """Return a search at a lower rank if it also reproduces the responses, else the given one.

    With more samples than unknowns of the lower rank, that does not happen by chance. The rank can
    be lower because columns of the factor vanish, or because there are too few samples to determine
    a factor of the given rank.
    """
    reproduced = float(search.residual) <= search.tolerance
    squares = torch.linalg.svdvals(search.U).square()
    k = int((squares > NEGLIGIBLE * squares[0].clamp_min(1e-300)).sum())
    d = search.problem.d
    rounding = 100 * torch.finfo(search.U.dtype).eps
    if reproduced and 0 < k < search.rank:
        for lower in range(k, search.rank):  # a small eigenvalue may still be needed
            candidate = truncated(search, lower)
            if float(candidate.residual) <= max(10 * float(search.residual), rounding):
                return candidate
    if distinct >= needed_samples(d, search.rank):
        return search
    for rank in range(1, search.rank):
        if distinct < needed_samples(d, rank) or search.budget.spent:
            break
        candidate = solve(rank, _FEW)
        if float(candidate.residual) <= search.tolerance:
            return candidate
    return search


def raise_if_better(search: Search, solve: Solve, distinct: int, n: int, most: int) -> Search:
    """Return a search at a higher rank if it reduces a residual that is near the tolerance by far.

    The effect of a small eigenvalue on few samples can be below the tolerance.
    """
    d = search.problem.d
    while (
        _NEARLY * search.tolerance < float(search.residual) <= search.tolerance
        and search.rank < most
        and distinct >= needed_samples(d, search.rank + 1)
        and n > dimension(d, search.rank + 1)
        and not search.budget.spent
    ):
        higher = solve(search.rank + 1, _FEW)
        if float(higher.residual) > _GAIN * float(search.residual):
            break
        search = higher
    return search


def truncated(search: Search, rank: int) -> Search:
    """Return a search at a lower rank, refined from the leading columns of the factor."""
    left, s, _ = torch.linalg.svd(search.U, full_matrices=False)
    U = (left * s[..., None, :])[..., :rank]
    lower = Search(
        search.problem, rank, search.tolerance, search.history, search.generator, search.max_starts
    )
    lower.adopt(U)
    lower.starts, lower.agreeing = search.starts, search.agreeing
    return lower


class _SearchTrial(NamedTuple):
    """A rank that was tried by a search."""

    rank: int
    residual: float
    score: float
    reproduced: bool
    search: Search


def choose_rank(
    solve: Solve, n: int, d: int, distinct: int, max_starts: int, max_rank: int | None
) -> tuple[Search, float, list[tuple[int, float, float]]]:
    """Return the search at the chosen rank, the confidence in it (0 to 1), and the ranks tried.

    A rank that reproduces the responses with more samples than unknowns has confidence 1. Otherwise
    the Bayesian information criterion `n log(RSS/n) + p log n` decides, and the confidence is the
    weight of the rank among those tried. It is 0 if the highest rank tried is the best and higher
    ones exist.
    """
    searches: list[Search] = []

    def trial(rank: int) -> _SearchTrial:
        search = solve(rank, min(trial_starts(dimension(d, rank)), max_starts))
        residual = float(search.residual)
        score = bic(residual, n, dimension(d, rank))
        searches.append(search)
        return _SearchTrial(rank, residual, score, residual <= search.tolerance, search)

    highest = highest_rank(d, max_rank, lambda rank: distinct >= needed_samples(d, rank))
    trials, best = try_ranks(trial, highest, lambda: searches[-1].budget.spent)
    path = [(t.rank, t.residual, t.score) for t in trials]
    chosen = trials[best]
    if chosen.reproduced:
        enough = distinct >= needed_samples(d, chosen.rank) and n > dimension(d, chosen.rank)
        return chosen.search, float(enough), path
    if best == len(trials) - 1 and highest < d:
        return chosen.search, 0.0, path  # a higher rank might be better, but was not tried
    weights = [math.exp(-min(t.score - chosen.score, 1400.0) / 2) for t in trials]
    return chosen.search, weights[best] / sum(weights), path
