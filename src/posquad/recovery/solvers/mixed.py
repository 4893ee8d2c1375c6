"""Gauss-Newton corrections in two precisions: systems in single, residuals and sums in double.

Where the responses can be reproduced, a Gauss-Newton step leaves an error of second order, and the
error of its system is a share of the step. A system in single precision therefore loses nothing:
the next residual, in double precision, shows what is left. Conjugate gradients read X once per
step, at half the size, and each correction reads it twice more in double precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posquad.core.linalg import per_element
from posquad.core.status import Status
from posquad.dynamics.loop import Method, Rule, State, clock
from posquad.geometry.frames import Frame
from posquad.geometry.horizontal import horizontal_part
from posquad.problems.measurements import RankOne
from posquad.recovery.budget import History
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.conjugate_gradients import normal_equations
from posquad.recovery.solvers.fit import (
    FIRST_ORDER_STEPS,
    SECOND_ORDER_STEPS,
    at_rounding,
    fitted,
    not_finite,
    regularized_frame,
    stationary,
)
from posquad.recovery.solvers.lbfgs import PopulationLBFGS
from posquad.recovery.solvers.small import FinalFactors

# Relative residual to which the first-order method runs in single precision, at most: also so many
# times lambda_r(Q) / lambda_1(Q), from where corrections converge. Measured by the rows of the
# condition number of `benchmarks/recovery_table.py`.
_RESIDUAL, _WEAKEST = 1e-3, 2e-2
# The same at least. Derived: 25 eps of single precision, a little above `LEVEL`.
_FLOOR = 3e-6
# Cosine of residual and Jacobian at which that run ends if the responses are not reproduced. A
# choice: double precision goes on, and 1e-3 is far above the rounding of a cosine.
_COSINE = 1e-3
# Multiple of eps of a relative residual at which nothing is left to correct. A choice: predictions
# are rounded by some eps, which grows slowly with d and r.
LEVEL = 20
# Bounds on the accuracy of a system. Derived: conjugate gradients in single precision reach about
# 17 eps = 2e-6; the upper one is that of `gauss_newton`.
_LEAST_ACCURACY = 2e-6
_MOST_ACCURACY = 0.1
# The c of the weights: it bounds them, where a small ||W'x_i|| magnifies curvature. A choice: half
# and double do as well.
_EVEN = 0.3
# Share of the residual that a correction may leave. A choice: corrections that gain less than a
# digit cost more than the steps in double precision that follow.
_GAIN = 0.1
# Steps without a halved residual after which the first-order run in single precision is at
# rounding. A choice: half of `lbfgs.PATIENCE`, because double precision goes on from there.
_SINGLE_PATIENCE = 4
# The same of corrections, each of which gains a digit. A choice: one.
_PATIENCE = 1


def descend_in_two_precisions(
    problem: Problem, single: RankOne, U: Tensor, history: History
) -> FinalFactors:
    """Descend from the starts `U[S, d, r]`, in single precision and then by corrections.

    The corrections begin if the first-order method comes near a solution from every start. The
    residuals returned are infinite unless they are down to rounding.
    """

    def near(state: Any) -> Tensor:
        squares = torch.linalg.svdvals(state.U).square()
        weakest = _WEAKEST * squares[..., -1] / squares[..., 0]
        level = weakest.clamp(_FLOOR, _RESIDUAL)
        return state.residual <= level

    method = PopulationLBFGS(Problem(single, problem.y.to(single.dtype)))
    ends: list[Rule[Any]] = [(Status.LOSS_REACHED, near), stationary(_COSINE)]
    ends += [not_finite(), at_rounding(_SINGLE_PATIENCE)]
    start = method.start(U.to(single.dtype))
    state = history.run(method, start, ends, steps=FIRST_ORDER_STEPS)
    better = state.residual < start.residual  # NaN is not better
    U = torch.where(better[..., None, None], state.U.to(U.dtype), U)
    unknown = torch.full_like(better, torch.inf, dtype=U.dtype)
    if not bool((better & near(state)).all()):
        return FinalFactors(U, unknown)
    corrections = Corrections(problem, single)
    last = history.run(corrections, corrections.start(U), _rules(), steps=SECOND_ORDER_STEPS)
    finished = last.outcome == Status.LOSS_REACHED.code
    return FinalFactors(last.U, torch.where(finished, last.residual, unknown))


@dataclass(frozen=True)
class CorrectedState(State):
    """Factors with their residuals in double precision."""

    U: Tensor  # [..., d, r]
    rows: Tensor  # [..., n, r]  weighted rows of XU
    errors: Tensor  # [..., n]  weighted residuals
    residual: Tensor  # [...]  ||e|| / ||y||
    before: Tensor  # [...]  the residual one step ago


class Corrections(Method[CorrectedState]):
    """Gauss-Newton steps whose systems are solved with an operator in single precision.

    Where the responses can be reproduced, the solution does not depend on the weights of the
    samples. A sample is weighted by `1 / (c + ||W'x_i||^2 / r)`, W a basis of the range of U: the
    rows of the Jacobian then have similar sizes in the metric of the population, however different
    the singular values of U are, and conjugate gradients take a fifth fewer steps.
    """

    def __init__(self, problem: Problem, single: RankOne) -> None:
        self.problem, self.single = problem, single

    def start(self, U: Tensor) -> CorrectedState:
        swept = self._sweep(U)
        before = torch.full_like(swept["residual"], torch.inf)
        return CorrectedState(**clock(before), U=U, before=before, **swept)

    def advance(self, state: CorrectedState) -> CorrectedState:
        U, dtype = state.U, self.single.dtype
        basis = regularized_frame(U)
        slope = self.problem.operator.weighted_adjoint(state.errors, state.rows)
        right = horizontal_part(U, -slope, basis)
        size = torch.linalg.matrix_norm(right)[..., None, None]  # may underflow in single precision
        right = right / torch.where(size > 0, size, 1.0)
        frame = Frame(*(part.to(dtype) for part in basis))
        system = normal_equations(self.single, state.rows.to(dtype), frame)
        D, _ = system.solve(right.to(dtype), self._accuracy(state.residual, basis.s).to(dtype))
        new = U + size * D.to(U.dtype)
        swept = self._sweep(new)
        better = swept["residual"] < state.residual  # NaN is not better
        kept = {
            name: torch.where(per_element(better, value), value, getattr(state, name))
            for name, value in {"U": new, **swept}.items()
        }
        return state.stepped(**kept, before=state.residual)

    def _sweep(self, U: Tensor) -> dict[str, Tensor]:
        """Return what depends on `XU`."""
        basis, Z = regularized_frame(U), self.problem.operator.project(U)
        e = self.problem.residual(Z)
        sizes = (Z @ (basis.P / basis.s[..., None, :])).square().sum(-1)  # ||W'x_i||^2
        root = (_EVEN + sizes / sizes.mean(-1, keepdim=True)).rsqrt()
        residual = self.problem.relative(e)
        return {"rows": root[..., None] * Z, "errors": root * e, "residual": residual}

    def _accuracy(self, residual: Tensor, s: Tensor) -> Tensor:
        """What the second-order error leaves of the residual, or what rounding leaves of it.

        The former is the size of the step beside U, in the weakest column: about half the residual
        times `lambda_1(Q) / lambda_r(Q)`.
        """
        spread = (s[..., 0] / s[..., -1]).square()
        rounding = LEVEL / 2 * torch.finfo(residual.dtype).eps
        second_order = (spread / 2).clamp_min(1) * residual
        accuracy = torch.maximum(second_order, rounding / residual)
        return accuracy.clamp(_LEAST_ACCURACY, _MOST_ACCURACY)


def _rules() -> list[Rule[CorrectedState]]:
    """End at rounding with LOSS_REACHED, and with STALLED where corrections gain too little."""
    return [
        fitted(LEVEL * torch.finfo(torch.float64).eps),
        at_rounding(_PATIENCE),
        (Status.STALLED, lambda state: state.residual > _GAIN * state.before),
    ]
