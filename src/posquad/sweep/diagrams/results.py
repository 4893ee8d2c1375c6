"""The committed results of the full runs of the three diagrams."""

from __future__ import annotations

from pathlib import Path

from posquad.core.errors import DomainError
from posquad.sweep.declaration import DIAGRAMS
from posquad.sweep.table import Table, read_table

__all__ = ["diagram_results", "results_file"]


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
