"""Arrays in NumPy files: described before they are read, and memory-mapped if they are large.

The size in the header of an array is compared with the file and with the available memory before
anything is read, so a damaged file cannot exhaust the memory. Pickles are never loaded.
"""

from __future__ import annotations

import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from posquad.io.tables._memory import format_bytes, is_streamed, require_memory
from posquad.io.tables._table import (
    TEMPORARY,
    Caching,
    Report,
    Table,
    TableError,
    default_names,
    exact,
    refuse_kind,
    require_real,
)

if TYPE_CHECKING:
    from posquad.problems.rows import Rows

MAPPED = 256 * 2**20  # bytes; larger arrays are memory-mapped
_CHUNK = 2**24
# Errors of NumPy and zipfile for files that are damaged, encrypted, too large or of another kind.
UNREADABLE = (
    *(EOFError, ValueError, KeyError, TypeError, SyntaxError, MemoryError, ArithmeticError),
    *(zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, struct.error),
    tokenize.TokenError,  # NumPy tokenizes headers to find Python 2 integers
)


@dataclass(frozen=True)
class Stored:
    """An array in a file: its header, and a function that reads it."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]

    def require_axes(self, path: Path, axes: int) -> None:
        """Refuse an array with another number of axes."""
        if len(self.shape) != axes:
            noun = "axis" if axes == 1 else "axes"
            got = f"shape {self.shape}"
            raise TableError(f"{path}: {self.name}", expected=f"{axes} {noun}", got=got)

    def exact(self, path: Path, *, complete: bool = True) -> np.ndarray:
        """Read the numbers as float64 or float32; they must be finite, or NaN if not complete."""
        return exact(path, self.name, self.read(), complete=complete)


def open_npy(path: Path) -> Table:
    """Open a file with one array of two axes, whose rows are samples."""
    _require_written(path)
    with _readable(path, "a NumPy array (.npy)"), path.open("rb") as file:
        if not file.read(1):
            raise TableError(str(path), expected="a NumPy array (.npy)", got="an empty file")
        file.seek(0)
        stored = _described(path, "the array", file, path.stat().st_size, partial(_raw, path))
    table = _matrix(path, stored)
    single = stored.dtype.kind == "f" and stored.dtype.itemsize <= 4
    if not is_streamed(math.prod(stored.shape) * (4 if single else 8)) or stored.dtype.itemsize > 8:
        return table
    places = {name: k for k, name in enumerate(table.names)}

    def source(
        names: Sequence[str], report: Report | None = None, *, caching: Caching = TEMPORARY
    ) -> Rows:
        from posquad.problems.rows import from_npy  # torch is imported when it is needed

        return from_npy(path, columns=[places[name] for name in names])

    return replace(table, source=lambda used: source)


def open_npz(path: Path) -> Table:
    """Open a file with arrays X and y (and weights), one array of two axes, or columns."""
    held = arrays(path)
    if not {"X", "y"} <= set(held):
        if len(held) == 1:
            return _matrix(path, next(iter(held.values())))
        if held and len({stored.shape for stored in held.values()}) == 1:
            return _by_column(path, held)
        wanted = "arrays X (n, d) and y (n), one array of two axes, or columns of one length"
        raise TableError(str(path), expected=wanted, got=_listed(held))
    X, y, weights = held["X"], held["y"], held.get("weights")
    X.require_axes(path, 2)
    columns = {"y": y} | ({"weights": weights} if weights is not None else {})
    for stored in columns.values():
        stored.require_axes(path, 1)
        if stored.shape[0] != X.shape[0]:
            got = f"{X.shape[0]} rows of X and {stored.shape[0]} entries of {stored.name}"
            raise TableError(str(path), expected="one entry per row of X", got=got)
    _require_nonempty(path, X)
    names = default_names(X.shape[1])

    def read(wanted: Sequence[str]) -> np.ndarray:
        if len(wanted) == 1 and wanted[0] in columns:
            stored = columns[wanted[0]]
            return stored.exact(path, complete=False)[:, None]
        within = [name for name in wanted if name in names]
        inputs = _columns(exact(path, "X", X.read(), names), names, within)
        others = [read([w]) for w in wanted if w in columns]
        return np.hstack([inputs, *others]) if others else inputs

    weighted = "weights" if weights is not None else None
    return Table(path, (*names, *columns), X.shape[0], False, read, response="y", weights=weighted)


def arrays(path: Path) -> dict[str, Stored]:
    """Describe the arrays of an npz file by name, without reading them."""
    kind = "a NumPy archive (.npz)"
    _require_written(path)
    with _readable(path, kind):
        if not path.stat().st_size:
            raise TableError(str(path), expected=kind, got="an empty file")
        with path.open("rb") as file:
            start = file.read(6)
        if start == b"\x93NUMPY":
            got = "a single array; rename the file to .npy"
            raise TableError(str(path), expected="an archive of named arrays", got=got)
        with zipfile.ZipFile(path) as archive:
            held = {}
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if name in held:
                    got = f"two arrays named {name!r}"
                    raise TableError(str(path), expected="arrays of different names", got=got)
                with archive.open(info) as file:
                    read = partial(_member, path, info)
                    held[name] = _described(path, name, file, info.file_size, read)
    return held


def _listed(held: Mapping[str, Stored]) -> str:
    """List names and shapes of arrays, for a message."""
    words = [f"{stored.name} {stored.shape}" for stored in list(held.values())[:8]]
    return ", ".join(words) + (", ..." if len(held) > 8 else "") if held else "no array"


def _require_nonempty(path: Path, stored: Stored) -> None:
    if 0 in stored.shape:
        got = f"shape {stored.shape}"
        raise TableError(f"{path}: {stored.name}", expected="shape (n, d), n, d >= 1", got=got)


def _matrix(path: Path, stored: Stored) -> Table:
    require_real(path, stored.name, stored.dtype)
    stored.require_axes(path, 2)
    _require_nonempty(path, stored)
    names = default_names(stored.shape[1])

    def read(wanted: Sequence[str]) -> np.ndarray:
        given = _columns(stored.read(), names, wanted)
        return exact(path, stored.name, given, wanted)

    return Table(path, names, stored.shape[0], False, read)


def _by_column(path: Path, held: Mapping[str, Stored]) -> Table:
    for stored in held.values():
        stored.require_axes(path, 1)
        _require_nonempty(path, stored)

    def read(wanted: Sequence[str]) -> np.ndarray:
        given = [held[name].exact(path, complete=False) for name in wanted]
        return np.stack(given, axis=1)

    rows = next(iter(held.values())).shape[0]
    return Table(path, tuple(held), rows, True, read)


def _columns(array: np.ndarray, names: Sequence[str], wanted: Sequence[str]) -> np.ndarray:
    """Select columns; adjacent ones as a view, so that a mapped file stays mapped."""
    chosen = [names.index(name) for name in wanted]
    if chosen == list(range(chosen[0], chosen[0] + len(chosen))):
        return array[:, chosen[0] : chosen[0] + len(chosen)]
    return array[:, chosen]


def _described(
    path: Path, name: str, file: IO[bytes], size: int, read: Callable[..., np.ndarray]
) -> Stored:
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"array format {version} is not supported")
    with warnings.catch_warnings(action="ignore"):  # about headers written by Python 2
        shape, fortran, dtype = (
            np.lib.format.read_array_header_1_0(file)
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0(file)
        )
    require_real(path, name, dtype)
    offset = file.tell()
    held, claimed = size - offset, math.prod(shape) * dtype.itemsize
    if held != claimed:
        expected = f"{claimed} bytes of numbers, for shape {shape} and type {dtype}"
        got = f"{held}" + ("; the file is not complete" if held < claimed else "")
        raise TableError(f"{path}: {name}", expected=expected, got=got)
    order = "F" if fortran else "C"
    return Stored(name, shape, dtype, partial(read, dtype, shape, order, offset))


def _raw(
    path: Path, dtype: np.dtype, shape: tuple[int, ...], order: Any, offset: int
) -> np.ndarray:
    """Read an array; map a large one copy-on-write, so that the file never changes."""
    if math.prod(shape) * dtype.itemsize >= MAPPED:
        return np.asarray(np.memmap(path, dtype, "c", offset, shape, order))
    with path.open("rb") as file:
        file.seek(offset)
        return _filled(file, dtype, shape, order)


def _member(
    path: Path,
    info: zipfile.ZipInfo,
    dtype: np.dtype,
    shape: tuple[int, ...],
    order: Any,
    offset: int,
) -> np.ndarray:
    """Read an array of an archive; a large one that is not compressed is memory-mapped."""
    size = math.prod(shape) * dtype.itemsize
    with _readable(path, "a complete NumPy archive (.npz)"), zipfile.ZipFile(path) as archive:
        if info.compress_type == zipfile.ZIP_STORED and size >= MAPPED:
            with archive.open(info):  # checks the local header, which is needed for the offset
                pass
            start = _data_start(path, info)
            array = np.memmap(path, dtype, "c", start + offset, shape, order)
            _require_checksum(path, info, start)
            return np.asarray(array)
        require_memory(path, size, f"an array {info.filename.removesuffix('.npy')}")
        with archive.open(info) as file:
            file.read(offset)
            array = _filled(file, dtype, shape, order)
            if file.read(1):  # reading to the end compares the checksum
                raise ValueError("there are more bytes than the header says")
            return array


def _data_start(path: Path, info: zipfile.ZipInfo) -> int:
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(30)
    name, extra = struct.unpack("<HH", header[26:30])
    return info.header_offset + 30 + name + extra


def _require_checksum(path: Path, info: zipfile.ZipInfo, start: int) -> None:
    found = 0
    with path.open("rb") as file:
        file.seek(start)
        left = info.file_size
        while left:
            part = file.read(min(_CHUNK, left))
            if not part:
                raise EOFError("the file ends early")
            found, left = zlib.crc32(part, found), left - len(part)
    if found != info.CRC:
        raise ValueError("the checksum does not match")


def _filled(file: IO[bytes], dtype: np.dtype, shape: tuple[int, ...], order: Any) -> np.ndarray:
    array = np.empty(math.prod(shape), dtype)
    view: Any = array.view(np.uint8)
    done = 0
    while done < len(view):
        part = file.read(min(_CHUNK, len(view) - done))
        if not part:
            raise EOFError("the file ends early")
        view[done : done + len(part)] = np.frombuffer(part, np.uint8)
        done += len(part)
    return array.reshape(shape, order=order)


def _require_written(path: Path) -> None:
    """Refuse a sparse file: its space was reserved, but nearly nothing was written."""
    known = path.stat()
    blocks = getattr(known, "st_blocks", None)
    if blocks is not None and known.st_size >= MAPPED and 512 * blocks < known.st_size // 100:
        raise TableError(
            str(path),
            expected="a complete file",
            got=f"{format_bytes(known.st_size)}, of which only {format_bytes(512 * blocks)} "
            "were written",
        )


@contextmanager
def _readable(path: Path, kind: str) -> Any:
    """Turn errors of NumPy and zipfile for a bad file into a `TableError`."""
    try:
        yield
    except TableError:
        raise
    except UNREADABLE as problem:
        refuse_kind(path, kind, problem)
