"""Checks that the computing commands share: number of threads, and size of the numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import numpy as np

from posquad.core.ranges import FILE_NUMBERS
from posquad.core.threads import one_thread
from posquad.io.tables import Extremes, Samples, TableError

__all__ = ["require_scale", "suitable_threads"]

_SMALL = 1_000_000  # entries of X below which several threads are slower than one


@contextmanager
def suitable_threads(entries: int) -> Iterator[None]:
    """Run a small problem on one thread, unless the user set OMP_NUM_THREADS.

    >>> import torch
    >>> with suitable_threads(300 * 8):
    ...     torch.get_num_threads() == 1 or "OMP_NUM_THREADS" in os.environ
    True
    """
    if entries >= _SMALL or "OMP_NUM_THREADS" in os.environ:
        yield
        return
    with one_thread():
        yield


def require_scale(samples: Samples, *, inputs: bool = True, small: bool = False) -> None:
    """Refuse responses and (by default) inputs whose fourth powers overflow or vanish.

    With `small=True`, for predictions, tiny numbers are allowed: their prediction is zero.

    >>> from pathlib import Path
    >>> X = np.array([[1.0], [1e60]])
    >>> require_scale(Samples(Path("a.npy"), X, None, None, ("x1",), False, None))
    Traceback (most recent call last):
    posquad.io.tables._table.TableError: a.npy: the inputs: expected numbers between 1e-50 and 1e+50 in size; got 1.0e+60 as the largest, in row 2, column 'x1'; choose another unit
    """  # noqa: E501
    known = samples.extremes
    if inputs and known is not None:
        _require_extremes(samples, known, small=small)
    parts = [("the inputs", samples.X, samples.features)] if inputs and known is None else []
    if samples.y is not None:
        parts.append(("the responses", samples.y[:, None], (str(samples.response),)))
    for what, array, names in parts:
        size = max(float(array.max()), -float(array.min()))  # without copying a mapped array
        if _is_extreme(size, small):
            _refuse(samples, what, size, _place(samples, array, names, size), small=small)


def _is_extreme(size: float, small: bool) -> bool:
    low, high = FILE_NUMBERS.of()
    return size > high or (0 < size < low and not small)


def _refuse(samples: Samples, what: str, size: float, place: str, *, small: bool) -> NoReturn:
    low, high = FILE_NUMBERS.of()
    ends = f"of at most {high:.0e}"
    if not small:
        ends = f"between {low:.0e} and {high:.0e}"
    raise TableError(
        f"{samples.path}: {what}",
        expected=f"numbers {ends} in size",
        got=f"{size:.1e} as the largest, in {place}; choose another unit",
    )


def _require_extremes(samples: Samples, known: Extremes, *, small: bool) -> None:
    """Refuse the inputs of a table that stays in its file, by their least and largest numbers."""
    upper = known.high >= -known.low
    sizes = np.where(upper, known.high, -known.low)
    column = int(sizes.argmax())
    if _is_extreme(float(sizes[column]), small):
        row = int((known.high_row if upper[column] else known.low_row)[column])
        place = f"{samples.rows([row])[0]}, column {samples.features[column]!r}"
        _refuse(samples, "the inputs", float(sizes[column]), place, small=small)


def _place(samples: Samples, array: np.ndarray, names: tuple[str, ...], size: float) -> str:
    for name, column in zip(names, array.T, strict=True):
        for row in (int(column.argmax()), int(column.argmin())):
            if abs(float(column[row])) == size:
                return f"{samples.rows([row])[0]}, column {name!r}"
    raise AssertionError("the largest number is somewhere")
