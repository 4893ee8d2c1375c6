"""Partitions of Dask collections: inputs, responses and weights of the same rows, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from posquad.core.errors import DomainError, DtypeError, NonFiniteError, ShapeError
from posquad.core.extras import import_extra

_KINDS = "fiub"  # of numbers that convert to double precision


class Part(NamedTuple):
    """The samples of one partition of X."""

    number: int  # of the partition
    X: np.ndarray  # [n, d]
    y: np.ndarray  # [n]
    weights: np.ndarray | None  # [n]


class _Pieces(NamedTuple):
    """A collection as delayed objects or futures, one per partition, and their numbers of rows."""

    blocks: list[Any]
    lengths: list[int]
    kept: Any = None  # an array, which the cluster forgets with the last reference to it


def held_parts(client: Any, X: Any, y: Any, weights: Any = None) -> tuple[list[Any], list[Any]]:
    """Return a future per partition of X, with its `Part`, and what they need until they are done.

    Lengths are compared first. Collections are computed where the scheduler places them, and stay
    there. Responses and weights in other partitions than X are cut to those of X; arrays of NumPy
    are sent to the workers.
    """
    dask = import_extra("dask", "dask")
    width, dtype = _described(X)
    inputs = _pieces(client, "X", X)
    others = {"y": y} if weights is None else {"y": y, "weights": weights}
    known = {name: _side(client, name, value, inputs.lengths) for name, value in others.items()}
    cut = {name: _cut(pieces, inputs.lengths) for name, pieces in known.items()}
    rest = cut.get("weights", [None] * len(inputs.blocks))
    make = dask.delayed(_part, pure=False)
    parts = [
        make(number, width, dtype, block, responses, w)
        for number, (block, responses, w) in enumerate(
            zip(inputs.blocks, cut["y"], rest, strict=True)
        )
    ]
    return list(client.compute(parts)), [inputs, known]


def _described(X: Any) -> tuple[int, str]:
    """Return the number of columns of X and the dtype to work in; refuse what is no table."""
    if _is_frame(X):
        for name, kind in X.dtypes.items():
            if getattr(kind, "kind", "O") not in _KINDS:
                where = f"X: column {name!r}"
                raise DtypeError(where, expected="real numbers", got=f"dtype {kind}")
        kinds = {str(kind).lower() for kind in X.dtypes}
        return len(X.columns), "float32" if kinds == {"float32"} else "float64"
    if not _is_array(X):
        got = type(X).__name__
        raise DtypeError("X", expected="a dask array or data frame", got=got)
    if X.ndim != 2:
        raise ShapeError("X", expected="shape (n, d)", got=f"{X.ndim} dimensions")
    if X.dtype.kind not in _KINDS:
        raise DtypeError("X", expected="real numbers", got=f"dtype {X.dtype}")
    return X.shape[1], "float32" if X.dtype == np.float32 else "float64"


def _is_array(value: Any) -> bool:
    return isinstance(value, import_extra("dask.array", "dask").Array)


def _is_frame(value: Any) -> bool:
    collection = import_extra("dask.base", "dask").is_dask_collection(value)
    return collection and hasattr(value, "columns") and hasattr(value, "dtypes")


def _is_series(value: Any) -> bool:
    collection = import_extra("dask.base", "dask").is_dask_collection(value)
    return collection and hasattr(value, "npartitions") and getattr(value, "ndim", 0) == 1


def _pieces(client: Any, name: str, value: Any) -> _Pieces:
    """Return the partitions of a collection; lengths that are not known are computed."""
    if _is_array(value) and value.ndim == 2 and value.numblocks[1] > 1:
        value = value.rechunk({1: -1})
    if _is_array(value):
        kept = client.persist(value)
        blocks = list(np.ravel(kept.to_delayed()))
        if not any(np.isnan(size) for size in value.chunks[0]):
            return _Pieces(blocks, [int(size) for size in value.chunks[0]], kept)
    else:
        kept, blocks = None, _computed(client, name, value)
    count = import_extra("dask", "dask").delayed(len, pure=False)
    lengths = client.gather(client.compute([count(block) for block in blocks]))
    return _Pieces(blocks, [int(length) for length in lengths], kept)


def _computed(client: Any, name: str, frame: Any) -> list[Any]:
    """Return a future per partition of a data frame or series.

    Dask joins partitions of which few columns are read, for example those of Parquet files. What
    its `persist` then returns (Dask 2026.8) claims as many partitions as before, and has fewer.
    """
    delayed = frame.to_delayed()
    there = sum(each.key in each.__dask_graph__() for each in delayed)
    if there < len(delayed):
        expected = "a collection that was not persisted, because Dask then joined its partitions"
        got = f"{there} of its {len(delayed)} partitions"
        raise DomainError(name, expected=expected, got=got)
    return list(client.compute(delayed))


def _side(client: Any, name: str, value: Any, lengths: Sequence[int]) -> _Pieces:
    """Return the partitions of responses or weights, of which there must be as many as rows."""
    n = sum(lengths)
    if isinstance(value, np.ndarray) and value.ndim == 1:
        _require_length(name, len(value), n)
        bounds = [0, *accumulate(lengths)]
        slices = [value[a:b] for a, b in pairwise(bounds)]
        return _Pieces(client.scatter(slices, hash=False), list(lengths))
    if not (value.ndim == 1 if _is_array(value) else _is_series(value)):
        shape = f" of {value.ndim} dimensions" if hasattr(value, "ndim") else ""
        expected = "a dask array or series, or a NumPy array, of one dimension"
        raise DtypeError(name, expected=expected, got=f"{type(value).__name__}{shape}")
    known = _pieces(client, name, value)
    _require_length(name, sum(known.lengths), n)
    return known


def _cut(known: _Pieces, lengths: Sequence[int]) -> list[list[Any]]:
    """Return, for each partition of X, the pieces `(block, start, stop)` of another collection."""
    return [
        [(known.blocks[k], start, stop) for k, start, stop in pieces]
        for pieces in _cuts(known.lengths, lengths)
    ]


def _require_length(name: str, length: int, n: int) -> None:
    if length != n:
        raise ShapeError(name, expected=f"{n} rows, as X has", got=str(length))


def _cuts(held: Sequence[int], wanted: Sequence[int]) -> Iterator[list[tuple[int, int, int]]]:
    """Yield, for each wanted length, the pieces `(block, start, stop)` of blocks that make it up.

    >>> list(_cuts([3, 0, 4], [2, 0, 5]))
    [[(0, 0, 2)], [], [(0, 2, 3), (2, 0, 4)]]
    """
    block, start = 0, 0
    for length in wanted:
        pieces = []
        while length:
            taken = min(length, held[block] - start)
            if taken:
                pieces.append((block, start, start + taken))
            length, start = length - taken, start + taken
            if start == held[block]:
                block, start = block + 1, 0
        yield pieces


def _part(
    number: int, width: int, dtype: str, block: Any, responses: list[Any], weights: Any
) -> Part:
    """Return the samples of a partition, on a worker; the first number that is none is named."""
    X = _numbers("X", block, dtype, number)
    if X.ndim != 2 or X.shape[1] != width:
        expected, got = f"{width} columns", f"shape {X.shape} of partition {number}"
        raise ShapeError("X", expected=expected, got=got)
    y = _joined("y", responses, number)
    return Part(number, X, y, None if weights is None else _joined("weights", weights, number))


def _joined(name: str, pieces: list[Any], number: int) -> np.ndarray:
    found = [_numbers(name, block, None, number)[start:stop] for block, start, stop in pieces]
    found = [np.empty(0), *found]
    kinds = {piece.dtype for piece in found[1:]}
    joined = np.concatenate(found)
    joined = joined.astype(np.float32) if kinds == {np.dtype(np.float32)} else joined
    _require_finite(name, joined, number)
    return joined


def _numbers(name: str, block: Any, dtype: str | None, number: int) -> np.ndarray:
    """Return a partition as an array of numbers; missing values of pandas become NaN."""
    try:
        if hasattr(block, "to_numpy"):
            kind = dtype or ("float32" if str(block.dtype) == "float32" else "float64")
            values = block.to_numpy(dtype=kind, na_value=np.nan)
        else:
            values = np.asarray(block, dtype=dtype)
    except (ValueError, TypeError) as problem:
        got = f"{problem} in partition {number}"
        raise DtypeError(name, expected="real numbers", got=got) from None
    if values.dtype.kind not in _KINDS:
        got = f"{values.dtype} in partition {number}"
        raise DtypeError(name, expected="real numbers", got=got)
    if name == "X":
        _require_finite(name, values, number)
    return values


def _require_finite(name: str, values: np.ndarray, number: int) -> None:
    with np.errstate(all="ignore"):  # a sum of finite numbers may overflow
        if np.isfinite(values.sum()) or np.isfinite(values).all():
            return
    first = np.argwhere(~np.isfinite(values))[0]
    what = "NaN" if np.isnan(values[tuple(first)]) else "an infinity"
    place = f"row {first[0]} of partition {number}"
    place += f", column {first[1]}" if values.ndim == 2 else ""
    raise NonFiniteError(name, expected="finite numbers", got=f"{what} in {place}")
