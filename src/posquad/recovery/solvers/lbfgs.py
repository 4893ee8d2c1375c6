"""L-BFGS in the metric of the Gaussian population, with the exact line search of a quartic.

The population curvature `P(V) = 4 [V S + U V'U + tr(U'V) U]`, S = U'U, has a closed-form inverse
(`lem:gaussian-population-operator`). Relative to it the local condition number does not depend on
that of the solution, because the ratio of empirical to population curvature depends only on the
range of U. It is the initial matrix of the two-loop recursion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posquad.core.arrays import A
from posquad.core.progress import Progress
from posquad.dynamics.loop import Method, merge
from posquad.geometry.frames import Frame
from posquad.geometry.horizontal import horizontal_part
from posquad.geometry.population import population_solve
from posquad.recovery.solvers.fit import (
    FitState,
    Quadratic,
    Solution,
    Watch,
    at_rounding,
    clear_frame,
    cosine,
    enter,
    fitted,
    inner,
    not_finite,
    solve,
    stationary,
)
from posquad.recovery.solvers.quartic import exact_step

__all__ = ["population_lbfgs"]

_MEMORY = 4  # the metric moves with U: older pairs belong to another place
_REFRESH = 20  # steps between two fresh products XU: the updated one gathers rounding


def population_lbfgs(
    X: A,
    y: A,
    U0: A,
    *,
    tolerance: float = 0.0,
    max_steps: int = 1000,
    time_limit: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """Minimise `||A(UU') - y||^2` from a full-rank `U0[..., d, r]` by preconditioned L-BFGS.

    Cost a step: 2 passes over X (the direction forward, the gradient back; the line search reads
    neither) and O(d r^2). Memory O(nr + dr). Rows of X should have a covariance near the
    identity: the population metric is that of Gaussian inputs (`recover` whitens).

    Args:
        X, y, U0: `[..., n, d]`, `[..., n]` and `[..., d, r]`; further leading dimensions of U0 are
            starts.
        tolerance: end when `||A(UU') - y|| <= tolerance ||y||`; in any case when rounding allows no
            more, or at a stationary point.
        max_steps, time_limit, progress: budget, and a hook called with a `Progress` every step.

    >>> X = np.random.default_rng(0).standard_normal((40, 3))
    >>> y = (X @ [1.0, 2.0, 0.0]) ** 2
    >>> found = population_lbfgs(X, y, np.ones((3, 1)))
    >>> np.allclose(found.U @ found.U.T, np.outer([1, 2, 0], [1, 2, 0]), atol=1e-12)
    True
    """
    problem, u = enter(X, y, U0)
    method = PopulationLBFGS(problem)
    watch = Watch(max_steps=max_steps, time_limit=time_limit, progress=progress)
    rules = [not_finite(), fitted(tolerance), stationary(), at_rounding(patience=8)]
    with torch.no_grad():
        state = method.start(u)
    return solve(method, state, rules, watch, like_array=X)


@dataclass(frozen=True)
class LBFGSState(FitState):
    gradient: Tensor  # [..., d, r]  of ||e||^2 / (2n)
    moves: Tensor  # [..., m, d, r]  last steps, newest first
    turns: Tensor  # [..., m, d, r]  their changes of gradient
    curvature: Tensor  # [..., m]  1 / <move, turn>, zero where there is no pair


class PopulationLBFGS(Method[LBFGSState]):
    """Two-loop recursion around the inverse population curvature, then the exact step."""

    def __init__(self, problem: Quadratic) -> None:
        self.problem = problem

    def start(self, U0: Tensor) -> LBFGSState:
        none = U0.new_zeros(())
        state = LBFGSState.begin(
            self.problem, U0, gradient=none, moves=none, turns=none, curvature=none
        )
        slope = self.problem.pull(state.e, state.Z)
        batch = slope.shape[:-2]
        pairs = slope.new_zeros(*batch, _MEMORY, *slope.shape[-2:])
        return replace(
            state,
            gradient=slope * (2 / self.problem.n),
            passes=state.passes + 1,
            moves=pairs,
            turns=pairs,
            curvature=slope.new_zeros(*batch, _MEMORY),
        )

    def advance(self, state: LBFGSState) -> LBFGSState:
        problem, g = self.problem, state.gradient
        basis = clear_frame(state.U)
        D = -self._inverse(state, basis, g)
        uphill = inner(D, g) >= 0
        if bool(uphill.any()):  # rounding, or memory of another region: forget it
            forgotten = replace(state, curvature=torch.zeros_like(state.curvature))
            state = merge(uphill, forgotten, state)
            D = torch.where(uphill[..., None, None], -self._inverse(state, basis, g), D)
        W = problem.forward(D)
        t = exact_step(state.e, state.Z, W)[..., None, None]
        U, Z = state.U + t * D, state.Z + t * W
        fresh = bool((state.attempts % _REFRESH == _REFRESH - 1).any())
        if fresh:
            Z = problem.forward(U)
        new = state.moved(problem, U, Z, passes=state.passes + 2 + fresh)
        slope = problem.pull(new.e, new.Z)
        return replace(
            new,
            gradient=slope * (2 / problem.n),
            cosine=cosine(problem, new, slope),
            **_remember(state, t * D, slope * (2 / problem.n) - g),
        )

    def _inverse(self, state: LBFGSState, basis: Frame, g: Tensor) -> Tensor:
        """Approximate inverse Hessian times g."""
        shares = []
        for k in range(_MEMORY):
            share = state.curvature[..., k] * inner(state.moves[..., k, :, :], g)
            g = g - share[..., None, None] * state.turns[..., k, :, :]
            shares.append(share)
        v = population_solve(basis, horizontal_part(state.U, g, basis))
        for k in reversed(range(_MEMORY)):
            share = state.curvature[..., k] * inner(state.turns[..., k, :, :], v)
            v = v + (shares[k] - share)[..., None, None] * state.moves[..., k, :, :]
        return v

    def record_due(self, state: LBFGSState) -> bool:
        return True


def _remember(state: LBFGSState, move: Tensor, turn: Tensor) -> dict[str, Tensor]:
    """The memory with one more pair, if its curvature is positive beyond rounding."""
    product = inner(move, turn)
    eps = torch.finfo(move.dtype).eps
    sizes = torch.linalg.matrix_norm(move) * torch.linalg.matrix_norm(turn)
    good = product > eps * sizes
    inverse = torch.where(good, 1 / torch.where(good, product, 1.0), 0.0)
    return {
        "moves": torch.cat([move[..., None, :, :], state.moves[..., :-1, :, :]], dim=-3),
        "turns": torch.cat([turn[..., None, :, :], state.turns[..., :-1, :, :]], dim=-3),
        "curvature": torch.cat([inverse[..., None], state.curvature[..., :-1]], dim=-1),
    }
