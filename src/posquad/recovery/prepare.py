"""Convert the user's data to the coordinates in which recovery works, and factors back.

Weights enter as `w^(1/4) x` and `w^(1/2) y`, which turns weighted least squares into least squares.
Responses are divided by their size, and so are columns in different units. Inputs are whitened if
their sample covariance is further from isotropic than sampling explains; inputs in a subspace are
written in a basis of it.

Whether a matrix reproduces the responses does not depend on the lengths and weights of the samples,
but in floating point short samples hardly count. `normalize_rows` gives all samples length one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from posquad.core.symmetric import symmetric_gram
from posquad.problems.measurements import RankOne
from posquad.recovery.problem import Problem

_TOLERATED = 4.0  # spread of the covariance that is not whitened, over that of isotropic samples
_RANGE = {torch.float64: 100, torch.float32: 12}  # exponents of two whose eighth power is in range
_RANK_MOST = 1500  # largest system whose rank is computed
_SAME = 1e-14  # directions closer than this count as one sample
_UNITS = 1000.0  # ratio of column sizes from which columns count as in different units
_UNEVEN = 30.0  # ratio of lengths from which samples are normalized
_PART = 2**20  # entries of X worked on at a time
_INSPECTED = 20_000  # entries inspected for repetition


@dataclass(frozen=True)
class Prepared:
    """One problem or a batch in working coordinates: `x = x_user T` and `U_user = T U`."""

    problem: Problem
    transform: Tensor  # [..., d, k]
    scale: Tensor  # [...]  y_user = scale * y
    span: Tensor  # [...]  dimension of the span of the inputs
    distinct: Tensor  # [...]  independent samples
    strengths: Tensor | None  # [..., m]  squared singular values of the normalized x_i x_i'
    count: Tensor  # [...]  samples that are not zero
    rows: Tensor | None = None  # [..., n]  weight^(1/2) ||x||^2 before rows were normalized

    @property
    def linear(self) -> Tensor:
        """Whether the samples determine every symmetric matrix, `[...]`."""
        D = self.problem.d * (self.problem.d + 1) // 2
        return (self.distinct == D) & (D <= _RANK_MOST)  # above, `distinct` is only a count

    def checks(self, level: Tensor) -> Tensor:
        """Return the number `[...]` of samples that are independent despite errors of `level`."""
        if self.strengths is None:
            return self.distinct
        firm = self.strengths > level.square()[..., None] * self.strengths[..., -1:]
        return torch.minimum(firm.sum(-1), self.distinct)

    def one(self) -> Prepared:
        """Return this one problem as a batch of one."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        batched = {k: v[None] for k, v in values.items() if isinstance(v, Tensor)}
        return Prepared(**{**values, **batched, "problem": self.problem.single()})

    def select(self, chosen: Tensor) -> Prepared:
        """Return the problems of a batch at these indices."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        taken = {k: v[chosen] for k, v in values.items() if isinstance(v, Tensor)}
        return Prepared(**{**values, **taken, "problem": self.problem.select(chosen)})

    def given_residual(self, U: Tensor, residual: Tensor) -> Tensor:
        """Return the relative residual for the lengths and weights that the user gave."""
        if self.rows is None:
            return residual
        e = self.problem.residual(self.problem.operator.project(U)) * self.rows
        size = torch.linalg.vector_norm(self.problem.y * self.rows, dim=-1)
        return torch.linalg.vector_norm(e, dim=-1) / torch.where(size > 0, size, 1.0)

    def restore(self, U: Tensor) -> Tensor:
        """Return a factor in the user's coordinates."""
        U = U * self.scale.sqrt()[..., None, None]
        return self.transform @ U


def prepare(X: Tensor, y: Tensor, weights: Tensor | None) -> Prepared:
    """Prepare `X[..., n, d]` and `y[..., n]` of the same batch, of at most one dimension."""
    if weights is not None:
        w = weights / weights.mean(-1, keepdim=True)
        X, y = X * w.pow(0.25)[..., None], y * w.sqrt()
    n, d = X.shape[-2:]
    unit = _units(X)
    X = _divided(X, unit)
    size = y.abs().amax(-1)
    scale = torch.where(size > 0, size, 1.0)
    values, vectors = torch.linalg.eigh(_second_moment(X))  # ascending
    top = values[..., -1:].clamp_min(torch.finfo(X.dtype).tiny)
    seen = values > max(n, d) * torch.finfo(X.dtype).eps * top  # [..., d]
    span = seen.sum(-1)
    smallest = torch.where(seen, values / top, 1.0).amin(-1)
    q = min(math.sqrt(d / n), 0.8)
    natural = ((1 - q) / (1 + q)) ** 2  # of isotropic samples, by Marchenko-Pastur
    isotropic = bool(((smallest * _TOLERATED > natural) & (span == d)).all())
    if isotropic:
        root = _power_of_two(values.mean(-1).sqrt())[..., None, None]
        transform = torch.eye(d, dtype=X.dtype, device=X.device) / root
        working = _divided(X, root)
    else:
        root = torch.where(seen, values.clamp_min(0).sqrt(), torch.inf)[..., None, :]
        transform = vectors / root
        if X.ndim == 2:
            transform = transform[:, seen] if int(span) else transform[:, -1:] * 0
        working = X @ transform
    distinct, strengths = _independent(working)
    return Prepared(
        problem=Problem(RankOne(working), y / scale[..., None]),
        transform=transform / unit.mT,
        scale=scale,
        span=span,
        distinct=distinct,
        strengths=strengths,
        count=(working != 0).any(-1).sum(-1),
    )


