"""First-order solvers: the paper's gradient descent, with a step size from the data; ScaledGD."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from posquad.core.arrays import A, positive_number
from posquad.core.progress import Progress
from posquad.curvature import effective_spectrum
from posquad.dynamics import gradient_descent
from posquad.dynamics.trajectory import Trajectory
from posquad.problems.measurements import RankOne
from posquad.problems.objectives import LeastSquares
from posquad.recovery.budget import Budget, History
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.fit import (
    FitMethod,
    FitState,
    SolverResult,
    checked_problem,
    cosine,
    fit_factor,
    regularized_frame,
)

__all__ = ["data_driven_descent", "data_driven_step", "scaled_descent"]

# Relative accuracy of the largest curvature, whose inverse is the step. A choice: the step is half
# of the largest stable one, so that 1% does not matter.
_STEP_ACCURACY = 1e-2
# Steps in which a residual at the level of rounding must be halved by ScaledGD. A choice: at the
# rate 0.99, which is slow for ScaledGD, 70 steps halve it.
_PATIENCE = 100


def data_driven_step(X: A, y: A, U0: A) -> A:
    """Return the step size `1 / lambda_max^eff(U0)`, `[...]`: half of the largest stable one at U0.

    The paper's step size needs an oracle (Remark 3.8, `rem:oracle-step-size`). This one is measured
    at U0, by about 20 Hessian products of one pass over X each. The curvature grows with U, so U0
    must not be much smaller than the solution; a spectral initializer has the right size.

    >>> X = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> y = np.array([1.0, 0.0, 1.0])
    >>> float(data_driven_step(X, y, np.array([[1.0], [0.0]]))).__round__(6)
    0.286475
    """
    objective = LeastSquares(RankOne(X), y)
    largest = effective_spectrum(objective, U0, which="largest", tolerance=_STEP_ACCURACY).values[
        ..., 0
    ]
    return 1 / largest


def data_driven_descent(
    X: A,
    y: A,
    U0: A,
    *,
    step: float | A | None = None,
    max_steps: int = 20_000,
    tolerance: float = 1e-12,
    progress: Callable[[Progress], None] | None = None,
) -> Trajectory:
    """Run the paper's gradient descent (`eq:factor-gradient-descent`) with `data_driven_step`.

    A step reads X once, for two products. The descent ends when `||A(UU') - y|| <= tolerance ||y||`
    (in a batch, ||y|| is the largest one). It converges at the rate of the effective spectrum,
    `1 - lambda_min / lambda_max`.

    >>> X = np.random.default_rng(0).standard_normal((40, 3))
    >>> path = data_driven_descent(X, (X @ [1.0, 2.0, 0.0]) ** 2, np.ones((3, 1)))
    >>> path.status.name
    'LOSS_REACHED'
    """
    objective = LeastSquares(RankOne(X), y)
    eta = data_driven_step(X, y, U0) if step is None else step
    size = float(objective.y.square().sum(-1).max()) / (2 * objective.measurements.n)
    least = positive_number("tolerance", tolerance, zero=True) ** 2 * size
    return gradient_descent(
        objective,
        U0,
        step=eta,
        max_steps=max_steps,
        record_every=10,
        loss_tolerance=least,
        progress=progress,
    )


def scaled_descent(
    X: A,
    y: A,
    U0: A,
    *,
    step: float = 0.15,
    tolerance: float = 0.0,
    max_steps: int = 5000,
    time_limit: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> SolverResult:
    """Run ScaledGD, `U <- U - step grad L(U) (U'U)^{-1}`, whose rate is independent of kappa(Q).

    A step costs 2 passes over X and O(d r^2). For Gaussian inputs the scaled curvature of the
    population lies between 4 and 8 + 4r, so `step` is divided by (1 + r/2), and at most 0.25 is
    stable. The default is three fifths of that, because samples have more curvature.

    >>> X = np.random.default_rng(0).standard_normal((40, 3))
    >>> y = (X @ [1.0, 2.0, 0.0]) ** 2
    >>> found = scaled_descent(X, y, np.ones((3, 1)))
    >>> np.allclose(found.U @ found.U.T, np.outer([1, 2, 0], [1, 2, 0]), atol=1e-10)
    True
    """
    step = positive_number("step", step)
    problem, u = checked_problem(X, y, U0)
    history = History(Budget(max_steps=max_steps, time_limit=time_limit), progress)
    method = ScaledDescent(problem, step / (1 + u.shape[-1] / 2))
    return fit_factor(method, u, history, tolerance, model=X, patience=_PATIENCE)


class ScaledDescent(FitMethod[FitState]):
    """Preconditioned gradient steps of fixed length."""

    def __init__(self, problem: Problem, step: float) -> None:
        super().__init__(problem)
        self.step = step

    def start(self, U0: Tensor) -> FitState:
        return FitState.begin(self.problem, U0)

    def advance(self, state: FitState) -> FitState:
        problem = self.problem
        slope = problem.operator.weighted_adjoint(state.e, state.Z)
        basis = regularized_frame(state.U)
        scaled = ((slope @ basis.P) / basis.s.square()[..., None, :]) @ basis.P.mT
        U = state.U - (2 * self.step / problem.n) * scaled
        measured: Tensor = cosine(problem, state, slope)
        new = state.moved(problem, U, problem.operator.project(U), passes=state.passes + 2)
        return replace(new, cosine=measured)
