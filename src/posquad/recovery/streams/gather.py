"""Moments of a source of rows, in one pass over it, or a few if its first rows are unlike it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from posquad.core.errors import PosquadError
from posquad.core.progress import Progress
from posquad.problems.moments import Moments, Terms, begin_moments
from posquad.problems.rebasing import improved, is_accurate
from posquad.problems.rows.source import Rows

_PASSES = 3  # that may show that coordinates or the reference do not suit the rows
_FEWEST = 4096  # rows up to which a stream is kept in memory


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
) -> Moments:
    """Return the moments of all samples; besides the first rows, the source is read once.

    If the first rows do not represent the rest, it is read again, with coordinates and a reference
    fit that come from the sums over all rows. `y` and `weights` have one entry per row held here.
    A row that is not finite is named.
    """
    first = first_samples(source, y, weights, kept_rows(source.d, terms))
    moments = source.decided(lambda: begin_moments(*_some(*first), terms=terms))
    for _ in range(_PASSES):
        _add_all(moments, source, y, weights, progress)
        known = moments
        better = source.decided(lambda known=known: None if is_accurate(known) else improved(known))
        if better is None:
            break
        moments = better
    else:
        _add_all(moments, source, y, weights, progress)
    return moments


def _add_all(
    moments: Moments,
    source: Rows,
    y: Tensor,
    weights: Tensor | None,
    progress: Callable[[Progress], None] | None,
) -> None:
    """Add the samples of everyone, in one pass over the rows."""
    problem = None
    try:
        for rows, block in source.blocks():
            source.require_finite(rows, block)
            moments.add(block, y[rows], None if weights is None else weights[rows])
            if progress is not None:
                progress(Progress(float(rows.stop), float(source.held), math.nan, 1))
    except PosquadError as found:
        problem = found
    source.agree(problem)
    moments.narrow = torch.float32 in (source.dtype, y.dtype)
    if source.is_shared:
        moments.sums = source.total_twofold(moments.sums)
        moments.count = int(source.total(torch.tensor(moments.count)))
        moments.largest = float(source.largest(torch.tensor(moments.largest)))


def first_samples(
    source: Rows, y: Tensor, weights: Tensor | None, count: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the first samples of everyone, in order; a row that is not finite is named."""
    own, problem = source.leading(count), None
    try:
        source.require_finite(slice(0, len(own)), own)
    except PosquadError as found:
        problem = found
    source.agree(problem)
    w = None if weights is None else source.collect(weights[: len(own)])
    return source.collect(own), source.collect(y[: len(own)]), w


def _some(X: Tensor, y: Tensor, w: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the samples; if none has a positive weight, all of them, for the coordinates."""
    return X, y, None if w is not None and not bool((w > 0).any()) else w
