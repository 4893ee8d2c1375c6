"""Large tables whose inputs stay in the file: they are looked through once, and then streamed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

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


class Share(Protocol):
    """How several processes read a table together (`posquad.cli.processes`)."""

    def after_the_first(self, make: Callable[[], Rows]) -> Rows:
        """Call a function in the first process, and then in the others."""
        ...

    def shared(self, source: Any) -> tuple[Rows, slice]:
        """Return a source with the rows that this process reads, and which rows these are."""
        ...


def scan(
    table: Table,
    choice: Choice,
    rows_of: Source,
    report: Report | None = None,
    share: Share | None = None,
) -> Scanned:
    """Read response and weights, and the means and extremes of the inputs, in one pass.

    Every number must be finite: a table that stays in its file cannot be filled in or cut. Each of
    several processes reads its part, and all of them return the same. `report` is called with the
    work at hand and the share of it that is done.
    """
    import torch  # when it is needed

    from posquad.problems.rows.group import GroupError

    names = [*choice.features, *choice.others]
    try:
        if share is None:
            everything = rows_of(names, report)
            own, place = everything, slice(0, everything.n)
        else:
            everything = share.after_the_first(lambda: rows_of(names, report))
            own, place = share.shared(everything)
        with own.together():
            part, problem = None, None
            try:
                part = _scan_part(table, choice, own, place.start, report)
            except PosquadError as wrong:
                problem = wrong
            own.check_same(problem)
            assert part is not None, "a problem is raised"
            columns = {
                name: own.collect(torch.from_numpy(column)).numpy()
                for name, column in part.columns.items()
            }
            parts = own.all_gather_object(part._replace(columns={}))
        X = rows_of(list(choice.features))
    except (TableError, GroupError):
        raise
    except PosquadError as problem:
        raise TableError(problem.argument, expected=problem.expected, got=problem.got) from None
    extremes = reduce(_joined, (each.extremes for each in parts))
    sums = np.concatenate([each.sums for each in parts])
    means = tuple(math.fsum(column) / own.n for column in sums.T)  # exact, whoever reads what
    return Scanned(X, columns, means, extremes)


class _Part(NamedTuple):
    """What one process reads."""

    columns: dict[str, np.ndarray]  # response and weights, of its rows
    sums: np.ndarray  # [blocks, d]  of the inputs
    extremes: Extremes


def _scan_part(
    table: Table, choice: Choice, source: Rows, first: int, report: Report | None
) -> _Part:
    """Read the rows of this process; `first` is the position of the first one in the table."""
    names, d = [*choice.features, *choice.others], len(choice.features)
    columns = {name: np.empty(source.held) for name in choice.others}
    sums, nowhere = [np.zeros(d)], np.zeros(d, dtype=np.int64)
    extremes = Extremes(np.full(d, np.inf), np.full(d, -np.inf), nowhere, nowhere)
    for rows, tensor in source.blocks():
        block = tensor.numpy()
        if not len(block):
            continue
        _require_finite(table, names, first + rows.start, block)
        for k, name in enumerate(choice.others):
            columns[name][rows] = block[:, d + k]
        X = block[:, :d]
        sums.append(X.sum(axis=0, dtype=np.float64))
        lowest, highest = X.argmin(axis=0), X.argmax(axis=0)
        every, start = np.arange(d), first + rows.start
        here = Extremes(X[lowest, every], X[highest, every], start + lowest, start + highest)
        extremes = _joined(extremes, here)
        if report is not None:
            report("looking through the table", rows.stop / source.held)
    return _Part(columns, np.array(sums), extremes)


def _joined(a: Extremes, b: Extremes) -> Extremes:
    """Return the extremes of two parts; of equal numbers, those of the first."""
    lower, higher = b.low < a.low, b.high > a.high
    return Extremes(
        np.where(lower, b.low, a.low),
        np.where(higher, b.high, a.high),
        np.where(lower, b.low_row, a.low_row),
        np.where(higher, b.high_row, a.high_row),
    )


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
