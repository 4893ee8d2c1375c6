"""L-BFGS in the metric of the Gaussian population, with an exact line search.

The population curvature `P(V) = 4 [V S + U V'U + tr(U'V) U]`, S = U'U, has a closed-form inverse
(Lemma 3.1, `lem:gaussian-population-operator`), which is the initial matrix of the two-loop
recursion. With it the local condition number does not depend on that of the solution, because the
ratio of empirical to population curvature depends only on the range of U. As long as directions of
the solution are weaker than the error, each step also refits U within its range (`refit.py`), so
that the number of steps to find them hardly depends on how weak they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posquad.core.arrays import A
from posquad.core.progress import Progress
from posquad.dynamics.loop import merge
from posquad.recovery.budget import Budget, History
from posquad.recovery.solvers.fit import (
    FitMethod,
    FitState,
    SolverResult,
    checked_problem,
    cosine,
    fit_factor,
    inner,
    population_metric,
)
from posquad.recovery.solvers.quartic import exact_step
from posquad.recovery.solvers.refit import refit_in_range
from posquad.recovery.solvers.secants import Secants

__all__ = ["population_lbfgs"]

# Steps without a halved residual after which a run is at rounding. A choice: the steps of a
# first-order method do not halve the residual every time.
PATIENCE = 8
# Pairs kept: the metric changes with U, so that older pairs are of little use. A choice: half and
# double do as well.
_MEMORY = 2
# Steps between two fresh products XU, because the updated one gathers rounding. A choice: one pass
# in forty, for a rounding of about 20 eps.
_REFRESH = 20


def population_lbfgs(
    X: A,
    y: A,
    U0: A,
    *,
    tolerance: float = 0.0,
    max_steps: int = 1000,
    time_limit: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> SolverResult:
    """Minimise `||A(UU') - y||^2` from a full-rank `U0[..., d, r]` by preconditioned L-BFGS.

    A step costs 2 passes over X, one for the direction and one for the gradient (the line search
    and refits need none), and O(d r^2). From a spectral start at n = 4p, the number of passes grows
    by about 10% if the eigenvalues of the solution are not equal but spaced from 1 to 1e-4. Memory
    is O(nr + dr). The rows of X should have a covariance near the identity, because the metric is
    that of standard Gaussian inputs; `recover` whitens them.

    Args:
        X, y, U0: `[..., n, d]`, `[..., n]` and `[..., d, r]`; further leading dimensions of U0 are
            starts.
        tolerance: end when `||A(UU') - y|| <= tolerance ||y||`. The solver also ends at a
            stationary point and when the residual is down to rounding.
        max_steps, time_limit: maximum number of steps and of seconds.
        progress: called with a `Progress` at every step.

    >>> X = np.random.default_rng(0).standard_normal((40, 3))
    >>> y = (X @ [1.0, 2.0, 0.0]) ** 2
    >>> found = population_lbfgs(X, y, np.ones((3, 1)))
    >>> np.allclose(found.U @ found.U.T, np.outer([1, 2, 0], [1, 2, 0]), atol=1e-12)
    True
    """
    problem, u = checked_problem(X, y, U0)
    history = History(Budget(max_steps=max_steps, time_limit=time_limit), progress)
    return fit_factor(PopulationLBFGS(problem), u, history, tolerance, model=X, patience=PATIENCE)


@dataclass(frozen=True)
class LBFGSState(FitState):
    """A fit with its gradient and the memory of L-BFGS, the fields of `Secants`."""

    gradient: Tensor  # [..., d, r]  of ||e||^2 / (2n)
    moves: Tensor  # [..., m, d, r]
    turns: Tensor  # [..., m, d, r]
    curvature: Tensor  # [..., m]

    @property
    def secants(self) -> Secants:
        """The memory."""
        return Secants(self.moves, self.turns, self.curvature)


class PopulationLBFGS(FitMethod[LBFGSState]):
    """Two-loop recursion around the inverse population curvature, and an exact line search."""

    def start(self, U0: Tensor) -> LBFGSState:
        none = U0.new_zeros(())
        state = LBFGSState.begin(
            self.problem, U0, gradient=none, moves=none, turns=none, curvature=none
        )
        slope = self.problem.operator.weighted_adjoint(state.e, state.Z)
        return replace(
            state,
            gradient=slope * (2 / self.problem.n),
            passes=state.passes + 1,
            **Secants.none(slope, _MEMORY)._asdict(),
        )

    def advance(self, state: LBFGSState) -> LBFGSState:
        problem, g = self.problem, state.gradient
        metric = population_metric(state.U)
        D = -state.secants.solve(g, metric)
        uphill = inner(D, g) >= 0
        if bool(uphill.any()):  # rounding, or pairs from another region: discard the memory
            forgotten = replace(state, curvature=torch.zeros_like(state.curvature))
            state = merge(uphill, forgotten, state)
            D = torch.where(uphill[..., None, None], -state.secants.solve(g, metric), D)
        W = problem.operator.project(D)
        t = exact_step(problem.operator, state.e, state.Z, W)[..., None, None]
        U, Z = state.U + t * D, state.Z + t * W
        fresh = bool((state.attempts % _REFRESH == _REFRESH - 1).any())
        if fresh:
            Z = problem.operator.project(U)
        refitted, Z = refit_in_range(problem, U, Z, state.residual)
        move, U = t * D + (refitted - U), refitted  # the difference is exactly zero without a refit
        new = state.moved(problem, U, Z, passes=state.passes + 2 + fresh)
        slope = problem.operator.weighted_adjoint(new.e, new.Z)
        gradient = slope * (2 / problem.n)
        return replace(
            new,
            gradient=gradient,
            cosine=cosine(problem, new, slope),
            **state.secants.with_pair(move, gradient - g)._asdict(),
        )
