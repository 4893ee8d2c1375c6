"""What the columns of a table hold, and the options that help if it is not numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NoReturn

from posquad.io.tables._cells import (
    FORMATS,
    NumberFormat,
    cell_kind,
    is_missing,
    level_of,
    quote,
    simplest,
)
from posquad.io.tables._table import Table, TableError, refuse_cell
from posquad.io.tables.encoding import quoted_names

__all__ = ["FEW_LEVELS", "Content", "column_contents", "refuse_columns"]

FEW_LEVELS = 50  # maximum number of values of a column that is encoded without being named
_NAMED = 5  # maximum number of columns of one kind that a message names
_WORDS = {
    "text": "text",
    "boolean": "yes or no",
    "percent": "percentages",
    "date": "dates or times",
    "format": "numbers in another format",
}


@dataclass
class Content:
    """What one column holds."""

    name: str
    kinds: Counter[str] = field(default_factory=Counter)
    first: dict[str, tuple[int, str]] = field(default_factory=dict)  # first cell of each kind
    levels: set[str] = field(default_factory=set)  # at most one more than `FEW_LEVELS`
    formats: list[NumberFormat] = field(default_factory=list)  # those that read every cell

    def add(self, number: int, cell: str, numbers: NumberFormat) -> None:
        """Count one cell."""
        kind = cell_kind(cell, numbers)
        self.kinds[kind] += 1
        self.first.setdefault(kind, (number, cell))
        if not is_missing(cell):
            if len(self.levels) <= FEW_LEVELS:
                self.levels.add(level_of(cell))
            self.formats = [each for each in self.formats if each.is_number(cell)]

    @property
    def kind(self) -> str:
        """The kind of the column; `stray` if only some cells of a column of numbers are none."""
        filled = self.kinds.total() - self.kinds["missing"]
        for kind in ("number", "boolean", "percent", "date"):
            if self.kinds[kind] == filled:
                return kind
        if self.formats:
            return "format"
        numbers = self.kinds["number"]
        return "stray" if max(2 * numbers, numbers + self.kinds["infinite"]) >= filled else "text"

    @property
    def example(self) -> tuple[int, str]:
        """The first cell that is no number, with the number of its row or line."""
        found = [cell for kind, cell in self.first.items() if kind not in ("number", "missing")]
        return min(found)


def column_contents(
    table: Table, names: Sequence[str], most: int | None = None
) -> dict[str, Content]:
    """Read columns as text and say what each of them holds, in at most `most` rows."""
    assert table.cells is not None
    formats = list(FORMATS) if table.formatted else []
    found = [Content(name, formats=formats) for name in names]
    for number, cells in islice(table.cells(names), most):
        for content, cell in zip(found, cells, strict=True):
            content.add(number, cell, table.numbers)
    return {content.name: content for content in found}


def refuse_columns(
    table: Table, contents: Sequence[Content], response: str | None, weights: str | None
) -> NoReturn:
    """Name the columns that do not hold numbers, with the options that help."""
    wrong = [content for content in contents if content.kind not in ("number", "stray")]
    if not wrong:
        stray = next(content for content in contents if content.kind == "stray")
        number, cell = stray.example
        where = f"{table.path}: {table.unit} {number}, column {stray.name!r}"
        refuse_cell(where, cell, table.numbers, formatted=table.formatted)
    kinds = dict.fromkeys(content.kind for content in wrong)
    told = ", ".join(_told(table, kind, [c for c in wrong if c.kind == kind]) for kind in kinds)
    got = f"{told}; {_remedy(wrong, response, weights)}"
    raise TableError(str(table.path), expected="columns of numbers", got=got) from None


def _told(table: Table, kind: str, columns: Sequence[Content]) -> str:
    """Name columns of one kind, each with an example."""
    words = []
    for content in columns[:_NAMED]:
        number, cell = content.example
        words.append(f"{content.name!r} ({quote(cell)}, {table.unit} {number})")
    more = f" and {len(columns) - _NAMED} more columns" if len(columns) > _NAMED else ""
    return f"{_WORDS[kind]} in {', '.join(words)}{more}"


def _remedy(wrong: Sequence[Content], response: str | None, weights: str | None) -> str:
    inputs = [content for content in wrong if content.name not in (response, weights)]
    words, few = [], [c for c in inputs if c.kind == "text" and len(c.levels) <= FEW_LEVELS]
    flags = [c for c in wrong if c.kind == "boolean" and c.name != weights]
    shares = [c for c in wrong if c.kind == "percent" and c.name != weights]
    formats = [c.formats for c in wrong if c.kind == "format"]
    if formats:
        common = [each for each in formats[0] if all(each in others for others in formats)]
        fitting = simplest(common or formats[0])[:2]
        words.append(" or ".join(each.options() for each in fitting))
    if few or flags:
        words.append(f"--encode {quoted_names(c.name for c in wrong if c in [*few, *flags])}")
    words += [f"--encode {quoted_names([c.name])}=percent" for c in shares]
    encoded = [c for c in inputs if c in [*few, *flags, *shares]]
    rest = [c.name for c in inputs if c not in encoded and c.kind != "format"]
    if rest:
        words.append(f"--drop {quoted_names(rest)}")
    told = [f"add {' '.join(words)}"] if words else []
    if encoded:
        pronoun = "it" if len(encoded) == 1 else "them"
        told.append(f"or leave {pronoun} out with --drop {quoted_names(c.name for c in encoded)}")
    for name, option in ((response, "--response"), (weights, "--weights")):
        helped = [*flags, *shares, *(c for c in wrong if c.kind == "format")]
        if any(c.name == name and c not in helped for c in wrong):
            told.append(f"name another column with {option}")
    return ", ".join(told)
