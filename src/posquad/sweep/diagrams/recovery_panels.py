"""Panels and sentences of the sweep `recovery`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from posquad.report.panel import Panel
from posquad.sweep.diagrams.shares import crossing_words, draw_share
from posquad.sweep.table import Table

__all__ = ["PANELS", "findings"]

_CURVES = {
    "identified": "determined locally",
    "found": "found by recover",
    "descent": "found by gradient descent",
    "trace": "found by minimum trace",
    "proved": "proved unique",
}


def _shapes(table: Table) -> Iterator[tuple[int, int, Table]]:
    for d in table.values("d"):
        for r in table.where(d=d).values("r"):
            yield d, r, table.where(d=d, r=r)


def findings(table: Table) -> list[str]:
    """Return what was found, from the numbers.

    >>> names = ("found", "claimed", "other", "descent", "trace", "proved")
    >>> columns = {"d": [10], "r": [1], "ratio": [1.5], **{name: [1] for name in names}}
    >>> findings(Table({name: np.array(column) for name, column in columns.items()}))[0]
    'No answer that recover called RECOVERED is wrong: 1 such answers in 1 problems.'
    """
    claimed = table.where(claimed=1)
    wrong = int((claimed["found"] == 0).sum())
    words = [
        f"{wrong or 'No'} answer{'s' if wrong > 1 else ''} that recover called RECOVERED "
        f"{'are' if wrong > 1 else 'is'} wrong: {len(claimed)} such answers in {len(table)} problems."
    ]
    for name in ("found", "descent", "trace", "proved"):
        parts = []
        for d, r, rows in _shapes(table):
            found = rows.crossing("ratio", name)
            share = _share_at_end(rows, name)
            crossed = crossing_words(found, 3) if found and found.bracketed else share
            parts.append(f"({d}, {r}): {crossed}")
        words.append(
            f"Half of the problems are {_CURVES[name]} at n/p = ... for (d, r) = {'; '.join(parts)}."
        )
    return [word.replace(" = ... for (d, r) = ", ", by (d, r): ") for word in words]


def _share_at_end(rows: Table, name: str) -> str:
    last = rows.values("ratio")[-1]
    return f"no crossing, {rows.where(ratio=last)[name].mean():.0%} at {last:g}"


def _draw(d: int, axes: Any, table: Table) -> None:
    for k, (name, label) in enumerate(_CURVES.items()):
        draw_share(axes, table.where(d=d).rates("ratio", name), label, k)
    axes.set(xlabel=r"$n/p$", ylabel="share of problems", ylim=(-0.03, 1.03))
    axes.legend(fontsize=7)


def _describe(d: int, table: Table) -> str:
    rows = table.where(d=d)
    if not len(rows):
        return ""
    parts = []
    for name, label in _CURVES.items():
        rates = rows.rates("ratio", name)
        first = rates.x[np.argmax(rates.rate >= 0.5)] if (rates.rate >= 0.5).any() else None
        parts.append(f"{label}: {'never half' if first is None else f'half from n/p = {first:g}'}")
    return "; ".join(parts) + "."


PANELS: tuple[Panel[Table], ...] = tuple(
    Panel(
        f"recovery-{d}",
        f"d = {d}",
        f"Shares of problems with d = {d}, all ranks together; bands are 95% Wilson intervals.",
        draw=partial(_draw, d),
        describe=partial(_describe, d),
    )
    for d in (10, 20, 40)
)
