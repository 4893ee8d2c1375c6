"""Look for a second matrix that reproduces the responses.

Local uniqueness is judged by the curvature. A separate second solution can only be found by a
search. A search that finds none proves nothing, so the result holds the number of starts tried.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from posquad.core.status import Status
from posquad.dynamics.loop import Rule
from posquad.geometry import dimension
from posquad.problems.measurements import RankOne
from posquad.recovery.candidates import Candidates, Task
from posquad.recovery.costs import at_once, takes_dense_steps
from posquad.recovery.descend import method_for
from posquad.recovery.problem import Problem
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.second_starts import Starts, anywhere, make_starts, plan_search
from posquad.recovery.sign_patterns import SIGN_DIMENSION, sign_candidates
from posquad.recovery.solvers.fit import ROUNDING_PATIENCE, at_rounding, stagnated, stationary
from posquad.recovery.solvers.small import Known, StopRule, run_small

# Most steps of a descent that looks for a second solution, three times as many if they are of first
# order. A choice: half and double do as well.
_STEPS = 100
# Steps after which it must have reached this share of the residual before them. Measured: exact
# problems take twice as long if nothing is given up.
_PATIENCE, _RATE = 8, 0.7
# Starts that run together where a step costs more than its calls. A choice: starts that have ended
# cost as much as the others, until all of them have.
_FEW = 4
# Distance from the first solution, relative to it, up to which a start is drawn to it by steps of
# its linearization, and the most of these. Measured: ends of reflections at d = 40 to 300 and n =
# 1.1p to 1.5p are up to 0.2 away, and at most four steps end all of them.
_DRAWN = 0.3
_DRAWN_STEPS = 6
# Steps of a first-order descent for each one of a dense descent. A choice: it starts from near a
# solution, where both converge, but not quadratically.
_FIRST_ORDER = 3


T = TypeVar("T", Tensor, np.ndarray)


class SecondSolutionSearch(NamedTuple, Generic[T]):
    """What a search for a second solution has shown."""

    different: T  # [...]  whether some start leads to a different solution
    starts: T  # [...]  starts that were tried
    agreeing: T  # [...]  those that ended at the first solution again, without being made from it
    enough: T  # [...]  whether so many did that the search says something


def find_second_solution(
    shared: ProblemCache,
    found: Candidates,
    task: Task,
    radii: Radii,
    rank: int,
    *,
    nongeneric: bool,
) -> SecondSolutionSearch[Tensor]:
    """Seek a solution of at most this rank that differs from the first one, which was `found`.

    If there are many rows, some of them are enough to find candidates (`ProblemCache.thinned`). At
    rank one in few dimensions, all candidates are tried. Otherwise some starts are random, some are
    random and nearly orthogonal to the first solution, which fewer of them reach again, some keep
    its leading directions, and some are ends of relaxed reflections, which reach solutions of any
    size where descents do not. Where n x n systems are affordable, mirror images of the first
    solution and other interpolants are tried as well: a second solution differs from the first by a
    matrix that A does not see.
    Where the design is `nongeneric` (one problem only), so are its symmetries: inputs with zeros,
    signs or few distinct values can have separate solutions that differ by the signs or the order
    of coordinates.
    """
    if rank > found.rank:
        found, radii = _widened(found, rank), radii._replace(near=torch.zeros_like(radii.near))
    U, whole = found.U, shared.problem
    d, r = U.shape[-2:]
    shared = shared.thinned(r)
    n = shared.problem.n
    none = torch.zeros(U.shape[:-2], dtype=torch.bool, device=U.device)
    count = torch.zeros_like(none, dtype=torch.int64)
    rows = isinstance(shared.problem.operator, RankOne)
    if rows and r == 1 and d <= SIGN_DIMENSION:
        starts = sign_candidates(shared.problem, U, radii.apart)
        different = _ends(_Known(shared, found, radii, whole), task, starts)[1].any(0)
        all = torch.full_like(count, 2 ** (d - 1))
        return SecondSolutionSearch(different, all, torch.where(different, 0, all), ~none)
    plan = plan_search(shared, r, nongeneric=nongeneric)
    sought = SecondSolutionSearch(none, count, count.clone(), none.clone())
    problem = _Known(shared, found, radii, whole)
    together = max(1, at_once(max(n * d * r, (d * r) ** 2)) // max(1, none.numel()))
    if not plan.random:
        together = min(together, _FEW)
    where: Tensor | None = None  # the problems that are left of a batch
    for round in range(plan.rounds):
        part = problem if where is None else problem.select(where)
        starts = make_starts(part.shared, part.found.U, task, plan, round, nongeneric=nongeneric)
        again, elsewhere = _all_ends(part, task, starts, together, first=not plan.random)
        index = ... if where is None else where
        sought.different[index] |= elsewhere.any(0)
        # The first ones are not independent: they are made from the first solution.
        sought.agreeing[index] += again[len(again) - starts.independent :].sum(0)
        sought.starts[index] += starts.tried
        open = ~sought.different & (sought.agreeing < plan.agreeing)  # it ends as it would alone
        if not bool(open.any()) or task.history.budget.spent:
            break
        where = open.nonzero()[:, 0] if open.ndim else None
    return sought._replace(enough=sought.agreeing >= plan.least)


class Radii(NamedTuple):
    """Distances of matrices from the first solution UU', relative to its norm."""

    near: Tensor  # [...]  no other solution is nearer than this; 0 if unknown
    apart: Tensor  # [...]  solutions that are farther count as different

    def select(self, index: Tensor) -> Radii:
        """Return those of the problems of a batch at these indices."""
        return Radii(self.near[index], self.apart[index])


