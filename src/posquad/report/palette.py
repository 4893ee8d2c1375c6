"""Colours, markers and lines of the figures, chosen for colour-blind readers and for print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["COLOURS", "DARK", "INK", "MARKERS", "REFERENCE", "RULE", "draw_band", "draw_published",
           "draw_series", "legend_below", "mark_values", "series"]  # fmt: skip

# Okabe and Ito's palette. The report's SVG images replace each colour by a variable, which a dark
# page sets to the value in DARK; so each colour must be used for one purpose only.
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
REFERENCE = {"color": INK, "lw": 1, "ls": ":"}  # style of reference lines
_LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))


def series(k: int, *, marked: bool = True) -> dict[str, Any]:
    """Return the plot style of the k-th series, with its own colour, dash pattern and marker.

    >>> series(0)["color"]
    '#0072b2'
    """
    style: dict[str, Any] = {
        "color": COLOURS[k % len(COLOURS)],
        "linestyle": _LINES[k % len(_LINES)],
        "linewidth": 1.6,
    }
    if marked:
        style |= {"marker": MARKERS[k % len(MARKERS)], "markersize": 4.5}
    return style


def draw_series(axes: Any, x: Any, lines: Mapping[str, Any]) -> None:
    """Draw one series per entry of `lines`, which maps labels to values.

    >>> from matplotlib.figure import Figure
    >>> axes = Figure().subplots()
    >>> draw_series(axes, [0, 1], {"first": [0, 1], "second": [1, 0]})
    >>> [line.get_label() for line in axes.lines]
    ['first', 'second']
    """
    for k, (label, values) in enumerate(lines.items()):
        axes.plot(x, values, **series(k), label=label)


def draw_band(
    axes: Any, x: Any, low: Any, middle: Any, high: Any, style: Any, line: str, band: str = ""
) -> None:
    """Draw a line in a band from `low` to `high`, labelled `line` and `band`.

    >>> from matplotlib.figure import Figure
    >>> axes = Figure().subplots()
    >>> draw_band(axes, [0, 1], [0, 0], [1, 1], [2, 2], series(0), "median", "all")
    >>> axes.get_legend_handles_labels()[1]
    ['all', 'median']
    """
    axes.fill_between(x, low, high, color=style["color"], alpha=0.2, lw=0, label=band)
    axes.plot(x, middle, **style, label=line)


def draw_published(
    axes: Any, x: Any, y: Any, marker: str = "o", label: str = "published (hollow)"
) -> None:
    """Draw published values as hollow markers, around what was measured.

    >>> from matplotlib.figure import Figure
    >>> axes = Figure().subplots()
    >>> draw_published(axes, [0, 1], [1, 2])
    >>> axes.lines[0].get_markerfacecolor(), axes.lines[0].get_label()
    ('none', 'published (hollow)')
    """
    axes.plot(x, y, ls="", marker=marker, ms=9, mfc="none", mec=INK, mew=1.1, zorder=5, label=label)


def mark_values(axis: Any, values: Iterable[float]) -> None:
    """Set the ticks of an axis (such as `axes.xaxis`) to these values, as plain numbers.

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
    """Place the legend below the axes, where it covers no data.

    >>> from matplotlib.figure import Figure
    >>> axes = Figure().subplots()
    >>> line = axes.plot([0, 1], label="a line")
    >>> legend_below(axes, 1)
    >>> axes.get_legend().get_texts()[0].get_text()
    'a line'
    """
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns)
