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

from posquad.problems.measurements import RankOne, one_design
from posquad.problems.views import RankOneView
from posquad.recovery.problem import Problem
from posquad.recovery.tuning import DEFAULT, RANGE_EXPONENT, Tuning

_INSPECTED = 20_000  # entries inspected for repetition
_WIDE = 4096  # columns from which memory decides how eigenvalues are computed on a GPU


@dataclass(frozen=True)
class Prepared:
    """One problem or a batch in working coordinates: `x = x_user T` and `U_user = T U`."""

    problem: Problem
    transform: Tensor  # [..., d, k]
    scale: Tensor  # [...]  y_user = scale * y
    span: Tensor  # [...]  dimension of the span of the inputs
    count: Tensor  # [...]  samples that are not zero
    rows: Tensor | None = None  # [..., n]  weight^(1/2) ||x||^2 before rows were normalized

    def select(self, chosen: Tensor) -> Prepared:
        """Return the problems of a batch at these indices."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        taken = {k: v[chosen] for k, v in values.items() if isinstance(v, Tensor)}
        return Prepared(**{**values, **taken, "problem": self.problem.select(chosen)})

    def one(self) -> Prepared:
        """Return one problem as a batch of one."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        taken = {k: v[None] for k, v in values.items() if isinstance(v, Tensor)}
        operator, y = RankOne(self.problem.operator.X[None]), self.problem.y[None]
        return Prepared(**{**values, **taken, "problem": Problem(operator, y)})

    def given_residual(self, U: Tensor, residual: Tensor) -> Tensor:
        """Return the relative residual for the lengths and weights that the user gave."""
        if self.rows is None:
            return residual
        e = self.problem.residual(self.problem.operator.project(U)) * self.rows
        size = torch.linalg.vector_norm(self.problem.y * self.rows, dim=-1)
        return torch.linalg.vector_norm(e, dim=-1) / torch.where(size > 0, size, 1.0)

    def enter(self, U: Tensor) -> Tensor:
        """Return a factor in working coordinates, from the user's."""
        return torch.linalg.pinv(self.transform) @ U / self.scale.sqrt()[..., None, None]

    def restore(self, U: Tensor) -> Tensor:
        """Return a factor in the user's coordinates."""
        U = U * self.scale.sqrt()[..., None, None]
        return self.transform @ U


def prepare(
    X: Tensor,
    y: Tensor,
    weights: Tensor | None,
    tuning: Tuning = DEFAULT,
    *,
    rows: Tensor | None = None,
) -> Prepared:
    """Prepare `X[..., n, d]` and `y[..., n]` of the same batch, of at most one dimension.

    Every problem of a batch is prepared as it would be alone; inputs that a batch shares are
    prepared once. `rows[..., n]` are factors of the rows of X. A large X is not copied: its
    operator is a view.
    """
    shared = one_design(X) if weights is None and rows is None else None
    if shared is not None:
        one = prepare(shared[None], y[:1], None, tuning)
        if 0 < int(one.span) < X.shape[-1] and not _is_large(shared, tuning):
            one = prepare(shared, y[0], None, tuning).one()  # in a basis of the span
        return _repeated(one, y)
    if weights is not None:
        w = weights / weights.mean(-1, keepdim=True)
        rows, y = w.pow(0.25), y * w.sqrt()
    acceptance, large = tuning.acceptance, _is_large(X, tuning)
    if rows is not None and not large:
        X, rows = X * rows[..., None], None
    n, d = X.shape[-2:]
    unit = _units(X, rows, tuning)
    scale = _response_scale(y)
    if not large:
        X = _divided(X, unit)
        moments = RankOne(X).second_moments
    else:
        columns = unit.expand(1, d)
        moments = (
            RankOne(X).second_moments
            if rows is None
            else RankOne(X).adjoint_kernel(rows.square()) / n
        )
        moments = moments / columns / columns.mT
    values = _eigenvalues(moments)
    top = values[..., -1:].clamp_min(torch.finfo(X.dtype).tiny)
    seen = values > max(n, d) * torch.finfo(X.dtype).eps * top  # [..., d]
    span = seen.sum(-1)
    smallest = torch.where(seen, values / top, 1.0).amin(-1)
    q = min(math.sqrt(d / n), 0.8)
    natural = ((1 - q) / (1 + q)) ** 2  # of isotropic samples, by Marchenko-Pastur
    isotropic = (smallest * acceptance.isotropic > natural) & (span == d)  # [...]
    root = _power_of_two(values.mean(-1).sqrt())[..., None, None]
    transform = torch.eye(d, dtype=X.dtype, device=X.device) / root
    whole = bool(isotropic.all())
    if not whole:
        values, vectors = torch.linalg.eigh(moments)
        whitened = vectors / torch.where(seen, values.clamp_min(0).sqrt(), torch.inf)[..., None, :]
        transform = torch.where(isotropic[..., None, None], transform, whitened)
        if X.ndim == 2:
            transform = transform[:, seen] if int(span) else transform[:, -1:] * 0
    back = transform / unit.mT
    if not large:
        operator = RankOne(_divided(X, root) if whole else X @ transform)
    elif whole and rows is None and bool((unit * root == 1).all()):
        operator = RankOne(X)
    else:
        operator = RankOneView(RankOne(X), back, rows)
    return Prepared(
        problem=Problem(operator, y / scale[..., None]),
        transform=back,
        scale=scale,
        span=span,
        count=(operator.squared_lengths > 0).sum(-1),
    )


