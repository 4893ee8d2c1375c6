"""Read the chosen columns of a table as numbers: encodings and missing values."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from posquad.io.tables._cells import cell_kind, is_missing, level_of, quote, truth
from posquad.io.tables._diagnosis import FEW_LEVELS, column_contents, refuse_columns
from posquad.io.tables._memory import require_memory
from posquad.io.tables._table import NotNumbers, Row, Table, TableError
from posquad.io.tables.choosing import Choice
from posquad.io.tables.encoding import Encoding, Request, quoted_names

__all__ = [
    "Coded",
    "encodings_for",
    "read_coded",
    "read_numbers",
    "require_types",
    "settle_levels",
]

MOST_LEVELS = 1000  # maximum number of features that one column becomes
_LOOKED = 20_000  # rows in which it is seen what a column holds that has a type other than numbers


def encodings_for(table: Table, choice: Choice, request: Request) -> dict[str, Encoding]:
    """Return the encodings of columns that are not numbers, as far as they are requested."""
    columns = dict(request.columns)
    for name in columns:
        if name not in (*choice.features, choice.response):
            got = f"{name!r}, which is {'the weights' if name == choice.weights else 'not used'}"
            raise TableError(f"{table.path}: --encode", expected="columns that are used", got=got)
    rest = [name for name in (*choice.features, *choice.others) if name not in columns]
    if request.auto and table.cells is not None and rest:
        contents = column_contents(table, rest)
        refused = []
        for name, content in contents.items():
            many = content.kind == "text" and len(content.levels) > FEW_LEVELS
            if content.kind in ("text", "boolean", "percent") and not many:
                columns[name] = Encoding(name, "")
            elif content.kind != "number":
                refused.append(content)
        if refused:
            refuse_columns(table, refused, choice.response, choice.weights)
    return columns


def read_numbers(table: Table, choice: Choice, names: Sequence[str], advise: bool) -> np.ndarray:
    """Read columns of numbers; if they hold something else, say which option helps."""
    try:
        return table.read(names)
    except NotNumbers:
        if not advise or table.cells is None:
            raise
        if table.numeric is not None:  # then the types have told which columns are wrong
            names = [name for name in names if name not in table.numeric]
        contents = column_contents(table, names, None if table.numeric is None else _LOOKED)
        if all(content.kind == "number" for content in contents.values()):
            raise  # a number that is too large
        refuse_columns(table, list(contents.values()), choice.response, choice.weights)


def require_types(table: Table, choice: Choice, encoded: Collection[str], *, advise: bool) -> None:
    """Refuse columns whose type in the file is not one of numbers, before anything is read."""
    if table.numeric is None:
        return
    names = [*choice.features, *choice.others]
    wrong = [name for name in names if name not in table.numeric and name not in encoded]
    if wrong:
        read_numbers(table, choice, wrong, advise)


@dataclass(frozen=True)
class Coded:
    """A column as numbers `[n, k]`, with the encoding that made them."""

    encoding: Encoding
    values: np.ndarray


def read_coded(
    table: Table, encodings: Sequence[Encoding], response: str | None
) -> dict[str, Coded]:
    """Read columns that are encoded; what an encoding leaves open is learned from the column."""
    names = [each.column for each in encodings]
    codes = [array("q") for _ in names]
    seen: list[dict[str, tuple[int, int]]] = [{} for _ in names]  # cell: its code, its first row
    for number, cells in _text_rows(table, names):
        for column, known, cell in zip(codes, seen, cells, strict=True):
            column.append(known.setdefault(cell, (len(known), number))[0])
    coded = {}
    for each, known, column in zip(encodings, seen, codes, strict=True):
        full = _learned(table, each, known, each.column == response)
        size = 16 * len(column) * len(full.features)  # the features, and the table with them
        require_memory(table.path, size, "an encoded table")
        values = np.array([_encoded(table, full, *item) for item in known.items()])
        coded[each.column] = Coded(full, values[np.frombuffer(column, dtype=np.int64)])
    return coded


def settle_levels(
    table: Table, X: np.ndarray, inputs: Sequence[Encoding], *, constant: bool
) -> tuple[np.ndarray, tuple[Encoding, ...]]:
    """Remove features of levels that no row has any more, and of levels that would be redundant.

    The features of a column that has one for each level add up to 1, so the first such column gives
    the model a constant. Every further one, and all of them if there is a constant already, does
    without its first level: its features would add up to the same constant.
    """
    places, settled, start = [], [], 0
    for each in inputs:
        width = len(each.features)
        if each.kind != "onehot":
            places += range(start, start + width)
            settled.append(each)
        else:
            found = np.atleast_1d(X[:, start : start + width].any(axis=0))
            levels = tuple(x for x, held in zip(each.levels, found, strict=True) if held)
            _require_levels(table, each.column, levels)
            reference = levels[0] if constant else None
            constant = True
            settled.append(replace(each, levels=levels, reference=reference))
            places += [
                start + k for k, x in enumerate(each.levels) if x in levels and x != reference
            ]
        start += width
    return (X if len(places) == start else X[:, places]), tuple(settled)


def _text_rows(table: Table, names: Sequence[str]) -> Iterator[Row]:
    if table.cells is not None:
        return table.cells(names)
    rows = table.read(names)
    return ((k, [repr(float(value)) for value in row]) for k, row in enumerate(rows, 1))


def _learned(
    table: Table, encoding: Encoding, known: dict[str, tuple[int, int]], response: bool
) -> Encoding:
    """Fill in what an encoding leaves open: its kind and its levels."""
    if encoding.kind not in ("", "onehot") or encoding.levels:
        return encoding
    where, column = f"{table.path}: column {encoding.column!r}", quoted_names([encoding.column])
    filled = [cell for cell in known if not is_missing(cell)]
    if not encoding.kind:
        kinds = {cell_kind(cell, table.numbers) for cell in filled}
        if kinds in ({"boolean"}, {"percent"}):
            return replace(encoding, kind=kinds.pop())
        if kinds == {"date"}:
            got = f"dates such as {quote(filled[0])}; add --drop {column}"
            raise TableError(where, expected="values to encode", got=got)
    if response:
        expected = "a response of one number in each row"
        got = f"text; give the order of its values: --encode {column}=LEVEL,LEVEL"
        raise TableError(where, expected=expected, got=got)
    levels = tuple(sorted({level_of(cell) for cell in filled}, key=_order))
    _require_levels(table, encoding.column, levels)
    return Encoding(encoding.column, "onehot", levels)


def _require_levels(table: Table, column: str, levels: Sequence[str]) -> None:
    if not 2 <= len(levels) <= MOST_LEVELS:
        got = f"{len(levels)}; add --drop {quoted_names([column])}"
        expected = f"from 2 to {MOST_LEVELS} different values to encode"
        raise TableError(f"{table.path}: column {column!r}", expected=expected, got=got)


def _order(level: str) -> tuple[bool, float, str]:
    try:
        return False, float(level), level
    except ValueError:
        return True, 0.0, level


def _encoded(table: Table, encoding: Encoding, cell: str, place: tuple[int, int]) -> list[float]:
    """Return the numbers that a cell stands for, NaN if it is missing."""
    level, levels = level_of(cell), encoding.levels
    if level in levels and encoding.kind == "ordinal":
        return [float(levels.index(level))]
    if level in levels:
        return [float(level == each) for each in levels if each != encoding.reference]
    if is_missing(cell):
        return [np.nan] * len(encoding.features)
    expected = f"one of {', '.join(levels[:12])}" + (", ..." if len(levels) > 12 else "")
    with suppress(ValueError):
        if encoding.kind == "percent":
            expected = "a percentage such as 12.5%"
            return [table.numbers.parse_percent(cell)]
        if encoding.kind == "boolean":
            expected = "yes or no (true or false)"
            return [truth(cell)]
    where = f"{table.path}: {table.unit} {place[1]}, column {encoding.column!r}"
    raise TableError(where, expected=expected, got=quote(cell))
