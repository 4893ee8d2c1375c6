"""Which problems of a batch are solved together."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import host
from posquad.problems.held import HeldMeasurements
from posquad.recovery.coordinates import has_uneven_norms, largest_entries, looks_nongeneric
from posquad.recovery.diagnose import needed_samples
from posquad.recovery.prepare import largest_entry
from posquad.recovery.weighting import has_stages

# The measurements, responses, weights and starts of a batch.
Given = tuple[HeldMeasurements, Tensor, Tensor | None, Tensor | None]


def split_batch(
    operator: HeldMeasurements,
    y: Tensor,
    weights: Tensor | None,
    start: Tensor | None,
    rank: int | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return which problems are regular, and which would be but for rows of uneven lengths, `[B]`.

    Problems of rank d are convex, and any number of samples will do. At lower ranks there must be
    enough samples to identify a predictor, and no pattern in the inputs that may have second
    solutions of its own, nor weights of very different sizes. Without a given rank, a start has
    no rank either.
    """
    n, d, count = operator.n, operator.d, len(y)
    none = np.zeros(count, dtype=bool)
    enough = rank == d or n >= needed_samples(d, rank or 1)
    if not enough or not count or (rank is None and start is not None):
        return none, none
    counted = y if weights is None else torch.where(weights > 0, y, 0.0)
    usable = host((largest_entry(counted) > 0) & (largest_entries(operator.shared or operator) > 0))
    if rank != d:
        usable = usable & ~looks_nongeneric(operator)
        usable = usable if weights is None else usable & ~host(has_stages(weights))
    uneven = host(has_uneven_norms(operator, weights))
    return usable & ~uneven, usable & uneven


def select_problems(given: Given, mask: np.ndarray) -> tuple[np.ndarray, Given]:
    """Return the indices of the problems where the mask holds, and their data."""
    where = mask.nonzero()[0]
    if len(where) == len(mask):
        return where, given
    operator, *rest = given
    taken = torch.from_numpy(where).to(operator.data.device)
    y, weights, start = (None if t is None else t[taken] for t in rest)
    assert y is not None, "every problem has responses"
    return where, (operator.select(taken), y, weights, start)
