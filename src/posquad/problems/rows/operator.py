"""Quadratic measurements by the rows of a source, written once for every kind of source.

Every kernel is a loop over the blocks of the source; a sum over rows goes through `Rows.total`.
Vectors of one number per row are kept, as the responses are. Matrices of several numbers per row
are kept up to `KEPT_BYTES` and otherwise computed again from the block at hand.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from posquad.core.errors import ShapeError
from posquad.core.symmetric import (
    reduced_system,
    solve_reduced,
    symmetric_system,
)
from posquad.problems.measurements import RankOne
from posquad.problems.rows.source import DerivedRows, Rows

KEPT_BYTES = 2**28  # of a matrix of several numbers per row that is kept between passes
_SYSTEM_ENTRIES = 2**21  # entries of a system of linear equations that are formed at a time
_CACHED_BYTES = 2**21  # of the rows that stay in cache between two products with them


class RankOneRows(RankOne):
    """Measurements `A_i = x_i x_i'` by the rows of a source; `n` counts the rows of everyone.

    Made by `RankOne(source)`. Vectors `[..., n]` hold the rows of this process. `X` reads all rows
    into memory, and is meant for small problems.
    """

    dtype: torch.dtype  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, X: Rows) -> None:
        self.source = source = X
        self.n, self.d = source.n, source.d
        self.batch_shape = torch.Size()
        self.dtype, self.device = source.dtype, source.device

    @property
    def held(self) -> int:
        return self.source.held

    def total(self, value: Tensor) -> Tensor:
        return self.source.total(value)

    def largest(self, value: Tensor) -> Tensor:
        return self.source.largest(value)

    def lower_median(self, values: Tensor) -> Tensor:
        if not self.source.is_shared:
            return super().lower_median(values)
        return _shared_median(self.source, values)

    @property
    def X(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All rows, read into memory."""
        return self.source.read_all()

    def double(self) -> RankOne:
        return RankOneRows(self.source.to(torch.float64))

    def single(self) -> RankOne:
        return RankOneRows(self.source.to(torch.float32))

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for rows, block in self.source.blocks():
            yield from self.split(rows, block)

    def split(self, rows: slice, block: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield the parts of a block of the source that stay in cache between two products."""
        step = max(64, _CACHED_BYTES // (self.d * self.dtype.itemsize))
        if self.source.device.type != "cpu":  # no cache holds a block there, and launches cost
            step = self.held + 1
        recorded = torch.is_grad_enabled()  # what a gradient needs must outlive its block
        for start in range(0, max(1, len(block)), step):
            stop = min(start + step, len(block))
            part = block[start:stop].clone() if recorded else block[start:stop]
            yield slice(rows.start + start, rows.start + stop), part

    def _product_blocks(self) -> Iterator[tuple[slice, Tensor]]:
        return self._blocks()

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        return self._blocks()

    def _keeps(self, numbers: int) -> bool:
        return numbers * self.held * self.dtype.itemsize <= KEPT_BYTES

    @property
    def _symmetric_rows(self) -> Tensor | None:
        return None

    def gram(self, D: Tensor | None = None) -> Tensor:
        X = self._own("gram")
        return X @ X.mT if D is None else X @ D @ X.mT

    def symmetric_fit(self, y: Tensor) -> tuple[Tensor, Tensor]:
        D, Y = self.d * (self.d + 1) // 2, y.reshape(y.shape[:-1].numel(), self.held).T  # [n, m]
        step = max(D, _SYSTEM_ENTRIES // D)
        system = Y.new_zeros(0, D + Y.shape[1])  # equations of the rows so far, at most D
        for rows, block in self._blocks():
            for part, right in zip(block.split(step), Y[rows].split(step), strict=True):
                new = torch.cat([symmetric_system(part), right], -1)
                system = _reduced(torch.cat([system, new]), D)
        full = torch.cat([system, system.new_zeros(D - len(system), system.shape[1])])
        system = _reduced(torch.cat(self.source.all_gather(full)), D)
        right = system[:, D:].T.reshape(*y.shape[:-1], D)
        return solve_reduced(system[:, :D], right, self.d)

    def transformed(self, T: Tensor) -> RankOne:
        return RankOneRows(_Transformed(self.source, T))

    def normalized(self) -> RankOne:
        return RankOneRows(_Transformed(self.source, None))

    def select(self, index: Tensor) -> RankOne:
        raise ShapeError("index", expected="a batch of operators", got="one source of rows")

    def _own(self, what: str) -> Tensor:
        if self.source.is_shared:
            expected = "all rows in one process"
            raise ShapeError(what, expected=expected, got=f"{self.held} of {self.n}")
        return self.X


def _reduced(system: Tensor, D: int) -> Tensor:
    """Return at most D equations `[D, D + m]` of the same least squares problem."""
    return torch.cat(reduced_system(system[:, :D], system[:, D:]), -1)


def _shared_median(source: Rows, values: Tensor) -> Tensor:
    """Return the lower median of `values[n]` by counting: no process needs those of the others."""
    # Floating point numbers are in the order of their bits as integers, negative ones reversed.
    whole = torch.int64 if values.dtype == torch.float64 else torch.int32
    lowest = torch.iinfo(whole).min
    ordered = values.view(whole).long()
    ordered = torch.where(ordered < 0, lowest - ordered, ordered)
    low, high = lowest, -lowest - 1
    while low < high:
        middle = (low + high) // 2
        below = int(source.total((ordered <= middle).sum()))
        low, high = (low, middle) if 2 * below >= source.n else (middle + 1, high)
    bits = torch.tensor(low if low >= 0 else lowest - low, dtype=whole, device=values.device)
    return bits.view(values.dtype)


class _Transformed(DerivedRows):
    """Rows `T'x_i`; without T, rows of length one."""

    def __init__(self, source: Rows, T: Tensor | None) -> None:
        super().__init__(source)
        self.T = T
        self.d = source.d if T is None else T.shape[-1]

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for rows, block in self.source.blocks():
            if self.T is not None:
                yield rows, block @ self.T
            else:
                lengths = torch.linalg.vector_norm(block, dim=-1, keepdim=True)
                yield rows, block / torch.where(lengths > 0, lengths, 1.0)
