"""Caches of tables: `.npy` files that belong to one version of another file, and their leftovers.

A cache is written under another name and then renamed, so that it is complete or missing. Its
writer and its readers hold locks on it (`flock`), which end with their process. A cache that is not
kept is deleted by the last of its readers, when that ends or no longer uses it. What readers and
writers that were killed left behind, and caches of older versions that no process reads, are
deleted by whoever writes a cache later. Where a file system has no locks, they stay.

Behind its numbers a cache has a checksum of each block of rows, with which every block that is read
is compared: what is derived from a file must not be wrong where the file is right.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import struct
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = ["Cache", "Hold", "living_holds", "pack_checks", "unpack_checks"]

_T = TypeVar("_T")
_KEY = "[0-9a-f]{16}"
_CHECKS = b"posquad checks 1"  # begins the checksums behind the numbers


class Cache(NamedTuple):
    """The place of a cache: `.OWNER.VERSION.COLUMNS.posquad.npy` in a folder.

    The name of one that is not kept ends in `.temporary.npy`, so that every process knows it.
    """

    folder: Path
    owner: str  # name of the file that it belongs to
    version: str  # key of the content of that file
    columns: str  # key of the chosen columns
    keep: bool = True  # or else it is deleted by the last process that reads it

    @property
    def path(self) -> Path:
        """The file."""
        end = "posquad" if self.keep else "temporary"
        return self.folder / f".{self.owner}.{self.version}.{self.columns}.{end}.npy"

    def hold(self) -> Hold:
        """Lock the file for reading; `FileNotFoundError` if there is none."""
        return Hold(self.path, keep=self.keep)

    def remove(self) -> bool:
        """Delete the file; return whether it is gone."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        return not self.path.exists()

    def write(self, fill: Callable[[BinaryIO], None], opened: Callable[[], _T | None]) -> _T | None:
        """Write the file with `fill(file)`, and return `opened()`, which locks and opens it.

        The file is in place when it is whole, or not at all. If another process has written it
        meanwhile and may be reading it, that one stays.
        """
        self._remove_leftovers()
        begun, out = self._new_partial()
        try:
            with out:
                fill(out)
                out.flush()
                os.fsync(out.fileno())
                found = opened()
                if found is not None:
                    begun.unlink()
                    return found
                # Readers share the file. It stays locked, but for the moment of this change.
                _lock(out.fileno(), shared=True)
                begun.replace(self.path)
                return opened()
        except BaseException:
            with suppress(OSError):
                begun.unlink()
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
        """Delete what killed processes left, and caches of other versions of the file."""
        begin = rf"\.{re.escape(self.owner)}"
        ends = r"partial|temporary\.npy|posquad\.npy"
        known = re.compile(rf"{begin}\.({_KEY})\.{_KEY}\.({ends})")
        with suppress(OSError):
            for file in list(self.folder.iterdir()):
                found = known.fullmatch(file.name)
                if found and (found[2] != "posquad.npy" or found[1] != self.version):
                    _unlink_unheld(file)


def pack_checks(rows: int, checks: Sequence[int]) -> bytes:
    """Return the checksums of blocks of so many rows as bytes, with one of their own.

    >>> len(pack_checks(100, [7, 8]))
    72
    """
    body = _CHECKS + struct.pack(f"<{1 + len(checks)}Q", rows, *checks)
    return body + hashlib.sha256(body).digest()


def unpack_checks(data: bytes, rows: int, count: int) -> tuple[int, ...] | None:
    """Return what `pack_checks` packed for so many blocks; None if it is not that, unchanged.

    >>> unpack_checks(pack_checks(100, [7, 8]), 100, 2), unpack_checks(b"other", 100, 2)
    ((7, 8), None)
    """
    body, form = data[:-32], f"<{1 + count}Q"
    if len(body) != len(_CHECKS) + struct.calcsize(form) or not body.startswith(_CHECKS):
        return None
    found, *checks = struct.unpack(form, body[len(_CHECKS) :])
    whole = data[-32:] == hashlib.sha256(body).digest() and found == rows
    return tuple(checks) if whole else None


class Hold:
    """A lock on a file, which others share, until this object is gone or the process ends.

    Unless the file is kept, it is then deleted if no other process and no other object holds it.

    >>> Hold(Path("missing"))
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: 'missing'
    """

    def __init__(self, path: Path, *, keep: bool = True) -> None:
        self.path, self.keep = path, keep
        descriptor = os.open(path, os.O_RDONLY)
        self.let_go = weakref.finalize(self, _let_go, descriptor, None if keep else path)
        _holds.add(self)
        _lock(descriptor, shared=True)
        if not os.fstat(descriptor).st_nlink:  # deleted before it was locked
            raise FileNotFoundError(2, "No such file or directory", str(path))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Hold, keep=self.keep), (self.path,)


def living_holds() -> list[Hold]:
    """Return the locks that this process has.

    A program that ends without cleaning up calls their `let_go` first.

    >>> all(hold.path.exists() for hold in living_holds())
    True
    """
    return [hold for hold in _holds if hold.let_go.alive]


_holds: weakref.WeakSet[Hold] = weakref.WeakSet()


def _let_go(descriptor: int, temporary: Path | None) -> None:
    os.close(descriptor)  # first, because two that end together would hold the file for each other
    if temporary is not None:
        _unlink_unheld(temporary)


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
