"""Direct least squares over all symmetric matrices, if there are enough samples to determine one.

With `n >= d(d+1)/2` samples in general position, the linear system `y_i = x_i'Qx_i` determines the
entries of Q. It is solved without iterations and starts, and has no local minima.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posquad.core.arrays import A, Array, like, positive_integer, tensors
from posquad.core.errors import DomainError
from posquad.core.ranges import tiny
from posquad.core.status import Status, from_codes
from posquad.recovery.initializers import positive_truncation
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.fit import SolverResult, checked_data

__all__ = ["direct_least_squares"]

# Relative residual at which responses count as reproduced. A definition: the default tolerance of
# `recover`.
_FITTED = 1e-10
# Share of the least-squares matrix that a truncation may lose and still be called the best fit. A
# definition: far above the rounding of its eigenvalues, d eps.
_LOST = 1e-12


def direct_least_squares(X: A, y: A, rank: int) -> SolverResult:
    """Minimise `||A(Q) - y||` over symmetric Q, and return its positive part of this rank.

    Needs `n >= d(d+1)/2`, forms the n x d(d+1)/2 matrix of the system, and costs O(n d^4 / 2). The
    status is LOSS_REACHED if the responses are reproduced, and BEST_FIT if the least-squares matrix
    is itself positive semidefinite and of this rank. Otherwise it is STALLED: the truncation has
    changed the fit, and an iterative solver should continue from here.

    >>> X = np.random.default_rng(0).standard_normal((12, 3))
    >>> found = direct_least_squares(X, (X @ [1.0, 2.0, 0.0]) ** 2, 1)
    >>> np.allclose(found.U @ found.U.T, np.outer([1, 2, 0], [1, 2, 0])), found.status.name
    (True, 'LOSS_REACHED')
    """
    inputs, responses = tensors(X=X, y=y)
    problem = checked_data(inputs, responses)
    rank = positive_integer("rank", rank)
    D = problem.d * (problem.d + 1) // 2
    if problem.n < D:
        raise DomainError("X", expected=f"at least d(d+1)/2 = {D} samples", got=f"{problem.n}")
    Q, complete = problem.operator.symmetric_fit(problem.y)
    if not bool(complete.all()):
        expected = "inputs whose products x x' span the symmetric matrices"
        raise DomainError("X", expected=expected, got="a singular system")
    U, _ = positive_truncation(Q, rank)
    return _truncation_result(problem, U, Q, X)


def _truncation_result(problem: Problem, U: Tensor, Q: Tensor, model: Array) -> SolverResult:
    """Return the result for the truncation UU' of the least-squares matrix Q."""
    residual = problem.relative_residual(U)
    size = torch.linalg.matrix_norm(Q).clamp_min(tiny(Q))
    lost = torch.linalg.matrix_norm(Q - U @ U.mT) / size
    whole = torch.where(lost <= _LOST, Status.BEST_FIT.code, Status.STALLED.code)
    codes = torch.where(residual <= _FITTED, Status.LOSS_REACHED.code, whole)
    one = torch.ones_like(codes)
    columns = math.ceil(problem.d / U.shape[-1])
    return SolverResult(
        U=like(model, U),
        status=from_codes(codes),
        residual=like(model, residual),
        steps=like(model, one),
        passes=like(model, columns * one),
        history=like(model, residual[None]),
    )
