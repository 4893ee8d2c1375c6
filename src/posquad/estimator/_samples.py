"""The samples that a fit works on: those that count, each input once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_ROWS = 2**22  # entries hashed at a time
_ORDERED_MOST = 2**22  # entries up to which a copy in another order costs nothing worth saving


class Samples(NamedTuple):
    """Inputs, responses and weights; without weights all count the same."""

    X: np.ndarray  # [n, d]
    y: np.ndarray  # [n]
    weights: np.ndarray | None  # [n], positive

    def take(self, rows: np.ndarray) -> Samples:
        w = None if self.weights is None else self.weights[rows]
        return Samples(self.X[rows], self.y[rows], w)

    @property
    def mass(self) -> np.ndarray:
        """Weights `[n]`, ones where none were given."""
        return np.ones(len(self.y)) if self.weights is None else self.weights


def counted(X: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> Samples:
    """The samples of positive weight, with weights of mean 1."""
    if weights is None or (weights == weights[0]).all():
        return Samples(X, y, None)
    rows = weights > 0
    kept = Samples(X, y, weights) if rows.all() else Samples(X[rows], y[rows], weights[rows])
    mean = kept.mass.mean()
    return Samples(kept.X, kept.y, None if (kept.weights == mean).all() else kept.mass / mean)


def merged(samples: Samples) -> Samples:
    """Equal inputs as one, with the mean of their responses and the sum of their weights.

    The squared error changes by a constant, so the fit is the same; and a weight of two is the
    same as writing a sample twice, also for what counts samples. Unless the data are large, the
    samples come in an order of their own, so that a fit does not depend on the order given.
    """
    X, y = samples.X, samples.y
    _, first, group = np.unique(_row_hashes(X), return_index=True, return_inverse=True)
    if len(first) == len(X):
        return samples if X.size > _ORDERED_MOST else samples.take(first)
    if not np.array_equal(X[first][group], X):
        return samples  # rows that differ share a hash
    mass = np.bincount(group, samples.mass)
    mean = (np.bincount(group, samples.mass * y) / mass).astype(y.dtype)
    return Samples(X[first], mean, None if (mass == 1).all() else mass)


def _row_hashes(X: np.ndarray) -> np.ndarray:
    """A 64-bit number a row, equal for equal rows whatever their position."""
    n, d = X.shape
    odd = np.random.default_rng(d).integers(2**62, size=d, dtype=np.uint64) * 2 + 1
    hashes = np.empty(n, dtype=np.uint64)
    step = max(1, _ROWS // d)
    for begin in range(0, n, step):
        part = np.ascontiguousarray(X[begin : begin + step], dtype=np.float64) + 0.0  # -0 is 0
        bits = part.view(np.uint64)
        hashes[begin : begin + step] = ((bits ^ (bits >> 29)) * odd).sum(axis=1, dtype=np.uint64)
    return hashes
