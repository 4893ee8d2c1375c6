"""The loop that every iterative method uses.

A method advances a batch of independent trajectories by one step and says when its state should be
recorded. After each step, rules decide which trajectories have ended and why. An ended trajectory
keeps its last state while the others go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from posquad.core.linalg import per_element
from posquad.core.status import Status


@dataclass(frozen=True)
class State:
    """A batch of trajectories between two steps; the batch dimensions lead in every field."""

    time: Tensor  # [...]
    step_size: Tensor  # [...]  the next step to try
    error: Tensor  # [...]  last accepted local error ratio (adaptive methods)
    steps: Tensor  # [...]  accepted steps
    attempts: Tensor  # [...]  steps tried
    outcome: Tensor  # [...]  Status codes

    @property
    def running(self) -> Tensor:
        return self.outcome == Status.RUNNING.code

    def stepped(self, **changes: Any) -> Self:
        """Return the state after one more step, which is accepted, with these fields changed."""
        return replace(self, steps=self.steps + 1, attempts=self.attempts + 1, **changes)

    def park_ended(self) -> Self:
        """Return a state in which ended trajectories can be advanced without raising errors."""
        return self


S = TypeVar("S", bound=State)


class Method(ABC, Generic[S]):
    """A method that advances a state. `advance` may leave a trajectory unchanged (waiting)."""

    @abstractmethod
    def advance(self, state: S) -> S: ...

    def record_due(self, state: S) -> bool:
        """Whether this state is to be recorded; by default every one is."""
        return True


Rule = tuple[Status, Callable[[S], Tensor]]


def clock(step_size: Tensor) -> dict[str, Tensor]:
    """Fields of `State` at time zero, for trajectories with these first steps `[...]`."""
    zero, count = torch.zeros_like(step_size), torch.zeros_like(step_size, dtype=torch.int64)
    return {
        "time": zero,
        "step_size": step_size,
        "error": torch.ones_like(step_size),
        "steps": count,
        "attempts": count,
        "outcome": count,  # Status.RUNNING
    }


def iterate(
    method: Method[S],
    state: S,
    rules: Sequence[Rule[S]],
    *,
    record: Callable[[S], None] = lambda _: None,
) -> S:
    """Advance until every trajectory has ended; record the first, the due and the last states."""
    state = _apply_rules(state, rules)
    record(state)
    recorded = True
    while bool((running := state.running).any()):
        state = _apply_rules(merge(running, method.advance(state.park_ended()), state), rules)
        recorded = method.record_due(state)
        if recorded:
            record(state)
    if not recorded:
        record(state)
    return state


def merge(take: Tensor, new: S, old: S) -> S:
    """The new state where `take` holds, the old one elsewhere, trajectory by trajectory."""
    if bool(take.all()):
        return new
    chosen = {}
    for field in fields(new):
        after, before = getattr(new, field.name), getattr(old, field.name)
        chosen[field.name] = torch.where(per_element(take, after), after, before)
    return type(new)(**chosen)


def _apply_rules(state: S, rules: Sequence[Rule[S]]) -> S:
    running = state.running
    for status, met in rules:
        ended = running & met(state)
        if bool(ended.any()):
            outcome = torch.where(ended, status.code, state.outcome)
            state = replace(state, outcome=outcome)
            running = state.running
    return state


def steps_exhausted(max_steps: int) -> Rule[Any]:
    """Rule that ends each trajectory after `max_steps` attempts; waiting does not count."""
    return Status.STEPS_EXHAUSTED, lambda state: state.attempts >= max_steps
