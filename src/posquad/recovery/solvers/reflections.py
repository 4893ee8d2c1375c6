"""Relaxed reflections between two sets of predictions, which leave the minima that trap descents.

With `Z = XU` the responses are `y_i = ||z_i||^2`. So Z is sought in the intersection of two sets:
L, the matrices whose columns lie in the range of X, and S, those whose rows have the lengths
`sqrt(y_i)`. Both projections are cheap: `P_L(Z) = QQ'Z` for an orthonormal basis Q of the range,
and P_S scales each row. The iteration is that of Elser, Rankenburg and Thibault (PNAS 104, 2007,
418-423), with P_S applied to the reflection at L:

    Z <- Z + relaxation (P_S(2 P_L(Z) - Z) - P_L(Z)).

It is at rest only where `P_S = P_L`, at a solution. Near a minimum of the distance of the two sets
it goes on along the gap between them, so it searches on where a descent has ended. Its factor is
the U with `XU = P_L(Z)`. The iteration is chaotic: rounding changes which solutions it visits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posquad.core.ranges import tiny
from posquad.core.status import Status
from posquad.dynamics.loop import Method, Rule, State, clock
from posquad.recovery.budget import History
from posquad.recovery.problem import Problem

# Reflections per step of the loop, after which the gap is looked at. Measured:
# `benchmarks/tuning.py --methods`.
_TOGETHER = 25


@dataclass(frozen=True)
class ReflectionState(State):
    """Predictions, their factors, and the gaps between the two sets there."""

    Z: Tensor  # [S, ..., r, n]
    U: Tensor  # [S, ..., d, r]
    gap: Tensor  # [S, ...]  ||P_S - P_L|| / ||sqrt(y)||
    residual: Tensor  # [S, ...]  of U


class Reflections(Method[ReflectionState]):
    """Relaxed reflections, several per step."""

    def __init__(self, problem: Problem, relaxation: float) -> None:
        self.problem, self.relaxation = problem, relaxation
        n, d, y = problem.n, problem.d, problem.y
        squares = problem.operator.squared_lengths
        self.rows = torch.where(squares > 0, squares, 1.0).rsqrt()  # all rows count alike
        X = problem.operator.project(torch.eye(d, dtype=y.dtype, device=y.device))
        basis, self.triangle = torch.linalg.qr(self.rows[..., None] * X)
        # One problem is a batch of one: products of a batch may be rounded differently.
        self.basis = basis.reshape(-1, n, d)
        self.lengths = (self.rows * y.clamp_min(0).sqrt()).reshape(-1, 1, n)
        self.tiny = tiny(y)

    def start(self, U0: Tensor) -> ReflectionState:
        """Return the state at the factors `U0[S, ..., d, r]`."""
        batch = (len(U0), *self.problem.y.shape[:-1])
        U = U0.expand(*batch, *U0.shape[-2:])
        far = torch.full(batch, torch.inf, dtype=U.dtype, device=U.device)
        Z = self.problem.operator.project(U)
        residual = self.problem.relative(self.problem.residual(Z))
        Z = self.rows[..., None] * Z
        return ReflectionState(**clock(far), Z=Z.mT, U=U, gap=far, residual=residual)

    def advance(self, state: ReflectionState) -> ReflectionState:
        basis, lengths, shape = self.basis, self.lengths, state.Z.shape
        (S, r, n), B = (shape[0], *shape[-2:]), len(basis)
        # One product for all starts of a problem.
        Z = state.Z.reshape(S, B, r, n).movedim(0, 1).reshape(B, S * r, n)
        inside = apart = Z
        for _ in range(_TOGETHER):
            inside = (Z @ basis) @ basis.mT
            turned = (2 * inside - Z).unflatten(-2, (S, r))
            scale = lengths * turned.square().sum(-2).clamp_min(self.tiny).rsqrt()
            apart = (turned * scale[..., None, :]).flatten(-3, -2) - inside
            Z = Z.add(apart, alpha=self.relaxation)
        size = torch.linalg.vector_norm(lengths, dim=-1).clamp_min(self.tiny)  # [B, 1]
        gap = apart.unflatten(-2, (S, r)).square().sum((-2, -1)).sqrt() / size
        c = (inside @ basis).unflatten(-2, (S, r)).movedim(1, 0).reshape(*shape[:-1], -1)
        U = torch.linalg.solve_triangular(self.triangle, c.mT, upper=True)
        finite = torch.isfinite(U).all(-1).all(-1)  # unless the inputs do not span the space
        U = torch.where(finite[..., None, None], U, state.U)
        return state.stepped(
            Z=Z.unflatten(-2, (S, r)).movedim(1, 0).reshape(shape),
            U=U,
            gap=torch.where(finite, gap.mT.reshape(shape[:-2]), torch.inf),
            residual=self.problem.relative_residual(U),
        )


def run_reflections(
    method: Reflections, U0: Tensor, history: History, *, gap: float, steps: int, enough: int
) -> ReflectionState:
    """Iterate from `U0[S, ..., d, r]`, for at most `steps` reflections.

    All starts of a problem end when `enough` of them have so small gaps.
    """

    def closed(state: ReflectionState) -> Tensor:
        return ((state.gap <= gap).sum(0) >= enough).expand(state.gap.shape)

    rules: list[Rule[ReflectionState]] = [(Status.LOSS_REACHED, closed)]
    return history.run(method, method.start(U0), rules, steps=-(-steps // _TOGETHER))
