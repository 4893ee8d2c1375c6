"""Bregman projections: the interpolant that training selects (paper, section 4.2-4.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posquad._arrays import A, like, positive_integer, require_batch, require_shape, tensors
from posquad._results import Result
from posquad.errors import DomainError, ShapeError
from posquad.selection._dual import Family, project
from posquad.selection.feasibility import require_strictly_feasible
from posquad.selection.system import System, prepare, require_positive
from posquad.status import Status

__all__ = ["Projection", "bregman_divergence", "bregman_projection"]


@dataclass(frozen=True, eq=False, repr=False)
class Projection(Result):
    """The projection of q0 onto `{q >= 0 : Bq = y}` and how well it was solved."""

    q: Any  # [..., m]  strictly positive
    dual: Any  # [..., n]  d_a log(q_a / q0_a) = (B' dual)_a
    residual: Any  # [...]  max_i |(Bq - y)_i| / max_i (|B| q)_i
    kkt: Any  # [...]  max_a |log q_a - log q0_a - (B' dual)_a / d_a|
    status: Status  # CONVERGED or NOT_CONVERGED
    steps: int  # Newton steps, over the whole path


def bregman_projection(B: A, y: A, multiplicities: A, q0: A, *, max_steps: int = 500) -> Projection:
    """`argmin D_h(q, q0)` over `q >= 0`, `Bq = y` (`eq:finite-initialization-bregman-projection`).

    The limit of the mirror flow from q0 (`thm:global-convergence-bregman-projection`). By Newton's
    method on the dual, `q = q0 exp(B'dual / d)`, in logarithms: q0 may be as small as 1e-300.

    Args:
        B: `[n, m]`, rows may be redundant; `y[..., n]`; multiplicities `[m]`, positive.
        q0: `[..., m]`, positive; leading dimensions are a batch (a sweep over scales is one call).
        max_steps: most Newton steps.

    Raises:
        InfeasibleError: if no q > 0 solves the system, with a Farkas vector or the coordinates
            forced to zero (`lem:bregman-projection-interiority` needs a positive solution).

    >>> projection = bregman_projection(
    ...     np.array([[1.0, 1.0]]), np.array([3.0]), np.array([1, 1]), np.array([1.0, 2.0]))
    >>> projection.q
    array([1., 2.])
    """
    system, points = prepare(B, y, multiplicities, q0=q0)
    positive_integer("max_steps", max_steps)
    start = points["q0"]
    with torch.no_grad():
        batch = torch.broadcast_shapes(system.y.shape[:-1], start.shape[:-1])
        family = SpectralFamily(system, batch)
        n, m = system.B.shape
        L0 = start.log().expand(*batch, m).reshape(batch.numel(), m)
        solution = project(family, L0, max_steps=max_steps)
        q, dual = solution.L.exp(), system.full_dual(solution.lam)
        kkt = (solution.L - L0 - family.step(solution.lam)).abs().amax(-1)
        converged = solution.converged & (kkt <= 1e-6 * (1 + L0.abs().amax(-1)))
        y_all = system.y.expand(*batch, n).reshape(batch.numel(), n)
        misfit = (q @ system.B.mT - y_all).abs().amax(-1)
        size = (q @ system.B.abs().mT).amax(-1).clamp_min(torch.finfo(q.dtype).tiny)
        # Of every row, the redundant ones too.
        converged = converged & (misfit <= torch.finfo(q.dtype).eps ** 0.6 * size)
        doubtful = ~converged | _vanished(system, solution.witness)
        if bool((doubtful & converged).any()):
            # A start above the problem's scale is projected deeper inside: often proof enough.
            inside = project(family, family.near(L0) + 5, max_steps=max_steps)
            doubtful = doubtful & ~(converged & inside.converged & ~_vanished(system, inside.L))
        for target in y_all[doubtful].unique(dim=0)[:16]:
            require_strictly_feasible(system.B, target)
    return Projection(
        q=like(B, q.reshape(*batch, m)),
        dual=like(B, dual.reshape(*batch, n)),
        residual=like(B, (misfit / size).reshape(batch)),
        kkt=like(B, kkt.reshape(batch)),
        status=Status.CONVERGED if bool(converged.all()) else Status.NOT_CONVERGED,
        steps=solution.steps,
    )


def bregman_divergence(p: A, q: A, multiplicities: A) -> A:
    """`D_h(p, q) = (1/4) sum_a d_a [p_a log(p_a/q_a) - p_a + q_a]`, `[...]`.

    `eq:weighted-bregman-divergence-formula`; p >= 0 with `0 log 0 = 0`, q > 0. Nearly equal points
    do not cancel.

    >>> float(bregman_divergence(np.array([1.0, 0.0]), np.array([1.0, 2.0]), np.array([1, 2])))
    1.0
    """
    x, z, d = tensors(p=p, q=q, multiplicities=multiplicities)
    if d.ndim != 1 or not len(d):
        expected = "shape (m,) with m >= 1"
        raise ShapeError("multiplicities", expected=expected, got=f"shape {tuple(d.shape)}")
    for name, point in (("p", x), ("q", z)):
        require_shape(name, point, (len(d),), "(..., m), one entry a multiplicity")
    require_batch(p=x.shape[:-1], q=z.shape[:-1])
    require_positive("multiplicities", d)
    require_positive("q", z)
    if bool((x < 0).any()):
        raise DomainError("p", expected="entries >= 0", got=f"a smallest of {float(x.min()):.6g}")
    return like(p, divergence(x, z, d))


def divergence(p: Tensor, q: Tensor, d: Tensor) -> Tensor:
    """`D_h(p, q)` on checked tensors, accurate also where p and q nearly agree."""
    t = ((p - q) / q).clamp_max(1e3)
    # q [(1+t) log(1+t) - t], with its series t^2/2 - t^3/6 + ... where the bracket cancels.
    near = q * (torch.special.xlog1py(1 + t, t) - t)
    series = q * t.square() * (1 / 2 - t * (1 / 6 - t * (1 / 12 - t * (1 / 20 - t / 30))))
    far = p * (p.clamp_min(torch.finfo(p.dtype).tiny).log() - q.log()) - p + q  # ratios overflow
    terms = torch.where(t.abs() < 1e-3, series, torch.where(t < 1e3, near, far))
    return (d * terms).sum(-1) / 4


def _vanished(system: System, L: Tensor) -> Tensor:
    """Elements in which a coordinate of `exp(L)` lies below rounding in every row.

    So looks a coordinate that every solution forces to zero; whether it is, a linear program says.
    """
    q = L.exp()
    size = system.B.abs()
    sums = (q @ size.mT).clamp_min(torch.finfo(q.dtype).tiny)  # [b, n]
    hidden = torch.zeros_like(q, dtype=torch.bool)
    measured = size.amax(0) > 0
    for k, row in enumerate(sums):  # one element at a time: the ratios are as large as B
        share = (size / row[:, None]).amax(0) * q[k]
        hidden[k] = measured & (share <= 1e3 * torch.finfo(q.dtype).eps)
    return hidden.any(-1)


class SpectralFamily(Family):
    """`q = exp(L)` on the joint spectrum, with the independent rows of `Bq = y`."""

    def __init__(self, system: System, batch: torch.Size) -> None:
        self.B, y = system.independent
        self.y = y.expand(*batch, y.shape[-1]).reshape(batch.numel(), y.shape[-1])
        self.d = system.d
        self._magnitude = self.B.abs().mT

    def values(self, L: Tensor) -> Tensor:
        return L.exp() @ self.B.mT

    def values_and_gram(self, L: Tensor) -> tuple[Tensor, Tensor]:
        q = L.exp()
        weights = q / self.d
        if L.shape[0] * self.B.numel() <= 2**22:
            gram = (weights[:, None, :] * self.B) @ self.B.mT
        else:  # one at a time: the weighted copy of B is the largest thing here
            gram = torch.stack([(w * self.B) @ self.B.mT for w in weights])
        return q @ self.B.mT, gram

    def step(self, lam: Tensor) -> Tensor:
        return lam @ self.B / self.d

    def tangent(self, L: Tensor, direction: Tensor) -> Tensor:
        return (L.exp() * direction) @ self.B.mT

    def rounding(self, L: Tensor) -> Tensor:
        eps = torch.finfo(L.dtype).eps
        return eps * (L.exp() @ self._magnitude + self.y.abs())

    def near(self, L0: Tensor) -> Tensor:
        # The constant that gives measurements of the size of y; none if y = 0.
        size = self.y.abs().sum(-1) / self._magnitude.sum()
        return torch.where(size > 0, size.log(), L0.mean(-1))[:, None].expand_as(L0)
