"""Parquet files as rows: converted once to a `.npy` file beside them, which is then read."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from posquad.core.errors import DomainError
from posquad.core.extras import import_extra
from posquad.core.files import FileError
from posquad.problems.rows.disk import NpyRows, from_npy

__all__ = ["from_parquet"]

_FOOTER = 8  # last bytes of a Parquet file: the length of the footer, and a mark
_BATCH = 65_536  # rows converted at a time


def from_parquet(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    progress: Callable[[float], None] | None = None,
) -> NpyRows:
    """Return the rows of a Parquet file, from a cache of its numbers in row order.

    The cache is `.NAME.KEY.posquad.npy` beside the file, or in `folder`. Its key is made from the
    size and time of the file, the checksum of its footer and the columns; so a changed file gets a
    new cache. It is written under another name and then renamed, so that it is complete or missing.

    Args:
        path: the Parquet file.
        columns: names of the columns to use; by default all. They must hold real numbers without
            missing values.
        folder: the folder of the cache.
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
    if isinstance(columns, str):
        raise DomainError("columns", expected="a list of names", got=repr(columns))
    given = Path(path)
    try:
        with parquet.ParquetFile(given) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
            footer = _footer(given)
    except (arrow.ArrowException, OSError, ValueError) as problem:
        got = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise FileError(str(given), expected="a Parquet file", got=got) from None
    names = list(schema.names if columns is None else columns)
    _require_numbers(given, schema, names, arrow)
    if not rows or not names:
        got = f"{rows} rows and {len(names)} columns"
        raise FileError(str(given), expected="rows and columns", got=got)
    known = given.stat()
    key = hashlib.sha256()
    for part in (known.st_size, known.st_mtime_ns, footer.hex(), *names):
        key.update(f"{part}\0".encode())
    place = Path(folder) if folder is not None else given.parent
    cache = place / f".{given.name}.{key.hexdigest()[:16]}.posquad.npy"
    if not cache.exists():
        narrow = all(schema.field(name).type == arrow.float32() for name in names)
        _convert(given, cache, names, (rows, len(names)), narrow, progress)
    return from_npy(cache)


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
        kind = schema.field(name).type
        if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
            where = f"{path}: column {name!r}"
            raise FileError(where, expected="real numbers", got=f"type {kind}")


def _convert(
    path: Path,
    cache: Path,
    names: Sequence[str],
    shape: tuple[int, int],
    narrow: bool,
    progress: Callable[[float], None] | None,
) -> None:
    parquet, arrow = import_extra("pyarrow.parquet", "lab"), import_extra("pyarrow", "lab")
    partial = cache.with_name(f".{secrets.token_hex(8)}.partial")
    dtype = np.dtype(np.float32 if narrow else np.float64)
    done = 0
    try:
        with parquet.ParquetFile(path) as file, partial.open("xb") as out:
            header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(out, header)
            for batch in file.iter_batches(_BATCH, columns=list(names)):
                values = np.empty((batch.num_rows, len(names)), dtype)
                for position, name in enumerate(names):
                    column = batch.column(name)
                    if column.null_count:
                        row = done + int(np.argmin(np.asarray(column.is_valid())))
                        where = f"{path}: column {name!r}"
                        got = f"a missing value in row {row + 1}"
                        raise FileError(where, expected="a number in every row", got=got)
                    numbers = column.to_numpy(zero_copy_only=False)
                    values[:, position] = numbers
                    if numbers.dtype.kind in "iu" and np.abs(values[:, position]).max() > 2**53:
                        got = "integers beyond 2^53"
                        where = f"{path}: column {name!r}"
                        raise FileError(where, expected="double precision numbers", got=got)
                out.write(values.data)
                done += batch.num_rows
                if progress is not None:
                    progress(done / shape[0])
            out.flush()
            os.fsync(out.fileno())
        partial.replace(cache)
    except BaseException as problem:
        with suppress(OSError):
            partial.unlink()
        if isinstance(problem, OSError | arrow.ArrowException):
            needed = shape[0] * shape[1] * dtype.itemsize
            expected = f"{needed / 1e9:.3g} GB for a cache of {path.name}"
            got = getattr(problem, "strerror", None) or str(problem)
            raise FileError(str(cache.parent), expected=expected, got=got) from None
        raise
