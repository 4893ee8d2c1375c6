"""The bytes of a text table: a file, a compressed file, or standard input."""

from __future__ import annotations

import gzip
import io
import os
import sys
import tempfile
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from posquad.core.extras import import_extra
from posquad.io.tables._table import STDIN, TableError, refuse_kind

__all__ = ["COMPRESSED", "Source"]

COMPRESSED = {".gz": "gzip", ".zst": "Zstandard"}
_MAGIC = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
_OTHER = {b"PAR1": "a Parquet file", b"PK\x03\x04": "an .npz or .xlsx file"}
_OTHER |= {b"\x93NUM": "a NumPy array"}
_PIECE = 2**20
_UNPACKED_MOST = 2**26  # bytes that are unpacked to estimate the size of the rest


class Source:
    """A text that can be read several times; standard input is copied to a temporary file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept: Any = None
        if path == STDIN:
            self.kept = _kept_input()
            weakref.finalize(self, self.kept.close)
            self.kept.seek(0)
            head = self.kept.read(4)
            if head in _OTHER:
                got = f"{_OTHER[head]}; save it and name the file"
                raise TableError(str(path), expected="a text table", got=got)
            self.packing = next((_MAGIC[mark] for mark in _MAGIC if head.startswith(mark)), "")
        else:
            suffix = path.suffix.lower()
            self.packing = suffix if suffix in COMPRESSED else ""

    @property
    def size(self) -> int:
        """Number of bytes of the file, as it is stored."""
        return os.fstat(self.kept.fileno()).st_size if self.kept else self.path.stat().st_size

    @contextmanager
    def bytes(self) -> Iterator[IO[bytes]]:
        """Open the unpacked bytes; a damaged compressed file raises `TableError`."""
        with self._stored() as stored, self._unpacked(stored) as file:
            yield file

    @contextmanager
    def text(self) -> Iterator[IO[str]]:
        """Open the lines as UTF-8, without a byte order mark."""
        with self.bytes() as file:
            wrapped = io.TextIOWrapper(file, encoding="utf-8-sig", errors="strict")
            try:
                yield wrapped
            finally:
                wrapped.detach()

    def unpacked_size(self) -> int:
        """Estimate the number of unpacked bytes, from the first megabyte of a compressed file."""
        if not self.packing:
            return self.size
        seen = 0
        with self._stored() as stored, self._unpacked(stored) as file:
            while stored.tell() < _PIECE and seen < _UNPACKED_MOST:
                part = file.read(_PIECE)
                if not part:
                    return seen
                seen += len(part)
            return max(seen, self.size * seen // stored.tell())

    @contextmanager
    def _stored(self) -> Iterator[IO[bytes]]:
        if self.kept is None:
            with self.path.open("rb") as file:
                yield file
        else:
            with os.fdopen(os.dup(self.kept.fileno()), "rb") as file:
                file.seek(0)
                yield file

    @contextmanager
    def _unpacked(self, stored: IO[bytes]) -> Iterator[IO[bytes]]:
        if not self.packing:
            yield stored
            return
        kind = f"text compressed by {COMPRESSED[self.packing]}"
        if self.packing == ".gz":
            file: Any = gzip.GzipFile(fileobj=stored)
        else:
            arrow = import_extra("pyarrow", "lab")
            file = io.BufferedReader(arrow.CompressedInputStream(stored, "zstd"))
        try:
            with file:
                yield file
        except TableError:
            raise
        except (EOFError, zlib.error, OSError) as problem:
            refuse_kind(self.path, kind, problem)


def _kept_input() -> Any:
    kept = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the table)
    given = getattr(sys.stdin, "buffer", None)
    while given is not None and (part := given.read(_PIECE)):
        kept.write(part)
    kept.flush()
    return kept
