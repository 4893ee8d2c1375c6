"""The results of a sweep as columns: reading, selecting, rates, crossings, export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from posquad.core.errors import DomainError
from posquad.core.extras import import_extra
from posquad.core.files import FileError
from posquad.io.tables.writing import write_columns
from posquad.sweep.crossing import Crossing, crossing
from posquad.sweep.grid import cell_text
from posquad.sweep.store import Store

__all__ = ["TRIALS", "Rates", "Table", "export", "read_table"]

TRIALS = "trials"
"""Name of the result that says how many trials a cell made, if it made several."""

_FORMATS = (".parquet", ".csv")


@dataclass(frozen=True)
class Rates:
    """Successes of trials at the values of an axis."""

    x: np.ndarray  # [m]  increasing
    hits: np.ndarray  # [m]
    trials: np.ndarray  # [m]

    @property
    def rate(self) -> np.ndarray:
        """Share of successes, `[m]`."""
        return self.hits / self.trials


@dataclass(frozen=True, eq=False)
class Table:
    """Finished cells as columns `[cells]`; failed cells are not among them."""

    columns: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            expected = f"one of {', '.join(self.columns)}"
            raise DomainError("column", expected=expected, got=repr(name))
        return self.columns[name]

    def where(self, **values: Any) -> Table:
        """Return the cells with these values."""
        keep = np.ones(len(self), dtype=bool)
        for name, value in values.items():
            keep &= self[name] == value
        return Table({name: column[keep] for name, column in self.columns.items()})

    def values(self, name: str) -> list[Any]:
        """Return the different values of a column, sorted."""
        return np.unique(self[name]).tolist()

    def rates(self, axis: str, measure: str) -> Rates:
        """Return the successes at each value of a parameter.

        A result is 1 for a success and 0 for a failure, or the number of successes of a cell that
        made several trials, if there is a result `trials` with their number.
        """
        x, place = np.unique(self[axis], return_inverse=True)
        hits = np.bincount(place, weights=self[measure].astype(float), minlength=len(x))
        made = self.columns.get(TRIALS)
        weights = None if made is None else made.astype(float)
        return Rates(x, hits, np.bincount(place, weights=weights, minlength=len(x)))

    def crossing(self, axis: str, measure: str, *, target: float = 0.5) -> Crossing | None:
        """Return where the rate crosses the target; None with fewer than two values."""
        found = self.rates(axis, measure)
        if len(found.x) < 2:
            return None
        return crossing(found.x, found.hits, found.trials, target=target)


def read_table(source: str | Path) -> Table:
    """Read the finished cells of the folder of a sweep, or of a Parquet file made by `export`.

    >>> from tempfile import TemporaryDirectory
    >>> from posquad.sweep import Sweep, product, run_sweep
    >>> squares = Sweep("squares", lambda p, seed: {"y": p["x"] ** 2}, product(x=range(3)))
    >>> with TemporaryDirectory() as folder:
    ...     _ = run_sweep(squares, folder, workers=0)
    ...     read_table(folder)["y"]
    array([0, 1, 4])
    """
    path = Path(source)
    if path.suffix == ".parquet":
        return _from_parquet(path)
    with Store.read(path) as store:
        rows = sorted(store.rows("done"), key=lambda row: _order(row.parameters))
    about = {  # the names are RESERVED
        "key": [row.key for row in rows],
        "seed": [row.seed for row in rows],
        "seconds": [row.seconds for row in rows],
        "finished": [row.finished for row in rows],
        "host": [row.host for row in rows],
        "versions": [cell_text(row.versions) for row in rows],
    }
    columns: dict[str, list[Any]] = {}
    if rows:
        columns = {name: [row.parameters[name] for row in rows] for name in rows[0].parameters}
        results = [row.result or {} for row in rows]
        for name in results[0]:
            column = name if name not in columns else f"result_{name}"
            columns[column] = [result[name] for result in results]
    return Table({name: np.array(column) for name, column in {**columns, **about}.items()})


def export(folder: str | Path, to: str | Path) -> int:
    """Write the finished cells of a folder to a Parquet or CSV file; return their number.

    >>> export("no-such-folder", "results.txt")
    Traceback (most recent call last):
    posquad.core.errors.DomainError: results.txt: expected a file that ends in .parquet or .csv; got .txt
    """  # noqa: E501
    path = Path(to)
    if path.suffix.lower() not in _FORMATS:
        expected = "a file that ends in .parquet or .csv"
        raise DomainError(str(to), expected=expected, got=path.suffix or "no suffix")
    table = read_table(folder)
    write_columns(path, table.columns)
    return len(table)


def _from_parquet(path: Path) -> Table:
    parquet = import_extra("pyarrow.parquet", "lab")
    if not path.is_file():
        raise FileError(str(path), expected="a Parquet file of results", got="no such file")
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as problem:
        expected = "a Parquet file of results"
        raise FileError(str(path), expected=expected, got=str(problem).split("\n")[0]) from None
    return Table({n: table.column(n).to_numpy(zero_copy_only=False) for n in table.column_names})


def _order(parameters: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a sort key: numbers by value, words by letters."""
    return tuple(
        (isinstance(value, str), str(value) if isinstance(value, str) else float(value))
        for _, value in sorted(parameters.items())
    )
