"""`recover` for a source of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import require_shape
from posquad.core.errors import DomainError, Interrupted, PosquadError
from posquad.core.ranges import tiny
from posquad.core.status import Status
from posquad.problems.rows.operator import RankOneRows
from posquad.problems.rows.source import Rows
from posquad.recovery.admitted import require_nonnegative_weights, require_positive_weight
from posquad.recovery.budget import History
from posquad.recovery.diagnose import needed_samples
from posquad.recovery.result import Recovery, blank_answers
from posquad.recovery.returned import rotated
from posquad.recovery.streams.checkpoint import CheckpointWriter
from posquad.recovery.streams.curvature import Known
from posquad.recovery.streams.gather import first_samples, sum_of_squares
from posquad.recovery.streams.passes import (
    Polish,
    begin_polish,
    polish,
    relative_residual,
    whitening,
)
from posquad.recovery.streams.subsample import SubsampleFit

# Inputs up to which fourth moments are formed. Derived: 204 MB, for 5050 x 5050 of them.
MOMENT_MOST = 100
# Entries of X that are read into memory. Derived: 128 MB.
MEMORY_ENTRIES = 2**24
# Inputs up to which moments are formed for any number of rows. A choice: 820^2 / 2 products per row
# take some ten microseconds, which is little beside reading and parsing it.
_MOMENT_ALWAYS = 40
# Products up to which moments are formed of more inputs than that. A choice: about a minute.
_MOMENT_OPERATIONS = 4e12
# Expected decrease of the loss, relative to it, at which a descent ends. Derived: about 50 eps, the
# rounding of the loss.
_ACCURACY = 1e-14


def own_responses(source: Rows, y: object, weights: object | None) -> tuple[Any, Any]:
    """Return responses and weights: those that are given, or else those of the source.

    >>> from posquad.problems import rows
    >>> own_responses(rows.in_memory(np.ones((2, 1))), [1.0, 2.0], None)
    ([1.0, 2.0], None)
    """
    y = getattr(source, "y", None) if y is None else y
    if y is None:
        expected = "responses, because this source of rows has none"
        raise DomainError("y", expected=expected, got="None")
    return y, getattr(source, "weights", None) if weights is None else weights


def admitted_responses(
    source: Rows, y: object, weights: object | None
) -> tuple[Tensor, Tensor | None]:
    """Return checked responses and weights, one per row that is held here."""
    problem, checked = None, None
    try:
        checked = _checked(source, y, weights)
    except PosquadError as found:
        problem = found
    source.check_same(problem, "weights" if weights is not None else "no weights")
    assert checked is not None, "a problem is raised"
    responses, w = checked
    if w is not None:
        require_positive_weight(source.largest(w.amax() if len(w) else w.new_zeros(())))
    return responses, w


def _checked(source: Rows, y: object, weights: object | None) -> tuple[Tensor, Tensor | None]:
    responses = source.admit_values("y", y).cpu()  # type: ignore[arg-type]
    require_shape("y", responses, (source.held,), "(n,), one response per row")
    if responses.ndim != 1:
        expected = "one problem: a source of rows has no batch"
        raise DomainError("y", expected=expected, got=f"shape {tuple(responses.shape)}")
    if weights is None:
        return responses, None
    w = source.admit_values("weights", weights).cpu()  # type: ignore[arg-type]
    require_shape("weights", w, (source.held,), "(n,), one weight per row")
    require_nonnegative_weights(w)
    return responses, w


def moments_pay(source: Rows, *, needed: bool = False) -> bool:
    """Tell whether to form moments, which take `n d^4 / 16` products, or to pass over the rows.

    If an option needs moments, whatever they cost, they are formed up to `MOMENT_MOST` inputs.

    >>> from posquad.problems import rows
    >>> [moments_pay(rows.in_memory(np.ones((9, d)))) for d in (10, 60, 300)]
    [True, True, False]
    """
    pairs = source.d * (source.d + 1) // 2
    few = source.n * pairs**2 <= _MOMENT_OPERATIONS or source.d <= _MOMENT_ALWAYS
    return (few or needed) and source.d <= MOMENT_MOST


def recover_by_passes(
    source: Rows,
    y: Tensor,
    weights: Tensor | None,
    level: float,
    history: History,
    in_memory: Callable[[Tensor, Tensor, Tensor | None], Recovery],
    writer: CheckpointWriter,
) -> Recovery:
    """Solve for the rows that fit into memory, then descend on all rows, one pass per step.

    `in_memory(X, y, weights)` solves a problem in memory. It chooses the rank if none is given, and
    its status says what these rows identify; its curvature is theirs. The keeper saves where the
    descent is; if the rows are shared, at the beginning of a step, by the process that decides. The
    passes are made on the device of the source, everything else on the CPU.
    """
    operator: RankOneRows = RankOneRows(source.to(torch.float64))
    source = source.to(device="cpu")
    if weights is not None:  # of mean about one, as the expected curvature has it; the same digits
        mean = float(source.total(weights.double().sum())) / source.n
        weights = weights.double() * 2.0 ** -round(math.log2(mean))
    first = first_samples(source, y, weights, max(1, MEMORY_ENTRIES // source.d))
    X = first[0].double()
    known = Known(X, None if first[2] is None else first[2].double(), source.n)
    state = source.broadcast(lambda: writer.state)

    def begin() -> tuple[SubsampleFit | Recovery, Tensor]:
        metric = whitening(X.T @ X / len(X))
        if state is not None:
            return SubsampleFit.from_store(state.numbers["begun"], state.arrays), metric
        found = in_memory(X, *first[1:])
        if not int(found.rank) or found.status in (Status.UNDETERMINED, Status.INTERRUPTED):
            return found, metric
        return SubsampleFit.of(found), metric

    try:
        begun, metric = source.broadcast(begin)
    except Interrupted as stop:
        raise Interrupted(replace(stop.result, rows=source.n)) from stop
    if isinstance(begun, Recovery):
        return replace(begun, rows=source.n)
    size = sum_of_squares(source, y, weights)
    history.budget.steps, history.rank = begun.steps, begun.U.shape[1]  # the limit is on all steps
    run = begin_polish(begun.U, metric)
    if state is not None:
        run = Polish.from_store(state.numbers, state.arrays)
        history.add([relative_residual(loss, size) for loss in run.losses[: run.steps]])
        history.budget.count(max(run.steps - 1, 0))
        writer.resumes(f"passes over all rows so far: {len(run.losses)}")

    def stopped(residual: float) -> bool:
        # The first pass, at the start, is not a step.
        history.note(np.array([residual]), np.array([True]), step=bool(history.residuals))
        return source.broadcast(lambda: history.budget.spent)

    def keep(run: Polish) -> None:
        if writer.due and not source.rank:
            whole = replace(run, partial=None) if source.is_shared else run  # sums are each one's
            numbers, arrays = whole.to_store()
            words, more = begun.to_store()
            writer.save("passes", {**numbers, "begun": words}, {**arrays, **more})

    run = polish(
        operator,
        y.double(),
        None if weights is None else weights.double(),
        run,
        metric,
        size=size,
        level=level,
        accuracy=_ACCURACY,
        stopped=stopped,
        known=known,
        keep=keep,
    )
    if run.losses and not math.isfinite(run.loss):  # find the row, which only the pass has seen
        _refuse_rows(source)
    # Ctrl-C in the first pass leaves the answer of the rows in memory.
    residual = relative_residual(run.loss, size) if run.losses else float(begun.evidence.residual)
    spent = run.interrupted or source.broadcast(lambda: history.budget.spent)
    r, before = begun.U.shape[1], begun.evidence
    evidence = before.updated(
        residual=residual,
        reproduced=residual <= level and not spent,
        best=run.converged and not spent,
        bound=0.0,
        worst=math.nan,
        error=float(before.error) * max(residual / (float(before.residual) or 1.0), tiny()),
        needed=needed_samples(source.d, r),
        spent=spent,
    )
    answers = blank_answers(torch.empty(1, 1, dtype=torch.float64), source.d, r)
    answers.U[0], answers.rank[:] = rotated(run.U.numpy(), np.array(r)), r
    answers.searched[:], answers.confidence[:], answers.starts[:] = (
        r,
        begun.confidence,
        begun.starts,
    )
    answers = replace(answers, evidence=evidence.each(lambda value: np.asarray(value)[None]))
    found = answers.recovery(torch.Size(), np.empty(0), history, source.n)
    found = replace(found, rank_path=begun.path)
    if run.interrupted:  # this process alone: the others see that it leaves
        raise Interrupted(found)
    return found


def recover_collected(
    source: Rows,
    y: Tensor,
    weights: Tensor | None,
    in_memory: Callable[[Tensor, Tensor, Tensor | None], Recovery],
) -> Recovery:
    """Return the answer of one process, to which the few rows of all of them are given."""
    _refuse_rows(source)
    X, responses = source.collect(source.read_all()), source.collect(y)
    w = None if weights is None else source.collect(weights)
    return source.broadcast(lambda: in_memory(X, responses, w))


def _refuse_rows(source: Rows) -> None:
    """Refuse rows that are not finite, and say which."""
    problem = None
    try:
        for rows, block in source.blocks():
            source.require_finite(rows, block)
    except PosquadError as found:
        problem = found
    source.check_same(problem)
