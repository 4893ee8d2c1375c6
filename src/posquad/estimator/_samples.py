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
    weights: np.ndarray | None = None  # [n], nonnegative
    unit: float = 1.0  # mass of a weight of 1

    def take(self, rows: np.ndarray) -> Samples:
        w = None if self.weights is None else self.weights[rows]
        return self._replace(X=self.X[rows], y=self.y[rows], weights=w)

    def counted(self) -> Samples:
        """The samples of positive weight."""
        if self.weights is None or (self.weights > 0).all():
            return self
        kept = self.take(self.weights > 0)
        return Samples(kept.X, kept.y) if len(kept.y) and (kept.relative == 1).all() else kept

    @property
    def mass(self) -> np.ndarray:
        """Weights `[n]` whose mean is 1 over the samples given; ones where none were given."""
        return np.ones(len(self.y)) if self.weights is None else self.weights * self.unit

    @property
    def relative(self) -> np.ndarray:
        """Weights `[n]` in shares of the largest.

        A search works with these, as they do not depend on how often an input was written: where
        there are many answers, rounding decides which one is found.
        """
        return np.ones(len(self.y)) if self.weights is None else self.weights / self.weights.max()


def weighed(X: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> Samples:
    """All samples, also those without weight; the mass of the others has mean 1."""
    if weights is None or (weights == weights[0]).all():
        return Samples(X, y)
    shares = weights / weights.max()  # the sum of very large ones would overflow
    return Samples(X, y, shares, float(1 / shares[shares > 0].mean()))


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
    given = np.ones(len(y)) if samples.weights is None else samples.weights
    weights = np.bincount(group, given)
    mean = (np.bincount(group, given * y) / weights).astype(y.dtype)
    return samples._replace(X=X[first], y=mean, weights=weights)


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
