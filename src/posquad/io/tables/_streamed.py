"""Large tables whose inputs stay in the file: they are looked through once, and then streamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from posquad.core.errors import PosquadError
from posquad.io.tables._table import Report, Source, Table, TableError
from posquad.io.tables.choosing import Choice

if TYPE_CHECKING:
    from posquad.problems.rows import Rows


class Extremes(NamedTuple):
    """The least and the largest number of each column, and the rows that hold them."""

    low: np.ndarray  # [k]
    high: np.ndarray  # [k]
    low_row: np.ndarray  # [k]
    high_row: np.ndarray  # [k]


@dataclass(frozen=True)
class Scanned:
    """What one pass over a large table gives."""

    X: Rows
    columns: dict[str, np.ndarray]  # response and weights, `[n]`
    means: tuple[float, ...]  # of the inputs
    extremes: Extremes  # of the inputs


def scan(table: Table, choice: Choice, rows_of: Source, report: Report | None = None) -> Scanned:
    """Read response and weights, and the means and extremes of the inputs, in one pass.

    Every number must be finite: a table that stays in its file cannot be filled in or cut.
    `report` is called with the work at hand and the share of it that is done.
    """
    names = [*choice.features, *choice.others]
    d = len(choice.features)
    try:
        everything = rows_of(names, report)
        n = everything.n
        columns = {name: np.empty(n) for name in choice.others}
        total = np.zeros(d)
        low, high = np.full(d, np.inf), np.full(d, -np.inf)
        low_row, high_row = np.zeros(d, dtype=np.int64), np.zeros(d, dtype=np.int64)
        for rows, tensor in everything.blocks():
            block = tensor.numpy()
            _require_finite(table, names, rows.start, block)
            for k, name in enumerate(choice.others):
                columns[name][rows] = block[:, d + k]
            X = block[:, :d]
            total += X.sum(axis=0, dtype=np.float64)
            least, most = X.min(axis=0), X.max(axis=0)
            for better, value, row, found in (
                (least < low, least, low_row, X.argmin),
                (most > high, most, high_row, X.argmax),
            ):
                if better.any():
                    row[better] = rows.start + found(axis=0)[better]
                (low if value is least else high)[better] = value[better]
            if report is not None:
                report("looking through the table", rows.stop / n)
        X = rows_of(list(choice.features))
    except TableError:
        raise
    except PosquadError as problem:
        raise TableError(problem.argument, expected=problem.expected, got=problem.got) from None
    extremes = Extremes(low, high, low_row, high_row)
    return Scanned(X, columns, tuple(map(float, total / n)), extremes)


def _require_finite(table: Table, names: Sequence[str], start: int, block: np.ndarray) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(block.sum()):
            return
    bad = ~np.isfinite(block)
    if not bad.any():
        return
    row, column = (int(k) for k in np.argwhere(bad)[0])
    got = "a missing value" if np.isnan(block[row, column]) else "an infinity"
    where = f"{table.path}: row {start + row + 1}, column {names[column]!r}"
    expected = (
        "a finite number, because a table of this size stays in its file, where --missing does not "
        "apply: leave such rows out of the file or fill them in"
    )
    raise TableError(where, expected=expected, got=got)
