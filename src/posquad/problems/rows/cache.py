"""Caches of tables: `.npy` files that belong to one version of another file, and their leftovers.

A cache is written under another name and then renamed, so that it is complete or missing. Its
writer and its readers hold locks on it (`flock`), which end with their process. So whoever writes a
cache later can tell what is left of a writer that was killed, and caches of older versions that no
process reads, and deletes them. Where a file system has no locks, they stay.
"""

from __future__ import annotations

import os
import re
import secrets
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = ["Cache", "Hold"]

_KEY = "[0-9a-f]{16}"


class Cache(NamedTuple):
    """The place of a cache: `.OWNER.VERSION.COLUMNS.posquad.npy` in a folder."""

    folder: Path
    owner: str  # name of the file that it belongs to
    version: str  # key of the content of that file
    columns: str  # key of the chosen columns

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / f".{self.owner}.{self.version}.{self.columns}.posquad.npy"

    @contextmanager
    def written(self) -> Iterator[BinaryIO]:
        """Context in which the file is written; it is in place at the end, or not at all."""
        self._remove_leftovers()
        partial, out = self._new_partial()
        try:
            with out:
                yield out
                out.flush()
                os.fsync(out.fileno())
                partial.replace(self.path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise

    def _new_partial(self) -> tuple[Path, BinaryIO]:
        while True:
            name = f".{self.owner}.{self.version}.{secrets.token_hex(8)}.partial"
            out = (self.folder / name).open("xb")
            _lock(out.fileno(), shared=False)
            if os.fstat(out.fileno()).st_nlink:
                return self.folder / name, out
            out.close()  # another process took the file for a leftover before it was locked

    def _remove_leftovers(self) -> None:
        """Delete what killed writers left, and caches of other versions of the file."""
        begin = rf"\.{re.escape(self.owner)}"
        known = re.compile(rf"{begin}\.({_KEY})\.{_KEY}\.(?:partial|posquad\.npy)")
        with suppress(OSError):
            for file in list(self.folder.iterdir()):
                found = known.fullmatch(file.name)
                partial = file.suffix == ".partial"
                if found and (partial or found[1] != self.version):
                    _unlink_unheld(file)


class Hold:
    """A lock on a file, which others share, until this object is gone.

    >>> Hold(Path("missing"))
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: 'missing'
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        _lock(descriptor, shared=True)
        if not os.fstat(descriptor).st_nlink:  # deleted before it was locked
            raise FileNotFoundError(2, "No such file or directory", str(path))

    def __reduce__(self) -> tuple[Any, ...]:
        return Hold, (self.path,)


def _lock(descriptor: int, *, shared: bool) -> None:
    """Lock an open file, if the file system can do that."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def _unlink_unheld(path: Path) -> None:
    """Delete a file on which no process has a lock."""
    if fcntl is None:
        return
    with suppress(OSError):  # in use, deleted by another process, or without locks
        descriptor = os.open(path, os.O_RDWR)  # network file systems lock only what is writable
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(descriptor)
