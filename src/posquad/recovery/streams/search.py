"""Search for the factor of a compressed problem: starts, rank, and how the search ended."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from posquad.core.errors import Interrupted
from posquad.core.progress import Progress
from posquad.core.status import Status
from posquad.geometry import dimension
from posquad.recovery.damped import Endpoint, descend
from posquad.recovery.diagnose import needed_samples
from posquad.recovery.escape import escape
from posquad.recovery.evidence import Evidence
from posquad.recovery.ranks import bic, highest_rank, try_ranks, weight_of_best
from posquad.recovery.second_factor import (
    leading_factor,
    rotated_factor,
    seek_second_factor,
    widened,
)
from posquad.recovery.status import granted, is_open
from posquad.recovery.streams.compressed import Compressed
from posquad.recovery.streams.descents import Descent
from posquad.recovery.streams.errors import curvature_and_error
from posquad.recovery.streams.found import Found, Limits
from posquad.recovery.tuning import DEFAULT

# Maximum number of starts if none is given. A choice: a stream usually has many rows per unknown,
# where the first starts agree.
_STARTS = 50
_UNLIKE = (
    "the first rows do not represent the rest; shuffle the rows, scale the columns, or give all "
    "rows to fit as a source"
)
_LARGE = (
    "a few rows are very much larger than the others; leave them out, or give them smaller weights"
)
_FREE = (
    "the rows do not determine every symmetric matrix, and the answer is far from the one that the "
    "sums refer to; recover it with the rows in memory, or add rows of another kind"
)
# Relative difference of losses that does not count. A choice: far above the rounding of a loss, and
# far below the differences of minima.
_SAME = 1e-9
# Size of a column, relative to the largest, up to which it may be superfluous. A choice: descents
# without it decide.
_SMALL = 1e-3
# Size of a column, relative to the largest, up to which it is left out. Derived: its square, its
# share of Q, is at most 1e-16 < eps.
_NEGLIGIBLE = 1e-8
# Growth of a squared residual, if both reproduce the responses, up to which a lower rank does as
# well. Derived: a factor of 10 for the residual, as in `posquad.recovery.rank_changes`.
_AS_WELL = 100.0


class _Trial(NamedTuple):
    rank: int
    residual: float
    score: float
    reproduced: bool
    end: Endpoint


def find_factor(
    problem: Compressed, rank: int | None, limits: Limits, max_rank: int | None = None
) -> Found:
    """Return the best factor of a rank, or of the rank of the lowest information criterion.

    Ctrl-C raises `Interrupted` with the best factor of the descents that ended before it.
    """
    search = _Search(problem, limits)
    try:
        if rank is not None:
            return search.at_rank(rank, [], 1.0)
        return search.choose(max_rank)
    except KeyboardInterrupt as stop:
        raise Interrupted(search.unfinished()) from stop


class _Search:
    def __init__(self, problem: Compressed, limits: Limits) -> None:
        self.problem, self.limits = problem, limits
        self.rng = np.random.default_rng(limits.seed)
        self.least = problem.size
        self.starts = 0
        self.best = self._zero()  # of the descents that have ended

    def unfinished(self) -> Found:
        """Return the best so far."""
        best = self.best
        evidence = Evidence.alone(tolerance=self.limits.level, spent=True)
        return Found(rotated_factor(best.V), best.loss, evidence, self.starts, [], math.nan)

    def at_rank(
        self,
        rank: int,
        path: list[tuple[int, float, float]],
        confidence: float,
        given: np.ndarray | None = None,
    ) -> Found:
        """Search at one rank, lower it if a lower one does as well, and say how that ended."""
        problem = self.problem
        best, settled = self._best(min(rank, problem.k), given)
        best = self._lowered(best)
        if best.V.size:
            end = self._descend(best.V, polish=True)
            best = end if end.loss <= best.loss * (1 + _SAME) else best
        best, escapes = self._limited(best, rank)
        V = rotated_factor(best.V)
        lengths = np.linalg.norm(V, axis=0)
        V = V[:, lengths > _NEGLIGIBLE * lengths.max(initial=0.0)]
        lost, evidence = _UNLIKE, Evidence.alone(tolerance=self.limits.level)
        if not self._is_doubtful(best.loss):
            lost, evidence = None, self._evidence(V, best.loss, rank, settled=settled)
            evidence = evidence.updated(escapes=escapes)
            if not escapes and self._is_cancelled(V, best.loss, granted(evidence)):
                lost = _LARGE if problem.regular else _FREE
        return Found(V, best.loss, evidence, self.starts, path, confidence, lost)

    def _limited(self, best: Endpoint, rank: int) -> tuple[Endpoint, bool]:
        """Return a factor far out if the error has no minimum, and whether it has none."""
        if self._reproduces(best.loss) or not rank or not len(self.problem.others):
            return best, False
        return escape(
            self.problem,
            self.problem.unbounded(),
            min(rank, self.problem.k),
            best,
            lambda problem, V: descend(problem, V, self.limits.budget, self._record),
            self.limits.seed,
            spent=self.limits.budget.spent,
        )

    def choose(self, max_rank: int | None) -> Found:
        """Try ranks from below until the score rises, and search at the best one."""
        problem = self.problem
        n, d = problem.count, problem.d
        others = len(problem.others)
        tried: list[Endpoint] = []

        def trial(rank: int) -> _Trial:
            start = self._next_column(tried[-1].V) if tried else self._first(rank)
            ends = [self._descend(start)]
            if tried:  # the next column may lead to a poor minimum
                ends.append(self._descend(self._first(rank)))
            self.starts += len(ends)
            return judged(rank, min(ends, key=lambda end: end.loss))

        def judged(rank: int, end: Endpoint) -> _Trial:
            tried.append(end)
            share = math.sqrt(end.loss / (problem.squares or 1.0))
            score = bic(share, n, (dimension(d, rank) if rank else 0) + others)
            return _Trial(rank, self._residual(end.loss), score, self._reproduces(end.loss), end)

        trials: list[_Trial] = []
        highest = highest_rank(
            problem.k, max_rank, lambda r: dimension(d, r) + others < problem.count
        )
        if others:
            trials.append(judged(0, self._zero()))
            tried.clear()
            highest = 0 if trials[0].reproduced else highest
        if highest:
            trials += try_ranks(trial, highest, lambda: self.limits.budget.spent)[0]
        best = min(trials, key=lambda t: (not t.reproduced, t.score))
        path = [(t.rank, t.residual, t.score) for t in trials]
        if others:  # as where the rows are in memory: scores of such fits are not weighed
            confidence = math.nan
        elif best.reproduced:
            confidence = 1.0
        elif self.limits.budget.spent or (best is trials[-1] and highest < d):
            confidence = 0.0
        else:
            confidence = float(weight_of_best(np.array([t.score for t in trials])))
        return self.at_rank(best.rank, path, confidence, best.end.V)

    def _best(self, rank: int, given: np.ndarray | None) -> tuple[Endpoint, bool]:
        """Return the best of several starts, and whether enough of them agree on it."""
        best, agreeing, problem = self._zero(), 0, self.problem
        if rank == 0 or not problem.independent or problem.size <= problem.rounding:
            return best, True
        most = self.limits.max_starts or _STARTS
        acceptance = DEFAULT.acceptance
        enough = acceptance.least_agreeing if problem.regular else acceptance.agreeing_free
        enough, agreement = min(enough, most), (1 + acceptance.agreement) ** 2
        for tried, V in enumerate(self._starts(rank, given)):
            if tried >= most or agreeing >= enough or self.limits.budget.spent:
                break
            end = self._descend(V)
            self.starts += 1
            agreeing = 0 if end.loss < best.loss / agreement else agreeing
            agreeing += end.loss <= best.loss * agreement
            best = end if end.loss < best.loss * (1 - _SAME) or not best.V.size else best
            if self._reproduces(best.loss):
                return best, True
        return best, agreeing >= enough

    def _starts(self, rank: int, given: np.ndarray | None) -> Iterator[np.ndarray]:
        if given is not None:
            yield self._widened(given[:, :rank], rank)
        first = self._first(rank)
        yield first
        size = float(np.linalg.norm(first)) / math.sqrt(first.size)
        while True:
            yield first + DEFAULT.schedule.spread * size * self.rng.standard_normal(first.shape)

    def _first(self, rank: int) -> np.ndarray:
        """Return a factor of the positive part of the best symmetric matrix."""
        return leading_factor(self.problem.symmetric_fit(), rank, self.rng)

    def _next_column(self, V: np.ndarray) -> np.ndarray:
        """Return V with a column along which the loss falls most, if it does."""
        v = np.linalg.eigh(self.problem.correlation(V))[1][:, -1]
        size = self.problem.best_size(V, v)
        column = math.sqrt(max(size, 0.0)) * v[:, None]
        return self._widened(np.hstack([V, column]), V.shape[1] + 1)

    def _widened(self, V: np.ndarray, rank: int) -> np.ndarray:
        return widened(V, rank, self.rng, math.sqrt(self.problem.size) ** 0.5)

    def _zero(self) -> Endpoint:
        return Endpoint(np.zeros((self.problem.k, 0)), self.problem.size, 0.0)

    def _lowered(self, best: Endpoint) -> Endpoint:
        """Remove columns that the fit does not need."""
        while best.V.shape[1]:
            V = rotated_factor(best.V)
            s = np.linalg.norm(V, axis=0)
            if s[-1] > _SMALL * s[0] if len(s) > 1 else self.problem.form_size(V) > _SMALL:
                break
            lower = self._zero()
            if len(s) > 1:
                lower = self._descend(V[:, :-1])
            same = lower.loss <= best.loss * (1 + _SAME) + self.problem.rounding
            both = self._reproduces(lower.loss) and self._reproduces(best.loss)
            if not (same or (both and lower.loss <= _AS_WELL * best.loss)):
                break
            best = lower
        return best

    def _evidence(self, V: np.ndarray, loss: float, rank: int, *, settled: bool) -> Evidence:
        """Return the evidence for V, found at a rank; a second solution is sought if need be."""
        problem, acceptance, level = self.problem, DEFAULT.acceptance, self.limits.level
        unknowns = (dimension(problem.d, V.shape[1]) if V.size else 0) + len(problem.others)
        curvature, error = curvature_and_error(problem, V, loss)
        evidence = Evidence.alone(
            tolerance=level,
            residual=self._residual(loss),
            reproduced=self._reproduces(loss),
            best=settled,
            spans=problem.whole,
            samples=min(problem.independent, problem.count),
            needed=needed_samples(problem.d, max(1, V.shape[1])),
            checked=problem.count > unknowns,
            curvature=curvature,
            free=self._has_free_direction(V),
            isolated=True,
            error=error,
            # Errors within the tolerance may leave Q open: a large row may hide the rest.
            largest=max(acceptance.apart, acceptance.open_tolerances * level),
            linear=problem.regular,
            # Nothing but Q = 0 has zero responses, because the inputs span the space.
            excluded=not V.size and not len(problem.others),
            spent=self.limits.budget.spent,
        )
        return self._sought(V, rank, evidence) if is_open(evidence) else evidence

    def _sought(self, V: np.ndarray, rank: int, evidence: Evidence) -> Evidence:
        """Seek a second solution of this rank."""
        problem, budget = self.problem, self.limits.budget
        told = seek_second_factor(
            problem,
            V,
            max(1, min(rank, problem.k)),
            descend=self._descend,
            # Rounding may not exclude that an end reproduces the responses.
            reproduces=lambda end: (
                self._reproduces(end.loss) or end.loss <= problem.cancellation(end.V)
            ),
            is_spent=lambda: budget.spent,
            size=math.sqrt(problem.squares) or 1.0,
            mass=1.0,
            seed=self.limits.seed,
            bounded=problem.terms == "none",
        )
        return evidence.updated(**told._asdict(), spent=budget.spent)

    def _has_free_direction(self, V: np.ndarray) -> bool:
        if not V.size:
            return False
        values = np.linalg.eigvalsh(self.problem.curvature(V))
        gauge = V.shape[1] * (V.shape[1] - 1) // 2
        return bool(values[gauge] <= DEFAULT.acceptance.flat * values[-1])

    def _residual(self, loss: float) -> float:
        return self.problem.residual(loss)

    def _reproduces(self, loss: float) -> bool:
        problem = self.problem
        return loss <= max(problem.rounding, self.limits.level**2 * problem.spread)

    def _is_doubtful(self, loss: float) -> bool:
        """Tell whether rounding of the sums hides how well the factor fits."""
        problem = self.problem
        exact = max(problem.rounding, self.limits.level**2 * problem.spread)
        return problem.doubt > max(DEFAULT.acceptance.known_loss * loss, exact)

    def _is_cancelled(self, V: np.ndarray, loss: float, status: Status) -> bool:
        """Tell the same where the factor is far from the reference fit of the sums.

        Where the answer is determined, errors within the tolerance are known well enough.
        """
        problem, acceptance, level = self.problem, DEFAULT.acceptance, self.limits.level
        if status is Status.NOT_IDENTIFIED:
            level = acceptance.hidden_residual
        exact = max(problem.rounding, level**2 * problem.spread)
        return problem.cancellation(V) > max(acceptance.known_loss * loss, exact)

    def _descend(self, V: np.ndarray, *, polish: bool = False) -> Endpoint:
        """Descend from V, unless an earlier process did so in this search."""
        limits, before = self.limits, len(self.limits.history)

        def run() -> Descent:
            end = descend(self.problem, V, limits.budget, self._record, polish=polish)
            history = np.array(limits.history[before:])
            return Descent(V, end, limits.budget.steps, self.least, history)

        done = limits.descents.next(V, run)
        limits.budget.steps, self.least = done.steps, done.least
        limits.history[before:] = done.history.tolist()
        self.best = done.end if done.end.loss < self.best.loss else self.best
        return done.end

    def _record(self, loss: float) -> None:
        self.least = min(self.least, loss)
        residual = self._residual(self.least)
        self.limits.history.append(residual)
        if self.limits.progress is not None:
            budget = self.limits.budget
            self.limits.progress(
                Progress(float(budget.steps), float(budget.max_steps), residual, 1)
            )