def _response_scale(y: Tensor) -> Tensor:
    """Largest `|y_i|` of each problem, or 1 if all are zero, `[...]`."""
    size = largest_entry(y)
    return torch.where(size > 0, size, 1.0)


def largest_entry(y: Tensor) -> Tensor:
    """`max |y_i|`, `[...]`, without a copy of `y[..., n]`."""
    return torch.maximum(y.amax(-1), -y.amin(-1))


def _repeated(one: Prepared, y: Tensor) -> Prepared:
    """Return the preparation of a batch of one problem for many responses `y[B, n]`."""

    def spread(value: Tensor) -> Tensor:
        return value.expand(len(y), *value.shape[1:])

    scale = _response_scale(y)
    return Prepared(
        problem=Problem(RankOne(spread(one.problem.operator.X)), y / scale[:, None]),
        transform=spread(one.transform),
        scale=scale,
        span=spread(one.span),
        count=spread(one.count),
    )


def has_uneven_rows(X: Tensor, weights: Tensor | None, tuning: Tuning = DEFAULT) -> Tensor:
    """Whether the rows, with their weights, have lengths so different that some hardly count."""
    shared = one_design(X) if weights is None else None
    if shared is not None:
        return has_uneven_rows(shared, None, tuning).expand(len(X))
    factor, present, _, _ = _row_sizes(X, weights, tuning)
    return _range(factor, present) > 2 * math.log2(tuning.acceptance.uneven)


def normalize_rows(
    X: Tensor, y: Tensor, weights: Tensor | None, tuning: Tuning = DEFAULT
) -> Prepared | None:
    """Prepare the problems with rows of length one.

    Returns None if the lengths are similar already, or a response would overflow.
    """
    if weights is None and X.ndim == 2:
        low, high = (end.item() for end in torch.linalg.vector_norm(X, dim=-1).aminmax())
        safe = torch.finfo(X.dtype).tiny ** 0.5  # shorter lengths may have lost digits
        if safe < low and high <= tuning.acceptance.uneven * low < math.inf:
            return None
    shared = one_design(X) if weights is None else None
    batch = X.shape[:-2]
    X = X if shared is None else shared
    factor, present, peak, lengths = _row_sizes(X, weights, tuning)
    if not bool((_range(factor, present) > 2 * math.log2(tuning.acceptance.uneven)).any()):
        return None
    # A response to a zero input is kept, because it cannot be reproduced and must count as misfit.
    responses = y / peak / peak / lengths.square()
    if weights is not None:
        responses = torch.where(weights > 0, responses, 0.0)
    if not bool(torch.isfinite(responses).all()):
        return None
    if _is_large(X, tuning):
        shorten = torch.where(present, 1 / peak / lengths, 0.0)
        even = prepare(X, responses, None, tuning, rows=shorten)
    else:
        unit = torch.where(present[..., None], X / peak[..., None] / lengths[..., None], 0.0)
        even = prepare(unit.expand(*batch, *unit.shape[-2:]), responses, None, tuning)
    top = torch.where(present, factor, -torch.inf).amax(-1, keepdim=True)
    rows = torch.where(present, (factor - top).exp2(), 0.0)
    return replace(even, rows=rows.expand(responses.shape))


