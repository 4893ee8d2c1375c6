"""What the panels of the diagrams share: curves of shares with Wilson intervals, and words."""

from __future__ import annotations

from typing import Any

from posquad.core.rates import wilson
from posquad.report.palette import draw_band, series
from posquad.sweep.crossing import Crossing
from posquad.sweep.table import Rates

__all__ = ["crossing_words", "draw_share", "verdict_words"]


def draw_share(axes: Any, rates: Rates, label: str, k: int, *, scale: float = 1.0) -> None:
    """Draw a share against the axis, with its 95% Wilson band, in the k-th style.

    >>> from matplotlib.figure import Figure
    >>> axes = Figure().subplots()
    >>> draw_share(axes, Rates(np.arange(2), np.array([0, 4]), np.array([4, 4])), "share", 0)
    >>> axes.get_legend_handles_labels()[1]
    ['share']
    """
    low, high = wilson(rates.hits, rates.trials)
    draw_band(axes, rates.x / scale, low, rates.rate, high, series(k), label)


def crossing_words(found: Crossing | None, digits: int = 4) -> str:
    """Return a crossing with its interval as text.

    >>> crossing_words(None), crossing_words(Crossing(0.25, 0.24, 0.26, -9.0, 100, True))
    ('no crossing', '0.25 (0.24 to 0.26)')
    """
    if found is None or not found.bracketed:
        return "no crossing"
    return f"{found.value:.{digits}g} ({found.low:.{digits}g} to {found.high:.{digits}g})"


def verdict_words(found: Crossing | None, predicted: float) -> str:
    """Say whether the interval of a crossing contains the prediction.

    >>> verdict_words(Crossing(0.25, 0.24, 0.26, -9.0, 100, True), 0.3)
    'below the prediction'
    """
    if found is None or not found.bracketed:
        return "not comparable"
    if found.low <= predicted <= found.high:
        return "agrees with the prediction"
    return "below the prediction" if found.high < predicted else "above the prediction"
