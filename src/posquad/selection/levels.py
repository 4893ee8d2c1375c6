"""Extremes of the two Bregman level sets, in closed form.

They are those of Lemma 4.2 (`lem:compact-reverse-bregman-levels`). `D_h(p, q) <= c` bounds each
ratio x = q_a / p_a by `x - 1 - log x <= 4c / (d_a p_a)`, an interval whose ends are given by the
two branches of Lambert's W; `D_h(q, p) <= c` bounds it by `x log x - x + 1 <= 4c / (d_a p_a)`.
Everything is computed in logarithms, so that exponentials do not underflow and small levels do not
cancel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posquad.core.ranges import tiny


def reverse_log_ratios(level: Tensor) -> tuple[Tensor, Tensor]:
    """The two z = log x with `x - 1 - log x = level >= 0`: `z <= 0 <= z'`.

    `x = -W(-exp(-1 - level))`; the principal branch gives z, the other branch z'.
    """

    def value(z: Tensor) -> Tensor:
        return _expm1_minus(z) - level

    root = (2 * level).sqrt()
    low = _newton(value, torch.expm1, torch.minimum(-root / (1 + root / 3), -level))
    high = _newton(value, torch.expm1, torch.minimum(root, torch.log1p(level + root)))
    return low, high


def forward_log_ratio(level: Tensor) -> Tensor:
    """The z = log x >= 0 with `x log x - x + 1 = level >= 0`: `x = exp(1 + W((level - 1)/e))`."""

    def value(z: Tensor) -> Tensor:
        # e^z (z - 1) + 1 = z e^z - (e^z - 1), grouped so that small z do not cancel
        return z * torch.expm1(z) - _expm1_minus(z) - level

    def slope(z: Tensor) -> Tensor:
        return z * z.exp()

    return _newton(value, slope, torch.minimum((2 * level).sqrt(), torch.log1p(level)))


def largest_linear(c: Tensor, p: Tensor, d: Tensor, level: Tensor) -> Tensor:
    """`max c'(q - p)` over `{q > 0 : D_h(p, q) <= level}`, for a batch of c `[..., m]`.

    The set is convex and the maximiser is `q_a = p_a / (1 - 4 c_a / (mu d_a))`, with the mu at
    which the divergence equals the level; the divergence decreases from infinity to zero in mu.
    """
    s = 4 * c / d  # [..., m]
    top = s.amax(-1).clamp_min(0)  # mu must exceed this

    def grown(gap: Tensor) -> Tensor:
        """`q/p - 1 = s / (mu - s)` with `mu = top + gap`."""
        return s / (gap[..., None] + (top[..., None] - s))

    def excess(gap: Tensor) -> Tensor:
        return (d * p * _expm1_minus(torch.log1p(grown(gap)))).sum(-1) / 4 - level

    size = s.abs().amax(-1).clamp_min(tiny(s))
    low, high = size * 1e-60, size * 1e60
    for _ in range(200):
        middle = ((low.log() + high.log()) / 2).exp()
        above = excess(middle) > 0
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return torch.where(s.abs().amax(-1) > 0, (c * p * grown(high)).sum(-1), 0.0)


def _expm1_minus(z: Tensor) -> Tensor:
    """`e^z - 1 - z`, by its series where the difference would cancel."""
    series = z.square() * (1 / 2 + z * (1 / 6 + z * (1 / 24 + z * (1 / 120 + z / 720))))
    return torch.where(z.abs() < 1e-2, series, torch.expm1(z) - z)


def _newton(
    value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], z: Tensor
) -> Tensor:
    """Newton's method on a monotone branch; it converges quadratically in the fixed steps."""
    for _ in range(60):
        step = value(z) / slope(z)
        z = torch.where(torch.isfinite(step), z - step, z)
    return z
