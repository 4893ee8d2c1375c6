"""The content of one cell of a table: a number, a missing value, or what it is instead."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from posquad.core.errors import DomainError

__all__ = [
    "FORMATS",
    "PLAIN",
    "NumberFormat",
    "cell_kind",
    "is_missing",
    "level_of",
    "quote",
    "simplest",
    "truth",
]

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "-", "?"})
_TRUTH = {"true": 1.0, "yes": 1.0, "t": 1.0, "y": 1.0, "on": 1.0}
_TRUTH |= {"false": 0.0, "no": 0.0, "f": 0.0, "n": 0.0, "off": 0.0}
_MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_DATE = re.compile(
    r"\d{4}([-/.])\d{1,2}\1\d{1,2}([T ].*)?"  # 2024-01-31, also with a time
    r"|\d{1,2}([-/.])\d{1,2}\3\d{2,4}( .*)?"  # 31.01.2024, 1/31/24
    rf"|\d{{1,2}}[ -]({_MONTHS})[a-z]*[ -,]+\d{{2,4}}|({_MONTHS})[a-z]*\.? \d{{1,2}},? \d{{4}}"
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?",
    re.ASCII | re.IGNORECASE,
)
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.ASCII | re.IGNORECASE)
_PERCENT = re.compile(r"(.*\S)\s*%")
_WHOLE = re.compile(r"([+-]?\d+)\.0*", re.ASCII)
_SPACES = " \u00a0\u2009\u202f"  # blanks that separate thousands, with those of typesetting


@dataclass(frozen=True)
class NumberFormat:
    """The decimal mark and the separator of thousands in a text file.

    >>> NumberFormat(",", ".").parse("1.234,5"), NumberFormat().parse("NA")
    (1234.5, nan)
    """

    decimal: str = "."
    thousands: str = ""

    def __post_init__(self) -> None:
        if self.decimal not in (".", ","):
            raise DomainError("--decimal", expected=". or ,", got=repr(self.decimal))
        if self.thousands not in ("", ",", ".", "'", " "):
            expected = "one of , . ' and a blank"
            raise DomainError("--thousands", expected=expected, got=repr(self.thousands))
        if self.decimal == self.thousands:
            got = f"{self.decimal} for both"
            raise DomainError("--thousands", expected="a mark other than --decimal", got=got)

    def changed(self, decimal: str | None, thousands: str | None) -> NumberFormat:
        """Return the format with these marks in place of its own, where they are given.

        >>> NumberFormat(",").changed(".", None).decimal
        '.'
        """
        return NumberFormat(
            self.decimal if decimal is None else decimal,
            self.thousands if thousands is None else thousands,
        )

    @property
    def plain(self) -> bool:
        """Whether numbers are written with a decimal point and nothing else."""
        return self.decimal == "." and not self.thousands

    def parse(self, cell: str) -> float:
        """Return the number in a cell, NaN for a missing value; ValueError for anything else."""
        text = cell.strip()
        if self._number.fullmatch(text):
            value = float(self._plain(text))
            if math.isfinite(value):
                return value
        elif text.lower() in MISSING:
            return math.nan
        raise ValueError(cell)

    def parse_percent(self, cell: str) -> float:
        """Return the number that a percentage stands for; NaN if missing, ValueError otherwise."""
        found = _PERCENT.fullmatch(cell.strip())
        if found is None:
            if is_missing(cell):
                return math.nan
            raise ValueError(cell)
        if is_missing(found[1]):
            raise ValueError(cell)
        return self.parse(found[1]) / 100

    def is_number(self, cell: str) -> bool:
        """Tell whether a cell has the form of a number, also of one that is too large."""
        return self._number.fullmatch(cell.strip()) is not None

    @cached_property
    def _number(self) -> re.Pattern[str]:
        point, whole = re.escape(self.decimal), r"\d+"
        if self.thousands:
            mark = f"[{_SPACES}]" if self.thousands == " " else re.escape(self.thousands)
            mark = "['\u2019]" if self.thousands == "'" else mark
            whole = rf"(?:\d{{1,3}}(?:{mark}\d{{3}})+|\d+)"
        return re.compile(rf"[+-]?({whole}({point}\d*)?|{point}\d+)([eE][+-]?\d+)?", re.ASCII)

    def _plain(self, text: str) -> str:
        if self.plain:
            return text
        marks = {"": "", " ": _SPACES, "'": "'\u2019"}.get(self.thousands, self.thousands)
        kept = "".join(mark for mark in text if mark not in marks)
        return kept.replace(self.decimal, ".")

    def options(self) -> str:
        """Return the options that choose this format.

        >>> NumberFormat(",", " ").options()
        "--decimal , --thousands ' '"
        """
        words = [] if self.decimal == "." else [f"--decimal {self.decimal}"]
        if self.thousands:
            quoted = {" ": "' '", "'": '"\'"'}.get(self.thousands, self.thousands)
            words.append(f"--thousands {quoted}")
        return " ".join(words) or "--decimal ."


PLAIN = NumberFormat()
"""Numbers with a decimal point."""

FORMATS = (
    PLAIN,
    NumberFormat(","),
    NumberFormat(".", ","),
    NumberFormat(",", "."),
    NumberFormat(".", "'"),
    NumberFormat(".", " "),
    NumberFormat(",", " "),
)
"""The formats that a message can suggest, the most frequent first."""


def simplest(formats: Sequence[NumberFormat]) -> list[NumberFormat]:
    """Leave out formats with a separator of thousands that is not needed.

    >>> [each.options() for each in simplest([NumberFormat(","), NumberFormat(",", ".")])]
    ['--decimal ,']
    """
    marks = {each.decimal for each in formats if not each.thousands}
    return [each for each in formats if not each.thousands or each.decimal not in marks]


def is_missing(cell: str) -> bool:
    """Tell whether a cell is empty or says that there is no value.

    >>> is_missing(" NA "), is_missing("0")
    (True, False)
    """
    return cell.strip().lower() in MISSING


def truth(cell: str) -> float:
    """Return 1 for yes or true, 0 for no or false, NaN if missing; ValueError otherwise.

    >>> truth("TRUE"), truth("no")
    (1.0, 0.0)
    """
    text = cell.strip().lower()
    if text in _TRUTH:
        return _TRUTH[text]
    if text in MISSING:
        return math.nan
    raise ValueError(cell)


def cell_kind(cell: str, numbers: NumberFormat) -> str:
    """Say what a cell holds: missing, number, infinite, boolean, percent, date or text.

    >>> [cell_kind(cell, NumberFormat()) for cell in ("", "1e3", "yes", "5 %", "2024-01-31", "a")]
    ['missing', 'number', 'boolean', 'percent', 'date', 'text']
    """
    text = cell.strip()
    if text.lower() in MISSING:
        return "missing"
    if numbers.is_number(text):
        return "number"
    if _INFINITE.fullmatch(text):
        return "infinite"
    if text.lower() in _TRUTH:
        return "boolean"
    share = _PERCENT.fullmatch(text)
    if share is not None and numbers.is_number(share[1]):
        return "percent"
    return "date" if _DATE.fullmatch(text) else "text"


def level_of(cell: str) -> str:
    """Return the level that a cell names: its text; whole numbers without a decimal point.

    >>> level_of(" male "), level_of("3.0")
    ('male', '3')
    """
    text = cell.strip()
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def quote(cell: str) -> str:
    """Quote the text of a cell for a message, of a long one only the beginning."""
    text = cell.strip()
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
