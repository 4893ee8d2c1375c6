"""Look for a second factor that reproduces the responses, where other terms are eliminated.

What is sought, and what the words mean, is as in `posquad.recovery.others`: starts that are made
from the first factor, ends of relaxed reflections, and random starts, until enough random ones have
led to the first factor again. Here errors are a function of the factor alone
(`posquad.recovery.damped`): rows with other terms, and moments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from posquad.core.symmetric import symmetric_matrix
from posquad.problems.measurements import Dense
from posquad.recovery.budget import Budget, History
from posquad.recovery.damped import Endpoint, SquaredErrors
from posquad.recovery.other_starts import FREE_LENGTHS, LENGTHS, partly_known, random_starts
from posquad.recovery.problem import Problem
from posquad.recovery.restarts import EMPTY, FILLER
from posquad.recovery.solvers.reflections import MatrixReflections, run_reflections
from posquad.recovery.tuning import DEFAULT

# Starts of each kind at most. A choice: 16 rounds of `Schedule.others_round`;
# `Schedule.agreeing_others` end the search where starts reach a solution.
_STARTS = 384
# Starts that must lead to the answer again where all starts have been tried. A choice: the rounds
# of `Schedule.others_rounds`.
_FEW_AGREEING = 11
# Differences that A does not see, from which starts are made, and their lengths, relative to the
# first solution. A choice: both signs, and a tenth to ten times.
_KERNEL_STARTS = 12
_KERNEL_SHARES = (-10.0, -3.0, -1.0, -0.3, 0.3, 1.0, 3.0, 10.0)
# Entries of a symmetric matrix up to which these differences are computed. Derived: 27 million
# operations.
_KERNEL_UNKNOWNS = 300
# Ends of relaxed reflections, their number of steps, and their squared lengths at the start,
# relative to the first solution. Measured on twins with a constant, d = 9, whose second solution 1%
# of random starts reach: 18 to 72 of 100 reflections end at it from lengths of 1, 3 and 10.
_REFLECTED = 24
_REFLECTIONS = 250
_REFLECTED_LENGTHS = (1.0, 3.0, 10.0)
# Coordinates, and entries of the matrices, up to which reflections are worth their decompositions.
# Derived: about a second, and 32 MB.
_REFLECTED_MOST = 32
_REFLECTED_ENTRIES = 2**22
# Least singular value of the system, over the largest, that is not rounding. A choice.
_DETERMINED = 1e-10
# Size of a form, over that of the responses, that is not zero. A choice: forms near zero reproduce
# zero as well as zero does.
_VISIBLE = 1e-3


class Sought(NamedTuple):
    """What the search has shown: fields of `Evidence`."""

    others: int  # starts
    agreeing: int  # random ones that ended at the first factor again
    different: bool  # whether one ended at another one
    sought: bool  # whether the search came to its end


def seek_second_factor(
    problem: SquaredErrors,
    V: np.ndarray,
    rank: int,
    *,
    descend: Callable[[np.ndarray], Endpoint],
    reproduces: Callable[[Endpoint], bool],
    is_spent: Callable[[], bool],
    size: float,
    mass: float,
    seed: int,
    bounded: bool,
) -> Sought:
    """Seek a factor of this rank, other than `V[k, r]`, that reproduces the responses.

    Args:
        problem: the squared errors.
        V, rank: the first factor, and the rank of the others.
        descend: a descent from a start.
        reproduces: whether an end reproduces the responses, or rounding hides that it does not.
        is_spent: whether nothing more may be computed.
        size: root mean square of the responses, in units of the problem.
        mass: sum of the weights with which squared errors are added.
        seed: seed of the random starts.
        bounded: whether the responses bound the size of a solution.
    """
    Q, agreeing, others, different = V @ V.T, 0, 0, False
    apart, enough = DEFAULT.acceptance.apart, DEFAULT.schedule.agreeing_others
    for start, independent in _starts(problem, V, rank, size, seed, bounded):
        if is_spent() or different or agreeing >= enough:
            break
        end, others = descend(start), others + 1
        if not reproduces(end):
            continue
        if V.size:
            away = bool(np.linalg.norm(end.V @ end.V.T - Q) > apart * np.linalg.norm(Q))
        else:  # beside Q = 0
            form = problem.form_size(end.V) * (math.sqrt(problem.size) or 1.0)
            away = form > _VISIBLE * size * math.sqrt(mass)
        different, agreeing = away, agreeing + (independent and not away)
    ended = agreeing >= enough or (not is_spent() and agreeing >= _FEW_AGREEING)
    return Sought(others, agreeing, different, ended)


def _starts(
    problem: SquaredErrors, V: np.ndarray, rank: int, size: float, seed: int, bounded: bool
) -> Iterator[tuple[np.ndarray, bool]]:
    """Yield starts, and whether they are random and do not depend on the first factor."""
    rng, many = np.random.default_rng(seed), DEFAULT.schedule.others_round
    k = len(V)
    wide = np.pad(V, ((0, 0), (0, max(0, rank - V.shape[1]))))
    if not V.size:  # forms of the size of the responses
        wide = np.full((k, rank), math.sqrt(size / k))
    U, Q = torch.from_numpy(wide), V @ V.T
    length = float(np.linalg.norm(Q)) or size
    for start in _reflected(problem, rank, length, seed):
        yield start, False
    kernel = _unseen(problem, k)
    for _ in range(_KERNEL_STARTS if len(kernel) else 0):
        K = np.tensordot(rng.standard_normal(len(kernel)), kernel, axes=1)
        for share in _KERNEL_SHARES:
            yield leading_factor(Q + share * length / np.linalg.norm(K) * K, rank, rng), False
    lengths = LENGTHS if bounded else FREE_LENGTHS
    for round in range(_STARTS // many):
        if V.shape[1] > 1 and round == 0:
            for start in partly_known(U, seed, round, many, lengths).numpy():
                yield start, False
        for start in random_starts(U, seed, round, many, lengths).numpy():
            yield start, True


def _unseen(problem: SquaredErrors, k: int) -> np.ndarray:
    """Return a basis `[m, k, k]` of the symmetric matrices that A does not see.

    There are none if they were too many to compute.
    """
    if k * (k + 1) // 2 > _KERNEL_UNKNOWNS:
        return np.zeros((0, k, k))
    _, s, basis = np.linalg.svd(problem.system()[0], full_matrices=True)
    basis = basis[int((s > _DETERMINED * s[:1]).sum()) :]
    return symmetric_matrix(torch.from_numpy(basis), k).numpy()


def _reflected(problem: SquaredErrors, rank: int, length: float, seed: int) -> Iterator[np.ndarray]:
    """Yield ends of relaxed reflections from random factors of several lengths."""
    system, target = problem.system()
    k = (math.isqrt(8 * system.shape[1] + 1) - 1) // 2
    if k > _REFLECTED_MOST or len(system) * k**2 > _REFLECTED_ENTRIES or not len(system):
        return
    A = Dense.of_checked(symmetric_matrix(torch.from_numpy(system), k))
    method = MatrixReflections(Problem(A, torch.from_numpy(target)), DEFAULT.schedule.relaxation)
    generator = torch.Generator().manual_seed(seed)
    U = torch.randn(_REFLECTED, k, rank, generator=generator, dtype=torch.float64)
    lengths = U.new_tensor(_REFLECTED_LENGTHS).repeat(_REFLECTED)[:_REFLECTED, None, None]
    U = lengths * math.sqrt(length) / torch.linalg.matrix_norm(U)[:, None, None] * U
    history = History(Budget(max_steps=_REFLECTIONS))
    with torch.no_grad():
        state = run_reflections(
            method, U, history, gap=DEFAULT.schedule.gap, steps=_REFLECTIONS, enough=_REFLECTED
        )
    yield from state.U.numpy()


def leading_factor(S: np.ndarray, rank: int, rng: np.random.Generator) -> np.ndarray:
    """Return a factor `[k, rank]` of the positive part of S, with no column zero."""
    values, vectors = np.linalg.eigh((S + S.T) / 2)
    kept = np.maximum(values[::-1][:rank], 0.0)
    return widened(vectors[:, ::-1][:, :rank] * np.sqrt(kept), rank, rng)


def widened(
    V: np.ndarray, rank: int, rng: np.random.Generator, size: float | None = None
) -> np.ndarray:
    """Return V with small random columns in place of zero or missing ones, `[k, rank]`.

    They are small beside V, or beside `size` where V is zero.
    """
    wide = np.zeros((len(V), rank))
    wide[:, : V.shape[1]] = V
    size = float(np.linalg.norm(wide)) or size or 1.0
    empty = np.linalg.norm(wide, axis=0) <= EMPTY * size
    filler = rng.standard_normal(wide.shape) * (FILLER * size / math.sqrt(len(V)))
    return np.where(empty, filler, wide)


def rotated_factor(V: np.ndarray) -> np.ndarray:
    """Return V rotated to orthogonal columns of descending norm."""
    return V @ np.linalg.svd(V, full_matrices=False)[2].T
