"""An accelerated projected gradient method for least squares over positive semidefinite matrices.

It needs only passes over the rows and decompositions of d x d matrices, so that it also solves
problems whose linear systems are too large for the interior point method. A step is

    Q+ = P(S - A*(A(S) - y) / L),   S+ = Q+ + b (Q+ - Q),

where P sets negative eigenvalues to zero and L is at least the largest eigenvalue of `A*A` (Beck
and Teboulle, SIAM J. Imaging Sci. 2, 2009). The momentum b starts again at zero when it leads away
from the next point (O'Donoghue and Candes, Found. Comput. Math. 15, 2015), which makes convergence
linear near an optimum. The residual bounds those of all positive semidefinite matrices from below,
once it is made feasible, as on the central path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posquad.core.linalg import positive_factor
from posquad.core.status import Status
from posquad.dynamics.loop import Method, Rule, State, clock
from posquad.problems.measurements import Measurements
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.interior_point import duality_gap, feasible, residual_bound

# Products that estimate the largest eigenvalue of A*A. A choice: half and double do as well.
_POWER_STEPS = 10
# Factor on this estimate, which is a lower bound. A choice: half and double do as well.
_MARGIN = 1.05
# Factor on L where a step shows that it is too small. A choice: half and double do as well.
_GROWTH = 1.5
# Steps between two bounds. Derived: a bound costs half as much as a step, so that all of them take
# 5%.
_EVERY = 10
# Factor on the residual or on the gap that counts as progress. A choice: that of `interior_point`.
_IMPROVED = 0.9
# Share by which the loss may exceed the parabola. A choice: a square of eight digits, because short
# steps are differences that have lost the others.
_PARABOLA = 1e-9
# The same as a share of ||y||^2 = 1. Derived: 20 eps^2, so that steps of the size of eps are valid.
_PARABOLA_ROUNDING = 1e-30


@dataclass(frozen=True)
class ProjectedState(State):
    """The last matrix, the point from which the next step is taken, and the best bound so far."""

    U: Tensor  # [..., k, k]  Q = UU'
    image: Tensor  # [..., n]  A(Q)
    S: Tensor  # [..., k, k]
    point: Tensor  # [..., n]  A(S)
    momentum: Tensor  # [...]
    curvature: Tensor  # [...]  L
    residual: Tensor  # [...]  ||A(Q) - y|| / ||y||
    dual: Tensor  # [..., n]  the vector with the largest bound
    bound: Tensor  # [...]  its bound
    lowest: Tensor  # [...]  the residual at the last progress
    narrowest: Tensor  # [...]  the gap at the last progress
    waited: Tensor  # [...]  steps since then

    @property
    def gap(self) -> Tensor:
        """How much a positive semidefinite matrix may lower ||e||^2 yet, as a share of it."""
        return duality_gap(self.residual, self.bound)


class ProjectedGradient(Method[ProjectedState]):
    """Accelerated steps for problems in the coordinates of `cone`, with `||y|| = 1`."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def start(self, U: Tensor) -> ProjectedState:
        """Return the state at `UU'`, or, where U = 0, at the multiple of I of least residual."""
        problem, y = self.problem, self.problem.y
        k = problem.d
        eye = torch.eye(k, dtype=y.dtype, device=y.device).expand_as(U)
        image = problem.operator.apply_kernel(eye)
        size = image.square().sum(-1)
        scale = (image * y).sum(-1) / torch.where(size > 0, size, 1.0)
        first = scale.clamp_min(0.0).sqrt()[..., None, None] * eye
        U = torch.where(U.any(-1).any(-1)[..., None, None], U, first)
        image = problem.operator.apply_factor_kernel(U)
        residual = problem.relative(image - y)
        zero = torch.zeros_like(residual)
        begun = clock(torch.ones_like(residual))
        return ProjectedState(
            **begun,
            U=U,
            image=image,
            S=U @ U.mT,
            point=image,
            momentum=torch.ones_like(residual),
            curvature=_MARGIN * largest_curvature(problem.operator, eye),
            residual=residual,
            dual=torch.zeros_like(y),
            bound=zero,
            lowest=residual,
            narrowest=torch.ones_like(residual),
            waited=begun["steps"],
        )

    def advance(self, state: ProjectedState) -> ProjectedState:
        problem, L = self.problem, state.curvature
        e = state.point - problem.y
        slope = problem.operator.adjoint_kernel(e)
        Q = state.U @ state.U.mT
        U = positive_factor(*torch.linalg.eigh(state.S - slope / L[..., None, None]))
        new = U @ U.mT
        image = problem.operator.apply_factor_kernel(U)
        # A step is valid if the parabola of curvature L is above the loss at its end.
        moved = (new - state.S).square().sum((-2, -1))
        valid = (image - state.point).square().sum(-1) <= L * moved * (
            1 + _PARABOLA
        ) + _PARABOLA_ROUNDING
        away = ((state.S - new) * (new - Q)).sum((-2, -1)) > 0
        t = torch.where(away, 1.0, state.momentum)
        after = torch.where(away, 1.0, (1 + (1 + 4 * t.square()).sqrt()) / 2)
        b = (t - 1) / after
        mask = valid[..., None]
        residual = torch.where(valid, problem.relative(image - problem.y), state.residual)
        changes: dict[str, Any] = {
            "U": torch.where(mask[..., None], U, state.U),
            "image": torch.where(mask, image, state.image),
            "S": torch.where(mask[..., None], new + b[..., None, None] * (new - Q), Q),
            "point": torch.where(mask, image + b[..., None] * (image - state.image), state.image),
            "momentum": torch.where(valid, after, 1.0),
            "curvature": torch.where(valid, L, _GROWTH * L),
            "residual": residual,
        }
        dual, bound = state.dual, state.bound
        if int(state.attempts.max()) % _EVERY == 0:
            dual, bound = self._better_bound(state, changes["image"] - problem.y)
        return self._with_progress(state, changes, dual, bound)

    def _better_bound(self, state: ProjectedState, e: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vector with the larger bound, of the one so far and of the residual e."""
        z = feasible(self.problem, e)
        bound = residual_bound(self.problem, z)
        better = bound > state.bound
        dual = torch.where(better[..., None], z, state.dual)
        return dual, torch.where(better, bound, state.bound)

    def _with_progress(
        self, state: ProjectedState, changes: dict[str, Any], dual: Tensor, bound: Tensor
    ) -> ProjectedState:
        """Return the state after a step; the residual or the gap may have made progress."""
        residual = changes["residual"]
        gap = duality_gap(residual, bound)
        progress = (residual <= _IMPROVED * state.lowest) | (gap <= _IMPROVED * state.narrowest)
        return state.stepped(
            **changes,
            dual=dual,
            bound=bound,
            lowest=torch.where(progress, residual, state.lowest),
            narrowest=torch.where(progress, gap, state.narrowest),
            waited=torch.where(progress, 0, state.waited + 1),
        )


def largest_curvature(operator: Measurements, S: Tensor) -> Tensor:
    """Estimate the largest eigenvalue of `A*A` by the power method from `S[..., k, k]`, `[...]`.

    The eigenvector is close to the identity if the inputs are isotropic.
    """
    size = torch.linalg.matrix_norm(S)
    for _ in range(_POWER_STEPS):
        S = operator.adjoint_kernel(operator.apply_kernel(S / size[..., None, None]))
        size = torch.linalg.matrix_norm(S)
    return size


def waited(patience: int) -> Rule[Any]:
    """Rule that ends a run after so many steps that improved neither residual nor gap."""
    return Status.STALLED, lambda state: state.waited >= patience