def normalize_rows(X: Tensor, y: Tensor, weights: Tensor | None) -> Prepared | None:
    """Prepare the problems with rows of length one.

    Returns None if the lengths are similar already, or a response would overflow.
    """
    peak = torch.maximum(X.amax(-1), -X.amin(-1))  # [..., n]
    present = peak > 0 if weights is None else (peak > 0) & (weights > 0)
    peak = torch.where(present, peak, 1.0)
    rows = max(1, _PART // max(1, X[..., 0, :].numel()))  # copy X only if needed
    parts = zip(X.split(rows, dim=-2), peak.split(rows, dim=-1), strict=True)
    norms = [torch.linalg.vector_norm(x / size[..., None], dim=-1) for x, size in parts]
    lengths = torch.where(present, torch.cat(norms, dim=-1), 1.0)
    size = peak.log2() + lengths.log2()
    factor = 2 * size if weights is None else 2 * size + torch.where(present, weights, 1).log2() / 2
    spread = _range(factor, present)
    if not bool((spread > 2 * math.log2(_UNEVEN)).any()):
        return None
    unit = torch.where(present[..., None], X / peak[..., None] / lengths[..., None], 0.0)
    # A response to a zero input is kept, because it cannot be reproduced and must count as misfit.
    responses = y / peak / peak / lengths.square()
    if weights is not None:
        responses = torch.where(weights > 0, responses, 0.0)
    if not bool(torch.isfinite(responses).all()):
        return None
    even = prepare(unit, responses, None)
    top = torch.where(present, factor, -torch.inf).amax(-1, keepdim=True)
    return replace(even, rows=torch.where(present, (factor - top).exp2(), 0.0))


def _range(values: Tensor, present: Tensor) -> Tensor:
    """Return the largest minus the smallest of the values present; 0 if there are none."""
    top = torch.where(present, values, -torch.inf).amax(-1)
    low = torch.where(present, values, torch.inf).amin(-1)
    return torch.where(present.any(-1), top - low, 0.0)


def looks_nongeneric(X: Tensor) -> Tensor:
    """Whether the inputs have zeros or many repeated entries, and may not be generic, `[...]`."""
    flat = X.flatten(-2)
    zeros = flat.count_nonzero(-1) < flat.shape[-1]
    inspected = flat[..., :: max(1, flat.shape[-1] // _INSPECTED)]
    values = inspected.abs().sort(-1).values
    fresh = (values.diff(dim=-1) > 0).sum(-1) + 1
    return zeros | (2 * fresh <= values.shape[-1])


def _units(X: Tensor) -> Tensor:
    """Return powers of two to divide the columns by, `[..., 1, 1 or d]`.

    They keep squares in range, and avoid that inputs with columns in different units appear not to
    span the space.
    """
    columns = torch.maximum(X.amax(-2), -X.amin(-2))[..., None, :]
    peak = columns.amax(-1, keepdim=True)
    far = (peak > 0) & (peak.log2().abs() > _RANGE[X.dtype])
    common = torch.where(far, peak, 1.0)
    smallest = torch.where(columns > 0, columns, torch.inf).amin(-1, keepdim=True)
    apart = peak > _UNITS * smallest
    if bool(apart.any()):
        common = torch.where(apart & (columns > 0), columns, common)
    return _power_of_two(common)


def _second_moment(X: Tensor) -> Tensor:
    return X.mT @ X / X.shape[-2]


def _power_of_two(size: Tensor) -> Tensor:
    """Return the nearest power of two, by which division is exact."""
    return torch.exp2(size.log2().round())


def _divided(X: Tensor, unit: Tensor) -> Tensor:
    """Return `X / unit`; X itself if every unit is 1."""
    return X if bool((unit == 1).all()) else X / unit


def _independent(X: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the dimension of the span of the matrices `x_i x_i'`.

    The second value holds the squared singular values of these matrices, for rows of length one. If
    the system is too large for them, return the number of distinct directions, and None.
    """
    n, d = X.shape[-2:]
    D = d * (d + 1) // 2
    if min(n, D) > _RANK_MOST:
        return _distinct(X).clamp_max(D), None
    lengths = torch.linalg.vector_norm(X, dim=-1, keepdim=True)
    unit = X / torch.where(lengths > 0, lengths, 1.0)
    gram = (unit @ unit.mT).square() if n <= D else symmetric_gram(unit)
    values = torch.linalg.eigvalsh(gram)
    return (values > n * torch.finfo(X.dtype).eps * values[..., -1:]).sum(-1), values


def _distinct(X: Tensor) -> Tensor:
    """Return how many rows are neither zero nor multiples of other rows.

    Multiples have the same squared cosine with a fixed random direction; others almost surely do
    not.
    """
    generator = torch.Generator().manual_seed(X.shape[-1])
    probe = torch.randn(X.shape[-1], 1, generator=generator, dtype=torch.float64).to(X)
    lengths = torch.linalg.vector_norm(X, dim=-1)
    cosines = (X @ probe)[..., 0] / torch.where(lengths > 0, lengths, 1.0)
    keys = torch.where(lengths > 0, cosines.square(), -1.0).sort(-1).values
    fresh = keys.diff(dim=-1) > _SAME * probe.square().sum()
    return fresh.sum(-1) + (keys[..., 0] >= 0)
