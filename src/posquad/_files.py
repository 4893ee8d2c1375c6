"""Writing files so that a reader never sees a part of one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

_JSON_MOST = 2**24  # bytes: names of a few hundred thousand columns


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
