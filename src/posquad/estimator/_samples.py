"""The samples that a fit uses: those of positive weight, with equal inputs merged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_ROWS = 2**22  # entries hashed at a time
_ORDERED_MOST = 2**22  # maximum size for which samples are copied in a fixed order


class WeightedSamples(NamedTuple):
    """Inputs, responses and weights; without weights, all samples count the same."""

    X: np.ndarray  # [n, d]
    y: np.ndarray  # [n]
    weights: np.ndarray | None = None  # [n], nonnegative
    unit: float = 1.0  # mass of a sample of weight 1

    def take(self, rows: np.ndarray) -> WeightedSamples:
        """Return the samples at these rows."""
        w = None if self.weights is None else self.weights[rows]
        return self._replace(X=self.X[rows], y=self.y[rows], weights=w)

    def counted(self) -> WeightedSamples:
        """Return the samples of positive weight."""
        if self.weights is None or (self.weights > 0).all():
            return self
        kept = self.take(self.weights > 0)
        return (
            WeightedSamples(kept.X, kept.y) if len(kept.y) and (kept.relative == 1).all() else kept
        )

    @property
    def mass(self) -> np.ndarray:
        """Weights `[n]` with mean 1 over the given samples; ones if there are no weights."""
        return np.ones(len(self.y)) if self.weights is None else self.weights * self.unit

    @property
    def relative(self) -> np.ndarray:
        """Weights `[n]` relative to the largest.

        The search uses these, because they do not depend on how often an input is repeated. If
        there are many answers, even rounding would change which one is found.
        """
        return np.ones(len(self.y)) if self.weights is None else self.weights / self.weights.max()


def weighted_samples(X: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> WeightedSamples:
    """Return all samples; the mass of those of positive weight has mean 1."""
    if weights is None or (weights == weights[0]).all():
        return WeightedSamples(X, y)
    shares = weights / weights.max()  # a sum of very large weights would overflow
    return WeightedSamples(X, y, shares, float(1 / shares[shares > 0].mean()))


def merged(samples: WeightedSamples) -> WeightedSamples:
    """Merge equal inputs; the mean of their responses gets the sum of their weights.

    The squared error changes by a constant, so the fit is the same. A weight of two then equals a
    repeated sample, also where samples are counted. Unless the data are large, the samples are put
    in a fixed order, so that the fit does not depend on the given order.
    """
    X, y = samples.X, samples.y
    _, first, group = np.unique(_row_hashes(X), return_index=True, return_inverse=True)
    if len(first) == len(X):
        return samples if X.size > _ORDERED_MOST else samples.take(first)
    if not np.array_equal(X[first][group], X):
        return samples  # different rows have the same hash
    given = np.ones(len(y)) if samples.weights is None else samples.weights
    weights = np.bincount(group, given)
    mean = (np.bincount(group, given * y) / weights).astype(y.dtype)
    return samples._replace(X=X[first], y=mean, weights=weights)


def _row_hashes(X: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of every row."""
    n, d = X.shape
    odd = np.random.default_rng(d).integers(2**62, size=d, dtype=np.uint64) * 2 + 1
    hashes = np.empty(n, dtype=np.uint64)
    step = max(1, _ROWS // d)
    for begin in range(0, n, step):
        part = np.ascontiguousarray(X[begin : begin + step], dtype=np.float64) + 0.0  # -0 becomes 0
        bits = part.view(np.uint64)
        hashes[begin : begin + step] = ((bits ^ (bits >> 29)) * odd).sum(axis=1, dtype=np.uint64)
    return hashes
