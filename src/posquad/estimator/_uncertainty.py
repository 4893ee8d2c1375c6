"""Standard errors of predictions, from the effective Hessian; rotations of U do not change them.

With the fitted predictor as the truth, the Hessian on the quotient is `J'WJ / n`, where J is the
derivative of the predictions along horizontal directions (`thm:effective-hessian`). To first order,
its inverse times the variance of the noise is the covariance of the estimate, and its kernel is
what the data do not determine. Both are computed for whitened inputs, where bad scaling does not
look like a kernel, and transformed back.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from posquad.core.errors import DomainError, RankDeficientError
from posquad.core.linalg import eigenvalue_rounding
from posquad.curvature import Spectrum, effective_spectrum
from posquad.estimator._samples import WeightedSamples
from posquad.geometry import dimension
from posquad.problems.measurements import RankOne
from posquad.problems.objectives import LeastSquares

DENSE_MOST = 1000  # unknowns up to which standard errors are computed by default
_ENTRIES = 2**22  # slopes computed at a time
_SEEN = 1e-9  # relative size up to which a component counts as zero


class Uncertainty(NamedTuple):
    """Arrays from which `standard_errors` computes, for inputs divided by `unit`.

    A direction moves the predictor and, if there is one, the constant, by minus the mean slope of
    the predictions along the direction.
    """

    unit: np.ndarray  # [d]  largest absolute value of each input; 1 if that is 0
    root: np.ndarray  # [q, d, r]  determined directions, scaled for noise of unit variance
    center: np.ndarray  # [q]  mean slopes along them; zeros without a constant
    constant: float  # variance of the constant given the predictor; 0 without a constant
    free: np.ndarray  # [m, d, r]  directions that change no fitted response
    free_center: np.ndarray  # [m]  mean slopes along them
    unseen: np.ndarray  # [d - k, d]  orthonormal basis of inputs outside the span of the samples


def uncertainty(samples: WeightedSamples, U: np.ndarray, *, intercept: bool) -> Uncertainty:
    """Return how well the samples determine the predictor UU' (and a constant) in each direction.

    `U[d, r]` must have full rank in the span of the samples, or no columns.
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
        largest = values[-1:]  # of J'WJ; rounding is relative to it
        values, vectors, center = _profiled(Z, mass, V, values, vectors)
        kernel = values <= eigenvalue_rounding(len(values)) * largest
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
    """Return the standard error `[n]` of the predictions at the rows of X, for unit noise variance.

    It is infinite if the data do not determine the prediction: outside the span of the samples, or
    if a free direction changes it.
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


def spectrum_of(samples: WeightedSamples, U: np.ndarray, *, intercept: bool) -> np.ndarray:
    """Return the effective eigenvalues in the user's coordinates; of large problems, the two ends.

    With a constant they are those of the loss minimised over the constant, unless the problem is
    large. They are NaN if U does not have full rank or is out of range in these coordinates.
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
    """Return eigenpairs of `J'WJ` minus the part a constant explains, and their mean slopes."""
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
    """Return the spectrum for the fitted responses; weights enter as `w^(1/4) x`."""
    operator = RankOne(X * (mass**0.25)[:, None])
    return effective_spectrum(LeastSquares(operator, operator.apply_factor(U)), U, which=which)


def _slopes(X: np.ndarray, U: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Return `2 <U'x_i, D_k'x_i>`, the derivative of prediction i along direction k, `[n, m]`."""
    Z = X @ U  # [n, r]
    m, d, r = directions.shape
    moved = (X @ directions.transpose(1, 0, 2).reshape(d, m * r)).reshape(len(X), m, r)
    return 2 * np.einsum("nr,nmr->nm", Z, moved)


def _isotropic(X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `T[d, k]` such that the rows of XT have covariance I, with k the rank of X.

    Also return its inverse `[k, d]` on the span of the samples, and an orthonormal basis
    `[d - k, d]` of the complement.
    """
    n, d = X.shape
    _, s, right = np.linalg.svd(X, full_matrices=n < d)
    k = int((s > max(n, d) * np.finfo(float).eps * s[:1]).sum())
    s, inside = s[:k, None] / np.sqrt(n), right[:k]
    return (inside / s).T, inside * s, right[k:]
