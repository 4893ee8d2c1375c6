"""Writing files so that a reader never sees a part of one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from posquad.core.errors import PosquadError

_JSON_MOST = 2**24  # bytes: names of a few hundred thousand columns


class FileError(PosquadError):
    """A file or folder cannot be read or written."""


def write_file(path: Path, data: bytes) -> None:
    """Write a file in one step: whoever looks sees the old content or the new, never a part.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_file(Path(folder) / "a" / "b.txt", b"whole")
    ...     (Path(folder) / "a" / "b.txt").read_bytes()
    b'whole'
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError as problem:
        raise FileError(
            str(path),
            expected="a place that can be written to",
            got=problem.strerror or str(problem),  # without the name of a file that is not theirs
        ) from None


def require_folder(folder: Path, names: Iterable[str]) -> None:
    """Find out before any work whether files of these names can be written to a folder.

    >>> require_folder(Path(__file__), [])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    posquad.core.files.FileError: ...files.py: expected a folder; got a file of that name
    """
    if folder.exists() and not folder.is_dir():
        raise FileError(str(folder), expected="a folder", got="a file of that name")
    for name in names:
        if (folder / name).is_dir():
            raise FileError(str(folder / name), expected="a file", got="a folder of that name")
    probe = folder / ".probe"
    try:
        write_file(probe, b"")
    except FileError as problem:
        raise FileError(str(folder), expected="a folder to write to", got=problem.got) from None
    probe.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file in one step: whoever looks sees the old content or the new."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def read_json(path: Path, *, parse_int: Callable[[str], Any] = int) -> Any:
    """What a JSON file says; OSError, or ValueError with the reason where it is none we wrote."""
    if path.stat().st_size > _JSON_MOST:
        raise ValueError(f"a file of more than {_JSON_MOST >> 20} MB")
    try:
        return json.loads(
            path.read_bytes().decode(), parse_constant=_not_finite, parse_int=parse_int
        )
    except RecursionError:
        raise ValueError("brackets within brackets without end") from None


def _not_finite(word: str) -> NoReturn:
    raise ValueError(f"{word}, which is no number")


def json_checksum(body: Mapping[str, Any]) -> str:
    """SHA-256 of what a JSON file says, but for its own entry `sha256`."""
    rest = {key: value for key, value in body.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
