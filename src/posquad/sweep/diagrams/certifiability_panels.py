"""Panels and sentences of the sweep `certifiability`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from posquad.geometry import dimension
from posquad.report.palette import REFERENCE
from posquad.report.panel import Panel
from posquad.sweep.diagrams.shares import crossing_words, draw_share, verdict_words
from posquad.sweep.table import Table
from posquad.sweep.thresholds import uniqueness_threshold

__all__ = ["findings", "panels"]


def _shapes(table: Table) -> Iterator[tuple[int, int, Table, float]]:
    """Yield d, r, the cells and the predicted number of samples of each shape."""
    for d in table.values("d"):
        for r in table.where(d=d).values("r"):
            yield d, r, table.where(d=d, r=r), uniqueness_threshold(r / d) * d * d


def findings(table: Table) -> list[str]:
    """Return what was found, from the numbers.

    >>> import numpy as np
    >>> columns = {"d": [10] * 4, "r": [2] * 4, "n": [20, 20, 40, 40], "proved": [0, 0, 1, 1]}
    >>> columns["trace"] = [0, 0, 1, 1]
    >>> print(findings(Table({name: np.array(c) for name, c in columns.items()}))[0][:52])
    d = 10, r = 2: half of the factors are proved unique
    """
    words, ratios = [], []
    for d, r, rows, predicted in _shapes(table):
        proved, trace = (rows.crossing("n", name) for name in ("proved", "trace"))
        ratio = ""
        if proved and proved.bracketed:
            ratios.append((d, proved.value / predicted, proved.low > predicted))
            ratio = f", so the ratio is {proved.value / predicted:.3f}"
        words.append(
            f"d = {d}, r = {r}: half of the factors are proved unique at n = "
            f"{crossing_words(proved)}, and proved to have the least trace at "
            f"{crossing_words(trace)}. Predicted: {predicted:.1f}{ratio}; uniqueness "
            f"{verdict_words(proved, predicted)}, least trace {verdict_words(trace, predicted)}."
        )
    if len(ratios) > 1:
        (d, first, _), (D, last, _) = ratios[0], ratios[-1]
        words.append(
            f"The crossing of uniqueness is {first:.3f} times the prediction at d = {d} and "
            f"{last:.3f} times at d = {D}; it lies above the prediction, with its whole interval, "
            f"for {sum(above for *_, above in ratios)} of {len(ratios)} shapes."
        )
    return words


def _draw_shares(axes: Any, table: Table) -> None:
    for k, (d, r, rows, _) in enumerate(_shapes(table)):
        draw_share(axes, rows.rates("n", "proved"), f"({d}, {r})", k, scale=dimension(d, r))
    axes.set(xlabel=r"$n/p$", ylabel="share proved unique")
    axes.legend(title="(d, r)")


def _draw_collapse(name: str, label: str, axes: Any, table: Table) -> None:
    """Draw the share with this result against n over the predicted number of samples."""
    for k, (d, r, rows, predicted) in enumerate(_shapes(table)):
        draw_share(axes, rows.rates("n", name), f"({d}, {r})", k, scale=predicted)
    axes.axvline(1.0, **REFERENCE)
    axes.set(xlabel=r"$n / (\alpha(r/d)\,d^2)$", ylabel=label)
    axes.legend(title="(d, r)")


def _describe(name: str, table: Table) -> str:
    parts = [
        f"{crossing_words(rows.crossing('n', name))} for ({d}, {r}), predicted {predicted:.1f}"
        for d, r, rows, predicted in _shapes(table)
    ]
    return f"Half at n = {'; '.join(parts)}."


def _describe_collapse(table: Table) -> str:
    parts = [
        f"{found.value / predicted:.3f} for ({d}, {r})"
        for d, r, rows, predicted in _shapes(table)
        if (found := rows.crossing("n", "proved")) is not None and found.bracketed
    ]
    return f"Half at {'; '.join(parts)} times the predicted number of samples." if parts else ""


_PANELS: tuple[Panel[Table], ...] = (
    Panel(
        "certifiability-shares",
        "Share proved unique",
        "Against samples per unknown, $p = dr - r(r-1)/2$; bands are 95% Wilson intervals.",
        draw=_draw_shares,
        describe=partial(_describe, "proved"),
    ),
    Panel(
        "certifiability-collapse",
        "Collapse against the prediction",
        "The same shares against $n$ over the predicted $\\alpha(r/d) d^2$.",
        draw=partial(_draw_collapse, "proved", "share proved unique"),
        describe=_describe_collapse,
    ),
    Panel(
        "certifiability-trace",
        "Share proved to have the least trace",
        "The transition that the prediction is about: no interpolant has a smaller trace.",
        draw=partial(_draw_collapse, "trace", "share of least trace"),
        describe=partial(_describe, "trace"),
    ),
)


def panels(table: Table) -> tuple[Panel[Table], ...]:
    """Return the panels of the report.

    >>> [panel.key for panel in panels(Table({}))][0]
    'certifiability-shares'
    """
    return _PANELS
