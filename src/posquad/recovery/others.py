"""Look for a second matrix that reproduces the responses.

Local uniqueness is judged by the curvature. A separate second solution can only be found by a
search. A search that finds none proves nothing, so the result holds the number of starts tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from posquad.core.linalg import norm, symmetric_part
from posquad.dynamics.loop import iterate
from posquad.geometry import dimension
from posquad.problems.measurements import RankOne
from posquad.recovery.search import Candidates, Task, common_noise
from posquad.recovery.shared import Shared, positive_part
from posquad.recovery.solvers.fit import FitState, at_rounding, stagnated, stationary
from posquad.recovery.solvers.lbfgs import PopulationLBFGS
from posquad.recovery.solvers.levenberg import Levenberg

_ROUND = 1_000_000  # round of the random numbers, far above the rounds of a search
_ENTRIES = 2**23  # entries of the starts that run together


def find_second_solution(
    shared: Shared, found: Candidates, task: Task, apart: Tensor, *, nongeneric: bool
) -> tuple[Tensor, Tensor]:
    """Return where `[...]` some start leads to a different solution, and the numbers of starts.

    Two solutions are different if their relative distance exceeds `apart[...]`. Every problem is
    tried from random starts and, where n x n systems are affordable, from other interpolants: a
    second solution differs from the first by a matrix that A does not see. Where the design is
    `nongeneric` (one problem only), its symmetries are tried as well: inputs with zeros, signs or
    few distinct values can have separate solutions that differ by the signs or the order of
    coordinates.
    """
    U, schedule, sizes = found.U, shared.tuning.schedule, shared.tuning.sizes
    d, r = U.shape[-2:]
    n, p = shared.problem.n, dimension(d, r)
    none = torch.zeros_like(found.residual, dtype=torch.bool)
    if n * d * r > sizes.others_entries and not nongeneric:
        return none, torch.zeros_like(found.starts)
    many, most, least = (
        max(1, schedule.others_round),
        schedule.others_most,
        schedule.agreeing_others,
    )
    if nongeneric:
        least = 3 * least
    elif n >= dimension(d, min(2 * r, d)):
        # Rows in general position determine every matrix of rank r, because A does not vanish on
        # matrices of rank 2r; only the structure of a design can have two solutions.
        many, least = max(1, many // 2), least // 4
    if not sizes.is_overhead(n, d, r, p):
        many = most = schedule.large_others
    different, reached, used = none, torch.zeros_like(found.starts), torch.zeros_like(found.starts)
    together = max(1, _ENTRIES // max(n * d * r, min(n, d * r) ** 2) // max(1, none.numel()))
    for starts, random in _rounds(shared, U, task, many, most, nongeneric=nongeneric):
        active = ~different & (reached < least)  # a problem ends as it would alone
        if not bool(active.any()):
            break
        ends = [_ends(shared, found, task, part, apart) for part in starts.split(together)]
        reproduced, elsewhere = (torch.cat(parts) for parts in zip(*ends, strict=True))
        different = different | (active & (reproduced & elsewhere).any(0))
        # The first ones are not independent: they begin near the first solution.
        reached = reached + active * reproduced[-random:].sum(0)
        used = used + active * len(starts)
        if task.history.budget.spent:
            break
    return different, used


def _rounds(
    shared: Shared, U: Tensor, task: Task, many: int, most: int, *, nongeneric: bool
) -> Iterator[tuple[Tensor, int]]:
    """Yield rounds of starts `[S, ..., d, r]`; so many at the end of them are independent of U.

    The first round holds symmetric copies as well, and other interpolants unless it is the only
    one. There are `most` random starts in all, `many` in the first round and up to four times as
    many in each of the next ones.
    """
    d, r = U.shape[-2:]
    size = torch.linalg.matrix_norm(U)[..., None, None] / math.sqrt(d * r)
    first = []
    if nongeneric:
        first.append(_symmetric_copies(shared, U, task, shared.tuning.schedule.symmetric_others))
    if many < most and shared.problem.n <= shared.tuning.sizes.kernel_samples:
        first.append(_other_interpolants(shared, U, task.seed, many // 2))
    count, round = 0, 0
    while count < most:
        step = min(many << min(round, 2), most - count)
        random = size * common_noise(task.seed, _ROUND + round, U, step, d, r)
        yield torch.cat([*first, random]), step
        count, round, first = count + step, round + 1, []


def _ends(
    shared: Shared, found: Candidates, task: Task, starts: Tensor, apart: Tensor
) -> tuple[Tensor, Tensor]:
    """Which starts `[S, ..., d, r]` end at an interpolant, and which far from U, `[S, ...]`."""
    problem, U, sizes = shared.problem, found.U, shared.tuning.sizes
    p, near = dimension(problem.d, found.rank), shared.tuning.schedule.ample
    dense = problem.n <= sizes.kernel_samples and problem.n < near * p
    dense = dense or sizes.is_overhead(problem.n, problem.d, found.rank, p)
    method = Levenberg(problem, found.rank) if dense else PopulationLBFGS(problem)
    schedule, budget = shared.tuning.schedule, task.history.budget
    steps, patience, rate = schedule.others_steps, schedule.others_patience, schedule.others_rate
    ends = [at_rounding(), stationary(), stagnated(patience, rate), budget.rule()]
    state: FitState = iterate(
        method,  # pyright: ignore[reportArgumentType]
        method.start(starts),
        [*ends, budget.quota(steps if dense else 3 * steps)],
        record=task.history,
    )
    V = state.U
    size = (U.mT @ U).square().sum((-2, -1))
    # ||VV' - UU'||^2, to an accuracy of eps ||UU'||^2
    away = (V.mT @ V).square().sum((-2, -1)) + size - 2 * (U.mT @ V).square().sum((-2, -1))
    return state.residual <= task.tolerance, away > apart.square() * size


def _other_interpolants(shared: Shared, U: Tensor, seed: int, many: int) -> Tensor:
    """Return parts of rank r of other symmetric matrices with the same responses, as starts.

    `Q + H` has the responses of Q if `A(H) = 0`; H is a random symmetric matrix less the part that
    A sees, `A*(K^{-1} A(G))` with `K = A A*` and a small ridge, because this is only a start. Its
    lengths are from a tenth to four times that of Q.
    """
    operator, (d, r) = shared.problem.operator, U.shape[-2:]
    G = symmetric_part(common_noise(seed, _ROUND - 1, U, many, d, d))
    K = operator.gram().square()
    ridge = 1e-10 * K.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    K = K + torch.diag_embed(ridge.expand(K.shape[:-1]))
    seen = operator.apply_kernel(G).movedim(0, -1)  # [..., n, many]
    seen = torch.cholesky_solve(seen, torch.linalg.cholesky(K)).movedim(-1, 0)
    H = G - operator.adjoint_kernel(seen)
    Q = U @ U.mT
    lengths = torch.tensor([1.0, 0.1, 2.0, 0.3, 4.0, 0.5], dtype=U.dtype, device=U.device)
    lengths = lengths.repeat(many)[:many].reshape(-1, *(1,) * (H.ndim - 1))
    ratio = norm(Q, (-2, -1)) / norm(H, (-2, -1)).clamp_min(1e-300)
    return positive_part(Q + lengths * ratio[..., None, None] * H, r)


def _symmetric_copies(shared: Shared, U: Tensor, task: Task, many: int) -> Tensor:
    """Return starts that flip blocks or signs of coordinates of U, or permute them.

    They do so in the user's coordinates, in which the inputs have their structure.
    """
    transform = shared.prepared.transform
    back = torch.linalg.pinv(transform)
    V = transform @ U
    generator = torch.Generator().manual_seed(task.seed)
    coins = torch.randn(many, len(V), 1, generator=generator, dtype=U.dtype).to(U.device).sign()
    orders = torch.rand(many, len(V), generator=generator).argsort(-1).to(U.device)
    blocks = block_signs(shared.problem.operator.transformed(back))
    return back @ torch.cat([blocks * V, coins * V, V[orders]])


def block_signs(operator: RankOne) -> Tensor:
    """Return signs `[B, d, 1]` that flip one block of coordinates each.

    No row of X has entries both inside and outside a block.
    """
    shared = operator.absolute_moments()
    joined = shared > 1e-12 * operator.largest_entry() ** 2
    for _ in range(max(1, math.ceil(math.log2(operator.d + 1)))):
        joined = (joined.to(shared) @ joined.to(shared)) > 0
    blocks = joined.unique(dim=0)
    return 1 - 2 * blocks.to(shared)[..., None]
