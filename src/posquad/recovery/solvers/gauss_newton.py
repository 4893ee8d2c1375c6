"""Matrix-free Gauss-Newton, with conjugate gradients in the metric of the Gaussian population.

A step solves `J'J D = -J'e` over horizontal directions, where `J'J D = 2 A*(A(UD' + DU')) U`, by
conjugate gradients. The preconditioner is the closed-form inverse of the population curvature, and
the accuracy follows the residual. An exact line search makes every step a descent step.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from posquad.core.arrays import A
from posquad.core.progress import Progress
from posquad.geometry.horizontal import horizontal_part
from posquad.recovery.budget import Budget, History
from posquad.recovery.solvers.conjugate_gradients import normal_equations
from posquad.recovery.solvers.fit import (
    FitMethod,
    FitState,
    SolverResult,
    checked_problem,
    cosine,
    fit_factor,
    regularized_frame,
)
from posquad.recovery.solvers.quartic import exact_step

__all__ = ["gauss_newton"]

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
        system = normal_equations(problem.operator, state.Z, basis)
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
