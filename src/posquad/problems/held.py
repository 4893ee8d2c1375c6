"""Measurements whose numbers are one tensor in memory, and the operators made from parts of it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

import torch
from torch import Tensor

from posquad.problems.operator import Measurements


class HeldMeasurements(Measurements):
    """Measurements that hold one tensor, `[..., n, *own]`, `own` being what belongs to one A_i.

    A batch that repeats the measurements of one problem holds views of one tensor.
    """

    own_dimensions: int  # of what belongs to one A_i
    triangular: bool = False  # whether the rows svec(A_i) are an upper triangular D x D matrix
    bounded: bool = False  # whether the A_i are made from positive semidefinite matrices

    @property
    @abstractmethod
    def data(self) -> Tensor:
        """The tensor, `[..., n, *own]`."""

    @abstractmethod
    def holding(self, data: Tensor) -> Self:
        """Return the same kind of operator of a tensor that is known to be valid."""

    @abstractmethod
    def transformed(self, T: Tensor) -> HeldMeasurements:
        """Return the operator with the matrices `T'A_i T`, for `T[..., d, k]`."""

    @abstractmethod
    def weighted(self, s: Tensor) -> HeldMeasurements:
        """Return the operator with the matrices `s_i A_i`, for nonnegative `s[..., n]`."""

    @abstractmethod
    def normalized(self) -> HeldMeasurements:
        """Return the operator with matrices of norm one; zero ones stay."""

    @abstractmethod
    def absolute_moments(self) -> Tensor:
        """`sum_i |A_i|`, `[..., d, d]`: zero where no measurement joins two coordinates."""

    @abstractmethod
    def largest_term(self) -> Tensor:
        """The largest entry of all A_i in absolute value, a scalar."""

    @abstractmethod
    def double(self) -> HeldMeasurements:
        """Return the same operator with its data in double precision."""

    def eliminated(self, e: Tensor) -> Tensor:
        """Return the part of `e[..., n]` that other terms do not explain: all if there are none."""
        return e

    @property
    def entries(self) -> int:
        """Numbers that are held for one problem."""
        return self.data[(0,) * len(self.batch_shape)].numel() if 0 not in self.batch_shape else 0

    @property
    def shared(self) -> Self | None:
        """The operator of one problem that a batch repeats as views, else None."""
        one = one_of_views(self.data, len(self.batch_shape)) if self.batch_shape else None
        return None if one is None else self.holding(one)

    def select(self, index: Tensor) -> Self:
        """Return the operators of a batch at these indices; those of one design stay views."""
        shared = self.shared
        if shared is None:
            return self.holding(self.data[index])
        return self.holding(shared.data.expand(len(index), *shared.data.shape))

    def at_rows(self, index: Tensor) -> HeldMeasurements:
        """Return the operator of the measurements at these indices, `[m]`, which ascend."""
        return self.holding(self.data.index_select(-1 - self.own_dimensions, index))

    def expanded(self, *batch: int) -> Self:
        """Return the operators of a batch of this shape."""
        return self.holding(self.data.expand(*batch, *self.data.shape[len(self.batch_shape) :]))

    def flattened(self) -> Self:
        """Return the operators with one batch dimension; equal ones become views of one."""
        batch, data = self.batch_shape, self.data
        tail = data.shape[len(batch) :]
        if not batch:
            return self
        if batch.numel() >= 2 and data.numel():
            first, last = data[(0,) * len(batch)], data[(-1,) * len(batch)]
            view = all(data.stride(k) == 0 or batch[k] == 1 for k in range(len(batch)))
            if view or (torch.equal(first, last) and bool((first == data).all())):
                return self.holding(first.expand(batch.numel(), *tail))
        return self.holding(data.reshape(-1, *tail))

    def cpu(self) -> Self:
        """Return the same operator on the CPU."""
        return self if self.data.device.type == "cpu" else self.holding(self.data.cpu())


def one_of_views(data: Tensor, batch_dimensions: int = 1) -> Tensor | None:
    """Return the tensor that a batch `data[B, ...]` repeats as views, else None."""
    repeats = batch_dimensions == 1 and len(data) > 1 and data.stride(0) == 0
    return data[0] if repeats else None
