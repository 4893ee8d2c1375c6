"""Answers in the user's coordinates, with their statuses, from what a search has found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from posquad.core.arrays import host
from posquad.problems.combination import positive_combination
from posquad.problems.measurements import RankOne
from posquad.recovery.budget import Budget
from posquad.recovery.candidates import Candidates, Task
from posquad.recovery.diagnose import Diagnosis, diagnose_any, undiagnosed
from posquad.recovery.exclusion import excludes_others
from posquad.recovery.findings import found_evidence
from posquad.recovery.others import Radii, Sought, find_second_solution
from posquad.recovery.result import Answers, blank_answers
from posquad.recovery.returned import returned_factor
from posquad.recovery.shared import Shared
from posquad.recovery.status import is_open


def judge(
    shared: Shared,
    found: Candidates,
    task: Task,
    sure: float,
    ambient: int,
    *,
    among: int | None = None,
    nongeneric: bool,
    diagnose: bool,
) -> Answers:
    """Diagnose what was found, and return the answers in the user's coordinates.

    `sure` is the confidence in the rank, `ambient` the dimension of the user's inputs. Other
    solutions are sought up to the rank `among`, that of the answer by default. Nongeneric inputs
    may have second solutions of their own kind. Without `diagnose`, nothing is said about whether
    the data determine the answer.
    """
    budget = task.history.budget
    task.history.best = found
    answer = returned_factor(shared, found, task.tolerance)
    bound = shared.prepared.of_all_samples(found.bound)
    found = replace(found, residual=answer.residual, bound=bound, known=found.singular_values)
    diagnosis = (diagnose_any if diagnose else undiagnosed)(shared, found, answer.rank, budget)
    evidence = found_evidence(diagnosis, found, answer, shared, task, ambient=ambient)
    if not diagnose:
        evidence = replace(evidence, diagnosed=np.zeros_like(evidence.diagnosed))
    evidence = replace(evidence, excluded=_excluded(shared, found, is_open(evidence), budget))
    open = is_open(evidence)
    with task.history.paused():
        rank = max(found.rank, min(among or 1, shared.problem.d))
        sought = _others(shared, found, task, diagnosis, open, rank, nongeneric=nongeneric)
    evidence = replace(
        evidence,
        others=sought.starts,
        agreeing=sought.agreeing,
        different=sought.different,
        sought=open & (sought.starts > 0) & (not budget.spent),
        spent=np.full_like(evidence.spent, budget.spent),
    )
    U, rank = answer.U, answer.rank
    worse = answer.given > 1  # than Q = 0, in the user's lengths: the search was ended early
    if worse.any():
        U, rank = np.where(worse[..., None, None], 0.0, U), np.where(worse, 0, rank)
    answers = Answers(
        U=U,
        rank=rank,
        searched=np.full_like(rank, found.rank),
        confidence=np.full_like(answer.given, sure),
        starts=found.starts,
        evidence=evidence,
    )
    return answers if rank.ndim else answers.one()


def _excluded(shared: Shared, found: Candidates, open: np.ndarray, budget: Budget) -> np.ndarray:
    """Return which of the `open` problems have no second solution, because a dual excludes it."""
    if not open.any() or budget.spent:
        return np.zeros_like(open)
    if open.ndim == 0:
        return excludes_others(shared, found.U)
    chosen = torch.from_numpy(open.nonzero()[0]).to(found.U.device)
    excluded = np.zeros_like(open)
    excluded[open] = excludes_others(shared.select(chosen), found.U[chosen])
    return excluded


def _others(
    shared: Shared,
    found: Candidates,
    task: Task,
    diagnosis: Diagnosis,
    open: np.ndarray,
    rank: int,
    *,
    nongeneric: bool,
) -> Sought[np.ndarray]:
    """Seek a second solution, up to this rank, of the problems that are still `open`."""
    none = np.zeros_like(open, dtype=np.int64)
    sought = Sought(np.zeros_like(open), none, none.copy())
    if not open.any() or task.history.budget.spent:
        return sought
    acceptance = shared.tuning.acceptance
    apart = np.maximum(acceptance.apart_errors * diagnosis.error, acceptance.apart)
    near, apart = (torch.as_tensor(v).to(shared.problem.y) for v in (diagnosis.near, apart))
    radii = Radii(near, apart)
    if open.ndim == 0:
        told = find_second_solution(shared, found, task, radii, rank, nongeneric=nongeneric)
        return Sought(*map(host, told))
    chosen = torch.from_numpy(open.nonzero()[0]).to(found.U.device)
    told = find_second_solution(
        shared.select(chosen),
        found.select(chosen),
        task,
        radii.select(chosen),
        rank,
        nongeneric=False,
    )
    for all, some in zip(sought, told, strict=True):
        all[open] = host(some)
    return sought


def zero_answer(shared: Shared, ambient: int) -> Answers:
    """Return Q = 0, for responses or measurements that are all zero.

    If `y = 0`, it is the only answer where a combination of the A_i is positive definite; for rows,
    where they span the space. `ambient` is the dimension of the user's inputs.
    """
    prepared, operator = shared.prepared, shared.problem.operator
    is_only = isinstance(operator, RankOne) or positive_combination(operator) is not None
    answers = blank_answers(prepared.problem.y[None], ambient, 1)
    evidence = answers.evidence
    evidence.samples[:], evidence.needed[:] = shared.distinct, ambient
    for name in ("reproduced", "checked", "isolated"):
        getattr(evidence, name)[:] = not bool(prepared.problem.y.any())
    evidence.excluded[:] = is_only and not bool(prepared.problem.y.any())
    if bool(prepared.problem.y.any()):  # the inputs are zero
        evidence.residual[:], evidence.error[:] = 1.0, np.nan
    evidence.spans[:] = int(prepared.span) == ambient
    return answers
