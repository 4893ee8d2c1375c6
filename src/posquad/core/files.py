"""Read and write files so that a reader never sees a partly written one."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from posquad.core.errors import PosquadError

__all__ = [
    "FileError",
    "json_checksum",
    "open_file",
    "read_json",
    "require_folder",
    "sample_checksum",
    "write_file",
    "write_whole",
]

_SAMPLES = 64  # pieces of a large file that are looked at
_SAMPLE_BYTES = 2**16  # of such a piece: 4 MB in all, some milliseconds
_JSON_LIMIT = 2**24  # bytes: enough for the names of a few hundred thousand columns


class FileError(PosquadError):
    """A file or folder cannot be read or written."""


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically, creating its folder if needed; `FileError` if that fails.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_file(Path(folder) / "a" / "b.txt", b"whole")
    ...     (Path(folder) / "a" / "b.txt").read_bytes()
    b'whole'
    """
    with open_file(path) as file:
        file.write(data)


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that is written atomically, as by `write_file`, in as many pieces as needed.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with open_file(Path(folder, "a.txt")) as file:
    ...         _ = file.write(b"in "), file.write(b"pieces")
    ...     Path(folder, "a.txt").read_bytes()
    b'in pieces'
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _open_whole(path) as file:
            yield file
    except OSError as problem:
        raise FileError(
            str(path),
            expected="a place that can be written to",
            got=problem.strerror or str(problem),  # without the name of the temporary file
        ) from None


def require_folder(folder: Path, names: Iterable[str]) -> None:
    """Check, before any work is done, that files of these names can be written to a folder.

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


def write_whole(path: Path, *parts: bytes | memoryview, temporary: Path | None = None) -> None:
    """Write a file atomically: a reader sees the old content or the new, never a part.

    The content is that of the parts, one after the other. The temporary file lies in the same
    folder under a random name that must be new, so that threads, processes and hosts that share
    the folder can write at the same time; or at `temporary`, for a file of one writer, which then
    replaces what a killed one left there.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "a.txt"), b"whole")
    ...     Path(folder, "a.txt").read_bytes()
    b'whole'
    """
    with _open_whole(path, temporary) as file:
        for part in parts:
            file.write(part)


@contextmanager
def _open_whole(path: Path, temporary: Path | None = None) -> Iterator[IO[bytes]]:
    partial = temporary or path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb" if temporary is None else "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except FileExistsError:  # the file of another process, which must stay
        raise
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename in a folder durable, if the system can do that.

    An error is ignored, because the file is already complete and in place.
    """
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder
        return
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_json(path: Path, *, parse_int: Callable[[str], Any] = int) -> Any:
    """Read a JSON file of at most 16 MB: `ValueError` with the reason if it is not valid JSON.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.json").write_text("[NaN]")
    ...     read_json(Path(folder, "a.json"))
    Traceback (most recent call last):
    ValueError: NaN is not a JSON number
    """
    if path.stat().st_size > _JSON_LIMIT:
        raise ValueError(f"the file is larger than {_JSON_LIMIT >> 20} MB")
    try:
        return json.loads(
            path.read_bytes().decode(), parse_constant=_refuse_constant, parse_int=parse_int
        )
    except RecursionError:
        raise ValueError("the file is nested too deeply") from None


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def json_checksum(body: Mapping[str, Any]) -> str:
    """SHA-256 of the content of a JSON file, without its own entry `sha256`.

    >>> json_checksum({"a": 1}) == json_checksum({"a": 1, "sha256": "anything"})
    True
    """
    rest = {key: value for key, value in body.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def sample_checksum(path: Path, begin: int = 0, end: int | None = None) -> str:
    """SHA-256 of pieces of a file: the first, the last, and others at equal distances.

    Of a large file, 64 pieces of 64 KB are read, and of a file of up to 4 MB every byte. So a file
    that was replaced by another one of its size is told from it, without reading it whole; a change
    of a few bytes of a large file may lie between two pieces.

    Args:
        path: the file; `FileError` if it cannot be read.
        begin: first byte of the part that counts.
        end: the byte after the last one of that part; by default the end of the file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     (one, two) = Path(folder, "one"), Path(folder, "two")
    ...     _ = one.write_bytes(bytes(9)), two.write_bytes(bytes(8) + b"x")
    ...     sample_checksum(one) == sample_checksum(two), sample_checksum(one, end=8)[:6]
    (False, 'af5570')
    """
    checksum = hashlib.sha256()
    try:
        with path.open("rb") as file:
            stop = os.fstat(file.fileno()).st_size if end is None else end
            last = max(begin, stop - _SAMPLE_BYTES)
            pieces = min(_SAMPLES, -(-(stop - begin) // _SAMPLE_BYTES))
            for k in range(pieces):
                place = begin + k * (last - begin) // max(1, pieces - 1)
                file.seek(place)
                checksum.update(file.read(min(_SAMPLE_BYTES, stop - place)))
    except OSError as problem:
        got = problem.strerror or str(problem)
        raise FileError(str(path), expected="a readable file", got=got) from None
    return checksum.hexdigest()
