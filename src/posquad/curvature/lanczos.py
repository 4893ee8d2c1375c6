"""The Lanczos method, used to search for more extreme eigenvalues."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posquad.core.ranges import tiny

Block = Callable[[Tensor], Tensor]  # [..., N, b] -> [..., N, b]

_COLUMNS = 32  # columns per block of the basis


class Lanczos:
    """The Lanczos method with full orthogonalization, for a batch of operators."""

    def __init__(self, operator: Block, project: Block, start: Tensor) -> None:
        self.operator, self.project = operator, project
        self.blocks: list[Tensor] = []  # the basis, in blocks of a few columns
        self.next = self._normalized(project(project(start)))
        self.previous: Tensor | None = None
        self.diagonal: list[Tensor] = []
        self.off: list[Tensor] = []
        self.growth = torch.zeros_like(start[..., 0, 0])  # log |p_m(0)|
        self.pivot = torch.ones_like(self.growth)  # last pivot of T_m, positive while T_m is

    def step(self) -> None:
        self.take(self.operator(self.next))

    def take(self, w: Tensor) -> None:
        """One step, given the operator times `next`."""
        y = self.next
        if self.blocks and self.blocks[-1].shape[-1] < _COLUMNS:
            self.blocks[-1] = torch.cat([self.blocks[-1], y], dim=-1)
        else:
            self.blocks.append(y)
        a = (y * w).sum((-2, -1))
        # The recurrence removes all but rounding, and one orthogonalization removes that.
        w = w - a[..., None, None] * y
        if self.previous is not None:
            w = w - self.off[-1][..., None, None] * self.previous
        self.previous = y
        for block in self.blocks:
            w = w - block @ (block.mT @ w)
        w = self.project(w)
        b = torch.linalg.vector_norm(w, dim=(-2, -1))
        before = self.off[-1].square() / self.pivot if self.off else 0.0
        self.pivot = a - before
        # b = 0 up to rounding means that the space is exhausted and nothing is left to find.
        factor = torch.where(self.pivot > 0, self.pivot / b.clamp_min(tiny(b)), 0.0)
        self.growth = self.growth + factor.log()  # stays -inf after a negative pivot
        self.diagonal.append(a)
        self.off.append(b)
        self.next = self._normalized(w)

    def lowest(self, count: int) -> Tensor:
        """The Ritz vectors `[..., N, c]` of the lowest values, c <= count."""
        S = torch.linalg.eigh(self._tridiagonal()).eigenvectors
        parts = S[..., :count].split([block.shape[-1] for block in self.blocks], dim=-2)
        vectors = [block @ part for block, part in zip(self.blocks, parts, strict=True)]
        return torch.stack(vectors).sum(0)

    def values(self) -> Tensor:
        """The Ritz values `[..., m]`, ascending."""
        return torch.linalg.eigvalsh(self._tridiagonal())

    def growth_at(self, t: Tensor, values: Tensor) -> Tensor:
        """`log |p_m(t)|`, `[...]`, for the Ritz values, and t outside them."""
        factors = (t[..., None] - values).abs() / torch.stack(self.off, -1).clamp_min(tiny(t))
        return factors.log().sum(-1)

    def _tridiagonal(self) -> Tensor:
        T = torch.diag_embed(torch.stack(self.diagonal, dim=-1))
        if len(self.off) > 1:
            off = torch.stack(self.off[:-1], dim=-1)
            T = T + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
        return T

    @staticmethod
    def _normalized(w: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(w, dim=(-2, -1), keepdim=True)
        return w / size.clamp_min(tiny(w))
