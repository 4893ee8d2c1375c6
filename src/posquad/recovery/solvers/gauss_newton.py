"""Matrix-free Gauss-Newton, with conjugate gradients in the metric of the Gaussian population.

A step solves `J'J D = -J'e` over horizontal directions, where `J'J D = 2 A*(A(UD' + DU')) U`, by
conjugate gradients. The preconditioner is the closed-form inverse of the population curvature, and
the accuracy follows the residual. An exact line search makes every step a descent step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from posquad.core.arrays import A
from posquad.core.progress import Progress
from posquad.core.status import Status
from posquad.dynamics.loop import Method, Rule, State, clock, iterate, steps_exhausted
from posquad.geometry.frames import Frame
from posquad.geometry.horizontal import horizontal_part
from posquad.geometry.population import population_solve
from posquad.problems.measurements import Measurements
from posquad.recovery.budget import Budget, History
from posquad.recovery.solvers.fit import (
    FitMethod,
    FitState,
    SolverResult,
    checked_problem,
    cosine,
    fit_factor,
    inner,
    regularized_frame,
)
from posquad.recovery.solvers.quartic import exact_step

__all__ = ["gauss_newton"]

# Maximum number of conjugate gradient steps for one Gauss-Newton step. Measured:
# `benchmarks/tuning.py --methods`.
_INNER = 60
# Bounds on the inner accuracy, which otherwise equals the residual. The rule gives quadratic
# convergence: Dembo, Eisenstat and Steihaug, SIAM J. Numer. Anal. 19, 1982. A choice: three digits
# per step are enough near the end, and one is the least that a step is worth.
_LEAST_ACCURACY = 1e-3
_MOST_ACCURACY = 0.1


def gauss_newton(
    X: A,
    y: A,
    U0: A,
    *,
    tolerance: float = 0.0,
    max_steps: int = 200,
    time_limit: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> SolverResult:
    """Minimise `||A(UU') - y||^2` from a full-rank `U0[..., d, r]` by inexact Gauss-Newton steps.

    A step costs 3 passes over X for the gradient and the line search, and 2 for each inner step of
    conjugate gradients (about 5 to 30 at n = 4p, whatever the conditioning of the solution). Memory
    is O(nr + dr). The arguments are those of `population_lbfgs`, and as there, the rows of X should
    have a covariance near the identity. Use it near the information limit if n is too large for the
    dense systems of `levenberg_marquardt`.

    >>> X = np.random.default_rng(0).standard_normal((40, 3))
    >>> y = (X @ [1.0, 2.0, 0.0]) ** 2
    >>> found = gauss_newton(X, y, np.ones((3, 1)))
    >>> np.allclose(found.U @ found.U.T, np.outer([1, 2, 0], [1, 2, 0]), atol=1e-12)
    True
    """
    problem, u = checked_problem(X, y, U0)
    history = History(Budget(max_steps=max_steps, time_limit=time_limit), progress)
    return fit_factor(GaussNewton(problem), u, history, tolerance, model=X)


class GaussNewton(FitMethod[FitState]):
    """Inexact Gauss-Newton steps with an exact line search."""

    def start(self, U0: Tensor) -> FitState:
        return FitState.begin(self.problem, U0)

    def advance(self, state: FitState) -> FitState:
        problem = self.problem
        basis = regularized_frame(state.U)
        slope = problem.operator.weighted_adjoint(state.e, state.Z)
        system = NormalEquations(problem.operator, state.Z, basis)
        accuracy = state.residual.clamp(_LEAST_ACCURACY, _MOST_ACCURACY)
        D, products = system.solve(horizontal_part(state.U, -slope, basis), accuracy)
        W = problem.operator.project(D)
        t = exact_step(problem.operator, state.e, state.Z, W)[..., None, None]
        U = state.U + t * D
        # Z is not updated: steps are few, and the last ones set the accuracy.
        Z = problem.operator.project(U)
        passes = state.passes + 3 + 2 * products
        measured = cosine(problem, state, slope)
        return state.moved(problem, U, Z, passes=passes, cosine=measured)


@dataclass(frozen=True)
class CGState(State):
    """Conjugate gradient iterations on a batch of systems."""

    D: Tensor  # [..., d, r]  solution so far
    R: Tensor  # [..., d, r]  residual
    direction: Tensor  # [..., d, r]
    product: Tensor  # [...]  <R, P^{-1} R>
    least: Tensor  # [...]  value of `product` at which to stop


class NormalEquations(Method[CGState]):
    """The system `J'J D / 2 = right` over horizontal D, for conjugate gradients."""

    def __init__(self, operator: Measurements, Z: Tensor, basis: Frame) -> None:
        self.product, self.basis = operator.gauss_newton_product(Z), basis

    def solve(self, right: Tensor, accuracy: Tensor) -> tuple[Tensor, Tensor]:
        """Return the solution, to a relative accuracy in the inverse metric, and the step count."""
        V = population_solve(self.basis, right)
        product = inner(right, V)
        state = CGState(
            **clock(product),
            D=torch.zeros_like(right),
            R=right,
            direction=V,
            product=product,
            least=accuracy.square() * product,
        )
        rules: list[Rule[CGState]] = [
            (Status.CONVERGED, lambda s: s.product <= s.least),
            steps_exhausted(_INNER),
        ]
        state = iterate(self, state, rules)
        return state.D, state.steps

    def advance(self, state: CGState) -> CGState:
        V = state.direction
        curved = self.product(V)  # horizontal: U' times it is symmetric
        bend = inner(V, curved)
        good = bend > 0  # otherwise the data do not determine this direction: stop here
        t = torch.where(good, state.product / torch.where(good, bend, 1.0), 0.0)[..., None, None]
        R = state.R - t * curved
        S = population_solve(self.basis, R)
        product = torch.where(good, inner(R, S), 0.0)
        ratio = product / torch.where(state.product > 0, state.product, 1.0)
        direction = S + ratio[..., None, None] * V
        return state.stepped(D=state.D + t * V, R=R, direction=direction, product=product)
