"""Working coordinates of any measurements: weights, scales, span and whitening, and the way back.

For rows they are those of `posquad.recovery.prepare`. Other measurements are treated as the rows of
all their matrices together: the second moments of these rows are `sum_i A_i^2`, up to a factor, and
a transform T turns A_i into `T'A_i T`. That changes both sides of A_i, so whitening is repeated.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import host
from posquad.core.ranges import tiny
from posquad.problems.held import HeldMeasurements
from posquad.problems.measurements import RankOne
from posquad.problems.projected import Projected
from posquad.recovery import prepare as rows_of
from posquad.recovery.prepare import Prepared, largest_entry
from posquad.recovery.problem import Given, Problem

# Times that whitening is repeated. Measured on A_i with columns whose sizes differ by 1e6: ten
# bring the eigenvalues of `sum_i A_i^2` to within a factor of 1.03.
_WHITENINGS = 10


def prepare(operator: HeldMeasurements, y: Tensor, weights: Tensor | None) -> Prepared:
    """Prepare measurements and responses `[..., n]` of the same batch, of at most one dimension.

    Every problem of a batch is prepared as it would be alone; measurements that a batch shares are
    prepared once.
    """
    if isinstance(operator, RankOne):
        return rows_of.prepare(operator.X, y, weights)
    if isinstance(operator, Projected):
        return _with_other_terms(operator, y, weights)
    if weights is not None:
        w = weights / weights.mean(-1, keepdim=True)
        return _prepared(operator, y * w.sqrt(), w.pow(0.25))
    one = operator.shared
    if one is None:
        return _prepared(operator, y, None)
    return rows_of.repeated(_prepared(one.expanded(1), y[:1], None), y)


def normalize(operator: HeldMeasurements, y: Tensor, weights: Tensor | None) -> Prepared | None:
    """Prepare the problems with matrices of norm one.

    Returns None if the norms are similar already, or a response would overflow.
    """
    if isinstance(operator, RankOne):
        return rows_of.normalize_rows(operator.X, y, weights)
    if isinstance(operator, Projected):  # a constant also counts for rows of length zero
        return None
    log, present = _log_norms(operator, weights)
    if not bool(_is_uneven(log, present).any()):
        return None
    norms = torch.where(present, operator.norms, 1.0)
    responses = y / norms
    if weights is not None:
        responses = torch.where(weights > 0, responses, 0.0)
    if not bool(torch.isfinite(responses).all()):
        return None
    shorten = torch.where(present, norms.rsqrt(), 0.0)
    even = _prepared(operator, responses, shorten)
    top = torch.where(present, log, -torch.inf).amax(-1, keepdim=True)
    rows = torch.where(present, (log - top).exp2(), 0.0)
    return replace(even, rows=rows)


def has_uneven_norms(operator: HeldMeasurements, weights: Tensor | None) -> Tensor:
    """Return which problems have matrices, with their weights, some of which hardly count."""
    if isinstance(operator, RankOne):
        return rows_of.has_uneven_rows(operator.X, weights)
    return _is_uneven(*_log_norms(operator, weights))


def looks_nongeneric(operator: HeldMeasurements) -> np.ndarray:
    """Return which problems have zeros or many repeated entries: these may not be generic."""
    if isinstance(operator, RankOne):
        return rows_of.looks_nongeneric(operator.X)
    if isinstance(operator, Projected):
        return looks_nongeneric(operator.base)
    return rows_of.looks_nongeneric(operator.system)


def largest_entries(operator: HeldMeasurements) -> Tensor:
    """Return the largest entry of each problem in absolute value, `[...]`."""
    return largest_entry(operator.data.flatten(-1 - operator.own_dimensions))


def _with_other_terms(operator: Projected, y: Tensor, weights: Tensor | None) -> Prepared:
    """Prepare one problem in the coordinates of its base operator.

    Residuals are relative to the weighted responses as they are given, of which other terms may
    explain a part.
    """
    base = prepare(operator.base, y, weights)
    root = y.new_ones(y.shape) if weights is None else (weights / weights.mean()).sqrt()
    working = Projected(base.problem.operator, root[..., None] * operator.Z)
    left = working.eliminated(root * y)
    scale = rows_of.response_scale(left)
    given = Given.of(Projected(base.given.operator, operator.Z), base.given.rows, left, scale)
    spread = torch.linalg.vector_norm(root * y / scale)
    given = replace(given, spread=spread * (scale / given.unit / given.unit))
    problem = Problem(working, left / scale, spread=spread)
    count, others = host((root > 0).sum()), working.basis.shape[-1]
    return Prepared(problem, given, base.transform, scale, base.span, count, other_terms=others)


@np.errstate(all="ignore")
def _prepared(operator: HeldMeasurements, y: Tensor, rows: Tensor | None) -> Prepared:
    """Prepare problems with these factors of the rows, by whose squares the A_i are multiplied."""
    n, d = operator.n, operator.d
    scale = rows_of.response_scale(y)
    given = Given.of(operator, rows, y, scale)
    working = operator if rows is None else operator.weighted(rows.square())
    q = math.sqrt(1 / n)
    natural = ((1 - q) / (1 + q)) ** 2  # of independent rows, by Marchenko-Pastur
    size = rows_of.power_of_two(np.sqrt(np.maximum(host(largest_entries(working)), tiny(y))))
    unit = torch.from_numpy(np.asarray(1 / size)).to(y)  # so that squares are in range
    T = unit[..., None, None] * torch.eye(d, dtype=y.dtype, device=y.device)
    turned = working.transformed(T)
    largest = turned.data.abs().amax((-3, -1))  # of each column
    columns = torch.where(largest > 0, largest, 1.0).sqrt().log2().round().exp2()
    if float(columns.amax() / columns.amin()) > rows_of.UNITS**0.5:
        T = T / columns[..., None, :]
        turned = working.transformed(T)
    values, vectors = torch.linalg.eigh(turned.squares)
    top = values[..., -1:].clamp_min(tiny(y))
    seen = values > n * d * torch.finfo(y.dtype).eps * top
    span = seen.sum(-1)
    smallest = torch.where(seen, values / top, 1.0).amin(-1)
    isotropic = (smallest * rows_of.ISOTROPIC > natural) & (span == d)
    if not bool(isotropic.all()):
        plain, basis = T, torch.where(seen[..., None, :], vectors, 0.0)
        T = T @ basis
        for _ in range(_WHITENINGS):
            turned = working.transformed(T)
            power = _inverse_root(turned.squares, seen)
            T = T @ power
        T = torch.where(isotropic[..., None, None], plain, T)
        if T.ndim == 2:
            T = T[:, seen] if bool(seen.any()) else T[:, -1:] * 0
        turned = working.transformed(T)
    norms = torch.linalg.vector_norm(turned.norms, dim=-1)
    level = (norms / (d * n**0.5)).sqrt().clamp_min(tiny(y)).log2().round().exp2()
    level = torch.where(norms > 0, level, 1.0)[..., None, None]
    T = T / level
    turned = working.transformed(T)
    count = host((turned.norms > 0).sum(-1))
    return Prepared(Problem(turned, y / scale[..., None]), given, T, scale, host(span), count)


def _inverse_root(squares: Tensor, seen: Tensor) -> Tensor:
    """Return the inverse fourth root of `squares[..., d, d]`, with a mean eigenvalue of one.

    It is the identity on the last coordinates that are not `seen[..., d]`, where they are zero.
    """
    values, vectors = torch.linalg.eigh(squares)
    mean = values.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp_min(1)
    least = torch.finfo(values.dtype).eps * values[..., -1:]
    share = torch.where(values > least, values / torch.where(mean > 0, mean, 1.0), 1.0)
    return (vectors * share.pow(-0.25)[..., None, :]) @ vectors.mT


def _log_norms(operator: HeldMeasurements, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return log2 of `w^(1/2) ||A_i||`, `[..., n]`, and whether a measurement counts."""
    present = operator.norms > 0 if weights is None else (operator.norms > 0) & (weights > 0)
    log = torch.where(present, operator.norms, 1.0).log2()
    if weights is not None:
        log = log + torch.where(present, weights, 1.0).log2() / 2
    return log, present


def _is_uneven(log: Tensor, present: Tensor) -> Tensor:
    return rows_of.spread(log, present) > math.log2(rows_of.UNEVEN)
