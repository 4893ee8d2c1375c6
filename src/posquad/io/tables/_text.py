"""Tables in text files, separated by commas, semicolons, tabs or blanks."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, NoReturn

import numpy as np

from posquad.io.tables._table import Table, TableError, default_names, require_distinct

LONGEST = 2**24  # maximum length of a line: about two million columns
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*", re.ASCII)
_NOT_FINITE = re.compile(r"\s*[+-]?(nan|inf|infinity)\s*", re.ASCII | re.IGNORECASE)
_QUOTED = re.compile('"[^"]*"')
_MISSING = {"", "na", "n/a", "null", "none", "-", "?"}


@dataclass(frozen=True)
class _Layout:
    """How a file is divided into cells."""

    path: Path
    delimiter: str | None  # None means blanks
    names: tuple[str, ...]
    named: bool
    first: int  # line number of the first row of numbers, from 1


def open_text(path: Path) -> Table:
    """Open a text file as a table; only its first lines are read."""
    _require_text(path)
    layout = _layout(path)
    require_distinct(path, layout.names)
    return Table(
        path,
        layout.names,
        _estimate_rows(path),
        layout.named,
        partial(_read, layout),
        lines=partial(_line_numbers, layout),
    )


def _require_text(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(2**16)
    if not head:
        raise TableError(str(path), expected="a table", got="an empty file")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TableError(str(path), expected="a text file in UTF-8", got="UTF-16; save it as UTF-8")
    if b"\0" in head:
        zeros = "only zero bytes" if not head.strip(b"\0") else "a binary file"
        raise TableError(str(path), expected="a text file in UTF-8", got=zeros)


def _lines(path: Path, file: IO[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers."""
    try:
        for number, line in enumerate(iter(partial(file.readline, LONGEST), ""), 1):
            if len(line) == LONGEST:
                got = f"a line of more than {LONGEST} characters"
                where = f"{path}: line {number}"
                raise TableError(where, expected="a row of a table", got=got)
            if not line.isspace():
                yield number, line
    except UnicodeDecodeError:
        _refuse_encoding(path)


def _refuse_encoding(path: Path) -> NoReturn:
    with path.open("rb") as file:
        for number, line in enumerate(iter(partial(file.readline, LONGEST), b""), 1):
            try:
                line.decode()
            except UnicodeDecodeError as problem:
                got = f"the byte 0x{line[problem.start]:02x}; save the file as UTF-8"
                where = f"{path}: line {number}"
                raise TableError(where, expected="text in UTF-8", got=got) from None
    raise TableError(str(path), expected="text in UTF-8", got="another encoding")


def _opened(path: Path) -> IO[str]:
    return path.open(encoding="utf-8-sig", errors="strict")


def _layout(path: Path) -> _Layout:
    with _opened(path) as file:
        lines = _lines(path, file)
        number, line = next(lines, (0, ""))
        if not line:
            raise TableError(str(path), expected="a table", got="only blank lines")
        if line.startswith("# "):  # the form in which NumPy's savetxt writes a header
            line = line[2:]
        bare = _QUOTED.sub("", line)
        delimiter = next((mark for mark in "\t;," if mark in bare), None)
        cells = [cell.strip() for cell in _cells(path, number, line, delimiter)]
        if all(_NUMBER.fullmatch(cell) or _NOT_FINITE.fullmatch(cell) for cell in cells):
            return _Layout(path, delimiter, default_names(len(cells)), False, number)
        first, _ = next(lines, (0, ""))
        if not first:
            raise TableError(str(path), expected="rows of numbers", got="a header without rows")
        return _Layout(path, delimiter, tuple(cells), True, first)


def _cells(path: Path, number: int, line: str, delimiter: str | None) -> list[str]:
    if delimiter is None:
        return line.split()
    if '"' not in line:
        return line.rstrip("\r\n").split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error as problem:
        where = f"{path}: line {number}"
        got = f"a quotation mark that is not closed in its line ({problem})"
        raise TableError(where, expected="cells", got=got) from None


def _rows(layout: _Layout, file: IO[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines of numbers; each must have one cell per column."""
    width, delimiter = len(layout.names), layout.delimiter
    for number, line in _lines(layout.path, file):
        if number < layout.first:
            continue
        if delimiter is None or '"' in line:
            count = len(_cells(layout.path, number, line, delimiter))
        else:
            count = line.count(delimiter) + 1
        if count != width:
            source = "the header has" if layout.named else "the first line has"
            raise TableError(
                f"{layout.path}: line {number}",
                expected=f"{width} cells, as {source}",
                got=str(count),
            )
        yield number, line


def _read(layout: _Layout, names: Sequence[str]) -> np.ndarray:
    """Read columns as numbers with NumPy's parser; after an error, find the cell that caused it."""
    columns = [layout.names.index(name) for name in names]
    with _opened(layout.path) as file:
        rows = (line for _, line in _rows(layout, file))
        try:
            values = np.loadtxt(
                rows,
                delimiter=layout.delimiter,
                usecols=columns,
                quotechar='"',
                comments=None,
                ndmin=2,
            )
        except TableError:
            raise
        except ValueError as problem:
            _explain(layout, columns, str(problem).splitlines()[0])
    if not np.isfinite(values).all():
        _explain(layout, columns, "NaN or an infinity")
    return values


def _line_numbers(layout: _Layout, rows: Sequence[int]) -> list[int]:
    """Return the line numbers (from 1) of these rows (from 0); blank lines are not rows."""
    wanted, found = set(rows), {}
    with _opened(layout.path) as file:
        for row, (number, _) in enumerate(_rows(layout, file)):
            if row in wanted:
                found[row] = number
            if len(found) == len(wanted):
                break
    return [found[row] for row in rows]


def _estimate_rows(path: Path) -> int:
    """Estimate the number of rows from the first lines, without reading a large file."""
    with _opened(path) as file:
        seen = [len(line) for _, line in islice(_lines(path, file), 100)]
    return path.stat().st_size * len(seen) // max(1, sum(seen))


def _explain(layout: _Layout, columns: Sequence[int], reason: str) -> NoReturn:
    """Report the first cell that is not a finite number."""
    with _opened(layout.path) as file:
        for number, line in _rows(layout, file):
            cells = _cells(layout.path, number, line, layout.delimiter)
            for column in columns:
                cell = cells[column]
                if not _NUMBER.fullmatch(cell) or not np.isfinite(float(cell)):
                    where = f"{layout.path}: line {number}, column {layout.names[column]!r}"
                    raise TableError(
                        where, expected="a finite number", got=_describe_cell(cell)
                    ) from None
    raise TableError(str(layout.path), expected="a table of numbers", got=reason) from None


def _describe_cell(cell: str) -> str:
    short = cell.strip()
    if short.lower() in _MISSING:
        word = f" ({short})" if short else ""
        return f"a missing value{word}; leave such rows out or fill them in"
    if _NUMBER.fullmatch(short):
        return f"{short[:40]}, which exceeds double precision"
    if _NOT_FINITE.fullmatch(short):
        return f"{short}; leave such rows out or fill them in"
    if _DECIMAL_COMMA.fullmatch(short):
        return f"{short!r}; use a decimal point"
    return repr(short if len(short) <= 40 else f"{short[:40]}...")
