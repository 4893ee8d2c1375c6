"""Descents from given starts, by the solver for the shape of the problem."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posquad.recovery.candidates import Task
from posquad.recovery.problem import Problem
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.solvers.fit import (
    FIRST_ORDER_STEPS,
    SECOND_ORDER_STEPS,
    FitMethod,
    FitState,
    at_rounding,
    fitted,
    stationary,
)
from posquad.recovery.solvers.gauss_newton import GaussNewton
from posquad.recovery.solvers.lbfgs import PATIENCE, PopulationLBFGS
from posquad.recovery.solvers.levenberg import Levenberg, screening_rules
from posquad.recovery.solvers.mixed import LEVEL, descend_in_two_precisions
from posquad.recovery.solvers.small import FinalFactors, StopRule, run_small

# Cosine of residual and Jacobian at which a first-order or Gauss-Newton run of the search ends. A
# choice: `polish` goes on from there to `fit.GRADIENT`; residuals differ by its square, 1e-16.
_STATIONARY = 1e-8
# Steps after which a start that is screened must have reached this share of the residual before
# them. Measured: ten times as long if nothing is given up.
_PATIENCE, _RATE = 10, 0.5
# Steps of a fit with other terms that must leave at most this share of the residual. A choice:
# those of `levenberg_marquardt`; other terms leave residuals near one, of which steps gain little.
_TERMS_PATIENCE, _TERMS_RATE = 20, 0.999


def descend(
    shared: ProblemCache, problem: Problem, U: Tensor, task: Task
) -> FitState | FinalFactors:
    """Descend from the starts `U[S, ..., d, r]` of a problem, or of a part of a batch.

    Small problems take dense steps on NumPy arrays, and so do, in torch, those near the information
    limit. Others take first-order steps, in single precision where that saves time, and then
    Gauss-Newton corrections.
    """
    history, rank = task.history, U.shape[-1]
    patience, rate = _PATIENCE, _RATE
    if shared.other_terms:
        patience, rate = _TERMS_PATIENCE, _TERMS_RATE
    if shared.is_small(rank):
        ending = StopRule(
            steps=history.budget.max_steps,
            patience=patience,
            rate=rate,
            fitted=task.tolerance,
        )
        return run_small(problem, U, ending, history)
    if shared.is_dense(rank):
        method = Levenberg(problem, rank)
        rules = screening_rules(task.tolerance, patience, rate)
        return history.run(method, method.start(U), rules)
    single = shared.single
    if single is not None and not history.budget.spent:
        found = descend_in_two_precisions(problem, single, U, history)
        if bool(torch.isfinite(found.residual).all()):
            return found
        U = found.U
    first = PopulationLBFGS(problem)
    rounding = LEVEL * torch.finfo(U.dtype).eps
    ends = [fitted(rounding), stationary(_STATIONARY), at_rounding(PATIENCE)]
    state = history.run(first, first.start(U), ends, steps=FIRST_ORDER_STEPS)
    if bool((state.residual <= task.tolerance).any(0).all()) or history.budget.spent:
        return state
    if bool((state.cosine <= _STATIONARY).all()):
        return state
    second = GaussNewton(problem)
    ends = [fitted(0.0), stationary(_STATIONARY), at_rounding()]
    return history.run(second, second.start(state.U), ends, steps=SECOND_ORDER_STEPS)


def method_for(problem: Problem, rank: int, *, dense: bool, form: str = "auto") -> FitMethod[Any]:
    """Return dense damped steps in this form, or else first-order ones."""
    return Levenberg(problem, rank, form) if dense else PopulationLBFGS(problem)
