"""Random starts of a search: perturbed copies of the first one, reweighted and reflected ones.

The random numbers of a round depend on the seed and the round alone, and are the same for all
problems of a batch, so that a problem is searched in a batch as it is alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posquad.geometry import dimension
from posquad.problems.measurements import RankOne
from posquad.recovery.budget import History
from posquad.recovery.candidates import Task
from posquad.recovery.costs import is_moderate, is_overhead, solves
from posquad.recovery.problem import Problem
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.solvers.irls import run_irls
from posquad.recovery.solvers.reflections import (
    GAP,
    ReflectionState,
    reflections_of,
    run_reflections,
)

# Size of a random perturbation of a start, relative to the start. Measured on 376 small problems:
# at half the value one ends at a poor minimum, and ranks take 2.4 times as long.
SPREAD = 1.0
# Starts tried together, and of a round. A choice: half and double do as well.
COMPANIONS = 8  # beside the first start, where a step costs only its calls
_CHEAP_STARTS = 24  # of a round, where a step costs only its calls
_DENSE_STARTS = 16  # of a round of perturbed starts in problems of moderate size
_LARGE_STARTS = 4  # of a round where dense steps are expensive
# Reflections. Measured on the twelve slowest problems of the row 40-3-1.05p of
# `benchmarks/recovery_table.py`, 5.7 s in all; the times are those at half and at double the value.
_REFLECTED_STARTS = 16  # starts of a round in problems of moderate size: 15 s, 5 s
_REFLECTED_DESCENTS = 2  # ends of least gap from which the solver descends: 5 s, 6 s
_REFLECTIONS = 1000  # of each start in the first round: 24 s, 8 s
_REFLECTION_DOUBLINGS = 2  # rounds that each double them: one problem is not recovered, 7 s
# Rounds without reflections among which one is reweighted where a step costs only its calls. A
# choice: half and double do as well.
_CHEAP_PERIOD = 4
# The same where dense steps are affordable, and every second round is reweighted. A choice: half
# and double do as well.
_DENSE_PERIOD = 2
# Rounds among which one is perturbed where dense steps are expensive, and the others are
# reweighted. A choice: limits of reweighting differ where perturbed starts agree.
_LARGE_PERIOD = 6
# Floor, relative to the largest eigenvalue, at which the reweighting of a start ends. A choice: a
# descent follows, which needs no more than the right columns.
_REWEIGHTED = 1e-3
# Size of a column, relative to the factor, up to which it counts as empty. A choice: columns are
# zero, or roots of eigenvalues, which are 0.03 at the floor of the reweighting.
EMPTY = 1e-3
# Size of the random column that replaces an empty one, relative to the factor. Derived: the root of
# the floor 1e-3 of the reweighting.
FILLER = 0.03
# Least size of the factor in this rule. A choice: responses have size one, and a factor that is
# zero gets columns, too.
_LEAST_SIZE = 1e-3
# Reflections of rows for one in matrix space, which takes a decomposition. Measured: 250 of these
# reach what they reach at (10, 2), n = p + 1.
_MATRIX_STEP = 4
# Squares of the lengths of starts of reflections in matrix space, over the likely one. Measured on
# twins whose solutions have norms 4 to 6 times apart: from lengths up to 1, all of 100 reflections
# end at the smaller one, from 3 times as long ones 11 to 47 at the larger one.
_MATRIX_LENGTHS = (1.0, 9.0, 100.0, 900.0)
# Gap at which reflections of rows end where a step costs more than its calls. Measured: of 60 ends
# at d = 40 to 500 and n = 1.05p to 1.5p, dense steps lead from all to the solution, most in 5.
_GAP = 1e-2
# Starts of the reflections before anything else is tried. Measured: one in eight single starts at
# d = 100, n = 1.1p is still trapped after 4000 reflections, and of four starts never all.
_FIRST_REFLECTED = 4
# Multiplier of the seed. A choice: a prime far above the rounds of a search, so that the rounds of
# two seeds have different random numbers.
_SEED_FACTOR = 1_000_003


def plain_round(shared: ProblemCache, rank: int, round: int) -> tuple[bool, int]:
    """Return whether the starts of a round without reflections are reweighted, and their number."""
    n, d = shared.problem.n, shared.problem.d
    p = dimension(d, rank)
    plenty = shared.samples >= shared.acceptance.plenty * p
    if plenty and shared.prepared.sums is not None:
        return False, 1
    if is_overhead(n, d, rank, p):
        first = 2 if plenty else COMPANIONS  # two can agree
        reweighted, count = round % _CHEAP_PERIOD == 1, first if round == 0 else _CHEAP_STARTS
    elif is_moderate(p) and solves(n):
        reweighted = round % _DENSE_PERIOD == 0
        count = _LARGE_STARTS if reweighted else _DENSE_STARTS
    else:
        reweighted = round % _LARGE_PERIOD != _LARGE_PERIOD - 1
        count = _LARGE_STARTS if solves(n) else 1
    reweighted = reweighted and shared.forms_kernel
    return reweighted, max(1, count // 2) if reweighted else count


def perturbed_starts(U: Tensor, count: int, seed: int, round: int) -> Tensor:
    """Return perturbed copies `[count, ..., d, r]` of the first start `U[..., d, r]`."""
    noise = common_noise(seed, round, U, count, *U.shape[-2:])
    size = torch.linalg.matrix_norm(U) / math.sqrt(U.shape[-1] * U.shape[-2])
    return U + SPREAD * size[..., None, None] * noise


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
    state = run_irls(problem, rank, weight, _REWEIGHTED, history)
    size = torch.linalg.matrix_norm(state.U)[..., None, None]
    # Columns that are zero in the positive part start at small random values.
    filler = filler * (size.clamp_min(_LEAST_SIZE) * FILLER)
    empty = torch.linalg.vector_norm(state.U, dim=-2, keepdim=True) <= EMPTY * size
    return torch.where(empty, filler, state.U)


def reflected_starts(problem: Problem, rank: int, most: int, task: Task, round: int) -> Tensor:
    """Return those factors `[count, ..., d, r]` of a round of reflections that have the least gaps.

    There are at most `most` of them.
    """
    moderate = is_moderate(dimension(problem.d, rank))
    starts = _REFLECTED_STARTS if moderate else _LARGE_STARTS
    state = reflected(problem, rank, (starts, 1), task, round, round)
    return _least_gaps(state, min(_REFLECTED_DESCENTS, most))


def first_reflected(problem: Problem, rank: int, task: Task) -> Tensor:
    """Return the factor `[1, ..., d, r]` of least gap of a few reflected starts."""
    return _least_gaps(reflected(problem, rank, (_FIRST_REFLECTED, 1), task, -1, 0), 1)


def _least_gaps(state: ReflectionState, count: int) -> Tensor:
    """Return the factors `[count, ..., d, r]` of least gap."""
    best = state.gap.nan_to_num(torch.inf).topk(count, dim=0, largest=False).indices
    return state.U.gather(0, best[..., None, None].expand(*best.shape, *state.U.shape[-2:]))


def reflected(
    problem: Problem, rank: int, starts: tuple[int, int], task: Task, numbers: int, round: int
) -> ReflectionState:
    """Return where reflections end, from random factors of a likely size.

    `starts` are their number, and how many of them must have a small gap before all of them end.
    `numbers` is the round of the random numbers; later rounds take more reflections.
    """
    y, (many, enough) = problem.y, starts
    N = common_noise(task.seed, numbers, y[..., None], many, problem.d, rank)
    operator = problem.operator
    steps = _REFLECTIONS << min(round, _REFLECTION_DOUBLINGS)
    if isinstance(operator, RankOne):  # the mean of <A_i, Q> over that of tr A_i
        square = y.clamp_min(0).sum(-1) / operator.squared_lengths.sum(-1) / rank
    else:  # as if A had no preferred directions
        steps //= _MATRIX_STEP
        D = operator.d * (operator.d + 1) / 2
        norm = (D * y.square().sum(-1) / operator.norms.square().sum(-1)).sqrt()
        lengths = y.new_tensor(_MATRIX_LENGTHS).repeat(many)[:many]
        square = norm / (operator.d * rank**0.5) * lengths.reshape(-1, *(1,) * (y.ndim - 1))
    method = reflections_of(problem, narrow=_is_expensive(problem, rank))
    U0, gap = square.sqrt()[..., None, None] * N, closing_gap(problem, rank)
    return run_reflections(method, U0, task.history, gap=gap, steps=steps, enough=enough)


def closing_gap(problem: Problem, rank: int) -> float:
    """Return the gap at which reflections have nearly converged."""
    return _GAP if _is_expensive(problem, rank) else GAP


def _is_expensive(problem: Problem, rank: int) -> bool:
    """Whether reflections are those of rows, and cost more than their calls."""
    n, d, rows = problem.n, problem.d, isinstance(problem.operator, RankOne)
    return rows and not is_overhead(n, d, rank, dimension(d, rank))


def common_noise(seed: int, round: int, like: Tensor, *shape: int) -> Tensor:
    """Return standard normal numbers `[count, ..., d, r]`, the same for all problems of a batch.

    `like[..., d, r]` gives the number of batch dimensions, the dtype and the device.
    """
    generator = torch.Generator().manual_seed((seed * _SEED_FACTOR + round + 1) % 2**63)
    noise = torch.randn(*shape, generator=generator, dtype=like.dtype).to(like.device)
    return noise.reshape(shape[0], *(1,) * (like.ndim - 2), *shape[1:])
