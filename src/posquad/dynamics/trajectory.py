"""Records and results of gradient flow and gradient descent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posquad.core.arguments import require_boolean
from posquad.core.arrays import Array, like, require_callable
from posquad.core.errors import DtypeError, ShapeError
from posquad.core.linalg import norm
from posquad.core.progress import Progress
from posquad.core.results import Result
from posquad.core.status import Status, from_codes
from posquad.dynamics.state import FactorState

__all__ = ["Trajectory"]

Observable = Callable[[Any], Any]


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory(Result):
    """Recorded batch of trajectories. T is the number of records, `...` the batch shape.

    A trajectory that ends early repeats its last state in the later records.
    """

    U: Any  # [..., d, r]  the last factor
    status: Status | list  # one, or nested lists of them in the batch shape
    times: Any  # [T, ...]  time of the flow; for descent, number of steps times step
    loss: Any  # [T, ...]
    gradient_norm: Any  # [T, ...]  ||grad L||_F
    steps: Any  # [...]  steps taken
    factors: Any = None  # [T, ..., d, r] if save_factors
    dissipated: Any = None  # [T, ...]  integral of ||grad L||^2 (flow only)
    observables: Mapping[str, Any] = field(default_factory=dict)  # each [T, ...]

    @property
    def energy_defect(self) -> Any:
        """`L(U_0) - L(U(t)) - integral ||grad L||^2`, zero along the exact flow.

        The energy identity `eq:factor-flow-energy-identity`; `[T, ...]`, None for gradient descent.
        """
        if self.dissipated is None:
            return None
        return self.loss[0] - self.loss - self.dissipated


class Recorder:
    """Collects the records of a run and returns them in the kind of array the user passed."""

    def __init__(
        self,
        U0: Array,
        observables: Mapping[str, Observable] | None,
        save_factors: bool,
        progress: Callable[[Progress], None] | None,
        end: float,
        *,
        flow: bool,
    ) -> None:
        self.U0, self.save_factors, self.progress = U0, save_factors, progress
        self.observables = _named_callables(observables)
        require_boolean(save_factors=save_factors)
        if progress is not None:
            require_callable("progress", progress, "progress(Progress)")
        self.end, self.flow = float(end), flow
        self.rows: dict[str, list[Tensor]] = {}

    def __call__(self, state: FactorState) -> None:
        row = {
            "times": state.time,
            "loss": state.loss,
            "gradient_norm": norm(state.gradient),
        }
        if self.flow:
            row["dissipated"] = state.dissipated
        if self.save_factors:
            row["factors"] = state.U
        for name, function in self.observables.items():
            row[f"observable {name}"] = _observed(name, function(like(self.U0, state.U)))
        for name, value in row.items():
            seen = self.rows.setdefault(name, [])
            if seen and seen[0].shape != value.shape:
                raise ShapeError(
                    "observables",
                    expected=f"{name} to keep its first shape, {tuple(seen[0].shape)}",
                    got=f"shape {tuple(value.shape)}",
                )
            seen.append(value)
        if self.progress is not None:
            clock = state.time if self.flow else state.steps
            running = clock[state.running]
            if running.numel():
                time = float(running.min())
            else:  # all have ended: report the largest time reached
                time = float(clock.max()) if clock.numel() else self.end
            self.progress(
                Progress(
                    time=time,
                    end=self.end,
                    loss=float(state.loss.max()) if state.loss.numel() else 0.0,
                    running=int(state.running.sum()),
                )
            )

    def trajectory(self, state: FactorState) -> Trajectory:
        stacked = {name: like(self.U0, torch.stack(rows)) for name, rows in self.rows.items()}
        prefix = "observable "
        return Trajectory(
            U=like(self.U0, state.U),
            status=from_codes(state.outcome),
            steps=like(self.U0, state.steps),
            times=stacked["times"],
            loss=stacked["loss"],
            gradient_norm=stacked["gradient_norm"],
            factors=stacked.get("factors"),
            dissipated=stacked.get("dissipated"),
            observables={
                name.removeprefix(prefix): value
                for name, value in stacked.items()
                if name.startswith(prefix)
            },
        )


def _named_callables(observables: Mapping[str, Observable] | None) -> dict[str, Observable]:
    if observables is None:
        return {}
    if not isinstance(observables, Mapping) or not all(isinstance(n, str) for n in observables):
        got = type(observables).__name__
        raise DtypeError("observables", expected="a mapping from names to functions of U", got=got)
    for name, function in observables.items():
        require_callable("observables", function, f"function of U under {name!r}")
    return dict(observables)


def _observed(name: str, value: Any) -> Tensor:
    """Value of an observable as a tensor, in its own precision."""
    if isinstance(value, Tensor):
        return value.detach()
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        expected = f"functions that return numbers; {name!r} does not"
        raise DtypeError("observables", expected=expected, got=repr(value))
    return torch.from_numpy(np.array(array))
