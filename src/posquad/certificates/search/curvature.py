"""Estimates that proofs start from: extreme effective eigenvalues, and mu from both sides.

Nothing here is a proof except `quartic_below`, which bounds its own rounding.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy
import scipy.sparse.linalg

from posquad.certificates.proofs.bounded_operator import Forms
from posquad.certificates.proofs.rounding import UNDERFLOW, down, gamma
from posquad.certificates.proofs.statements import Route

_sparse: Any = scipy.sparse.linalg  # its stubs do not know the operator's arguments
_DENSE = 600  # largest matrix whose eigenvalues are all computed
_GRAM_LIMIT = 6000  # largest n x n or d(d+1)/2 matrix formed to bound mu
_STARTS = 8
_POWER_STEPS = 200


class QuarticGuess(NamedTuple):
    """An upper estimate of mu, and the route and parameter by which it can be proved."""

    value: float
    route: Route
    parameter: float


def extreme_values(G: np.ndarray) -> tuple[float, float]:
    """Smallest and largest eigenvalue of a symmetric matrix, to a few digits."""
    if len(G) <= _DENSE:
        values = np.linalg.eigvalsh(G)
        return float(values[0]), float(values[-1])
    largest = _lanczos_largest(G)
    try:
        factor = scipy.linalg.cho_factor(G, lower=True, check_finite=False)
    except scipy.linalg.LinAlgError:
        return float(scipy.linalg.eigvalsh(G, subset_by_index=[0, 0])[0]), largest
    inverse = _sparse.LinearOperator(
        G.shape, matvec=lambda v: scipy.linalg.cho_solve(factor, v, check_finite=False), dtype=float
    )
    return 1 / _lanczos_largest(inverse), largest


def _lanczos_largest(G: Any) -> float:
    v0 = np.random.default_rng(0).standard_normal(G.shape[0])
    try:
        values = _sparse.eigsh(G, k=1, which="LA", v0=v0, tol=1e-4, return_eigenvectors=False)
    except _sparse.ArpackError:
        return math.nan  # nothing is claimed, nothing will be proved
    return float(values[0])


def quartic_below(forms: Forms, *, seed: int = 0) -> tuple[float, np.ndarray]:
    """A proved lower bound on mu: `N(vv')^2` at the best v of a fourth-moment power iteration."""
    rng = np.random.default_rng(seed)
    best, where = 0.0, np.eye(forms.d)[0]
    for _ in range(_STARTS):
        v = rng.standard_normal(forms.d)
        v /= np.linalg.norm(v)
        before = 0.0
        for _ in range(_POWER_STEPS):
            measured = forms.apply_vector(v)
            level = float(measured @ measured) / forms.n
            if level > best:
                best, where = level, v
            if level <= before * (1 + 1e-10):
                break
            before = level
            v = forms.adjoint_factor(measured, v[:, None])[0][:, 0]
            size = float(np.linalg.norm(v))
            if not size > 0:
                break
            v = v / size
    measured, error = forms.measure(where[:, None])
    low = np.maximum(np.abs(measured) - error * (1 + gamma(4)) - UNDERFLOW, 0.0)
    sure = float(np.square(low).sum()) * (1 - gamma(forms.n + 8)) / forms.n
    return down(sure * (1 - gamma(4 * forms.d + 8))), where  # v is a unit vector to rounding


def quartic_guess(forms: Forms) -> QuarticGuess:
    """The least upper estimate of mu over the parameter, by the smaller of the two matrices."""
    q = forms.d * (forms.d + 1) // 2
    if min(forms.n, q) > _GRAM_LIMIT:
        return _moment_guess(forms)
    return _gram_guess(forms) if forms.n <= q else _monomial_guess(forms)


def _largest(M: np.ndarray) -> float:
    return float(np.linalg.eigvalsh(M)[-1]) if len(M) <= 200 else _lanczos_largest(M)


def _moment_guess(forms: Forms) -> QuarticGuess:
    M = forms.second_moment()[0]
    return QuarticGuess(_largest(M) / forms.n, "moment", 0.0)


def _gram_guess(forms: Forms) -> QuarticGuess:
    """By c: `t(k) = lambda_max(K - k ww')/n`, `value = t (1 + k / (1 - k d))`."""
    n, d = forms.n, forms.d
    K, w, _ = forms.gram()

    def value(k: float) -> float:
        return max(_largest(K - k * (w[:, None] * w)), 0.0) / n * (1 + k / (1 - k * d))

    best = _minimise(value, 0.0, (1 - 1e-3) / d)
    return QuarticGuess(best[1], "gram", best[0])


def _monomial_guess(forms: Forms) -> QuarticGuess:
    d = forms.d
    a, b = np.triu_indices(d)
    scale = np.where(a == b, 1.0, math.sqrt(0.5))  # to an orthonormal basis
    T = forms.monomial_gram()[0] * (scale[:, None] * scale / forms.n)
    trace = np.outer(a == b, a == b) * 1.0

    def value(c: float) -> float:
        return c + _largest(T - c * trace)

    best = _minimise(value, 0.0, _largest(T))
    return QuarticGuess(best[1], "monomials", best[0])


def _minimise(value, low: float, high: float) -> tuple[float, float]:
    """Least value of a unimodal function, the ends included."""
    found = scipy.optimize.minimize_scalar(
        value, bounds=(low, high), method="bounded", options={"xatol": 2e-3 * (high - low)}
    )
    ends = [(float(found.x), float(found.fun)), (low, value(low))]
    return min(ends, key=lambda pair: pair[1])
