"""Which problems of a batch are solved together."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import host
from posquad.problems.measurements import one_design, select_designs
from posquad.recovery.diagnose import needed_samples
from posquad.recovery.prepare import has_uneven_rows, largest_entry, looks_nongeneric
from posquad.recovery.tuning import Tuning
from posquad.recovery.weighting import has_stages

Given = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # X, y, weights and starts of a batch


def flat_designs(X: Tensor) -> Tensor:
    """Return inputs with one batch dimension; equal inputs become views of one matrix."""
    batch = X.shape[:-2]
    if not batch or batch.numel() < 2 or not X.numel():
        return X if not batch else X.reshape(-1, *X.shape[-2:])
    first, last = X[(0,) * len(batch)], X[(-1,) * len(batch)]
    view = all(X.stride(k) == 0 or batch[k] == 1 for k in range(len(batch)))
    if view or (torch.equal(first, last) and bool((first == X).all())):
        return first.expand(batch.numel(), *first.shape)
    return X.reshape(-1, *X.shape[-2:])


def split_batch(
    X: Tensor,
    y: Tensor,
    weights: Tensor | None,
    start: Tensor | None,
    rank: int | None,
    tuning: Tuning,
) -> tuple[np.ndarray, np.ndarray]:
    """Return which problems are regular, and which would be but for rows of uneven lengths, `[B]`.

    Problems of rank d are convex, and any number of samples will do. At lower ranks there must be
    enough samples to identify a predictor, and no pattern in the inputs that may have second
    solutions of its own, nor weights of very different sizes. Without a given rank, a start has
    no rank either.
    """
    n, d = X.shape[-2:]
    none = np.zeros(len(X), dtype=bool)
    enough = rank == d or n >= needed_samples(d, rank or 1)
    if not enough or not len(X) or (rank is None and start is not None):
        return none, none
    inputs = X[:1] if one_design(X) is not None else X
    counted = y if weights is None else torch.where(weights > 0, y, 0.0)
    usable = host((largest_entry(counted) > 0) & (largest_entry(inputs).amax(-1) > 0))
    if rank != d:
        usable = usable & ~looks_nongeneric(X, tuning)
        usable = usable if weights is None else usable & ~host(has_stages(weights))
    uneven = host(has_uneven_rows(X, weights, tuning))
    return usable & ~uneven, usable & uneven


def select_problems(given: Given, mask: np.ndarray) -> tuple[np.ndarray, Given]:
    """Return the indices of the problems where the mask holds, and their data."""
    where = mask.nonzero()[0]
    if len(where) == len(mask):
        return where, given
    X, *rest = given
    taken = torch.from_numpy(where).to(X.device)
    y, weights, start = (None if t is None else t[taken] for t in rest)
    assert y is not None, "every problem has responses"
    return where, (select_designs(X, taken), y, weights, start)