class _Known(NamedTuple):
    """A problem with its first solution."""

    shared: ProblemCache  # may have a part of the rows
    found: Candidates
    radii: Radii
    whole: Problem  # with all rows

    def select(self, index: Tensor) -> _Known:
        """Return the problems of a batch at these indices."""
        shared, found = self.shared.select(index), self.found.select(index)
        return _Known(shared, found, self.radii.select(index), self.whole.select(index))


def _widened(found: Candidates, rank: int) -> Candidates:
    """Return what was found with columns of zeros, as one of this rank."""
    U = torch.nn.functional.pad(found.U, (0, rank - found.rank))
    return replace(found, rank=rank, U=U, known=None)


def _drawn(known: _Known, starts: Tensor) -> Tensor:
    """Return starts `[S, ..., d, r]`, those that are drawn to the first solution as they end.

    Steps of its linearization lead to it quadratically from nearby, and cost a solution of one
    system each. At another solution `e = 0`, so that they stay there.
    """
    shared, found, radii, _ = known
    rank, (n, d) = found.rank, (shared.problem.n, shared.problem.d)
    dense = takes_dense_steps(n, d, rank, dimension(d, rank))
    worth = shared.is_linearized(rank) or dense
    if shared.is_small(rank) or not worth or not len(starts) or not bool((radii.near > 0).any()):
        return starts
    U, system, V = found.U, shared.linearized(found.U), starts
    size = (U.mT @ U).square().sum((-2, -1))
    close = system.definite & (_squared_distance(V, U) <= _DRAWN**2 * size)
    drawn = torch.zeros_like(close)
    for _ in range(_DRAWN_STEPS):
        drawn = close & (_squared_distance(V, U) <= radii.near.square() * size)
        if bool((drawn == close).all()):
            break
        V = torch.where(drawn[..., None, None], V, system.step(V))
    return torch.where(drawn[..., None, None], V, starts)


def _squared_distance(V: Tensor, U: Tensor) -> Tensor:
    """Return `||VV' - UU'||^2`, to an accuracy of eps ||UU'||^2."""
    size = (U.mT @ U).square().sum((-2, -1))
    return (V.mT @ V).square().sum((-2, -1)) + size - 2 * (U.mT @ V).square().sum((-2, -1))


def _all_ends(
    known: _Known, task: Task, starts: Starts, together: int, *, first: bool
) -> tuple[Tensor, Tensor]:
    """Return the same as `_ends`, for so many starts `together`.

    With `first`, starts after those that lead to another solution of a problem do not count.
    """
    again, elsewhere = torch.zeros_like(starts.pursued), torch.zeros_like(starts.pursued)
    found, begin = again.any(0), 0
    for some in _drawn(known, starts.U).split(together):
        if first and bool(found.all()):
            break
        part = slice(begin, begin := begin + len(some))
        counts = starts.pursued[part] & ~(found & first)
        again[part], elsewhere[part] = (which & counts for which in _ends(known, task, some))
        found = elsewhere.any(0)
    return again, elsewhere


def _ends(known: _Known, task: Task, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Which starts `[S, ..., d, r]` end at U again, and which at another solution, `[S, ...]`.

    A solution must be one of the whole problem.
    """
    shared, found, radii, whole = known
    problem, U = shared.problem, found.U
    size = (U.mT @ U).square().sum((-2, -1))
    near = radii.near.square() * size

    if shared.is_small(found.rank):
        ending = StopRule(steps=_STEPS, patience=_PATIENCE, rate=_RATE, rounding=ROUNDING_PATIENCE)
        V, residual = run_small(problem, starts, ending, task.history, Known(U, near.sqrt()))
    else:
        V = starts
        residual = torch.full(starts.shape[:-2], torch.inf, dtype=U.dtype, device=U.device)
        apart = anywhere(_squared_distance(V, U) > near)  # the others need no descent
        if bool(apart.any()):
            r, d, n = found.rank, shared.problem.d, shared.problem.n
            dense = takes_dense_steps(n, d, r, dimension(d, r)) or shared.is_dense(r)
            method = method_for(problem, found.rank, dense=dense)
            ends: list[Rule[Any]] = [at_rounding(), stationary(), stagnated(_PATIENCE, _RATE)]
            ends.append((Status.CONVERGED, lambda state: _squared_distance(state.U, U) <= near))
            steps = _STEPS if dense else _FIRST_ORDER * _STEPS
            state = task.history.run(method, method.start(starts[apart]), ends, steps=steps)
            V, residual = V.clone(), residual.clone()
            V[apart], residual[apart] = state.U, state.residual
    away = _squared_distance(V, U)
    reproduced, back = residual <= task.tolerance, away <= near
    if shared.prepared.sums is not None:  # or rounding does not exclude that it is
        reproduced = reproduced | (residual <= shared.prepared.sums.hidden(V))
    elsewhere = reproduced & ~back & (away > radii.apart.square() * size)
    if whole.n > problem.n:
        some = anywhere(elsewhere)
        solves = whole.relative_residual(V[some]) <= task.tolerance
        elsewhere = elsewhere.clone().index_put((some,), elsewhere[some] & solves)
    return (reproduced | back) & ~elsewhere, elsewhere
