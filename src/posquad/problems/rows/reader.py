"""Read a file in order into two buffers that are used in turn, one block ahead of the reader."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from posquad.core.files import FileError

_BUFFERS = 2


class Piece(NamedTuple):
    """Bytes of a file that belong at a place of the buffer."""

    file: int  # index of the file
    offset: int  # first byte
    begin: int  # first byte in the buffer
    length: int


def read_ahead(
    paths: Sequence[Path],
    blocks: Sequence[Sequence[Piece]],
    size: int,
    *,
    pinned: bool = False,
) -> Iterator[np.ndarray]:
    """Yield the bytes of each block; one block is read while the last one is in use.

    A thread reads with `preadv` into one of two buffers of `size` bytes, page-locked on request so
    that a GPU copies from them directly. The array that is yielded
    is one of them, so it is valid until the next one is taken. A file that ends early raises
    `FileError`.
    """
    free: queue.SimpleQueue[np.ndarray | None] = queue.SimpleQueue()
    full: queue.SimpleQueue[np.ndarray | BaseException] = queue.SimpleQueue()
    for _ in range(_BUFFERS):
        free.put(torch.empty(size, dtype=torch.uint8, pin_memory=pinned).numpy())
    files: list[int] = []

    def work() -> None:
        try:
            for path in paths:
                files.append(os.open(path, os.O_RDONLY))
            for pieces in blocks:
                buffer = free.get()
                if buffer is None:
                    return
                for piece in pieces:
                    target = buffer[piece.begin : piece.begin + piece.length].data
                    _fill(paths[piece.file], files[piece.file], target, piece.offset)
                full.put(buffer)
        except BaseException as problem:  # the thread that waits for the block raises it
            full.put(problem)
        finally:
            for file in files:
                os.close(file)

    thread = threading.Thread(target=work, name="posquad-reader", daemon=True)
    thread.start()
    try:
        for _ in blocks:
            block = full.get()
            if isinstance(block, OSError):
                got = block.strerror or str(block)
                name = str(block.filename or paths[0])
                raise FileError(name, expected="a readable file", got=got) from None
            if isinstance(block, BaseException):
                raise block
            yield block
            free.put(block)
    finally:
        free.put(None)
        thread.join()


def _fill(path: Path, file: int, target: memoryview, offset: int) -> None:
    done = 0
    while done < len(target):
        read = os.preadv(file, [target[done:]], offset + done)
        if not read:
            got = f"the end of the file after {offset + done} bytes: it was cut while it was read"
            expected = f"at least {offset + len(target)} bytes"
            raise FileError(str(path), expected=expected, got=got)
        done += read
