"""Shared parts of the solvers: the problem, the state of a fit, stopping rules, budget, history.

Leading dimensions of U in front of those of X are starts: `U[S, ..., d, r]` for `X[..., n, d]`. One
pass over X is one product of X or X' with r columns, which takes 2 n d r operations.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

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

GRADIENT = 1e-10  # a fit is stationary if the cosine of residual and Jacobian is at most this


class Quadratic:
    """The problem of fitting responses `y_i = ||U'x_i||^2`: products with X, and residuals."""

    def __init__(self, X: Tensor, y: Tensor) -> None:
        self.X, self.y = X, y  # [..., n, d] and [..., n]
        self.n, self.d = X.shape[-2:]
        size = torch.linalg.vector_norm(y, dim=-1)
        self.size = torch.where(size > 0, size, 1.0)  # [...]
        self.lengths = torch.linalg.vector_norm(X, dim=-1).square()  # [..., n]  ||x_i||^2

    def forward(self, U: Tensor) -> Tensor:
        """Return `XU`, in one pass."""
        return (U.mT @ self.X.mT).mT  # faster than X @ U, most of all for many starts

    def weighted_adjoint(self, w: Tensor, Z: Tensor) -> Tensor:
        """Return `X' diag(w) Z`, in one pass."""
        return ((w[..., None] * Z).mT @ self.X).mT

    def residual(self, Z: Tensor) -> Tensor:
        """Return `e_i = ||z_i||^2 - y_i` for the rows of `Z = XU`."""
        return Z.square().sum(-1) - self.y

    def relative(self, e: Tensor) -> Tensor:
        """Return `||e|| / ||y||`."""
        return torch.linalg.vector_norm(e, dim=-1) / self.size

    @cached_property
    def moments(self) -> Tensor:
        """Fourth moments `sum_i svec(x_i x_i') svec(x_i x_i')'`, `[..., D, D]`, D = d(d+1)/2."""
        return symmetric_gram(self.X)

    def select(self, chosen: Tensor) -> Quadratic:
        """Return the problems of a batch at these indices."""
        return Quadratic(self.X[chosen], self.y[chosen])

    def single(self) -> Quadratic:
        """Return this one problem as a batch of one."""
        return Quadratic(self.X[None], self.y[None])


@dataclass(frozen=True)
class FitState(State):
    """The current factors of a batch of fits, with their residuals."""

    U: Tensor  # [..., d, r]
    Z: Tensor  # [..., n, r]  XU
    e: Tensor  # [..., n]  residual
    residual: Tensor  # [...]  ||e|| / ||y||
    cosine: Tensor  # [...]  ||J'e|| / (||J||_F ||e||), infinite if not computed yet
    passes: Tensor  # [...]  products with X or X' so far

    @classmethod
    def begin(cls, problem: Quadratic, U0: Tensor, step: float = 1.0, **extra: Tensor) -> Self:
        """Return the state at the first factors U0."""
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
        """Return the state after one accepted step to U, given `Z = XU`."""
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
    """Return `||J'e|| / (||J||_F ||e||)`, zero at a stationary point.

    `slope` is `X' diag(e) Z`, so that `J'e = 2 slope`.
    """
    rows = problem.lengths * state.Z.square().sum(-1)  # [..., n]
    size = rows.sum(-1).sqrt() * torch.linalg.vector_norm(state.e, dim=-1)
    return torch.linalg.matrix_norm(slope) / torch.where(size > 0, size, 1.0)


def fitted(tolerance: float) -> Rule[Any]:
    """Rule that ends a fit when its relative residual is at most the tolerance."""
    return Status.LOSS_REACHED, lambda state: state.residual <= tolerance


def stationary(tolerance: float = GRADIENT) -> Rule[Any]:
    """Rule that ends a fit when `||J'e|| / (||J||_F ||e||)` is at most the tolerance."""
    return Status.GRADIENT_REACHED, lambda state: state.cosine <= tolerance


def not_finite() -> Rule[Any]:
    """Rule that ends a fit when its residual is infinite or NaN."""
    return Status.DIVERGED, lambda state: ~torch.isfinite(state.residual)


def at_rounding(patience: int = 3) -> Rule[Any]:
    """Rule that ends a fit whose residual has reached the level of rounding.

    That is a tiny residual that has not halved for `patience` steps, or a small one that has not
    halved for five times as many, because a small one may only be converging slowly.
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
    """Rule that ends a fit whose residual is above `rate` times that of `patience` steps before."""
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


class Budget:
    """Steps and seconds that a computation may take, and whether the user interrupted it."""

    def __init__(self, *, max_steps: int, time_limit: float | None = None) -> None:
        self.max_steps = positive_integer("max_steps", max_steps)
        limit = None if time_limit is None else positive_number("time_limit", time_limit)
        self.deadline = None if limit is None else time.perf_counter() + limit
        self.steps = -1  # the record of the first start is not a step
        self.interrupted = False  # by Ctrl-C

    @property
    def spent(self) -> bool:
        """Whether nothing more may be computed."""
        return self._is_spent_after(self.steps)

    @property
    def late(self) -> bool:
        """Whether the time limit has passed."""
        return self.deadline is not None and time.perf_counter() > self.deadline

    def _is_spent_after(self, steps: int) -> bool:
        return self.late or self.interrupted or steps >= self.max_steps

    def rule(self) -> Rule[Any]:
        """Rule that ends a run when the budget is spent."""
        # The rules judge a step before the history counts it.
        return (
            Status.INTERRUPTED,
            lambda state: torch.full_like(state.running, self._is_spent_after(self.steps + 1)),
        )

    def quota(self, steps: int) -> Rule[Any]:
        """Rule that ends a run, one part of the computation, after this many steps."""
        end = self.steps + steps
        return Status.STEPS_EXHAUSTED, lambda s: torch.full_like(s.running, self.steps >= end)


