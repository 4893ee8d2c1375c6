"""Direct least squares over all symmetric matrices, when there are enough samples to determine one.

With `n >= d(d+1)/2` samples in general position, `y_i = x_i'Qx_i` is a determined linear system for
the entries of Q: no iteration, no start, no local minimum.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posquad.core.arrays import A, Array, like, positive_integer, tensors
from posquad.core.errors import DomainError
from posquad.core.status import Status, from_codes
from posquad.core.symmetric import symmetric_fit
from posquad.recovery.initializers import positive_truncation
from posquad.recovery.solvers.fit import Quadratic, Solution, enter_data

__all__ = ["direct_least_squares"]

_FITTED = 1e-10


def direct_least_squares(X: A, y: A, rank: int) -> Solution:
    """`argmin ||A(Q) - y||` over symmetric Q, then its positive part of this rank.

    Needs `n >= d(d+1)/2` and forms the n x d(d+1)/2 matrix of the system, by design. Cost
    O(n d^4 / 2), once. The status is LOSS_REACHED when the responses are reproduced, BEST_FIT when
    the least squares matrix is itself positive and of this rank, and else STALLED: what was cut off
    matters, and an iterative solver should go on from here.

    >>> X = np.random.default_rng(0).standard_normal((12, 3))
    >>> found = direct_least_squares(X, (X @ [1.0, 2.0, 0.0]) ** 2, 1)
    >>> np.allclose(found.U @ found.U.T, np.outer([1, 2, 0], [1, 2, 0])), found.status.name
    (True, 'LOSS_REACHED')
    """
    inputs, responses = tensors(X=X, y=y)
    problem = enter_data(inputs, responses)
    rank = positive_integer("rank", rank)
    D = problem.d * (problem.d + 1) // 2
    if problem.n < D:
        raise DomainError("X", expected=f"at least d(d+1)/2 = {D} samples", got=f"{problem.n}")
    Q, complete = symmetric_fit(problem.X, problem.y)
    if not bool(complete.all()):
        expected = "inputs whose products x x' span the symmetric matrices"
        raise DomainError("X", expected=expected, got="a singular system")
    U, _ = positive_truncation(Q, rank)
    return from_predictor(problem, U, Q, X)


def from_predictor(problem: Quadratic, U: Tensor, Q: Tensor, model: Array) -> Solution:
    residual = problem.relative(problem.residual(problem.forward(U)))
    lost = torch.linalg.matrix_norm(Q - U @ U.mT) / torch.linalg.matrix_norm(Q).clamp_min(1e-300)
    whole = torch.where(lost <= 1e-12, Status.BEST_FIT.code, Status.STALLED.code)
    codes = torch.where(residual <= _FITTED, Status.LOSS_REACHED.code, whole)
    one = torch.ones_like(codes)
    columns = math.ceil(problem.d / U.shape[-1])
    return Solution(
        U=like(model, U),
        status=from_codes(codes),
        residual=like(model, residual),
        steps=like(model, one),
        passes=like(model, columns * one),
        history=like(model, residual[None]),
    )
