"""An answer from the moments of samples, by the stages of `posquad.recovery.pipeline`.

The loss is a difference of sums. Where rounding hides it, it is computed from the rows themselves,
if they can be read again; else it is not known, and neither is the status.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from posquad.core.errors import Interrupted
from posquad.core.status import Status
from posquad.core.threads import one_thread
from posquad.problems.moments import SMALL, Moments
from posquad.problems.rows.source import Rows
from posquad.recovery.acceptance import DEFAULT
from posquad.recovery.budget import History
from posquad.recovery.candidates import Task
from posquad.recovery.evidence import Evidence
from posquad.recovery.pipeline import Pipeline
from posquad.recovery.ranks import RankPath
from posquad.recovery.result import Answers, Recovery
from posquad.recovery.search_options import SearchOptions
from posquad.recovery.status import granted
from posquad.recovery.streams.checkpoint import CheckpointWriter
from posquad.recovery.streams.compressed import Affine, Compressed
from posquad.recovery.streams.gather import gather_moments, sum_of_squares

# The source of rows, the responses and the weights of a fit.
Given = tuple[Rows, Tensor, Tensor | None]

_UNLIKE = (
    "the first rows do not represent the rest; shuffle the rows, scale the columns, or give all "
    "rows to fit as a source"
)
_LARGE = (
    "a few rows are very much larger than the others; leave them out, or give them smaller weights"
)
_FREE = (
    "the rows do not determine every symmetric matrix, and the answer is far from the one that the "
    "sums refer to; recover it with the rows in memory, or add rows of another kind"
)


class MomentFit(NamedTuple):
    """An answer from moments."""

    answers: Answers  # a batch of one
    path: list[tuple[int, float, float]]  # ranks tried: rank, residual, score
    lost: str | None = None  # why rounding hides the loss, and with it the status, if it does

    @property
    def U(self) -> np.ndarray:
        """The factor in the user's coordinates, `[d, r]`."""
        return self.answers.U[0][:, : int(self.answers.rank[0])]

    @property
    def evidence(self) -> Evidence:
        """The evidence for the answer."""
        return self.answers.evidence.each(lambda value: value[0])

    def with_evidence(self, evidence: Evidence, **changes: object) -> MomentFit:
        """Return the fit with other evidence, and with changes of other fields."""
        whole = evidence.each(lambda value: np.asarray(value)[None])
        answers = replace(self.answers, evidence=whole)
        return self._replace(answers=answers, **changes)  # type: ignore[arg-type]


def fit_moments(
    moments: Moments,
    wanted: SearchOptions,
    level: float,
    history: History,
    rows: Given | None = None,
) -> tuple[Compressed, MomentFit]:
    """Return the problem that moments pose, and the answer to it.

    `rows` are the source, the responses and the weights, unless they are gone. If the rows are
    shared, one process searches for all of them. Ctrl-C raises `Interrupted` with both, and the
    best answer so far.
    """
    with one_thread(when=moments.d <= SMALL), torch.no_grad():
        problem = Compressed(moments)

        def solve() -> tuple[MomentFit, list, list, int]:
            found = _solve(problem, wanted, level, history)
            told = [float(torch.as_tensor(r).amin()) for r in history.residuals]
            return found, told, history.ranks, history.budget.steps

        try:
            told = solve() if rows is None else rows[0].broadcast(solve)
        except Interrupted as stop:
            raise Interrupted((problem, stop.result)) from stop
        found, history.residuals, history.ranks, history.budget.steps = told
        if found.lost is not None:
            found = _without_loss(found) if rows is None else _read(*rows, problem, found, level)
        return problem, found


def _solve(problem: Compressed, wanted: SearchOptions, level: float, history: History) -> MomentFit:
    task = Task(level, wanted.seed, history)
    rank = None if wanted.rank is None else min(wanted.rank, problem.k)
    call = Pipeline(task, rank, wanted.max_rank, wanted.max_starts, DEFAULT)
    try:
        answers = call.prepared_answer(problem.prepared)
    except KeyboardInterrupt as stop:
        raise Interrupted(MomentFit(call.unfinished_answers(), [])) from stop
    answers.require_range()
    found = MomentFit(answers, call.path)
    lost = _why_lost(problem, found, level)
    if lost is _UNLIKE:  # nothing that the search has judged is known
        found = found.with_evidence(_unknown(found.evidence, found.evidence.residual))
    return found._replace(lost=lost)


