"""What the solvers of this room share: the problem, the state of a fit, its rules and its record.

Leading dimensions in front of those of X are starts: `U[S, ..., d, r]` against `X[..., n, d]`. A
pass is one product of X or X' with r columns, 2 n d r operations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from posquad.core.arrays import (
    Array,
    like,
    positive_integer,
    positive_number,
    require_batch,
    require_callable,
    require_factor,
    require_shape,
    tensors,
)
from posquad.core.errors import ShapeError
from posquad.core.progress import Progress
from posquad.core.results import Result
from posquad.core.status import Status, from_codes
from posquad.core.symmetric import symmetric_gram
from posquad.dynamics.loop import Method, Rule, State, clock, iterate
from posquad.geometry.frames import Frame

GRADIENT = 1e-10  # cosine between the residual and the range of the Jacobian: stationary


class Quadratic:
    """Responses `y_i = ||U'x_i||^2` to be fitted: products with X, residuals and their size."""

    def __init__(self, X: Tensor, y: Tensor) -> None:
        self.X, self.y = X, y  # [..., n, d] and [..., n]
        self.n, self.d = X.shape[-2:]
        size = torch.linalg.vector_norm(y, dim=-1)
        self.size = torch.where(size > 0, size, 1.0)  # [...]
        self.lengths = torch.linalg.vector_norm(X, dim=-1).square()  # [..., n]  ||x_i||^2

    def forward(self, U: Tensor) -> Tensor:
        """`XU`, one pass."""
        return (U.mT @ self.X.mT).mT  # wide for many starts, and faster than X @ U

    def pull(self, w: Tensor, Z: Tensor) -> Tensor:
        """`X' diag(w) Z`, one pass."""
        return ((w[..., None] * Z).mT @ self.X).mT

    def residual(self, Z: Tensor) -> Tensor:
        return Z.square().sum(-1) - self.y

    def relative(self, e: Tensor) -> Tensor:
        return torch.linalg.vector_norm(e, dim=-1) / self.size

    @cached_property
    def moments(self) -> Tensor:
        """`sum_i svec(x_i x_i') svec(x_i x_i')'`, `[..., D, D]` with D = d(d+1)/2; one pass."""
        return symmetric_gram(self.X)

    def select(self, chosen: Tensor) -> Quadratic:
        """The problems of a batch at these indices."""
        return Quadratic(self.X[chosen], self.y[chosen])

    def single(self) -> Quadratic:
        """One problem as a batch of one."""
        return Quadratic(self.X[None], self.y[None])


@dataclass(frozen=True)
class FitState(State):
    """Factors on their way to fit the responses."""

    U: Tensor  # [..., d, r]
    Z: Tensor  # [..., n, r]  XU
    e: Tensor  # [..., n]  residual
    residual: Tensor  # [...]  ||e|| / ||y||
    cosine: Tensor  # [...]  ||J'e|| / (||J||_F ||e||), infinite where not known
    passes: Tensor  # [...]  products with X or X'

    @classmethod
    def begin(cls, problem: Quadratic, U0: Tensor, step: float = 1.0, **extra: Tensor) -> Self:
        Z = problem.forward(U0)
        e = problem.residual(Z)
        residual = problem.relative(e)
        first = clock(torch.full_like(residual, step))
        return cls(
            **first,
            U=U0.expand(*residual.shape, *U0.shape[-2:]).clone(),
            Z=Z,
            e=e,
            residual=residual,
            cosine=torch.full_like(residual, torch.inf),
            passes=torch.ones_like(first["steps"]),
            **extra,
        )

    def moved(self, problem: Quadratic, U: Tensor, Z: Tensor, **changes: Any) -> Self:
        """One accepted step to U, with `Z = XU`."""
        e = problem.residual(Z)
        return replace(
            self,
            U=U,
            Z=Z,
            e=e,
            residual=problem.relative(e),
            steps=self.steps + 1,
            attempts=self.attempts + 1,
            **changes,
        )


F = TypeVar("F", bound=FitState)


def cosine(problem: Quadratic, state: FitState, slope: Tensor) -> Tensor:
    """How far from stationary, without units; `slope = X' diag(e) Z`, so `J'e = 2 slope`."""
    rows = problem.lengths * state.Z.square().sum(-1)  # [..., n]
    size = rows.sum(-1).sqrt() * torch.linalg.vector_norm(state.e, dim=-1)
    return torch.linalg.matrix_norm(slope) / torch.where(size > 0, size, 1.0)


def fitted(tolerance: float) -> Rule[Any]:
    """End when the relative residual is at or below the tolerance."""
    return Status.LOSS_REACHED, lambda state: state.residual <= tolerance


def stationary(tolerance: float = GRADIENT) -> Rule[Any]:
    """End when the residual is orthogonal to the range of the Jacobian, to the tolerance."""
    return Status.GRADIENT_REACHED, lambda state: state.cosine <= tolerance


def not_finite() -> Rule[Any]:
    """End when the residual is not a number any more."""
    return Status.DIVERGED, lambda state: ~torch.isfinite(state.residual)


def at_rounding(patience: int = 3) -> Rule[Any]:
    """The residual is tiny and has not halved for `patience` steps: rounding allows no more.

    Five times as many where it is only small: that may be slow convergence.
    """
    best: list[Any] = [None, None]

    def met(state: FitState) -> Tensor:
        if best[0] is None:
            best[:] = [state.residual, torch.zeros_like(state.steps)]
            return torch.zeros_like(state.running)
        better = state.residual < 0.5 * best[0]
        best[0] = torch.where(better, state.residual, best[0])
        best[1] = torch.where(better, 0, best[1] + 1)
        eps = torch.finfo(state.residual.dtype).eps
        waited = torch.where(state.residual <= 500 * eps, best[1], best[1] // 5)
        return (state.residual <= eps**0.6) & (waited >= patience)

    return Status.LOSS_REACHED, met


def stagnated(patience: int, rate: float) -> Rule[Any]:
    """Over `patience` attempts the residual has not fallen below `rate` times what it was."""
    seen: list[Any] = [0, None]

    def met(state: FitState) -> Tensor:
        seen[0] += 1
        if seen[1] is None:
            seen[1] = state.residual
        if seen[0] % patience:
            return torch.zeros_like(state.running)
        slow = state.residual > rate * seen[1]
        seen[1] = state.residual
        return slow

    return Status.STALLED, met


class Watch:
    """The budget of a computation and what it has seen: its last state survives an interruption."""

    def __init__(
        self,
        *,
        max_steps: int,
        time_limit: float | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        if progress is not None:
            require_callable("progress", progress, "progress(Progress)")
        self.max_steps = positive_integer("max_steps", max_steps)
        limit = None if time_limit is None else positive_number("time_limit", time_limit)
        self.deadline = None if limit is None else time.perf_counter() + limit
        self.progress = progress
        self.steps = -1
        self.history: list[Tensor] = []  # relative residuals, one record a step
        self.last: Any = None
        self.interrupted = False  # by Ctrl-C

    @property
    def spent(self) -> bool:
        return self._ended(self.steps)

    @property
    def late(self) -> bool:
        """Past the time limit."""
        return self.deadline is not None and time.perf_counter() > self.deadline

    def _ended(self, steps: int) -> bool:
        return self.late or self.interrupted or steps >= self.max_steps

    def rule(self) -> Rule[Any]:
        """Ends a run with the budget; a step is judged before it is recorded."""
        return (
            Status.INTERRUPTED,
            lambda state: torch.full_like(state.running, self._ended(self.steps + 1)),
        )

    def quota(self, steps: int) -> Rule[Any]:
        """Ends a run that is one part of a computation after so many steps."""
        end = self.steps + steps
        return Status.STEPS_EXHAUSTED, lambda s: torch.full_like(s.running, self.steps >= end)

    def __call__(self, state: Any) -> None:
        self.steps += 1
        self.last = state
        self.history.append(state.residual)
        if self.progress is not None:
            worst = float(state.residual.max()) if state.residual.numel() else 0.0
            running = int(state.running.sum())
            self.progress(Progress(float(self.steps), float(self.max_steps), worst, running))


@dataclass(frozen=True, eq=False, repr=False)
class Solution(Result):
    """What one solver found, alone: a factor, how it ended, and what it cost."""

    U: Any  # [..., d, r]
    status: Status | list  # LOSS_REACHED, GRADIENT_REACHED, STALLED, INTERRUPTED or DIVERGED
    residual: Any  # [...]  ||A(UU') - y|| / ||y||
    steps: Any  # [...]
    passes: Any  # [...]  products of X or X' with r columns
    history: Any  # [T, ...]  relative residual, one record a step


def enter(X: Array, y: Array, U0: Array) -> tuple[Quadratic, Tensor]:
    """Checked tensors of one dtype, as a problem and its first factors."""
    inputs, responses, u = tensors(X=X, y=y, U0=U0)
    problem = enter_data(inputs, responses)
    require_factor("U0", u)
    require_shape("U0", u, (problem.d, u.shape[-1]), "(..., d, r)")
    batch = require_batch(X=inputs.shape[:-2], y=responses.shape[:-1], U0=u.shape[:-2])
    return problem, u.expand(*batch, *u.shape[-2:])


def enter_data(X: Tensor, y: Tensor) -> Quadratic:
    """The problem of checked tensors `X[..., n, d]` and `y[..., n]`."""
    if X.ndim < 2 or 0 in X.shape[-2:]:
        got = f"shape {tuple(X.shape)}"
        raise ShapeError("X", expected="shape (..., n, d) with n, d >= 1", got=got)
    require_shape("y", y, (X.shape[-2],), "(..., n), one response a row of X")
    batch = require_batch(X=X.shape[:-2], y=y.shape[:-1])
    return Quadratic(X, y.expand(*batch, y.shape[-1]))


def solve(
    method: Method[F], state: F, rules: Sequence[Rule[F]], watch: Watch, *, like_array: Array
) -> Solution:
    """Run a solver to its end, or to Ctrl-C, and hand back what it has."""
    with torch.no_grad():
        try:
            ended = iterate(method, state, [*rules, watch.rule()], record=watch)
        except KeyboardInterrupt:
            ended = watch.last if watch.last is not None else state
    return package(watch, ended, like_array)


def package(watch: Watch, ended: Any, model: Array) -> Solution:
    """The solution that a last state holds."""
    codes = torch.where(ended.running, Status.INTERRUPTED.code, ended.outcome)
    history = torch.stack(watch.history) if watch.history else ended.residual[None]
    return Solution(
        U=like(model, ended.U),
        status=from_codes(codes),
        residual=like(model, ended.residual),
        steps=like(model, ended.steps),
        passes=like(model, ended.passes),
        history=like(model, history),
    )


def clear_frame(U: Tensor) -> Frame:
    """The frame of U for preconditioning: tiny singular values are raised, so that it exists."""
    W, s, Pt = torch.linalg.svd(U, full_matrices=False)
    return Frame(W, torch.maximum(s, 1e-7 * s[..., :1]).clamp_min(1e-150), Pt.mT)


def inner(V: Tensor, W: Tensor) -> Tensor:
    """Frobenius inner product of the last two dimensions."""
    return (V * W).sum((-2, -1))


def take(state: F, index: Any) -> F:
    """The trajectories of a state at an index of its leading dimensions."""
    return type(state)(**{f.name: getattr(state, f.name)[index] for f in fields(state)})
