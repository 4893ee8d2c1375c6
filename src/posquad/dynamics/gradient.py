"""Gradient flow and gradient descent of the factor (paper, sections 2.5 and 2.6).

Both use the loop of `loop.py` and follow batches of trajectories, each of which ends for its own
reason (`Trajectory.status`). Invalid arguments raise before any work is done. An iteration that
diverges, loses rank or does not converge raises nothing and reports it in the status.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from posquad.core.arrays import (
    Array,
    like,
    positive_integer,
    positive_number,
    positive_numbers,
    require_batch,
    require_callable,
    tensors,
)
from posquad.core.errors import DomainError, DtypeError, ShapeError
from posquad.core.progress import Progress
from posquad.core.status import Status
from posquad.dynamics.integrators import Descent, DormandPrince, RungeKutta4
from posquad.dynamics.loop import Method, Rule, iterate, steps_exhausted
from posquad.dynamics.state import (
    FactorState,
    diverged,
    gradient_reached,
    loss_reached,
    out_of_range,
    rank_lost,
    require_range,
    start,
)
from posquad.dynamics.trajectory import Observable, Recorder, Trajectory
from posquad.geometry.frames import require_full_rank
from posquad.problems.objectives import Objective, require_objective

__all__ = ["gradient_descent", "gradient_flow"]


def gradient_flow(
    objective: Objective,
    U0: Array,
    *,
    t_final: float,
    times: Array | None = None,
    method: Literal["adaptive", "rk4"] = "adaptive",
    step: float | None = None,
    rtol: float = 1e-9,
    atol: float = 0.0,
    loss_tolerance: float | None = None,
    gradient_tolerance: float | None = None,
    stop: Callable[[Any, Any], Any] | None = None,
    max_steps: int = 100_000,
    save_factors: bool = False,
    observables: Mapping[str, Observable] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Trajectory:
    """Integrate `dU/dt = -grad L(U)` (Theorem 2.3, `thm:exact-quotient-gradient-flow`).

    Args:
        objective: for instance `LeastSquares(RankOne(X), y)`.
        U0: full-rank factors `[..., d, r]`, one trajectory each.
        t_final: last time.
        times: increasing times in (0, t_final] to record, by default 100 equal intervals; time 0
            and t_final are always recorded.
        method: "adaptive" is Dormand-Prince 5(4) with a local error of at most
            `atol + rtol ||U||_F` per step; "rk4" is the classical method with a fixed `step`,
            shortened where needed to land on the recorded times.
        loss_tolerance, gradient_tolerance: end a trajectory when L(U), or ||grad L||_F, is at most
            this (a loss that underflows counts as zero). With the adaptive method, distances to a
            limit are meaningful down to about rtol ||U||; use "rk4" or a smaller rtol to follow
            them further.
        stop: a function `stop(U, t)` that returns true for each trajectory to be ended. To end a
            long run and keep its records, let it check a clock or a flag (Ctrl-C loses the
            records).
        max_steps: maximum number of steps, including rejected ones.
        save_factors: keep every recorded factor.
        observables: named functions of U `[..., d, r]`, recorded at each time.
        progress: called with a `Progress` at every record.

    Units do not matter: cU with responses c^2 y, or with c U_star, moves as U does, with time
    scaled to t / c^2, and scaling by a power of two changes no digit. Units in which the terms of
    the loss or of the gradient overflow or underflow (outside 1e-276 to 1e292 in double precision)
    raise `DomainError`; a factor that decays until its gradient underflows ends as OUT_OF_RANGE.

    Returns:
        `Trajectory`; `dissipated` holds the integral of the squared gradient norm, integrated
        along with the flow, so that `energy_defect` checks the energy identity.

    >>> from posquad import PopulationRisk, gradient_flow
    >>> flow = gradient_flow(PopulationRisk(np.eye(3, 1)), 0.5 * np.ones((3, 1)), t_final=10.0)
    >>> flow.status.name, bool(flow.loss[-1] < 1e-12)
    ('TIME_REACHED', True)
    """
    u = _initial_factor(objective, U0)
    t_final = float(positive_numbers("t_final", positive_number("t_final", t_final), u))
    grid = _output_times(times, t_final, u)
    if method == "rk4":
        if step is None:
            raise DomainError("step", expected="a fixed step for method='rk4'", got="None")
        first = torch.tensor(positive_number("step", step), dtype=u.dtype, device=u.device)
        integrator: Method[FactorState] = RungeKutta4(objective, grid)
    elif method == "adaptive":
        if step is not None:
            raise DomainError("step", expected="None with method='adaptive'", got=repr(step))
        rtol, atol = positive_number("rtol", rtol), positive_number("atol", atol, zero=True)
        first, integrator = None, DormandPrince(objective, grid, rtol, atol)
    else:
        raise DomainError("method", expected="'adaptive' or 'rk4'", got=repr(method))
    rounding = 4 * torch.finfo(u.dtype).eps
    rules: list[Rule[FactorState]] = [
        *_stopping_rules(U0, loss_tolerance, gradient_tolerance, stop),
        (Status.TIME_REACHED, lambda state: state.time >= grid[-1]),
        (Status.STEP_UNDERFLOW, lambda state: state.step_size <= rounding * state.time),
        steps_exhausted(positive_integer("max_steps", max_steps)),
    ]
    recorder = Recorder(U0, observables, save_factors, progress, t_final, flow=True)
    return _run(objective, u, first, integrator, rules, recorder, divergence=1e6)


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
        max_steps: maximum number of steps.
        record_every: number of steps between records; the first and last states are always
            recorded.
        loss_tolerance, gradient_tolerance: end a trajectory when L(U), or ||grad L||_F, is at most
            this.
        divergence: a trajectory has diverged when its loss is not finite or exceeds this multiple
            of the larger of L(U0) and L(0). (For `SmoothObjective`, only when it is not finite.)

    Returns:
        `Trajectory`. Rank loss and divergence are detected at the step where they happen. The
        conditions of Proposition 2.6 (`prop:exact-discrete-predictor-dynamics`) for keeping the
        rank are `posquad.dynamics.sufficient_rank_margin` and `exact_rank_margin`.

    >>> from posquad import PopulationRisk, gradient_descent
    >>> path = gradient_descent(PopulationRisk(np.eye(3, 1)), 0.5 * np.ones((3, 1)),
    ...                         step=0.05, max_steps=1000, loss_tolerance=1e-20)
    >>> path.status.name
    'LOSS_REACHED'
    """
    u = _initial_factor(objective, U0)
    eta = positive_numbers("step", step, u).detach()
    batch = require_batch(objective=objective.batch_shape, U0=u.shape[:-2], step=eta.shape)
    method = Descent(objective, positive_integer("record_every", record_every))
    rules = [
        *_stopping_rules(U0, loss_tolerance, gradient_tolerance, stop),
        steps_exhausted(positive_integer("max_steps", max_steps)),
    ]
    recorder = Recorder(U0, observables, save_factors, progress, max_steps, flow=False)
    u = u.expand(*batch, *u.shape[-2:])
    divergence = positive_number("divergence", divergence)
    return _run(objective, u, eta, method, rules, recorder, divergence)