def _row_sizes(
    X: Tensor, weights: Tensor | None, tuning: Tuning
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return, for each row, log2 of `w^(1/2) ||x||^2`, whether it counts, max |x_j|, and the rest.

    The length of a row is the product of the last two.
    """
    peak = largest_entry(X)  # [..., n]
    present = peak > 0 if weights is None else (peak > 0) & (weights > 0)
    peak = torch.where(present, peak, 1.0)
    limits = torch.finfo(X.dtype)
    if bool(((peak > limits.tiny**0.25) & (peak < limits.max**0.25)).all()):
        norms = torch.linalg.vector_norm(X, dim=-1) / peak  # squares are in range
    else:
        rows = _part_rows(X, tuning)
        norms = torch.empty_like(peak)
        for k in range(0, X.shape[-2], rows):
            part = slice(k, k + rows)
            scaled = X[..., part, :] / peak[..., part, None]
            norms[..., part] = torch.linalg.vector_norm(scaled, dim=-1)
    lengths = torch.where(present, norms, 1.0)
    factor = 2 * (peak.log2() + lengths.log2())
    if weights is not None:
        factor = factor + torch.where(present, weights, 1).log2() / 2
    return factor, present, peak, lengths


def _is_large(X: Tensor, tuning: Tuning) -> bool:
    """Whether X is too large for a copy."""
    return X.ndim == 2 and X.numel() > tuning.sizes.view_entries


def _part_rows(X: Tensor, tuning: Tuning) -> int:
    """Return the rows of a block whose temporary copy is small."""
    return max(1, tuning.sizes.part_entries // max(1, X[..., 0, :].numel()))


def _range(values: Tensor, present: Tensor) -> Tensor:
    """Return the largest minus the smallest of the values present; 0 if there are none."""
    top = torch.where(present, values, -torch.inf).amax(-1)
    low = torch.where(present, values, torch.inf).amin(-1)
    return torch.where(present.any(-1), top - low, 0.0)


def looks_nongeneric(X: Tensor, tuning: Tuning = DEFAULT) -> Tensor:
    """Whether the inputs have zeros or many repeated entries, and may not be generic, `[...]`."""
    shared = one_design(X)
    if shared is not None:
        return looks_nongeneric(shared, tuning).expand(len(X))
    flat = X.flatten(-2)
    stride = max(1, flat.shape[-1] // _INSPECTED)
    values = flat[..., ::stride].abs().sort(-1).values
    fresh = (values.diff(dim=-1) > 0).sum(-1) + 1
    if stride == 1:
        zeros = values[..., 0] == 0
    else:
        counts = [part.count_nonzero((-2, -1)) for part in X.split(_part_rows(X, tuning), dim=-2)]
        zeros = torch.stack(counts).sum(0) < flat.shape[-1]
    return zeros | (2 * fresh <= values.shape[-1])


def _eigenvalues(moments: Tensor) -> Tensor:
    """Eigenvalues of second moments, ascending, `[..., d]`.

    The workspace of a large decomposition on a GPU is four times the matrix. Single precision
    halves it, and is enough unless it finds a direction with less than 1e-3 of the variance.
    """
    if moments.device.type != "cpu" and moments.shape[-1] >= _WIDE:
        values = torch.linalg.eigvalsh(moments.float()).double()
        if bool((values[..., 0] > 1e-3 * values[..., -1]).all()):
            return values
    return torch.linalg.eigvalsh(moments)


def _units(X: Tensor, rows: Tensor | None, tuning: Tuning) -> Tensor:
    """Return powers of two to divide the columns by, `[..., 1, 1 or d]`.

    They keep squares in range, and avoid that inputs with columns in different units appear not to
    span the space. `rows` are factors of the rows of X.
    """
    if rows is None:
        columns = torch.maximum(X.amax(-2), -X.amin(-2))[..., None, :]
    else:
        size = _part_rows(X, tuning)
        parts = zip(X.split(size), rows.split(size), strict=True)
        columns = X.new_zeros(1, X.shape[-1])
        for x, s in parts:  # a list of results would keep the temporary copies apart in memory
            torch.maximum(columns, (s[:, None] * x).abs().amax(0, keepdim=True), out=columns)
    low, high = (end.item() for end in columns.aminmax())
    largest = 2.0 ** RANGE_EXPONENT[X.dtype]
    if 1 / largest <= high <= largest and high <= tuning.acceptance.units * low:
        return torch.ones_like(columns[..., :1])
    peak = columns.amax(-1, keepdim=True)
    far = (peak > 0) & (peak.log2().abs() > RANGE_EXPONENT[X.dtype])
    common = torch.where(far, peak, 1.0)
    smallest = torch.where(columns > 0, columns, torch.inf).amin(-1, keepdim=True)
    apart = peak > tuning.acceptance.units * smallest
    if bool(apart.any()):
        common = torch.where(apart & (columns > 0), columns, common)
    return _power_of_two(common)


def _power_of_two(size: Tensor) -> Tensor:
    """Return the nearest power of two, by which division is exact."""
    return torch.exp2(size.log2().round())


def _divided(X: Tensor, unit: Tensor) -> Tensor:
    """Return `X / unit`; X itself if every unit is 1."""
    return X if bool((unit == 1).all()) else X / unit
