"""The one loop: every iterative method on factors runs here.

A method advances a batch of independent trajectories by one step and says when a record is due.
Rules decide, after each step and per trajectory, whether it has ended and why; an ended
trajectory is frozen at its last state while the others go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from posquad.objectives import Objective
from posquad.status import Status


@dataclass(frozen=True)
class State:
    """A batch of trajectories at one moment; every field has the batch dimensions in front."""

    U: Tensor  # [..., d, r]
    loss: Tensor  # [...]
    gradient: Tensor  # [..., d, r]
    time: Tensor  # [...]
    scale: Tensor  # [...]  size of the numbers that were added to make U
    dissipated: Tensor  # [...]  integral of ||gradient||^2
    step_size: Tensor  # [...]  the next step to try
    error: Tensor  # [...]  last accepted local error ratio (adaptive methods)
    steps: Tensor  # [...]  accepted steps
    attempts: Tensor  # [...]  steps tried
    outcome: Tensor  # [...]  Status codes

    @property
    def running(self) -> Tensor:
        return self.outcome == Status.RUNNING.code


class Method(ABC):
    """One way to advance a state. `advance` may leave a trajectory where it is (waiting)."""

    @abstractmethod
    def advance(self, state: State) -> State: ...

    @abstractmethod
    def record_due(self, state: State) -> bool: ...


Rule = tuple[Status, Callable[[State], Tensor]]


def evaluate(objective: Objective, U: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and gradient in the dtype of U, whatever constants the objective holds."""
    loss, gradient = objective.value_and_gradient(U)
    return loss.to(U.dtype), gradient.to(U.dtype)


def start(objective: Objective, U0: Tensor, step_size: Tensor | None = None) -> State:
    """The state at time zero; without a step, a cautious one is chosen.

    That is a hundredth of the time in which U would move by its own size.
    """
    loss, gradient = evaluate(objective, U0)
    batch = loss.shape
    U0 = U0.expand(*batch, *U0.shape[-2:]).clone()  # the result must not share the caller's memory
    zero, count = torch.zeros_like(loss), torch.zeros(batch, dtype=torch.int64, device=U0.device)
    speed = torch.linalg.matrix_norm(gradient)
    cautious = 0.01 * torch.linalg.matrix_norm(U0) / torch.where(speed > 0, speed, 1.0)
    return State(
        U=U0,
        loss=loss,
        gradient=gradient,
        time=zero,
        scale=torch.linalg.matrix_norm(U0),
        dissipated=zero,
        step_size=cautious if step_size is None else step_size.expand(batch),
        error=torch.ones_like(loss),
        steps=count,
        attempts=count,
        outcome=count,
    )


def iterate(
    method: Method,
    state: State,
    rules: Sequence[Rule],
    *,
    record: Callable[[State], None],
) -> State:
    """Advance until every trajectory has ended; record at the start, when due, and at the end."""
    state = _judge(state, rules)
    record(state)
    recorded = True
    while bool(state.running.any()):
        state = _judge(merge(state.running, method.advance(_calm(state)), state), rules)
        recorded = method.record_due(state)
        if recorded:
            record(state)
    if not recorded:
        record(state)
    return state


def merge(take: Tensor, new: State, old: State) -> State:
    """The new state where `take` holds, the old one elsewhere, trajectory by trajectory."""
    if bool(take.all()):
        return new
    chosen = {}
    for field in fields(State):
        after, before = getattr(new, field.name), getattr(old, field.name)
        mask = take.reshape(take.shape + (1,) * (after.ndim - take.ndim))
        chosen[field.name] = torch.where(mask, after, before)
    return State(**chosen)


def _calm(state: State) -> State:
    """Ended trajectories in a place where every objective is finite, so that they stay quiet."""
    if bool(state.running.all()):
        return state
    mask = state.running[..., None, None]
    eye = torch.eye(*state.U.shape[-2:], dtype=state.U.dtype, device=state.U.device)
    still = torch.zeros_like(state.gradient)
    return replace(
        state,
        U=torch.where(mask, state.U, eye),
        gradient=torch.where(mask, state.gradient, still),
    )


def _judge(state: State, rules: Sequence[Rule]) -> State:
    for status, met in rules:
        state = _end(state, state.running & met(state), status)
    return state


def _end(state: State, which: Tensor, status: Status) -> State:
    return replace(state, outcome=torch.where(which, status.code, state.outcome))


# Rules shared by the methods.


def diverged(reference: Tensor, factor: float) -> Rule:
    """Loss or gradient not finite, or the loss above `factor` times a reference loss."""

    def met(state: State) -> Tensor:
        finite = torch.isfinite(state.loss) & torch.isfinite(state.gradient).all(-1).all(-1)
        return ~finite | (state.loss > factor * reference)

    return Status.DIVERGED, met


def rank_lost() -> Rule:
    """The smallest singular value is within rounding of zero, relative to what U was made from."""

    def met(state: State) -> Tensor:
        d, r = state.U.shape[-2:]
        eps = torch.finfo(state.U.dtype).eps
        unit = state.U / state.scale.clamp_min(torch.finfo(state.U.dtype).tiny)[..., None, None]
        shift = 4 * d * eps * torch.eye(r, dtype=unit.dtype, device=unit.device)
        # Cheap screen: U'U is far from singular unless the Cholesky factorisation fails.
        suspicious = torch.linalg.cholesky_ex(unit.mT @ unit - shift).info != 0
        if not bool((suspicious & state.running).any()):
            return torch.zeros_like(suspicious)
        finite = torch.isfinite(unit).all(-1).all(-1)
        values = torch.linalg.svdvals(torch.where(finite[..., None, None], unit, 1.0))
        return suspicious & finite & (values[..., -1] <= d * eps)

    return Status.RANK_LOST, met


def steps_exhausted(max_steps: int) -> Rule:
    """Every trajectory has its own budget; waiting for others does not count."""
    return Status.STEPS_EXHAUSTED, lambda state: state.attempts >= max_steps


def loss_reached(tolerance: float) -> Rule:
    return Status.LOSS_REACHED, lambda state: state.loss <= tolerance


def gradient_reached(tolerance: float) -> Rule:
    def met(state: State) -> Tensor:
        return torch.linalg.matrix_norm(state.gradient) <= tolerance

    return Status.GRADIENT_REACHED, met
