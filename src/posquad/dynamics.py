"""Gradient flow and gradient descent of the factor (paper, sections 2.5 and 2.6).

Both run on the one loop of `_kernel`, over batches of trajectories, each of which ends for its own
reason (`Trajectory.status`). Bad input raises before any work; an iteration that does not converge,
diverges or loses rank never raises, it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from posquad import _kernel
from posquad._arrays import (
    Array,
    like,
    positive_integer,
    positive_number,
    require_batch,
    tensors,
)
from posquad._frames import frame
from posquad._integrators import Descent, DormandPrince, RungeKutta4, first_step
from posquad._kernel import Method, Rule, State
from posquad.errors import DomainError, DtypeError
from posquad.objectives import Objective
from posquad.status import Status, from_codes

__all__ = ["Progress", "Trajectory", "gradient_descent", "gradient_flow"]

Observable = Callable[[Any], Any]


@dataclass(frozen=True)
class Progress:
    """What a progress callback is told, at every record."""

    time: float  # smallest time (flow) or step count (descent) over the running trajectories
    end: float  # where it will stop at the latest
    loss: float  # largest loss of the batch
    running: int  # trajectories that have not ended


@dataclass(frozen=True)
class Trajectory:
    """A recorded batch of trajectories. T is the number of records, `...` the batch shape.

    A trajectory that ends early repeats its last state in the later records.
    """

    U: Any  # [..., d, r]  the last factor
    status: Status | list  # one, or nested lists of them in the batch shape
    times: Any  # [T, ...]  flow time; for descent step number times step
    loss: Any  # [T, ...]
    gradient_norm: Any  # [T, ...]  ||grad L||_F
    steps: Any  # [...]  steps taken
    factors: Any = None  # [T, ..., d, r] if save_factors
    dissipated: Any = None  # [T, ...]  integral of ||grad L||^2 (flow only)
    observables: Mapping[str, Any] = field(default_factory=dict)  # each [T, ...]

    @property
    def energy_defect(self) -> Any:
        """`L(U_0) - L(U(t)) - integral ||grad L||^2`, zero along the exact flow.

        The energy identity `eq:factor-flow-energy-identity`; `[T, ...]`.
        """
        if self.dissipated is None:
            raise DomainError(
                "energy_defect", expected="a gradient flow", got="gradient descent, a discrete path"
            )
        return self.loss[0] - self.loss - self.dissipated


def gradient_flow(
    objective: Objective,
    U0: Array,
    *,
    t_final: float,
    times: Array | None = None,
    method: Literal["adaptive", "rk4"] = "adaptive",
    step: float | None = None,
    rtol: float = 1e-9,
    atol: float = 1e-12,
    loss_tolerance: float | None = None,
    gradient_tolerance: float | None = None,
    stop: Callable[[Any, Any], Any] | None = None,
    max_steps: int = 100_000,
    save_factors: bool = False,
    observables: Mapping[str, Observable] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Trajectory:
    """Integrate `dU/dt = -grad L(U)` (`thm:exact-quotient-gradient-flow`).

    Args:
        objective: for instance `LeastSquares(RankOne(X), y)`.
        U0: full-rank factors `[..., d, r]`, one trajectory each.
        t_final: last time.
        times: increasing times in (0, t_final] to record, default 100 equal intervals; time 0
            and t_final are always recorded.
        method: "adaptive" is Dormand-Prince 5(4) with local error at most
            `atol + rtol ||U||_F` a step; "rk4" is the classical method with fixed `step`,
            shortened to land on the recorded times.
        loss_tolerance, gradient_tolerance: end a trajectory when L(U), or ||grad L||_F, is at or
            below it. In the adaptive method distances to a limit are meaningful down to
            about rtol ||U||; use "rk4" or a smaller rtol to follow them further.
        stop: `stop(U, t)`, true (per trajectory) to end.
        max_steps: most steps, rejected ones included.
        save_factors: keep every recorded factor.
        observables: named functions of U `[..., d, r]`, recorded at each time.
        progress: called with a `Progress` at every record.

    Returns:
        `Trajectory`; `dissipated` holds the integral of the squared gradient norm, integrated
        with the flow, so that `energy_defect` checks the energy identity.

    >>> from posquad import PopulationRisk, gradient_flow
    >>> flow = gradient_flow(PopulationRisk(np.eye(3, 1)), 0.5 * np.ones((3, 1)), t_final=10.0)
    >>> flow.status.name, bool(flow.loss[-1] < 1e-12)
    ('TIME_REACHED', True)
    """
    u = _initial_factor(objective, U0)
    t_final = positive_number("t_final", t_final)
    grid = _output_times(times, t_final, u)
    positive_integer("max_steps", max_steps)
    with torch.no_grad():
        _, gradient = objective.value_and_gradient(u)
        if method == "rk4":
            if step is None:
                raise DomainError("step", expected="a fixed step for method='rk4'", got="None")
            first = torch.tensor(positive_number("step", step), dtype=u.dtype, device=u.device)
            integrator: Method = RungeKutta4(objective, grid)
        elif method == "adaptive":
            if step is not None:
                raise DomainError("step", expected="None with method='adaptive'", got=repr(step))
            rtol, atol = positive_number("rtol", rtol), positive_number("atol", atol, zero=True)
            first = first_step(u, gradient, t_final)
            integrator = DormandPrince(objective, grid, rtol, atol)
        else:
            raise DomainError("method", expected="'adaptive' or 'rk4'", got=repr(method))
        smallest = 4 * torch.finfo(u.dtype).eps * t_final
        ends: list[Rule] = [
            (Status.TIME_REACHED, lambda state: state.time >= t_final),
            (Status.STEP_UNDERFLOW, lambda state: state.step_size < smallest),
        ]
        return _run(
            objective,
            U0,
            _kernel.start(objective, u, first),
            integrator,
            [*_stopping_rules(U0, loss_tolerance, gradient_tolerance, stop), *ends],
            max_steps=max_steps,
            divergence=1e6,
            recorder=_Recorder(U0, observables, save_factors, progress, t_final, flow=True),
        )


def gradient_descent(
    objective: Objective,
    U0: Array,
    *,
    step: float | Array,
    max_steps: int,
    record_every: int = 1,
    loss_tolerance: float | None = None,
    gradient_tolerance: float | None = None,
    stop: Callable[[Any, Any], Any] | None = None,
    divergence: float = 1e6,
    save_factors: bool = False,
    observables: Mapping[str, Observable] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Trajectory:
    """Iterate `U <- U - step grad L(U)` (`eq:factor-gradient-descent`).

    Args:
        objective, U0, stop, save_factors, observables, progress: as in `gradient_flow`.
        step: fixed step eta > 0, a number or one per trajectory (broadcast against the batch).
        max_steps: most steps.
        record_every: record each so many steps (and the first and last).
        loss_tolerance, gradient_tolerance: end when L(U), or ||grad L||_F, is at or below.
        divergence: a trajectory has diverged when its loss is not finite or exceeds this multiple
            of the larger of L(U0) and L(0).

    Returns:
        `Trajectory`. Rank loss and divergence are noticed at the step where they happen. The
        conditions of `prop:exact-discrete-predictor-dynamics` for keeping the rank are
        `posquad.predictor.sufficient_rank_margin` and `exact_rank_margin`.

    >>> from posquad import PopulationRisk, gradient_descent
    >>> path = gradient_descent(PopulationRisk(np.eye(3, 1)), 0.5 * np.ones((3, 1)),
    ...                         step=0.05, max_steps=1000, loss_tolerance=1e-20)
    >>> path.status.name
    'LOSS_REACHED'
    """
    u = _initial_factor(objective, U0)
    eta = torch.as_tensor(step, dtype=u.dtype, device=u.device)
    if not bool((torch.isfinite(eta) & (eta > 0)).all()):
        raise DomainError("step", expected="finite numbers > 0", got=f"{step}")
    batch = require_batch(U0=(u, 2), step=(eta, 0))
    u = u.expand(*batch, *u.shape[-2:])
    positive_integer("max_steps", max_steps)
    method = Descent(objective, positive_integer("record_every", record_every))
    with torch.no_grad():
        return _run(
            objective,
            U0,
            _kernel.start(objective, u, eta),
            method,
            _stopping_rules(U0, loss_tolerance, gradient_tolerance, stop),
            max_steps=max_steps,
            divergence=positive_number("divergence", divergence),
            recorder=_Recorder(U0, observables, save_factors, progress, max_steps, flow=False),
        )


def _run(
    objective: Objective,
    U0: Array,
    state: State,
    method: Method,
    rules: list[Rule],
    *,
    max_steps: int,
    divergence: float,
    recorder: _Recorder,
) -> Trajectory:
    at_zero = objective.value(torch.zeros_like(state.U))
    reference = torch.maximum(state.loss.abs(), torch.nan_to_num(at_zero.abs(), 0.0, 0.0, 0.0))
    guards = [_kernel.diverged(reference, divergence), _kernel.rank_lost()]
    state = _kernel.iterate(
        method, state, [*guards, *rules], max_attempts=max_steps, record=recorder
    )
    return recorder.trajectory(state)


class _Recorder:
    """Keeps what a trajectory records, in the user's kind of array."""

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
        self.observables = dict(observables or {})
        self.end, self.flow = float(end), flow
        self.rows: dict[str, list[Tensor]] = {}

    def __call__(self, state: State) -> None:
        row = {
            "times": state.time,
            "loss": state.loss,
            "gradient_norm": torch.linalg.matrix_norm(state.gradient),
        }
        if self.flow:
            row["dissipated"] = state.dissipated
        if self.save_factors:
            row["factors"] = state.U
        for name, function in self.observables.items():
            row[f"observable {name}"] = torch.as_tensor(function(like(self.U0, state.U)))
        for name, value in row.items():
            self.rows.setdefault(name, []).append(value)
        if self.progress is not None:
            clock = state.time if self.flow else state.steps
            slowest = clock[state.running] if bool(state.running.any()) else clock
            self.progress(
                Progress(
                    time=float(slowest.min()) if slowest.numel() else self.end,
                    end=self.end,
                    loss=float(state.loss.max()) if state.loss.numel() else 0.0,
                    running=int(state.running.sum()),
                )
            )

    def trajectory(self, state: State) -> Trajectory:
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


