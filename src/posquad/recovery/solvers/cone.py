"""Least squares over the cone of positive semidefinite matrices, by following the central path.

Without a limit on the rank, minimising `||A(Q) - y||^2 / 2` over `Q >= 0` is convex. With the
barrier `-mu log det Q` the minimizer satisfies `A*(e) = mu Q^{-1}`; as mu falls it tends to the
optimum, inside the cone or on its boundary. With `Q = LL'` and a step `Q <- L(I + S)L'`, Newton's
equations are a ridge regression on the inputs `L'x_i`: `min ||e + A_L(S)||^2 + mu ||S - I||^2`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.core.symmetric import symmetric_matrix, symmetric_system
from posquad.recovery.budget import Budget
from posquad.recovery.problem import Problem

_FALL = 0.1  # factor on mu after a step in the region of quadratic convergence
_CENTRED = 0.3  # largest length of such a step
_LEAST = 1e-15  # last mu, as a share of the sum of squares
_STEPS = 120  # maximum number of steps
_PROVED = 1e-9  # optimality gap at which the optimum counts as found


def positive_fit(problem: Problem, budget: Budget) -> tuple[Tensor, Tensor]:
    """Return factors `L[..., d, d]` of the best positive semidefinite matrices.

    The second tensor `[...]` says whether they are proved to be optimal.
    """
    y, d = problem.y, problem.d
    eye = torch.eye(d, dtype=y.dtype, device=y.device)
    identity = symmetric_system(eye).sum(0)  # svec(I)
    size = y.abs().mean(-1) / problem.operator.squared_lengths.mean(-1)
    L = size.clamp_min(1e-300).sqrt()[..., None, None] * eye
    mu = 0.1 * y.square().sum(-1)
    for _ in range(_STEPS):
        if budget.late:
            break
        Z = problem.operator.project(L)
        e = problem.residual(Z)
        A = symmetric_system(Z)
        K = A.mT @ A
        K.diagonal(dim1=-2, dim2=-1).add_(mu[..., None])
        right = mu[..., None] * identity - (A.mT @ e[..., None])[..., 0]
        factor, info = torch.linalg.cholesky_ex(K)
        step = torch.cholesky_solve(right[..., None], factor)[..., 0]
        step = torch.where((info == 0)[..., None] & torch.isfinite(step), step, 0.0)
        length = torch.linalg.vector_norm(step, dim=-1)
        step = step / (1 + torch.where(length > _CENTRED, length, 0.0))[..., None]
        L = L @ torch.linalg.cholesky(eye + symmetric_matrix(step, d))
        least = _LEAST * e.square().sum(-1)
        if bool(((mu <= least) & (length <= _CENTRED)).all()):
            break
        mu = torch.where(length <= _CENTRED, torch.maximum(_FALL * mu, least), mu)
    return L, optimality_gap(problem, L) <= _PROVED


def optimality_gap(problem: Problem, U: Tensor) -> Tensor:
    """Bound how much any positive semidefinite P could lower `||e||^2`, as a share of it.

    With `G = A*(e)`, `||A(P) - y||^2 >= ||e||^2 + 2 <G, P - UU'>`. The predictions of the best P
    have norm at most ||y||, so `lambda_min(X'X) tr P <= sum_i x_i'P x_i <= n^(1/2) ||y||`.
    """
    Z = problem.operator.project(U)
    e = problem.residual(Z)
    slope = (e * Z.square().sum(-1)).sum(-1)
    lowest = torch.linalg.eigvalsh(problem.operator.adjoint_kernel(e))[..., 0]
    spread = problem.n * torch.linalg.eigvalsh(problem.operator.second_moments)[..., 0]
    trace = problem.n**0.5 * torch.linalg.vector_norm(problem.y, dim=-1) / spread
    return 2 * (slope - trace * lowest.clamp_max(0)) / e.square().sum(-1)
