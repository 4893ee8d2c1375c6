"""Least squares over a quadratic form and other terms by SciPy, for the tests of the estimator."""

from __future__ import annotations

import numpy as np
from scipy.optimize import least_squares


def jacobian(X, U, *, linear=False, intercept=False):
    """Derivative of the predictions in all entries of U, in b and in c."""
    J = 2 * (X[:, :, None] * (X @ U)[:, None, :]).reshape(len(X), -1)
    others = [X] * linear + [np.ones(len(X))] * intercept
    return np.column_stack([J, *others])


def oracle(X, y, U, *, b=None, c=None, weights=None):
    """The least-squares Q, b and c from a good start; terms that are None are left out."""
    d, r = U.shape
    root = np.ones(len(y)) if weights is None else np.sqrt(weights)
    terms = {"linear": b is not None, "intercept": c is not None}
    others = jacobian(X, U, **terms)[:, d * r :]

    def residual(v):
        f = ((X @ v[: d * r].reshape(d, r)) ** 2).sum(axis=1)
        return root * (f + others @ v[d * r :] - y)

    def slope(v):
        return root[:, None] * jacobian(X, v[: d * r].reshape(d, r), **terms)

    v = np.concatenate([U.ravel(), [] if b is None else b, [] if c is None else [c]])
    v = least_squares(residual, v, slope, xtol=1e-15, ftol=1e-15, gtol=1e-15).x
    for _ in range(30):  # to the last digits, which the sum of squares does not show
        v = v - np.linalg.lstsq(slope(v), residual(v))[0]
    V = v[: d * r].reshape(d, r)
    slopes = np.zeros(d) if b is None else v[d * r : d * r + d]
    return V @ V.T, slopes, 0.0 if c is None else v[-1]
