"""Levenberg-Marquardt with dense linear algebra, for batches of problems and starts.

The step is `argmin_D ||e + J D||^2 + damping ||D||^2` with `(JD)_i = 2 <A_i U, D>`. The dual form
needs only the n x n matrix JJ', which is `4 (X X') o (Z Z')` for rows, Z = XU: solve
`(J J' + damping I) a = -e`, then `D = 2 A*(a) U`. The step is horizontal, because `U'D` is
symmetric. With many more samples than unknowns the primal dr x dr matrix J'J is smaller; with many
more samples than d(d+1)/2 it is computed from the fourth moments, which are summed only once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from posquad.core.arrays import A
from posquad.core.errors import DomainError
from posquad.core.progress import Progress
from posquad.core.symmetric import symmetric_jacobian
from posquad.dynamics.loop import Rule
from posquad.recovery.budget import Budget, History
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.fit import (
    FitMethod,
    FitState,
    SolverResult,
    checked_problem,
    cosine,
    fit_factor,
    fitted,
    stagnated,
)

__all__ = ["levenberg_marquardt"]

# The damping follows H. B. Nielsen (Damping parameter in Marquardt's method, IMM-REP-1999-05,
# Technical University of Denmark, 1999): a step that is accepted multiplies it by
# `1 - (2 gain - 1)^3`, within bounds, and those that are rejected by 2, 4, 8, ...

# First damping, relative to the mean curvature times the relative residual. A choice: half and
# double do as well.
FIRST_DAMPING = 1e-2
# Least damping, relative to the mean curvature. Derived: J'J is singular along the gauge, and its
# eigenvalues are rounded by about m eps of the largest, 2e-13 at m = 1000 unknowns; the largest may
# be 50 times the mean.
LEAST_DAMPING = 1e-11
# Factor on the damping at the first rejected step, and on that factor at each further one. Cited:
# Nielsen.
GROWTH = 2.0
# Least factor on the damping at an accepted step. Nielsen takes 1/3. A choice: half and double do
# as well.
LEAST_FACTOR = 0.1
# Largest factor on the damping at an accepted step. Derived: the value of `1 - (2 gain - 1)^3` for
# no gain.
MOST_FACTOR = 2.0
# Multiple of eps up to which rounding hides a relative gain of ||e||^2. Derived: pairwise summation
# of n terms is rounded by log2(n) eps / 2 (Higham, Accuracy and Stability of Numerical Algorithms,
# 2002, section 4.2), which is 8 eps at n = 65,536.
HIDDEN_GAIN = 8
# The same over the relative residual: errors are differences of predictions and responses, each
# rounded by about eps. Derived: ||e||^2 changes by 2 eps ||y|| ||e||, with a margin of two.
HIDDEN_ERRORS = 4
# Largest gain that rounding is taken to hide. A choice: below it steps cannot lead far away.
MOST_HIDDEN = 1e-4
# Square root of the steps over which the cost of fourth moments is spread. A choice: about ten
# steps are usual.
_AMORTIZED = 3


def levenberg_marquardt(
    X: A,
    y: A,
    U0: A,
    *,
    form: Literal["auto", "dual", "primal"] = "auto",
    tolerance: float = 0.0,
    patience: int = 20,
    rate: float = 0.999,
    max_steps: int = 300,
    time_limit: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> SolverResult:
    """Minimise `||A(UU') - y||^2` from `U0[..., d, r]` by damped, dense Gauss-Newton steps.

    A step costs 3 passes over X and O(n^2 r + n^3) in the dual form, or O(n d^2 r^2 + d^3 r^3) in
    the primal form, with at most about d^2 in place of n. Convergence is quadratic if the data are
    interpolated.

    Args:
        X, y, U0: `[..., n, d]`, `[..., n]` and `[..., d, r]`; further leading dimensions of U0 are
            starts.
        form: the linear system to solve; "auto" takes the cheaper one. With noise, the rounding of
            the residual limits the accuracy of the dual form, but not of the primal form.
        tolerance: end when `||A(UU') - y|| <= tolerance ||y||`. The solver also ends at a
            stationary point and when the residual is down to rounding.
        patience, rate: end with STALLED when `patience` steps leave more than the share `rate` of
            the residual. By default that is a thousandth in 20 steps, which would take thousands of
            steps for the next digit.
        max_steps, time_limit: maximum number of steps and of seconds.
        progress: called with a `Progress` at every step.

    >>> X = np.random.default_rng(0).standard_normal((12, 3))
    >>> y = (X @ [1.0, 2.0, 0.0]) ** 2
    >>> found = levenberg_marquardt(X, y, np.ones((3, 1)))
    >>> np.allclose(found.U @ found.U.T, np.outer([1, 2, 0], [1, 2, 0]), atol=1e-12)
    True
    """
    if form not in ("auto", "dual", "primal"):
        raise DomainError("form", expected="'auto', 'dual' or 'primal'", got=repr(form))
    problem, u = checked_problem(X, y, U0)
    history = History(Budget(max_steps=max_steps, time_limit=time_limit), progress)
    method, rules = Levenberg(problem, u.shape[-1], form), [stagnated(patience, rate)]
    return fit_factor(method, u, history, tolerance, model=X, extra_rules=rules)


@dataclass(frozen=True)
class LevenbergState(FitState):
    """A fit with its damping."""

    damping: Tensor  # [...]
    growth: Tensor  # [...]  factor by which the next rejected step raises the damping


class Levenberg(FitMethod[LevenbergState]):
    """Damped Gauss-Newton steps; the damping follows the rule of Nielsen (1999)."""

    def __init__(self, problem: Problem, r: int, form: str = "auto") -> None:
        super().__init__(problem)
        self.rank = r
        n, m = problem.n, problem.d * r
        if form == "auto":
            # The dual form takes n^3/3 + 2 n^2 r operations, the primal 2 n m^2 + m^3/3.
            form = "dual" if n**2 * (n / 3 + 2 * r) < m**2 * (2 * n + m / 3) else "primal"
        self.dual = form == "dual"
        D = problem.d * (problem.d + 1) // 2
        # The fourth moments take n D^2 operations once, then D (D + m) m instead of n m^2 a step.
        self.from_moments = D * (D + m) < n * m and _AMORTIZED * m > D

    def start(self, U0: Tensor) -> LevenbergState:
        none = U0.new_zeros(())
        state = LevenbergState.begin(self.problem, U0, damping=none, growth=none)
        mean = self._mean_curvature(state.Z)
        damping = FIRST_DAMPING * mean * state.residual.clamp_max(1.0)
        return replace(state, damping=damping, growth=torch.full_like(damping, GROWTH))

    def _mean_curvature(self, Z: Tensor) -> Tensor:
        size = self.problem.operator.jacobian_size(Z)
        return 4 * size / min(self.problem.n, self.problem.d * self.rank)

    def advance(self, state: LevenbergState) -> LevenbergState:
        problem, Z, e = self.problem, state.Z, state.e
        least = LEAST_DAMPING * self._mean_curvature(Z)
        damping = torch.maximum(state.damping, least)
        D, slope = self._step(state, damping)
        moved = problem.operator.project(D)
        linear = e + 2 * problem.operator.paired(Z, moved)
        new = state.moved(problem, state.U + D, Z + moved)
        predicted = e.square().sum(-1) - linear.square().sum(-1)
        actual = e.square().sum(-1) - new.e.square().sum(-1)
        gain = (actual / torch.where(predicted > 0, predicted, 1.0)).clamp(0.0, 1.0)
        # Near the best fit of noisy data, rounding hides the gain of a step: accept it anyway.
        eps = torch.finfo(e.dtype).eps
        errors = HIDDEN_ERRORS * eps / state.residual.clamp_min(eps)
        rounding = errors.clamp(HIDDEN_GAIN * eps, MOST_HIDDEN)
        hidden = predicted <= rounding * e.square().sum(-1)
        better = new.residual - state.residual < torch.where(hidden, rounding * state.residual, 0)
        shrink = (1 - (2 * gain - 1) ** 3).clamp(LEAST_FACTOR, MOST_FACTOR)
        mask = better[..., None, None]
        return replace(
            new,
            U=torch.where(mask, new.U, state.U),
            Z=torch.where(mask, new.Z, Z),
            e=torch.where(mask[..., 0], new.e, e),
            residual=torch.where(better, new.residual, state.residual),
            cosine=cosine(problem, state, slope),
            steps=state.steps + better,
            passes=state.passes + 3,
            damping=torch.where(better, damping * shrink, damping * state.growth),
            growth=torch.where(better, GROWTH, GROWTH * state.growth),
        )

    def _step(self, state: LevenbergState, damping: Tensor) -> tuple[Tensor, Tensor]:
        """Return the damped step, and `J'e / 2`, both `[..., d, r]`."""
        operator, Z, e = self.problem.operator, state.Z, state.e
        if self.dual:
            K = operator.dual_system(Z)
            K.diagonal(dim1=-2, dim2=-1).add_(damping[..., None])
            D = -2 * operator.weighted_adjoint(_solve_positive(K, e), Z)
            return D, operator.weighted_adjoint(e, Z)
        if self.from_moments:
            B = symmetric_jacobian(state.U)
            K = B.mT @ (operator.fourth_moments @ B)
            right = 2 * operator.weighted_adjoint(e, Z).flatten(-2)
        else:
            K, right = operator.normal_equations(Z, e)
        K.diagonal(dim1=-2, dim2=-1).add_(damping[..., None])
        D, slope = (v.unflatten(-1, state.U.shape[-2:]) for v in (_solve_positive(K, right), right))
        return -D, slope / 2


def _solve_positive(K: Tensor, right: Tensor) -> Tensor:
    """Solve by Cholesky; NaN if it breaks down, so that the step is rejected."""
    L, info = torch.linalg.cholesky_ex(K)
    solution = torch.cholesky_solve(right[..., None], L)[..., 0]
    return torch.where((info == 0)[..., None], solution, torch.nan)


def screening_rules(tolerance: float, patience: int, rate: float) -> list[Rule[LevenbergState]]:
    """Rules for screening many starts: all starts of a problem end when one has fitted it."""

    def settled(state: LevenbergState) -> Tensor:
        return (state.residual <= tolerance).any(0).expand(state.residual.shape)

    status, stalled = stagnated(patience, rate)
    return [fitted(tolerance), (status, lambda s: settled(s) | stalled(s))]
