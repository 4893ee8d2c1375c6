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

from posquad.io.tables._cells import NumberFormat, cell_kind
from posquad.io.tables._source import Source
from posquad.io.tables._table import (
    INDEX,
    Fact,
    Row,
    Table,
    TableError,
    default_names,
    is_index,
    parse_cells,
    require_distinct,
)

LONGEST = 2**24  # maximum length of a line: about two million columns
_SEP = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)
_QUOTED = re.compile('"[^"]*"')


@dataclass(frozen=True)
class _Layout:
    """How a file is divided into cells."""

    source: Source
    delimiter: str | None  # None means blanks
    names: tuple[str, ...]  # with that of an index, which is empty
    named: bool
    first: int  # line number of the first row of numbers, from 1
    numbers: NumberFormat

    @property
    def path(self) -> Path:
        """The path of the file, for messages."""
        return self.source.path


def open_text(path: Path, numbers: NumberFormat) -> Table:
    """Open a text file as a table; only its first lines are read."""
    source = Source(path)
    _require_text(source)
    layout = _layout(source, numbers)
    indexed = layout.named and is_index(layout.names[0])
    names = layout.names[indexed:]
    require_distinct(path, names)
    return Table(
        path,
        names,
        _estimate_rows(source),
        layout.named,
        partial(_read, layout),
        lines=partial(_line_numbers, layout),
        cells=partial(_row_cells, layout),
        unit="line",
        formatted=True,
        numbers=numbers,
        facts=partial(_facts, layout, indexed),
    )


def _facts(layout: _Layout, indexed: bool) -> list[Fact]:
    """Say what is skipped: an index, and comment lines among the rows."""
    with layout.source.bytes() as file:
        lines = iter(partial(file.readline, LONGEST), b"")
        count = sum(line.startswith(b"#") for line in islice(lines, layout.first - 1, None))
    told = [INDEX] if indexed else []
    if count:
        noun = "line that begins" if count == 1 else "lines that begin"
        told.append(("comments", f"{count} {noun} with # skipped"))
    return told


def _require_text(source: Source) -> None:
    with source.bytes() as file:
        head = file.read(2**16)
    where = str(source.path)
    if not head:
        raise TableError(where, expected="a table", got="an empty file")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TableError(where, expected="a text file in UTF-8", got="UTF-16; save it as UTF-8")
    if b"\0" in head:
        zeros = "only zero bytes" if not head.strip(b"\0") else "a binary file"
        raise TableError(where, expected="a text file in UTF-8", got=zeros)


