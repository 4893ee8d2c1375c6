"""Results on disk: a JSON file and a file of arrays, both with checksums.

The arrays are written first, then the JSON file that holds their checksum and its own, each
atomically. So a pair that can be read is complete, and its two files belong together.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from posquad.core.files import json_checksum, read_json, write_whole

__all__ = ["StoreError", "pair_paths", "read_arrays", "read_body", "save_pair"]


class StoreError(ValueError):
    """A stored file cannot be used: `path` is the file, `got` describes what was found."""

    def __init__(self, path: Path, got: str) -> None:
        super().__init__(f"{path.name}: {got}")
        self.path = path
        self.got = got


def pair_paths(path: str | os.PathLike[str], *ends: str) -> list[Path]:
    """Paths with these ends, in place of the suffix of `path` if that is one of them.

    >>> [name.as_posix() for name in pair_paths("folder/a.json", ".json", ".npz")]
    ['folder/a.json', 'folder/a.npz']
    """
    given = Path(path)
    stem = given.name.removesuffix(given.suffix) if given.suffix in ends else given.name
    return [given.with_name(f"{stem}{end}") for end in ends]


def save_pair(
    json_path: Path,
    body: Mapping[str, Any],
    array_path: Path,
    data: bytes,
    *,
    write: Callable[[Path, bytes], None] = write_whole,
) -> None:
    """Write the arrays `data`, then `body` with the size and the checksum of the arrays added.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     words, arrays = Path(folder, "a.json"), Path(folder, "a.npz")
    ...     save_pair(words, {"format": "example 1"}, arrays, b"numbers")
    ...     read_arrays(arrays, read_body(words, "example 1"))
    b'numbers'
    """
    full = {**body, "arrays_bytes": len(data), "arrays_sha256": hashlib.sha256(data).hexdigest()}
    full["sha256"] = json_checksum(full)
    text = json.dumps(full, indent=1, allow_nan=False) + "\n"
    write(array_path, data)
    write(json_path, text.encode())


def read_body(
    path: Path, expected_format: Any, *, parse_int: Callable[[str], Any] = int
) -> dict[str, Any]:
    """Read the JSON file of a pair, and check its format and its checksum.

    >>> read_body(Path("no/such.json"), "example 1")
    Traceback (most recent call last):
    posquad.core.store.StoreError: such.json: no such file or directory
    """
    try:
        body = read_json(path, parse_int=parse_int)
        unchanged = isinstance(body, dict) and body.get("sha256") == json_checksum(body)
    except (ValueError, RecursionError) as error:  # the checksum of nested lists recurses too
        raise StoreError(path, f"a file that is not valid JSON ({error})") from None
    except OSError as error:
        raise StoreError(path, (error.strerror or str(error)).lower()) from None
    if not isinstance(body, dict) or body.get("format") != expected_format:
        raise StoreError(path, f"a file that is not of the format {expected_format!r}")
    if not unchanged:
        raise StoreError(path, "a file that was changed: its checksum does not match")
    return body


def read_arrays(path: Path, body: Mapping[str, Any]) -> bytes:
    """Read the file of arrays of a pair, if it has the size and the checksum of its JSON file.

    >>> read_arrays(Path("no/such.npz"), {})
    Traceback (most recent call last):
    posquad.core.store.StoreError: such.npz: no such file or directory
    """
    try:
        if path.stat().st_size == body.get("arrays_bytes", path.stat().st_size):
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() == body.get("arrays_sha256"):
                return data
    except OSError as error:
        raise StoreError(path, (error.strerror or str(error)).lower()) from None
    raise StoreError(path, "a file that was changed or belongs to another one: its checksum "
                     "does not match")  # fmt: skip