class History:
    """Relative residuals and the last state of a computation; counts its steps in the budget.

    The last state is kept so that an interrupted run can still return what it has.
    """

    def __init__(self, budget: Budget, progress: Callable[[Progress], None] | None = None) -> None:
        if progress is not None:
            require_callable("progress", progress, "progress(Progress)")
        self.budget = budget
        self.progress = progress
        self.residuals: list[Tensor] = []  # one record per step
        self.last: Any = None

    def __call__(self, state: Any) -> None:
        """Record one step, and report it to the progress callback."""
        self.budget.steps += 1
        self.last = state
        self.residuals.append(state.residual)
        if self.progress is not None:
            worst = float(state.residual.max()) if state.residual.numel() else 0.0
            done, end = float(self.budget.steps), float(self.budget.max_steps)
            self.progress(Progress(done, end, worst, int(state.running.sum())))


class FitMethod(Method[F], Generic[F]):
    """A method that fits a factor, with the state that it starts from; every step is recorded."""

    @abstractmethod
    def start(self, U0: Tensor) -> F:
        """Return the state at the first factors `U0[..., d, r]`."""

    def record_due(self, state: F) -> bool:
        return True


@dataclass(frozen=True, eq=False, repr=False)
class SolverResult(Result):
    """Result of one solver: a factor, how the run ended, and what it cost."""

    U: Any  # [..., d, r]
    status: Status | list  # LOSS_REACHED, GRADIENT_REACHED, STALLED, INTERRUPTED or DIVERGED
    residual: Any  # [...]  ||A(UU') - y|| / ||y||
    steps: Any  # [...]
    passes: Any  # [...]  products of X or X' with r columns
    history: Any  # [T, ...]  relative residual, one record per step


def checked_problem(X: Array, y: Array, U0: Array) -> tuple[Quadratic, Tensor]:
    """Check the arguments of a solver; return the problem and its first factors."""
    inputs, responses, u = tensors(X=X, y=y, U0=U0)
    problem = checked_data(inputs, responses)
    require_factor("U0", u)
    require_shape("U0", u, (problem.d, u.shape[-1]), "(..., d, r)")
    batch = require_batch(X=inputs.shape[:-2], y=responses.shape[:-1], U0=u.shape[:-2])
    return problem, u.expand(*batch, *u.shape[-2:])


def checked_data(X: Tensor, y: Tensor) -> Quadratic:
    """Check the shapes of `X[..., n, d]` and `y[..., n]`; return the problem."""
    if X.ndim < 2 or 0 in X.shape[-2:]:
        got = f"shape {tuple(X.shape)}"
        raise ShapeError("X", expected="shape (..., n, d) with n, d >= 1", got=got)
    require_shape("y", y, (X.shape[-2],), "(..., n), one response per row of X")
    batch = require_batch(X=X.shape[:-2], y=y.shape[:-1])
    return Quadratic(X, y.expand(*batch, y.shape[-1]))


def fit_factor(
    make_method: Callable[[Quadratic, int], FitMethod[Any]],
    X: Array,
    y: Array,
    U0: Array,
    *,
    tolerance: float,
    patience: int = 3,
    extra_rules: Sequence[Rule[Any]] = (),
    max_steps: int,
    time_limit: float | None,
    progress: Callable[[Progress], None] | None,
) -> SolverResult:
    """Run an iterative solver from U0 to its end, or to Ctrl-C, and return its result.

    `make_method(problem, rank)` builds the solver; `patience` is that of `at_rounding`.
    """
    problem, u = checked_problem(X, y, U0)
    method = make_method(problem, u.shape[-1])
    budget = Budget(max_steps=max_steps, time_limit=time_limit)
    history = History(budget, progress)
    rules = [not_finite(), fitted(tolerance), stationary(), at_rounding(patience), *extra_rules]
    with torch.no_grad():
        state = method.start(u)
        try:
            ended = iterate(method, state, [*rules, budget.rule()], record=history)
        except KeyboardInterrupt:
            ended = history.last if history.last is not None else state
    return solver_result(history, ended, X)


def solver_result(history: History, ended: Any, model: Array) -> SolverResult:
    """Return the result that a last state holds, as arrays of the kind of `model`."""
    codes = torch.where(ended.running, Status.INTERRUPTED.code, ended.outcome)
    residuals = torch.stack(history.residuals) if history.residuals else ended.residual[None]
    return SolverResult(
        U=like(model, ended.U),
        status=from_codes(codes),
        residual=like(model, ended.residual),
        steps=like(model, ended.steps),
        passes=like(model, ended.passes),
        history=like(model, residuals),
    )


def regularized_frame(U: Tensor) -> Frame:
    """Return the frame of U for preconditioning, with tiny singular values raised."""
    W, s, Pt = torch.linalg.svd(U, full_matrices=False)
    return Frame(W, torch.maximum(s, 1e-7 * s[..., :1]).clamp_min(1e-150), Pt.mT)


def inner(V: Tensor, W: Tensor) -> Tensor:
    """Return the Frobenius inner product over the last two dimensions."""
    return (V * W).sum((-2, -1))


def index_state(state: F, index: Any) -> F:
    """Return a state with every field indexed along its leading dimensions."""
    return type(state)(**{f.name: getattr(state, f.name)[index] for f in fields(state)})
