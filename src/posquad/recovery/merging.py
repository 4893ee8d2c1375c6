"""Equal inputs as one sample: less work, and the same answer, loss and number of samples.

With the weighted mean m of the responses to one input, `sum w (f - y)^2` is `(sum w)(f - m)^2` plus
a constant that no fit changes. Residuals and criteria are those of all samples.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from posquad.recovery.costs import at_once

# Rows that show whether rows are repeated. A choice: if every row is there twice, about four pairs
# of a million rows are among them.
_SHOWN = 4096


class Merged(NamedTuple):
    """One sample for each input, with the sum of the weights, and what that leaves out."""

    X: Tensor  # [m, d]
    y: Tensor  # [m]
    weights: Tensor  # [m]
    group: np.ndarray  # [n]  the sample to which each given one belongs
    within: float  # sum of w (y - m)^2 over that of w m^2
    samples: int  # given ones of positive weight that are not zero


def merge_equal_rows(X: Tensor, y: Tensor, weights: Tensor | None) -> Merged | None:
    """Return the samples `X[n, d]` with equal inputs merged; None if few are equal.

    The samples are in a fixed order, so that the answer does not depend on the given one.
    """
    if X.device.type != "cpu" or y.device.type != "cpu" or not _has_equal_rows(X.numpy()):
        return None
    rows = X.numpy()
    found = equal_rows(rows)
    if found is None:
        return None
    first, group = found
    w = np.ones(len(y)) if weights is None else weights.double().numpy()
    values = y.double().numpy()
    total = np.bincount(group, w)
    kept = np.where(total > 0, total, 1.0)
    mean = np.bincount(group, w * values) / kept
    scale = np.abs(values).max() or 1.0  # squares are in range
    between = float(total @ np.square(mean / scale))
    within = float(w @ np.square((values - mean[group]) / scale))
    return Merged(
        X=X[torch.from_numpy(first)],
        y=torch.from_numpy(mean).to(y.dtype),
        weights=torch.from_numpy(total).to(y.dtype),
        group=group,
        within=within / between if between else 0.0,
        samples=int(((w > 0) & rows.any(1)).sum()),
    )


def equal_rows(X: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the first of each kind of row, in a fixed order, and the kind of every row.

    None if all rows differ, or if different ones have the same hash.

    >>> first, group = equal_rows(np.array([[1.0], [2.0], [1.0]]))
    >>> len(first), bool(group[0] == group[2] != group[1])
    (2, True)
    """
    _, first, group = np.unique(row_hashes(X), return_index=True, return_inverse=True)
    if len(first) == len(X) or not np.array_equal(X[first][group], X):
        return None
    return first, group


def row_hashes(X: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of every row of `X[n, d]`."""
    n, d = X.shape
    odd = np.random.default_rng(d).integers(2**62, size=d, dtype=np.uint64) * 2 + 1
    hashes = np.empty(n, dtype=np.uint64)
    step = at_once(d)
    for begin in range(0, n, step):
        part = np.ascontiguousarray(X[begin : begin + step], dtype=np.float64) + 0.0  # -0 becomes 0
        bits = part.view(np.uint64)
        hashes[begin : begin + step] = ((bits ^ (bits >> 29)) * odd).sum(axis=1, dtype=np.uint64)
    return hashes


def _has_equal_rows(X: np.ndarray) -> bool:
    """Return whether there are equal rows, among all or, if there are many, among some."""
    if len(X) > 2 * _SHOWN:
        some = np.random.default_rng(len(X)).integers(0, len(X), _SHOWN)
        X = X[np.unique(some)]
    return len(np.unique(row_hashes(X))) < len(X)


def farkas_of_all(merged: Merged, z: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Return the vector `[n]` that proves a bound for all samples, from one for the merged ones.

    `z[m]` is one for the working responses, those of the user times the root of their weights. With
    `b = z / sqrt(w)`, every vector `w_i (b + t (m - y_i))` has the sums of z over equal inputs; the
    bound is the best for `t = -||z||^2 / <z, sqrt(w) m>`.
    """
    root = (merged.weights / merged.weights.mean()).sqrt().double()
    b = torch.where(root > 0, z.double() / torch.where(root > 0, root, 1.0), 0.0)
    slope = -(z.double() * root * merged.y.double()).sum()
    t = z.double().square().sum() / slope if float(slope) > 0 else torch.ones((), dtype=b.dtype)
    index = torch.from_numpy(merged.group)
    whole = b[index] + t * (merged.y.double()[index] - y.double())
    return (weights.double() / weights.double().mean() * whole).to(z.dtype)