def _lines(source: Source, file: IO[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers."""
    try:
        for number, line in enumerate(iter(partial(file.readline, LONGEST), ""), 1):
            if len(line) == LONGEST:
                got = f"a line of more than {LONGEST} characters"
                where = f"{source.path}: line {number}"
                raise TableError(where, expected="a row of a table", got=got)
            if not line.isspace():
                yield number, line
    except UnicodeDecodeError:
        _refuse_encoding(source)


def _refuse_encoding(source: Source) -> NoReturn:
    with source.bytes() as file:
        for number, line in enumerate(iter(partial(file.readline, LONGEST), b""), 1):
            try:
                line.decode()
            except UnicodeDecodeError as problem:
                got = f"the byte 0x{line[problem.start]:02x}; save the file as UTF-8"
                where = f"{source.path}: line {number}"
                raise TableError(where, expected="text in UTF-8", got=got) from None
    raise TableError(str(source.path), expected="text in UTF-8", got="another encoding")


def _layout(source: Source, numbers: NumberFormat) -> _Layout:
    """Find the separator, the names and the first row.

    The first lines may be `sep=;` (as Excel reads it) and comments that begin with #. The last of
    these comments holds the names if the line after it has a number and as many cells.
    """
    with source.text() as file:
        lines = _lines(source, file)
        number, line = next(lines, (0, ""))
        if not line:
            raise TableError(str(source.path), expected="a table", got="only blank lines")
        told = _SEP.fullmatch(line)
        if told is not None:
            number, line = next(lines, (0, ""))
        comment, above = "", 0
        while line.startswith("#"):
            comment, above = line, number
            number, line = next(lines, (0, ""))
        if not line:
            got = "a header without rows" if comment else "only a first line sep="
            raise TableError(str(source.path), expected="rows of numbers", got=got)
        delimiter = _told(source, told[1]) if told is not None else _delimiter(line, numbers)
        cells = _stripped(source, number, line, delimiter)
        counted = [_is_numeric(cell, numbers) for cell in cells]
        if comment and any(counted):
            names = _stripped(source, above, comment[1:].strip(), delimiter)
            if len(names) == len(cells):
                names[0] = names[0] or "#"
                return _Layout(source, delimiter, tuple(names), True, number, numbers)
        if all(counted):
            names = default_names(len(cells))
            return _Layout(source, delimiter, names, False, number, numbers)
        first, row = next(((n, text) for n, text in lines if not text.startswith("#")), (0, ""))
        if not first:
            got = "a header without rows"
            raise TableError(str(source.path), expected="rows of numbers", got=got)
        below = _stripped(source, first, row, delimiter)
        if len(below) == len(cells) + 1 and _begins_with_row_name(row, below[0], delimiter):
            cells.insert(0, "")
        return _Layout(source, delimiter, tuple(cells), True, first, numbers)


def _begins_with_row_name(row: str, cell: str, delimiter: str | None) -> bool:
    """Tell whether a row that is longer than the header begins with its name, as R writes it."""
    return row.startswith('"') or (delimiter in (None, "\t") and cell == "1") or cell[:1].isalpha()


def _told(source: Source, mark: str) -> str | None:
    if mark not in ",;\t| ":
        where = f"{source.path}: line 1"
        expected = "sep= and a comma, a semicolon, a tab, a bar or a blank"
        raise TableError(where, expected=expected, got=f"sep={mark}")
    return None if mark == " " else mark


def _delimiter(line: str, numbers: NumberFormat) -> str | None:
    """Find the separator: tab, semicolon, comma, or blanks, in this order."""
    bare = _QUOTED.sub("", line)
    marks = "\t;,"
    if numbers.decimal == "," and all(numbers.is_number(cell) for cell in bare.split()):
        marks = "\t;"  # the commas are decimal marks
    return next((mark for mark in marks if mark in bare), None)


def _is_numeric(cell: str, numbers: NumberFormat) -> bool:
    return cell_kind(cell, numbers) in ("number", "infinite") or cell.lower() == "nan"


def _stripped(source: Source, number: int, line: str, delimiter: str | None) -> list[str]:
    return [cell.strip() for cell in _cells(source.path, number, line, delimiter)]


def _cells(path: Path, number: int, line: str, delimiter: str | None) -> list[str]:
    if '"' not in line:
        return line.split() if delimiter is None else line.rstrip("\r\n").split(delimiter)
    blanks = delimiter is None
    text = line.strip() if blanks else line
    try:
        return next(
            csv.reader([text], delimiter=delimiter or " ", skipinitialspace=blanks, strict=True)
        )
    except csv.Error as problem:
        where = f"{path}: line {number}"
        got = f"a quotation mark that is not closed in its line ({problem})"
        raise TableError(where, expected="cells", got=got) from None


def _rows(layout: _Layout, file: IO[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines of numbers; each must have one cell per column."""
    width, delimiter = len(layout.names), layout.delimiter
    for number, line in _lines(layout.source, file):
        if number < layout.first or line.startswith("#"):
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


def _row_cells(layout: _Layout, names: Sequence[str]) -> Iterator[Row]:
    columns = [layout.names.index(name) for name in names]
    with layout.source.text() as file:
        for number, line in _rows(layout, file):
            cells = _cells(layout.path, number, line, layout.delimiter)
            yield number, [cells[column] for column in columns]


def _read(layout: _Layout, names: Sequence[str]) -> np.ndarray:
    """Read columns with NumPy's parser if it can, cell by cell otherwise."""
    if layout.numbers.plain:
        values = _read_plain(layout, names)
        if values is not None:
            return values
    rows = _row_cells(layout, names)
    return parse_cells(layout.path, names, rows, layout.numbers, formatted=True)


def _read_plain(layout: _Layout, names: Sequence[str]) -> np.ndarray | None:
    columns = [layout.names.index(name) for name in names]
    with layout.source.text() as file:
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
        except ValueError:
            return None  # a cell that is missing, or no number
    return None if np.isinf(values).any() else values


def _line_numbers(layout: _Layout, rows: Sequence[int]) -> list[int]:
    """Return the line numbers (from 1) of these rows (from 0); blank lines are not rows."""
    wanted, found = set(rows), {}
    with layout.source.text() as file:
        for row, (number, _) in enumerate(_rows(layout, file)):
            if row in wanted:
                found[row] = number
            if len(found) == len(wanted):
                break
    return [found[row] for row in rows]


def _estimate_rows(source: Source) -> int:
    """Estimate the number of rows from the first lines, without reading a large file."""
    with source.text() as file:
        seen = [len(line) for _, line in islice(_lines(source, file), 100)]
    return source.unpacked_size() * len(seen) // max(1, sum(seen))
