"""The samples that a fit uses: those of positive weight, in a fixed order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from posquad.recovery import equal_rows, row_hashes

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


def ordered(samples: WeightedSamples) -> WeightedSamples:
    """Put the samples in a fixed order, so that the fit does not depend on the given one.

    Large data stay as they are.
    """
    if samples.X.size > _ORDERED_MOST:
        return samples
    return samples.take(np.argsort(row_hashes(samples.X), kind="stable"))


def merged(samples: WeightedSamples) -> tuple[WeightedSamples, float]:
    """Merge equal inputs; the mean of their responses gets the sum of their weights.

    The squared error changes by a constant, which is returned, so the fit is the same.
    """
    found = equal_rows(samples.X)
    if found is None:
        return samples, 0.0
    first, group = found
    given = np.ones(len(samples.y)) if samples.weights is None else samples.weights
    weights = np.bincount(group, given)
    mean = np.bincount(group, given * samples.y) / weights
    within = float(samples.mass @ np.square(samples.y - mean[group]))
    unique = samples._replace(X=samples.X[first], y=mean.astype(samples.y.dtype), weights=weights)
    return unique, within
