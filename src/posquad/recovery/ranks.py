"""Choice of the rank: the smallest that reproduces the responses, or the one of the lowest BIC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import host
from posquad.core.ranges import tiny
from posquad.core.results import Result
from posquad.geometry import dimension
from posquad.recovery.candidates import Candidates, Task, visible
from posquad.recovery.initializers import top_eigenpairs
from posquad.recovery.problem_cache import AMPLE, ProblemCache
from posquad.recovery.search import search

# Starts for a rank that may be wrong: a round of small problems, or two of those of more unknowns,
# where a start is expensive. A choice: a dense step of 150 unknowns takes 6e6 operations.
TRIAL_STARTS, _LARGE_TRIAL_STARTS, _LARGE_TRIAL = 24, 8, 150
# Rank shown by the linear fit above which the trials begin there, and ranks without a better score
# that end them. A choice: a single rank may fail to improve it by chance.
FEW_RANKS, _UNIMPROVED = 3, 2
# Size of a further column, relative to that of a spectral estimate, where no direction lowers the
# loss. A choice: it hardly changes the factor, and a descent can still turn it.
_SMALL_COLUMN = 1e-3
# Cosine of residual and predictions along a column above which the column lowers the loss. Derived:
# a cosine is rounded by about sqrt(n) eps, which is 2e-13 at n = 1e6.
_LOWERS = 1e-12

__all__ = ["RankPath", "bic", "highest_rank", "trial_starts", "try_ranks", "weight_of_best"]


class Solve(Protocol):
    """Run a search at a rank with at most so many starts, from a given factor if there is one."""

    def __call__(
        self, rank: int, starts: int, start: Tensor | None = None, *, rough: bool = False
    ) -> Candidates: ...


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
    return _LARGE_TRIAL_STARTS if unknowns > _LARGE_TRIAL else TRIAL_STARTS


def bic(residual: Any, n: Any, unknowns: int) -> Any:
    """Return the Bayesian information criterion `2 n log(residual) + p log n`, elementwise.

    `residual` is relative to the responses, n the number of samples and p that of unknowns.

    >>> float(bic(1.0, 1, 5)), bool(bic(0.1, 100, 6) < bic(0.1, 100, 11))
    (0.0, True)
    """
    return 2 * n * np.log(np.maximum(residual, tiny())) + unknowns * np.log(n)


def weight_of_best(scores: np.ndarray) -> np.ndarray:
    """Return the weight of the lowest of the scores `[..., k]` among all, `[...]`.

    The weights `exp(-score / 2)` approximate the posterior probabilities of the ranks if the score
    is the Bayesian information criterion (Kass and Raftery, Bayes factors, JASA 1995, section 4).
    They are relative to the lowest score, so that none overflows and their sum is at least 1; a
    weight that underflows, from a difference of 1400 on, does not change that sum.

    >>> float(weight_of_best(np.array([-50.0, -50.0, 3000.0, np.inf])))
    0.5
    """
    return 1 / np.exp((scores.min(-1, keepdims=True) - scores) / 2).sum(-1)


def highest_rank(d: int, max_rank: int | None, allowed: Callable[[int], bool]) -> int:
    """Return the highest rank to try: at most d and `max_rank`, if it is given, and allowed.

    `allowed(rank)` says whether there are enough samples for a rank; rank 1 is always tried.

    >>> highest_rank(20, None, lambda rank: rank <= 5), highest_rank(20, 3, lambda rank: True)
    (5, 3)
    """
    highest = min(d, max_rank or d)
    while highest > 1 and not allowed(highest):
        highest -= 1
    return highest


def try_ranks(
    trial: Callable[[int], _T],
    highest: int,
    stopped: Callable[[], bool],
    first: int = 1,
) -> tuple[list[_T], int]:
    """Try ranks from the `first` upwards; return the trials by rank, and the index of the chosen.

    The first rank that reproduces the responses is chosen, else the one of the lowest score. The
    trials also end when two ranks in a row do not improve the score, or when `stopped()`. Then
    ranks below the first are tried in the same way.

    >>> class Scored(NamedTuple):
    ...     score: float
    ...     reproduced: bool = False
    >>> trials, best = try_ranks(lambda rank: Scored(abs(rank - 2)), 10, lambda: False)
    >>> len(trials), best
    (4, 1)
    >>> trials, best = try_ranks(lambda rank: Scored(abs(rank - 4)), 10, lambda: False, first=6)
    >>> [int(trial.score) for trial in trials], best
    ([2, 1, 0, 1, 2, 3, 4], 2)
    """
    first = min(first, highest)
    trials: dict[int, _T] = {}

    def told(best: int) -> tuple[list[_T], int]:
        ranks = sorted(trials)
        return [trials[rank] for rank in ranks], ranks.index(best)

    best = first
    for ranks in (range(first, highest + 1), range(first - 1, 0, -1)):
        for rank in ranks:
            trials[rank] = trial(rank)
            if trials[rank].reproduced:
                return told(rank)
            best = min(sorted(trials), key=lambda k: trials[k].score)
            if stopped():
                return told(best)
            if abs(rank - best) >= _UNIMPROVED:
                break
    return told(best)


def with_next_column(shared: ProblemCache, U: Tensor) -> Tensor | None:
    """Return `[U, t v]`, where v is the direction of most negative curvature of what is left.

    With `e = A(UU') - y`, the loss falls along `UU' + s vv'` at the rate `v'A*(e)v`; v is the
    eigenvector of the least eigenvalue of `A*(e)`, and the best s is `-<e, a> / ||a||^2` for
    `a_i = (x_i'v)^2`. If there is no negative eigenvalue, and U is stationary, UU' is the best of
    all positive semidefinite matrices (they satisfy its optimality conditions): return None.
    """
    column, lower = _next_column(shared, U)
    return torch.cat([U, column], dim=-1) if bool(lower) else None


def with_next_columns(shared: ProblemCache, U: Tensor) -> Tensor:
    """Return `[U, t v]`, as above, of all problems of a batch.

    Where no direction lowers the loss, any small column will do: that of a spectral estimate.
    """
    column, lower = _next_column(shared, U)
    if not bool(lower.all()):
        small = _SMALL_COLUMN * shared.start(U.shape[-1] + 1)[..., -1:]
        column = torch.where(lower[..., None, None], column, small)
    return torch.cat([U, column], dim=-1)


def _next_column(shared: ProblemCache, U: Tensor) -> tuple[Tensor, Tensor]:
    """Return the column `t v`, `[..., d, 1]`, and whether it lowers the loss, `[...]`."""
    problem = shared.problem
    e = problem.operator.apply_factor_kernel(U) - problem.y
    v = top_eigenpairs(problem.operator, -e, 1)[1]
    a = problem.operator.apply_factor_kernel(v)
    gain, square = -(e * a).sum(-1), a.square().sum(-1)
    lower = gain > _LOWERS * (e.square().sum(-1) * square).sqrt()
    size = torch.where(lower, gain / torch.where(square > 0, square, 1.0), 0.0).sqrt()
    return size[..., None, None] * v, lower


def with_columns(shared: ProblemCache, U: Tensor, rank: int) -> Tensor:
    """Return a factor with more columns, each along negative curvature of what is left."""
    while U.shape[-1] < rank:
        U = with_next_columns(shared, U)
    return U


def leading_columns(U: Tensor, rank: int) -> Tensor:
    """Return the factor of the best approximation of `UU'` of a lower rank."""
    left, s, _ = torch.linalg.svd(U, full_matrices=False)
    return (left * s[..., None, :])[..., :rank]


def _better(shared: ProblemCache, given: Tensor, warm: Tensor | None) -> Tensor:
    """Return the start of lower residual; the first if there is no other."""
    if warm is None:
        return given
    a, b = (float(shared.problem.relative_residual(U)) for U in (given, warm))
    return given if a <= b else warm


class _SearchTrial(NamedTuple):
    """A rank that was tried by a search."""

    rank: int
    residual: float
    score: float
    reproduced: bool
    found: Candidates


class RankChoice(NamedTuple):
    """The candidates at the chosen rank, the confidence in it (0 to 1), and the ranks tried."""

    found: Candidates
    confidence: float
    path: list[tuple[int, float, float]]  # rank, residual, score


def choose_rank(
    solve: Solve,
    shared: ProblemCache,
    task: Task,
    max_starts: int,
    max_rank: int | None,
    given: Tensor | None = None,
) -> RankChoice:
    """Choose the rank that reproduces the responses, or the one of the lowest score.

    A rank that reproduces the responses with more samples than unknowns has confidence 1. Otherwise
    the Bayesian information criterion `n log(RSS/n) + p log n` decides, and the confidence is the
    weight of the rank among those tried. It is 0 if the highest rank tried is the best and higher
    ones exist.

    If the samples determine Q as a linear fit, and its spectrum shows a high rank, the trials begin
    there. If there are few samples for that rank, the convex problem of rank d is solved first: its
    answer is the best one of every rank from its own on. With ample samples, every rank starts at
    the last one plus a direction of negative curvature of what is left; near the information limit
    that start is one of several. A full search is made at the chosen rank only. A `given[d, k]`
    factor is the start of rank k, and its best approximations are those of lower ranks, unless the
    last rank leads to a better one.
    """
    n, d = int(shared.prepared.count), shared.problem.d
    budget = task.history.budget
    tried: dict[int, Candidates] = {}
    first = first_rank(int(shared.visible_rank))
    nothing = without_matrix(shared)
    least, highest = None, _highest(shared, max_rank)
    few = shared.samples < AMPLE * dimension(d, first)
    if first > 1 and shared.is_convex_small and few:
        least = _least_rank(shared, solve(d, 1))
        first = least.rank

    def trial(rank: int) -> _SearchTrial:
        p = shared.unknowns(rank)
        if least is not None and rank >= least.rank:
            tried[rank] = least
            residual = shared.prepared.of_all_samples(float(least.residual))
            reproduced = residual <= task.tolerance
            return _SearchTrial(rank, residual, bic(residual, n, p), reproduced, least)
        ample = first > 1 or shared.samples >= AMPLE * p
        start = None
        if rank - 1 in tried:
            start = with_next_column(shared, tried[rank - 1].U)
        elif rank + 1 in tried:
            start = leading_columns(tried[rank + 1].U, rank)
        if given is not None and rank <= given.shape[-1]:
            start = _better(shared, leading_columns(given, rank), start)
        starts = 1 if ample else min(trial_starts(p), max_starts)
        found = tried[rank] = solve(rank, starts, start, rough=ample)
        residual = shared.prepared.of_all_samples(float(found.residual))
        return _SearchTrial(rank, residual, bic(residual, n, p), residual <= task.tolerance, found)

    trials, best = try_ranks(trial, highest, lambda: budget.spent, first)
    path = {t.rank: (t.rank, t.residual, t.score) for t in [*nothing, *trials]}
    chosen = trials[best]
    found = chosen.found
    if nothing and nothing[0].score < chosen.score and not chosen.reproduced:
        sure = 0.0 if budget.spent else _confidence([*nothing, *trials])
        return RankChoice(nothing[0].found, sure, list(path.values()))
    ample = first > 1 or shared.samples >= AMPLE * dimension(d, chosen.rank)
    if found is not least and (ample or not (chosen.reproduced or budget.spent)):
        found = _confirmed(chosen, trials[:best], solve, task, max_starts)
        residual = shared.prepared.of_all_samples(float(found.residual))
        path[found.rank] = found.rank, residual, bic(residual, n, shared.unknowns(found.rank))
    told = list(path.values())
    if path[found.rank][1] <= task.tolerance:
        p = shared.unknowns(found.rank)
        enough = bool(shared.suffices(found.rank)) and n > p
        return RankChoice(found, float(enough), told)
    if budget.spent:  # the choice was not completed
        undecided = np.zeros_like(found.settled)
        return RankChoice(replace(found, settled=undecided), 0.0, told)
    if chosen.rank == highest and highest < d:
        return RankChoice(found, 0.0, told)  # a higher rank might be better, but was not tried
    return RankChoice(found, _confidence([*nothing, *trials]), told)


def _confidence(trials: list[_SearchTrial]) -> float:
    """Return the weight of the best rank among those tried."""
    return float(weight_of_best(np.array([t.score for t in trials])))


def without_matrix(shared: ProblemCache) -> list[_SearchTrial]:
    """Return rank 0, the other terms alone, as a trial; none if there are no other terms."""
    if not shared.other_terms:
        return []
    y, none = shared.problem.y, np.array(0)
    least, settled = shared.problem.least, np.array(True)
    zero = y.new_zeros(shared.problem.d, 0)
    found = Candidates(0, zero, least, none, none, settled, np.zeros_like(least))
    residual = shared.prepared.of_all_samples(float(least))
    score = bic(residual, int(shared.prepared.count), shared.other_terms)
    return [_SearchTrial(0, residual, score, False, found)]


def _least_rank(shared: ProblemCache, found: Candidates) -> Candidates:
    """Return the answer to the convex problem as one of its own rank."""
    seen = visible(found.singular_values, shared.acceptance.negligible)
    rank = max(1, int(seen.sum()))
    return replace(found, rank=rank, U=leading_columns(found.U, rank), known=None)


def first_rank(shown: int) -> int:
    """Return the rank at which the trials begin, if a linear fit has shown this rank.

    >>> first_rank(0), first_rank(3), first_rank(14)
    (1, 1, 14)
    """
    return shown if shown > FEW_RANKS else 1


def _highest(shared: ProblemCache, max_rank: int | None, index: int | None = None) -> int:
    """Return the highest rank to try of a problem, or of one of a batch."""
    at = () if index is None else index
    return highest_rank(shared.problem.d, max_rank, lambda rank: bool(shared.suffices(rank)[at]))


class RankChoices(NamedTuple):
    """The ranks chosen for a batch, the confidence in them, and the best factors at these ranks."""

    rank: Tensor  # [B]
    confidence: Tensor  # [B]
    factors: dict[int, Tensor]  # rank to `[B, d, rank]`


def choose_ranks(
    shared: ProblemCache,
    task: Task,
    max_starts: int,
    max_rank: int | None,
    begin: Callable[[ProblemCache, np.ndarray], None],
) -> RankChoices:
    """Choose the ranks of a batch together, by the rules of `choose_rank` for each problem.

    A rank is tried for the problems that are still open: those that no lower rank reproduces, and
    whose score has improved at one of the last ranks. The highest rank of each problem depends on
    its own samples. `begin(part, indices)` is called before a part is searched.
    """
    d, count = shared.problem.d, shared.prepared.count
    total = len(count)
    highest = torch.tensor([_highest(shared, max_rank, index) for index in range(total)])
    scores = torch.full((total, int(highest.max())), torch.inf, dtype=torch.float64)
    reproduced = torch.zeros(total, dtype=torch.bool)
    tried = torch.zeros(total, dtype=torch.int64)
    factors: dict[int, Tensor] = {}
    is_open = torch.ones(total, dtype=torch.bool)
    for rank in range(1, scores.shape[-1] + 1):
        chosen = is_open.nonzero()[:, 0]
        part = shared.select(chosen.to(shared.problem.y.device))
        begin(part, host(chosen))
        p = dimension(d, rank)
        ample = shared.problem.n >= AMPLE * p
        start = None
        if rank > 1:
            start = with_next_columns(part, factors[rank - 1][chosen])
        starts = 1 if ample else min(trial_starts(p), max_starts)
        found = search(part, rank, task, starts, start, rough=ample)
        U = shared.problem.y.new_zeros(total, d, rank)
        U[chosen] = found.U
        factors[rank] = U
        residual = torch.from_numpy(found.residual).double()
        scores[chosen, rank - 1] = torch.from_numpy(bic(host(residual), count[host(chosen)], p))
        tried[chosen] = rank
        reproduced[chosen] = residual <= task.tolerance
        unimproved = rank - 1 - scores[:, :rank].argmin(-1)
        is_open = is_open & ~reproduced & (unimproved < _UNIMPROVED)
        is_open = is_open & (rank < highest)
        if not bool(is_open.any()) or task.history.budget.spent:
            break
    best = torch.where(reproduced, tried, scores.argmin(-1) + 1)
    confidence = torch.from_numpy(weight_of_best(host(scores)))
    undecided = (best == tried) & (highest < d)  # a higher rank might be better
    if task.history.budget.spent:
        undecided = undecided | is_open
    confidence = torch.where(undecided, 0.0, confidence)
    return RankChoices(best, torch.where(reproduced, 1.0, confidence), factors)


def _confirmed(
    chosen: _SearchTrial,
    lower_trials: list[_SearchTrial],
    solve: Solve,
    task: Task,
    max_starts: int,
) -> Candidates:
    """Return the result of a full search at the chosen rank, or at a lower one that reproduces.

    A trial that started from the last rank may have missed the answer.
    """
    found = solve(chosen.rank, max_starts, chosen.found.U)
    for trial in reversed(lower_trials):
        if float(found.residual) > task.tolerance or task.history.budget.spent:
            break
        lower = solve(trial.rank, max_starts, trial.found.U)
        if float(lower.residual) > task.tolerance:
            break
        found = lower
    return found
