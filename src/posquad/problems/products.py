"""Products of a tall matrix with few columns, and sums of products over blocks of its rows."""

from __future__ import annotations

import torch
from torch import Tensor

_PADDED_ENTRIES = 2**18  # entries of a matrix from which rows of zeros pay


def tall_product(M: Tensor, V: Tensor) -> Tensor:
    """`M @ V`, computed as `(V'M')'`, which is faster for few columns."""
    return _few_rows(V.mT, M.mT).mT


def adjoint_product(M: Tensor, V: Tensor) -> Tensor:
    """`M'V`, computed as `(V'M)'`, which is faster for few columns."""
    return _few_rows(V.mT, M).mT.contiguous()  # optimizers flatten gradients with `view`


def _few_rows(R: Tensor, M: Tensor) -> Tensor:
    """`R @ M`; a batch of R with one M becomes one product, so that M is read once.

    BLAS works on groups of four rows, and others take up to twice as long. A large M is worth a
    copy of R with rows of zeros.
    """
    if M.ndim > 2:
        return R @ M
    rows = R.reshape(R.shape[:-1].numel(), R.shape[-1])
    count = len(rows)
    if count > 2 and count % 4 and M.numel() >= _PADDED_ENTRIES:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, -count % 4))
    return (rows @ M)[:count].reshape(*R.shape[:-1], M.shape[-1])


class RunningSum:
    """Running sum of blocks, in place unless a gradient is being recorded."""

    def __init__(self) -> None:
        self._value: Tensor | None = None

    def add(self, term: Tensor) -> None:
        if self._value is None:
            self._value = term
        elif self._value.requires_grad or term.requires_grad:
            self._value = self._value + term
        else:
            self._value += term

    def add_product(self, left: Tensor, right: Tensor) -> None:
        """Add `left @ right`, without a temporary matrix of its size where that is possible."""
        value, plain = self._value, left.ndim == right.ndim == 2
        recorded = left.requires_grad or right.requires_grad
        if value is None or not plain or recorded or value.requires_grad:
            self.add(left @ right)
        else:
            value.addmm_(left, right)

    @property
    def value(self) -> Tensor:
        assert self._value is not None, "an operator has at least one row"
        return self._value
