"""Fourth moments of rows, each kept once: `sum_n z_ni z_nj z_nk z_nl` for `i <= j <= k <= l`.

The Gram matrix of the products `z_i z_j` holds every moment several times. With the columns in
groups of consecutive indices, the moments with j in a group are one product of two matrices: the
pairs (i, j) with j in the group, and all pairs (k, l) with k from the first index of the group on.
Together these products take a quarter of the operations of the Gram matrix.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["FourthMoments"]

_GROUP = 6  # columns of a group: fewer make the products narrow, more repeat moments
_ROWS = 256  # rows whose products stay in cache while they are used
_GATHERED = 2**20  # entries of the Gram matrix that are put in place at a time


class FourthMoments:
    """The layout of the distinct fourth moments of k columns, and their accumulation."""

    def __init__(self, k: int) -> None:
        self.k, self.pairs = k, k * (k + 1) // 2
        self._i, self._j = torch.triu_indices(k, k)
        self._pair = torch.zeros(k, k, dtype=torch.int64)  # position of (i, j) in that order
        self._pair[self._i, self._j] = torch.arange(self.pairs)
        self._left: list[Tensor] = []  # positions of the pairs (i, j) with j in a group, by j
        self._first: list[int] = []  # position of the first pair (k, l) of a group
        # The moment of i <= j <= k <= l is at `base[j] + i width[j] + pair(k, l)`.
        self._base = torch.zeros(k, dtype=torch.int64)
        self._width = torch.zeros(k, dtype=torch.int64)
        self.size = 0  # number of stored moments
        for start in range(0, k, _GROUP):
            first = int(self._pair[start, start])
            width, rows = self.pairs - first, 0
            for j in range(start, min(start + _GROUP, k)):
                self._base[j] = self.size + rows * width - first
                self._width[j] = width
                rows += j + 1
            columns = [self._pair[: j + 1, j] for j in range(start, min(start + _GROUP, k))]
            self._left.append(torch.cat(columns))
            self._first.append(first)
            self.size += rows * width

    def accumulate(
        self, total: Tensor | None, Z: Tensor, weigh: Callable[[Tensor, slice], Tensor]
    ) -> Tensor:
        """Add the moments of the rows `Z[n, k]` to `total[size]`; return `sum_n e_n z_ni z_nj`.

        Without `total`, only these sums, `[pairs]`, are computed. `weigh(products, rows)` gives
        `e` for a slice of the rows, from their products `z_i z_j`, `[pairs, rows]`, i <= j.
        """
        k, cross = self.k, Z.new_zeros(self.pairs)
        parts = [] if total is None else self._parts(total)
        buffer = Z.new_empty(self.pairs, min(_ROWS, len(Z)))
        for start in range(0, len(Z), _ROWS):
            rows = slice(start, min(start + _ROWS, len(Z)))
            columns = Z[rows].T.contiguous()
            products = buffer[:, : columns.shape[1]]
            for i in range(k):
                place = int(self._pair[i, i])
                torch.mul(columns[i:], columns[i], out=products[place : place + k - i])
            cross += products @ weigh(products, rows)
            for part, left, first in parts:
                part.addmm_(products[left], products[first:].T)
        return cross

    def _parts(self, total: Tensor) -> list[tuple[Tensor, Tensor, int]]:
        """Matrices of the stored moments, with the pairs in their rows and the first column."""
        shapes = [(len(a), self.pairs - b) for a, b in zip(self._left, self._first, strict=True)]
        pieces = total.split([rows * columns for rows, columns in shapes])
        views = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        return list(zip(views, self._left, self._first, strict=True))

    def gram(self, total: Tensor) -> Tensor:
        """Symmetric matrix `[pairs, pairs]` of the moments `sum_n (z_i z_j)(z_k z_l)`."""
        gram = total.new_empty(self.pairs, self.pairs)
        step = max(1, _GATHERED // self.pairs)
        for begin in range(0, self.pairs, step):
            i, j = self._i[begin : begin + step, None], self._j[begin : begin + step, None]
            four = torch.stack(torch.broadcast_tensors(i, j, self._i[None], self._j[None])).sort(0)[
                0
            ]
            place = self._base[four[1]] + four[0] * self._width[four[1]]
            gram[begin : begin + step] = total[place + self._pair[four[2], four[3]]]
        return gram

    def gram_row(self, total: Tensor, last: int) -> Tensor:
        """The moments `sum_n z_i z_l^3`, `[k]`, of the last column l."""
        i = torch.arange(self.k)
        return total[self._base[last] + i * self._width[last] + self._pair[last, last]]

    def stored(self, gram: Tensor) -> Tensor:
        """The moments `[size]` whose Gram matrix is given: the inverse of `gram`."""
        total = gram.new_empty(self.size)
        for part, left, first in self._parts(total):
            part.copy_(gram[left, first:])
        return total
