"""Bregman projections: the interpolant that training selects (paper, sections 4.2-4.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posquad.core.arrays import (
    A,
    broadcast_shape,
    like,
    positive_integer,
    require_batch,
    require_shape,
    tensors,
)
from posquad.core.errors import DomainError, ShapeError
from posquad.core.ranges import tiny
from posquad.core.results import Result
from posquad.core.status import Status
from posquad.selection._dual import ExponentialFamily, project
from posquad.selection._refine import refine
from posquad.selection.feasibility import require_strictly_feasible
from posquad.selection.system import System, prepare, require_positive

__all__ = ["Projection", "bregman_divergence", "bregman_projection"]


@dataclass(frozen=True, eq=False, repr=False)
class Projection(Result):
    """Projection of q0 onto `{q >= 0 : Bq = y}`, with its accuracy.

    CONVERGED asserts that every coordinate of q is within a relative `error` of the exact
    projection, and that `error <= eps^(2/3)`: 4e-11 in double and 2e-5 in single precision. The
    data are taken as exact; of linearly dependent rows, a maximal independent set is used.

    Every `q_a` is positive, but may lie below the smallest normal number of the dtype, where it
    loses digits or becomes zero. There `underflow` is true and only `log_q` is asserted.
    """

    q: Any  # [..., m]  positive, except where it underflows
    log_q: Any  # [..., m]  logarithm of the projection, accurate also where q underflows
    underflow: Any  # [..., m]  whether q_a is below the smallest normal number
    error: Any  # [...]  bound on |q_a / exact - 1| over all a; infinite where nothing is proved
    dual: Any  # [..., n]  d_a log(q_a / q0_a) = (B' dual)_a
    residual: Any  # [...]  max_i |(Bq - y)_i| / max_i (|B| q)_i
    kkt: Any  # [...]  max_a |log q_a - log q0_a - (B' dual)_a / d_a|
    status: Status  # CONVERGED or NOT_CONVERGED
    steps: int  # Newton steps, over the whole path


def bregman_projection(B: A, y: A, multiplicities: A, q0: A, *, max_steps: int = 500) -> Projection:
    """`argmin D_h(q, q0)` over `q >= 0`, `Bq = y` (`eq:finite-initialization-bregman-projection`).

    This is the limit of the mirror flow from q0 (Theorem 4.3,
    `thm:global-convergence-bregman-projection`). It is computed by Newton's method on the dual,
    `q = q0 exp(B'dual / d)`, in logarithms, so q0 may be as small as 1e-300. The last steps use
    double-double arithmetic where columns of B differ much in size. The status is CONVERGED only if
    the error of every coordinate is proved to be small (see `Projection`).

    Args:
        B: `[n, m]`, rows may be redundant; `y[..., n]`; multiplicities `[m]`, positive.
        q0: `[..., m]`, positive; leading dimensions are a batch, for instance a sweep over scales.
        max_steps: maximum number of Newton steps.

    Raises:
        InfeasibleError: if no q > 0 solves the system (Lemma 4.3,
            `lem:bregman-projection-interiority` needs one); the error holds a Farkas vector or the
            coordinates that are forced to zero.

    >>> projection = bregman_projection(
    ...     np.array([[1.0, 1.0]]), np.array([3.0]), np.array([1, 1]), np.array([1.0, 2.0]))
    >>> projection.q
    array([1., 2.])
    """
    system, points = prepare(B, y, multiplicities, q0=q0)
    positive_integer("max_steps", max_steps)
    dtype, limits = system.B.dtype, torch.finfo(system.B.dtype)
    with torch.no_grad():
        system = system.double()
        start = points["q0"].double()
        batch = broadcast_shape(system.y.shape[:-1], start.shape[:-1])
        family = SpectralFamily(system, batch)
        n, m = system.B.shape
        start = start.expand(*batch, m).reshape(batch.numel(), m)
        L0 = start.log()
        first = project(family, L0, max_steps=max_steps)
        left = max_steps - first.steps
        last = refine(family.B, family.y, family.d, start, first.L, first.lam, max_steps=left)
        kkt = (last.log_q - L0 - family.step(last.lam)).abs().amax(-1)
        y_all = system.y.expand(*batch, n).reshape(batch.numel(), n)
        misfit = (last.q @ system.B.mT - y_all).abs().amax(-1)
        size = (last.q @ system.B.abs().mT).amax(-1).clamp_min(tiny(dtype))
        error = torch.expm1(last.error) + 4 * limits.eps
        # The misfit is that of all rows, including redundant ones.
        converged = (error <= limits.eps ** (2 / 3)) & (misfit <= limits.eps**0.6 * size)
        for target in y_all[~converged].unique(dim=0)[:16]:
            require_strictly_feasible(system.B, target)
    q, dual = last.q.to(dtype), system.full_dual(last.lam).to(dtype)
    return Projection(
        q=like(B, q.reshape(*batch, m)),
        log_q=like(B, last.log_q.to(dtype).reshape(*batch, m)),
        underflow=like(B, (q < tiny(dtype)).reshape(*batch, m)),
        error=like(B, error.to(dtype).reshape(batch)),
        dual=like(B, dual.reshape(*batch, n)),
        residual=like(B, (misfit / size).to(dtype).reshape(batch)),
        kkt=like(B, kkt.to(dtype).reshape(batch)),
        status=Status.CONVERGED if bool(converged.all()) else Status.NOT_CONVERGED,
        steps=first.steps + last.steps,
    )


def bregman_divergence(p: A, q: A, multiplicities: A) -> A:
    """`D_h(p, q) = (1/4) sum_a d_a [p_a log(p_a/q_a) - p_a + q_a]`, `[...]`.

    `eq:weighted-bregman-divergence-formula`; p >= 0 with `0 log 0 = 0`, q > 0. The result is
    accurate also for nearly equal points.

    >>> float(bregman_divergence(np.array([1.0, 0.0]), np.array([1.0, 2.0]), np.array([1, 2])))
    1.0
    """
    x, z, d = tensors(p=p, q=q, multiplicities=multiplicities)
    if d.ndim != 1 or not len(d):
        expected = "shape (m,) with m >= 1"
        raise ShapeError("multiplicities", expected=expected, got=f"shape {tuple(d.shape)}")
    for name, point in (("p", x), ("q", z)):
        require_shape(name, point, (len(d),), "(..., m), one entry per multiplicity")
    require_batch(p=x.shape[:-1], q=z.shape[:-1])
    require_positive("multiplicities", d)
    require_positive("q", z)
    if bool((x < 0).any()):
        raise DomainError(
            "p", expected="entries >= 0", got=f"a smallest entry of {float(x.min()):.6g}"
        )
    return like(p, divergence(x, z, d))


def divergence(p: Tensor, q: Tensor, d: Tensor) -> Tensor:
    """`D_h(p, q)` on checked tensors, accurate also where p and q nearly agree."""
    t = ((p - q) / q).clamp_max(1e3)
    # q [(1+t) log(1+t) - t], with its series t^2/2 - t^3/6 + ... where the bracket cancels.
    near = q * (torch.special.xlog1py(1 + t, t) - t)
    series = q * t.square() * (1 / 2 - t * (1 / 6 - t * (1 / 12 - t * (1 / 20 - t / 30))))
    far = p * (p.clamp_min(tiny(p)).log() - q.log()) - p + q  # ratios overflow
    terms = torch.where(t.abs() < 1e-3, series, torch.where(t < 1e3, near, far))
    return (d * terms).sum(-1) / 4


class SpectralFamily(ExponentialFamily):
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
        else:  # one at a time, because the weighted copies of B would take the most memory
            gram = torch.stack([(w * self.B) @ self.B.mT for w in weights])
        return q @ self.B.mT, gram

    def step(self, lam: Tensor) -> Tensor:
        return lam @ self.B / self.d

    def tangent(self, L: Tensor, direction: Tensor) -> Tensor:
        return (L.exp() * direction) @ self.B.mT

    def rounding(self, L: Tensor) -> Tensor:
        eps = torch.finfo(L.dtype).eps
        return eps * (L.exp() @ self._magnitude + self.y.abs())

    def scale_start(self, L0: Tensor) -> Tensor:
        # A constant vector whose measurements have the size of y; the mean of L0 if y = 0.
        size = self.y.abs().sum(-1) / self._magnitude.sum()
        return torch.where(size > 0, size.log(), L0.mean(-1))[:, None].expand_as(L0)
