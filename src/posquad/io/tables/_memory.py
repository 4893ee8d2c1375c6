"""The available memory, and a check that data fit into it."""

from __future__ import annotations

import os
from pathlib import Path

from posquad.io.tables._table import TableError

STREAMED = 256 * 2**20  # bytes of numbers from which a table stays in its file
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def available_memory() -> int | None:
    """Return the available memory in bytes; None if it is unknown."""
    known = [_free(), *(_number(Path(limit)) for limit in _LIMITS)]
    return min((size for size in known if size is not None), default=None)


def is_streamed(size: int) -> bool:
    """Tell whether a table with this many bytes of numbers stays in its file.

    >>> is_streamed(10**9), is_streamed(10**6)
    (True, False)
    """
    return size >= STREAMED


def require_memory(path: Path, size: int, what: str) -> None:
    """Refuse data that do not fit into memory, before they are read."""
    free = available_memory()
    if free is not None and size > free:
        raise TableError(
            str(path),
            expected=f"{what} that fits into memory ({format_bytes(free)} are available)",
            got=f"one that needs about {format_bytes(size)}; save it as .parquet or .npy, of which "
            "tables of numbers are read block by block",
        )


def format_bytes(size: int) -> str:
    """Format a number of bytes.

    >>> format_bytes(10_737_418_240), format_bytes(4096)
    ('10.7 GB', '4.1 KB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def _free() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such limit, or the word "max"
        return None
