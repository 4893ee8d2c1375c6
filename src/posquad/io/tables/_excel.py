"""The first sheet of an Excel workbook (.xlsx), read by openpyxl."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from posquad.core.extras import import_extra
from posquad.io.tables._arrays import UNREADABLE
from posquad.io.tables._cells import PLAIN
from posquad.io.tables._memory import require_memory
from posquad.io.tables._table import (
    INDEX,
    Fact,
    Row,
    Table,
    TableError,
    default_names,
    is_index,
    parse_cells,
    refuse_kind,
    require_distinct,
)

_KIND = "an Excel workbook (.xlsx)"


@dataclass(frozen=True)
class _Sheet:
    path: Path
    names: tuple[str, ...]  # with that of an index, which is empty
    named: bool
    first: int  # number of the first row of numbers, from 1


def open_excel(path: Path) -> Table:
    """Open the first sheet of a workbook as a table."""
    if not path.stat().st_size:
        raise TableError(str(path), expected=_KIND, got="an empty file")
    with _rows(path) as (rows, facts, size):
        filled = ((number, cells) for number, cells in enumerate(map(_texts, rows), 1) if cells)
        first, cells = next(filled, (0, []))
        if not cells:
            raise TableError(str(path), expected="a table", got="an empty first sheet")
        named = not all(PLAIN.is_number(cell) for cell in cells)
        names = tuple(cells) if named else default_names(len(cells))
        if named:
            first, below = next(filled, (0, []))
            if not below:
                got = "a header without rows"
                raise TableError(str(path), expected="rows of numbers", got=got)
    indexed = named and is_index(names[0])
    require_distinct(path, names[indexed:])
    sheet = _Sheet(path, names, named, first)
    told = [*facts, *([INDEX] if indexed else [])]
    return Table(
        path,
        names[indexed:],
        size,
        named,
        partial(_read, sheet),
        lines=partial(_row_numbers, sheet),
        cells=partial(_cells, sheet),
        unit="line",
        facts=lambda: told,
    )


@contextmanager
def _rows(path: Path) -> Iterator[tuple[Iterator[Sequence[Any]], list[Fact], int]]:
    """Open the rows of the first sheet, with a fact about other sheets and the number of rows."""
    excel = import_extra("openpyxl", "excel")
    try:
        with path.open("rb") as file:  # openpyxl leaves a file open that it cannot read
            with zipfile.ZipFile(file) as archive:
                size = sum(info.file_size for info in archive.infolist())
            require_memory(path, size, "a workbook")
            with warnings.catch_warnings(action="ignore"):  # about formatting that is not read
                book = excel.load_workbook(file, read_only=True, data_only=True)
            sheets = book.worksheets
            if not sheets:
                raise TableError(str(path), expected="a sheet with a table", got="no sheet")
            told = f"{sheets[0].title!r}, the first of {len(sheets)}"
            facts = [("sheet", told)] if len(sheets) > 1 else []
            count = sheets[0].max_row or 0
            sheets[0].reset_dimensions()  # some programs store wrong ones
            yield sheets[0].iter_rows(values_only=True), facts, count
    except TableError:
        raise
    except (*UNREADABLE, AttributeError, IndexError, OSError) as problem:
        refuse_kind(path, _KIND, problem)


def _texts(values: Sequence[Any]) -> list[str]:
    """Return the cells of a row as text, without the empty ones at its end."""
    cells = [_text(value) for value in values]
    while cells and not cells[-1]:
        cells.pop()
    return cells


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value).strip()


def _cells(sheet: _Sheet, names: Sequence[str]) -> Iterator[Row]:
    columns, width = [sheet.names.index(name) for name in names], len(sheet.names)
    with _rows(sheet.path) as (rows, _, _):
        numbered = enumerate(map(_texts, rows), 1)
        for number, cells in islice(numbered, sheet.first - 1, None):
            if not cells:
                continue
            if len(cells) > width:
                source = "the header has" if sheet.named else "the first row has"
                where = f"{sheet.path}: line {number}"
                expected = f"{width} cells, as {source}"
                raise TableError(where, expected=expected, got=str(len(cells)))
            cells += [""] * (width - len(cells))
            yield number, [cells[column] for column in columns]


def _read(sheet: _Sheet, names: Sequence[str]) -> np.ndarray:
    return parse_cells(sheet.path, names, _cells(sheet, names), PLAIN, formatted=False)


def _row_numbers(sheet: _Sheet, rows: Sequence[int]) -> list[int]:
    wanted, found = set(rows), {}
    for row, (number, _) in enumerate(_cells(sheet, ())):
        if row in wanted:
            found[row] = number
    return [found[row] for row in rows]
