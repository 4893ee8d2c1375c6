"""Standard errors of predictions, from the effective Hessian; rotations of U do not change them.

With the fitted predictor as the truth, the Hessian on the quotient is `J'WJ / n`, where J is the
derivative of the predictions along horizontal directions (Theorem 3.1, `thm:effective-hessian`). To
first order, its inverse times the variance of the noise is the covariance of the estimate, and its
kernel is what the data do not determine. Unconstrained terms are eliminated: J is then the part of
the derivative that they do not explain. All is computed for whitened inputs, where bad scaling does
not look like a kernel, and transformed back.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from posquad.core.errors import DomainError, RankDeficientError
from posquad.core.linalg import eigenvalue_rounding
from posquad.curvature import Spectrum, effective_spectrum
from posquad.estimator._coordinates import coordinates
from posquad.estimator._model import Quadratic, Terms, count_unknowns
from posquad.estimator._samples import WeightedSamples
from posquad.geometry import dimension
from posquad.problems.measurements import RankOne
from posquad.problems.objectives import LeastSquares

DENSE_MOST = 1000  # unknowns up to which standard errors are computed by default
_ENTRIES = 2**22  # slopes computed at a time
_POWER_MOST = 500  # of 2 in the size of inputs up to which eigenvalues are in range
_SEEN = 1e-9  # relative size up to which a component counts as zero


class Uncertainty(NamedTuple):
    """Arrays from which `standard_errors` computes, for inputs `x / unit - origin`.

    A direction moves the predictor, and the coefficients of the m other terms by minus their share
    of the slopes of the predictions. The other terms are a constant, or the inputs and a constant.
    """

    unit: np.ndarray  # [d]  largest absolute value of each input; 1 if that is 0
    origin: np.ndarray  # [d]  mean of the inputs with linear terms; else zero
    root: np.ndarray  # [q, d, r]  determined directions, scaled for noise of unit variance
    shares: np.ndarray  # [q, m]  coefficients by which other terms explain the slopes along them
    terms: np.ndarray  # [k, m]  root of the covariance of the other coefficients given Q
    free: np.ndarray  # [f, d, r]  directions that change no fitted response
    free_shares: np.ndarray  # [f, m]  the same coefficients for them
    unseen: np.ndarray  # [d - k, d]  orthonormal basis of inputs outside the span of the samples


def uncertainty(
    samples: WeightedSamples, function: Quadratic, terms: Terms
) -> tuple[Uncertainty, float]:
    """Return how well the samples determine the predictor and other terms in each direction.

    The second value is the number of free directions of the predictor; NaN if rounding hides it.
    `function.U[d, r]` must have full rank in the span of the samples, or no columns.
    """
    mass, n = samples.mass, len(samples.y)
    X = samples.X.astype(np.float64, copy=False)
    frame = coordinates(X, mass, terms)
    t = frame.enter(X)
    V = frame.inverse @ (function.U * frame.unit[:, None])  # [k, r]: tV = (X - m) U
    values, vectors = np.empty(0), np.empty((0, *V.shape))
    kernel, counted = np.empty(0, dtype=bool), True
    if V.size:
        spectrum = _spectrum(t, mass, V)
        vectors, counted = spectrum.vectors, _knows_kernel(spectrum)
        kernel = spectrum.is_kernel | np.isnan(spectrum.values)  # what is not known is not seen
        values = np.where(kernel, 0.0, spectrum.values) * n
    Z = _term_columns(t, terms)
    shares = np.zeros((len(values), Z.shape[1]))
    if Z.shape[1]:
        largest = values[-1:]  # of J'WJ; rounding is relative to it
        values, vectors, shares = _profiled(t, mass, V, Z, values, vectors)
        kernel = values <= eigenvalue_rounding(len(values)) * largest
    scale = 1 / np.sqrt(values[~kernel])
    back = np.zeros((Z.shape[1], 0))  # from terms in t to terms in x / unit - origin
    if terms == "constant":
        back = np.ones((1, 1))
    elif terms == "linear":
        k, d = len(t.T), len(frame.unit)
        back = np.zeros((k + 1, d + 1))
        back[:k, :d], back[k, d] = frame.T.T, 1.0
    known = Uncertainty(
        unit=frame.unit,
        origin=frame.origin,
        root=scale[:, None, None] * (frame.T @ vectors[~kernel]),
        shares=scale[:, None] * shares[~kernel] @ back,
        terms=_inverse_root(Z, mass) @ back,
        free=frame.T @ vectors[kernel],
        free_shares=shares[kernel] @ back,
        unseen=frame.unseen,
    )
    # Inputs outside the span of the samples are free for every column of U.
    free = count_unknowns(*function.U.shape) - len(known.root)
    return known, free if counted else np.nan


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
    X, U = X / known.unit - known.origin, U * known.unit[:, None]
    m = known.terms.shape[1]
    Z = np.column_stack([X, np.ones(len(X))])[:, len(X.T) + 1 - m :]  # [n, m]
    own = _slopes(X, U, known.root) - Z @ known.shares.T
    variance = ((Z @ known.terms.T) ** 2).sum(axis=1) + (own**2).sum(axis=1)
    size = (X**2).sum(axis=1)
    outside = ((X @ known.unseen.T) ** 2).sum(axis=1) > _SEEN**2 * size
    shift = Z @ known.free_shares.T
    moves = np.abs(_slopes(X, U, known.free) - shift)
    reach = size[:, None] * np.linalg.norm(U) * np.linalg.norm(known.free, axis=(1, 2))
    free = (moves > _SEEN * (reach + np.abs(shift))).any(axis=1)
    return np.where(outside | free, np.inf, np.sqrt(variance))


def generators(
    known: Uncertainty, X: np.ndarray, U: np.ndarray, terms: Terms
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return slopes `[n, q]` along all determined directions, and the directions themselves.

    These are directions of the factor `[q, d, r]`, and the coefficients `[q, m]` by which the other
    terms move against them; the last directions move the other terms alone.
    """
    X, U = X / known.unit - known.origin, U * known.unit[:, None]
    shares = np.vstack([known.shares, -known.terms])
    directions = np.concatenate([known.root, np.zeros((len(known.terms), *U.shape))])
    return _slopes(X, U, directions) - _term_columns(X, terms) @ shares.T, directions, shares


