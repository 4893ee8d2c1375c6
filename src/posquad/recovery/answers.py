"""Answers in the user's coordinates, with their statuses, from what a search has found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from posquad.core.arrays import host
from posquad.problems.combination import positive_combination
from posquad.problems.measurements import Dense
from posquad.recovery.budget import Budget
from posquad.recovery.candidates import Candidates, Task
from posquad.recovery.diagnose import Diagnosis, diagnose_any, undiagnosed
from posquad.recovery.evidence import Evidence
from posquad.recovery.exclusion import excludes_others
from posquad.recovery.findings import found_evidence
from posquad.recovery.problem import Problem
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.result import Answers, blank_answers
from posquad.recovery.returned import returned_factor
from posquad.recovery.search import search
from posquad.recovery.second_solutions import Radii, SecondSolutionSearch, find_second_solution
from posquad.recovery.second_starts import RANDOM_STARTS
from posquad.recovery.status import is_open

# Entries of the matrices up to which a second solution beside zero is sought. Derived: 32 MB.
_ENTRIES = 2**22


def diagnosed_answers(
    shared: ProblemCache,
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
        second_starts=sought.starts,
        agreeing=sought.agreeing,
        different=sought.different,
        sought=open & (sought.starts > 0) & sought.enough & (not budget.spent),
        spent=np.full_like(evidence.spent, budget.spent),
    )
    U, rank = answer.U, answer.rank
    worse = (
        answer.given > shared.prepared.least
    )  # than Q = 0, in the user's lengths: the search was ended early
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


def _excluded(
    shared: ProblemCache, found: Candidates, open: np.ndarray, budget: Budget
) -> np.ndarray:
    """Return which of the `open` problems have no second solution, because a dual excludes it."""
    if not open.any() or budget.spent or shared.has_rounded_rows:
        return np.zeros_like(open)
    if open.ndim == 0:
        return excludes_others(shared, found.U)
    chosen = torch.from_numpy(open.nonzero()[0]).to(found.U.device)
    excluded = np.zeros_like(open)
    excluded[open] = excludes_others(shared.select(chosen), found.U[chosen])
    return excluded


def _others(
    shared: ProblemCache,
    found: Candidates,
    task: Task,
    diagnosis: Diagnosis,
    open: np.ndarray,
    rank: int,
    *,
    nongeneric: bool,
) -> SecondSolutionSearch[np.ndarray]:
    """Seek a second solution, up to this rank, of the problems that are still `open`."""
    none = np.zeros_like(open, dtype=np.int64)
    sought = SecondSolutionSearch(np.zeros_like(open), none, none.copy(), np.zeros_like(open))
    if not open.any() or task.history.budget.spent:
        return sought
    acceptance = shared.acceptance
    apart = np.maximum(acceptance.apart_errors * diagnosis.error, acceptance.apart)
    near, apart = (torch.as_tensor(v).to(shared.problem.y) for v in (diagnosis.near, apart))
    radii = Radii(near, apart)
    if open.ndim == 0:
        told = find_second_solution(shared, found, task, radii, rank, nongeneric=nongeneric)
        return SecondSolutionSearch(*map(host, told))
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


def zero_answer(
    shared: ProblemCache, ambient: int, task: Task, rank: int | None = None, sure: float = 1.0
) -> Answers:
    """Return Q = 0, for responses or measurements that are all zero, or other terms alone.

    If other terms or nothing give the responses, it is the only answer where a combination of the
    A_i is positive definite; for rows without other terms, where they span the space. Elsewhere a
    matrix of this `rank` is sought whose measurements are zero. `ambient` is the dimension of the
    user's inputs, and `sure` the confidence in rank 0.
    """
    prepared, others, sums = shared.prepared, shared.other_terms, shared.prepared.sums is not None
    least, spent = float(prepared.least), task.history.budget.spent
    reproduced = least <= (task.tolerance if others or sums else 0.0)
    answers = blank_answers(prepared.problem.y[None], ambient, 1)
    evidence = answers.evidence
    evidence.tolerance[:], evidence.residual[:] = task.tolerance, least
    evidence.samples[:], evidence.needed[:] = shared.distinct, ambient
    if others and not sums:
        evidence.samples[:], evidence.needed[:] = shared.distinct + others, others + 1
    evidence.reproduced[:] = evidence.isolated[:] = reproduced
    inputs = int(prepared.count) if sums else prepared.problem.n
    evidence.checked[:] = reproduced and (not others or inputs > others)
    evidence.best[:] = (bool(others) or sums) and not (reproduced or spent)
    if not reproduced:
        evidence.error[:] = np.nan
    evidence.spans[:] = int(prepared.span) == ambient
    answers.confidence[:] = sure
    if reproduced:
        evidence.excluded[:] = _sees_all_positive(shared)
        if others and bool(is_open(evidence)[0]):
            evidence = _beside_zero(shared, task, rank or 1, evidence)
    evidence.spent[:] = task.history.budget.spent
    return replace(answers, evidence=evidence)


def _sees_all_positive(shared: ProblemCache) -> bool:
    """Tell whether no positive semidefinite matrix but zero has measurements zero, as is shown."""
    if shared.other_terms:
        return bool(shared.linear) or shared.is_bounded
    operator = shared.problem.operator
    return operator.bounded or positive_combination(operator) is not None


def _beside_zero(shared: ProblemCache, task: Task, rank: int, evidence: Evidence) -> Evidence:
    """Return the evidence with what a search for a matrix with measurements zero has shown.

    It is the solution of the same measurements and `tr Q = 1`.
    """
    operator, y = shared.problem.operator, shared.problem.y
    if operator.n * operator.d**2 > _ENTRIES or shared.has_rounded_rows:
        return evidence
    size = operator.norms.square().sum().div(max(1, operator.n)).sqrt()
    size = torch.where(size > 0, size, 1.0)
    trace = size * torch.eye(operator.d, dtype=y.dtype, device=y.device)
    zero = torch.zeros_like(y)
    problem = Problem(
        Dense.of_checked(torch.cat([operator.matrices, trace[None]])), torch.cat([zero, size[None]])
    )
    plain = {"rows": None, "other_terms": 0, "sums": None, "within": 0.0}
    part = ProblemCache(replace(shared.prepared, problem=problem, **plain), shared.acceptance)
    with task.history.paused():
        most = RANDOM_STARTS * shared.acceptance.others_rounds
        found = search(part, min(rank, operator.d), task, most)
    different = np.reshape(found.residual <= task.tolerance, -1)
    count = np.reshape(found.starts, -1)
    return replace(
        evidence,
        second_starts=count,
        agreeing=np.where(different, 0, count),
        different=different,
        sought=np.full_like(different, not task.history.budget.spent),
    )
