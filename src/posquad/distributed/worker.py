"""What runs on the workers of a cluster: one rank of a process group, with the partitions there."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as distributed
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from posquad.core.errors import DomainError
from posquad.distributed.partitions import Part
from posquad.problems import rows
from posquad.problems.rows.exchange import join_group
from posquad.recovery import Recovery, recover

_START = 120.0  # seconds that the tasks may take to start: other tasks may come first

_stores: dict[str, TCPStore] = {}  # open on this worker, by the name of the group


class Place(NamedTuple):
    """Where the processes of a group find each other, and how long they wait."""

    name: str
    host: str
    port: int
    timeout: float  # seconds


class PartitionRows(rows.Rows):
    """The rows of partitions in memory, one after the other; nothing is copied."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.numbers = [part.number for part in parts]
        self.parts = [rows.in_memory(part.X) for part in parts]
        self.n = sum(part.n for part in self.parts)
        self.d, self.dtype = self.parts[0].d, self.parts[0].dtype

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        first = 0
        for part in self.parts:
            for place, block in part.blocks():
                yield slice(first + place.start, first + place.stop), block
            first += part.n

    def name_row(self, row: int) -> str:
        for number, part in zip(self.numbers, self.parts, strict=True):
            if row < part.n:
                return f"row {row} of partition {number}"
            row -= part.n
        raise IndexError(row)


def identity() -> tuple[str, int]:
    """Return the machine and the process of a worker."""
    return socket.gethostname(), os.getpid()


def open_store(name: str, host: str, timeout: float) -> int:
    """Open the store by which the processes of a group find each other; return its port."""
    wait = timedelta(seconds=max(_START, timeout))
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=wait)
    _stores[name] = store
    return store.port


def close_store(name: str) -> None:
    """Close the store of a group."""
    _stores.pop(name, None)


def run_rank(
    place: Place, rank: int, size: int, threads: int, parts: Sequence[Part], options: dict[str, Any]
) -> Recovery | None:
    """Take part in a recovery as one rank of a group; the first one returns the answer."""
    if distributed.is_initialized():
        expected = "workers without a process group of torch.distributed"
        raise DomainError("client", expected=expected, got="one in use on a worker")
    wait = timedelta(seconds=max(_START, place.timeout))
    store = _stores.get(place.name) if rank == 0 else None
    if store is None:
        store = TCPStore(place.host, place.port, is_master=False, timeout=wait)
    join_group("gloo", store=store, rank=rank, world_size=size, timeout=wait)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = _recovered(parts, place.timeout, options)
    finally:
        torch.set_num_threads(before)
        distributed.destroy_process_group()
    return found if rank == 0 else None


def _recovered(parts: Sequence[Part], timeout: float, options: dict[str, Any]) -> Recovery:
    held = [part for part in parts if len(part.X)]
    own = PartitionRows(held) if held else parts[0].X
    weights = None
    if parts[0].weights is not None:
        weights = np.concatenate([part.weights for part in parts if part.weights is not None])
    y = np.concatenate([part.y for part in held or parts])
    return recover(rows.sharded(own, timeout=timeout), y, weights=weights, **options)
