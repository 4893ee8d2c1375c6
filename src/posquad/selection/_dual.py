"""Entropy projections by Newton's method on the dual, kept in logarithms.

Minimising an entropy relative to `exp(L0)` under linear constraints leads to
`q = exp(L0 + step(lam))`, where `step` is the adjoint of the constraints and lam maximises a smooth
concave dual. Each Newton step changes L itself, so the primal point is accurate to rounding even
where L0 is -690 and the step 690. When L0 is far from feasible points, Newton's method alone is
slow. It then solves a problem with a start of the scale of the data, and follows the solution by
tangent steps as the start moves on a segment to L0; lam grows almost linearly on the way.

The commuting problem (vectors) and its noncommuting analogue (matrices) differ only in their
`ExponentialFamily`. All tensors have one leading batch dimension b.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from posquad.core.linalg import per_element, solve_semidefinite

_FAR = 8.0  # distance, in logarithms, beyond which a path is followed
_NEWTON = 60  # maximum number of Newton steps from one start; about ten are usual near the solution
_FLOOR = 8.0  # residual, in units of rounding, at which the constraints count as solved


class ExponentialFamily(ABC):
    """Linear constraints `values(exp(L)) = y` on an exponential family."""

    y: Tensor  # [b, n]

    @abstractmethod
    def values_and_gram(self, L: Tensor) -> tuple[Tensor, Tensor]:
        """Constraints at `exp(L)`, `[b, n]`, and their derivative by lam, `[b, n, n]`."""

    @abstractmethod
    def values(self, L: Tensor) -> Tensor:
        """Constraints at `exp(L)`, `[b, n]`."""

    @abstractmethod
    def step(self, lam: Tensor) -> Tensor:
        """Change of L that lam causes."""

    @abstractmethod
    def tangent(self, L: Tensor, direction: Tensor) -> Tensor:
        """Derivative of the constraints as L moves along a direction, `[b, n]`."""

    @abstractmethod
    def rounding(self, L: Tensor) -> Tensor:
        """Size of the rounding errors in the constraints, `[b, n]`."""

    @abstractmethod
    def scale_start(self, L0: Tensor) -> Tensor:
        """Logarithm of a start whose constraints have the scale of y, in the shape of L0."""


class DualSolution(NamedTuple):
    """Logarithm of the projection, dual vector, and whether the constraints hold to rounding."""

    L: Tensor
    lam: Tensor  # [b, n]
    converged: Tensor  # [b]
    steps: int  # Newton steps
    witness: Tensor  # logarithm of a feasible point whose scale is that of the data


def project(family: ExponentialFamily, L0: Tensor, *, max_steps: int) -> DualSolution:
    """Project `exp(L0)`; follow a path where L0 is far from the scale of the data."""
    if family.y.numel() == 0:  # empty batch, or no constraints: the start is the answer
        solved = torch.ones(L0.shape[0], dtype=torch.bool, device=L0.device)
        return DualSolution(L0, torch.zeros_like(family.y), solved, 0, L0)
    start = family.scale_start(L0)
    gap = L0 - start
    far = gap.flatten(1).abs().amax(-1) > _FAR  # [b]
    zero = torch.zeros_like(family.y)
    if not bool(far.any()):
        return _newton(family, L0, zero, max_steps=min(max_steps, _NEWTON), loose=False)
    base = torch.where(per_element(far, L0), start, L0)
    solution = _newton(family, base, zero, max_steps=min(max_steps, _NEWTON), loose=False)
    return _follow_path(family, solution, torch.where(per_element(far, L0), gap, 0.0), max_steps)


def _follow_path(
    family: ExponentialFamily, solution: DualSolution, gap: Tensor, max_steps: int
) -> DualSolution:
    """Move the start of each problem along its gap, by predictor and corrector steps."""
    L, lam, alive, steps, witness = solution
    distance = gap.flatten(1).abs().amax(-1)
    done = torch.where(distance > 0, 0.0, 1.0)  # fraction of the gap that has been covered
    share = (_FAR / distance.clamp_min(_FAR)).clamp_max(1.0)
    while bool((alive & (done < 1)).any()) and steps < max_steps:
        now = torch.where(alive, torch.minimum(share, 1 - done), 0.0)
        _, gram = family.values_and_gram(L)
        speed = solve_semidefinite(gram, -family.tangent(L, gap))  # d lam / d share
        move = gap + family.step(speed)
        trial = _newton(
            family,
            L + per_element(now, L) * move,
            lam + now[:, None] * speed,
            max_steps=min(12, max_steps - steps),
            loose=True,
        )
        steps += max(trial.steps, 1)
        accepted = trial.converged | (now == 0)
        L = torch.where(per_element(accepted, L), trial.L, L)
        lam = torch.where(accepted[:, None], trial.lam, lam)
        done = torch.where(accepted, done + now, done)
        share = torch.where(accepted, 3 * share, share / 4)
        alive = alive & (share > 1e-4)
    left = min(max_steps - steps, _NEWTON)
    final = _newton(family, L, lam, max_steps=left, loose=False)
    reached = alive & (done >= 1)
    return DualSolution(final.L, final.lam, final.converged & reached, steps + final.steps, witness)


def _newton(
    family: ExponentialFamily, L: Tensor, lam: Tensor, *, max_steps: int, loose: bool
) -> DualSolution:
    """Solve `values(exp(L)) = y` from L, to rounding or (if loose) to a relative 1e-4."""
    goal = 1e-4 / torch.finfo(L.dtype).eps if loose else _FLOOR
    previous = torch.full_like(L.flatten(1)[:, 0], torch.inf)
    converged = torch.zeros_like(previous, dtype=torch.bool)
    for count in range(max_steps + 1):
        values, gram = family.values_and_gram(L)
        residual = family.y - values
        size = (residual.abs() / family.rounding(L)).amax(-1)
        # A small residual that stops shrinking has reached its rounding.
        stalled = (size < 1e3 * _FLOOR) & (size > previous / 2)
        converged = converged | (size <= goal) | stalled
        if count == max_steps or bool((converged | ~torch.isfinite(size)).all()):
            return DualSolution(L, lam, converged, count, L)
        previous = size
        delta = solve_semidefinite(gram, residual)
        move = family.step(delta)
        t = torch.where(converged, 0.0, _line_search(family, L, move, delta, residual))
        L = L + per_element(t, L) * move
        lam = lam + t[:, None] * delta
    raise AssertionError("the loop returns")


def _line_search(
    family: ExponentialFamily, L: Tensor, move: Tensor, delta: Tensor, residual: Tensor
) -> Tensor:
    """Step length at which the derivative of the dual along delta has fallen to half or less.

    The derivative `(y - values) . delta` decreases from positive to negative along the line. Its
    root is bracketed by enlarging the step and found by bisection; the full step is tried first.
    """
    start = (residual * delta).sum(-1)  # [b], positive

    def slope(t: Tensor) -> Tensor:
        here = ((family.y - family.values(L + per_element(t, L) * move)) * delta).sum(-1)
        return torch.nan_to_num(here / start, nan=-torch.inf, posinf=-torch.inf)

    return _bracket_root(slope, torch.ones_like(start))


def _bracket_root(slope: Callable[[Tensor], Tensor], t: Tensor, enough: float = 0.5) -> Tensor:
    """A t > 0 with `|slope(t)| <= enough`, for a slope that decreases from slope(0) = 1."""
    low, high = torch.zeros_like(t), torch.full_like(t, torch.inf)
    for _ in range(40):
        value = slope(t)
        good = value.abs() <= enough
        if bool(good.all()):
            break
        low = torch.where(~good & (value > 0), t, low)
        high = torch.where(~good & (value < 0), t, high)
        middle = torch.where(high.isinf(), 4 * t, (low + high) / 2)
        t = torch.where(good, t, middle)
    return t
