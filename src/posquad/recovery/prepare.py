"""From the user's data to the coordinates in which recovery works, and back.

Weights enter as `w^(1/4) x` and `w^(1/2) y`: weighted least squares is least squares of other
samples. Responses are divided by their size, columns in different units by theirs. Inputs that are
far from isotropic, beyond what the sample covariance of isotropic ones would show, are whitened;
inputs in a subspace are written in a basis of it.

A matrix that reproduces the responses does so whatever the length and weight of the samples, but
rounding does not: the short ones need hardly be reproduced. `evened` gives them all one length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from posquad.core.symmetric import symmetric_gram
from posquad.recovery.solvers.fit import Quadratic

_TOLERATED = 4.0  # spread of the covariance, in units of that of isotropic samples
_RANGE = {torch.float64: 100, torch.float32: 12}  # powers of two whose eighth powers are safe
_RANK_MOST = 1500  # size of the systems whose rank is computed
_SAME = 1e-14  # directions closer than this are one sample
_UNITS = 1000.0  # ratio of columns from which they are in different units
_UNEVEN = 30.0  # ratio of lengths from which samples are given one length
_PART = 2**20  # entries of X worked on at a time
_LOOKED = 20_000  # entries looked at for repetition


@dataclass(frozen=True)
class Prepared:
    """A batch of problems (or one) in working coordinates, `x = x_user T`, `U_user = T U`."""

    problem: Quadratic
    transform: Tensor  # [..., d, k]
    scale: Tensor  # [...]  y_user = scale * y
    span: Tensor  # [...]  dimension of the span of the inputs
    distinct: Tensor  # [...]  independent samples
    strengths: Tensor | None  # [..., m]  squared singular values of the sample matrices, over n
    count: Tensor  # [...]  samples that are not zero
    rows: Tensor | None = None  # [..., n]  weight^(1/2) ||x||^2 of samples given one length

    @property
    def linear(self) -> Tensor:
        """Samples that determine every symmetric matrix, `[...]`."""
        D = self.problem.d * (self.problem.d + 1) // 2
        return (self.distinct == D) & (D <= _RANK_MOST)  # beyond, they are only counted

    def checks(self, level: Tensor) -> Tensor:
        """Independent samples `[...]` that still differ when all is uncertain by `level`."""
        if self.strengths is None:
            return self.distinct
        firm = self.strengths > level.square()[..., None] * self.strengths[..., -1:]
        return torch.minimum(firm.sum(-1), self.distinct)

    def one(self) -> Prepared:
        """One problem as a batch of one."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        batched = {k: v[None] for k, v in values.items() if isinstance(v, Tensor)}
        return Prepared(**{**values, **batched, "problem": self.problem.single()})

    def select(self, chosen: Tensor) -> Prepared:
        """The problems of a batch at these indices."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        taken = {k: v[chosen] for k, v in values.items() if isinstance(v, Tensor)}
        return Prepared(**{**values, **taken, "problem": self.problem.select(chosen)})

    def given_residual(self, U: Tensor, residual: Tensor) -> Tensor:
        """The relative residual with the lengths and weights that the user gave."""
        if self.rows is None:
            return residual
        e = self.problem.residual(self.problem.forward(U)) * self.rows
        size = torch.linalg.vector_norm(self.problem.y * self.rows, dim=-1)
        return torch.linalg.vector_norm(e, dim=-1) / torch.where(size > 0, size, 1.0)

    def restore(self, U: Tensor) -> Tensor:
        """A factor in the user's coordinates."""
        U = U * self.scale.sqrt()[..., None, None]
        return self.transform @ U


def prepare(X: Tensor, y: Tensor, weights: Tensor | None) -> Prepared:
    """`X[..., n, d]` and `y[..., n]` with the same batch, at most one dimension of it."""
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
    natural = ((1 - q) / (1 + q)) ** 2  # Marchenko-Pastur: of isotropic samples
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
        problem=Quadratic(working, y / scale[..., None]),
        transform=transform / unit.mT,
        scale=scale,
        span=span,
        distinct=distinct,
        strengths=strengths,
        count=(working != 0).any(-1).sum(-1),
    )


