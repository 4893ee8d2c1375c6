"""Rows of `.npy` files that are read block by block, and never mapped or read whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posquad.core.errors import DomainError, ShapeError, first_line
from posquad.core.files import FileError, sample_checksum
from posquad.problems.rows.reader import Piece, read_ahead
from posquad.problems.rows.source import BLOCK_BYTES, Rows

__all__ = ["NpyRows", "Shard", "from_npy"]

_EXACT = 2**53  # integers below this size are doubles


@dataclass(frozen=True)
class Shard:
    """A file with an array of two axes: where its numbers begin, and when it was last changed."""

    path: Path
    rows: int
    columns: int
    kind: str  # of the numbers, such as "<f8"
    begin: int  # first byte of the numbers
    by_column: bool  # whether columns are stored one after the other
    size: int  # of the file
    changed: int  # time, in nanoseconds
    first: int = 0  # first row that is used
    stored_rows: int = 0  # rows of the whole file
    checks: tuple[int, ...] = ()  # `block_checksum` of each block of the whole file, if known

    @property
    def width(self) -> int:
        """Bytes of a number."""
        return np.dtype(self.kind).itemsize

    @property
    def bytes_used(self) -> tuple[int, int]:
        """First byte of the rows that are used, and the one after the last."""
        if self.by_column:  # the rows are spread over the whole file
            return self.begin, self.begin + self.stored_rows * self.columns * self.width
        row = self.columns * self.width
        return self.begin + self.first * row, self.begin + (self.first + self.rows) * row


class NpyRows(Rows):
    """Rows of one or several `.npy` files, one after the other; chosen columns of them."""

    def __init__(self, shards: Sequence[Shard], columns: Sequence[int] | None = None) -> None:
        self.shards = list(shards)
        self.n = sum(shard.rows for shard in shards)
        self.columns = None if columns is None else list(columns)
        self.stored = shards[0].columns
        self.d = self.stored if columns is None else len(self.columns or ())
        self.dtype = torch.float32 if _is_single(np.dtype(shards[0].kind)) else torch.float64

    @property
    def block_rows(self) -> int:
        return rows_of_block(self.stored * self.dtype.itemsize)

    def with_columns(self, columns: Sequence[int]) -> NpyRows:
        """Return the rows of other columns of the same files."""
        return self._made(self.shards, columns)

    def _made(self, shards: Sequence[Shard], columns: Sequence[int] | None) -> NpyRows:
        """Return other rows or columns of the same files."""
        return NpyRows(shards, columns)

    def part_rows(self, index: int, count: int) -> slice:
        """Return which rows one of `count` parts has: whole blocks, about equally many.

        Sums over blocks are then the same, whatever the number of parts.
        """
        starts = [rows.start for rows, _, _ in self._plan()]
        bounds = [*starts, self.n]
        first, last = (len(starts) * k // count for k in (index, index + 1))
        return slice(bounds[first], bounds[last])

    def part(self, index: int, count: int) -> NpyRows | Tensor:
        """Return the rows of one of `count` parts; an empty tensor if it has no rows."""
        wanted = self.part_rows(index, count)
        chosen, before = [], 0
        for shard in self.shards:
            low, high = max(wanted.start - before, 0), min(wanted.stop - before, shard.rows)
            if low < high:
                chosen.append(replace(shard, first=shard.first + low, rows=high - low))
            before += shard.rows
        return (
            self._made(chosen, self.columns) if chosen else torch.empty(0, self.d, dtype=self.dtype)
        )

    def fingerprint(self) -> list[Any]:
        files = [
            [s.path.name, s.size, s.changed, s.first, s.rows, s.columns, s.kind, s.by_column]
            for s in self.shards
        ]
        samples = [sample_checksum(s.path, *s.bytes_used) for s in self.shards]
        return [files, samples, self.columns, self.block_rows]

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        return self._blocks_from(0)

    def _blocks_from(self, begin: int) -> Iterator[tuple[slice, Tensor]]:
        self._require_unchanged()
        plan = [each for each in self._plan() if each[0].stop > begin]
        kind = np.dtype(self.shards[0].kind)
        size = self.block_rows * self.stored * kind.itemsize
        bytes_of = read_ahead(
            [shard.path for shard in self.shards],
            [pieces for _, _, pieces in plan],
            size,
            pinned=self.pinned,
        )
        for (rows, by_column, _), data in zip(plan, bytes_of, strict=True):
            if rows.stop == self.n:  # all bytes have been read: were they those of one version?
                self._require_unchanged()
            count = rows.stop - rows.start
            numbers = data[: count * self.stored * kind.itemsize].view(kind)
            shape = (self.stored, count) if by_column else (count, self.stored)
            block = numbers.reshape(shape)
            block = block.T if by_column else block
            chosen = block if self.columns is None else block[:, self.columns]
            yield rows, torch.from_numpy(self._converted(rows, chosen))

    def _converted(self, rows: slice, block: np.ndarray) -> np.ndarray:
        """Return the numbers of a block in the precision of the source; none may change."""
        if block.dtype.kind in "iu" and block.dtype.itemsize == 8:
            bad = (block >= _EXACT) | (block <= -_EXACT)
            if bad.any():
                shard, _ = self._place(rows.start + int(np.argwhere(bad)[0, 0]))
                expected, got = "integers below 2^53, which are doubles", str(block[bad][0])
                raise FileError(str(shard.path), expected=expected, got=got)
        return block.astype(np.float32 if self.dtype == torch.float32 else np.float64, copy=False)

    def _require_unchanged(self) -> None:
        for shard in self.shards:
            require_unchanged(shard.path, shard.size, shard.changed)

    def _plan(self) -> Iterator[tuple[slice, bool, list[Piece]]]:
        """Yield the rows of each block, the order of its numbers, and the bytes to read."""
        done = 0
        for index, shard in enumerate(self.shards):
            for start in range(0, shard.rows, self.block_rows):
                count = min(self.block_rows, shard.rows - start)
                if shard.by_column:
                    length = count * shard.width
                    pieces = [
                        Piece(
                            index,
                            shard.begin
                            + (column * shard.stored_rows + shard.first + start) * shard.width,
                            column * length,
                            length,
                        )
                        for column in range(shard.columns)
                    ]
                else:
                    row = shard.columns * shard.width
                    begin = shard.first + start
                    check = shard.checks[begin // self.block_rows] if shard.checks else None
                    pieces = [Piece(index, shard.begin + begin * row, 0, count * row, check)]
                yield slice(done + start, done + start + count), shard.by_column, pieces
            done += shard.rows

    def name_row(self, row: int) -> str:
        shard, place = self._place(row)
        return f"row {place} of {shard.path}"

    def _place(self, row: int) -> tuple[Shard, int]:
        """Return the file that holds a row, and the number of the row there, from 0."""
        first = 0
        for shard in self.shards[:-1]:
            if row < first + shard.rows:
                return shard, row - first + shard.first
            first += shard.rows
        last = self.shards[-1]
        return last, row - first + last.first

    def name_column(self, column: int) -> str:
        return f"column {column if self.columns is None else self.columns[column]}"


def from_npy(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    columns: Sequence[int] | np.ndarray | None = None,
) -> NpyRows:
    """Return the rows of a `.npy` file, or of several that are one table cut into shards.

    Only the headers are read here. Later, blocks of 16 MB are read in order into two buffers, one
    ahead of the computation. Numbers are of any real type up to 8 bytes, rows or columns one after
    the other; float32 and float16 become float32, all others float64, also integers and booleans.

    Args:
        paths: a file, or files in the order of their rows.
        columns: the columns to use, from 0; by default all.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/a.npy", np.arange(6.0).reshape(3, 2))
    ...     rows = from_npy(f"{folder}/a.npy", columns=[1])
    ...     rows.read_all().T
    tensor([[1., 3., 5.]], dtype=torch.float64)
    """
    named = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not isinstance(named, Iterable):
        raise DomainError("paths", expected="a path or several", got=type(paths).__name__)
    files = []
    for path in named:
        if not isinstance(path, str | os.PathLike):
            raise DomainError("paths", expected="paths", got=type(path).__name__)
        files.append(Path(path))
    if not files:
        raise DomainError("paths", expected="at least one file", got="none")
    shards = [described(path) for path in files]
    first = shards[0]
    for shard in shards[1:]:
        if (shard.columns, shard.kind) != (first.columns, first.kind):
            expected = f"{first.columns} columns of {first.kind}, as in {first.path}"
            got = f"{shard.columns} columns of {shard.kind}"
            raise ShapeError(str(shard.path), expected=expected, got=got)
    shards = [shard for shard in shards if shard.rows]
    if not shards or not first.columns:
        got = f"{0 if not shards else 'some'} rows and {first.columns} columns"
        raise ShapeError(str(first.path), expected="shape (n, d) with n, d >= 1", got=got)
    return NpyRows(shards, None if columns is None else _checked_columns(columns, first.columns))


def _checked_columns(columns: Sequence[int] | np.ndarray, stored: int) -> list[int]:
    """Return the positions of columns, or refuse them."""
    expected = f"columns from 0 to {stored - 1}, at least one"
    given = [] if isinstance(columns, str) or not isinstance(columns, Iterable) else list(columns)
    if not given:
        raise DomainError("columns", expected=expected, got=repr(columns))
    for column in given:
        whole = isinstance(column, int | np.integer) and not isinstance(column, bool)
        if not whole or not 0 <= column < stored:
            raise DomainError("columns", expected=expected, got=repr(column))
    return [int(column) for column in given]


def described(path: Path) -> Shard:
    """Return where the numbers of a `.npy` file are; only its header is read."""
    try:
        known = path.stat()
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, by_column, dtype = read(file)
            begin = file.tell()
    except OSError as problem:
        got = problem.strerror or str(problem)
        raise FileError(str(path), expected="a readable .npy file", got=got) from None
    except (ValueError, KeyError, EOFError, SyntaxError, TokenError) as problem:
        got = first_line(problem)
        raise FileError(str(path), expected="a NumPy array (.npy)", got=got) from None
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        expected = "real numbers of at most 8 bytes"
        raise FileError(str(path), expected=expected, got=str(dtype))
    if len(shape) != 2:
        raise FileError(str(path), expected="an array of two axes", got=f"shape {shape}")
    needed = begin + shape[0] * shape[1] * dtype.itemsize
    if known.st_size < needed:
        got = f"{known.st_size} bytes: the file is incomplete"
        raise FileError(str(path), expected=f"{needed} bytes", got=got)
    return Shard(
        path,
        shape[0],
        shape[1],
        dtype.str,
        begin,
        by_column and 1 not in shape,
        known.st_size,
        known.st_mtime_ns,
        stored_rows=shape[0],
    )


def rows_of_block(width: int) -> int:
    """Return how many rows of `width` bytes are read at a time.

    >>> rows_of_block(8 * 40)
    52428
    """
    return max(1, BLOCK_BYTES // width)


def _is_single(dtype: np.dtype) -> bool:
    return dtype.kind == "f" and dtype.itemsize <= 4


def require_unchanged(path: Path, size: int, changed: int) -> None:
    """Refuse a file that has not this size and this time of its last change, in nanoseconds."""
    try:
        known = path.stat()
    except OSError as problem:
        got = problem.strerror or str(problem)
        raise FileError(str(path), expected="a readable file", got=got) from None
    if (known.st_size, known.st_mtime_ns) != (size, changed):
        expected = "the file as it was when it was opened"
        got = f"one that was changed since, {known.st_size} bytes after {size}"
        raise FileError(str(path), expected=expected, got=got)
