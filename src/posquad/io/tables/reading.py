"""Read the chosen columns of a data file: inputs, responses and weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from posquad.io.tables._cells import PLAIN, NumberFormat
from posquad.io.tables._loading import (
    encodings_for,
    read_coded,
    read_numbers,
    require_types,
    settle_levels,
)
from posquad.io.tables._memory import format_bytes, require_memory
from posquad.io.tables._missing import Gaps
from posquad.io.tables._streamed import Extremes, Scanned, Share, scan
from posquad.io.tables._table import (
    TEMPORARY,
    Caching,
    Fact,
    Report,
    Table,
    TableError,
    name_rows,
)
from posquad.io.tables.choosing import Choice, choose_columns, require_column
from posquad.io.tables.encoding import NO_REQUEST, NO_RULES, Encoding, Places, Request, Rules
from posquad.io.tables.opening import open_table, unreadable

__all__ = ["Samples", "load_samples", "read_samples"]


@dataclass(frozen=True)
class Samples:
    """Inputs, responses and weights of a data file, with their names."""

    path: Path
    X: Any  # [n, d], an array, or the rows of a table that stays in its file
    y: np.ndarray | None  # [n]; None only if no response was requested
    weights: np.ndarray | None  # [n]
    features: tuple[str, ...]  # names of the columns of X
    named: bool  # whether the file gives these names
    response: str | None
    lines: Callable[[Sequence[int]], list[int]] | None = None  # line numbers of rows of a text file
    kept: np.ndarray | None = None  # rows of the file, if some were left out
    rules: Rules = NO_RULES  # how the columns became numbers
    facts: tuple[Fact, ...] = ()  # what was left out, filled in or encoded
    extremes: Extremes | None = None  # of the inputs, if they stay in the file

    def sources(self, features: Sequence[str]) -> list[str]:
        """Return the columns of the file that these features come from, each once."""
        column = {name: each.column for each in self.rules.inputs for name in each.features}
        return list(dict.fromkeys(column.get(name, name) for name in features))

    def rows(self, places: Sequence[int]) -> list[str]:
        """Name rows (from 0) by their lines in a text file, else by their numbers from 1."""
        stored = list(places) if self.kept is None else self.kept[list(places)].tolist()
        return name_rows(stored, self.lines)


def read_samples(
    path: Path,
    *,
    response: str | None = None,
    weights: str | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    encode: Request = NO_REQUEST,
    missing: str = "refuse",
    numbers: NumberFormat = PLAIN,
    constant: bool = False,
    copies: int = 2,
    report: Report | None = None,
    share: Share | None = None,
    caching: Caching = TEMPORARY,
) -> Samples:
    """Read inputs, responses and weights of a data file; `rules` of the result say how.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "data.csv").write_text("a,b,y\\n1,2,5\\n3,4,25\\n")
    ...     read_samples(Path(folder, "data.csv")).y
    array([ 5., 25.])
    """
    table = open_table(path, numbers)
    choice = choose_columns(table, response=response, weights=weights, features=features, drop=drop)
    how: dict[str, Any] = {"encode": encode, "missing": missing, "constant": constant}
    how["caching"] = caching
    return load_samples(table, choice, copies=copies, report=report, share=share, **how)


def load_samples(
    table: Table,
    choice: Choice,
    *,
    rules: Rules | None = None,
    encode: Request = NO_REQUEST,
    missing: str = "refuse",
    constant: bool = False,
    keep_rows: bool = False,
    copies: int = 2,
    whole: bool = False,
    report: Report | None = None,
    share: Share | None = None,
    caching: Caching = TEMPORARY,
) -> Samples:
    """Read the chosen columns, if `copies` copies of them fit into memory.

    The inputs of a .npy file with 256 MB of numbers or more, and of a .parquet file of which that
    much is used, stay in the file if they are numbers: X of the result is a source of their rows.

    Args:
        table: an open table.
        choice: the columns to read.
        rules: the rules of a fitted model, which are applied; None to learn them from the table.
        encode: the encodings to learn.
        missing: what to do about missing values: refuse, drop their rows, or fill in the mean.
        constant: whether the model has a constant besides the columns.
        keep_rows: refuse to leave out a row, for predictions.
        copies: how many copies of the inputs must fit into memory.
        whole: read all inputs into memory, also those of a large table.
        report: called with the work at hand and its share that is done, for a table that stays in
            its file.
        share: how several processes read a large table together; None for one process.
        caching: where the copy of the numbers of a large .parquet file is, and whether it is kept.

    >>> table = Table(Path("a.npy"), ("x1",), 10**15, False, read=lambda names: np.ones((1, 1)))
    >>> load_samples(table, Choice(("x1",), None, None))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    posquad.io.tables._table.TableError: a.npy: expected a table that fits into memory (...
    """
    encoded = encode.columns or (rules is not None and rules.inputs)
    source = None if whole or encoded else table.source([*choice.features, *choice.others])
    if source is not None:
        known = scan(table, choice, partial(source, caching=caching), report, share)
        return _streamed_samples(table, known, choice, rules, missing)
    known = rules if rules is not None and (rules.inputs or rules.response) else None
    try:
        if known is None:
            for name in encode.columns:
                require_column(table, "--encode", name)
            wanted = encodings_for(table, choice, encode)
        else:
            wanted = _renamed(known, choice)
        require_types(table, choice, wanted, advise=rules is None)
        require_memory(table.path, 8 * copies * table.rows * len(choice.features), "a table")
        X, columns, encodings = _read_columns(table, choice, wanted, learn=rules is None)
        facts = table.facts()
    except OSError as problem:
        raise unreadable(table.path, problem) from None
    except MemoryError:
        got = "one that does not fit into memory"
        raise TableError(str(table.path), expected="a data file", got=got) from None
    inputs = tuple(encodings.get(name, Encoding(name)) for name in choice.features)
    X, columns, kept, told = Gaps(table, X, columns, inputs).handled(
        missing, None if rules is None else rules.means, keep_rows=keep_rows
    )
    if rules is None:
        X, inputs = settle_levels(table, X, inputs, constant=constant)
    response = choice.response
    answer = encodings.get(response) if response is not None else None
    coded = [each for each in (*inputs, answer) if each is not None and each.kind != "number"]
    if coded:
        facts.append(("encoded", "; ".join(map(str, coded))))
    features = tuple(feature for each in inputs for feature in each.features)
    _require_different(table, features)
    if rules is None:
        with np.errstate(over="ignore"):  # numbers of extreme size are refused later
            means = tuple(map(float, np.atleast_1d(np.mean(X, axis=0, dtype=np.float64))))
        rules = Rules(
            inputs if any(each.kind != "number" for each in inputs) else (),
            answer,
            means,
            missing,
            table.numbers,
            _places(table, choice),
        )
    y = columns.get(response) if response is not None else None
    weights = columns.get(choice.weights) if choice.weights is not None else None
    samples = Samples(
        table.path,
        X,
        y,
        weights,
        features,
        table.named,
        response,
        table.lines,
        kept,
        rules,
        (*facts, *told),
    )
    _require_weights(samples, choice)
    return samples


def _streamed_samples(
    table: Table, known: Scanned, choice: Choice, rules: Rules | None, missing: str
) -> Samples:
    """Return the samples of a large table, whose inputs stay in the file."""
    features, columns = choice.features, known.columns
    _require_different(table, features)
    samples = Samples(
        table.path,
        known.X,
        columns.get(choice.response or ""),
        columns.get(choice.weights or ""),
        features,
        table.named,
        choice.response,
        rules=rules or Rules((), None, known.means, missing, table.numbers, _places(table, choice)),
        facts=(*table.facts(), ("read", _how_it_is_read(known.X))),
        extremes=known.extremes,
    )
    _require_weights(samples, choice)
    return samples


def _how_it_is_read(X: Any) -> str:
    """Say where the numbers of a large table are read from, and what becomes of a copy."""
    cache = getattr(X, "cache", None)
    if cache is None:
        return "block by block: the table stays in its file"
    size = format_bytes(cache.path.stat().st_size)
    if cache.keep:
        return f"block by block, from a copy of its numbers that is kept: {cache.path} ({size})"
    return (
        f"block by block, from a copy of its numbers in {cache.folder} ({size}), which is deleted "
        "at the end"
    )


def _places(table: Table, choice: Choice) -> Places | None:
    """Return the places of the columns, if only those identify them."""
    if table.named or table.response is not None:
        return None
    return Places(len(table.names), choice.features, choice.response)


def _require_weights(samples: Samples, choice: Choice) -> None:
    weights = samples.weights
    if weights is not None and ((weights < 0).any() or not weights.any()):
        [row] = samples.rows([int(np.argmin(weights))])
        where = f"{samples.path}: column {choice.weights!r}"
        got = f"{weights.min():g} in {row}"
        raise TableError(where, expected="nonnegative weights, not all zero", got=got)


def _renamed(rules: Rules, choice: Choice) -> dict[str, Encoding]:
    """Return the encodings of a model for the columns that stand for its inputs and response."""
    pairs = list(zip(choice.features, rules.inputs, strict=False))
    if choice.response is not None and rules.response is not None:
        pairs.append((choice.response, rules.response))
    return {name: replace(each, column=name) for name, each in pairs if each.kind != "number"}


def _read_columns(
    table: Table, choice: Choice, wanted: dict[str, Encoding], *, learn: bool
) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, Encoding]]:
    """Read inputs `[n, d]`, and response and weights `[n]`; also return the complete encodings."""
    plain = [name for name in choice.features if name not in wanted]
    others = [name for name in choice.others if name not in wanted]
    X = np.empty((0, 0))
    if table.response is not None or not others:  # separate arrays
        X = read_numbers(table, choice, plain, learn) if plain else X
        columns = {name: read_numbers(table, choice, [name], learn)[:, 0] for name in others}
    else:
        joint = read_numbers(table, choice, [*plain, *others], learn)
        X = joint[:, : len(plain)]
        columns = {name: joint[:, len(plain) + k] for k, name in enumerate(others)}
    if not wanted:
        return X, columns, {}
    coded = read_coded(table, list(wanted.values()), choice.response)
    if choice.response in coded:
        columns[choice.response] = coded[choice.response].values[:, 0]
    parts = [
        coded[name].values if name in coded else X[:, [plain.index(name)]]
        for name in choice.features
    ]
    single = plain and X.dtype == np.float32
    exact = all(each.encoding.kind != "percent" for each in coded.values())
    joined = np.hstack(parts).astype(np.float32 if single and exact else np.float64, copy=False)
    return joined, columns, {name: each.encoding for name, each in coded.items()}


def _require_different(table: Table, features: Sequence[str]) -> None:
    if len(set(features)) < len(features):
        twice = next(name for name in features if features.count(name) > 1)
        got = f"{twice!r} twice, as a column and as a level of another; rename it"
        raise TableError(str(table.path), expected="features of different names", got=got)
