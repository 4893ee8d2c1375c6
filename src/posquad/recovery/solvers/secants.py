"""The memory of L-BFGS: pairs of a step and its change of the gradient (Nocedal 1980)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from posquad.recovery.solvers.fit import inner


class Secants(NamedTuple):
    """Pairs of steps and changes of the gradient, the newest first, for a batch of descents."""

    moves: Tensor  # [..., m, d, r]  steps
    turns: Tensor  # [..., m, d, r]  their changes of the gradient
    curvature: Tensor  # [..., m]  1 / <move, turn>, zero where there is no pair

    @classmethod
    def none(cls, like: Tensor, count: int) -> Self:
        """Return a memory of `count` pairs without any, for gradients like this one.

        >>> Secants.none(torch.ones(3, 2), 4).moves.shape
        torch.Size([4, 3, 2])
        """
        batch, shape = like.shape[:-2], like.shape[-2:]
        pairs = like.new_zeros(*batch, count, *shape)
        return cls(pairs, pairs, like.new_zeros(*batch, count))

    def with_pair(self, move: Tensor, turn: Tensor) -> Self:
        """Return the memory with one more pair, unused unless its curvature is clearly positive."""
        product = inner(move, turn)
        sizes = torch.linalg.matrix_norm(move) * torch.linalg.matrix_norm(turn)
        good = product > torch.finfo(move.dtype).eps * sizes
        inverse = torch.where(good, 1 / torch.where(good, product, 1.0), 0.0)
        return self._replace(
            moves=torch.cat([move[..., None, :, :], self.moves[..., :-1, :, :]], dim=-3),
            turns=torch.cat([turn[..., None, :, :], self.turns[..., :-1, :, :]], dim=-3),
            curvature=torch.cat([inverse[..., None], self.curvature[..., :-1]], dim=-1),
        )

    def solve(self, g: Tensor, metric: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the approximate inverse Hessian times `g[..., d, r]`, by the two-loop recursion.

        `metric` is the inverse Hessian without pairs.
        """
        shares, count = [], self.curvature.shape[-1]
        for k in range(count):
            share = self.curvature[..., k] * inner(self.moves[..., k, :, :], g)
            g = g - share[..., None, None] * self.turns[..., k, :, :]
            shares.append(share)
        v = metric(g)
        for k in reversed(range(count)):
            share = self.curvature[..., k] * inner(self.turns[..., k, :, :], v)
            v = v + (shares[k] - share)[..., None, None] * self.moves[..., k, :, :]
        return v
