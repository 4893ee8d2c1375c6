"""Random starts of a search: perturbed copies of the first one, and limits of log-det IRLS.

The random numbers of a round depend on the seed and the round alone, and are the same for all
problems of a batch, so that a problem is searched in a batch as it is alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posquad.recovery.budget import History
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.irls import run_irls
from posquad.recovery.solvers.reflections import run_reflections
from posquad.recovery.tuning import Schedule


def perturbed_starts(U: Tensor, count: int, spread: float, seed: int, round: int) -> Tensor:
    """Return perturbed copies `[count, ..., d, r]` of the first start `U[..., d, r]`."""
    noise = common_noise(seed, round, U, count, *U.shape[-2:])
    size = torch.linalg.matrix_norm(U) / math.sqrt(U.shape[-1] * U.shape[-2])
    return U + spread * size[..., None, None] * noise


def reweighted_starts(
    problem: Problem, rank: int, count: int, seed: int, round: int, history: History, *, plain: bool
) -> Tensor:
    """Return limits `[count, ..., d, r]` of IRLS from random weights.

    With `plain`, the first weight is the identity.
    """
    d, y = problem.d, problem.y
    N = common_noise(seed, round, y[..., None], count, d, 2 * d + rank)
    filler, N = N[..., :rank], N[..., rank:]
    weight = N @ N.mT / (2 * d)
    if plain:
        weight[0] = torch.eye(d, dtype=N.dtype, device=N.device)
    state = run_irls(problem, rank, weight, 1e-3, history)
    size = torch.linalg.matrix_norm(state.U)[..., None, None]
    # Columns that are zero in the positive part start at small random values.
    filler = filler * (size.clamp_min(1e-3) * 0.03)
    empty = torch.linalg.vector_norm(state.U, dim=-2, keepdim=True) <= 1e-3 * size
    return torch.where(empty, filler, state.U)


def reflected_starts(
    problem: Problem, rank: int, seed: int, round: int, history: History, schedule: Schedule
) -> Tensor:
    """Return the factors `[count, ..., d, r]` of least gap of a round of relaxed reflections."""
    d, y = problem.d, problem.y
    noise = common_noise(seed, round, y[..., None], schedule.reflected_starts, d, rank)
    size = (y.clamp_min(0).sum(-1) / problem.operator.squared_lengths.sum(-1)).sqrt()
    state = run_reflections(
        problem,
        noise * (size / math.sqrt(rank))[..., None, None],
        history,
        relaxation=schedule.relaxation,
        gap=schedule.gap,
        steps=schedule.reflections,
    )
    count = min(schedule.reflected_descents, schedule.reflected_starts)
    best = state.gap.nan_to_num(torch.inf).topk(count, dim=0, largest=False).indices
    index = best[..., None, None].expand(*best.shape, *state.U.shape[-2:])
    return state.U.gather(0, index)


def common_noise(seed: int, round: int, like: Tensor, *shape: int) -> Tensor:
    """Return standard normal numbers `[count, ..., d, r]`, the same for all problems of a batch.

    `like[..., d, r]` gives the number of batch dimensions, the dtype and the device.
    """
    generator = torch.Generator().manual_seed((seed * 1_000_003 + round + 1) % 2**63)
    noise = torch.randn(*shape, generator=generator, dtype=like.dtype).to(like.device)
    return noise.reshape(shape[0], *(1,) * (like.ndim - 2), *shape[1:])
