"""Fits with unconstrained terms: `f(x) = x'Qx + c`, and `f(x) = x'Qx + b'x + c`.

The other terms are eliminated, and the factor is found by descents from several starts: a fit by
linear least squares, a spectral estimate, given factors, and random ones.

The squared error may have no minimum (`posquad.recovery.escape`). Where a limit is better than
every factor that was found, the fit has the status NO_MINIMUM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from posquad.core.errors import Interrupted
from posquad.core.progress import Progress
from posquad.core.ranges import tiny
from posquad.core.symmetric import symmetric_system
from posquad.estimator._coordinates import Coordinates, coordinates
from posquad.estimator._model import Fit, Quadratic, Terms, count_terms, count_unknowns
from posquad.estimator._profiled import Profiled
from posquad.estimator._samples import WeightedSamples
from posquad.geometry import dimension
from posquad.recovery.budget import Budget
from posquad.recovery.damped import Endpoint, descend
from posquad.recovery.escape import escape
from posquad.recovery.evidence import Evidence
from posquad.recovery.second_factor import (
    leading_factor,
    rotated_factor,
    seek_second_factor,
    widened,
)
from posquad.recovery.status import is_open
from posquad.recovery.streams.errors import ends_and_error
from posquad.recovery.tuning import DEFAULT

_LINEAR_MOST = 700  # maximum number of unknowns of the linear problem for the first start
_STARTS = 50  # starts if no number is given
_DETERMINED = 1e-10  # least singular value of the linear fit, over the largest, that is not zero
_SPREAD = DEFAULT.schedule.spread
_ROUNDING = 1e-14  # errors relative to the largest response that are rounding errors
_SAME = 1e-9  # relative difference of losses that does not count
_ROUNDING_SIZE = 1e9  # the same at which the errors are rounding errors
_NEGLIGIBLE_LENGTH = 1e-8  # length of a column, relative to the longest, whose square is rounding
_FLAT = DEFAULT.acceptance.flat


@dataclass
class Options:
    """What limits and watches a search."""

    max_starts: int | None
    level: float  # relative residual at which responses count as reproduced
    seed: int
    budget: Budget
    progress: Callable[[Progress], None] | None = None
    asked: int | None = None  # the rank that the user gave
    history: list[float] = field(default_factory=list)  # least relative residual at each step


def fit_with_terms(
    samples: WeightedSamples,
    rank: int,
    terms: Terms,
    options: Options,
    given: list[np.ndarray] | None = None,
) -> Fit:
    """Minimise the squared error over U and the other terms.

    `given` are factors `[d, r]` to start from, such as that of the fit without other terms. The
    result is never worse than any of them, nor than rank 0.
    """
    search = TermsSearch(samples, rank, terms, options)
    try:
        return search.run(given or [])
    except KeyboardInterrupt as stop:
        stopped = Evidence.alone(tolerance=options.level, spent=True)
        raise Interrupted(search.fit(stopped)) from stop


class TermsSearch:
    """A search for the factor, in coordinates in which the samples have covariance I."""

    def __init__(self, samples: WeightedSamples, rank: int, terms: Terms, options: Options) -> None:
        X = samples.X.astype(np.float64, copy=False)
        y = samples.y.astype(np.float64, copy=False)
        self.terms: Terms = terms
        self.rank, self.options = rank, options
        # Q is unique among the forms of this rank.
        self.asked = options.asked or max(1, rank)
        self.frame = coordinates(X, samples.mass, terms)
        self.t, self.d = self.frame.enter(X), X.shape[1]
        self.mass = samples.mass
        mean = float(self.mass @ y / self.mass.sum())
        # The search sees deviations from the mean of size 1, so that no product is out of range.
        # A power of 4 changes no digit of them, nor its root of the factor.
        largest = float(np.abs(y - mean).max(initial=0.0)) or 1.0
        self.factor_unit = 2.0 ** np.round(np.log2(largest) / 2)
        self.mean, self.given, self.y = mean, y, (y - mean) / self.factor_unit**2
        constant = np.ones((len(y), 1))
        self.Z = np.column_stack([self.t, constant]) if terms == "linear" else constant
        self.problem = Profiled(self.t, self.y, self.mass, self.Z)
        self.spread = float(self.mass @ self.y**2)  # of the responses about their mean
        largest = float(np.abs(y).max(initial=0.0)) / self.factor_unit**2
        self.rounding = float(self.mass.sum()) * (_ROUNDING * largest) ** 2
        self.k = self.t.shape[1]
        self.best = self._zero()
        self.tried, self.agreeing = 0, 0

    def run(self, given: list[np.ndarray]) -> Fit:
        """Search, lower the rank if a lower one does as well, and say how it ended."""
        if self.problem.size <= self.rounding or self.k == 0 or self.rank == 0:
            self.best = self._zero()
            return self.fit(self._sought(self._evidence()))
        rank = min(self.rank, self.k)
        for V in self._starts(rank, given):
            if self._is_done(rank):
                break
            self._try(V)
        self._lower_rank()
        if self.best.V.size:
            end = descend(self.problem, self.best.V, self.options.budget, self._record, polish=True)
            self.best = end if end.loss <= self.best.loss * (1 + _SAME) else self.best
        if not self._reproduces(self.best.loss):
            self.best, escapes = escape(
                self.problem,
                self._unbounded(),
                min(self.rank, self.k),
                self.best,
                lambda problem, V: descend(problem, V, self.options.budget, self._record),
                self.options.seed,
                spent=self.options.budget.spent,
            )
            if escapes:
                return self.fit(self._evidence().updated(escapes=True))
        return self.fit(self._sought(self._evidence()))

    def _zero(self) -> Endpoint:
        return Endpoint(np.zeros((self.k, 0)), self.problem.size, 0.0)

    def _try(self, V: np.ndarray) -> None:
        """Descend from V; keep the best, and count the starts that agree with it."""
        end = descend(self.problem, V, self.options.budget, self._record)
        self.tried += 1
        if self.problem.form_size(end.V) > _ROUNDING_SIZE:  # its errors are rounding errors
            return
        agreement = (1 + DEFAULT.acceptance.agreement) ** 2
        if end.loss < self.best.loss / agreement:
            self.agreeing = 0
        self.agreeing += end.loss <= self.best.loss * agreement
        better = end.loss < self.best.loss
        if abs(end.loss - self.best.loss) <= _SAME * self.best.loss and self._vanishes(end):
            better = False  # rank 0 does as well, or what was found is one of many
        elif not self.best.V.size:
            better = end.loss <= self.best.loss * (1 + _SAME)
        if better:
            self.best = end

    def _vanishes(self, end: Endpoint) -> bool:
        return self.problem.form_size(end.V) <= 1e-3

    def _record(self, loss: float) -> None:
        residual = math.sqrt(min(loss, self.best.loss) / (self.spread or 1.0))
        self.options.history.append(residual)
        self._watch(loss)

    def _watch(self, loss: float) -> None:
        """Report the progress; the search for a second solution is not part of the history."""
        options = self.options
        residual = math.sqrt(min(loss, self.best.loss) / (self.spread or 1.0))
        if options.progress is not None:
            done, end = float(options.budget.steps), float(options.budget.max_steps)
            options.progress(Progress(done, end, residual, 1))

    def _reproduces(self, loss: float) -> bool:
        return loss <= max(self.rounding, self.options.level**2 * self.spread)

    def _is_done(self, rank: int) -> bool:
        """Tell whether the answer is known, or enough starts agree on the best one."""
        if self._reproduces(self.best.loss) or self.options.budget.spent:
            return True
        most = self.options.max_starts or _STARTS
        return self.tried >= most or self._is_settled(rank)

    def _is_settled(self, rank: int) -> bool:
        """Tell whether enough starts agree: more of them if there are hardly enough samples."""
        most = self.options.max_starts or _STARTS
        unknowns = dimension(self.k, rank) + self.problem.N.shape[1]
        excess = max(len(self.y) / unknowns - 1, 0.05)
        least = math.ceil(DEFAULT.acceptance.agreeing_starts / excess**2)
        small = DEFAULT.sizes.is_overhead(len(self.y), self.k, rank, unknowns)
        if small and len(self.y) < DEFAULT.schedule.plenty * unknowns:
            least = max(least, DEFAULT.acceptance.agreeing_cheap_starts)
        return self.agreeing >= max(2, min(least, math.ceil(0.75 * most)))

    # Starts.

    def _starts(self, rank: int, given: list[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield factors `[k, rank]`, the most promising first."""
        rng = np.random.default_rng(self.options.seed)
        first = None
        if (S := self._linear_fit()) is not None:
            first = leading_factor(S, rank, rng)
            yield first
        for U in given:
            V = self.frame.inverse @ (U * self.frame.unit[:, None]) / self.factor_unit
            yield widened(V[:, :rank], rank, rng)
        weighted = (self.problem.root * self.problem.y)[:, None] * self.t
        first = self.problem.scaled(leading_factor(self.t.T @ weighted / len(self.y), rank, rng))
        yield first
        size = float(np.linalg.norm(first)) / math.sqrt(first.size)
        while True:
            noise = rng.standard_normal(first.shape)
            yield first + _SPREAD * size * noise
            yield self.problem.scaled(rng.standard_normal(first.shape))

    def _linear_fit(self) -> np.ndarray | None:
        """Return the symmetric S `[k, k]` of least error, if there are enough samples."""
        width, columns = self.k * (self.k + 1) // 2, self._linear_columns()
        if columns is None:
            return None
        solution = np.linalg.lstsq(columns, self.problem.root * self.y)[0]
        rows, others = np.triu_indices(self.k)
        S = np.zeros((self.k, self.k))
        S[rows, others] = S[others, rows] = solution[:width]
        return S

    def _linear_columns(self) -> np.ndarray | None:
        """Return the weighted columns of the linear fit, `[n, m]`, if there are enough samples."""
        unknowns = self.k * (self.k + 1) // 2 + self.Z.shape[1]
        if unknowns > min(_LINEAR_MOST, len(self.y) - 1):
            return None
        system = symmetric_system(torch.from_numpy(self.t)).numpy()
        return np.column_stack([system, self.Z]) * self.problem.root[:, None]

    # What was found.

    def _lower_rank(self) -> None:
        """Remove columns that the fit does not need."""
        while self.best.V.shape[1]:
            s = np.linalg.svd(self.best.V, compute_uv=False)
            if s[-1] > 1e-3 * s[0] if len(s) > 1 else not self._vanishes(self.best):
                return
            V = rotated_factor(self.best.V)[:, :-1]
            lower = self._zero()
            if V.size:
                lower = descend(self.problem, V, self.options.budget, self._record)
            same = lower.loss <= self.best.loss * (1 + _SAME) + self.rounding
            both = self._reproduces(lower.loss) and self._reproduces(self.best.loss)
            if not (same or (both and lower.loss <= 100 * self.best.loss)):
                return
            self.best = lower

    def _unbounded(self) -> Iterator[np.ndarray]:
        """Yield directions `v[k]` whose squares the other terms express."""
        if self.terms == "constant":
            v = np.linalg.lstsq(self.t, np.ones(len(self.t)))[0]
            if np.abs(self.t @ v - 1).max() <= 1e-9:
                yield v
            return
        for j in range(self.d):
            column = self.t @ self.frame.inverse[:, j]
            middle = (column.max() + column.min()) / 2
            two = np.abs(np.abs(column - middle) - (column.max() - middle))
            if column.any() and two.max() <= 1e-9 * np.abs(column).max():
                yield self.frame.inverse[:, j] / np.abs(column).max()

    def _sought(self, evidence: Evidence) -> Evidence:
        """Seek another factor of the rank that was asked for that reproduces the responses.

        It is not limited by the number of starts of the first search.
        """
        if not is_open(evidence):
            return evidence
        budget = self.options.budget
        told = seek_second_factor(
            self.problem,
            self.best.V,
            min(self.asked, self.k),
            descend=lambda start: descend(self.problem, start, budget, self._watch),
            reproduces=lambda end: self._reproduces(end.loss),
            is_spent=lambda: budget.spent,
            size=self._size(),
            mass=float(self.mass.sum()),
            seed=self.options.seed,
            bounded=False,
        )
        return evidence.updated(**told._asdict(), spent=budget.spent)

    def _size(self) -> float:
        """Return the size of the responses, in units of the problem."""
        size = math.sqrt(float(self.mass @ np.square(self.given)) / self.mass.sum())
        return size / self.factor_unit**2 or 1.0

    def _evidence(self) -> Evidence:
        """Return the evidence for the best factor; another one is not sought here."""
        V, loss, level = self.best.V, self.best.loss, self.options.level
        rank, acceptance = V.shape[1], DEFAULT.acceptance
        reproduced = self._reproduces(loss)
        settled = self.problem.size <= self.rounding or self._is_settled(max(1, rank))
        unknowns = count_unknowns(self.d, rank) + count_terms(self.terms, self.d)
        curvature, error = self._curvature_and_error(V, loss)
        sure = max(acceptance.sure, acceptance.sure_tolerances * level)
        return Evidence.alone(
            tolerance=level,
            residual=math.sqrt(loss / self.spread) if self.spread else 0.0,
            # Few large responses may hide the errors of the others.
            reproduced=reproduced and self._reproduces_most(),
            best=not reproduced and (settled or self.rank == 0),
            spans=self.k == self.d,
            samples=len(self.y),
            needed=unknowns + 1,
            checked=len(self.y) > unknowns,
            curvature=curvature,
            free=self._has_free_direction(),
            isolated=True,
            error=error,
            largest=min(sure, acceptance.loose),
            linear=self._is_determined(),
            spent=self.options.budget.spent,
        )

    def _curvature_and_error(self, V: np.ndarray, loss: float) -> tuple[np.ndarray, float]:
        if not V.size:
            return np.full(2, np.nan), 0.0
        total = float(self.mass.sum())
        unknowns = dimension(self.k, V.shape[1]) + self.problem.N.shape[1]
        spare = max(len(self.y) - unknowns, 1)
        return ends_and_error(
            self.problem.curvature(V) / total,
            V,
            self.frame.T / self.frame.unit[:, None],
            max(math.sqrt(loss / total), np.finfo(float).eps * self._size()),
            len(self.y) / spare,
        )

    def _is_determined(self) -> bool:
        """Tell whether the samples determine every symmetric matrix and the other terms."""
        columns = self._linear_columns()
        if columns is None:
            return False
        size = np.linalg.norm(columns, axis=0)
        columns = columns / np.where(size > 0, size, 1.0)
        s = np.linalg.svd(columns, compute_uv=False)
        return bool(s[-1] > _DETERMINED * s[0])

    def _reproduces_most(self) -> bool:
        """Tell whether responses near the median are reproduced on their own scale too.

        A few responses that are far larger hide the errors of all others in the residual, and
        inputs as large hide their digits when they are centred.
        """
        y, V = self.y, self.best.V
        given = self.given / self.factor_unit**2  # y has lost digits if the mean is large
        distance = np.abs(given - np.median(given))
        most = distance <= np.quantile(distance, 0.9)
        errors = ((self.t @ V) ** 2).sum(axis=1) + self.Z @ self.problem.coefficients(V, y) - y
        spread, error = (
            float(np.sqrt(self.mass[most] @ v[most] ** 2 / max(self.mass[most].sum(), tiny())))
            for v in (distance, errors)
        )
        if not spread:  # most responses are equal
            return True
        size = float(np.median(np.abs(given)))
        return error <= max(10 * self.options.level * spread, _ROUNDING * size)

    def _has_free_direction(self) -> bool:
        V = self.best.V
        if not V.size:
            return False
        if self.problem.N.shape[1] < self.Z.shape[1]:
            return True
        values = np.linalg.eigvalsh(self.problem.curvature(V))
        gauge = V.shape[1] * (V.shape[1] - 1) // 2
        return bool(values[gauge] <= _FLAT * values[-1])

    def fit(self, evidence: Evidence) -> Fit:
        """Return the best function so far, without columns that are zero up to rounding."""
        V = rotated_factor(self.best.V)
        lengths = np.linalg.norm(V, axis=0)
        V = V[:, lengths > _NEGLIGIBLE_LENGTH * lengths.max(initial=0.0)]
        residual = math.sqrt(self.problem.loss(V) / self.spread) if self.spread else 0.0
        function = self._in_given_coordinates(V).ordered()
        evidence = evidence.updated(residual=residual)
        return Fit(function, evidence, residual, np.array(self.options.history))

    def _in_given_coordinates(self, V: np.ndarray) -> Quadratic:
        frame: Coordinates = self.frame
        b = self.problem.coefficients(V, self.y) * self.factor_unit**2
        U = frame.T @ (V * self.factor_unit) / frame.unit[:, None]
        slope = frame.T @ b[:-1] / frame.unit if self.terms == "linear" else np.zeros(self.d)
        return Quadratic(U, frame.origin * frame.unit, slope, float(b[-1]) + self.mean)
