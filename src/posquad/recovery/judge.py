"""Answers in the user's coordinates, with their statuses, from what a search has found."""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.core.status import Status
from posquad.recovery.budget import Budget
from posquad.recovery.candidates import Candidates, Task
from posquad.recovery.diagnose import Diagnosis, diagnose_any, status_codes, undiagnosed
from posquad.recovery.exclusion import excludes_others
from posquad.recovery.others import Radii, find_second_solution
from posquad.recovery.result import Answers, blank_answers
from posquad.recovery.shared import Shared


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
    budget, residual = task.history.budget, found.residual
    task.history.best = found
    diagnosis = (diagnose_any if diagnose else undiagnosed)(shared, found, budget)
    codes = status_codes(diagnosis, found, shared, task, ambient=ambient)
    excluded = _excluded(shared, found, codes, budget)
    open = (codes == Status.RECOVERED.code) & ~shared.linear & ~excluded
    another, others = _others(shared, found, task, diagnosis, open, nongeneric=nongeneric)
    codes = torch.where(another, Status.NOT_IDENTIFIED.code, codes)
    if budget.spent:  # whether there is another solution is not known
        codes = torch.where(open & ~another, Status.INTERRUPTED.code, codes)
    reproduced = residual <= task.tolerance
    if not diagnose:
        reached = codes == Status.NOT_IDENTIFIED.code
        codes = torch.where(reached, Status.LOSS_REACHED.code, codes)
    rank = torch.full_like(codes, found.rank)
    if not bool(reproduced.all()):
        rank = torch.where(reproduced, rank, numerical_rank(shared, found.singular_values))
    U = shared.prepared.restore(found.U)
    given = shared.prepared.given_residual(found.U, residual)
    worse = given > 1  # than Q = 0, in the user's lengths: the search was ended early
    U = torch.where(worse[..., None, None], 0.0, U)
    # A bound for rows of length one is none for the user's rows.
    even = shared.prepared.rows is not None
    answers = Answers(
        U=U,
        codes=codes,
        residual=given.clamp_max(1.0),
        rank=torch.where(worse, 0, rank),
        confidence=torch.full_like(residual, sure),
        curvature=torch.stack([diagnosis.low, diagnosis.high], dim=-1),
        error=diagnosis.error,
        samples=shared.distinct,
        needed=torch.full_like(rank, diagnosis.needed),
        starts=found.starts,
        excluded=excluded,
        others=others,
        bound=torch.zeros_like(found.bound) if even else found.bound,
    )
    return answers if residual.ndim else answers.one()


def _excluded(shared: Shared, found: Candidates, codes: Tensor, budget: Budget) -> Tensor:
    """Return which of the problems that would be called recovered have no second solution."""
    open = (codes == Status.RECOVERED.code) & ~shared.linear
    if not bool(open.any()) or budget.spent:
        return torch.zeros_like(open)
    if open.ndim == 0:
        return excludes_others(shared, found.U)
    chosen = open.nonzero()[:, 0]
    excluded = excludes_others(shared.select(chosen), found.U[chosen])
    return torch.zeros_like(open).index_copy(0, chosen, excluded)


def _others(
    shared: Shared,
    found: Candidates,
    task: Task,
    diagnosis: Diagnosis,
    open: Tensor,
    *,
    nongeneric: bool,
) -> tuple[Tensor, Tensor]:
    """Seek a second solution of the problems that are still `open`.

    Return where there is one, and the number of starts.
    """
    count = torch.zeros_like(open, dtype=torch.int64)
    none = torch.zeros_like(open)
    if not bool(open.any()) or task.history.budget.spent:
        return none, count
    apart = torch.clamp_min(100 * diagnosis.error, shared.tuning.acceptance.apart)
    radii = Radii(diagnosis.near, apart)
    if open.ndim == 0:
        return find_second_solution(shared, found, task, radii, nongeneric=nongeneric)
    chosen = open.nonzero()[:, 0]
    part = shared.select(chosen)
    another, starts = find_second_solution(
        part, found.select(chosen), task, radii.select(chosen), nongeneric=False
    )
    return none.index_copy(0, chosen, another), count.index_copy(0, chosen, starts)


def zero_answer(shared: Shared, X: Tensor) -> Answers:
    """Return Q = 0, for responses or inputs that are all zero.

    If `y = 0` and the inputs span the space, Q = 0 is the only answer: Qx_i = 0 for all i.
    """
    prepared = shared.prepared
    answers = blank_answers(X[None], 1)
    answers.samples = shared.distinct[None]
    answers.needed = torch.full_like(answers.rank, X.shape[-1])
    if bool(prepared.problem.y.any()):  # the inputs are zero, but not the responses
        answers.residual = torch.ones_like(answers.residual)
        answers.error = torch.full_like(answers.error, torch.nan)
    spans = int(prepared.span) == X.shape[-1]
    status = Status.RECOVERED if spans else Status.UNDETERMINED
    answers.codes = torch.full_like(answers.rank, status.code)
    return answers


def numerical_rank(shared: Shared, s: Tensor) -> Tensor:
    """Return the numerical rank of a factor with singular values `s[..., r]`.

    It is 0 if the predictions are negligible beside the responses.
    """
    problem, negligible = shared.problem, shared.tuning.acceptance.negligible
    squares = s.square()
    matters = squares > negligible * squares[..., :1]
    predicted = squares[..., 0] * problem.operator.squared_lengths.mean(-1)
    mean = torch.linalg.vector_norm(problem.y, 1, dim=-1) / problem.n  # without a copy
    nothing = predicted <= negligible * mean
    return torch.where(nothing, 0, matters.sum(-1))
