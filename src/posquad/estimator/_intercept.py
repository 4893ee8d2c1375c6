"""A fit with a free constant: `y_i = ||U'x_i||^2 + c`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from scipy.optimize import least_squares

from posquad.estimator._samples import Samples
from posquad.recovery import Recovery
from posquad.recovery._symmetric import symmetric_system
from posquad.status import Status

_LINEAR_MOST = 600  # unknowns of the linear problem that gives a first constant
_DENSE_MOST = 2**21  # entries of a Jacobian that is decomposed
_FEW = 12  # starts spent on a constant that may be wrong
_ROUNDS = 3
_ROUNDING = 1e-14  # relative residual of responses that are reproduced


class Fit(NamedTuple):
    """A factor and a constant."""

    found: Recovery
    intercept: float

    def predict(self, X: np.ndarray) -> np.ndarray:
        return ((X @ self.found.U) ** 2).sum(axis=1) + self.intercept


def fit_with_intercept(
    search: Callable[..., Recovery], samples: Samples, rank: int, most: int | None
) -> Fit:
    """Least squares in U and c together.

    For each of a few constants, `search(samples, rank, most)` finds U; both are then improved
    together, and the best is solved once more with all starts, in case another U suits its
    constant better. A constant whose U reproduces the responses to rounding is taken as it is.
    """
    few = _FEW if most is None else min(_FEW, most)
    best: tuple[float, float] | None = None  # loss and constant
    for constant in _constants(samples):
        found = search(_shifted(samples, constant), rank, few)
        if found.residual <= _ROUNDING or found.status is Status.INTERRUPTED:
            return Fit(found, constant)
        improved = _together(samples, found.U, constant)
        best = improved if best is None else min(best, improved)
    assert best is not None
    loss, constant = best
    found = search(_shifted(samples, constant), rank, most)
    for _ in range(_ROUNDS):
        better, improved = _together(samples, found.U, constant)
        if better >= loss * (1 - 1e-9) or found.residual <= _ROUNDING:
            break
        loss, constant = better, improved
        found = search(_shifted(samples, constant), rank, most)
    return Fit(found, constant)


def _shifted(samples: Samples, constant: float) -> Samples:
    return samples._replace(y=samples.y - constant)


def _constants(samples: Samples) -> list[float]:
    """Constants worth trying: that of the linear problem if there is one, else the range of y."""
    X, y = samples.X, samples.y
    n, d = X.shape
    if n > d * (d + 1) // 2 and d * (d + 1) // 2 <= _LINEAR_MOST:
        system = symmetric_system(torch.as_tensor(X, dtype=torch.float64)).numpy()
        root = np.sqrt(samples.relative)[:, None]
        columns = np.column_stack([system, np.ones(n)]) * root
        scale = np.linalg.norm(columns, axis=0)
        solution = np.linalg.lstsq(columns / np.where(scale > 0, scale, 1), y * root[:, 0])[0]
        return [float(solution[-1] / scale[-1]), float(y.min())]
    low, high = float(y.min()), float(y.max())
    return [0.0, low, low - (high - low) / 4]


def _together(samples: Samples, U: np.ndarray, constant: float) -> tuple[float, float]:
    """The loss and the constant of the stationary point nearest to U and c."""
    X, y = samples.X, samples.y
    X = X.astype(np.float64, copy=False)
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

    v0 = np.append((U * size[:, None]).ravel() / np.sqrt(unit), constant / unit)
    exact = n * d * r <= _DENSE_MOST
    tight = {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-15, "max_nfev": 200}
    solver = "exact" if exact else "lsmr"
    result = least_squares(residual, v0, cast(Any, jacobian), tr_solver=solver, **tight)
    return float(result.cost) * unit**2, float(result.x[-1]) * unit
