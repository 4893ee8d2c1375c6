"""The common form of all data files: named columns that are read on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from posquad.core.errors import PosquadError, first_line

CHUNK = 2**21  # entries checked at a time: 16 MB


class TableError(PosquadError, ValueError):
    """A data file cannot be used; the message names the place, what was expected and found."""


@dataclass(frozen=True)
class Table:
    """A data file whose columns are known, and whose numbers are not read yet."""

    path: Path
    names: tuple[str, ...]
    rows: int  # an estimate for text files, from the length of the first lines
    named: bool  # whether the file names its columns; otherwise they are x1, x2, ...
    read: Callable[[Sequence[str]], np.ndarray]  # names -> [n, k], float64 or float32, finite
    response: str | None = None  # if the file defines it: y beside X in an npz file
    weights: str | None = None
    lines: Callable[[Sequence[int]], list[int]] | None = None  # line numbers of rows of a text file


def refuse_kind(path: Path, kind: str, problem: Exception) -> NoReturn:
    """Raise `TableError` for a file that could not be read as one of this kind."""
    got = f"a file of another kind or an incomplete one ({first_line(problem)})"
    raise TableError(str(path), expected=kind, got=got) from None


def default_names(count: int) -> tuple[str, ...]:
    """Return the names x1, x2, ... for columns without names."""
    return tuple(f"x{k + 1}" for k in range(count))


def require_distinct(path: Path, names: Sequence[str]) -> None:
    """Refuse columns without a name, and two columns with the same name."""
    for position, name in enumerate(names, 1):
        if not name:
            raise TableError(
                str(path),
                expected="a name for every column (write the file without its index column)",
                got=f"no name for column {position}",
            )
        if name in names[: position - 1]:
            first = names.index(name) + 1
            got = f"{name!r} for columns {first} and {position}"
            raise TableError(str(path), expected="columns with different names", got=got)


def require_real(path: Path, name: str, dtype: np.dtype) -> None:
    """Refuse arrays that do not hold real numbers, and pickled objects."""
    if dtype.hasobject:
        got = "pickled Python objects, which are never loaded"
        raise TableError(f"{path}: {name}", expected="real numbers", got=got)
    if dtype.kind not in "fiu":
        got = f"fields {', '.join(dtype.names)}" if dtype.names else f"type {dtype}"
        raise TableError(f"{path}: {name}", expected="real numbers", got=got)


def exact(path: Path, name: str, array: np.ndarray, columns: Sequence[str] = ()) -> np.ndarray:
    """Convert to float64 (or float32) without changing a number; refuse numbers that change.

    An array of native float64 or float32 numbers is returned unchanged, memory-mapped or not.
    """
    require_real(path, name, array.dtype)
    if array.dtype in (np.dtype(np.float64), np.dtype(np.float32)):
        wide = array
    elif array.dtype.kind == "f" and array.dtype.itemsize <= 4:
        wide = array.astype(np.float32)
    else:
        with np.errstate(over="ignore"):
            wide = array.astype(np.float64)
    step = max(1, CHUNK // max(1, array[:1].size))
    for start in range(0, len(array), step):
        part, given = wide[start : start + step], array[start : start + step]
        good = np.isfinite(part)
        if good.all() and wide is not array:
            good = np.abs(part) < 2.0**53 if given.dtype.kind in "iu" else part == given
        if not good.all():
            place = tuple(int(k) for k in np.argwhere(~good)[0])
            got = given[place]
            where = _place(path, name, (place[0] + start, *place[1:]), columns)
            if np.isfinite(np.float64(got)):
                raise TableError(where, expected="a double precision number", got=str(got))
            raise TableError(where, expected="a finite number", got=_spelled(float(got)))
    return wide


def _place(path: Path, name: str, place: tuple[int, ...], columns: Sequence[str]) -> str:
    if columns and len(place) == 2:
        return f"{path}: row {place[0] + 1}, column {columns[place[1]]!r}"
    return f"{path}: {name}[{', '.join(map(str, place))}]"


def _spelled(value: float) -> str:
    return "NaN" if np.isnan(value) else "an infinity or a number beyond double precision"