def _stopping_rules(
    U0: Array,
    loss_tolerance: float | None,
    gradient_tolerance: float | None,
    stop: Callable[[Any, Any], Any] | None,
) -> list[Rule]:
    rules: list[Rule] = []
    if loss_tolerance is not None:
        tolerance = positive_number("loss_tolerance", loss_tolerance, zero=True)
        rules.append(_kernel.loss_reached(tolerance))
    if gradient_tolerance is not None:
        tolerance = positive_number("gradient_tolerance", gradient_tolerance, zero=True)
        rules.append(_kernel.gradient_reached(tolerance))
    if stop is not None:
        if not callable(stop):
            raise DtypeError("stop", expected="a callable stop(U, t)", got=type(stop).__name__)

        def met(state: State) -> Tensor:
            answer = stop(like(U0, state.U), like(U0, state.time))
            return (
                torch.as_tensor(answer, device=state.U.device)
                .to(torch.bool)
                .expand(state.loss.shape)
            )

        rules.append((Status.STOPPED, met))
    return rules


def _initial_factor(objective: Objective, U0: Array) -> Tensor:
    if not isinstance(objective, Objective):
        raise DtypeError(
            "objective",
            expected="an Objective such as LeastSquares(RankOne(X), y)",
            got=type(objective).__name__,
        )
    u = objective.admit("U0", U0).detach()
    frame("U0", u)
    return u


def _output_times(times: Array | None, t_final: float, u: Tensor) -> Tensor:
    """Times 0 = t_0 < ... < t_m = t_final on the device and in the dtype of u."""
    if times is None:
        return torch.linspace(0, t_final, 101, dtype=u.dtype, device=u.device)
    (inner,) = tensors(times=times if isinstance(times, Array) else np.asarray(times, dtype=float))
    inner = inner.to(u)
    if inner.ndim != 1 or bool((inner < 0).any()) or bool((inner > t_final).any()):
        raise DomainError(
            "times", expected=f"one-dimensional times in (0, t_final = {t_final}]", got=f"{times}"
        )
    if bool((inner.diff() <= 0).any()):
        raise DomainError("times", expected="strictly increasing times", got=f"{times}")
    inner = inner[(inner > 0) & (inner < t_final)]
    ends = torch.tensor([0.0, t_final], dtype=u.dtype, device=u.device)
    return torch.cat([ends[:1], inner, ends[1:]])
