"""What the commands that compute share: threads that suit the problem, numbers that can be used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from posquad.core.extras import optional
from posquad.io.tables import Samples, TableError

__all__ = ["require_scale", "suitable_threads"]

_SMALL = 1_000_000  # entries of X below which threads wait for each other more than they work
_LARGEST = 1e50  # of inputs and responses: far from where fourth powers overflow, or 1/it vanish


@contextmanager
def suitable_threads(entries: int) -> Iterator[None]:
    """One thread of torch and of BLAS for a small problem, unless the user set OMP_NUM_THREADS.

    >>> with suitable_threads(300 * 8):
    ...     torch.get_num_threads() == 1 or "OMP_NUM_THREADS" in os.environ
    True
    """
    before = torch.get_num_threads()
    if entries >= _SMALL or "OMP_NUM_THREADS" in os.environ:
        yield
        return
    torch.set_num_threads(1)
    try:
        with optional("threadpoolctl", "lab").threadpool_limits(1):  # it comes with scikit-learn
            yield
    finally:
        torch.set_num_threads(before)


def require_scale(samples: Samples, *, inputs: bool = True, small: bool = False) -> None:
    """Squares and fourth powers of responses and, by default, inputs must be numbers too.

    Where nothing is fitted, numbers may be `small`: what they give is zero, and so it should be.

    >>> from pathlib import Path
    >>> X = np.array([[1.0], [1e60]])
    >>> require_scale(Samples(Path("a.npy"), X, None, None, ("x1",), False, None))
    Traceback (most recent call last):
    posquad.io.tables._table.TableError: a.npy: the inputs: expected numbers between 1e-50 and 1e+50 in size; got 1.0e+60 as the largest, in row 2, column 'x1'; choose another unit
    """  # noqa: E501
    parts = [("the inputs", samples.X, samples.features)] if inputs else []
    if samples.y is not None:
        parts.append(("the responses", samples.y[:, None], (str(samples.response),)))
    for what, array, names in parts:
        size = max(float(array.max()), -float(array.min()))  # without a copy of what is mapped
        if size > _LARGEST or (0 < size < 1 / _LARGEST and not small):
            ends = f"of at most {_LARGEST:.0e}"
            if not small:
                ends = f"between {1 / _LARGEST:.0e} and {_LARGEST:.0e}"
            raise TableError(
                f"{samples.path}: {what}",
                expected=f"numbers {ends} in size",
                got=f"{size:.1e} as the largest, in {_place(samples, array, names, size)}; "
                "choose another unit",
            )


def _place(samples: Samples, array: np.ndarray, names: tuple[str, ...], size: float) -> str:
    for name, column in zip(names, array.T, strict=True):
        for row in (int(column.argmax()), int(column.argmin())):
            if abs(float(column[row])) == size:
                return f"{samples.rows([row])[0]}, column {name!r}"
    raise AssertionError("the largest number is somewhere")
