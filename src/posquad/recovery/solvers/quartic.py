"""The loss along a line is a quartic: its exact minimiser, without a further pass over X.

With `Z = XU` and `W = XD`, the residual at U + tD is `e + 2t (Z.W) + t^2 (W.W)`, row by row. The
coefficients are sums over rows, the stationary points the roots of a cubic.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def exact_step(e: Tensor, Z: Tensor, W: Tensor) -> Tensor:
    """The t >= 0 of least `||e + 2t (Z.W) + t^2 (W.W)||^2`; `e[..., n]` and `Z, W[..., n, r]`."""
    a, b = 2 * (Z * W).sum(-1), W.square().sum(-1)  # [..., n]
    # Derivative / 2: c0 + c1 t + c2 t^2 + c3 t^3, from sums without cancellation near t = 0.
    c0, c1 = (e * a).sum(-1), a.square().sum(-1) + 2 * (e * b).sum(-1)
    c2, c3 = 3 * (a * b).sum(-1), 2 * b.square().sum(-1)
    roots = _cubic_roots(c0, c1, c2, c3)  # [..., 3], NaN where not real
    t = torch.where(roots > 0, roots, 0.0)  # NaN compares false
    # The change of the loss itself, not the loss: nothing is subtracted from a larger number.
    p0, p1, p2, p3 = (c[..., None] for c in (c0, c1, c2, c3))
    change = t * (2 * p0 + t * (p1 + t * (2 * p2 / 3 + t * p3 / 2)))
    return t.gather(-1, change.argmin(-1, keepdim=True))[..., 0]


def _cubic_roots(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor) -> Tensor:
    """Real roots of `c0 + c1 t + c2 t^2 + c3 t^3`, polished by Newton; NaN for missing ones."""
    # A scale of t at which the coefficients are comparable, so that none over- or underflows.
    scale = torch.where((c3 > 0) & (c0 != 0), (c0.abs() / c3).pow(1 / 3), 1.0)
    lead = torch.where(c3 > 0, c3 * scale**3, 1.0)
    a, b, c = c2 * scale**2 / lead, c1 * scale / lead, c0 / lead
    q, r = (a**2 - 3 * b) / 9, (2 * a**3 - 9 * a * b + 27 * c) / 54
    three = r**2 < q**3
    angle = torch.acos((r / q.clamp_min(0).pow(1.5)).clamp(-1, 1).nan_to_num())
    turns = torch.tensor([0.0, 2.0, -2.0], dtype=a.dtype, device=a.device) * math.pi
    many = -2 * q.clamp_min(0).sqrt()[..., None] * ((angle[..., None] + turns) / 3).cos()
    big = -torch.sign(r) * (r.abs() + (r**2 - q**3).clamp_min(0).sqrt()).pow(1 / 3)
    single = big + torch.where(big != 0, q / torch.where(big != 0, big, 1.0), 0.0)
    roots = torch.where(three[..., None], many, single[..., None])
    roots = roots - a[..., None] / 3
    a, b, c = a[..., None], b[..., None], c[..., None]
    for _ in range(3):
        value = c + roots * (b + roots * (a + roots))
        slope = b + roots * (2 * a + 3 * roots)
        roots = roots - torch.where(slope != 0, value / torch.where(slope != 0, slope, 1.0), 0.0)
    roots = roots * scale[..., None]
    return torch.where((c3 > 0)[..., None], roots, torch.nan)
