"""A search that approaches weights of very different sizes in stages.

The stages limit the weights (`posquad.recovery.weighting`). Starts are compared with limited
weights, and the best end is followed to those of the user. There it is compared with the ends of
direct starts: the best fit for limited weights may follow a poorer valley.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from posquad.core.arrays import host
from posquad.recovery.candidates import Candidates, Task
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.ranks import TRIAL_STARTS
from posquad.recovery.search import refine, search


def search_in_stages(
    stages: Sequence[ProblemCache],
    shared: ProblemCache,
    rank: int,
    task: Task,
    max_starts: int,
    start: Tensor | None = None,
    *,
    rough: bool = False,
) -> Candidates:
    """Return the better of what the stages lead to, and of what direct starts reach.

    The `stages` are the same problem with limited weights, the least limited last. The answer has
    settled if enough direct starts agree on it, or if enough starts of the first stage agree and no
    direct start is better.
    """
    history, (first, *further) = task.history, stages
    best, history.best = history.best, None
    stage = first
    try:
        with history.paused():
            given = None if start is None else _moved(start, shared, first)
            found = search(first, rank, task, max_starts, given, rough=rough)
            for after in further:
                U, stage = _moved(found.U, stage, after), after
                found = refine(stage, U, task, found)
    finally:  # also at Ctrl-C, which keeps the best for the weights of the user
        history.best = better_of(shared, best, stage, history.best)
    followed = _moved(found.U, stage, shared)
    few = min(max_starts, TRIAL_STARTS)
    direct = search(shared, rank, task, few, followed, rough=rough)
    if rough:
        return direct
    with history.paused():
        end = refine(shared, followed, task, found)
    least = (1 + shared.acceptance.agreement) * direct.residual
    if end.residual > least and not direct.settled:  # direct starts lead farther: try more of them
        direct = search(shared, rank, task, max_starts, direct.U)
    elif end.residual < direct.residual:
        direct = replace(direct, U=end.U, residual=end.residual, known=None)
    settled = direct.settled | (found.settled & (end.residual <= least))
    return replace(direct, settled=settled, starts=direct.starts + found.starts)


def better_of(
    shared: ProblemCache, best: Candidates | None, stage: ProblemCache, found: Candidates | None
) -> Candidates | None:
    """Return the better of two candidates, of which the second was found in another stage."""
    if found is None:
        return best
    U = _moved(found.U, stage, shared)
    found = replace(found, U=U, residual=host(shared.problem.relative_residual(U)), known=None)
    return found if best is None or found.residual < best.residual else best


def _moved(U: Tensor, before: ProblemCache, after: ProblemCache) -> Tensor:
    """Return the factor in the coordinates of another stage."""
    return after.prepared.enter(before.prepared.restore(U))
