"""Estimates that proofs start from: extreme effective eigenvalues, and mu from both sides.

Only `quartic_below` is a proof: it bounds its rounding errors.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy
import scipy.sparse.linalg

from posquad.certificates.proofs.bounded_operator import BoundedOperator
from posquad.certificates.proofs.rounding import UNDERFLOW, down, gamma
from posquad.certificates.proofs.statements import Route

_sparse: Any = scipy.sparse.linalg  # its type stubs lack the arguments of LinearOperator
_DENSE = 600  # largest matrix whose eigenvalues are all computed
_GRAM_LIMIT = 6000  # largest n x n or d(d+1)/2 matrix formed to bound mu
_STARTS = 8  # random starts of the power iteration
_POWER_STEPS = 200  # maximum number of steps from one start


class QuarticGuess(NamedTuple):
    """An upper estimate of mu, and the route and parameter by which it can be proved."""

    value: float
    route: Route
    parameter: float


def extreme_values(G: np.ndarray) -> tuple[float, float]:
    """Return the smallest and largest eigenvalue of a symmetric matrix, to a few digits."""
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
        return math.nan  # no proof succeeds with NaN
    return float(values[0])


def quartic_below(operator: BoundedOperator, *, seed: int = 0) -> tuple[float, np.ndarray]:
    """Return a proved lower bound on mu, and the unit vector v at which `N(vv')^2` attains it.

    v is the best one found by a power iteration on the fourth moments.
    """
    V = np.random.default_rng(seed).standard_normal((_STARTS, operator.d)).T
    V, before = V / np.linalg.norm(V, axis=0), np.zeros(_STARTS)
    best, where = 0.0, np.eye(operator.d)[0]
    for _ in range(_POWER_STEPS):
        levels, moved = operator.power_step(V)
        top = int(levels.argmax())
        if levels[top] > best:
            best, where = float(levels[top]), V[:, top]
        sizes = np.linalg.norm(moved, axis=0)
        rising = (levels > before * (1 + 1e-10)) & (sizes > 0)
        if not rising.any():
            break
        V, before = moved[:, rising] / sizes[rising], levels[rising]
    measured, error = operator.measure(where[:, None])
    low = np.maximum(np.abs(measured) - error * (1 + gamma(4)) - UNDERFLOW, 0.0)
    sure = float(np.square(low).sum()) * (1 - gamma(operator.n + 8)) / operator.n
    return down(sure * (1 - gamma(4 * operator.d + 8))), where  # v has length 1 only up to rounding


def quartic_guess(operator: BoundedOperator) -> QuarticGuess:
    """Return the least upper estimate of mu, by the route with the smaller matrix."""
    q = operator.d * (operator.d + 1) // 2
    if min(operator.n, q) > _GRAM_LIMIT:
        return _moment_guess(operator)
    return _gram_guess(operator) if operator.n <= q else _monomial_guess(operator)


def _largest(M: np.ndarray) -> float:
    return float(np.linalg.eigvalsh(M)[-1]) if len(M) <= 200 else _lanczos_largest(M)


def _moment_guess(operator: BoundedOperator) -> QuarticGuess:
    M = operator.second_moment()[0]
    return QuarticGuess(_largest(M) / operator.n, "moment", 0.0)


def _gram_guess(operator: BoundedOperator) -> QuarticGuess:
    """Minimise `t (1 + k / (1 - k d))` over k, where `t = lambda_max(K - k ww') / n`."""
    n, d = operator.n, operator.d
    K, w, _ = operator.gram()

    def value(k: float) -> float:
        return max(_largest(K - k * (w[:, None] * w)), 0.0) / n * (1 + k / (1 - k * d))

    best = _minimise(value, 0.0, (1 - 1e-3) / d)
    return QuarticGuess(best[1], "gram", best[0])


def _monomial_guess(operator: BoundedOperator) -> QuarticGuess:
    d = operator.d
    a, b = np.triu_indices(d)
    scale = np.where(a == b, 1.0, math.sqrt(0.5))  # to an orthonormal basis
    T = operator.monomial_gram()[0] * (scale[:, None] * scale / operator.n)
    trace = np.outer(a == b, a == b) * 1.0

    def value(c: float) -> float:
        return c + _largest(T - c * trace)

    best = _minimise(value, 0.0, _largest(T))
    return QuarticGuess(best[1], "monomials", best[0])


def _minimise(value, low: float, high: float) -> tuple[float, float]:
    """Return the minimizer and minimum of a unimodal function; the lower end is included."""
    found = scipy.optimize.minimize_scalar(
        value, bounds=(low, high), method="bounded", options={"xatol": 2e-3 * (high - low)}
    )
    ends = [(float(found.x), float(found.fun)), (low, value(low))]
    return min(ends, key=lambda pair: pair[1])
