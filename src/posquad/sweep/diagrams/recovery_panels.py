"""Panels and sentences of the sweep `recovery`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from posquad.report.palette import legend_below
from posquad.report.panel import Panel
from posquad.sweep.diagrams.shares import crossing_words, draw_share
from posquad.sweep.table import Table

__all__ = ["findings", "panels"]

_CURVES = {
    "identified": "determined locally",
    "found": "found by recover",
    "descent": "found by descent",
    "close": "descent within 1%",
    "trace": "found by least trace",
    "proved": "proved unique",
}


_SOLVED = {
    "found": "recover finds",
    "descent": "gradient descent finds",
    "close": "gradient descent comes within 1% of",
    "trace": "minimum trace finds",
    "proved": "certify proves unique",
}


def _shapes(table: Table) -> Iterator[tuple[int, int, Table]]:
    for d in table.values("d"):
        for r in table.where(d=d).values("r"):
            yield d, r, table.where(d=d, r=r)


def findings(table: Table) -> list[str]:
    """Return what was found, from the numbers.

    >>> names = ("identified", "found", "claimed", "descent", "close", "trace", "proved", "trials")
    >>> columns = {"d": [10], "r": [1], "ratio": [1.5], "wrong": [0], **{n: [1] for n in names}}
    >>> findings(Table({name: np.array(column) for name, column in columns.items()}))[0]
    'Of 1 problems, recover called 1 RECOVERED; none of these answers is wrong.'
    """
    total, claimed, wrong = (int(table[name].sum()) for name in ("trials", "claimed", "wrong"))
    verdict = f"{wrong} of these answers are wrong" if wrong else "none of these answers is wrong"
    words = [f"Of {total} problems, recover called {claimed} RECOVERED; {verdict}."]
    counts = ", ".join(f"{verb} {int(table[name].sum())}" for name, verb in _SOLVED.items())
    words.append(f"{int(table['identified'].sum())} are proved to be determined locally; {counts}.")
    for name, verb in _SOLVED.items():
        parts = [f"{_half(rows, name)} for ({d}, {r})" for d, r, rows in _shapes(table)]
        words.append(f"n/p from which {verb} half of the problems, by (d, r): {'; '.join(parts)}.")
    return words


def _half(rows: Table, name: str) -> str:
    found = rows.crossing("ratio", name)
    if found is not None and found.bracketed:
        return crossing_words(found, 3)
    rates = rows.rates("ratio", name)
    ends = (f"{rates.rate[k]:.0%} at {rates.x[k]:g}" for k in (0, -1))
    return f"no clear crossing ({', '.join(ends)})"


def _draw(d: int, axes: Any, table: Table) -> None:
    for k, (name, label) in enumerate(_CURVES.items()):
        draw_share(axes, table.where(d=d).rates("ratio", name), label, k)
    axes.set(xlabel=r"$n/p$", ylabel="share of problems", ylim=(-0.03, 1.03))
    legend_below(axes, 2)


def _describe(d: int, table: Table) -> str:
    rows = table.where(d=d)
    parts = []
    for name, label in _CURVES.items():
        rates = rows.rates("ratio", name)
        first = rates.x[np.argmax(rates.rate >= 0.5)] if (rates.rate >= 0.5).any() else None
        parts.append(f"{label}: {'never half' if first is None else f'half from n/p = {first:g}'}")
    return "; ".join(parts) + "."


def panels(table: Table) -> tuple[Panel[Table], ...]:
    """Return the panels of the report, one for each d.

    >>> [panel.key for panel in panels(Table({"d": np.array([10, 20])}))]
    ['recovery-10', 'recovery-20']
    """
    return tuple(
        Panel(
            f"recovery-{d}",
            f"Problems with d = {d}",
            f"Shares of problems with d = {d}, all ranks together; descent is gradient descent, "
            "bands are 95% Wilson intervals.",
            draw=partial(_draw, d),
            describe=partial(_describe, d),
        )
        for d in table.values("d")
    )
