"""Read a file in order into two buffers that are used in turn, one block ahead of the reader."""

from __future__ import annotations

import hashlib
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
# Sums of a checksum. A choice: a prime, so that pages of 512 words that change places change them.
_LANES = 1021


class DamagedFileError(FileError):
    """Bytes of a file are not those that were written there; `offset` is the first of the block."""

    offset: int


class Piece(NamedTuple):
    """Bytes of a file that belong at a place of the buffer."""

    file: int  # index of the file
    offset: int  # first byte
    begin: int  # first byte in the buffer
    length: int
    check: int | None = None  # `block_checksum` of the bytes, if it is known


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
    `FileError`, and a piece whose checksum is not the known one `DamagedFileError`.
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
                    if piece.check is not None and block_checksum(target) != piece.check:
                        raise _damaged(paths[piece.file], piece)
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


def block_checksum(data: bytes | memoryview | np.ndarray) -> int:
    """Return a number of 64 bits that tells changed bytes.

    It is a hash of 1021 sums (mod 2^64) of the words of 8 bytes at that distance. So one changed
    word changes it, and two do unless they are in one sum and cancel. NumPy adds at the speed of
    the memory, 12 times as fast as CRC-32, so that a pass over rows in memory hardly takes longer.

    >>> block_checksum(b"some bytes") == block_checksum(b"same bytes")
    False
    """
    given = np.frombuffer(data, np.uint8) if not isinstance(data, np.ndarray) else data
    whole = given.reshape(-1).view(np.uint8)
    words = whole[: len(whole) // 8 * 8].view(np.uint64)
    rows = len(words) // _LANES * _LANES
    sums = np.add.reduce(words[:rows].reshape(-1, _LANES), axis=0)
    sums[: len(words) - rows] += words[rows:]
    digest = hashlib.blake2b(sums.tobytes() + whole[8 * len(words) :].tobytes(), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def _fill(path: Path, file: int, target: memoryview, offset: int) -> None:
    done = 0
    while done < len(target):
        read = os.preadv(file, [target[done:]], offset + done)
        if not read:
            got = f"the end of the file after {offset + done} bytes: it was cut while it was read"
            expected = f"at least {offset + len(target)} bytes"
            raise FileError(str(path), expected=expected, got=got)
        done += read


def _damaged(path: Path, piece: Piece) -> DamagedFileError:
    last = piece.offset + piece.length - 1
    got = f"others between bytes {piece.offset} and {last}, by their checksum"
    problem = DamagedFileError(str(path), expected="the bytes that were written", got=got)
    problem.offset = piece.offset
    return problem
