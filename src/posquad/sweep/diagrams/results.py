"""The committed results of the full runs of the three diagrams."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from posquad.core.errors import DomainError
from posquad.core.extras import import_extra
from posquad.report.panel import Panel
from posquad.sweep.declaration import DIAGRAMS, load_sweep
from posquad.sweep.table import Table, read_table

__all__ = ["Diagram", "diagram_results", "published_diagram", "results_file"]


class Diagram(NamedTuple):
    """The results of a full run, with the panels and sentences of its report."""

    table: Table
    panels: dict[str, Panel[Table]]  # by key
    findings: list[str]

    def figure(self, key: str) -> Any:
        """Draw a panel in a new figure of `matplotlib.pyplot`, and return the figure."""
        panel = self.panels[key]
        plt = import_extra("matplotlib.pyplot", "lab")
        figure, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
        panel.draw(axes, self.table)
        axes.set_title(panel.title)
        return figure


def results_file(name: str) -> Path:
    """Return the Parquet file with the results of the full run of a diagram.

    >>> results_file("recovery").name
    'recovery.parquet'
    """
    if name not in DIAGRAMS:
        raise DomainError("name", expected=f"one of {', '.join(DIAGRAMS)}", got=repr(name))
    return Path(__file__).with_name("results") / f"{name}.parquet"


def diagram_results(name: str) -> Table:
    """Return the results of the full run of a diagram: certifiability, ellipsoid or recovery.

    Columns are the parameters of a cell, its results, the seconds it took and the versions used.

    >>> int(diagram_results("recovery")["wrong"].sum())
    0
    """
    return read_table(results_file(name))


def published_diagram(name: str) -> Diagram:
    """Return the results of the full run of a diagram, ready to be shown.

    >>> list(published_diagram("ellipsoid").panels)
    ['ellipsoid-shares', 'ellipsoid-drift', 'ellipsoid-error']
    """
    table, sweep = diagram_results(name), load_sweep(name)
    assert sweep.panels is not None, "the sweeps of this package have panels"
    assert sweep.findings is not None, "and findings"
    panels = {panel.key: panel for panel in sweep.panels(table)}
    return Diagram(table, panels, sweep.findings(table))
