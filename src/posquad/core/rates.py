"""Confidence intervals of rates."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtri

__all__ = ["wilson"]


def wilson(successes: Any, trials: Any, level: float = 0.95) -> tuple[Any, Any]:
    """Return the two ends of the Wilson score interval for a rate.

    >>> [round(float(v), 3) for v in wilson(2, 16)]
    [0.035, 0.36]
    """
    z = float(ndtri(0.5 + level / 2))
    trials = np.asarray(trials)
    rate = np.asarray(successes) / trials
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * np.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials**2)) / (1 + z * z / trials)
    return centre - half, centre + half
