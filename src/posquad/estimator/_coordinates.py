"""Coordinates in which the samples have covariance I, so that units and offsets do not matter."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from posquad.estimator._model import Terms

# Size of a deviation from the mean, in units of eps of the inputs, that is rounding. A choice: that
# of `posquad.recovery.streams.compressed`.
_RESOLVED = 450


class Coordinates(NamedTuple):
    """The map `t = T'(x / unit - origin)` to inputs of k dimensions."""

    unit: np.ndarray  # [d]  largest absolute value of each input; 1 if that is 0
    origin: np.ndarray  # [d]  mean of x / unit if there are linear terms; else zero
    T: np.ndarray  # [d, k]
    inverse: np.ndarray  # [k, d]  of T on the span of the samples
    unseen: np.ndarray  # [d - k, d]  orthonormal basis of the directions without samples

    def scaled(self, X: np.ndarray) -> np.ndarray:
        """Return `x / unit - origin` for the rows of X, `[n, d]`."""
        return X / self.unit - self.origin

    def enter(self, X: np.ndarray) -> np.ndarray:
        """Return the coordinates t of the rows of X, `[n, k]`."""
        return self.scaled(X) @ self.T


def coordinates(X: np.ndarray, mass: np.ndarray, terms: Terms) -> Coordinates:
    """Return coordinates in which the weighted samples `X[n, d]` have covariance I.

    With linear terms, the inputs are centred: that changes linear terms, not the quadratic form.
    """
    n, d = X.shape
    unit = np.abs(X).max(axis=0)
    unit = np.where(unit > 0, unit, 1.0)
    X = X / unit
    origin = mass @ X / mass.sum() if terms == "linear" else np.zeros(d)
    rows = (X - origin) * np.sqrt(mass)[:, None]
    _, s, right = np.linalg.svd(rows, full_matrices=n < d)
    # Centring leaves rounding errors of the size of the inputs, not of their deviations.
    largest = max(float(s[0]), float(np.abs(origin).max()) * np.sqrt(mass.sum()))
    units = max(n, d, _RESOLVED if terms == "linear" else 0)
    k = int((s > units * np.finfo(float).eps * largest).sum())
    scale, inside = s[:k, None] / np.sqrt(n), right[:k]
    return Coordinates(unit, origin, (inside / scale).T, inside * scale, right[k:])