def evened(X: Tensor, y: Tensor, weights: Tensor | None) -> Prepared | None:
    """The problems with rows of length one; None if they are alike already, or out of range."""
    peak = torch.maximum(X.amax(-1), -X.amin(-1))  # [..., n]
    present = peak > 0 if weights is None else (peak > 0) & (weights > 0)
    peak = torch.where(present, peak, 1.0)
    rows = max(1, _PART // max(1, X[..., 0, :].numel()))  # a copy of X is made only if it is needed
    parts = zip(X.split(rows, dim=-2), peak.split(rows, dim=-1), strict=True)
    norms = [torch.linalg.vector_norm(x / size[..., None], dim=-1) for x, size in parts]
    lengths = torch.where(present, torch.cat(norms, dim=-1), 1.0)
    size = peak.log2() + lengths.log2()
    factor = 2 * size if weights is None else 2 * size + torch.where(present, weights, 1).log2() / 2
    spread = _range(factor, present)
    if not bool((spread > 2 * math.log2(_UNEVEN)).any()):
        return None
    unit = torch.where(present[..., None], X / peak[..., None] / lengths[..., None], 0.0)
    # A response to a zero input stays: it cannot be reproduced, and that must be seen.
    responses = y / peak / peak / lengths.square()
    if weights is not None:
        responses = torch.where(weights > 0, responses, 0.0)
    if not bool(torch.isfinite(responses).all()):
        return None
    even = prepare(unit, responses, None)
    top = torch.where(present, factor, -torch.inf).amax(-1, keepdim=True)
    return replace(even, rows=torch.where(present, (factor - top).exp2(), 0.0))


def _range(values: Tensor, present: Tensor) -> Tensor:
    """Largest less smallest of those present; 0 if there are none."""
    top = torch.where(present, values, -torch.inf).amax(-1)
    low = torch.where(present, values, torch.inf).amin(-1)
    return torch.where(present.any(-1), top - low, 0.0)


def structured(X: Tensor) -> Tensor:
    """Inputs not in general position to all appearance, `[...]`: zeros, or entries that repeat."""
    flat = X.flatten(-2)
    zeros = flat.count_nonzero(-1) < flat.shape[-1]
    looked = flat[..., :: max(1, flat.shape[-1] // _LOOKED)]
    values = looked.abs().sort(-1).values
    fresh = (values.diff(dim=-1) > 0).sum(-1) + 1
    return zeros | (2 * fresh <= values.shape[-1])


def _units(X: Tensor) -> Tensor:
    """What to divide columns by, `[..., 1, 1 or d]`, powers of two.

    Squares must stay in range, and columns in different units must not be taken for inputs that
    do not span the space.
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
    """The nearest one: division by it is exact."""
    return torch.exp2(size.log2().round())


def _divided(X: Tensor, unit: Tensor) -> Tensor:
    """`X / unit`, without a copy of X where there is nothing to divide by."""
    return X if bool((unit == 1).all()) else X / unit


def _independent(X: Tensor) -> tuple[Tensor, Tensor | None]:
    """Dimension of the span of the matrices `x_i x_i'`, and their squared singular values.

    Beyond what a dense rank can be computed for, the rows that are not multiples of others.
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
    """How many rows are neither zero nor multiples of another.

    Multiples have the same squared cosine with a fixed random direction, others almost surely not.
    """
    generator = torch.Generator().manual_seed(X.shape[-1])
    probe = torch.randn(X.shape[-1], 1, generator=generator, dtype=torch.float64).to(X)
    lengths = torch.linalg.vector_norm(X, dim=-1)
    cosines = (X @ probe)[..., 0] / torch.where(lengths > 0, lengths, 1.0)
    keys = torch.where(lengths > 0, cosines.square(), -1.0).sort(-1).values
    fresh = keys.diff(dim=-1) > _SAME * probe.square().sum()
    return fresh.sum(-1) + (keys[..., 0] >= 0)
