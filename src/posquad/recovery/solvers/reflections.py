"""Relaxed reflections between two sets, which leave the minima that trap descents.

For rows the sets are sets of predictions. With `Z = XU` the responses are `y_i = ||z_i||^2`. So Z
is sought in the intersection of two sets: L, the matrices whose columns lie in the range of X, and
S, those whose rows have the lengths `sqrt(y_i)`. Both projections are cheap: `P_L(Z) = QQ'Z` for an
orthonormal basis Q of the range,
and P_S scales each row. The iteration is that of Elser, Rankenburg and Thibault (PNAS 104, 2007,
418-423), with P_S applied to the reflection at L:

    Z <- Z + relaxation (P_S(2 P_L(Z) - Z) - P_L(Z)).

It is at rest only where `P_S = P_L`, at a solution. Near a minimum of the distance of the two sets
it goes on along the gap between them, so it searches on where a descent has ended. Its factor is
the U with `XU = P_L(Z)`. The iteration is chaotic: rounding changes which solutions it visits.

For other measurements the sets are sets of matrices: the symmetric Q with `A(Q) = y`, and the
positive semidefinite ones of rank r, to which eigenvalues project.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posquad.core.linalg import leading_pairs, positive_factor
from posquad.core.ranges import tiny
from posquad.core.status import Status
from posquad.dynamics.loop import Method, Rule, State, clock
from posquad.problems.measurements import RankOne
from posquad.recovery.budget import History
from posquad.recovery.initializers import least_interpolant
from posquad.recovery.problem import Problem

# Relaxation of the reflections. Measured on the twelve slowest problems of the row 40-3-1.05p of
# `benchmarks/recovery_table.py`, 5.7 s in all: 16 s at half, 35 s at double the value.
RELAXATION = 0.6
# Relative distance of the two sets at which a start has nearly converged. Measured on the same
# problems: 6 s at half, 5 s at double the value; less is surer at n = p + 1.
GAP = 0.005
# Reflections per step of the loop, after which the gap is looked at. A choice: half and double do
# as well.
_TOGETHER = 25


# The same in matrix space, where each takes a decomposition. A choice.
_TOGETHER_MATRICES = 10


@dataclass(frozen=True)
class ReflectionState(State):
    """Points of the iteration, their factors, and the gaps between the two sets there."""

    Z: Tensor  # [S, ..., r, n] predictions, maybe in single precision, or [S, ..., d, d] matrices
    U: Tensor  # [S, ..., d, r]
    gap: Tensor  # [S, ...]  ||P_S - P_L|| / ||sqrt(y)||, or over ||P_L||
    residual: Tensor  # [S, ...]  of U


class Reflections(Method[ReflectionState]):
    """Relaxed reflections of the predictions of rows, several per step.

    `narrow` ones are made in single precision, which halves the time and suffices for a start.
    """

    together = _TOGETHER

    def __init__(
        self, problem: Problem, relaxation: float = RELAXATION, *, narrow: bool = False
    ) -> None:
        self.problem, self.relaxation = problem, relaxation
        n, d, y = problem.n, problem.d, problem.y
        self.rows, basis, self.triangle = problem.row_basis  # all rows count alike
        dtype = torch.float32 if narrow else y.dtype
        # One problem is a batch of one: products of a batch may be rounded differently.
        self.basis = basis.reshape(-1, n, d).to(dtype)
        self.lengths = (self.rows * y.clamp_min(0).sqrt()).reshape(-1, 1, n).to(dtype)
        self.tiny = tiny(self.lengths)

    def start(self, U0: Tensor) -> ReflectionState:
        """Return the state at the factors `U0[S, ..., d, r]`."""
        batch = (len(U0), *self.problem.y.shape[:-1])
        U = U0.expand(*batch, *U0.shape[-2:])
        far = torch.full(batch, torch.inf, dtype=U.dtype, device=U.device)
        Z = self.problem.operator.project(U)
        residual = self.problem.relative(self.problem.residual(Z))
        Z = (self.rows[..., None] * Z).to(self.basis.dtype)
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
        U = torch.linalg.solve_triangular(self.triangle, c.mT.to(state.U), upper=True)
        finite = torch.isfinite(U).all(-1).all(-1)  # unless the inputs do not span the space
        U = torch.where(finite[..., None, None], U, state.U)
        return state.stepped(
            Z=Z.unflatten(-2, (S, r)).movedim(1, 0).reshape(shape),
            U=U,
            gap=torch.where(finite, gap.mT.reshape(shape[:-2]).to(state.gap), torch.inf),
            residual=self.problem.relative_residual(U),
        )


class MatrixReflections(Method[ReflectionState]):
    """Relaxed reflections of matrices, several per step."""

    together = _TOGETHER_MATRICES

    def __init__(self, problem: Problem, relaxation: float = RELAXATION) -> None:
        self.problem, self.relaxation = problem, relaxation
        self.basis = problem.operator.row_space  # [..., d^2, k]
        self.offset = least_interpolant(problem.operator, problem.y)

    def start(self, U0: Tensor) -> ReflectionState:
        """Return the state at the factors `U0[S, ..., d, r]`."""
        batch = (len(U0), *self.problem.y.shape[:-1])
        U = U0.expand(*batch, *U0.shape[-2:])
        far = torch.full(batch, torch.inf, dtype=U.dtype, device=U.device)
        residual = self.problem.relative_residual(U)
        return ReflectionState(**clock(far), Z=U @ U.mT, U=U, gap=far, residual=residual)

    def advance(self, state: ReflectionState) -> ReflectionState:
        Z, U, gap = state.Z, state.U, state.gap
        for _ in range(_TOGETHER_MATRICES):
            rows = Z.flatten(-2)
            if self.basis.ndim == 2:  # one product for all starts
                seen = (rows @ self.basis) @ self.basis.mT
            else:
                seen = ((rows[..., None, :] @ self.basis) @ self.basis.mT)[..., 0, :]
            inside = Z - seen.unflatten(-1, Z.shape[-2:]) + self.offset
            pairs = torch.linalg.eigh(2 * inside - Z)
            U = positive_factor(*leading_pairs(pairs, U.shape[-1]))
            apart = U @ U.mT - inside
            gap = torch.linalg.matrix_norm(apart)
            gap = gap / torch.linalg.matrix_norm(inside).clamp_min(tiny(gap))
            Z = Z.add(apart, alpha=self.relaxation)
        return state.stepped(Z=Z, U=U, gap=gap, residual=self.problem.relative_residual(U))


def reflections_of(problem: Problem, *, narrow: bool) -> Reflections | MatrixReflections:
    """Return the reflections for the measurements of a problem; `narrow` concerns rows."""
    if isinstance(problem.operator, RankOne):
        return Reflections(problem, narrow=narrow)
    return MatrixReflections(problem)


def run_reflections(
    method: Reflections | MatrixReflections,
    U0: Tensor,
    history: History,
    *,
    gap: float,
    steps: int,
    enough: int,
) -> ReflectionState:
    """Iterate from `U0[S, ..., d, r]`, for at most `steps` reflections.

    All starts of a problem end when `enough` of them have so small gaps.
    """

    def closed(state: ReflectionState) -> Tensor:
        return ((state.gap <= gap).sum(0) >= enough).expand(state.gap.shape)

    rules: list[Rule[ReflectionState]] = [(Status.LOSS_REACHED, closed)]
    return history.run(method, method.start(U0), rules, steps=-(-steps // method.together))
