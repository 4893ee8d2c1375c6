"""The heat map of a sweep: a rate over the axis, one row per line, with the crossing drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from posquad.report.palette import COLOURS, INK
from posquad.report.panel import Panel
from posquad.sweep.crossing import Crossing
from posquad.sweep.declaration import Sweep
from posquad.sweep.grid import RESERVED
from posquad.sweep.table import TRIALS, Table
from posquad.sweep.transitions import TRIAL

__all__ = ["Layout", "heat_map", "layout_of"]

_MOST_ROWS = 40


@dataclass(frozen=True)
class Layout:
    """What a heat map shows: results along an axis, one row per line."""

    table: Table
    axis: str
    measure: str
    others: tuple[str, ...]  # parameters that tell the rows apart
    target: float
    is_rate: bool  # whether the results are successes and failures

    def rows(self) -> Iterator[tuple[str, Table]]:
        """Yield the label and the cells of each row."""
        columns = [self.table[name].tolist() for name in self.others]
        lines = set(zip(*columns, strict=True)) if columns else {()}
        for line in sorted(lines, key=_sortable)[:_MOST_ROWS]:
            chosen = dict(zip(self.others, line, strict=True))
            label = ", ".join(_shown(name, value) for name, value in chosen.items())
            yield label, self.table.where(**chosen)

    def crossing(self, row: Table) -> Crossing | None:
        """Return the crossing of a row; None if the rate does not cross the target in it."""
        found = row.crossing(self.axis, self.measure, target=self.target) if self.is_rate else None
        return found if found is not None and found.bracketed else None


def layout_of(sweep: Sweep, table: Table) -> Layout | None:
    """Choose the axis, the measure and the rows, as declared or the first that can be drawn.

    >>> from posquad.sweep import product
    >>> sweep = Sweep("mine", print, product(d=[10], n=[1, 2], trial=[0]))
    >>> columns = {"d": [10, 10], "n": [1, 2], "trial": [0, 0], "found": [0, 1]}
    >>> layout = layout_of(sweep, Table({name: np.array(c) for name, c in columns.items()}))
    >>> layout.axis, layout.measure, layout.others
    ('n', 'found', ('d',))
    """
    names = [name for name in sweep.grid.names if name in table.columns and name != TRIAL]
    numeric = [n for n in names if table[n].dtype.kind in "if" and len(table.values(n)) > 1]
    results = [n for n in table.columns if n not in (*sweep.grid.names, *RESERVED)]
    if not len(table) or not results or not (sweep.axis or numeric):
        return None
    axis, measure = sweep.axis or numeric[0], sweep.measure or results[0]
    others = [name for name in names if name != axis]
    if sweep.by in others:  # the rows of one value of `by` lie together
        others.remove(sweep.by)
        others.append(sweep.by)
    most = table.columns.get(TRIALS, 1)  # successes of a cell
    is_rate = bool(np.isin(table[measure], (0, 1)).all()) or (
        TRIALS in table.columns and bool(((table[measure] >= 0) & (table[measure] <= most)).all())
    )
    return Layout(table, axis, measure, tuple(others), sweep.target, is_rate)


def heat_map(layout: Layout) -> Panel[Layout]:
    """Return the panel of the heat map.

    >>> table = Table({"n": np.array([1, 2]), "found": np.array([0, 1])})
    >>> heat_map(Layout(table, "n", "found", (), 0.5, True)).key
    'heat-map'
    """
    caption = f"Each row shows `{layout.measure}` along `{layout.axis}`."
    if layout.is_rate:
        caption += f" Marks show where the rate crosses {layout.target:g}, with 95% intervals."
    return Panel("heat-map", "Heat map", caption, draw=_draw, describe=_describe)


def _draw(axes: Any, layout: Layout) -> None:
    rows = list(layout.rows())
    means = [_means(layout, row) for _, row in rows]
    low = 0.0 if layout.is_rate else min(float(values.min()) for _, values in means)
    high = 1.0 if layout.is_rate else max(float(values.max()) for _, values in means)
    mesh = None
    for k, ((_, row), (x, values)) in enumerate(zip(rows, means, strict=True)):
        mesh = axes.pcolormesh(
            _edges(x), [k - 0.5, k + 0.5], values[None], vmin=low, vmax=high, cmap="cividis"
        )
        found = layout.crossing(row)
        if found is not None:
            error = [[found.value - found.low], [found.high - found.value]]
            axes.errorbar(
                found.value, k, xerr=error, marker="o", ms=4, color=COLOURS[1], mec=INK, mew=0.6,
                ecolor=COLOURS[1], capsize=3, lw=1.4,
            )  # fmt: skip
    axes.grid(visible=False)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=7)
    axes.set_xlabel(layout.axis)
    axes.figure.colorbar(mesh, ax=axes, label=layout.measure)


def _describe(layout: Layout) -> str:
    words = []
    for label, row in layout.rows():
        x, values = _means(layout, row)
        name = label or f"all {len(row)} cells"
        found = layout.crossing(row)
        if found is not None:
            words.append(
                f"{name}: {layout.target:g} at {found.value:.4g} "
                f"(from {found.low:.4g} to {found.high:.4g}, {found.trials} trials)"
            )
        else:
            words.append(
                f"{name}: from {values[0]:.3g} at {x[0]:.4g} to {values[-1]:.3g} at {x[-1]:.4g}"
            )
    return "; ".join(words) + "."


def _means(layout: Layout, row: Table) -> tuple[np.ndarray, np.ndarray]:
    found = row.rates(layout.axis, layout.measure)
    return found.x, found.rate


def _edges(x: np.ndarray) -> np.ndarray:
    """Return the edges of rectangles around the values."""
    if len(x) == 1:
        return np.array([x[0] - 0.5, x[0] + 0.5])
    middles = (x[1:] + x[:-1]) / 2
    return np.concatenate([[2 * x[0] - middles[0]], middles, [2 * x[-1] - middles[-1]]])


def _shown(name: str, value: Any) -> str:
    return str(value) if isinstance(value, str) else f"{name} = {value:g}"


def _sortable(line: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple((isinstance(v, str), v) for v in line)
