"""Search for a factor that reproduces the responses: which solver, from which starts.

The first attempt uses the cheapest solver for the shape of the problem. Problems that are not
solved by it are tried from other starts, in rounds: perturbed copies of the first start, the
limits of log-det IRLS from random weights, which often differ where perturbed starts all agree, and
near the information limit those of relaxed reflections, which spurious minima do not trap. If the
responses cannot be reproduced, the search ends when enough starts reach the least residual.

The random numbers of a round depend on the seed and the round alone, and are the same for all
problems of a batch, so that a problem is searched in a batch as it is alone.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import host
from posquad.core.ranges import tiny
from posquad.geometry import dimension
from posquad.problems.measurements import RankOne
from posquad.recovery.candidates import Candidates, Task, singular_values, visible
from posquad.recovery.costs import is_overhead, takes_dense_steps
from posquad.recovery.descend import descend, method_for
from posquad.recovery.problem import Problem
from posquad.recovery.problem_cache import AMPLE, ProblemCache
from posquad.recovery.restarts import (
    COMPANIONS,
    first_reflected,
    perturbed_starts,
    plain_round,
    reflected_starts,
    reweighted_starts,
)
from posquad.recovery.sign_patterns import has_pattern_starts, pattern_starts
from posquad.recovery.solvers.cone import OPTIMAL, bound_by_residual, is_optimal, positive_fit
from posquad.recovery.solvers.cone_batch import fit_positive_batch
from posquad.recovery.solvers.fit import (
    SECOND_ORDER_STEPS,
    FitState,
    at_rounding,
    fitted,
    index_state,
    stationary,
)
from posquad.recovery.solvers.lbfgs import PATIENCE
from posquad.recovery.solvers.small import FinalFactors, StopRule, run_small
from posquad.recovery.stationarity import relative_offset

# Steps without a halved residual after which dense steps of the refinement, which converge
# quadratically, are at rounding. A choice: two, because one may be rejected.
_DENSE_PATIENCE = 2
# Samples per unknown below which reflections come first although dense steps are too expensive.
# Measured at (500, 5) on one thread: 1.6 s instead of 15.7 s at 1.2p, 0.8 s instead of 0.4 s at
# 1.5p.
_FEW_SAMPLES = 1.4
# Share of its squared error by which one more step may lower that of a fit that is refined to the
# end. Derived: the square of a hundredth of `Acceptance.stationary`.
_GAIN = 1e-12
# Most steps of that refinement. A choice: weak directions of a noisy fit converge slowly, and a
# step of a small problem costs little.
_LAST_STEPS = 1000
# Multiple of eps down to which a residual is refined, up to so many unknowns, and above. A choice:
# with many unknowns refining costs more than the search, so the last digit is not worth it.
_REFINED = 10
_REFINED_LARGE = 50
_REFINED_UNKNOWNS = 200
# First-order steps that refine the best fit of a large problem. Measured by
# `benchmarks/recovery_noisy.py`.
_POLISH_STEPS = 400

# Reflections near the information limit. Measured on the twelve slowest problems of the row
# 40-3-1.05p of `benchmarks/recovery_table.py`, 5.7 s in all, and, where a step costs only its
# calls, at rank one and at (20, 2) with n = p + 1, where all of 48 problems are solved.
_REFLECTED_ROUNDS = 8  # one round of these is not reflected: 10 s at half, 7 s at double the value
_CHEAP_ROUNDS = 4  # the same where a step costs only its calls
_CHEAP_REFLECTED = 24  # rounds after which only hard problems are reflected there
_HARD, _HARD_RANKS = 1.4, 1.04  # samples per unknown below which one is hard; at rank 1, others
_UNREFLECTED = 4  # starts that agree, from which none is: no matrix of the rank has the responses
_UNREFLECTED_SHARE = 0.05  # the same as a share of the starts; up to 2% agree on a wrong minimum


def search(
    shared: ProblemCache,
    rank: int,
    task: Task,
    max_starts: int,
    start: Tensor | None = None,
    *,
    rough: bool = False,
) -> Candidates:
    """Search at one rank: first attempt, rounds of restarts, and refinement.

    A `start[..., d, rank]` is tried before everything else. A `rough` answer is not refined where
    that costs more than the search.
    """
    return Search(shared, rank, task, max_starts, start).run(rough=rough)


def refine(shared: ProblemCache, U: Tensor, task: Task, found: Candidates) -> Candidates:
    """Refine a factor of another rank instead of searching; the starts are those of `found`."""
    run = _resumed(shared, U, task, found)
    run.residual = host(shared.problem.relative_residual(U)).copy()
    run.polish()
    return run.candidates()


def _resumed(shared: ProblemCache, U: Tensor, task: Task, found: Candidates) -> Search:
    """Return a search that goes on from these factors, with the starts of `found`."""
    run = Search(shared, U.shape[-1], task, 1)
    run.U, run.starts, run.agreeing = U, found.starts, found.agreeing
    run.bound, run.farkas = found.bound, found.farkas
    return run


def refine_to_the_end(shared: ProblemCache, found: Candidates, task: Task) -> Candidates:
    """Refine the best fits to small problems that are not stationary yet, in weak directions.

    The refinement of a search ends when the whole gradient is small.
    """
    missed = found.settled & (found.residual > task.tolerance) & np.isfinite(found.residual)
    missed &= found.residual - found.bound > OPTIMAL * found.residual
    if not shared.is_small(found.rank) or not missed.any():
        return found
    problem, chosen = shared.problem.where(torch.as_tensor(missed, device=found.U.device))
    U = found.U if chosen is None else found.U[chosen]
    Z = problem.operator.project(U)
    offset = host(relative_offset(problem.operator, U, Z, problem.residual(Z)))
    if not (offset > _GAIN**0.5).any():
        return found
    ending = StopRule(steps=_LAST_STEPS, gain=_GAIN, rounding=_DENSE_PATIENCE)
    run = _resumed(shared, found.U, task, found)
    run.residual, run.working = found.residual.copy(), chosen
    run._keep(run_small(problem, U[None], ending, task.history), chosen, count=False)
    return replace(found, U=run.U, residual=run.residual, known=None)


class Search:
    """A running search: the best factors so far of a batch of problems, and how they were found."""

    def __init__(
        self,
        shared: ProblemCache,
        rank: int,
        task: Task,
        max_starts: int,
        start: Tensor | None = None,
    ) -> None:
        self.shared, self.rank, self.task, self.max_starts = shared, rank, task, max_starts
        self.problem, self.given = shared.problem, start
        self.acceptance = shared.acceptance
        self.history, self.budget = task.history, task.history.budget
        self.history.rank = rank
        y = self.problem.y
        batch = y.shape[:-1]
        self.U = y.new_zeros(*batch, self.problem.d, rank)
        self.residual = np.array(self.problem.least)
        self.starts = np.zeros(batch, dtype=np.int64)
        self.agreeing = np.zeros(batch, dtype=np.int64)
        self.p = dimension(self.problem.d, rank)
        n, d = self.problem.n, self.problem.d
        self.cheap = is_overhead(n, d, rank, self.p)
        self.small = shared.is_small(rank)
        self.optimal = np.zeros(batch, dtype=bool)  # proved
        self.convex = rank == d and shared.is_bounded  # so that other starts have no other minima
        self.bound = np.zeros_like(self.residual)
        self.farkas: Tensor | None = None
        self.known: np.ndarray | None = None  # singular values of U
        self.unproved: tuple[FinalFactors, Tensor | None] | None = None  # of a convex problem
        self.working: Tensor | None = None  # indices of the problems in the current run
        self.next_round = 0

    @cached_property
    def first(self) -> Tensor:
        """The first start `[..., d, r]`, of which others are perturbed copies."""
        first = self.shared.start(self.rank)
        return (
            self._scaled(first) if self.shared.other_terms else first
        )  # else it has the right size

    @property
    def settled(self) -> np.ndarray:
        """Whether the least residual is known, or was reached by enough starts, `[...]`."""
        acceptance = self.acceptance
        samples, sums = self.shared.samples, self.shared.prepared.sums
        excess = max(samples / self.p - 1, acceptance.least_excess)
        least = math.ceil(acceptance.agreeing_starts / excess**2)
        if self.cheap and samples < acceptance.plenty * self.p:
            least = max(least, acceptance.agreeing_cheap_starts)
        if sums is not None and not sums.determined:
            least = acceptance.agreeing_free
        least = min(least, math.ceil(acceptance.agreeing_share * self.max_starts))
        return self.optimal | (self.agreeing >= max(acceptance.least_agreeing, least))

    @property
    def _is_reproduced(self) -> bool:
        return bool((self.residual <= self.task.tolerance).all())

    @property
    def _is_near_limit(self) -> bool:
        return self.shared.samples < AMPLE * self.p

    @property
    def open(self) -> np.ndarray:
        """Whether a problem is neither reproduced nor settled, and has starts left, `[...]`."""
        undecided = (self.residual > self.task.tolerance) & ~self.settled
        return undecided & (self.starts < self.max_starts)

    def candidates(self) -> Candidates:
        """Return what has been found so far."""
        return Candidates(
            self.rank,
            self.U,
            self.residual,
            self.starts,
            self.agreeing,
            self.settled,
            self.bound,
            self.farkas,
            self.known,
        )

    def _part(self, mask: np.ndarray) -> tuple[Problem, Tensor | None]:
        """Return the problems where the mask holds, and their indices; None stands for all."""
        return self.problem.where(torch.as_tensor(mask, device=self.U.device))

    def run(self, *, rough: bool = False) -> Candidates:
        """Run the first attempt, rounds of restarts, and, unless `rough`, the refinement."""
        self.history.last = None
        try:
            self._first_attempt()
            while self.open.any() and not self.budget.spent and not self.convex:
                self._prove_deficient()
                self._restart()
            if not rough or self.cheap:
                self.polish()
                self._prove_deficient()
        except KeyboardInterrupt:
            self.keep_last()
            self._offer()
            raise
        self._offer()
        return self.candidates()

    def _offer(self) -> None:
        """Make this the best result so far, unless an earlier one is better."""
        best, found = self.history.best, self.candidates()
        if best is not None:
            reproduced = bool((found.residual <= self.task.tolerance).all())
            lower = reproduced and found.rank < best.rank
            if not lower and not bool((found.residual < best.residual).any()):
                return
        self.history.best = found

    def _keep_unproved(self) -> None:
        """Keep the factors of a convex problem that may not be optimal, where they are better."""
        if self.unproved is not None:
            self._keep(*self.unproved, count=False)

    def keep_last(self) -> None:
        """Keep the last state of an interrupted run."""
        self._keep_unproved()
        state = self.history.last
        if state is not None and state.U.ndim == self.U.ndim + 1:
            self._keep(state, self.working, count=False)

    # The first attempt.

    def _first_attempt(self) -> None:
        """Make one attempt with the cheapest solver for the shape of the problem."""
        problem = self.problem
        if self.given is not None:
            self._keep(self._descend(problem, self._scaled(self.given)[None]))
            if not self.open.any():
                return
        sums = self.shared.prepared.sums
        if sums is not None and not sums.determined:  # they know most of the first start
            self._keep(self._descend(problem, self.shared.start(self.rank)[None]))
            if not self.open.any():
                return
        if self.convex:
            self._fit_cone()
            if not self.open.any() or not self.shared.is_convex_small:
                self._keep_unproved()
                return
        if self.shared.symmetric is not None:
            spectral = self.shared.better_than_zero(self.rank)
            self._keep(FitState.begin(problem, spectral[None]), count=False)
        problem, chosen = self._part(self.open)
        self.working = chosen
        # Sums know most of the first start, so that no other one may take its place.
        near_limit = self._is_near_limit and self.shared.prepared.sums is None
        if self._reflects_first:
            tries = first_reflected(problem, self.rank, self.task)
        elif near_limit and not self.cheap and self.shared.forms_kernel:
            tries = self._reweighted(problem, 1, plain=True, round=-1)
        else:
            tries = self.first[None] if chosen is None else self.first[None, chosen]
            if near_limit and self.cheap and tries.ndim == 3:
                # A round of restarts beside the first attempt costs almost nothing.
                companions = min(COMPANIONS, self.max_starts - 1)
                tries = torch.cat([tries, self._perturbed(None, companions, round=0)])
                self.next_round = 1
        self._keep(self._descend(problem, tries), chosen)
        self._keep_unproved()

    @property
    def _reflects_first(self) -> bool:
        """Whether reflections of rows come first: near the limit, where steps are not cheap.

        Where dense steps are too expensive to follow, only if samples are few.
        """
        spans = bool((self.shared.prepared.span == self.problem.d).all())  # others: again, alone
        rows = isinstance(self.problem.operator, RankOne) and spans
        few = self.shared.is_dense(self.rank) or self.problem.n < _FEW_SAMPLES * self.p
        return rows and self._is_near_limit and few and not self.cheap

    def _fit_cone(self) -> None:
        """Solve problems whose rank is not limited, which are convex, with a proof."""
        if self._fit_cone_together():
            return
        problem, chosen = self._part(~self.optimal)
        self.working = chosen
        fit = positive_fit(problem, self.budget, history=self.history)
        U, optimal = fit.factor, fit.optimal | fit.interpolates
        self.unproved = FinalFactors(U[None], fit.residual[None]), chosen
        if chosen is None:
            self.bound, self.farkas = host(fit.bound), fit.farkas
            self._accept_optimal(U, optimal)
            return
        self.bound[host(chosen)] = host(fit.bound)
        none = torch.zeros(self.optimal.shape, dtype=torch.bool, device=U.device)
        U = torch.zeros_like(self.U).index_copy(0, chosen, U)
        self._accept_optimal(U, none.index_copy(0, chosen, optimal))

    def _fit_cone_together(self) -> bool:
        """Solve a batch with enough samples by Newton's method; return whether it solves all."""
        if self.budget.spent:
            return False
        fit = fit_positive_batch(self.problem)
        if fit is None:
            return False
        self.bound = host(torch.where(fit.optimal, fit.bound, 0.0))
        self._accept(fit.factor, fit.residual, fit.optimal)
        open = ~fit.optimal.cpu().numpy()
        self.history.note(fit.residual.cpu().numpy(), open, step=False)
        solved = bool(fit.optimal.all())
        if solved and self.given is None:
            # The columns are orthogonal.
            self.known = host(torch.linalg.vector_norm(self.U, dim=-2))
        return solved

    def _prove_deficient(self) -> None:
        """Ask of misfits with a factor of lower rank whether any matrix is better.

        A minimum whose factor does not have full rank is a minimum over all positive semidefinite
        matrices; Q = 0 is the best fit to responses with `A*(y) <= 0`, for example.
        """
        misfit = (self.residual > self.task.tolerance) & ~self.optimal
        if self.convex or not misfit.any():
            return
        misfit &= ~visible(singular_values(self.U), self.acceptance.negligible)[..., -1]
        if not misfit.any():
            return
        problem, chosen = self._part(misfit)
        U = self.U if chosen is None else self.U[chosen]
        bound, farkas = bound_by_residual(problem, U)
        optimal = host(is_optimal(problem.relative_residual(U), bound))
        where = ... if chosen is None else host(chosen)
        self.optimal, self.bound = np.array(self.optimal), np.array(self.bound)
        self.optimal[where] |= optimal
        self.bound[where] = np.maximum(self.bound[where], host(bound))
        if chosen is None and not self.bound.ndim:
            self.farkas = farkas

    def _accept_optimal(self, U: Tensor, optimal: Tensor) -> None:
        """Take the factors U that are known to be optimal, unless the current ones are better."""
        self._accept(U, self.problem.relative_residual(U), optimal)

    def _accept(self, U: Tensor, residual: Tensor, optimal: Tensor) -> None:
        """Take factors of known residuals."""
        proved, new = host(optimal), host(residual)
        better = proved & (new < self.residual)
        mask = torch.as_tensor(better, device=U.device)[..., None, None]
        self.U = torch.where(mask, U, self.U)
        self.residual = np.where(better, new, self.residual)
        self.optimal = self.optimal | proved
        self.starts[proved] += 1

    # Descents and starts.

    def _scaled(self, U: Tensor) -> Tensor:
        """Return tU with the t of least residual; U itself if that is zero."""
        size = U.abs().amax((-2, -1), keepdim=True)
        unit = U / torch.where(size > 0, size, 1.0)
        predicted = self.problem.operator.apply_factor_kernel(unit)
        size = predicted.square().sum(-1).clamp_min(tiny(predicted))
        square = (predicted * self.problem.y).sum(-1) / size
        return torch.where(square[..., None, None] > 0, square.sqrt()[..., None, None] * unit, U)

    def _descend(self, problem: Problem, U: Tensor) -> FitState | FinalFactors:
        return descend(self.shared, problem, U, self.task)

    def _restart(self) -> None:
        """Try the open problems from a round of new starts."""
        round = self.next_round
        self.next_round += 1
        open, reflecting, used = self.open, self._reflecting(round), self.starts.copy()
        for reflected in (True, False):
            mask = open & (reflecting == reflected)
            for count in np.unique(used[mask]):
                self._try(mask & (used == count), round, reflected=reflected)

    def _reflecting(self, round: int) -> np.ndarray:
        """Whether the starts of this round are reflected, `[...]`.

        They find what descents miss near the information limit, where hardly two starts agree. If
        several do, the responses are most likely not those of a matrix of this rank.
        """
        if self.cheap:  # descents from a round of perturbed starts cost less than reflections
            patterns = has_pattern_starts(self.problem, self.rank)
            turn = self._is_near_limit and not patterns and round % _CHEAP_ROUNDS != 0
            hard = _HARD if self.rank == 1 else _HARD_RANKS
            few = self.shared.samples < hard * self.p
            turn = turn and (few or round < _CHEAP_REFLECTED)
        else:
            turn = round % _REFLECTED_ROUNDS != _REFLECTED_ROUNDS - 1
        turn = turn and self.shared.is_dense(self.rank) and self.shared.has_reflections
        spans = self.shared.prepared.span == self.problem.d  # others are solved again, alone
        least = _UNREFLECTED
        if self.cheap:  # of many starts, some agree by chance
            least = np.maximum(least, _UNREFLECTED_SHARE * self.starts)
        return (self.agreeing < least) & turn & spans

    def _try(self, mask: np.ndarray, round: int, *, reflected: bool) -> None:
        """Try the problems where the mask holds from a round of starts."""
        problem, chosen = self._part(mask)
        self.history.last, self.working = None, chosen
        left = self.max_starts - int(self.starts[mask].max())
        reweighted, count = plain_round(self.shared, self.rank, round)
        count = min(count, left)
        if round == 1 and self._is_near_limit and has_pattern_starts(problem, self.rank):
            U = pattern_starts(problem)
        elif reflected:
            U = self._reflected(problem, left, round=round)
        elif reweighted:
            U = self._reweighted(problem, count, plain=round == 1, round=round)
        else:
            U = self._perturbed(chosen, count, round=round)
        self._keep(self._descend(problem, U), chosen)

    def _reflected(self, problem: Problem, left: int, *, round: int) -> Tensor:
        return reflected_starts(problem, self.rank, left, self.task, round)

    def _perturbed(self, chosen: Tensor | None, count: int, *, round: int) -> Tensor:
        U = self.first if chosen is None else self.first[chosen]
        starts = perturbed_starts(U, count, self.task.seed, round)
        if not self.shared.other_terms:
            return starts
        starts[1::2] -= U  # of what other terms leave, a spectral start knows less
        return self._scaled(starts)

    def _reweighted(self, problem: Problem, count: int, *, plain: bool, round: int) -> Tensor:
        seed, history = self.task.seed, self.history
        return reweighted_starts(problem, self.rank, count, seed, round, history, plain=plain)

    def _keep(
        self, state: FitState | FinalFactors, chosen: Tensor | None = None, *, count: bool = True
    ) -> None:
        """Keep the best of the starts `[S, ...]` of a run, and count those that agree with it."""
        residuals = host(state.residual)
        residuals = np.where(np.isfinite(residuals), residuals, np.inf)
        best, U = residuals.min(0), _of_starts(state.U, residuals.argmin(0))
        where = ... if chosen is None else host(chosen)
        old, seen = self.residual[where], self.agreeing[where]
        better, level = best < old, np.minimum(best, old)
        same = level * (1 + self.acceptance.agreement)
        agreeing = np.where(old <= same, seen, 0) + (residuals <= same).sum(0)
        if better.all() and chosen is None:
            self.U = U
        elif better.any():
            index = ... if chosen is None else chosen
            mask = torch.as_tensor(better, device=U.device)[..., None, None]
            self.U[index] = torch.where(mask, U, self.U[index])
        self.residual[where] = level
        if count:
            self.agreeing[where] = agreeing
            self.starts[where] += len(residuals)

    def polish(self) -> None:
        """Refine the factors, to rounding if they reproduce, else to a stationary point."""
        units = _REFINED if self.p <= _REFINED_UNKNOWNS else _REFINED_LARGE
        rough = self.residual > units * np.finfo(self.residual.dtype).eps
        rough = rough & ~self.optimal
        if not rough.any() or (self.convex and not self.shared.is_convex_small):
            return
        problem, chosen = self._part(rough)
        self.history.last, self.working = None, chosen
        U = self.U if chosen is None else self.U[chosen]
        if self.small:
            ending = StopRule(steps=SECOND_ORDER_STEPS, rounding=_DENSE_PATIENCE)
            self._keep(run_small(problem, U[None], ending, self.history), chosen, count=False)
            return
        reproduced = self._is_reproduced
        dense = takes_dense_steps(problem.n, problem.d, self.rank, self.p)
        dense = dense or (reproduced and not self.cheap and self.shared.is_dense(self.rank))
        if not dense and reproduced:
            return  # the first-order run already went to rounding
        # With errors, the rounding of the residual limits the accuracy of the dual form.
        form = "auto" if reproduced else "primal"
        method = method_for(problem, self.rank, dense=dense, form=form)
        ends = [stationary(), at_rounding(_DENSE_PATIENCE if dense else PATIENCE)]
        if self.p > _REFINED_UNKNOWNS:
            ends.append(fitted(units * np.finfo(self.residual.dtype).eps))
        steps = SECOND_ORDER_STEPS if dense else _POLISH_STEPS
        state = self.history.run(method, method.start(U), ends, steps=steps)
        self._keep(index_state(state, None), chosen, count=False)


def _of_starts(U: Tensor, which: np.ndarray) -> Tensor:
    """Return the factors `[..., d, r]` of the starts `which[...]` among `U[S, ..., d, r]`."""
    if which.ndim == 0:
        return U[int(which)]
    index = torch.from_numpy(which).to(U.device)
    return U[index, torch.arange(len(which), device=U.device)]
