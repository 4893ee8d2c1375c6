"""A fit with a free constant: `y_i = ||U'x_i||^2 + c`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from scipy.optimize import least_squares

from posquad.core.status import Status
from posquad.core.symmetric import symmetric_system
from posquad.estimator._samples import Samples
from posquad.recovery import Recovery

_LINEAR_MOST = 600  # unknowns of the linear problem that gives a first constant
_DENSE_MOST = 2**21  # entries of a Jacobian that is decomposed
_FEW = 12  # starts spent on a constant that may be wrong
_ROUNDS = 3
_STEPS = 30  # Gauss-Newton steps after the last digits
_ROUNDING = 1e-14  # relative residual of responses that are reproduced


class Fit(NamedTuple):
    """What a search found, with the factor (which may be better than that of the search) and c."""

    found: Recovery
    U: np.ndarray
    intercept: float

    def predict(self, X: np.ndarray) -> np.ndarray:
        return ((X @ self.U) ** 2).sum(axis=1) + self.intercept


def fit_with_intercept(
    search: Callable[..., Recovery], samples: Samples, rank: int, most: int | None
) -> Fit:
    """Least squares in U and c together.

    For each of a few constants, `search(samples, rank, most)` finds U; both are then improved
    together, and the best is solved once more with all starts, in case another U suits its
    constant better. A constant whose U reproduces the responses to rounding is taken as it is.
    """
    few = _FEW if most is None else min(_FEW, most)
    tried: list[Joint] = []
    for constant in _constants(samples):
        found = search(_shifted(samples, constant), rank, few)
        if _reproduced(samples, found, constant) or found.status is Status.INTERRUPTED:
            return Fit(found, found.U, constant)
        tried.append(_together(samples, found.U, constant))
    best = min(tried, key=lambda joint: joint.loss)
    found = search(_shifted(samples, best.constant), rank, most)
    for _ in range(_ROUNDS):
        if _reproduced(samples, found, best.constant):
            return Fit(found, found.U, best.constant)
        improved = _together(samples, found.U, best.constant)
        gain, best = best.loss - improved.loss, min(improved, best, key=lambda joint: joint.loss)
        if gain <= 1e-9 * best.loss:
            break
        found = search(_shifted(samples, best.constant), rank, most)
    return Fit(found, best.U, best.constant)


class Joint(NamedTuple):
    """A stationary point of the loss in U and c."""

    loss: float
    U: np.ndarray
    constant: float


def _reproduced(samples: Samples, found: Recovery, constant: float) -> bool:
    """Whether errors are rounding of y; y - c may be rounding itself."""
    size, shifted = (np.sqrt(samples.relative @ y**2) for y in (samples.y, samples.y - constant))
    return bool(found.residual * shifted <= _ROUNDING * max(size, shifted))


def _shifted(samples: Samples, constant: float) -> Samples:
    return samples._replace(y=samples.y - constant)


def _constants(samples: Samples) -> list[float]:
    """Constants worth trying: that of the linear problem if there is one, else the range of y."""
    X, y = samples.X, samples.y
    n, d = X.shape
    low, high = float(y.min()), float(y.max())
    if low == high:
        return [low]  # to the last digit, as nothing is left then
    if n > d * (d + 1) // 2 and d * (d + 1) // 2 <= _LINEAR_MOST:
        system = symmetric_system(torch.tensor(X, dtype=torch.float64)).numpy()
        root = np.sqrt(samples.relative)[:, None]
        columns = np.column_stack([system, np.ones(n)]) * root
        scale = np.linalg.norm(columns, axis=0)
        solution = np.linalg.lstsq(columns / np.where(scale > 0, scale, 1), y * root[:, 0])[0]
        return [float(solution[-1] / scale[-1]), low]
    return [0.0, low, low - (high - low) / 4]


def _together(samples: Samples, U: np.ndarray, constant: float) -> Joint:
    """The stationary point nearest to U and c."""
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
    # The loss says no more about v than half its digits; Gauss-Newton steps give the others.
    last = np.inf
    for _ in range(_STEPS if exact else 0):
        step = np.linalg.lstsq(jacobian(v), residual(v))[0]
        if not (length := float(np.linalg.norm(step))) < last / 2:
            break
        v, last = v - step, length
    loss = float((residual(v) ** 2).sum()) * unit**2
    factor = v[:-1].reshape(d, r) / size[:, None] * np.sqrt(unit)
    return Joint(loss, factor, float(v[-1]) * unit)