def spectrum_of(
    samples: WeightedSamples, function: Quadratic, terms: Terms
) -> tuple[np.ndarray, float]:
    """Return the effective eigenvalues in the user's coordinates; of large problems, the two ends.

    With other terms they are those of the loss minimised over these terms, unless the problem is
    large. They are NaN if U does not have full rank, or if they are out of range. The second value
    is the number of directions that are free; NaN if the eigenvalues do not show it, for example
    because units that differ much look like free directions.
    """
    mass, n = samples.mass, len(samples.mass)
    X = samples.X - function.center
    # Eigenvalues are quadratic in the unit of X; with a unit near its size, nothing overflows.
    power = np.round(np.log2(np.abs(X).max(initial=0.0) or 1.0))
    X /= 2.0**power
    U = function.U * 2.0**power
    p = dimension(*U.shape)
    ends = ("smallest", "largest") if p > DENSE_MOST else ("all",)
    try:
        parts = [_spectrum(X, mass, U, which=which) for which in ends]
    except (RankDeficientError, DomainError):
        parts = []
    if not parts or abs(power) > _POWER_MOST:
        return np.full(p if len(ends) == 1 else 2, np.nan), np.nan
    values = np.concatenate([part.values for part in parts]) * n  # of J'WJ
    free = parts[0].kernel_dimension if terms == "none" and _knows_kernel(parts[0]) else np.nan
    if terms != "none" and len(ends) == 1 and np.isfinite(values).all():
        rounding = eigenvalue_rounding(p) * values[-1]
        units = np.abs(X).max(axis=0)  # lest a column of small unit count as zero
        Z = _term_columns(X / np.where(units > 0, units, 1.0), terms)
        values = _profiled(X, mass, U, Z, values, parts[0].vectors)[0]
        free = 0 if values[0] > rounding else np.nan
    return values / mass.sum() * 4.0**power, free


def _knows_kernel(spectrum: Spectrum) -> bool:
    """Tell whether all kernel directions are among the values, and marked."""
    return spectrum.kernel_is_complete and not np.isnan(spectrum.values).any()


def _term_columns(X: np.ndarray, terms: Terms) -> np.ndarray:
    """Return the columns `[n, m]` of the other terms."""
    columns = X if terms == "linear" else X[:, :0]
    return columns if terms == "none" else np.column_stack([columns, np.ones(len(X))])


def _profiled(
    X: np.ndarray,
    mass: np.ndarray,
    U: np.ndarray,
    Z: np.ndarray,
    values: np.ndarray,
    vectors: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return eigenpairs of `J'WJ` minus what the columns Z explain, and the coefficients of Z."""
    root = np.sqrt(mass)[:, None]
    slopes = root * _slopes(X, U, vectors)  # [n, p]
    shares = np.linalg.lstsq(root * Z, slopes)[0]  # [m, p]
    explained = root * Z @ shares
    values, turn = np.linalg.eigh(np.diag(values) - explained.T @ explained)
    return values, np.tensordot(turn.T, vectors, axes=1), turn.T @ shares.T


def _inverse_root(Z: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Return `R[k, m]` with `R'R` the pseudo-inverse of `Z'WZ`."""
    _, s, right = np.linalg.svd(np.sqrt(mass)[:, None] * Z, full_matrices=False)
    kept = s > len(Z) * np.finfo(float).eps * s[:1]
    return right[kept] / s[kept, None]


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
