"""Weights of very different sizes, approached in stages.

Few samples of a large weight are nearly equalities: the fit is confined to a narrow curved valley,
along which steps are short. A search with limited weights finds the valley and its lowest point,
which moves little as the weights grow to those of the user.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Ratio of weights up to which a search needs no stages. Measured: 60 noisy samples and 15 of a
# larger weight, d = 15, rank 2: at 1e8 all starts converge, at 1e10 half of the searches stall.
_PLAIN_RATIO = 1e8
# Ratio of the limits of two stages. Measured: on the same problems up to 1e20, from 1e8 on, five
# steps or less lead from one stage to the next.
_STAGE_RATIO = 1e4


def weight_stages(weights: Tensor | None) -> list[Tensor | None]:
    """Return the weights `[n]` of successive fits; the last ones are those that are given.

    Those before are limited to a multiple of the smallest positive one.

    >>> [w.tolist() for w in weight_stages(torch.tensor([1.0, 0.0, 1e10]))]
    [[1.0, 0.0, 100000000.0], [1.0, 0.0, 10000000000.0]]
    """
    if weights is None:
        return [None]
    least, most = float(weights[weights > 0].min()), float(weights.max())
    stages, ratio = [], _PLAIN_RATIO
    while least * ratio < most:
        stages.append(weights.clamp_max(least * ratio))
        ratio *= _STAGE_RATIO
    return [*stages, weights]


def has_stages(weights: Tensor) -> Tensor:
    """Return which problems have weights `[..., n]` that need stages, `[...]`."""
    least = torch.where(weights > 0, weights, torch.inf).amin(-1)
    return _PLAIN_RATIO * least < weights.amax(-1)