def _run(
    objective: Objective,
    u: Tensor,
    step: Tensor | None,
    method: Method[FactorState],
    rules: list[Rule[FactorState]],
    recorder: Recorder,
    divergence: float,
) -> Trajectory:
    with torch.no_grad():
        require_range(objective, u)
        state = start(objective, u, step)
        guards = [
            diverged(objective.loss_scale(state.U).to(u.dtype), divergence),
            rank_lost(),
            out_of_range(objective),
        ]
        return recorder.trajectory(iterate(method, state, [*guards, *rules], record=recorder))


def _stopping_rules(
    U0: Array,
    loss_tolerance: float | None,
    gradient_tolerance: float | None,
    stop: Callable[[Any, Any], Any] | None,
) -> list[Rule[FactorState]]:
    rules: list[Rule[FactorState]] = []
    if loss_tolerance is not None:
        tolerance = positive_number("loss_tolerance", loss_tolerance, zero=True)
        rules.append(loss_reached(tolerance))
    if gradient_tolerance is not None:
        tolerance = positive_number("gradient_tolerance", gradient_tolerance, zero=True)
        rules.append(gradient_reached(tolerance))
    if stop is not None:
        require_callable("stop", stop, "stop(U, t)")

        def met(state: FactorState) -> Tensor:
            return _decision(stop(like(U0, state.U), like(U0, state.time)), state)

        rules.append((Status.STOPPED, met))
    return rules


def _decision(answer: Any, state: FactorState) -> Tensor:
    """Answer of a stopping rule as one truth value per trajectory."""
    try:
        decision = torch.as_tensor(answer, device=state.U.device)
    except (TypeError, ValueError, RuntimeError):
        decision = None
    if decision is None or decision.is_complex():
        raise DtypeError("stop", expected="a rule that returns true or false", got=repr(answer))
    try:
        return decision.to(torch.bool).expand(state.loss.shape)
    except RuntimeError:
        expected = f"a rule that returns one value, or shape {tuple(state.loss.shape)}"
        got = f"shape {tuple(decision.shape)}"
        raise ShapeError("stop", expected=expected, got=got) from None


def _initial_factor(objective: Objective, U0: Array) -> Tensor:
    require_objective(objective)
    (u,) = objective.admit(U0=U0)
    require_full_rank("U0", u)
    return u.detach()


def _output_times(times: Array | None, t_final: float, u: Tensor) -> Tensor:
    """Times `0 = t_0 < ... < t_m = t_final`, with the device and dtype of u."""
    if times is None:
        return torch.linspace(0, t_final, 101, dtype=u.dtype, device=u.device)
    (inner,) = tensors(times=times)
    if inner.ndim != 1:
        raise ShapeError("times", expected="shape (T,)", got=f"shape {tuple(inner.shape)}")
    inner = inner.detach().to(u)
    grid = torch.cat([inner.new_zeros(1), inner[(inner > 0)], inner.new_full((1,), t_final)])
    grid = grid[:-1] if len(grid) > 2 and grid[-2] == grid[-1] else grid
    if bool((inner < 0).any()) or bool((inner.diff() <= 0).any()) or bool((grid.diff() <= 0).any()):
        raise DomainError(
            "times",
            expected=f"strictly increasing times in (0, t_final = {t_final}]",
            got=f"{inner.tolist()}"[:200],
        )
    return grid
