"""Levenberg-Marquardt with dense linear algebra, over batches of problems and starts.

The step is `argmin_D ||e + J D||^2 + damping ||D||^2` with `(JD)_i = 2 x_i'D U'x_i`. In dual form
it needs only the n x n matrix `J J' = 4 (X X') o (Z Z')`, Z = XU: solve `(J J' + damping I) a =
-e`, then `D = 2 X'(a Z)`. It is the step of least norm and horizontal by itself, because `U'D = 2
Z'diag(a) Z` is symmetric. With many more samples than unknowns the primal dr x dr matrix J'J is
smaller; with many more than d(d+1)/2 it comes from the fourth moments of the inputs, once computed,
and no longer from the samples.
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
from posquad.dynamics.loop import Method, Rule
from posquad.recovery.solvers.fit import (
    FitState,
    Quadratic,
    Solution,
    Watch,
    at_rounding,
    cosine,
    enter,
    fitted,
    not_finite,
    solve,
    stagnated,
    stationary,
)

__all__ = ["levenberg_marquardt"]

_FIRST = 1e-2  # first damping, relative to the mean curvature and the residual
_CHUNK = 2**22  # entries of a part of the Jacobian
_FLOOR = 1e-11  # least damping, relative to the mean curvature: the gauge stays regular


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
) -> Solution:
    """Minimise `||A(UU') - y||^2` from `U0[..., d, r]` by damped Gauss-Newton steps, dense.

    Cost a step: 3 passes over X, and O(n^2 r + n^3) (dual) or O(n d^2 r^2 + d^3 r^3) (primal, with
    at most d^2 in the place of n); "auto" takes the cheaper. Quadratic convergence where the data
    are interpolated. Dimensions of U0 in front of those of X are further starts.

    Args:
        X, y, U0: `[..., n, d]`, `[..., n]` and `[..., d, r]`.
        form: which linear system is solved. In the dual form rounding of a residual that cannot
            vanish (noise) limits the accuracy; the primal has no such limit.
        tolerance: end when `||A(UU') - y|| <= tolerance ||y||`; in any case when rounding allows no
            more, or at a stationary point.
        patience, rate: give up (STALLED) when so many steps leave more than this share of the
            residual.
        max_steps, time_limit, progress: budget, and a hook called with a `Progress` every step.

    >>> X = np.random.default_rng(0).standard_normal((12, 3))
    >>> y = (X @ [1.0, 2.0, 0.0]) ** 2
    >>> found = levenberg_marquardt(X, y, np.ones((3, 1)))
    >>> np.allclose(found.U @ found.U.T, np.outer([1, 2, 0], [1, 2, 0]), atol=1e-12)
    True
    """
    if form not in ("auto", "dual", "primal"):
        raise DomainError("form", expected="'auto', 'dual' or 'primal'", got=repr(form))
    problem, u = enter(X, y, U0)
    method = Levenberg(problem, u.shape[-1], form)
    watch = Watch(max_steps=max_steps, time_limit=time_limit, progress=progress)
    rules = [
        not_finite(),
        fitted(tolerance),
        stationary(),
        at_rounding(),
        stagnated(patience, rate),
    ]
    with torch.no_grad():
        state = method.start(u)
    return solve(method, state, rules, watch, like_array=X)


@dataclass(frozen=True)
class LevenbergState(FitState):
    damping: Tensor  # [...]
    growth: Tensor  # [...]  factor of the damping at the next rejection


class Levenberg(Method[LevenbergState]):
    """Damped Gauss-Newton steps with Nielsen's control of the damping."""

    def __init__(self, problem: Quadratic, r: int, form: str = "auto") -> None:
        self.problem = problem
        n, m = problem.n, problem.d * r
        if form == "auto":
            # n^3/3 + 2 n^2 r against 2 n m^2 + m^3/3 operations
            form = "dual" if n**2 * (n / 3 + 2 * r) < m**2 * (2 * n + m / 3) else "primal"
        self.dual = form == "dual"
        self.gram = 4 * problem.X @ problem.X.mT if self.dual else None
        D = problem.d * (problem.d + 1) // 2
        self.from_moments = D * (D + m) < n * m  # D^2 m + D m^2 against n m^2 operations

    def start(self, U0: Tensor) -> LevenbergState:
        none = U0.new_zeros(())
        state = LevenbergState.begin(self.problem, U0, damping=none, growth=none)
        mean = self._mean_curvature(state.Z)
        damping = _FIRST * mean * state.residual.clamp_max(1.0)
        return replace(state, damping=damping, growth=torch.full_like(damping, 2.0))

    def _mean_curvature(self, Z: Tensor) -> Tensor:
        rows = self.problem.lengths * Z.square().sum(-1)  # [..., n]
        return 4 * rows.sum(-1) / min(self.problem.n, self.problem.d * Z.shape[-1])

    def advance(self, state: LevenbergState) -> LevenbergState:
        problem, Z, e = self.problem, state.Z, state.e
        least = _FLOOR * self._mean_curvature(Z)
        damping = torch.maximum(state.damping, least)
        D = self._step(state, damping)
        moved = problem.forward(D)
        linear = e + 2 * (Z * moved).sum(-1)
        new = state.moved(problem, state.U + D, Z + moved)
        predicted = e.square().sum(-1) - linear.square().sum(-1)
        actual = e.square().sum(-1) - new.e.square().sum(-1)
        gain = (actual / torch.where(predicted > 0, predicted, 1.0)).clamp(0.0, 1.0)
        # Where rounding hides the gain of a step, near the best fit of noisy data, trust the step.
        rounding = 8 * torch.finfo(e.dtype).eps
        hidden = predicted <= rounding * e.square().sum(-1)
        better = new.residual - state.residual < torch.where(hidden, rounding * state.residual, 0)
        shrink = (1 - (2 * gain - 1) ** 3).clamp(0.1, 2.0)
        mask = better[..., None, None]
        return replace(
            new,
            U=torch.where(mask, new.U, state.U),
            Z=torch.where(mask, new.Z, Z),
            e=torch.where(mask[..., 0], new.e, e),
            residual=torch.where(better, new.residual, state.residual),
            cosine=cosine(problem, state, problem.pull(e, Z)),
            steps=state.steps + better,
            passes=state.passes + 3,
            damping=torch.where(better, damping * shrink, damping * state.growth),
            growth=torch.where(better, 2.0, 2 * state.growth),
        )

    def _step(self, state: LevenbergState, damping: Tensor) -> Tensor:
        Z, e = state.Z, state.e
        if self.gram is not None:
            K = self.gram * (Z @ Z.mT)
            K.diagonal(dim1=-2, dim2=-1).add_(damping[..., None])
            return -2 * self.problem.pull(_solve_positive(K, e), Z)
        if self.from_moments:
            B = symmetric_jacobian(state.U)
            K, right = B.mT @ (self.problem.moments @ B), 2 * self.problem.pull(e, Z).flatten(-2)
        else:
            K, right = self._normal_equations(Z, e)
        K.diagonal(dim1=-2, dim2=-1).add_(damping[..., None])
        return -_solve_positive(K, right).unflatten(-1, (self.problem.d, Z.shape[-1]))

    def _normal_equations(self, Z: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        """`J'J` and `J'e`, over rows of J that fit in cache together."""
        X = self.problem.X
        entries = self.problem.d * Z.shape[-1] * max(1, e[..., 0].numel())
        size = max(1, _CHUNK // entries)
        K, right = X.new_zeros(()), X.new_zeros(())
        for x, z, part in zip(X.split(size, -2), Z.split(size, -2), e.split(size, -1), strict=True):
            J = 2 * (x[..., :, None] * z[..., None, :]).flatten(-2)  # [..., rows, dr]
            K, right = K + J.mT @ J, right + (J.mT @ part[..., None])[..., 0]
        return K, right

    def record_due(self, state: LevenbergState) -> bool:
        return True


def _solve_positive(K: Tensor, right: Tensor) -> Tensor:
    """Cholesky; where it breaks down the step is NaN, is rejected, and the damping grows."""
    L, info = torch.linalg.cholesky_ex(K)
    solution = torch.cholesky_solve(right[..., None], L)[..., 0]
    return torch.where((info == 0)[..., None], solution, torch.nan)


def screening_rules(tolerance: float, patience: int, rate: float) -> list[Rule[LevenbergState]]:
    """For many starts of few problems: all starts of a problem end when one has fitted it."""

    def settled(state: LevenbergState) -> Tensor:
        return (state.residual <= tolerance).any(0).expand(state.residual.shape)

    status, stalled = stagnated(patience, rate)
    return [fitted(tolerance), (status, lambda s: settled(s) | stalled(s))]
