"""Levenberg-Marquardt from many starts of small problems, where calls cost more than arithmetic.

The steps are those of `levenberg` in the primal form. They work on NumPy arrays, whose calls take
a fraction of the time of tensors, and the starts that have ended are left out of the next steps.
J'J takes one product per start.

The arrays are a grid `[B, S, ...]` of problems and starts. Problems end at different numbers of
starts; the grid is as wide as the widest of them, and `active` marks the entries that count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from posquad.core.ranges import tiny
from posquad.problems.held import HeldMeasurements
from posquad.problems.measurements import RankOne
from posquad.recovery.budget import History
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.fit import (
    GRADIENT,
    HALVED,
    SMALL_PATIENCE,
    SMALL_POWER,
    TINY_UNITS,
)
from posquad.recovery.solvers.levenberg import (
    FIRST_DAMPING,
    GROWTH,
    HIDDEN_ERRORS,
    HIDDEN_GAIN,
    LEAST_DAMPING,
    LEAST_FACTOR,
    MOST_HIDDEN,
)

# Ratio of residuals above which a start that fits is no longer improving. A choice: one that
# converges falls by far more in the steps of `StopRule.patience`.
_PROGRESS = 0.9
# Relative residual from which the distance from a known solution is computed. A choice: near a
# solution the residual is smaller, and the distance costs more than the test.
_CLOSE = 0.1
# Share of a grid in use below which it is made smaller. A choice: half and double do as well.
_COMPACT = 0.8
# Factor by which the damping grows at a rejected step from which no step is accepted any more. A
# choice: it is reached after ten such steps, when the damping has grown by 2^55.
_HOPELESS = 2.0**10
# Multiple of eps at which a residual cannot be less. Derived: each response is rounded by eps / 2,
# and so is its prediction, at least.
_LEAST_UNITS = 2


@dataclass(frozen=True)
class StopRule:
    """When the starts of a small problem end, besides at the budget."""

    steps: int
    """Maximum number of steps."""

    patience: int | None = None
    """Steps after which the residual must have fallen to `rate` times that before."""

    rate: float = 1.0

    fitted: float | None = None
    """Relative residual of one start at which the other starts of its problem end. It goes on to
    rounding, or until its residual hardly changes in `patience` steps: the responses themselves may
    be rounded."""

    gain: float = math.inf
    """Share of its squared error by which the next step of a stationary start may lower it."""

    rounding: int = 2
    """Steps in which a residual at the level of rounding must be halved. Starts end there, at a
    stationary point, and when the residual cannot be less."""


class FinalFactors(NamedTuple):
    """The last factors of a run, and their relative residuals."""

    U: Tensor  # [S, ..., d, r]
    residual: Tensor  # [S, ...]


class Known(NamedTuple):
    """A solution, and the distance from it at which a start is about to converge to it."""

    U: Tensor  # [..., d, r]
    near: Tensor  # [...]  of ||VV' - UU'||


def run_small(
    problem: Problem, U0: Tensor, ending: StopRule, history: History, known: Known | None = None
) -> FinalFactors:
    """Run from the starts `U0[S, ..., d, r]` of a problem or a batch of them.

    With a `known` solution, a start that comes near it ends there.
    """
    with np.errstate(all="ignore"):  # a step that overflows is rejected
        run = _Run(problem, U0, ending, known)
        try:
            run.iterate(history)
        except KeyboardInterrupt:
            run.store(run.active)
            history.last = run.ends()
            raise
    return run.ends()


class _Run:
    """The grid of starts that have not ended, and the ends of the others."""

    def __init__(self, problem: Problem, U0: Tensor, ending: StopRule, known: Known | None) -> None:
        n, d, r = problem.n, problem.d, U0.shape[-1]
        self.ending, self.shape, self.r = ending, U0.shape, r
        self.like = problem.y
        self.design = _design(problem.operator)
        self.y = problem.y.reshape(-1, 1, n).numpy()
        self.size = problem.size.reshape(-1, 1).numpy()
        B, S = len(self.y), U0.shape[0]
        self.eps, self.tiny = float(np.finfo(self.y.dtype).eps), tiny(self.y)
        self.known = None
        if known is not None:
            U = known.U.reshape(B, 1, d, r).numpy()
            gram = U.swapaxes(-1, -2) @ U
            self.known = U, _total(gram * gram), known.near.square().reshape(B, 1).numpy()
        U = np.broadcast_to(U0.numpy(), (S, *problem.y.shape[:-1], d, r)).reshape(S, B, d, r)
        self.V = np.ascontiguousarray(U.transpose(1, 0, 3, 2))  # [B, S, r, d]
        self.Z = self.design.keep(self.V)
        self.e = self.design.forms(self.V, self.Z) - self.y
        self.square = np.vecdot(self.e, self.e)
        self.residual = np.sqrt(self.square) / self.size
        trace = self.design.trace(self.Z)
        self.mean = 1 / min(n, d * r)  # the mean curvature is the trace of J'J times this
        self.damping = FIRST_DAMPING * self.mean * trace * np.minimum(self.residual, 1)
        self.growth = np.full_like(self.damping, GROWTH)
        self.window = self.best = self.residual
        self.waited = np.zeros(self.residual.shape, dtype=np.int64)
        self.active: np.ndarray = np.ones(self.residual.shape, dtype=bool)
        self.place = np.arange(B * S).reshape(B, S)  # position in the arrays of ends
        self.last_V = self.V.reshape(B * S, r, d).copy()
        self.last_residual = self.residual.reshape(B * S).copy()

    def ends(self) -> FinalFactors:
        """Return the last factors of all starts."""
        S, B = self.shape[0], len(self.last_V) // self.shape[0]
        batch = self.like.shape[:-1]
        d, r = self.shape[-2:]
        U = self.last_V.reshape(B, S, r, d).transpose(1, 0, 3, 2).reshape(S, *batch, d, r)
        residual = self.last_residual.reshape(B, S).T.reshape(S, *batch)
        return FinalFactors(torch.from_numpy(U), torch.from_numpy(residual))

    def iterate(self, history: History) -> None:
        """Take steps until every start has ended."""
        history.note(self.residual, self.active, step=False)
        taken = 0
        while len(self.V):
            if taken >= self.ending.steps or history.budget.spent:
                self.store(self.active)
                return
            self._step()
            taken += 1
            history.note(self.residual, self.active)
            self._leave_out(self._ended(taken))

    def _step(self) -> None:
        """Take a damped Gauss-Newton step from every start; keep those that improve."""
        V, Z, e, (B, S) = self.V, self.Z, self.e, self.active.shape
        r, d = V.shape[-2:]
        m = r * d
        J = self.design.jacobian(Z)  # transposed
        K = J @ J.swapaxes(-1, -2)
        diagonal = K.reshape(B, S, m * m)[..., :: m + 1]
        trace = diagonal.sum(-1)
        damping = np.maximum(self.damping, (LEAST_DAMPING * self.mean) * trace + self.tiny)
        diagonal += damping[..., None]
        g = (J @ e[..., None])[..., 0]
        D = np.linalg.solve(K, -g[..., None])[..., 0]
        new_V = V + D.reshape(V.shape)
        new_Z = self.design.keep(new_V)
        new_e = self.design.forms(new_V, new_Z) - self.y
        square, new = self.square, np.vecdot(new_e, new_e)
        # ||e||^2 - ||e + JD||^2 for the solution of (J'J + damping) D = -J'e
        predicted = np.vecdot(D, damping[..., None] * D - g)
        # Near the best fit of noisy data, rounding hides the gain of a step: accept it anyway.
        rounding = HIDDEN_ERRORS * self.eps / np.maximum(self.residual, self.eps)
        rounding = np.clip(rounding, HIDDEN_GAIN * self.eps, MOST_HIDDEN)
        better = new < np.where(predicted <= rounding * square, 1 + 2 * rounding, 1.0) * square
        self.slope = g, trace * square
        self.gain = predicted / square, rounding * rounding
        surplus = 2 * (square - new) / predicted - 1
        factor = np.where(
            better, np.fmax(1 - surplus * surplus * surplus, LEAST_FACTOR), self.growth
        )
        self.damping = damping * factor
        self.growth = np.where(better, GROWTH, GROWTH * self.growth)
        if not better.all():
            worse = ~better
            new_V[worse], new_Z[worse], new_e[worse] = V[worse], Z[worse], e[worse]
            new = np.where(better, new, square)
        residual = np.sqrt(new) / self.size
        # Ctrl-C finds either all of the old arrays or all of the new ones.
        self.__dict__.update(V=new_V, Z=new_Z, e=new_e, square=new, residual=residual)

    def _ended(self, taken: int) -> np.ndarray:
        """Which starts have ended after so many steps."""
        ending, residual = self.ending, self.residual
        ended = ~np.isfinite(residual) | (self.growth > _HOPELESS)
        stuck = ended
        if ending.patience is not None and (taken + 1) % ending.patience == 0:
            stuck = ended | (residual > _PROGRESS * self.window)
            ended |= residual > ending.rate * self.window
            self.window = residual
        if ending.fitted is None:
            ended |= self._is_stationary() | self._is_rounding(ending.rounding)
        elif residual.min() <= ending.fitted:
            least = np.where(self.active, residual, np.inf).min(1, keepdims=True)
            done = self._is_stationary() | self._is_rounding(ending.rounding)
            ended = np.where(least <= ending.fitted, (residual > least) | done | stuck, ended)
        if self.known is not None and bool((residual <= _CLOSE).any()):
            U, size, near = self.known
            across, gram = self.V @ U, self.V @ self.V.swapaxes(-1, -2)
            away = _total(gram * gram) + size - 2 * _total(across * across)
            ended |= (away <= near) & (residual <= _CLOSE)
        return ended

    def _is_stationary(self) -> np.ndarray:
        """Whether the cosine between the errors and the range of J was negligible."""
        (g, size), (gain, rounding) = self.slope, self.gain
        least = np.maximum(self.ending.gain, rounding)
        return (np.vecdot(g, g) <= GRADIENT**2 * size) & (gain <= least)

    def _is_rounding(self, patience: int) -> np.ndarray | bool:
        """Whether residuals are rounding, as `fit.at_rounding` says, or cannot be less."""
        residual = self.residual
        low = residual <= self.eps**SMALL_POWER
        if not low.any():
            self.best = residual
            return False
        better = ~low | (residual < HALVED * self.best)
        self.best = np.where(better, residual, self.best)
        self.waited = np.where(better, 0, self.waited + 1)
        tiny = residual <= TINY_UNITS * self.eps
        waited = np.where(tiny, self.waited, self.waited // SMALL_PATIENCE)
        return low & ((waited >= patience) | (residual <= _LEAST_UNITS * self.eps))

    def store(self, ended: np.ndarray) -> None:
        """Write the starts that have ended to the arrays of ends."""
        chosen = ended & self.active
        place = self.place[chosen]
        self.last_V[place], self.last_residual[place] = self.V[chosen], self.residual[chosen]

    def _leave_out(self, ended: np.ndarray) -> None:
        """Store the starts that have ended, and leave them out of the grid."""
        ended = ended & self.active
        if not ended.any():
            return
        self.store(ended)
        self.active = active = self.active & ~ended
        counts = active.sum(1)
        live, width = counts > 0, int(counts.max())
        B, S = active.shape
        if len(live) > 1 and live.sum() * width > _COMPACT * B * S:
            return
        rows = live.nonzero()[0]
        columns = np.argsort(~active[rows], axis=1, kind="stable")[:, :width]
        grid = rows[:, None], columns
        smaller = {name: getattr(self, name)[grid] for name in _GRID}
        if len(rows) < B:
            smaller |= {name: getattr(self, name)[rows] for name in ("y", "size", "design")}
            if self.known is not None:
                smaller["known"] = tuple(part[rows] for part in self.known)
        self.__dict__.update(smaller)  # at once, because Ctrl-C reads the grid


class _Rows:
    """Inputs of a grid of problems; what is kept of the factors `V[B, S, r, d]` is `Z = VX'`."""

    def __init__(self, X: np.ndarray) -> None:
        self.XT = X  # [B, 1, d, n]

    def __getitem__(self, problems: np.ndarray) -> _Rows:
        return _Rows(self.XT[problems])

    def keep(self, V: np.ndarray) -> np.ndarray:
        return V @ self.XT  # [B, S, r, n]

    def forms(self, V: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """Return the predictions `[B, S, n]`."""
        return (Z * Z).sum(2)

    def jacobian(self, Z: np.ndarray) -> np.ndarray:
        """Return J', `[B, S, rd, n]`."""
        B, S, _, n = Z.shape
        return ((2 * Z)[:, :, :, None] * self.XT[:, :, None]).reshape(B, S, -1, n)

    def trace(self, Z: np.ndarray) -> np.ndarray:
        """Return the trace of J'J, `[B, S]`."""
        return (Z * Z * (4 * self.XT * self.XT).sum(2)[:, :, None]).sum((-2, -1))


