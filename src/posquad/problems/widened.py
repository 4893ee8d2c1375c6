"""Rank-one measurements by single-precision inputs in memory, computed in double precision."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from posquad.problems.measurements import RankOne
from posquad.problems.products import (
    RunningSum,
    column_products,
    has_symmetric_products,
    weighted_column_products,
)
from posquad.problems.rows.operator import RankOneRows
from posquad.problems.rows.source import MemoryRows

_PART_BYTES = {"cpu": 2 * 2**20}  # of the rows converted at a time: they stay in cache
_PART_BYTES_ELSEWHERE = 2**27  # accelerators work best with few large products
_MOMENT_ENTRIES = 2**21  # entries of the rows whose products are summed at a time


class RankOneWidened(RankOneRows):
    """The operator of float32 inputs `X[n, d]` in float64, without a copy of X in float64.

    Rows are converted block by block. `single` is the operator of X itself, and costs nothing.

    >>> X = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    >>> RankOneWidened(X).apply(torch.diag(torch.tensor([1.0, 10.0])).double())
    tensor([41., 10.], dtype=torch.float64)
    """

    def __init__(self, X: Tensor) -> None:
        self.narrow = X
        super().__init__(_WidenedRows(X))

    def single(self) -> RankOne:
        return RankOne.of_checked(self.narrow)

    @property
    def single_entries(self) -> int:
        return 0

    def adjoint_kernel(self, z: Tensor) -> Tensor:
        if z.ndim > 1 or z.requires_grad or not has_symmetric_products(self.narrow):
            return super().adjoint_kernel(z)
        total = RunningSum()
        for part, block in _parts(self.narrow, _MOMENT_ENTRIES // self.d):
            total.add(weighted_column_products(block, z[part]))
        return total.value

    @cached_property
    def second_moments(self) -> Tensor:
        if not has_symmetric_products(self.narrow):
            return super().second_moments
        total = RunningSum()
        for _, block in _parts(self.narrow, _MOMENT_ENTRIES // self.d):
            total.add(column_products(block))
        return total.value / self.n


class _WidenedRows(MemoryRows):
    """The rows of a float32 tensor in float64."""

    def __init__(self, X: Tensor) -> None:
        super().__init__(X)
        self.dtype = torch.float64

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        size = _PART_BYTES.get(self.device.type, _PART_BYTES_ELSEWHERE)
        return _parts(self.X, size // (self.dtype.itemsize * self.d))

    def read_all(self) -> Tensor:
        return super().read_all().double()


def _parts(X: Tensor, rows: int) -> Iterator[tuple[slice, Tensor]]:
    rows = max(64, rows)
    for start in range(0, len(X), rows):
        part = slice(start, min(start + rows, len(X)))
        yield part, X[part].double()
