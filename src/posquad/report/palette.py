"""Colours, markers and lines of the figures: told apart by colour-blind readers and in print."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["COLOURS", "DARK", "INK", "MARKERS", "RULE", "legend_below", "mark_values", "series"]

# Okabe and Ito's palette. Every colour is unique in the file, because the report's SVG images
# replace each one by a variable that a dark page sets to the partner in DARK.
INK, RULE = "#1b1c1e", "#c9ccd1"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9")
DARK = {
    INK: "#e8eaed",
    RULE: "#4a4e57",
    "#0072b2": "#6cb8f0",
    "#d55e00": "#ff9a57",
    "#009e73": "#3fd0a4",
    "#cc79a7": "#f0a6cd",
    "#8a6d00": "#e3c44d",
    "#56b4e9": "#a9dcff",
}
MARKERS = ("o", "s", "^", "D", "v", "P")
_LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))


def series(position: int, *, marked: bool = True) -> dict[str, Any]:
    """Keywords for the line of so many-th series: colour, dash and marker change together.

    >>> series(0)["color"]
    '#0072b2'
    """
    style: dict[str, Any] = {
        "color": COLOURS[position % len(COLOURS)],
        "linestyle": _LINES[position % len(_LINES)],
        "linewidth": 1.6,
    }
    if marked:
        style |= {"marker": MARKERS[position % len(MARKERS)], "markersize": 4.5}
    return style


def mark_values(axis: Any, values: Iterable[float]) -> None:
    """Put the ticks of an axis (`axes.xaxis`) at these values, written as plain numbers.

    >>> from matplotlib.figure import Figure
    >>> axes = Figure().subplots()
    >>> mark_values(axes.xaxis, [0.25, 1.0])
    >>> [label.get_text() for label in axes.get_xticklabels()]
    ['0.25', '1']
    """
    ticks = [float(value) for value in values]
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def legend_below(axes: Any, columns: int) -> None:
    """A legend under the axes, where it hides nothing.

    >>> from matplotlib.figure import Figure
    >>> axes = Figure().subplots()
    >>> line = axes.plot([0, 1], label="a line")
    >>> legend_below(axes, 1)
    >>> axes.get_legend().get_texts()[0].get_text()
    'a line'
    """
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=columns)
