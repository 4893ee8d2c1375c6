"""Parquet files as rows: converted to a `.npy` file beside them, which is then read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from torch import Tensor

from posquad.core.arguments import require_boolean
from posquad.core.errors import DomainError
from posquad.core.extras import import_extra
from posquad.core.files import FileError, sample_checksum
from posquad.core.parquet import data_columns
from posquad.problems.rows.cache import Cache, Hold, pack_checks, unpack_checks
from posquad.problems.rows.disk import NpyRows, Shard, described, require_unchanged, rows_of_block
from posquad.problems.rows.reader import DamagedFileError, block_checksum

__all__ = ["MissingNumberError", "ParquetRows", "from_parquet"]

_FOOTER = 8  # last bytes of a Parquet file: the length of the footer, and a mark
_BATCH = 65_536  # most rows converted at a time
_BUFFERS = 16 * 2**20  # bytes of the buffers of all columns
_BUFFER = 2**20  # bytes of the buffer of a column at most
_FORMAT = 2  # of a cache; the first had no checksums


class MissingNumberError(FileError):
    """A cell has no number; `row` counts from 0, and `column` is a name."""

    row: int
    column: str


class _Origin(NamedTuple):
    """The Parquet file, its columns, their cache, and a lock on it."""

    path: Path
    names: Sequence[str]
    cache: Cache
    hold: Hold


class ParquetRows(NpyRows):
    """Rows of a Parquet file, read from its cache; messages name the file and its columns."""

    def __init__(
        self, shards: Sequence[Shard], columns: Sequence[int] | None, origin: _Origin
    ) -> None:
        super().__init__(shards, columns)
        self.origin = origin

    def _made(self, shards: Sequence[Shard], columns: Sequence[int] | None) -> NpyRows:
        return ParquetRows(shards, columns, self.origin)

    @property
    def cache(self) -> Cache:
        """The file with the numbers: its `path`, and whether it is kept (`keep`)."""
        return self.origin.cache

    def fingerprint(self) -> list[Any]:
        # The cache may be written again, at another time: the checksums tell its numbers.
        (shard,), cache = self.shards, self.origin.cache
        stored = [cache.version, cache.columns, _key(*shard.checks)]
        return [self.origin.path.name, stored, shard.first, shard.rows, self.columns, shard.kind]

    def _blocks_from(self, begin: int) -> Iterator[tuple[slice, Tensor]]:
        try:
            yield from super()._blocks_from(begin)
        except DamagedFileError as found:
            (shard,), cache = self.shards, self.origin.cache
            row = (found.offset - shard.begin) // (shard.columns * shard.width)
            place = f"block {row // self.block_rows + 1} of {len(shard.checks)}"
            remedy = "it was deleted" if cache.remove() else "delete it"
            got = (
                f"others in {place}, by their checksum: the disk or the memory may be faulty; "
                f"{remedy}, and the next call converts the file again"
            )
            expected = f"the numbers of {self.origin.path}, of which it is a cache"
            raise FileError(str(cache.path), expected=expected, got=got) from None

    def name_row(self, row: int) -> str:
        return f"row {row + self.shards[0].first} of {self.origin.path}"

    def name_column(self, column: int) -> str:
        place = column if self.columns is None else self.columns[column]
        return f"column {self.origin.names[place]!r}"


def from_parquet(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    keep: bool = False,
    progress: Callable[[float], None] | None = None,
) -> ParquetRows:
    """Return the rows of a Parquet file, from a cache of its numbers in row order.

    The cache is a hidden file, as large as the numbers, beside the Parquet file or in `folder`; its
    path is `cache.path` of the result. By default it is deleted when nothing uses it any more: when
    the result and the sources made from it are gone, or the process ends, also by an error or
    Ctrl-C. If several processes read it, the last one deletes it. A process that is killed leaves
    it; the next call uses it and deletes it then. With `keep=True` it stays for later calls, with
    or without `keep`, until the Parquet file changes or you delete it.

    A cache is `.NAME.VERSION.COLUMNS.posquad.npy`, or `...temporary.npy` if it is not kept. The
    version is made from the size and time of the file and checksums of its footer and of samples
    of its bytes; so a changed file gets a new cache, and those of other versions are deleted if no
    process reads them. It is written under another name and then renamed, so that it is complete or
    missing; one that was cut later is written again. Every block that is read is compared with its
    checksum. If it has changed, a `FileError` says so and the cache is deleted, so that the next
    call writes it again; a checkpoint (`posquad.recovery.Checkpoint`) still belongs to it.

    Args:
        path: the Parquet file.
        columns: names of the columns to use; by default all, except an index that pandas stored.
            They must hold real numbers, or true and false for 1 and 0, without missing values.
        folder: the folder of the cache.
        keep: leave the cache for later calls.
        progress: called with the share of the rows that are converted.

    >>> import pyarrow, pyarrow.parquet, tempfile
    >>> table = pyarrow.table({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    >>> with tempfile.TemporaryDirectory() as place:
    ...     pyarrow.parquet.write_table(table, f"{place}/t.parquet")
    ...     from_parquet(f"{place}/t.parquet", ["b"]).read_all().T
    tensor([[3., 4.]], dtype=torch.float64)
    """
    parquet, arrow = import_extra("pyarrow.parquet", "lab"), import_extra("pyarrow", "lab")
    if not isinstance(path, str | os.PathLike):
        raise DomainError("path", expected="a path", got=type(path).__name__)
    require_boolean(keep=keep)
    if isinstance(columns, str):
        raise DomainError("columns", expected="a list of names", got=repr(columns))
    given = Path(path)
    try:
        known = given.stat()
        with parquet.ParquetFile(given) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
            footer = _footer(given)
    except (arrow.ArrowException, OSError, ValueError) as problem:
        got = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise FileError(str(given), expected="a Parquet file", got=got) from None
    names = list(data_columns(schema.names) if columns is None else columns)
    _require_numbers(given, schema, names, arrow)
    if not rows or not names:
        got = f"{rows} rows and {len(names)} columns"
        raise FileError(str(given), expected="rows and columns", got=got)
    narrow = all(schema.field(name).type == arrow.float32() for name in names)
    table = _Table(given, names, rows, np.dtype("<f4" if narrow else "<f8"), known)
    samples = sample_checksum(given)
    version = _key(_FORMAT, known.st_size, known.st_mtime_ns, footer.hex(), samples)
    place, owner = given.parent, given.name
    if folder is not None:  # which may hold caches of files of the same name
        place, owner = Path(folder), f"{given.name}.{_key(given.resolve().parent)}"
    kept = Cache(place, owner, version, _key(*names))
    cache = kept._replace(keep=keep)
    found = _opened(kept, table)
    if found is None and not keep:
        found = _opened(cache, table)
    if found is None:
        found = _convert(table, cache, progress)
    if found is None:
        got = "one that another process deleted or cut"
        raise FileError(str(cache.path), expected="a whole cache", got=got)
    return found


class _Table(NamedTuple):
    """The numbers of a Parquet file that are converted."""

    path: Path
    names: Sequence[str]
    rows: int
    dtype: np.dtype[Any]
    known: os.stat_result  # of the file when it was opened

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return len(self.names) * self.dtype.itemsize

    @property
    def block_rows(self) -> int:
        """Rows of a block, which has a checksum."""
        return rows_of_block(self.width)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.rows // self.block_rows)

    def require_unchanged(self) -> None:
        """Refuse a file that was changed since it was opened."""
        require_unchanged(self.path, self.known.st_size, self.known.st_mtime_ns)


def _key(*parts: object) -> str:
    """Return sixteen digits that differ for other parts."""
    key = hashlib.sha256()
    for part in parts:
        key.update(f"{part}\0".encode())
    return key.hexdigest()[:16]


def _opened(cache: Cache, table: _Table) -> ParquetRows | None:
    """Return the rows of a cache; None if there is none, or not a whole one."""
    try:
        hold = cache.hold()
        shard = described(cache.path)
        with cache.path.open("rb") as file:
            file.seek(shard.bytes_used[1])
            checks = unpack_checks(file.read(), table.block_rows, table.blocks)
    except (OSError, FileError):
        return None
    shape = (shard.rows, shard.columns, shard.kind, shard.by_column)
    if checks is None or shape != (table.rows, len(table.names), table.dtype.str, False):
        return None
    shard = replace(shard, checks=checks)
    return ParquetRows([shard], None, _Origin(table.path, table.names, cache, hold))


def _footer(path: Path) -> bytes:
    """Return the checksum of the footer, which describes and locates all columns."""
    with path.open("rb") as file:
        file.seek(-_FOOTER, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-_FOOTER - length, os.SEEK_END)
        return hashlib.sha256(file.read(length)).digest()


def _require_numbers(path: Path, schema: Any, names: Sequence[str], arrow: Any) -> None:
    for name in names:
        if name not in schema.names:
            got = ", ".join(schema.names[:12])
            raise FileError(str(path), expected=f"a column {name!r}", got=got)
        if schema.names.count(name) > 1:
            got = f"{schema.names.count(name)} of them"
            raise FileError(str(path), expected=f"one column {name!r}", got=got)
        kind = schema.field(name).type
        kinds = arrow.types.is_integer, arrow.types.is_floating, arrow.types.is_boolean
        if not any(holds(kind) for holds in kinds):
            where = f"{path}: column {name!r}"
            raise FileError(where, expected="real numbers", got=f"type {kind}")


def _convert(
    table: _Table, cache: Cache, progress: Callable[[float], None] | None
) -> ParquetRows | None:
    """Write the cache and open it."""
    parquet, arrow = import_extra("pyarrow.parquet", "lab"), import_extra("pyarrow", "lab")
    shape = table.rows, len(table.names)
    # By default pyarrow reads whole row groups ahead, that is a file with one of them.
    small = {"pre_buffer": False, "buffer_size": min(_BUFFER, max(4096, _BUFFERS // shape[1]))}

    def fill(out: BinaryIO) -> None:
        header = {"descr": table.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(out, header)
        checks = []
        with parquet.ParquetFile(table.path, **small) as file:
            for done, block in _full_blocks(table, file):
                out.write(block.data)
                checks.append(block_checksum(block))
                if progress is not None:
                    progress(done / table.rows)
        out.write(pack_checks(table.block_rows, checks))
        table.require_unchanged()

    try:
        return cache.write(fill, lambda: _opened(cache, table))
    except (OSError, arrow.ArrowException) as problem:
        expected = f"{table.rows * table.width / 1e9:.3g} GB for a cache of {table.path.name}"
        got = getattr(problem, "strerror", None) or str(problem)
        raise FileError(str(cache.folder), expected=expected, got=got) from None


def _full_blocks(table: _Table, file: Any) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the numbers in blocks of rows, and how many rows there are with them.

    A block is valid until the next one is taken.
    """
    block, done, filled = np.empty((table.block_rows, len(table.names)), table.dtype), 0, 0
    for batch in file.iter_batches(min(_BATCH, table.block_rows), columns=list(table.names)):
        numbers = _numbers(table, batch, done + filled)
        while len(numbers):
            part, numbers = np.split(numbers, [len(block) - filled])
            block[filled : filled + len(part)] = part
            filled += len(part)
            if filled == len(block) or done + filled == table.rows:
                done += filled
                yield done, block[:filled]
                filled = 0


def _numbers(table: _Table, batch: Any, done: int) -> np.ndarray:
    """Return the numbers of a batch in row order; `done` rows come before it."""
    values = np.empty((batch.num_rows, len(table.names)), table.dtype)
    for position, name in enumerate(table.names):
        column, where = batch.column(name), f"{table.path}: column {name!r}"
        if column.null_count:
            row = done + int(np.argmin(np.asarray(column.is_valid())))
            got = f"a missing value in row {row}"
            problem = MissingNumberError(where, expected="a number in every row", got=got)
            problem.row, problem.column = row, name
            raise problem
        numbers = column.to_numpy(zero_copy_only=False)
        values[:, position] = numbers
        if numbers.dtype.kind in "iu" and np.abs(values[:, position]).max() >= 2**53:
            got = "integers beyond 2^53"
            raise FileError(where, expected="double precision numbers", got=got)
    return values
