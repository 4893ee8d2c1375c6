"""Shared parts of the solvers: the state of a fit, stopping rules, checks of arguments, results.

Leading dimensions of U in front of those of X are starts: `U[S, ..., d, r]` for `X[..., n, d]`. One
pass over X is one product of X or X' with r columns, which takes 2 n d r operations.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from posquad.core.arrays import (
    Array,
    like,
    require_batch,
    require_factor,
    require_shape,
    tensors,
)
from posquad.core.errors import ShapeError
from posquad.core.ranges import tiny
from posquad.core.results import Result
from posquad.core.status import Status, from_codes
from posquad.dynamics.loop import Method, Rule, State, clock
from posquad.geometry.frames import Frame
from posquad.geometry.horizontal import horizontal_part
from posquad.geometry.population import population_solve
from posquad.problems.measurements import RankOne
from posquad.recovery.budget import History
from posquad.recovery.problem import Problem

# Cosine of residual and Jacobian up to which a fit is stationary. A definition: the loss is then
# within about the square, 1e-20, times the condition number, of its minimum.
GRADIENT = 1e-10
# Factor on its residual that a fit must reach to be still converging. A definition: a half.
HALVED = 0.5
# Steps in which a residual at the level of rounding must be halved. A choice: a step may be
# rejected or fail to halve the residual once or twice.
ROUNDING_PATIENCE = 3
# Multiple of eps up to which a residual is tiny. A choice: 1e-13 in double precision, a thousandth
# of the default tolerance, and above the rounding of most residuals.
TINY_UNITS = 500
# Power of eps up to which a residual is small. Derived: 4e-10 in double and 7e-5 in single
# precision are just above the default tolerances of `recover`, 1e-10 and 1e-5.
SMALL_POWER = 0.6
# Factor on the patience with a residual that is small but not tiny. A choice: it may only be
# converging slowly.
SMALL_PATIENCE = 5
# Steps of the first-order method before Gauss-Newton takes over. Measured by
# `benchmarks/recovery_noisy.py`.
FIRST_ORDER_STEPS = 600
# Most steps of Gauss-Newton, and of a dense refinement. A choice: they converge quadratically.
SECOND_ORDER_STEPS = 60
# Share of the largest singular value to which others are raised in a frame. Derived: the metric
# divides by their squares, whose ratio is then 1e-14, about 50 eps.
_LEAST_SINGULAR = 1e-7


@dataclass(frozen=True)
class FitState(State):
    """The current factors of a batch of fits, with their residuals."""

    U: Tensor  # [..., d, r]
    Z: Tensor  # [..., k, r]  what the operator keeps of U: XU for rows
    e: Tensor  # [..., n]  residual
    residual: Tensor  # [...]  ||e|| / ||y||
    cosine: Tensor  # [...]  ||J'e|| / (||J||_F ||e||), infinite if not computed yet
    passes: Tensor  # [...]  products with X or X' so far

    @classmethod
    def begin(cls, problem: Problem, U0: Tensor, step: float = 1.0, **extra: Tensor) -> Self:
        """Return the state at the first factors U0."""
        Z = problem.operator.project(U0)
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

    def moved(self, problem: Problem, U: Tensor, Z: Tensor, **changes: Any) -> Self:
        """Return the state after one accepted step to U, given `Z = project(U)`."""
        e = problem.residual(Z)
        return self.stepped(
            U=U,
            Z=Z,
            e=e,
            residual=problem.relative(e),
            **changes,
        )


F = TypeVar("F", bound=FitState)


def cosine(problem: Problem, state: FitState, slope: Tensor) -> Tensor:
    """Return `||J'e|| / (||J||_F ||e||)`, zero at a stationary point.

    `slope` is `A*(e) U`, so that `J'e = 2 slope`.
    """
    size = problem.operator.jacobian_size(state.Z).sqrt()
    size = size * torch.linalg.vector_norm(state.e, dim=-1)
    return torch.linalg.matrix_norm(slope) / torch.where(size > 0, size, 1.0)


def cosine_at(problem: Problem, U: Tensor) -> Tensor:
    """Return the same for factors `U[..., d, r]`, `[...]`."""
    state = FitState.begin(problem, U)
    return cosine(problem, state, problem.operator.weighted_adjoint(state.e, state.Z))


def fitted(tolerance: float) -> Rule[Any]:
    """Rule that ends a fit when its relative residual is at most the tolerance."""
    return Status.LOSS_REACHED, lambda state: state.residual <= tolerance


def stationary(tolerance: float = GRADIENT) -> Rule[Any]:
    """Rule that ends a fit when `||J'e|| / (||J||_F ||e||)` is at most the tolerance."""
    return Status.GRADIENT_REACHED, lambda state: state.cosine <= tolerance


def not_finite() -> Rule[Any]:
    """Rule that ends a fit when its residual is infinite or NaN."""
    return Status.DIVERGED, lambda state: ~torch.isfinite(state.residual)


def at_rounding(patience: int = ROUNDING_PATIENCE) -> Rule[Any]:
    """Rule that ends a fit whose residual has reached the level of rounding.

    That is a tiny residual that has not halved for `patience` steps, or a small one that has not
    halved for `SMALL_PATIENCE` times as many, because a small one may only be converging slowly.
    """
    best: list[Any] = [None, None]

    def met(state: FitState) -> Tensor:
        if best[0] is None:
            best[:] = [state.residual, torch.zeros_like(state.steps)]
            return torch.zeros_like(state.running)
        better = state.residual < HALVED * best[0]
        best[0] = torch.where(better, state.residual, best[0])
        best[1] = torch.where(better, 0, best[1] + 1)
        eps = torch.finfo(state.residual.dtype).eps
        tiny = state.residual <= TINY_UNITS * eps
        waited = torch.where(tiny, best[1], best[1] // SMALL_PATIENCE)
        return (state.residual <= eps**SMALL_POWER) & (waited >= patience)

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


class FitMethod(Method[F], Generic[F]):
    """A method that fits a factor, with the state that it starts from."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abstractmethod
    def start(self, U0: Tensor) -> F:
        """Return the state at the first factors `U0[..., d, r]`."""