class _Matrices:
    """Matrices A_i of a grid of problems; what is kept of the factors is Z, the products A_i U."""

    def __init__(self, A: np.ndarray) -> None:
        self.A = A  # [B, 1, d, dn]

    def __getitem__(self, problems: np.ndarray) -> _Matrices:
        return _Matrices(self.A[problems])

    def keep(self, V: np.ndarray) -> np.ndarray:
        B, S, r, d = V.shape
        return (V @ self.A).reshape(B, S, r * d, -1)  # [B, S, rd, n]

    def forms(self, V: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """Return the predictions `[B, S, n]`."""
        return (V.reshape(*Z.shape[:2], 1, -1) @ Z)[:, :, 0]

    def jacobian(self, Z: np.ndarray) -> np.ndarray:
        """Return J', `[B, S, rd, n]`."""
        return 2 * Z

    def trace(self, Z: np.ndarray) -> np.ndarray:
        """Return the trace of J'J, `[B, S]`."""
        return 4 * (Z * Z).sum((-2, -1))


def _design(operator: HeldMeasurements) -> _Rows | _Matrices:
    n, d = operator.n, operator.d
    if isinstance(operator, RankOne):
        X = operator.X.reshape(-1, 1, n, d).numpy()
        return _Rows(np.ascontiguousarray(X.swapaxes(-1, -2)))
    A = operator.matrices.reshape(-1, 1, n, d, d).numpy()
    return _Matrices(np.ascontiguousarray(A.transpose(0, 1, 3, 4, 2)).reshape(-1, 1, d, d * n))


_GRID = (
    *("V", "Z", "e", "square", "residual", "damping", "growth", "window", "best", "waited"),
    *("active", "place"),
)


def _total(a: np.ndarray) -> np.ndarray:
    return a.sum((-2, -1))
