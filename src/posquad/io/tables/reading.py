"""Choose and read the columns of a data file: inputs, responses and weights."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posquad.io.tables._arrays import open_npy, open_npz
from posquad.io.tables._memory import require_memory
from posquad.io.tables._parquet import open_parquet
from posquad.io.tables._table import Table, TableError
from posquad.io.tables._text import open_text
from posquad.io.tables.writing import require_suffix

__all__ = [
    "Choice",
    "Samples",
    "choose_columns",
    "load_samples",
    "open_table",
    "read_samples",
    "require_file",
]

RESPONSES = ("y", "response", "target")
_KINDS: dict[str, Callable[[Path], Table]] = {
    ".csv": open_text,
    ".tsv": open_text,
    ".txt": open_text,
    ".parquet": open_parquet,
    ".npz": open_npz,
    ".npy": open_npy,
}


@dataclass(frozen=True)
class Samples:
    """Inputs, responses and weights of a data file, with their names."""

    path: Path
    X: np.ndarray  # [n, d]
    y: np.ndarray | None  # [n]; None only if no response was requested
    weights: np.ndarray | None  # [n]
    features: tuple[str, ...]  # names of the columns of X
    named: bool  # whether the file gives these names
    response: str | None
    lines: Callable[[Sequence[int]], list[int]] | None = None  # line numbers of rows of a text file

    def rows(self, places: Sequence[int]) -> list[str]:
        """Name rows (from 0) by their number (from 1), and by their line if it differs."""
        lines = [place + 1 for place in places]
        if self.lines is not None:
            with suppress(OSError, TableError, LookupError):  # the file has changed since
                lines = self.lines(places)
        return [
            f"row {place + 1}" + (f" (line {line})" if line != place + 1 else "")
            for place, line in zip(places, lines, strict=True)
        ]


@dataclass(frozen=True)
class Choice:
    """The names of the columns to read."""

    features: tuple[str, ...]
    response: str | None
    weights: str | None


def open_table(path: Path) -> Table:
    """Open a data file by its suffix; its columns are known, its numbers are not read yet.

    >>> open_table(Path("data.xlsx"))
    Traceback (most recent call last):
    posquad.io.tables._table.TableError: data.xlsx: expected a file that ends in .csv, .tsv, .txt, .parquet, .npz or .npy; got .xlsx
    """  # noqa: E501
    require_suffix(path)
    require_file(path)
    try:
        return _KINDS[path.suffix.lower()](path)
    except OSError as problem:
        raise _unreadable(path, problem) from None


def require_file(path: Path) -> None:
    """Refuse a path that is not a readable file.

    >>> require_file(Path("no/such.csv"))
    Traceback (most recent call last):
    posquad.io.tables._table.TableError: no/such.csv: expected a data file; got no such file
    """
    try:
        if path.is_dir():
            raise TableError(str(path), expected="a file", got="a folder")
        if not path.exists():
            raise TableError(str(path), expected="a data file", got="no such file")
        if not path.is_file():
            raise TableError(str(path), expected="a file", got="a device or a pipe")
        with path.open("rb"):
            pass
    except OSError as problem:
        raise _unreadable(path, problem) from None


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

    >>> table = Table(Path("a.csv"), ("age", "Y", "size"), 1, True, read=lambda names: np.zeros((1, 1)))
    >>> choose_columns(table)
    Choice(features=('age', 'size'), response='Y', weights=None)
    >>> choose_columns(table, response="agee")
    Traceback (most recent call last):
    posquad.io.tables._table.TableError: a.csv: expected a column 'agee' for --response; got age, Y, size: did you mean 'age'?
    """  # noqa: E501
    for option, name in (("--response", response), ("--weights", weights)):
        if name is not None:
            _require_column(table, option, name)
    if response is None:
        response = _default_response(table, optional_response, features or (), drop)
    if weights is None and table.weights not in drop:
        weights = table.weights
    for name in drop:
        _require_column(table, "--drop", name)
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
        _require_column(table, "--features", name)
        if name in used or name in features[:position]:
            where = f"{table.path}: --features"
            got = f"{name!r}, which is also {used[name]}" if name in used else f"{name!r} twice"
            raise TableError(where, expected="each column once", got=got)
    return Choice(tuple(features), response, weights)


def read_samples(
    path: Path,
    *,
    response: str | None = None,
    weights: str | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    copies: int = 2,
) -> Samples:
    """Read inputs, responses and weights of a data file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "data.csv").write_text("a,b,y\\n1,2,5\\n3,4,25\\n")
    ...     read_samples(Path(folder, "data.csv")).y
    array([ 5., 25.])
    """
    table = open_table(path)
    choice = choose_columns(table, response=response, weights=weights, features=features, drop=drop)
    return load_samples(table, choice, copies=copies)


def load_samples(table: Table, choice: Choice, *, copies: int = 2) -> Samples:
    """Read the chosen columns, if `copies` copies of them fit into memory.

    >>> table = Table(Path("a.npy"), ("x1",), 10**15, False, read=lambda names: np.ones((1, 1)))
    >>> load_samples(table, Choice(("x1",), None, None))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    posquad.io.tables._table.TableError: a.npy: expected a table that fits into memory (...
    """
    require_memory(table.path, 8 * copies * table.rows * len(choice.features), "a table")
    others = [name for name in (choice.response, choice.weights) if name is not None]
    try:
        if table.response is not None or not others:  # separate arrays
            X = table.read(choice.features)
            columns = {name: table.read([name])[:, 0] for name in others}
        else:
            joint = table.read([*choice.features, *others])
            width = len(choice.features)
            X = joint[:, :width]
            columns = {name: joint[:, width + k] for k, name in enumerate(others)}
    except OSError as problem:
        raise _unreadable(table.path, problem) from None
    except MemoryError:
        got = "one that does not fit into memory"
        raise TableError(str(table.path), expected="a data file", got=got) from None
    y = columns.get(choice.response) if choice.response is not None else None
    weights = columns.get(choice.weights) if choice.weights is not None else None
    named, response = table.named, choice.response
    samples = Samples(table.path, X, y, weights, choice.features, named, response, table.lines)
    if weights is not None and ((weights < 0).any() or not weights.any()):
        [row] = samples.rows([int(np.argmin(weights))])
        where = f"{table.path}: column {choice.weights!r}"
        got = f"{weights.min():g} in {row}"
        raise TableError(where, expected="nonnegative weights, not all zero", got=got)
    return samples


def _unreadable(path: Path, problem: OSError) -> TableError:
    got = f"one that cannot be read ({problem.strerror or problem})"
    return TableError(str(path), expected="a data file", got=got)


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


def _require_column(table: Table, option: str, name: str) -> None:
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
