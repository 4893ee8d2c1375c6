"""The protocol of a source of rows: fixed blocks in a fixed order, read as often as needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from posquad.core.arrays import Array, floating_tensor
from posquad.core.errors import NonFiniteError, PosquadError, ShapeError
from posquad.core.progress import Progress
from posquad.core.twofold import Twofold

__all__ = ["Rows", "in_memory"]

_T = TypeVar("_T")
BLOCK_BYTES = 16 * 2**20  # of a block of rows: reading it takes longer than starting to read
_DEVICE_BLOCK_BYTES = 2**29  # of rows that are on an accelerator: few large products


class Rows(ABC):
    """Inputs `[n, d]` in blocks of rows.

    A subclass sets `n`, `d`, `dtype` and `device` and implements `_blocks`. A block is valid until
    the next one is taken: its memory may be used again. `reads` counts the rows that were given
    out, so that `reads / n` is the number of passes over the data.
    """

    n: int  # rows in all
    d: int
    dtype: torch.dtype = torch.float64
    device: torch.device = torch.device("cpu")
    reads: int = 0
    pinned: bool = False  # whether to read into page-locked memory, which a GPU copies from itself
    rank: int = 0  # of this process, if several hold the rows; the first one decides

    @property
    def block_rows(self) -> int:
        """Rows of a block; the last one may be shorter."""
        size = BLOCK_BYTES if self.device.type == "cpu" else _DEVICE_BLOCK_BYTES
        return max(1, size // (self.d * self.dtype.itemsize))

    @property
    def held(self) -> int:
        """Rows that this process holds: all of them, unless the source is shared."""
        return self.n

    @property
    def passes(self) -> float:
        """How often all rows have been read."""
        return self.reads / max(1, self.held)

    def blocks(self, begin: int = 0) -> Iterator[tuple[slice, Tensor]]:
        """Yield `(rows, block)`: positions among the rows held here, and their inputs.

        The first block is the one that holds the row `begin`, so that work can go on there.
        """
        for rows, block in self._blocks_from(begin):
            self.reads += rows.stop - rows.start
            yield rows, block

    @abstractmethod
    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield the blocks in order. Required."""

    def _blocks_from(self, begin: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield the blocks that end after the row `begin`; a file need not read the others."""
        for rows, block in self._blocks():
            if not begin or rows.stop > begin:
                yield rows, block

    def fingerprint(self) -> list[Any] | None:
        """Return plain values that differ for other or changed rows; None if nothing tells them.

        They identify the rows in a later process (`posquad.recovery.Checkpoint`).
        """
        return None

    def total(self, value: Tensor) -> Tensor:
        """Return the sum of a small tensor over everyone who holds rows."""
        return value

    def total_twofold(self, value: Twofold) -> Twofold:
        """Return such a sum without rounding that depends on who holds which rows; in place."""
        return value

    def all_gather(self, value: Tensor) -> list[Tensor]:
        """Return a small tensor of everyone who holds rows, in order."""
        return [value]

    def largest(self, value: Tensor) -> Tensor:
        """Return the largest value of a small tensor over everyone who holds rows."""
        return value

    def together(self) -> AbstractContextManager[None]:
        """Context of long work: processes that hold rows tell each other that they are alive."""
        return nullcontext()

    @property
    def is_shared(self) -> bool:
        """Whether several processes hold the rows."""
        return False

    def check_same(self, problem: PosquadError | None = None, fact: Any = None) -> None:
        """Raise `problem`, if there is one here or elsewhere; all must state the same fact."""
        if problem is not None:
            raise problem

    def broadcast(self, decide: Callable[[], _T]) -> _T:
        """Return what one process decides, on all of them: by a clock, a signal or at random."""
        return decide()

    def watched(self, progress: Callable[[Progress], None] | None) -> Any:
        """Return a callback that also ends the work here when another process has ended."""
        return progress

    def collect(self, value: Tensor) -> Tensor:
        """Return the entries of everyone, in order; `value` has one entry per row held here."""
        return value

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the values of everyone who holds rows, in order."""
        return [value]

    def to(
        self, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Rows:
        """Return the same rows in another precision or on another device, block by block."""
        dtype = self.dtype if dtype is None else dtype
        target = self.device if device is None else torch.empty(0, device=device).device
        if (dtype, target) == (self.dtype, self.device):
            return self
        return _Converted(self, dtype, target)

    def read_all(self) -> Tensor:
        """Return all rows `[n, d]`, in memory."""
        X = torch.empty(self.held, self.d, dtype=self.dtype, device=self.device)
        for rows, block in self.blocks():
            X[rows] = block
        return X

    def first_rows(self, count: int) -> Tensor:
        """Return the first rows `[count, d]`, in memory."""
        X = torch.empty(min(count, self.held), self.d, dtype=self.dtype, device=self.device)
        for rows, block in self.blocks():
            stop = min(rows.stop, len(X))
            X[rows.start : stop] = block[: stop - rows.start]
            if stop == len(X):
                break
        return X

    def leading(self, count: int) -> Tensor:
        """Return those of the first `count` rows of everyone that are held here, `[k, d]`."""
        return self.first_rows(count)

    def name_row(self, row: int) -> str:
        """Return how messages call a row, from 0."""
        return f"row {row}"

    def name_column(self, column: int) -> str:
        """Return how messages call a column, from 0."""
        return f"column {column}"

    def require_finite(self, rows: slice, block: Tensor) -> None:
        """Refuse NaN and infinities in a block, and name the first row that has one."""
        place = _first_not_finite(block)
        if place is not None:
            where = f"{self.name_row(rows.start + place[0])}, {self.name_column(place[1])}"
            got = f"{_called(block[place])} in {where}"
            raise NonFiniteError("X", expected="finite numbers", got=got)

    def admit_values(self, name: str, values: Array) -> Tensor:
        """Return numbers, one per row held here, as a tensor; the row of one that is none is named.

        Their shape is not checked.
        """
        given = floating_tensor(name, values)
        place = _first_not_finite(given)
        if place is not None:
            got = f"{_called(given[place])} for {self.name_row(place[-1])}"
            raise NonFiniteError(name, expected="finite numbers", got=got)
        return given

    @property
    def shape(self) -> tuple[int, int]:
        """`(n, d)`."""
        return self.n, self.d

    @property
    def size(self) -> int:
        """Number of entries, `n d`."""
        return self.n * self.d

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        precision = str(self.dtype).removeprefix("torch.")
        return f"{type(self).__name__}(n={self.n}, d={self.d}, {precision})"


class DerivedRows(Rows):
    """Rows computed from those of another source, one by one."""

    def __init__(self, source: Rows) -> None:
        self.source, self.rank = source, source.rank
        self.n, self.d = source.n, source.d
        self.dtype, self.device = source.dtype, source.device

    @property
    def held(self) -> int:
        return self.source.held

    def total(self, value: Tensor) -> Tensor:
        return self.source.total(value)

    def total_twofold(self, value: Twofold) -> Twofold:
        return self.source.total_twofold(value)

    def together(self) -> AbstractContextManager[None]:
        return self.source.together()

    def largest(self, value: Tensor) -> Tensor:
        return self.source.largest(value)

    def all_gather(self, value: Tensor) -> list[Tensor]:
        return self.source.all_gather(value)

    @property
    def is_shared(self) -> bool:
        return self.source.is_shared

    def check_same(self, problem: PosquadError | None = None, fact: Any = None) -> None:
        self.source.check_same(problem, fact)

    def broadcast(self, decide: Callable[[], _T]) -> _T:
        return self.source.broadcast(decide)

    def collect(self, value: Tensor) -> Tensor:
        return self.source.collect(value)

    def all_gather_object(self, value: Any) -> list[Any]:
        return self.source.all_gather_object(value)

    def watched(self, progress: Callable[[Progress], None] | None) -> Any:
        return self.source.watched(progress)

    def leading(self, count: int) -> Tensor:
        before = len(self.source.leading(count))
        return self.first_rows(before)

    def name_row(self, row: int) -> str:
        return self.source.name_row(row)

    def name_column(self, column: int) -> str:
        return self.source.name_column(column)


class _Converted(DerivedRows):
    def __init__(self, source: Rows, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(source)
        self.dtype, self.device = dtype, device
        source.pinned |= device.type == "cuda"
        for name in ("y", "weights"):  # of an iterator
            if hasattr(source, name):
                setattr(self, name, getattr(source, name))

    def to(
        self, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Rows:
        return self.source.to(dtype or self.dtype, device or self.device)

    def fingerprint(self) -> list[Any] | None:
        known = self.source.fingerprint()
        return known if known is None or self.device.type == "cpu" else [self.device.type, *known]

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        return self._blocks_from(0)

    def _blocks_from(self, begin: int) -> Iterator[tuple[slice, Tensor]]:
        for rows, block in self.source.blocks(begin):
            yield rows, block.to(self.device).to(self.dtype)


class MemoryRows(Rows):
    """Rows of a tensor."""

    def __init__(self, X: Tensor) -> None:
        self.X = X
        self.n, self.d = X.shape
        self.dtype, self.device = X.dtype, X.device

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for start in range(0, self.n, self.block_rows):
            rows = slice(start, min(start + self.block_rows, self.n))
            yield rows, self.X[rows]

    def read_all(self) -> Tensor:
        self.reads += self.n
        return self.X


def _first_not_finite(values: Tensor) -> tuple[int, ...] | None:
    """Return the first place of NaN or an infinity; a finite sum shows that there is none."""
    if bool(torch.isfinite(values.sum())):
        return None
    bad = (~torch.isfinite(values)).nonzero()
    return tuple(bad[0].tolist()) if len(bad) else None


def _called(value: Tensor) -> str:
    return "NaN" if bool(value.isnan()) else "an infinity"


def in_memory(X: Array) -> Rows:
    """Return the rows of an array `X[n, d]` as a source; nothing is copied.

    >>> in_memory(np.ones((3, 2)))
    MemoryRows(n=3, d=2, float64)
    """
    X_ = floating_tensor("X", X)
    if X_.ndim != 2 or 0 in X_.shape:
        got = f"shape {tuple(X_.shape)}"
        raise ShapeError("X", expected="shape (n, d) with n, d >= 1", got=got)
    rows = MemoryRows(X_)
    rows.require_finite(slice(0, rows.n), X_.detach())
    return rows


def as_rows(X: Rows | Array) -> Rows:
    """Return X if it is a source of rows, else the rows of the array."""
    return X if isinstance(X, Rows) else in_memory(X)
