"""The report of a sweep: figures, and one page with the heat map and how to repeat it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from posquad.core.errors import DomainError, PosquadError, first_line
from posquad.core.extras import import_extra
from posquad.core.files import write_file
from posquad.report.figures import draw
from posquad.report.formulas import as_html, as_plain
from posquad.report.page import image, page
from posquad.sweep.declaration import Sweep, load_sweep
from posquad.sweep.heatmap import Layout, heat_map, layout_of
from posquad.sweep.state import sweep_status
from posquad.sweep.store import Store
from posquad.sweep.table import Table, read_table

__all__ = ["plot_sweep"]


def plot_sweep(folder: str | Path, sweep: Sweep | None = None) -> Path:
    """Write `report.html` and `figures/` into the folder of a sweep; return the path of the page.

    The sweep is loaded as in its last run, unless it is given.

    >>> plot_sweep("no-such-folder")
    Traceback (most recent call last):
    posquad.core.files.FileError: no-such-folder: expected the folder of a sweep, with a file sweep.sqlite; got no such file
    """  # noqa: E501
    path = Path(folder)
    with Store.read(path) as store:
        meta = store.meta()
    if sweep is None:
        if not meta.get("place"):
            expected = "the sweep itself, as it was not run from a file"
            raise DomainError("sweep", expected=expected, got="none")
        sweep = load_sweep(meta["place"])
    if (sweep.key, sweep.version) != (meta["sweep"], meta["version"]):
        expected = f"a store of the sweep {sweep.key!r}, version {sweep.version}"
        got = f"{meta['sweep']!r}, version {meta['version']}"
        raise DomainError(str(path), expected=expected, got=got)
    table = read_table(path)
    if not len(table):
        raise DomainError(str(path), expected="at least one finished cell", got="none")
    layout = layout_of(sweep, table)
    panels: list[tuple[Any, Any]] = [(panel, table) for panel in _made(sweep, "panels", table)]
    if layout is not None:
        panels.append((heat_map(layout), layout))
    figures = path / "figures"
    drawings = [(panel, draw(panel, shown, figures)) for panel, shown in panels]
    state = sweep_status(path)
    markup = import_extra("markupsafe", "lab").Markup
    text = page(
        "sweep_report.html.j2",
        styles=("report.css",),
        filters={"sentence": lambda text: markup(as_html(text)), "plain": as_plain},
        title=sweep.title or sweep.key,
        sweep=sweep,
        state=state,
        seconds=float(table["seconds"].sum()),
        hosts=table.values("host"),
        findings=_made(sweep, "findings", table),
        panels=[{"panel": p, "words": d.words, "image": image(d.svg)} for p, d in drawings],
        crossings=_crossings(layout),
        layout=layout,
    )
    write_file(path / "report.html", text.encode())
    return path / "report.html"


def _made(sweep: Sweep, name: str, table: Table) -> list[Any]:
    """Return what a function of the declaration makes of the results."""
    function = getattr(sweep, name)
    try:
        return list(function(table)) if function else []
    except PosquadError:
        raise
    except Exception as problem:  # the function is the user's
        where, got = f"{sweep.key}: {name}", f"{type(problem).__name__}: {first_line(problem)}"
        raise DomainError(where, expected=f"{name} made from the results", got=got) from problem


def _crossings(layout: Layout | None) -> list[dict[str, str]]:
    """Return the rows of the table of crossings."""
    if layout is None or not layout.is_rate:
        return []
    found = []
    for label, row in layout.rows():
        crossed = layout.crossing(row)
        found.append(
            {
                "line": label or "all",
                "value": f"{crossed.value:.4g}" if crossed else "none",
                "interval": f"{crossed.low:.4g} to {crossed.high:.4g}" if crossed else "none",
                "trials": str(int(row.rates(layout.axis, layout.measure).trials.sum())),
            }
        )
    return found
