"""Look for a second matrix that reproduces the responses.

Local uniqueness is judged by the curvature. A separate second solution can only be found by a
search. A search that finds none proves nothing, so the result holds the number of starts tried.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posquad.dynamics.loop import iterate
from posquad.geometry import dimension
from posquad.problems.measurements import RankOne
from posquad.recovery.search import Candidates, Task, common_noise
from posquad.recovery.shared import Shared
from posquad.recovery.solvers.fit import FitState, at_rounding, stagnated, stationary
from posquad.recovery.solvers.lbfgs import PopulationLBFGS
from posquad.recovery.solvers.levenberg import Levenberg

_ROUND = 1_000_000  # round of the random numbers, far above the rounds of a search
_ENTRIES = 2**23  # entries of the starts that run together


def find_second_solution(
    shared: Shared, found: Candidates, task: Task, apart: Tensor, *, nongeneric: bool
) -> tuple[Tensor, int]:
    """Return where `[...]` some start leads to a different solution, and the number of starts.

    Two solutions are different if their relative distance exceeds `apart[...]`. Every problem is
    tried from random starts. Where the design is `nongeneric` (one problem only), its symmetries
    are tried as well: inputs with zeros, signs or few distinct values can have separate solutions
    that differ by the signs or the order of coordinates.
    """
    U, schedule, sizes = found.U, shared.tuning.schedule, shared.tuning.sizes
    d, r = U.shape[-2:]
    n, p = shared.problem.n, dimension(d, r)
    none = torch.zeros_like(found.residual, dtype=torch.bool)
    if n * d * r > sizes.others_entries and not nongeneric:
        return none, 0
    if nongeneric:
        many = schedule.others if p <= sizes.dense_unknowns else schedule.others // 8
    else:
        cheap = p <= sizes.overhead_unknowns
        many = schedule.generic_others if cheap else schedule.large_others
    size = torch.linalg.matrix_norm(U)[..., None, None] / math.sqrt(d * r)
    starts = size * common_noise(task.seed, _ROUND, U, many, d, r)
    if nongeneric:
        starts = torch.cat([_symmetric_copies(shared, U, task, many), starts])
    different, used = none, 0
    together = max(1, _ENTRIES // max(n * d * r, min(n, d * r) ** 2) // max(1, none.numel()))
    for part in starts.split(together):
        if task.history.budget.spent:
            break
        different = different | _leads_elsewhere(shared, found, task, part, apart)
        used += len(part)
        if bool(different.all()):
            break
    return different, used


def _leads_elsewhere(
    shared: Shared, found: Candidates, task: Task, starts: Tensor, apart: Tensor
) -> Tensor:
    """Whether one of the starts `[S, ..., d, r]` ends at a different solution, `[...]`."""
    problem, U, sizes = shared.problem, found.U, shared.tuning.sizes
    dense = dimension(problem.d, found.rank) <= sizes.overhead_unknowns
    dense = dense or problem.n <= sizes.kernel_samples
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
    return ((state.residual <= task.tolerance) & (away > apart.square() * size)).any(0)


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
