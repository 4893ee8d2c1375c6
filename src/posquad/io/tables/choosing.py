"""Choose the columns of a data file: inputs, response and weights."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from posquad.io.tables._table import Table, TableError

__all__ = ["Choice", "choose_columns"]

RESPONSES = ("y", "response", "target")


@dataclass(frozen=True)
class Choice:
    """The names of the columns to read."""

    features: tuple[str, ...]
    response: str | None
    weights: str | None

    @property
    def others(self) -> list[str]:
        """The response and the weights, if there are any."""
        return [name for name in (self.response, self.weights) if name is not None]


def choose_columns(
    table: Table,
    *,
    response: str | None = None,
    weights: str | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    optional_response: bool = False,
) -> Choice:
    """Choose columns by these names; by default y is the response, and the rest are inputs.

    >>> from pathlib import Path
    >>> table = Table(Path("a.csv"), ("age", "Y", "size"), 1, True, read=lambda names: None)
    >>> choose_columns(table)
    Choice(features=('age', 'size'), response='Y', weights=None)
    >>> choose_columns(table, response="agee")
    Traceback (most recent call last):
    posquad.io.tables._table.TableError: a.csv: expected a column 'agee' for --response; got age, Y, size: did you mean 'age'?
    """  # noqa: E501
    for option, name in (("--response", response), ("--weights", weights)):
        if name is not None:
            require_column(table, option, name)
    if response is None:
        response = _default_response(table, optional_response, features or (), drop)
    if weights is None and table.weights not in drop:
        weights = table.weights
    for name in drop:
        require_column(table, "--drop", name)
        if name in (response, weights, *(features or ())):
            where = f"{table.path}: --drop"
            got = f"{name!r}, which is also the response, the weights or an input"
            raise TableError(where, expected="columns to leave out", got=got)
    used = {response: "--response", weights: "--weights"}
    if response is not None and response == weights:
        got = f"{response!r} for both"
        raise TableError(
            str(table.path), expected="response and weights in different columns", got=got
        )
    if features is None:
        features = [name for name in table.names if name not in used and name not in drop]
        if not features:
            got = f"only {_listed(table.names)}"
            raise TableError(str(table.path), expected="at least one column of inputs", got=got)
    for position, name in enumerate(features):
        require_column(table, "--features", name)
        if name in used or name in features[:position]:
            where = f"{table.path}: --features"
            got = f"{name!r}, which is also {used[name]}" if name in used else f"{name!r} twice"
            raise TableError(where, expected="each column once", got=got)
    return Choice(tuple(features), response, weights)


def _default_response(
    table: Table, optional_response: bool, features: Sequence[str], drop: Sequence[str]
) -> str | None:
    if table.response is not None:
        return table.response
    known = [name for name in table.names if table.named and name.lower() in RESPONSES]
    found = [name for name in known if name not in (*features, *drop)]
    if len(found) == 1:
        return found[0]
    if optional_response:
        return None
    if known and not found:
        expected = "a response that is not an input: name it with --response"
        got = f"{known[0]!r} as both input and response"
        if known[0] not in features:
            got = f"{known[0]!r}, which --drop leaves out"
    elif found:
        expected, got = "one response: name it with --response", " and ".join(found)
    else:
        expected = "a column y, response or target: name the response with --response"
        got = _listed(table.names)
    raise TableError(str(table.path), expected=expected, got=got)


def require_column(table: Table, option: str, name: str) -> None:
    """Refuse the name, given with this option, of a column that the table does not have."""
    if name in table.names:
        return
    lower = {known.lower(): known for known in reversed(table.names)}
    near = difflib.get_close_matches(name.lower(), lower, 1)
    hint = f": did you mean {lower[near[0]]!r}?" if near else ""
    expected = f"a column {name!r} for {option}"
    raise TableError(str(table.path), expected=expected, got=_listed(table.names) + hint)


def _listed(names: Sequence[str]) -> str:
    """List names for a message; of many, only the first and the last."""
    if len(names) <= 12:
        return ", ".join(names)
    return f"{', '.join(names[:8])}, ..., {names[-1]} ({len(names)} columns)"
