"""Methods that advance a factor: gradient descent, classical Runge-Kutta, Dormand-Prince 5(4).

Each trajectory of a batch has its own time and, in the adaptive method, its own step. Integrators
land exactly on the requested output times; a trajectory that has reached one waits for the others.
Step control uses Frobenius norms only, so it does not depend on the representative U of [U].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from posquad.core.linalg import norm
from posquad.dynamics.loop import Method, merge
from posquad.dynamics.state import FactorState, evaluate
from posquad.problems.objectives import Objective


class Descent(Method[FactorState]):
    """`U <- U - eta grad L(U)` (`eq:factor-gradient-descent`)."""

    def __init__(self, objective: Objective, every: int) -> None:
        self.objective, self.every = objective, every
        self._steps_taken = 0

    def advance(self, state: FactorState) -> FactorState:
        self._steps_taken += 1
        move = state.step_size[..., None, None] * state.gradient
        U = state.U - move
        loss, gradient = evaluate(self.objective, U)
        return state.stepped(
            U=U,
            loss=loss,
            gradient=gradient,
            time=(state.steps + 1) * state.step_size,
            scale=norm(state.U) + norm(move),
        )

    def record_due(self, state: FactorState) -> bool:
        return self._steps_taken % self.every == 0


class _RungeKutta(Method[FactorState]):
    """Explicit Runge-Kutta stages for `dU/dt = -grad L(U)`, landing on the output times."""

    nodes: Sequence[Sequence[float]]  # rows of the Butcher matrix after the first
    weights: Sequence[float]

    def __init__(self, objective: Objective, times: Tensor) -> None:
        self.objective, self.times = objective, times
        self._next = 1

    def record_due(self, state: FactorState) -> bool:
        waiting = state.time >= self.times[self._next]
        due = bool((waiting | ~state.running).all())
        if due and self._next + 1 < len(self.times):
            self._next += 1
        return due

    def _interval(self, state: FactorState) -> tuple[Tensor, Tensor]:
        """Next step, 0 for a trajectory that waits, and the time at which it ends."""
        target = self.times[self._next]
        left = (target - state.time).clamp_min(0)
        # A remainder of the size of rounding is included in this step.
        lands = state.step_size >= left * (1 - torch.finfo(left.dtype).eps ** 0.5)
        h = torch.where(lands, left, state.step_size)
        return h, torch.where(lands, torch.maximum(target, state.time), state.time + h)

    def _stages(self, state: FactorState, h: Tensor) -> list[Tensor]:
        slopes = [state.gradient]
        for row in self.nodes:
            U = state.U - h[..., None, None] * _combine(row, slopes)
            slopes.append(evaluate(self.objective, U)[1])
        return slopes

    def _finish(
        self, state: FactorState, h: Tensor, end: Tensor, slopes: list[Tensor], U: Tensor
    ) -> FactorState:
        loss, gradient = evaluate(self.objective, U)
        # Multiply by h before squaring, because squared norms overflow before the loss does.
        spent = (h.sqrt() * norm(torch.stack(slopes))).square()
        return replace(
            state,
            U=U,
            loss=loss,
            gradient=gradient,
            time=end,
            scale=norm(U),
            dissipated=state.dissipated + _combine(self.weights, spent.unbind()),
            steps=state.steps + (h > 0),
            attempts=state.attempts + (h > 0),
        )


class RungeKutta4(_RungeKutta):
    """The classical fourth-order method with a fixed step."""

    nodes = ((0.5,), (0.0, 0.5), (0.0, 0.0, 1.0))
    weights = (1 / 6, 1 / 3, 1 / 3, 1 / 6)

    def advance(self, state: FactorState) -> FactorState:
        h, end = self._interval(state)
        slopes = self._stages(state, h)
        U = state.U - h[..., None, None] * _combine(self.weights, slopes)
        return self._finish(state, h, end, slopes, U)


class DormandPrince(_RungeKutta):
    """Dormand and Prince's 5(4) pair with a proportional-integral step controller."""

    nodes = (
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    )
    weights = (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84)
    # Difference from the embedded fourth-order weights; the seventh slope is that at the new point.
    defect = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)

    def __init__(self, objective: Objective, times: Tensor, rtol: float, atol: float) -> None:
        super().__init__(objective, times)
        self.rtol, self.atol = rtol, atol

    def advance(self, state: FactorState) -> FactorState:
        h, end = self._interval(state)
        slopes = self._stages(state, h)
        U = state.U - h[..., None, None] * _combine(self.weights, slopes)
        new = self._finish(state, h, end, slopes, U)
        local = h * norm(_combine(self.defect, [*slopes, new.gradient]))
        allowed = self.atol + self.rtol * torch.maximum(state.scale, new.scale)
        error = torch.nan_to_num(local / allowed, nan=torch.inf).clamp_min(1e-10)
        accepted = error <= 1

        # The last two errors control the step; after a rejection only the last, and it shrinks.
        growth = 0.9 * error ** (-0.7 / 5) * torch.where(accepted, state.error, 1.0) ** (0.4 / 5)
        growth = torch.where(accepted, growth.clamp(0.2, 5.0), growth.clamp(0.1, 0.9))
        step_size = torch.where(h > 0, h * growth, state.step_size)
        # A step cut short to land on an output time does not shorten the next one.
        cut_short = accepted & (h < state.step_size)
        step_size = torch.where(cut_short, torch.maximum(step_size, state.step_size), step_size)

        return replace(
            merge(accepted, new, state),
            step_size=step_size,
            attempts=new.attempts,
            error=torch.where(accepted & (h > 0), error, state.error),
        )


def _combine(weights: Sequence[float], terms: Sequence[Tensor]) -> Tensor:
    pairs = [(w, term) for w, term in zip(weights, terms, strict=True) if w != 0.0]
    total = pairs[0][0] * pairs[0][1]
    for w, term in pairs[1:]:
        total = torch.add(total, term, alpha=w)
    return total