def _why_lost(problem: Compressed, found: MomentFit, level: float) -> str | None:
    """Return why rounding of the sums hides how well the factor fits, or None if it does not."""
    status = granted(found.evidence)
    V = problem.enter(found.U)
    loss = problem.loss(V)

    def least(level: float) -> float:
        exact = max(problem.rounding, level**2 * problem.spread)
        return max(DEFAULT.known_loss * loss, exact)

    if problem.doubt > least(level):
        return _UNLIKE
    if bool(found.evidence.escapes):
        return None
    # Where the answer is determined, errors within the tolerance are known well enough.
    level = DEFAULT.hidden_residual if status is Status.NOT_IDENTIFIED else level
    if float(problem.cancellation(V)) <= least(level):
        return None
    return _LARGE if problem.regular else _FREE


def _without_loss(found: MomentFit) -> MomentFit:
    """Say that the loss is not known, and warn."""
    _warn("The error of the fit is lost in rounding", found.lost)
    path = [(rank, math.nan, score) for rank, _, score in found.path]
    unknown = found.with_evidence(_unknown(found.evidence, math.nan), path=path)
    unknown.answers.confidence[:] = math.nan
    return unknown


def _read(
    source: Rows,
    y: Tensor,
    weights: Tensor | None,
    problem: Compressed,
    found: MomentFit,
    level: float,
) -> MomentFit:
    """Compute from the rows themselves the loss that the moments do not know.

    The status holds if both losses are those of responses that are reproduced, or if they agree.
    """
    error = _predictions(source, problem.answer(found.U)) - y.double()
    share = sum_of_squares(source, error, weights) / (sum_of_squares(source, y, weights) or 1.0)
    loss, told = share * problem.squares, problem.loss(problem.enter(found.U))
    agrees = abs(loss - told) <= DEFAULT.known_loss * loss
    reproduced = max(problem.rounding, level**2 * problem.spread)
    evidence, residual = found.evidence, problem.residual(loss)
    if not (agrees or max(loss, told) <= reproduced):
        evidence = _unknown(evidence, residual)
    eps = np.finfo(float).eps
    growth = max(residual, eps) / max(problem.residual(told), eps)
    evidence = evidence.updated(residual=residual, error=float(evidence.error) * growth)
    if granted(evidence) is Status.STALLED:
        _warn("The search did not know the error of the fit", found.lost)
    return found.with_evidence(evidence, lost=None)


def _unknown(evidence: Evidence, residual: float) -> Evidence:
    """Return the evidence of an answer whose error was not known."""
    error = math.nan if math.isnan(residual) else float(evidence.error)
    told = {"residual": residual, "error": error, "bound": 0.0}
    return evidence.updated(reproduced=False, best=False, spent=False, **told)


def _warn(what: str, reason: str | None) -> None:
    warnings.warn(f"{what}, because {reason}.", UserWarning, stacklevel=5)


def _predictions(source: Rows, function: Affine) -> Tensor:
    """Return the values of a function at the rows that are held here, `[n]`."""
    U, center, slope = (torch.from_numpy(part) for part in function[:3])
    values = torch.empty(source.held, dtype=torch.float64)
    for rows, block in source.blocks():
        t = block.cpu().double() - center
        values[rows] = (t @ U).square().sum(-1) + t @ slope + function.value
    return values


def recover_by_moments(
    source: Rows,
    y: Tensor,
    weights: Tensor | None,
    wanted: SearchOptions,
    level: float,
    history: History,
    writer: CheckpointWriter,
) -> Recovery:
    """Return the answer from the moments of the rows, which are read once."""
    moments = gather_moments(source, y, weights, progress=history.progress, writer=writer)
    try:
        _, found = fit_moments(moments, wanted, level, history, (source, y, weights))
    except Interrupted as stop:
        raise Interrupted(_recovery(source, stop.result[1], history)) from stop
    return _recovery(source, found, history)


def _recovery(source: Rows, found: MomentFit, history: History) -> Recovery:
    result = found.answers.recovery(torch.Size(), np.empty(0), history, source.n)
    if found.path:
        columns = np.array(found.path).T
        path = RankPath(columns[0].astype(np.int64), columns[1], columns[2])
        result = replace(result, rank_path=path)
    return result
