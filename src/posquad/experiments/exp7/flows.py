"""Limits of many factor flows, and greedy low-rank learning, for experiment 7."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from posquad.core.status import Status
from posquad.dynamics import gradient_flow
from posquad.experiments.framework import ProgressCallback
from posquad.problems import Dense, LeastSquares

__all__ = ["flow_limits", "greedy_limits"]

_FIRST = 256  # steps after which the flows that have ended are taken out of the batch
_SEED = 1e-4  # size of the direction that greedy learning adds; its square enters Q


def flow_limits(
    A: Tensor,
    y: Tensor,
    U: Tensor,
    *,
    rtol: float,
    residual: float,
    t_final: float,
    max_steps: int,
    gradient: float | None = None,
    progress: ProgressCallback = lambda fraction: None,
) -> tuple[Tensor, Tensor]:
    """Follow the factor flows until `||A(UU') - y|| <= residual`; return factors and which did.

    `A[K, n, d, d]`, `y[K, n]` and `U[K, d, r]` give `[K, d, r]` and `[K]`. A flow also ends when
    its gradient is at most `gradient`, at the time `t_final` and after `max_steps` steps. Some
    flows need a hundred times as many steps as others, so ended ones leave the batch after 256
    steps, and again whenever the number of steps has grown by a quarter.

    >>> A, y = torch.eye(2, dtype=torch.float64)[None, None], torch.ones(1, 1, dtype=torch.float64)
    >>> U, done = flow_limits(A, y, 0.1 * A[0], rtol=1e-9, residual=1e-6, t_final=99.0,
    ...                       max_steps=999)
    >>> (U @ U.mT).round(decimals=6).tolist(), done.tolist()
    ([[[0.5, 0.0], [0.0, 0.5]]], [True])
    """
    n, U = A.shape[1], U.clone()
    clock = torch.zeros(len(U), dtype=torch.float64)
    reached = torch.zeros(len(U), dtype=torch.bool)
    left, used = torch.arange(len(U)), 0
    while len(left) and used < max_steps:
        steps = min(max(_FIRST, used // 4), max_steps - used)
        before = clock[left]
        end = float(t_final - before.min())
        flow = gradient_flow(
            LeastSquares(Dense(A[left]), y[left]),
            U[left],
            t_final=end,
            times=torch.tensor([end], dtype=torch.float64),
            rtol=rtol,
            loss_tolerance=residual**2 / (2 * n),
            gradient_tolerance=gradient,
            stop=lambda _, t, before=before: before + t >= t_final,
            max_steps=steps,
        )
        status = cast(list, flow.status)
        U[left], clock[left] = flow.U, before + flow.times[-1]
        reached[left] = torch.tensor([s is Status.LOSS_REACHED for s in status])
        left = left[torch.tensor([s is Status.STEPS_EXHAUSTED for s in status])]
        used += steps
        progress(1 - len(left) / len(U))
    return U, reached


def greedy_limits(
    A: Tensor, y: Tensor, *, rtol: float, residual: float, t_final: float, max_steps: int
) -> tuple[Tensor, Tensor]:
    """Where greedy low-rank learning ends, `Q[K, d, d]`, and at which rank, `[K]`.

    Begin at Q = 0. Add an infinitesimal multiple of the direction in which the loss falls fastest,
    the last eigenvector of `G = sum_i (<A_i, Q> - y_i) A_i`; follow the factor flow of that rank to
    a stationary point; repeat until the responses are fitted, or G has no negative eigenvalue. A
    problem whose flow ends too early has the rank 0, and NaN for Q.

    >>> A = torch.diag_embed(torch.eye(2, dtype=torch.float64))[None]
    >>> y = torch.tensor([[1.0, 0.4]], dtype=torch.float64)
    >>> Q, rank = greedy_limits(A, y, rtol=1e-8, residual=1e-6, t_final=1e4, max_steps=10_000)
    >>> Q[0].round(decimals=5).tolist(), rank.tolist()
    ([[1.0, 0.0], [0.0, 0.4]], [2])
    """
    d = A.shape[-1]
    limits = torch.full((len(A), d, d), torch.nan, dtype=A.dtype)
    ranks = torch.zeros(len(A), dtype=torch.int64)
    left, U = torch.arange(len(A)), A.new_zeros(len(A), d, 0)
    still = _SEED * residual  # gradient of a point that counts as stationary
    for rank in range(1, d + 1):
        a, G = A[left], _gradient(A[left], y[left], U)
        values, vectors = torch.linalg.eigh(G)
        sizes = torch.linalg.matrix_norm(a).amax(-1)
        least = values[:, 0] >= -residual * sizes  # no direction lowers the loss
        limits[left[least]], ranks[left[least]] = (U @ U.mT)[least], rank - 1
        left, go_on = left[~least], ~least
        if not len(left):
            break
        start = torch.cat([U[go_on], _SEED * vectors[go_on][:, :, :1]], -1)
        U, done = flow_limits(
            A[left],
            y[left],
            start,
            rtol=rtol,
            residual=residual,
            gradient=still,
            t_final=t_final,
            max_steps=max_steps,
        )
        limits[left[done]], ranks[left[done]] = (U @ U.mT)[done], rank
        # The gradient of the loss is 2GU/n. The others have neither fitted nor become stationary.
        size = torch.linalg.matrix_norm(_gradient(A[left], y[left], U) @ U) * 2 / A.shape[1]
        go_on = ~done & (size <= 1.001 * still)
        left, U = left[go_on], U[go_on]
    return limits, ranks


def _gradient(A: Tensor, y: Tensor, U: Tensor) -> Tensor:
    """The matrices `G = sum_i (<A_i, UU'> - y_i) A_i`, `[K, d, d]`."""
    misfit = torch.einsum("knij,kij->kn", A, U @ U.mT) - y
    return torch.einsum("kn,knij->kij", misfit, A)
