"""How the columns of a table become numbers: the rules that a fitted model remembers."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from posquad.io.tables._cells import PLAIN, NumberFormat

__all__ = [
    "MISSING_RULES",
    "NO_REQUEST",
    "NO_RULES",
    "Encoding",
    "Places",
    "Request",
    "Rules",
    "quoted_names",
]

MISSING_RULES = ("refuse", "drop", "mean")
KINDS = ("number", "onehot", "ordinal", "boolean", "percent")
VERSION = 1


@dataclass(frozen=True)
class Encoding:
    """How one column becomes numbers.

    number: as it is. percent: 5% is 0.05. boolean: 1 for yes or true, 0 for no or false. ordinal:
    0, 1, 2, ... for the levels in their order. onehot: a feature for each level, 1 in the rows that
    have it and 0 elsewhere; the level `reference` has no feature.

    >>> Encoding("sex", "onehot", ("female", "male")).features
    ('sex=female', 'sex=male')
    """

    column: str
    kind: str = "number"
    levels: tuple[str, ...] = ()
    reference: str | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that the column becomes."""
        if self.kind != "onehot":
            return (self.column,)
        return tuple(f"{self.column}={x}" for x in self.levels if x != self.reference)

    def __str__(self) -> str:
        if self.kind == "onehot":
            without = "" if self.reference is None else f", without {self.reference}"
            return f"{self.column} ({', '.join(self.levels)}{without})"
        if self.kind == "ordinal":
            return f"{self.column} ({', '.join(f'{x} {k}' for k, x in enumerate(self.levels))})"
        return f"{self.column} ({'no 0, yes 1' if self.kind == 'boolean' else self.kind})"


@dataclass(frozen=True)
class Request:
    """What `--encode` asks for: columns with their encoding, or all that are not numbers.

    The kind of an encoding is empty where it depends on what the column holds.
    """

    columns: Mapping[str, Encoding] = field(default_factory=dict)
    auto: bool = False


def quoted_names(names: Iterable[str]) -> str:
    """Write names as the value of an option such as `--drop`, quoted for the shell.

    >>> quoted_names(["sex", "height, cm"])
    '\\'sex,"height, cm"\\''
    """
    return shlex.quote(",".join(f'"{x}"' if set(",=") & set(x) else x for x in names))


@dataclass(frozen=True)
class Places:
    """The columns that a fit used of a table without column names, called x1, x2, ..."""

    count: int  # of all columns of the table
    inputs: tuple[str, ...]
    response: str | None


@dataclass(frozen=True)
class Rules:
    """How a table became the inputs and responses of a fit.

    `posquad predict` applies the same rules: the encoding of the columns with their levels, the
    means that stand for missing values, the format of the numbers in text files, and the places of
    the columns in a table that does not name them.
    """

    inputs: tuple[Encoding, ...] = ()  # in the order of the model; empty if all are numbers
    response: Encoding | None = None  # if it is not a number
    means: tuple[float, ...] = ()  # of the features; they stand for missing values
    missing: str = "refuse"
    numbers: NumberFormat = PLAIN
    places: Places | None = None  # None if the table names its columns

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a JSON file.

        >>> rules = Rules((Encoding("sex", "onehot", ("f", "m")),), means=(0.5, 0.5))
        >>> Rules.from_json(rules.to_json()) == rules
        True
        """
        return {
            "version": VERSION,
            "inputs": [_to_json(each) for each in self.inputs],
            "response": None if self.response is None else _to_json(self.response),
            "means": list(self.means),
            "missing": self.missing,
            "decimal": self.numbers.decimal,
            "thousands": self.numbers.thousands,
            "places": None if self.places is None else asdict(self.places),
        }

    @classmethod
    def from_json(cls, body: Any) -> Rules:
        """Read what `to_json` wrote; ValueError for anything else."""
        if not isinstance(body, dict) or body.get("version") != VERSION:
            raise ValueError("rules of a table of another version")
        try:
            inputs = tuple(_from_json(each) for each in body["inputs"])
            response = None if body["response"] is None else _from_json(body["response"])
            means = tuple(float(mean) for mean in body["means"])
            numbers = NumberFormat(str(body["decimal"]), str(body["thousands"]))
            missing = body["missing"]
            places = _places(body.get("places"))  # earlier versions have none
        except (LookupError, TypeError, AttributeError, OverflowError) as problem:
            raise ValueError(f"rules of a table that cannot be used: {problem!r}") from None
        count = sum(len(each.features) for each in inputs)
        if missing not in MISSING_RULES or not all(map(math.isfinite, means)):
            raise ValueError("rules of a table that cannot be used")
        if inputs and means and count != len(means):
            raise ValueError(f"{len(means)} means for {count} features")
        return cls(inputs, response, means, missing, numbers, places)


def _to_json(encoding: Encoding) -> dict[str, Any]:
    body: dict[str, Any] = {"column": encoding.column, "kind": encoding.kind}
    if encoding.levels:
        body["levels"] = list(encoding.levels)
    return body if encoding.reference is None else {**body, "reference": encoding.reference}


def _from_json(body: Any) -> Encoding:
    levels, reference = body.get("levels", []), body.get("reference")
    words = [body["column"], *levels, *([] if reference is None else [reference])]
    if body["kind"] not in KINDS or not all(isinstance(word, str) for word in words):
        raise ValueError(f"an encoding that cannot be used: {body}")
    if (body["kind"] in ("onehot", "ordinal")) != (len(levels) > 1):
        raise ValueError(f"an encoding without levels: {body}")
    return Encoding(body["column"], body["kind"], tuple(levels), reference)


def _places(body: Any) -> Places | None:
    if body is None:
        return None
    places = Places(int(body["count"]), tuple(body["inputs"]), body["response"])
    names = [*places.inputs, *([] if places.response is None else [places.response])]
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"places of columns that cannot be used: {body}")
    return places


NO_REQUEST = Request()
"""No column is encoded."""

NO_RULES = Rules()
"""All columns are numbers."""
