"""Candidates of a lower or a higher rank, where the search at one rank leaves a choice."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from posquad.recovery.candidates import Candidates, Task, visible
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.ranks import TRIAL_STARTS, Solve, leading_columns
from posquad.recovery.search import refine

# A lower rank still reproduces the responses if its residual is at most this multiple of eps. A
# choice: five times the rounding at which nothing is left to correct (`solvers.mixed.LEVEL`).
_ROUNDING = 100
# The same as a multiple of the residual of the higher rank. A choice: an eigenvalue that is needed
# changes the residual by more, unless it is itself at rounding.
_AS_WELL = 10


def lower_if_possible(
    found: Candidates, solve: Solve, shared: ProblemCache, task: Task
) -> Candidates:
    """Return candidates of a lower rank if they also reproduce the responses, else the given ones.

    With more samples than unknowns of the lower rank, that does not happen by chance. The rank can
    be lower because columns of the factor vanish, or because there are too few samples to determine
    a factor of the given rank. The second is not tried at rank d, where the answer is that of a
    convex problem: searches at lower ranks can take a thousand times as long.
    """
    if float(found.residual) <= task.tolerance:
        for rank in range(int(_visible_rank(found, shared)), found.rank):
            candidate = refine(shared, leading_columns(found.U, rank), task, found)
            if bool(_still_reproduces(candidate, found, task.tolerance)):
                return candidate
    d = shared.problem.d
    hopeless = float(found.bound) > task.tolerance  # it is proved that nothing reproduces
    if hopeless or found.rank == d or bool(shared.suffices(found.rank)):
        return found
    for rank in range(1, found.rank):
        if not bool(shared.suffices(rank)) or task.history.budget.spent:
            break
        candidate = solve(rank, TRIAL_STARTS)
        if float(candidate.residual) <= task.tolerance:
            return candidate
    return found


def lower_together(
    found: Candidates, shared: ProblemCache, task: Task, chosen: np.ndarray
) -> Iterator[tuple[np.ndarray, Candidates]]:
    """Leave out vanishing columns of the problems of a batch at these indices, as above.

    Yields indices and their candidates of a lower rank; problems that need all columns are missing.
    """
    needed = _visible_rank(found, shared)
    for rank in range(1, found.rank):
        now = needed[chosen] <= rank
        tried = chosen[now]
        if not len(tried):
            continue
        index = torch.from_numpy(tried).to(found.U.device)
        part = found.select(index)
        candidate = refine(shared.select(index), leading_columns(part.U, rank), task, part)
        good = _still_reproduces(candidate, part, task.tolerance)
        taken = candidate.select(torch.from_numpy(good).to(index.device))
        yield tried[good], taken
        chosen = np.concatenate([chosen[~now], tried[~good]])


def _visible_rank(found: Candidates, shared: ProblemCache) -> np.ndarray:
    """Return how many eigenvalues of Q are not negligible, at least 1, `[...]`."""
    seen = visible(found.singular_values, shared.acceptance.negligible)
    return np.maximum(seen.sum(-1), 1)


def _still_reproduces(lower: Candidates, found: Candidates, tolerance: float) -> np.ndarray:
    """Whether a lower rank reproduces as well; a small eigenvalue may still be needed, `[...]`."""
    rounding = _ROUNDING * torch.finfo(found.U.dtype).eps
    most = np.maximum(_AS_WELL * found.residual, rounding)
    return lower.residual <= np.minimum(most, tolerance)


def raise_if_better(
    found: Candidates, solve: Solve, shared: ProblemCache, task: Task, most: int
) -> Candidates:
    """Return candidates of a higher rank if they reduce a residual near the tolerance by far.

    The effect of a small eigenvalue on few samples can be below the tolerance.
    """
    count = int(shared.prepared.count)
    acceptance = shared.acceptance
    while (
        acceptance.nearly * task.tolerance < float(found.residual) <= task.tolerance
        and found.rank < most
        and bool(shared.suffices(found.rank + 1))
        and count > shared.unknowns(found.rank + 1)
        and not task.history.budget.spent
    ):
        higher = solve(found.rank + 1, TRIAL_STARTS)
        if float(higher.residual) > acceptance.gain * float(found.residual):
            break
        found = higher
    return found
