"""The curvature at an answer from moments, and the estimate of its error."""

from __future__ import annotations

import math

import numpy as np

from posquad.geometry import dimension
from posquad.recovery.streams.compressed import Compressed


def curvature_and_error(
    problem: Compressed, V: np.ndarray, loss: float
) -> tuple[np.ndarray, float]:
    """Return the ends of the effective spectrum over `lambda_1(Q)`, and the error estimate.

    They are those of `posquad.recovery.diagnose`, where the formulas are derived.
    """
    r = V.shape[1]
    if not r:
        return np.full(2, np.nan), 0.0
    T = (problem.T / problem.unit[:, None]).numpy()
    rms = max(math.sqrt(loss), np.finfo(float).eps * math.sqrt(problem.squares))  # NaN stays NaN
    hidden = problem.count / max(problem.count - dimension(problem.d, r), 1)
    return ends_and_error(problem.curvature(V), V, T, rms, hidden)


def ends_and_error(
    K: np.ndarray, V: np.ndarray, T: np.ndarray, rms: float, hidden: float
) -> tuple[np.ndarray, float]:
    """Return the same from the curvature `K[k r, k r]` of the mean squared error at `V[k, r]`.

    The factor in the user's coordinates is TV. The root mean square of the errors is `rms`, and the
    unknowns `hidden` a factor of it.
    """
    r = V.shape[1]
    values = np.linalg.eigvalsh(K)
    low, high = float(values[r * (r - 1) // 2]), float(values[-1])
    s = np.linalg.svd(V, compute_uv=False)
    T = T / np.abs(T).max()
    stretch = np.linalg.norm(T, 2) ** 2 / np.linalg.norm((T @ V).T @ (T @ V))
    error = 2 * s[0] * rms * hidden / math.sqrt(low) * stretch if low > 0 else math.nan
    return np.array([low, high]) / s[0] ** 2, float(error)
