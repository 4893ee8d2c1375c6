"""Moments of a source of rows, in one pass over it, or a few if its first rows are unlike it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from posquad.core.errors import PosquadError
from posquad.core.progress import Progress
from posquad.core.twofold import Twofold, from_doubles
from posquad.problems.moments import Moments, Terms, begin_moments
from posquad.problems.rebasing import improved, is_accurate
from posquad.problems.rows.source import Rows
from posquad.recovery.streams.checkpoint import CheckpointWriter

# Passes that may show that coordinates or the reference do not suit the rows. A choice: the sums of
# one pass give both for the next, so that a second one is needed only if rounding hides them.
_PASSES = 3
# Rows up to which a stream is kept in memory. A choice: 3 MB at d = 100, so that small streams are
# solved as arrays.
_FEWEST = 4096
# Responses whose squares are summed at a time. Derived: 8 MB.
_SUMMED = 2**20


def kept_rows(d: int, terms: Terms = "none") -> int:
    """Return how many rows are kept in memory before moments replace them.

    They are twice the unknowns of a symmetric matrix, so that the first rows determine one.

    >>> kept_rows(3), kept_rows(100)
    (4096, 10100)
    """
    k = d + (terms != "none")
    return max(_FEWEST, k * (k + 1))


def gather_moments(
    source: Rows,
    y: Tensor,
    weights: Tensor | None,
    *,
    terms: Terms = "none",
    progress: Callable[[Progress], None] | None = None,
    writer: CheckpointWriter | None = None,
) -> Moments:
    """Return the moments of all samples; besides the first rows, the source is read once.

    If the first rows do not represent the rest, it is read again, with coordinates and a reference
    fit that come from the sums over all rows. `y` and `weights` have one entry per row held here.
    A row that is not finite is named. The keeper saves the sums while rows are read, and at the end
    of every pass; a state that it holds is gone on from.
    """
    writer = writer or CheckpointWriter()
    known = _resumed(source, writer)
    if known is not None:
        moments, number, done = known
    else:
        first = first_samples(source, y, weights, kept_rows(source.d, terms))
        moments = source.broadcast(lambda: begin_moments(*_some(*first), terms=terms))
        number, done = 0, 0
    while True:
        read = _Pass(source, y, weights, number, writer, progress)
        read.add_all(moments, done)
        whole = moments
        better = None
        if number < _PASSES:
            better = source.broadcast(lambda m=whole: None if is_accurate(m) else improved(m))
        if better is None:
            return moments
        moments, number, done = better, number + 1, 0


class _Pass(NamedTuple):
    """One pass over the rows."""

    source: Rows
    y: Tensor
    weights: Tensor | None
    number: int
    writer: CheckpointWriter
    progress: Callable[[Progress], None] | None

    def add_all(self, moments: Moments, done: int) -> None:
        """Add the samples of everyone, from the row `done` of those held here on."""
        source, problem = self.source, None
        moments.narrow = torch.float32 in (source.dtype, self.y.dtype)
        try:
            for rows, block in source.blocks(done):
                source.require_finite(rows, block)
                w = None if self.weights is None else self.weights[rows]
                moments.add(block, self.y[rows], w)
                if self.progress is not None:
                    self.progress(Progress(float(rows.stop), float(source.held), math.nan, 1))
                if self.writer.due:
                    self._save(moments, rows.stop)
            if not done or done < source.held:
                self._save(moments, source.held)
        except PosquadError as found:
            problem = found
        source.check_same(problem)
        if source.is_shared:
            sums = moments.sums
            if self.writer.checkpoint is not None:  # which holds those of this process
                sums = Twofold(sums.high.clone(), sums.low.clone())
            moments.sums = source.total_twofold(sums)
            moments.narrow = bool(source.largest(torch.tensor(float(moments.narrow))))
            moments.count = int(source.total(torch.tensor(moments.count)))
            moments.largest = float(source.largest(torch.tensor(moments.largest)))

    def _stored(self, moments: Moments, done: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        body, arrays = moments.to_store()
        return {**body, "pass": self.number, "rows": done}, arrays

    def _save(self, moments: Moments, done: int) -> None:
        self.writer.save("moments", *self._stored(moments, done))


def _resumed(source: Rows, writer: CheckpointWriter) -> tuple[Moments, int, int] | None:
    """Return the moments of a state, its pass, and how many of the rows held here they have.

    The sums of several processes belong together if their coordinates and reference are the same.
    """
    if writer.checkpoint is None:
        return None
    state, mark = writer.state, torch.zeros(3, dtype=torch.float64)
    if state is not None:
        known = state.arrays
        mark[0] = 1 + state.numbers["pass"]
        mark[1:] = torch.tensor([known["T"].sum(), known["reference"].sum()])
    if any(not torch.equal(mark, other) for other in source.all_gather(mark)):
        writer.drop("the states of the processes do not belong together")
    if writer.state is None or state is None:
        return None
    moments = Moments.from_store(source.d, state.numbers, state.arrays)
    done = int(state.numbers["rows"])
    known = f"{done / max(1, source.held):.0%} of the rows had been read"
    if state.numbers["pass"]:
        known += f", in pass {state.numbers['pass'] + 1}"
    writer.resumes(known)
    return moments, int(state.numbers["pass"]), done


def first_samples(
    source: Rows, y: Tensor, weights: Tensor | None, count: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the first samples of everyone, in order; a row that is not finite is named."""
    own, problem = source.leading(count), None
    try:
        source.require_finite(slice(0, len(own)), own)
    except PosquadError as found:
        problem = found
    source.check_same(problem)
    w = None if weights is None else source.collect(weights[: len(own)])
    return source.collect(own), source.collect(y[: len(own)]), w


def sum_of_squares(source: Rows, y: Tensor, weights: Tensor | None) -> float:
    """Return the sum of `w y^2` over all samples; its bits do not depend on who holds them."""
    total = from_doubles(y.new_zeros(1, dtype=torch.float64))
    for start in range(0, len(y), _SUMMED):
        part = slice(start, start + _SUMMED)
        squares = y[part].double().square()
        if weights is not None:
            squares = weights[part].double() * squares
        total = total + from_doubles(squares).sum(0)
    return float(source.total_twofold(total).high)


def _some(X: Tensor, y: Tensor, w: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the samples; if none has a positive weight, all of them, for the coordinates."""
    return X, y, None if w is not None and not bool((w > 0).any()) else w
