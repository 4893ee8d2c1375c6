"""Where a success rate crosses a level: a logistic fit with a bootstrap interval.

The rate at x is modelled as `1 / (1 + exp(-(a + b x)))`. The fit maximises the likelihood times
Jeffreys' prior (Firth 1993, Biometrika 80), so it exists also if successes and failures are
separated. The crossing is `(logit(target) - a) / b`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, logit

from posquad.core.errors import DomainError, ShapeError
from posquad.core.ranges import tiny
from posquad.core.rates import wilson

__all__ = ["Crossing", "crossing"]

_NEWTON = 60  # most Newton steps of a fit
_LARGEST_STEP = 4.0  # in units of the logit, so that the first steps do not overshoot
_RESAMPLES = 500


@dataclass(frozen=True)
class Crossing:
    """The crossing of a rate, with the ends of its 95% interval."""

    value: float
    low: float
    high: float
    slope: float  # of the logit; its sign says whether the rate rises
    trials: int
    bracketed: bool  # whether Wilson intervals lie below the target somewhere and above elsewhere

    @property
    def width(self) -> float:
        """Width of the interval."""
        return self.high - self.low

    def rate(self, x: Any, target: float = 0.5) -> np.ndarray:
        """Return the fitted rate at x."""
        return expit(logit(target) + self.slope * (np.asarray(x, dtype=float) - self.value))


def crossing(
    x: Any, successes: Any, trials: Any, *, target: float = 0.5, level: float = 0.95, seed: int = 0
) -> Crossing:
    """Return where the success rate crosses `target`, with a bootstrap interval.

    The bootstrap draws new successes from the fitted rates. The interval lies within the range of
    x, and is this whole range if the data say nothing.

    Args:
        x: values of the axis, `[m]`.
        successes, trials: counts at each value, `[m]`.
        target, level, seed: level to cross, level of the interval, seed of the bootstrap.

    >>> found = crossing([1, 2, 3, 4], [0, 2, 9, 10], [10, 10, 10, 10])
    >>> round(found.value, 2), found.low < found.value < found.high, found.bracketed
    (2.4, True, True)
    """
    points, hits, counts = (np.asarray(v, dtype=float) for v in (x, successes, trials))
    if points.ndim != 1 or points.shape != hits.shape or points.shape != counts.shape:
        got = f"shapes {points.shape}, {hits.shape}, {counts.shape}"
        raise ShapeError("x, successes, trials", expected="three vectors of one length", got=got)
    for name, value in {"target": target, "level": level}.items():
        if not 0 < value < 1:
            raise DomainError(name, expected="a rate between 0 and 1", got=str(value))
    possible = np.isfinite(points) & (hits >= 0) & (hits <= counts)
    if not possible.all():
        k = int(np.argmin(possible))
        expected = "finite values, with no more successes than trials at each"
        got = f"{hits[k]:g} successes of {counts[k]:g} at {points[k]:g}"
        raise DomainError("x, successes, trials", expected=expected, got=got)
    if len(np.unique(points)) < 2 or not bool((counts > 0).all()):
        got = f"{len(np.unique(points))} values, {int(counts.min(initial=0))} trials at the least"
        raise DomainError("x", expected="two values or more, with trials at each", got=got)
    low, high = points.min(), points.max()
    centre, scale = (low + high) / 2, (high - low) / 2
    t = (points - centre) / scale
    a, b = _fit(t, hits[None], counts)
    rates = expit(a[0] + b[0] * t)
    drawn = np.random.default_rng(seed).binomial(
        counts.astype(int), rates, size=(_RESAMPLES, len(t))
    )
    intercepts, slopes = _fit(t, drawn.astype(float), counts)
    values = np.clip(_cross(intercepts, slopes, target), -1, 1)
    # A resample whose rate moves the other way crosses nowhere: it counts half to either end.
    wrong = np.flatnonzero(np.sign(slopes) != np.sign(b[0]))
    values[wrong] = np.where(np.arange(len(wrong)) % 2, 1.0, -1.0)
    ends = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    value = float(np.clip(_cross(a, b, target)[0], -1, 1))
    return Crossing(
        value=float(centre + scale * value),
        low=float(centre + scale * min(ends[0], value)),
        high=float(centre + scale * max(ends[1], value)),
        slope=float(b[0] / scale),
        trials=int(counts.sum()),
        bracketed=_bracketed(hits, counts, target),
    )


def _bracketed(hits: np.ndarray, counts: np.ndarray, target: float) -> bool:
    """Whether the rate is significantly below the target at one value and above at another."""
    low, high = wilson(hits, counts)
    return bool((high < target).any() and (low > target).any())


def _cross(a: np.ndarray, b: np.ndarray, target: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        value = (logit(target) - a) / b
    return np.where(np.isfinite(value), value, 0.0)


def _fit(t: np.ndarray, hits: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit `logit p = a + b t` to many samples of successes `[B, m]` at once."""
    share = (hits.sum(-1) + 0.5) / (counts.sum() + 1)
    a, b = logit(share), np.zeros(len(hits))
    for _ in range(_NEWTON):
        p = expit(a[:, None] + b[:, None] * t)
        w = counts * p * (1 - p)  # [B, m]
        i0, i1, i2 = w.sum(-1), (w * t).sum(-1), (w * t * t).sum(-1)
        determinant = np.maximum(i0 * i2 - i1 * i1, np.maximum(1e-12 * i0 * i2, tiny()))
        # Leverages of the weighted design, which Jeffreys' prior adds to the score.
        h = w * (i2[:, None] - 2 * i1[:, None] * t + i0[:, None] * t * t) / determinant[:, None]
        score = hits - counts * p + h * (0.5 - p)
        g0, g1 = score.sum(-1), (score * t).sum(-1)
        da = (i2 * g0 - i1 * g1) / determinant
        db = (i0 * g1 - i1 * g0) / determinant
        shrink = _LARGEST_STEP / np.maximum(np.abs(da) + np.abs(db), _LARGEST_STEP)
        a, b = a + shrink * da, b + shrink * db
        if float(np.max(np.abs(da) + np.abs(db), initial=0.0)) < 1e-10:
            break
    return a, b
