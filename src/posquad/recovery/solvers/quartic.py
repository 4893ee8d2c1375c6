"""Exact line search: the loss along a line is a quartic, minimised without a pass over X.

The residual at U + tD is `e + t a + t^2 b` with `a_i = 2 <A_i, UD'>` and `b_i = <A_i, DD'>`. The
coefficients of the quartic are sums over measurements; its stationary points are the roots of a
cubic.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posquad.problems.measurements import Measurements

# Newton steps that refine the closed form of a root. A choice: it loses digits where its terms
# cancel, and each step doubles those that are left.
_REFINEMENTS = 3


def exact_step(operator: Measurements, e: Tensor, Z: Tensor, W: Tensor) -> Tensor:
    """Return the t >= 0 that minimises the squared errors at U + tD, `[...]`.

    `e[..., n]` is the residual at U, `Z = project(U)` and `W = project(D)`.
    """
    a, b = 2 * operator.paired(Z, W), operator.forms(W)  # [..., n]
    # Half the derivative is c0 + c1 t + c2 t^2 + c3 t^3; no sum cancels near t = 0.
    c0, c1 = (e * a).sum(-1), a.square().sum(-1) + 2 * (e * b).sum(-1)
    return least_step(c0, c1, 3 * (a * b).sum(-1), 2 * b.square().sum(-1))


def least_step(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor) -> Tensor:
    """Return the t >= 0 of least loss, if half its derivative is `c0 + c1 t + c2 t^2 + c3 t^3`."""
    roots = _cubic_roots(c0, c1, c2, c3)  # [..., 3], NaN where not real
    t = torch.where(roots > 0, roots, 0.0)  # NaN compares false
    # Compare changes of the loss, not losses, to avoid cancellation.
    p0, p1, p2, p3 = (c[..., None] for c in (c0, c1, c2, c3))
    change = t * (2 * p0 + t * (p1 + t * (2 * p2 / 3 + t * p3 / 2)))
    return t.gather(-1, change.argmin(-1, keepdim=True))[..., 0]


def _cubic_roots(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor) -> Tensor:
    """Return the real roots of `c0 + c1 t + c2 t^2 + c3 t^3`, and NaN for those that are not.

    The closed form is refined by Newton steps.
    """
    # Scale t so that the coefficients are comparable, and none overflows or underflows.
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
    for _ in range(_REFINEMENTS):
        value = c + roots * (b + roots * (a + roots))
        slope = b + roots * (2 * a + 3 * roots)
        roots = roots - torch.where(slope != 0, value / torch.where(slope != 0, slope, 1.0), 0.0)
    roots = roots * scale[..., None]
    return torch.where((c3 > 0)[..., None], roots, torch.nan)
