"""The common form of all data files: named columns that are read on request."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol

import numpy as np

from posquad.core.errors import PosquadError, first_line
from posquad.io.tables._cells import FORMATS, PLAIN, NumberFormat, quote, simplest

if TYPE_CHECKING:
    from posquad.problems.rows import Rows

Report = Callable[[str, float], None]
"""A function that is told the work at hand and the share of it that is done."""


class Caching(NamedTuple):
    """Where a file that must be converted has its copy, and whether the copy is kept."""

    folder: Path | None = None  # by default that of the file
    keep: bool = False  # or else it is deleted by the last process that reads it


TEMPORARY = Caching()


class Source(Protocol):
    """The rows of chosen columns of a table that stays in its file."""

    def __call__(
        self, names: Sequence[str], report: Report | None = None, *, caching: Caching = TEMPORARY
    ) -> Rows:
        """Return the rows; a file that must be converted first is, and `report` is told."""
        ...


def _no_source(used: Sequence[str]) -> None:
    """Return the source of a table that is read into memory: there is none."""


CHUNK = 2**21  # entries checked at a time: 16 MB
STDIN = Path("standard input")
"""The path of a table that is read from standard input, as messages show it."""


class TableError(PosquadError, ValueError):
    """A data file cannot be used; the message names the place, what was expected and found."""


class NotNumbers(TableError):
    """A column that was read as numbers holds something else."""


Fact = tuple[str, str]  # a word, and what it says: a line of the answer of a fit


@dataclass(frozen=True)
class Table:
    """A data file whose columns are known, and whose numbers are not read yet.

    `read` gives finite numbers, and NaN for missing values; it raises `NotNumbers` where a cell
    holds anything else. `cells` gives the same columns row by row as text.
    """

    path: Path
    names: tuple[str, ...]  # without the index
    rows: int  # an estimate for text files, from the length of the first lines
    named: bool  # whether the file names its columns; otherwise they are x1, x2, ...
    read: Callable[[Sequence[str]], np.ndarray]  # names -> [n, k], float64 or float32
    response: str | None = None  # if the file defines it: y beside X in an npz file
    weights: str | None = None
    lines: Callable[[Sequence[int]], list[int]] | None = None  # line numbers of rows of a text file
    cells: Callable[[Sequence[str]], Iterator[Row]] | None = None  # None: the file has no text
    unit: str = "row"  # what the number of a row counts: row or line
    formatted: bool = False  # whether numbers are text, so that their format can be chosen
    numbers: NumberFormat = PLAIN
    facts: Callable[[], list[Fact]] = list  # what was skipped, known after reading
    numeric: frozenset[str] | None = None  # columns of numbers, if the file states their types
    source: Callable[[Sequence[str]], Source | None] = (
        _no_source  # of columns that stay in the file
    )


Row = tuple[int, Sequence[str]]  # number of the row or line (from 1), and its cells


def parse_cells(
    path: Path,
    names: Sequence[str],
    rows: Iterable[Row],
    numbers: NumberFormat,
    *,
    formatted: bool,
) -> np.ndarray:
    """Return the numbers `[n, k]` in rows of text, with NaN for missing values."""
    parse, values = numbers.parse, array("d")
    for number, cells in rows:
        try:
            values.extend(map(parse, cells))
        except ValueError:
            for name, cell in zip(names, cells, strict=True):
                where = f"{path}: line {number}, column {name!r}"
                refuse_cell(where, cell, numbers, formatted=formatted)
            raise
    return np.frombuffer(values, dtype=float).reshape(-1, len(names))


def refuse_cell(where: str, cell: str, numbers: NumberFormat, *, formatted: bool) -> None:
    """Raise `NotNumbers` if a cell holds neither a number nor a missing value.

    Where numbers are text, the message names the option with which the cell would be a number.
    """
    try:
        numbers.parse(cell)
    except ValueError:
        got = quote(cell)
        others = simplest([each for each in FORMATS if each.is_number(cell)])
        if numbers.is_number(cell):
            got = f"{cell.strip()[:40]}, which exceeds double precision"
        elif formatted and others:
            got = f"{got}, a number with {' or '.join(each.options() for each in others[:2])}"
        raise NotNumbers(where, expected="a finite number", got=got) from None


def name_rows(
    places: Sequence[int], lines: Callable[[Sequence[int]], list[int]] | None
) -> list[str]:
    """Name rows of a file (from 0): by their lines in a text file, else by their numbers from 1.

    >>> name_rows([0, 2], None), name_rows([0, 2], lambda places: [k + 2 for k in places])
    (['row 1', 'row 3'], ['line 2', 'line 4'])
    """
    if lines is not None:
        with suppress(OSError, TableError, LookupError):  # the file has changed since
            return [f"line {line}" for line in lines(places)]
    return [f"row {place + 1}" for place in places]


def is_index(name: str) -> bool:
    """Tell whether the name of the first column is the one of an index (pandas, R): none."""
    return name in ("", "Unnamed: 0")


INDEX: Fact = ("left out", "the first column, which has no name: an index")


def refuse_kind(path: Path, kind: str, problem: Exception) -> NoReturn:
    """Raise `TableError` for a file that could not be read as one of this kind."""
    got = f"a file of another kind or an incomplete one ({first_line(problem)})"
    raise TableError(str(path), expected=kind, got=got) from None


def default_names(count: int) -> tuple[str, ...]:
    """Return the names x1, x2, ... for columns without names."""
    return tuple(f"x{k + 1}" for k in range(count))


def require_distinct(path: Path, names: Sequence[str]) -> None:
    """Refuse columns without a name, and two columns with the same name."""
    for position, name in enumerate(names, 1):
        if not name:
            raise TableError(
                str(path),
                expected="a name for every column after the first",
                got=f"no name for column {position}",
            )
        if name in names[: position - 1]:
            first = names.index(name) + 1
            got = f"{name!r} for columns {first} and {position}"
            raise TableError(str(path), expected="columns with different names", got=got)


def require_real(path: Path, name: str, dtype: np.dtype) -> None:
    """Refuse arrays that do not hold real numbers, and pickled objects."""
    if dtype.hasobject:
        got = "pickled Python objects, which are never loaded"
        raise TableError(f"{path}: {name}", expected="real numbers", got=got)
    if dtype.kind not in "fiub":  # true and false are 1 and 0
        got = f"fields {', '.join(dtype.names)}" if dtype.names else f"type {dtype}"
        raise TableError(f"{path}: {name}", expected="real numbers", got=got)


def exact(
    path: Path,
    name: str,
    array: np.ndarray,
    columns: Sequence[str] = (),
    *,
    complete: bool = False,
) -> np.ndarray:
    """Convert to float64 (or float32) without changing a number; refuse numbers that change.

    NaN stays, as a missing value, unless the array must be complete; infinities are refused. An
    array of native float64 or float32 numbers is returned unchanged, memory-mapped or not.
    """
    require_real(path, name, array.dtype)
    if array.dtype in (np.dtype(np.float64), np.dtype(np.float32)):
        wide = array
    elif array.dtype.kind == "f" and array.dtype.itemsize <= 4:
        wide = array.astype(np.float32)
    else:
        with np.errstate(over="ignore"):
            wide = array.astype(np.float64)
    step = max(1, CHUNK // max(1, array[:1].size))
    for start in range(0, len(array), step):
        part, given = wide[start : start + step], array[start : start + step]
        good = np.isfinite(part) if complete else ~np.isinf(part)
        if good.all() and wide is not array:
            same = np.abs(part) < 2.0**53 if given.dtype.kind in "iu" else part == given
            good = same | np.isnan(part)
        if not good.all():
            place = tuple(int(k) for k in np.argwhere(~good)[0])
            got = given[place]
            where = _place(path, name, (place[0] + start, *place[1:]), columns)
            if np.isfinite(np.float64(got)):
                raise TableError(where, expected="a double precision number", got=str(got))
            words = "NaN" if np.isnan(got) else "an infinity or a number beyond double precision"
            raise TableError(where, expected="a finite number", got=words)
    return wide


def _place(path: Path, name: str, place: tuple[int, ...], columns: Sequence[str]) -> str:
    row, *rest = (k + 1 for k in place)  # from 1
    if columns and len(place) == 2:
        return f"{path}: row {row}, column {columns[place[1]]!r}"
    if len(place) <= 2:
        return f"{path}: {name}, row {row}" + (f", column {rest[0]}" if rest else "")
    return f"{path}: {name}, matrix {row}, row {rest[0]}, column {rest[1]}"