@dataclass(frozen=True, eq=False, repr=False)
class SolverResult(Result):
    """Result of one solver: a factor, how the run ended, and what it cost."""

    U: Any  # [..., d, r]
    status: Status | list  # LOSS_REACHED, GRADIENT_REACHED, STALLED, INTERRUPTED or DIVERGED
    residual: Any  # [...]  ||A(UU') - y|| / ||y||
    steps: Any  # [...]
    passes: Any  # [...]  products of X or X' with r columns
    history: Any  # [T, ...]  relative residual, one record per step


def checked_problem(X: Array, y: Array, U0: Array) -> tuple[Problem, Tensor]:
    """Check the arguments of a solver; return the problem and its first factors."""
    inputs, responses, u = tensors(X=X, y=y, U0=U0)
    problem = checked_data(inputs, responses)
    require_factor("U0", u)
    require_shape("U0", u, (problem.d, u.shape[-1]), "(..., d, r)")
    batch = require_batch(X=inputs.shape[:-2], y=responses.shape[:-1], U0=u.shape[:-2])
    return problem, u.expand(*batch, *u.shape[-2:])


def checked_data(X: Tensor, y: Tensor) -> Problem:
    """Check the shapes of `X[..., n, d]` and `y[..., n]`; return the problem."""
    if X.ndim < 2 or 0 in X.shape[-2:]:
        got = f"shape {tuple(X.shape)}"
        raise ShapeError("X", expected="shape (..., n, d) with n, d >= 1", got=got)
    require_shape("y", y, (X.shape[-2],), "(..., n), one response per row of X")
    batch = require_batch(X=X.shape[:-2], y=y.shape[:-1])
    return Problem(RankOne(X), y.expand(*batch, y.shape[-1]))


def fit_factor(
    method: FitMethod[Any],
    U0: Tensor,
    history: History,
    tolerance: float,
    *,
    model: Array,
    patience: int = ROUNDING_PATIENCE,
    extra_rules: Sequence[Rule[Any]] = (),
) -> SolverResult:
    """Run a method from U0 to its end, or to Ctrl-C; return its result as arrays like `model`.

    `patience` is that of `at_rounding`.
    """
    rules = [not_finite(), fitted(tolerance), stationary(), at_rounding(patience), *extra_rules]
    return run_to_result(lambda: history.run(method, method.start(U0), rules), history, model)


def run_to_result(run: Callable[[], Any], history: History, model: Array) -> SolverResult:
    """Run to the end, or to Ctrl-C; return what the last state holds, as arrays like `model`."""
    with torch.no_grad():
        try:
            ended = run()
        except KeyboardInterrupt:
            if history.last is None:
                raise
            ended = history.last
    codes = torch.where(ended.running, Status.INTERRUPTED.code, ended.outcome)
    residuals = [torch.as_tensor(r) for r in history.residuals] or [ended.residual]
    return SolverResult(
        U=like(model, ended.U),
        status=from_codes(codes),
        residual=like(model, ended.residual),
        steps=like(model, ended.steps),
        passes=like(model, ended.passes),
        history=like(model, torch.stack(residuals)),
    )


def regularized_frame(U: Tensor) -> Frame:
    """Return the frame of U for preconditioning, with tiny singular values raised."""
    W, s, Pt = torch.linalg.svd(U, full_matrices=False)
    return Frame(W, torch.maximum(s, _LEAST_SINGULAR * s[..., :1]).clamp_min(tiny(s) ** 0.5), Pt.mT)


def population_metric(U: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the map `g -> P^-1 g` of the population curvature P at U, of horizontal parts."""
    basis = regularized_frame(U)
    return lambda g: population_solve(basis, horizontal_part(U, g, basis))


def inner(V: Tensor, W: Tensor) -> Tensor:
    """Return the Frobenius inner product over the last two dimensions."""
    return (V * W).sum((-2, -1))


def index_state(state: F, index: Any) -> F:
    """Return a state with every field indexed along its leading dimensions."""
    return type(state)(**{f.name: getattr(state, f.name)[index] for f in fields(state)})
