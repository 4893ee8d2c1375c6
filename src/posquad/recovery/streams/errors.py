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
    values = np.linalg.eigvalsh(problem.curvature(V))
    low, high = float(values[r * (r - 1) // 2]), float(values[-1])
    s = np.linalg.svd(V, compute_uv=False)
    ends = np.array([low, high]) / s[0] ** 2
    if math.isnan(loss):
        return ends, math.nan
    T = (problem.T / problem.unit[:, None]).numpy()
    T = T / np.abs(T).max()
    stretch = np.linalg.norm(T, 2) ** 2 / np.linalg.norm((T @ V).T @ (T @ V))
    rms = max(math.sqrt(loss), np.finfo(float).eps * math.sqrt(problem.squares))
    hidden = problem.count / max(problem.count - dimension(problem.d, r), 1)
    error = 2 * s[0] * rms * hidden / math.sqrt(low) * stretch if low > 0 else math.nan
    return ends, float(error)
