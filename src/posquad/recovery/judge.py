"""Answers in the user's coordinates, with their statuses, from what a search has found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from posquad.core.arrays import host
from posquad.core.status import Status
from posquad.recovery.budget import Budget
from posquad.recovery.candidates import Candidates, Task
from posquad.recovery.diagnose import Diagnosis, diagnose_any, undiagnosed
from posquad.recovery.exclusion import excludes_others
from posquad.recovery.others import Radii, Sought, find_second_solution
from posquad.recovery.result import Answers, blank_answers
from posquad.recovery.returned import returned_factor
from posquad.recovery.shared import Shared
from posquad.recovery.statuses import status_codes


def judge(
    shared: Shared,
    found: Candidates,
    task: Task,
    sure: float,
    ambient: int,
    *,
    nongeneric: bool,
    diagnose: bool,
) -> Answers:
    """Diagnose what was found, and return the answers in the user's coordinates.

    `sure` is the confidence in the rank, `ambient` the dimension of the user's inputs. Nongeneric
    inputs may have second solutions of their own kind. Without `diagnose`, nothing is said about
    whether the data determine the answer.
    """
    budget = task.history.budget
    task.history.best = found
    answer = returned_factor(shared, found, task.tolerance)
    bound = shared.prepared.of_all_samples(found.bound)
    found = replace(found, residual=answer.residual, bound=bound, known=found.singular_values)
    diagnosis = (diagnose_any if diagnose else undiagnosed)(shared, found, answer.rank, budget)
    codes = status_codes(diagnosis, found, answer, shared, task, ambient=ambient)
    excluded = _excluded(shared, found, codes, budget)
    open = (codes == Status.RECOVERED.code) & ~shared.linear & ~excluded
    with task.history.paused():
        sought = _others(shared, found, task, diagnosis, open, nongeneric=nongeneric)
    another = sought.different
    codes[another] = Status.NOT_IDENTIFIED.code
    if budget.spent:  # whether there is another solution is not known
        codes[open & ~another] = Status.INTERRUPTED.code
    if not diagnose:
        codes[codes == Status.NOT_IDENTIFIED.code] = Status.LOSS_REACHED.code
    U, rank, given = answer.U, answer.rank, answer.given
    worse = given > 1  # than Q = 0, in the user's lengths: the search was ended early
    if worse.any():
        U, rank = np.where(worse[..., None, None], 0.0, U), np.where(worse, 0, rank)
        given = np.minimum(given, 1.0)
    # A bound for rows of length one is none for the user's rows.
    even = shared.prepared.rows is not None
    answers = Answers(
        U=U,
        codes=codes,
        residual=given,
        rank=rank,
        searched=np.full_like(rank, found.rank),
        confidence=np.full_like(given, sure),
        curvature=np.stack([diagnosis.low, diagnosis.high], axis=-1),
        error=diagnosis.error,
        samples=shared.distinct,
        needed=np.full_like(rank, diagnosis.needed),
        starts=found.starts,
        excluded=excluded,
        others=sought.starts,
        others_agreeing=sought.agreeing,
        bound=np.zeros_like(given) if even else np.minimum(found.bound, given),
    )
    return answers if given.ndim else answers.one()


def _excluded(shared: Shared, found: Candidates, codes: np.ndarray, budget: Budget) -> np.ndarray:
    """Return which of the problems that would be called recovered have no second solution."""
    open = (codes == Status.RECOVERED.code) & ~shared.linear
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
    *,
    nongeneric: bool,
) -> Sought[np.ndarray]:
    """Seek a second solution of the problems that are still `open`."""
    none = np.zeros_like(open, dtype=np.int64)
    sought = Sought(np.zeros_like(open), none, none.copy())
    if not open.any() or task.history.budget.spent:
        return sought
    acceptance = shared.tuning.acceptance
    apart = np.maximum(acceptance.apart_errors * diagnosis.error, acceptance.apart)
    near, apart = (torch.as_tensor(v).to(shared.problem.y) for v in (diagnosis.near, apart))
    radii = Radii(near, apart)
    if open.ndim == 0:
        told = find_second_solution(shared, found, task, radii, nongeneric=nongeneric)
        return Sought(*map(host, told))
    chosen = torch.from_numpy(open.nonzero()[0]).to(found.U.device)
    told = find_second_solution(
        shared.select(chosen),
        found.select(chosen),
        task,
        radii.select(chosen),
        nongeneric=False,
    )
    for all, some in zip(sought, told, strict=True):
        all[open] = host(some)
    return sought


def zero_answer(shared: Shared, ambient: int) -> Answers:
    """Return Q = 0, for responses or inputs that are all zero.

    If `y = 0` and the inputs span the space, Q = 0 is the only answer: Qx_i = 0 for all i.
    `ambient` is the dimension of the user's inputs.
    """
    prepared = shared.prepared
    answers = blank_answers(prepared.problem.y[None], ambient, 1)
    answers.samples[:] = shared.distinct
    answers.needed[:] = ambient
    if bool(prepared.problem.y.any()):  # the inputs are zero, but not the responses
        answers.residual[:], answers.error[:] = 1.0, np.nan
    spans = int(prepared.span) == ambient
    status = Status.RECOVERED if spans else Status.UNDETERMINED
    answers.codes[:] = status.code
    return answers
