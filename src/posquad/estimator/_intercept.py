"""Fit with an intercept: `y_i = ||U'x_i||^2 + c`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from scipy.optimize import least_squares

from posquad.core.status import Status
from posquad.core.symmetric import symmetric_system
from posquad.estimator._samples import WeightedSamples
from posquad.recovery import Recovery

_LINEAR_MOST = 600  # maximum size of the linear problem for the first constant
_DENSE_MOST = 2**21  # maximum size of a Jacobian that is factorized
_FEW = 12  # starts for a constant that may be wrong
_ROUNDS = 3  # maximum rounds of alternating search and joint refinement
_STEPS = 30  # maximum number of Gauss-Newton steps for the last digits
_ROUNDING = 1e-14  # relative residual at which responses are reproduced to rounding


class FittedFactor(NamedTuple):
    """A factor U and a constant c, with the result of the search that U was refined from."""

    found: Recovery
    U: np.ndarray
    intercept: float

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the predictions `||U'x_i||^2 + c`."""
        return ((X @ self.U) ** 2).sum(axis=1) + self.intercept


def fit_with_intercept(
    search: Callable[..., Recovery], samples: WeightedSamples, rank: int, max_starts: int | None
) -> FittedFactor:
    """Minimise the squared error over U and c.

    For each of a few constants, `search(samples, rank, max_starts)` finds U, and both are refined
    jointly. The best constant is searched once more with all starts, in case another U suits it
    better. A constant whose U reproduces the responses to rounding is accepted at once.
    """
    few = _FEW if max_starts is None else min(_FEW, max_starts)
    tried: list[Joint] = []
    for constant in _constants(samples):
        found = search(_shifted(samples, constant), rank, few)
        if _reproduced(samples, found, constant) or found.status is Status.INTERRUPTED:
            return FittedFactor(found, found.U, constant)
        tried.append(_refine_jointly(samples, found.U, constant))
    best = min(tried, key=lambda joint: joint.loss)
    found = search(_shifted(samples, best.constant), rank, max_starts)
    for _ in range(_ROUNDS):
        if _reproduced(samples, found, best.constant):
            return FittedFactor(found, found.U, best.constant)
        improved = _refine_jointly(samples, found.U, best.constant)
        gain, best = best.loss - improved.loss, min(improved, best, key=lambda joint: joint.loss)
        if gain <= 1e-9 * best.loss:
            break
        found = search(_shifted(samples, best.constant), rank, max_starts)
    return FittedFactor(found, best.U, best.constant)


class Joint(NamedTuple):
    """A stationary point of the loss in U and c."""

    loss: float
    U: np.ndarray
    constant: float


def _reproduced(samples: WeightedSamples, found: Recovery, constant: float) -> bool:
    """Return whether the errors are rounding errors of y or of y - c."""
    size, shifted = (np.sqrt(samples.relative @ y**2) for y in (samples.y, samples.y - constant))
    return bool(found.residual * shifted <= _ROUNDING * max(size, shifted))


def _shifted(samples: WeightedSamples, constant: float) -> WeightedSamples:
    return samples._replace(y=samples.y - constant)


def _constants(samples: WeightedSamples) -> list[float]:
    """Return constants to try: that of the linear least-squares problem, or some from y."""
    X, y = samples.X, samples.y
    n, d = X.shape
    low, high = float(y.min()), float(y.max())
    if low == high:
        return [low]  # exactly, so that y - c is zero
    if n > d * (d + 1) // 2 and d * (d + 1) // 2 <= _LINEAR_MOST:
        system = symmetric_system(torch.tensor(X, dtype=torch.float64)).numpy()
        root = np.sqrt(samples.relative)[:, None]
        columns = np.column_stack([system, np.ones(n)]) * root
        scale = np.linalg.norm(columns, axis=0)
        solution = np.linalg.lstsq(columns / np.where(scale > 0, scale, 1), y * root[:, 0])[0]
        return [float(solution[-1] / scale[-1]), low]
    return [0.0, low, low - (high - low) / 4]


def _refine_jointly(samples: WeightedSamples, U: np.ndarray, constant: float) -> Joint:
    """Return the stationary point of the loss in U and c that descent from here reaches."""
    X, y = samples.X.astype(np.float64, copy=False), samples.y
    n, (d, r) = len(y), U.shape
    size = np.sqrt((X**2).mean(axis=0))
    size = np.where(size > 0, size, 1.0)
    Xs, root = X / size, np.sqrt(samples.relative)
    unit = float(np.abs(y - constant).max()) or 1.0

    def residual(v: np.ndarray) -> np.ndarray:
        Z = Xs @ v[:-1].reshape(d, r)
        return root * ((Z**2).sum(axis=1) + v[-1] - y / unit)

    def jacobian(v: np.ndarray) -> np.ndarray:
        Z = Xs @ v[:-1].reshape(d, r)
        J = 2 * (Xs[:, :, None] * Z[:, None, :]).reshape(n, d * r)
        return root[:, None] * np.column_stack([J, np.ones(n)])

    v = np.append((U * size[:, None]).ravel() / np.sqrt(unit), constant / unit)
    exact = n * d * r <= _DENSE_MOST
    tight = {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-15, "max_nfev": 200}
    solver = "exact" if exact else "lsmr"
    v = least_squares(residual, v, cast(Any, jacobian), tr_solver=solver, **tight).x
    # The loss determines only half the digits of v; Gauss-Newton steps determine the others.
    last = np.inf
    for _ in range(_STEPS if exact else 0):
        step = np.linalg.lstsq(jacobian(v), residual(v))[0]
        if not (length := float(np.linalg.norm(step))) < last / 2:
            break
        v, last = v - step, length
    loss = float((residual(v) ** 2).sum()) * unit**2
    factor = v[:-1].reshape(d, r) / size[:, None] * np.sqrt(unit)
    return Joint(loss, factor, float(v[-1]) * unit)
