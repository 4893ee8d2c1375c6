"""Standard errors of predictions, from the effective Hessian: no rotation of U enters.

With the fitted predictor as the truth, the Hessian on the quotient is `J'WJ / n`, J the derivative
of the predictions along horizontal directions (`thm:effective-hessian`). Its inverse, times the
variance of the noise, is the covariance of the estimate to first order; its kernel is what the data
do not determine. Both are computed for inputs made isotropic, where a kernel is told from bad
scaling, and carried back.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from posquad.core.errors import DomainError, RankDeficientError
from posquad.curvature import Spectrum, effective_spectrum
from posquad.estimator._samples import Samples
from posquad.geometry import dimension
from posquad.problems.measurements import RankOne
from posquad.problems.objectives import LeastSquares

DENSE_MOST = 1000  # unknowns up to which standard errors are computed without being asked for
_ENTRIES = 2**22  # slopes computed at a time
_SEEN = 1e-9  # share of an input outside the span of the samples, or of a free direction


class Uncertainty(NamedTuple):
    """What a prediction at x does not know, for inputs in units of `unit`; see `standard_errors`.

    A direction moves the predictor and, where there is one, the constant: by what it takes of the
    mean slope, with the sign turned.
    """

    unit: np.ndarray  # [d]  largest size of each input; 1 if that is 0
    root: np.ndarray  # [q, d, r]  seen directions, scaled to unit variance of the noise
    center: np.ndarray  # [q]  what the constant takes of them; zeros without one
    constant: float  # variance of the constant beside; 0 without one
    free: np.ndarray  # [m, d, r]  directions that leave every fitted response as it is
    free_center: np.ndarray  # [m]  what the constant takes of them
    unseen: np.ndarray  # [d - k, d]  orthonormal inputs outside the span of the samples


def uncertainty(samples: Samples, U: np.ndarray, *, intercept: bool) -> Uncertainty:
    """Directions in which the samples determine the predictor UU' (and a constant), and how well.

    `U[d, r]` has full rank in the span of the samples, or no column.
    """
    mass, n = samples.mass, len(samples.y)
    X = samples.X.astype(np.float64, copy=False)
    unit = np.abs(X).max(axis=0)
    unit = np.where(unit > 0, unit, 1.0)
    X = X / unit
    T, inverse, unseen = _isotropic(X * np.sqrt(mass)[:, None])
    Z, V = X @ T, inverse @ (U * unit[:, None])  # [n, k], [k, r]: ZV = XU
    values, vectors = np.empty(0), np.empty((0, *V.shape))
    kernel = np.empty(0, dtype=bool)
    if V.size:
        spectrum = _spectrum(Z, mass, V)
        vectors, kernel = spectrum.vectors, spectrum.is_kernel
        values = np.where(kernel, 0.0, spectrum.values) * n
    center, constant = np.zeros(len(values)), 0.0
    if intercept:
        largest = values[-1:]  # of J'WJ, which rounding is relative to
        values, vectors, center = _profiled(Z, mass, V, values, vectors)
        kernel = values <= 10 * len(values) * np.finfo(float).eps * largest
        constant = 1 / mass.sum()
    scale = 1 / np.sqrt(values[~kernel])
    return Uncertainty(
        unit=unit,
        root=scale[:, None, None] * (T @ vectors[~kernel]),
        center=scale * center[~kernel],
        constant=float(constant),
        free=T @ vectors[kernel],
        free_center=center[kernel],
        unseen=unseen,
    )


def standard_errors(known: Uncertainty, X: np.ndarray, U: np.ndarray) -> np.ndarray:
    """Standard error `[n]` of the prediction at each row of X, for noise of unit variance.

    Infinite where the prediction is not determined: outside the span of the samples, or where a
    free direction moves it.
    """
    error = np.empty(len(X))
    columns = (len(known.root) + len(known.free)) * U.shape[1]
    step = max(1, _ENTRIES // max(1, columns))
    for begin in range(0, len(X), step):
        error[begin : begin + step] = _errors(known, X[begin : begin + step], U)
    return error


def _errors(known: Uncertainty, X: np.ndarray, U: np.ndarray) -> np.ndarray:
    X, U = X / known.unit, U * known.unit[:, None]
    variance = known.constant + ((_slopes(X, U, known.root) - known.center) ** 2).sum(axis=1)
    size = (X**2).sum(axis=1)
    outside = ((X @ known.unseen.T) ** 2).sum(axis=1) > _SEEN**2 * size
    moves = np.abs(_slopes(X, U, known.free) - known.free_center)
    reach = size[:, None] * np.linalg.norm(U) * np.linalg.norm(known.free, axis=(1, 2))
    free = (moves > _SEEN * (reach + np.abs(known.free_center))).any(axis=1)
    return np.where(outside | free, np.inf, np.sqrt(variance))


def spectrum_of(samples: Samples, U: np.ndarray, *, intercept: bool) -> np.ndarray:
    """Effective eigenvalues in the user's coordinates: all, or the two ends of a large problem.

    With a constant, those of the loss that is left when it is chosen best, unless the problem is
    large. NaN where U has no full rank, or is out of range, in these coordinates.
    """
    X, mass = samples.X.astype(np.float64, copy=False), samples.mass
    p, n = dimension(*U.shape), len(mass)
    ends = ("smallest", "largest") if p > DENSE_MOST else ("all",)
    try:
        parts = [_spectrum(X, mass, U, which=which) for which in ends]
    except (RankDeficientError, DomainError):
        return np.full(p if len(ends) == 1 else 2, np.nan)
    values = np.concatenate([part.values for part in parts]) * n  # of J'WJ
    if intercept and len(ends) == 1:
        values = _profiled(X, mass, U, values, parts[0].vectors)[0]
    return values / mass.sum()


def _profiled(
    X: np.ndarray, mass: np.ndarray, U: np.ndarray, values: np.ndarray, vectors: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eigenpairs of `J'WJ` less what a constant explains, and the mean slope along each."""
    total = mass.sum()
    center = mass @ _slopes(X, U, vectors) / total  # [p]
    values, turn = np.linalg.eigh(np.diag(values) - total * np.outer(center, center))
    return values, np.tensordot(turn.T, vectors, axes=1), turn.T @ center


def _spectrum(
    X: np.ndarray,
    mass: np.ndarray,
    U: np.ndarray,
    which: Literal["all", "smallest", "largest"] = "all",
) -> Spectrum:
    """Spectrum with the fitted predictor as the truth; weights enter as `w^(1/4) x`."""
    operator = RankOne(X * (mass**0.25)[:, None])
    return effective_spectrum(LeastSquares(operator, operator.apply_factor(U)), U, which=which)


def _slopes(X: np.ndarray, U: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """`2 <U'x_i, D_k'x_i>`, the derivative of prediction i along direction k: `[n, m]`."""
    Z = X @ U  # [n, r]
    m, d, r = directions.shape
    moved = (X @ directions.transpose(1, 0, 2).reshape(d, m * r)).reshape(len(X), m, r)
    return 2 * np.einsum("nr,nmr->nm", Z, moved)


def _isotropic(X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`T[d, k]` such that the rows of XT are isotropic in the span of the samples.

    Then its inverse `[k, d]` on that span, and an orthonormal basis `[d - k, d]` outside it.
    """
    n, d = X.shape
    _, s, right = np.linalg.svd(X, full_matrices=n < d)
    k = int((s > max(n, d) * np.finfo(float).eps * s[:1]).sum())
    s, inside = s[:k, None] / np.sqrt(n), right[:k]
    return (inside / s).T, inside * s, right[k:]
