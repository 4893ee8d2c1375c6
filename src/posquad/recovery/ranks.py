"""Which rank: the smallest that reproduces the responses, or the one that noise allows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from posquad.core.results import Result
from posquad.geometry import dimension
from posquad.recovery.diagnose import needed_samples
from posquad.recovery.search import Search

NEGLIGIBLE = 1e-7  # eigenvalues below this share of the largest may be zero
_FEW, _FEWER, _LARGE = 24, 8, 150  # starts spent on a rank that may be wrong, beyond p unknowns
MOST = 12  # ranks tried when neither a rank nor a limit is given
_NEARLY = 1e-3  # share of the tolerance from which responses are reproduced, but not exactly
_GAIN = 1e-2  # what noise does not gain from a higher rank
RISES = 4  # ranks in a row without gain that end the trial

Solve = Callable[[int, int], Search]
"""Search at a rank with at most so many starts."""


@dataclass(frozen=True, eq=False, repr=False)
class RankPath(Result):
    """The ranks that were tried, in order, and how each did; the lowest score is the best."""

    rank: Any  # [k]
    residual: Any  # [k]  relative residual of the fit
    score: Any  # [k]  Bayesian information criterion


def trial_starts(unknowns: int) -> int:
    """Starts spent on a rank that may be wrong: they are dear where there are many unknowns."""
    return _FEW if unknowns <= _LARGE else _FEWER


def information(residual: float, n: int, unknowns: int) -> float:
    """Bayesian information criterion `2 n log(residual) + p log n`, for a relative residual."""
    return 2 * n * math.log(max(residual, 1e-300)) + unknowns * math.log(n)


def lowered(search: Search, solve: Solve, distinct: int) -> Search:
    """The search at a lower rank, if one reproduces the responses as well; else the one given.

    With more samples than the unknowns of the lower rank, that does not happen by chance. The rank
    may be lower either because columns of the factor vanish, or because at the given rank there
    were too few samples to tell.
    """
    reproduced = float(search.residual) <= search.tolerance
    squares = torch.linalg.svdvals(search.U).square()
    k = int((squares > NEGLIGIBLE * squares[0].clamp_min(1e-300)).sum())
    d = search.problem.d
    rounding = 100 * torch.finfo(search.U.dtype).eps
    if reproduced and 0 < k < search.rank:
        for lower in range(k, search.rank):  # what looks negligible may still be needed
            candidate = truncated(search, lower)
            if float(candidate.residual) <= max(10 * float(search.residual), rounding):
                return candidate
    if distinct >= needed_samples(d, search.rank):
        return search
    for rank in range(1, search.rank):
        if distinct < needed_samples(d, rank) or search.watch.spent:
            break  # nothing more would be decided, or nothing more is allowed
        candidate = solve(rank, _FEW)
        if float(candidate.residual) <= search.tolerance:
            return candidate
    return search


def raised(search: Search, solve: Solve, distinct: int, n: int, most: int) -> Search:
    """The search at a higher rank, if it reproduces exactly what the given one only nearly does.

    A small eigenvalue that few samples see may hide below the tolerance.
    """
    d = search.problem.d
    while (
        _NEARLY * search.tolerance < float(search.residual) <= search.tolerance
        and search.rank < most
        and distinct >= needed_samples(d, search.rank + 1)
        and n > dimension(d, search.rank + 1)
        and not search.watch.spent
    ):
        higher = solve(search.rank + 1, _FEW)
        if float(higher.residual) > _GAIN * float(search.residual):
            break
        search = higher
    return search


def truncated(search: Search, rank: int) -> Search:
    """The fit at a lower rank that starts from the leading columns of a factor."""
    left, s, _ = torch.linalg.svd(search.U, full_matrices=False)
    U = (left * s[..., None, :])[..., :rank]
    lower = Search(
        search.problem, rank, search.tolerance, search.watch, search.generator, search.max_starts
    )
    lower.adopt(U)
    lower.starts, lower.agreeing = search.starts, search.agreeing
    return lower


def chosen(
    solve: Solve, n: int, d: int, distinct: int, max_starts: int, max_rank: int | None
) -> tuple[Search, float, list[tuple[int, float, float]]]:
    """The search at the rank chosen by the data, how sure that is (0 to 1), and what was tried.

    Ranks are tried from 1 upwards. One that reproduces the responses with more samples than
    unknowns is certain. Otherwise the Bayesian information criterion `n log(RSS/n) + p log n`
    decides, and its weight against the other ranks tried is the confidence; none if the
    highest rank tried is the best, and others remain.
    """
    searches: list[Search] = []
    path: list[tuple[int, float, float]] = []
    best, most = 0, min(d, max_rank or MOST)
    while most > 1 and distinct < needed_samples(d, most):
        most -= 1
    for rank in range(1, most + 1):
        search = solve(rank, min(trial_starts(dimension(d, rank)), max_starts))
        searches.append(search)
        residual = float(search.residual)
        path.append((rank, residual, information(residual, n, dimension(d, rank))))
        if residual <= search.tolerance:
            enough = distinct >= needed_samples(d, rank) and n > dimension(d, rank)
            return search, float(enough), path
        best = min(range(len(path)), key=lambda k: path[k][2])
        if len(path) - 1 - best >= RISES or search.watch.spent:
            break
    if best == len(path) - 1 and most < d:
        return searches[best], 0.0, path  # a higher rank might do better, and was not tried
    weights = [math.exp(-min(score - path[best][2], 1400.0) / 2) for _, _, score in path]
    return searches[best], weights[best] / sum(weights), path
