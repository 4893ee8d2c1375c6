"""The entropy mirror flow in joint spectral coordinates (paper, sections 4.2-4.3).

The flow moves `log q` inside the range of B': `log q(t) = log q0 - (4/d) B'w(t)`, so only the n
numbers `w(t) = (1/n) int (Bq - y)` are integrated. Their equation is a gradient flow whose Jacobian
is symmetric and negative semidefinite, and stiff when q spans many orders of magnitude; it is
integrated by extrapolating the linearly implicit Euler method.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posquad.core.arrays import (
    A,
    Array,
    broadcast_shape,
    like,
    positive_integer,
    positive_number,
    require_shape,
    tensors,
)
from posquad.core.errors import DomainError
from posquad.core.ranges import tiny
from posquad.core.results import Result
from posquad.core.status import Status, from_codes
from posquad.dynamics.loop import Method, Rule, State, clock, iterate, merge, steps_exhausted
from posquad.selection.projection import bregman_projection, divergence
from posquad.selection.system import System, power_of_two_near, prepare

__all__ = ["MirrorTrajectory", "mirror_flow"]

_STAGES = 7  # extrapolation order


@dataclass(frozen=True, eq=False, repr=False)
class MirrorTrajectory(Result):
    """Recorded batch of mirror flows. T is the number of records, `...` the batch shape.

    There is a record for every step. A flow that has ended, or that rejects a step which another
    one takes, repeats its last state.
    """

    q: Any  # [..., m]  the last point
    status: Status | list
    times: Any  # [T, ...]
    path: Any  # [T, ..., m]
    residual: Any  # [T, ...]  ||Bq - y||_2
    dissipated: Any  # [T, ...]  (1/n) int ||Bq - y||^2
    steps: Any  # [...]
    multiplicities: Any  # [m]

    def lyapunov_defect(self, reference: Array) -> Any:
        """`D_h(p, q0) - D_h(p, q(t)) - (1/n) int ||Bq - y||^2` for a feasible p, `[T, ...]`.

        Zero along the exact flow (Lemma 4.1, `lem:bregman-lyapunov-identity`).
        """
        p, path, d, spent = tensors(
            reference=reference,
            path=self.path,
            multiplicities=self.multiplicities,
            dissipated=self.dissipated,
        )
        require_shape("reference", p, (d.shape[0],), "(..., m), a point with Bp = y")
        divergences = divergence(p, path, d)
        return like(self.path, divergences[0] - divergences - spent)


def mirror_flow(
    B: A,
    y: A,
    multiplicities: A,
    q0: A,
    *,
    t_final: float = float("inf"),
    residual_tolerance: float = 1e-12,
    tolerance: float = 1e-9,
    max_steps: int = 10_000,
    progress: Callable[[float, float], None] | None = None,
) -> MirrorTrajectory:
    """Integrate `dq_a/dt = -(4 q_a / d_a) [B'(Bq - y)/n]_a` from q0 > 0 to its limit.

    This is the factor gradient flow on the joint spectrum
    (Theorem 4.1, `thm:invariant-joint-spectral-reduction`) from any factor of Q(q0)
    (Remark 4.2, `rem:spectral-representative-independence`), and a mirror flow of the weighted
    entropy (Proposition 4.1, `prop:exact-weighted-mirror-flow`).

    Args:
        B, y, multiplicities, q0: as in `bregman_projection`.
        t_final: last time; by default infinite, so that the flow ends by its residual.
        residual_tolerance: end when `||Bq - y||_2 <= residual_tolerance ||y||_2` (if y = 0,
            relative to the size of Bq0).
        tolerance: local error of `log q`, that is, relative error of q, per step.
        max_steps: maximum number of steps, including rejected ones.
        progress: called with (time, largest residual) after every step.

    Units do not matter: the flow is computed in units of the largest entries of B and y.

    >>> flow = mirror_flow(np.array([[1.0, 1.0]]), np.array([3.0]), np.array([1, 1]),
    ...                    np.array([1.0, 3.0]))
    >>> flow.q.round(9), flow.status.name
    (array([0.75, 2.25]), 'LOSS_REACHED')
    """
    system, points = prepare(B, y, multiplicities, q0=q0)
    if t_final != float("inf"):
        positive_number("t_final", t_final)
    goal = positive_number("residual_tolerance", residual_tolerance, zero=True)
    tolerance = positive_number("tolerance", tolerance)
    positive_integer("max_steps", max_steps)
    with torch.no_grad():
        start = points["q0"]
        batch = broadcast_shape(system.y.shape[:-1], start.shape[:-1])
        bregman_projection(system.B, system.y, system.d, start)  # raises if there is no limit
        units = Units(system, start, batch)
        size = units.system.size(units.start)
        method = _Dissipation(units.system, units.log_start, t_final / units.time, tolerance)
        rows: list[MirrorState] = []

        def record(state: MirrorState) -> None:
            rows.append(state)
            if progress is not None and state.time.numel():
                residual = units.residual * state.residual.norm(dim=-1)
                progress(float((units.time * state.time).max()), float(residual.max()))

        rounding = 4 * torch.finfo(start.dtype).eps
        rules: list[Rule[MirrorState]] = [
            (Status.LOSS_REACHED, lambda s: s.residual.norm(dim=-1) <= goal * size),
            (Status.TIME_REACHED, lambda s: (s.time >= method.t_final) & (s.time < torch.inf)),
            (Status.STEP_UNDERFLOW, lambda s: s.step_size <= rounding * s.time),
            steps_exhausted(max_steps),
        ]
        state = iterate(method, method.start(), rules, record=record)
        path = units.q[..., None] * torch.stack([method.point(row.w) for row in rows])
        times = units.time * torch.stack([row.time for row in rows])
        residual = units.residual * torch.stack([row.residual.norm(dim=-1) for row in rows])
        dissipated = units.q * torch.stack([row.integrals[..., 0] for row in rows])
    return MirrorTrajectory(
        q=like(B, units.q[..., None] * method.point(state.w)),
        status=from_codes(state.outcome),
        times=like(B, times),
        path=like(B, path),
        residual=like(B, residual),
        dissipated=like(B, dissipated),
        steps=like(B, state.steps),
        multiplicities=like(B, system.d),
    )


class Units:
    """Units, powers of two, in which B, y and q are near one.

    With `B = b B'`, `y = b u y'` and `q = u q'`, the time of the flow is `t = t' / (b^2 u)`, its
    residual is `b u` times and its dissipation u times that of the scaled one. Squares of residuals
    then do not overflow or underflow, whatever the user's units. Data of ordinary size stay
    unchanged, because b and u are powers of 2^64 (of 2^16 in single precision).
    """

    def __init__(self, system: System, start: Tensor, batch: torch.Size) -> None:
        b = system.B.abs().amax()
        every = 64 if start.dtype == torch.float64 else 16
        b = power_of_two_near(torch.where(b > 0, b, 1.0), every=every)
        self.B = b
        responses = (system.y / b).abs().amax(-1)
        level = torch.where(responses > 0, responses, start.amax(-1))
        self.q = power_of_two_near(level, every=every).expand(batch)
        self.residual = b * self.q
        self.time = 1 / b / self.residual
        if not bool(((self.time > 0) & torch.isfinite(self.time)).all()):
            raise DomainError(
                "B",
                expected="units in which the time 1 / (max|B| max|y|) is in the range of the dtype",
                got=f"entries of B up to {float(b):.0e} and of y up to "
                f"{float(self.residual.max()):.0e}; rescale them",
            )
        inside = system.y / b / self.q[..., None]
        self.system = replace(system, B=system.B / b, y=inside, scale=system.scale * b)
        self.start = (start / self.q[..., None]).expand(*batch, start.shape[-1])
        # The logarithm exists also where the start overflows or underflows in these units.
        kept = (self.start > tiny(start)) & torch.isfinite(self.start)
        self.log_start = torch.where(kept, self.start.log(), start.log() - self.q.log()[..., None])


@dataclass(frozen=True)
class MirrorState(State):
    """A batch of mirror flows between two steps."""

    w: Tensor  # [..., n]  (1/n) int (Bq - y)
    residual: Tensor  # [..., n]  Bq - y
    integrals: Tensor  # [..., k]  integrals over time of the k integrands of the method


class Extrapolation(Method[MirrorState]):
    """Linearly implicit Euler with 1, 2, ..., k substeps, extrapolated to order k.

    A subclass names the functions of w that are integrated over time together with the flow.
    """

    def __init__(
        self, system: System, log_start: Tensor, t_final: Tensor, tolerance: float
    ) -> None:
        self.B, self.y, self.d = system.B, system.y, system.d
        self.n = system.B.shape[0]
        self.log_start, self.t_final, self.tolerance = log_start, t_final, tolerance
        self._steps_taken = 0
        self._eye = torch.eye(self.n, dtype=self.B.dtype, device=self.B.device)

    @abstractmethod
    def integrands(self, w: Tensor, residual: Tensor) -> Tensor:
        """The functions of w to integrate, `[..., k]`."""

    @abstractmethod
    def integrands_derivative(self, state: MirrorState, J: Tensor) -> Callable[[Tensor], Tensor]:
        """Their derivative at the state as a map from `[..., n]` to `[..., k]`."""

    def start(self) -> MirrorState:
        """The state at time zero."""
        w = torch.zeros(
            *self.log_start.shape[:-1], self.n, dtype=self.B.dtype, device=self.B.device
        )
        residual = self._residual(w)
        # The time in which log q would move by a hundredth.
        speed = (4 / self.n * (residual @ self.B) / self.d).abs().amax(-1)
        return MirrorState(
            **clock(0.01 / torch.where(speed > 0, speed, 1.0)),
            w=w,
            residual=residual,
            integrals=torch.zeros_like(self.integrands(w, residual)),
        )

    def record_due(self, state: MirrorState) -> bool:
        """Whether at least one flow accepted the last step."""
        taken = int(state.steps.sum())
        due, self._steps_taken = taken > self._steps_taken, taken
        return due

    def log_point(self, w: Tensor) -> Tensor:
        """`log q0 - (4/d) B'w`, `[..., m]`."""
        return self.log_start - 4 * (w @ self.B) / self.d

    def point(self, w: Tensor) -> Tensor:
        """`q0 exp(-(4/d) B'w)`, `[..., m]`."""
        return self.log_point(w).exp()

    def _residual(self, w: Tensor) -> Tensor:
        return self.point(w) @ self.B.mT - self.y

    def advance(self, state: MirrorState) -> MirrorState:
        h = torch.minimum(state.step_size, self.t_final - state.time)
        q = self.point(state.w)
        J = (-4 / self.n) * (self.B * (q / self.d)[..., None, :]) @ self.B.mT  # [..., n, n]
        derivative = self.integrands_derivative(state, J)
        rows: list[Tensor] = []  # the last row of the extrapolation table, [..., n + k] each
        for j in range(1, _STAGES + 1):
            new = [self._euler(state, J, derivative, h / j, j)]
            for k in range(1, j):
                new.append(new[-1] + (new[-1] - rows[k - 1]) / (j / (j - k) - 1))
            rows = new
        correction = rows[-1] - rows[-2]
        error = self.distance(state, correction[..., : self.n], correction[..., self.n :])
        w, gain = rows[-1][..., : self.n], rows[-1][..., self.n :]
        residual = self._residual(w)
        ratio = torch.nan_to_num(error / self.tolerance, nan=torch.inf).clamp_min(1e-10)
        accepted = (ratio <= 1) & torch.isfinite(residual).all(-1)
        growth = 0.9 * ratio ** (-1 / _STAGES)
        growth = torch.where(accepted, growth.clamp_max(8.0), growth.clamp(0.1, 0.7))
        new_state = state.stepped(
            time=torch.where(h < state.step_size, self.t_final, state.time + h),
            error=ratio,
            w=w,
            residual=residual,
            integrals=state.integrals + gain,
        )
        return replace(
            merge(accepted, new_state, state),
            attempts=new_state.attempts,
            step_size=h * growth,
        )

    def _euler(
        self,
        state: MirrorState,
        J: Tensor,
        derivative: Callable[[Tensor], Tensor],
        h: Tensor,
        substeps: int,
    ) -> Tensor:
        """Take linearly implicit Euler steps; return w and the increase of the integrals."""
        matrix = self._eye - h[..., None, None] * J
        factor, pivots = torch.linalg.lu_factor(matrix)
        w, residual = state.w, state.residual
        gain = torch.zeros_like(state.integrals)
        for i in range(substeps):
            right = (h[..., None] * residual / self.n)[..., None]
            delta = torch.linalg.lu_solve(factor, pivots, right)[..., 0]
            gain = gain + h[..., None] * (self.integrands(w, residual) + derivative(delta))
            w = w + delta
            if i + 1 < substeps:
                residual = self._residual(w)
        return torch.cat([w, gain], dim=-1)

    def distance(self, state: MirrorState, w: Tensor, integrals: Tensor) -> Tensor:
        """Size `[...]` of a difference as a change of log q, to which the tolerance refers."""
        return (4 * (w @ self.B) / self.d).abs().amax(-1)


class _Dissipation(Extrapolation):
    """The flow with the integral of `||Bq - y||^2 / n`, k = 1."""

    def integrands(self, w: Tensor, residual: Tensor) -> Tensor:
        return residual.square().sum(-1, keepdim=True) / self.n

    def integrands_derivative(self, state: MirrorState, J: Tensor) -> Callable[[Tensor], Tensor]:
        slope = 2 * (J @ state.residual[..., None])[..., 0]
        return lambda delta: (slope * delta).sum(-1, keepdim=True)
