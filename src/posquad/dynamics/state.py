"""State of trajectories of factors: initial value and the rules that end a trajectory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from posquad.core.errors import DomainError
from posquad.core.linalg import norm
from posquad.core.ranges import LOSS_TERMS
from posquad.core.status import Status
from posquad.dynamics.loop import Rule, State, clock
from posquad.problems.objectives import Objective


@dataclass(frozen=True)
class FactorState(State):
    """A batch of factors that move under an objective."""

    U: Tensor  # [..., d, r]
    loss: Tensor  # [...]
    gradient: Tensor  # [..., d, r]
    scale: Tensor  # [...]  size of the terms whose sum is U
    dissipated: Tensor  # [...]  integral of ||gradient||^2

    def park_ended(self) -> Self:
        """Move ended trajectories to a point where every objective is finite, without velocity."""
        running = self.running
        if bool(running.all()):
            return self
        mask = running[..., None, None]
        eye = torch.eye(*self.U.shape[-2:], dtype=self.U.dtype, device=self.U.device)
        U = torch.where(mask, self.U, eye)
        return replace(self, U=U, gradient=torch.where(mask, self.gradient, 0.0))


def evaluate(objective: Objective, U: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and gradient in the dtype of U, whatever the dtype of the objective's data."""
    loss, gradient = objective.value_and_gradient(U)
    return loss.to(U.dtype), gradient.to(U.dtype)


def start(objective: Objective, U0: Tensor, step_size: Tensor | None = None) -> FactorState:
    """State at time zero.

    The default first step is a hundredth of the time in which U would move by its own size.
    """
    loss, gradient = evaluate(objective, U0)
    batch = loss.shape
    U0 = U0.expand(*batch, *U0.shape[-2:]).clone()  # the result must not share the caller's memory
    speed = norm(gradient)
    cautious = 0.01 * norm(U0) / torch.where(speed > 0, speed, 1.0)
    return FactorState(
        **clock(cautious if step_size is None else step_size.expand(batch)),
        U=U0,
        loss=loss,
        gradient=gradient,
        scale=norm(U0),
        dissipated=torch.zeros_like(loss),
    )


def diverged(reference: Tensor, factor: float) -> Rule[FactorState]:
    """Rule: the loss or gradient is not finite, or the loss exceeds `factor` times a reference."""

    def met(state: FactorState) -> Tensor:
        finite = torch.isfinite(state.loss) & torch.isfinite(state.gradient).all(-1).all(-1)
        return ~finite | (state.loss > factor * reference)

    return Status.DIVERGED, met


def rank_lost() -> Rule[FactorState]:
    """Rule: the smallest singular value is zero up to the rounding of the terms that make up U.

    Singular values change by no more than U does, so they are recomputed only when U has moved far
    enough from the last such point for the smallest one to have vanished.
    """
    known: list[Tensor] = []  # the factor at that point, and its smallest singular value

    def met(state: FactorState) -> Tensor:
        d = state.U.shape[-2]
        floor = d * torch.finfo(state.U.dtype).eps * state.scale
        if known:
            safe = known[1] - norm(state.U - known[0]) > floor
            if bool((safe | ~state.running).all()):
                return torch.zeros_like(safe)
        finite = torch.isfinite(state.U).all(-1).all(-1)
        size = torch.where(finite & (state.scale > 0), state.scale, 1.0)  # squares may underflow
        unit = torch.where(finite[..., None, None], state.U / size[..., None, None], 1.0)
        smallest = torch.linalg.svdvals(unit)[..., -1] * size
        known[:] = [torch.where(finite[..., None, None], state.U, 0.0), smallest]
        return finite & (smallest <= floor)

    return Status.RANK_LOST, met


def require_range(objective: Objective, U0: Tensor) -> None:
    """Refuse units in which terms of the loss or of the gradient overflow or underflow."""
    low, high = log_range(U0.dtype)
    for name, size in zip(("loss", "gradient"), objective.log_sizes(U0), strict=True):
        outside = ((size < low) | (size > high)) & (size > -torch.inf)  # -inf: no terms
        if bool(outside.any()):
            worst = float(size[outside].flatten()[0]) / math.log(10)
            raise DomainError(
                "U0",
                expected=f"units in which the terms of the {name} are of size "
                f"1e{math.ceil(low / math.log(10))} to 1e{math.floor(high / math.log(10))}, the "
                f"range of {U0.dtype}; rescale U by c, and the data with it (y by c^2, time by "
                "1 / c^2)",
                got=f"terms of size 1e{worst:.0f}",
            )


def log_range(dtype: torch.dtype) -> tuple[float, float]:
    """Logarithms of the smallest and largest size of terms that is safe, `LOSS_TERMS`."""
    low, high = LOSS_TERMS.of(dtype)
    return math.log(low), math.log(high)


def out_of_range(objective: Objective) -> Rule[FactorState]:
    """Rule: terms of the gradient underflow, so that the computed gradient is zero or wrong."""

    def met(state: FactorState) -> Tensor:
        low, _ = log_range(state.U.dtype)
        doubtful = state.running & (norm(state.gradient) < math.exp(low))
        if not bool(doubtful.any()):
            return doubtful
        size = objective.log_sizes(state.park_ended().U)[1]
        return doubtful & (size < low) & (size > -torch.inf)

    return Status.OUT_OF_RANGE, met


def loss_reached(tolerance: float) -> Rule[FactorState]:
    """Rule: the loss is at most the tolerance."""
    return Status.LOSS_REACHED, lambda state: state.loss <= tolerance


def gradient_reached(tolerance: float) -> Rule[FactorState]:
    """Rule: the norm of the gradient is at most the tolerance."""

    def met(state: FactorState) -> Tensor:
        return norm(state.gradient) <= tolerance

    return Status.GRADIENT_REACHED, met
