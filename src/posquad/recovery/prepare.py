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
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import host
from posquad.core.ranges import PLAIN_LENGTHS, ROW_ENTRIES, UNSCALED_INPUTS, tiny
from posquad.problems.held import HeldMeasurements, one_of_views
from posquad.problems.measurements import RankOne
from posquad.problems.views import RankOneView
from posquad.problems.widened import RankOneWidened
from posquad.recovery import costs
from posquad.recovery.problem import Given, Problem

# Entries of X that are inspected for repetition. A choice: sorting them takes about a millisecond.
_INSPECTED = 20_000
# Inspected entries per distinct one from which inputs are nongeneric. A choice: all entries of
# generic inputs are distinct, and nearly all of a table of few values are repeated.
_REPEATED = 2
# Share of the rows that may have zeros in large inputs that are generic. A choice: single precision
# rounds few entries to zero, and a feature that is absent is zero in most rows.
_FEW_ROWS = 0.01
# Columns from which memory decides how eigenvalues are computed on a GPU. Derived: the workspace of
# four d x d matrices in double precision takes 0.5 GB there.
_WIDE = 4096
# Least share of the largest variance that single precision must find in every direction on a GPU.
# Derived: its rounding there, about d eps = 5e-4 at d = 4096, is below.
_SINGLE_VARIANCE = 1e-3
# Largest sqrt(d / n) in the rule of Marchenko and Pastur. A choice: at n < d the spread of
# isotropic samples has no lower end, and 0.8 leaves one of (0.2 / 1.8)^2 = 1/81.
_MOST_ASPECT = 0.8
# Least spread of eigenvalues that single precision can show. Derived: they are rounded by about
# sqrt(n) eps of the largest, which is 1e-4 at n = 1e6.
_LEAST_SPREAD = 1e-4
# Factor by which a spread in single precision must exceed the one required. A choice: 1% of that of
# ample samples, about 0.1, is ten times the rounding.
_CLEARLY = 1.01
# Spread of the covariance that is not whitened, over that of isotropic samples. A choice: whitening
# what needs none costs a pass over X; half the value takes 1.4 times as long on small problems.
ISOTROPIC = 4.0
# Ratio of column sizes from which columns are in different units. A definition.
UNITS = 1000.0
# Ratio of lengths from which samples are normalized. A choice: squared errors then weigh samples by
# up to 30^4 = 8e5.
UNEVEN = 30.0


@dataclass(frozen=True, eq=False)
class Sums:
    """What is known of the samples of a problem whose measurements are sums over them."""

    independent: int  # dimension of what the samples see, without what other terms explain
    determined: bool  # whether only one symmetric matrix fits best
    symmetric: Tensor  # [k, k]  of least error; where it is free, that of which the sums know most
    hidden: Callable[[Tensor], Tensor]  # `[..., k, r]` to `[...]`: relative residuals up to which
    #     rounding hides the errors of factors in working coordinates
    unbounded: Callable[[], list[Tensor]]  # directions whose squares other terms express, `[k]`
    form_size: Callable[[Tensor], float]  # size of the form `VV'` over that of the responses


@dataclass(frozen=True)
class Prepared:
    """One problem or a batch in working coordinates: `x = x_user T` and `U_user = T U`."""

    problem: Problem
    given: Given
    transform: Tensor  # [..., d, k]
    scale: Tensor  # [...]  y_user = scale * y
    span: np.ndarray  # [...]  dimension of the span of the inputs
    count: np.ndarray  # [...]  samples that are not zero
    rows: Tensor | None = None  # [..., n]  weight^(1/2) ||x||^2 before rows were normalized
    within: float = 0.0  # squared errors that no matrix changes, over the other responses
    other_terms: int = 0  # coefficients of other terms
    sums: Sums | None = None  # of a problem that no longer has its samples

    @property
    def is_weighted(self) -> bool:
        """Whether samples count by weights of the user."""
        return self.rows is None and self.given.rows is not None

    def select(self, chosen: Tensor) -> Prepared:
        """Return the problems of a batch at these indices."""
        return Prepared(
            problem=self.problem.select(chosen),
            given=self.given.select(chosen),
            transform=self.transform[chosen],
            scale=self.scale[chosen],
            span=self.span[host(chosen)],
            count=self.count[host(chosen)],
            rows=None if self.rows is None else self.rows[chosen],
            within=self.within,
            other_terms=self.other_terms,
        )

    def one(self) -> Prepared:
        """Return one problem as a batch of one."""
        return Prepared(
            problem=Problem(self.problem.operator.expanded(1), self.problem.y[None]),
            given=self.given.one(),
            transform=self.transform[None],
            scale=self.scale[None],
            span=self.span[None],
            count=self.count[None],
            rows=None if self.rows is None else self.rows[None],
            within=self.within,
            other_terms=self.other_terms,
        )

    def relative(self, e: Tensor) -> np.ndarray:
        """Return the size of errors `e[..., n]` relative to the responses, both as in `given`."""
        return host(torch.linalg.vector_norm(e, dim=-1) / self.given.size)

    def given_relative(self, e: Tensor) -> np.ndarray:
        """Return the same for the lengths and weights that the user gave."""
        if self.rows is None:
            return self.relative(e)
        size = _norm_or_one(self.given.y * self.rows)
        return host(torch.linalg.vector_norm(e * self.rows, dim=-1) / size)

    @property
    def least(self) -> np.ndarray:
        """The relative residual of Q = 0, for the lengths and weights of the user, `[...]`."""
        return self.of_all_samples(self.given_relative(self.given.y))

    def of_all_samples(self, residual: Any) -> Any:
        """Return the relative residual of all samples, from that of the merged ones."""
        return ((residual**2 + self.within) / (1 + self.within)) ** 0.5 if self.within else residual

    def working_errors(self, e: Tensor) -> Tensor:
        """Return errors in the units of the working responses, from those of `Given.errors`."""
        unit = self.given.unit
        return e * (unit / self.scale * unit)[..., None]

    def enter(self, U: Tensor) -> Tensor:
        """Return a factor in working coordinates, from the user's."""
        return torch.linalg.pinv(self.transform) @ U / self.scale.sqrt()[..., None, None]

    def restore(self, U: Tensor) -> Tensor:
        """Return a factor in the user's coordinates."""
        return self.transform @ (U * self.scale.sqrt()[..., None, None])


@np.errstate(all="ignore")
def prepare(
    X: Tensor,
    y: Tensor,
    weights: Tensor | None,
    *,
    rows: Tensor | None = None,
) -> Prepared:
    """Prepare `X[..., n, d]` and `y[..., n]` of the same batch, of at most one dimension.

    Every problem of a batch is prepared as it would be alone; inputs that a batch shares are
    prepared once. `rows[..., n]` are factors of the rows of X. A large X is not copied: its
    operator is a view. It may be float32 where y is float64, and is then converted block by block.
    """
    shared = one_of_views(X) if weights is None and rows is None else None
    if shared is not None:
        one = prepare(shared[None], y[:1], None)
        if 0 < one.span.item() < X.shape[-1] and not is_large(shared):
            one = prepare(shared, y[0], None).one()  # in a basis of the span
        return repeated(one, y)
    if weights is not None:
        w = weights / weights.mean(-1, keepdim=True)
        rows, y = w.pow(0.25), y * w.sqrt()
    large = is_large(X)
    scale = response_scale(y)
    whole_rows = RankOne.of_checked(X) if X.dtype == y.dtype else RankOneWidened(X)
    unchanged = Given.of(whole_rows, rows, y, scale)
    if rows is not None and not large:
        X, rows = X * rows[..., None], None
    n, d = X.shape[-2:]
    unit = _units(X, rows, y.dtype)
    given = whole_rows if large else RankOne.of_checked(X)
    x = None if large else host(X)
    q = min(math.sqrt(d / n), _MOST_ASPECT)
    natural = ((1 - q) / (1 + q)) ** 2  # of isotropic samples, by Marchenko-Pastur
    moments = values = None
    if x is not None:
        x = x if unit is None else x / unit
        moments = torch.from_numpy(x.swapaxes(-1, -2) @ x / n)
    elif rows is None and unit is None and has_single(given):
        values = _clear_spread(given.single(), natural / ISOTROPIC)
    if values is None:
        if moments is None:
            moments = _large_moments(given, rows, unit)
        values = host(_eigenvalues(moments))
    top = np.maximum(values[..., -1:], tiny(y))
    seen = values > max(n, d) * torch.finfo(y.dtype).eps * top  # [..., d]
    span = seen.sum(-1)
    smallest = np.where(seen, values / top, 1.0).min(-1)
    isotropic = (smallest * ISOTROPIC > natural) & (span == d)  # [...]
    root = power_of_two(np.sqrt(values.mean(-1)))[..., None, None]
    transform, whole = np.eye(d, dtype=values.dtype) / root, bool(isotropic.all())
    if not whole:
        assert moments is not None, "values of single precision are those of isotropic samples"
        transform = _whitening(moments, seen, isotropic, transform)
    back = transform if unit is None else transform / unit.swapaxes(-1, -2)
    T = torch.from_numpy(back).to(X.device)
    if x is not None:
        inputs = x / root if whole else x @ transform
        operator = RankOne.of_checked(torch.from_numpy(inputs).to(X.device))
        count = (np.vecdot(inputs, inputs) > 0).sum(-1)
    else:
        plain = whole and rows is None and unit is None and bool((root == 1).all())
        operator = given if plain else RankOneView(given, T, rows)
        count = (host(operator.squared_lengths) > 0).sum(-1)
    return Prepared(Problem(operator, y / scale[..., None]), unchanged, T, scale, span, count)


def _clear_spread(single: RankOne, least: float) -> np.ndarray | None:
    """Return the eigenvalues of second moments in single precision; None if they are not enough.

    They are if the smallest one, relative to the largest, is clearly above `least`.
    """
    moments = RankOne.of_checked(single.X).second_moments  # not kept
    if not bool(torch.isfinite(moments).all()):
        return None
    values = host(torch.linalg.eigvalsh(moments).double())
    return values if values[0] > _CLEARLY * max(least, _LEAST_SPREAD) * values[-1] else None


def _large_moments(operator: RankOne, rows: Tensor | None, unit: np.ndarray | None) -> Tensor:
    """Return the second moments of the inputs of one problem, `[d, d]`, in these units."""
    if rows is None:
        moments = operator.second_moments
    else:
        moments = operator.adjoint_kernel(rows.square()) / operator.n
    if unit is None:
        return moments
    columns = torch.from_numpy(unit).to(moments.device)
    return moments / columns / columns.mT


def _whitening(
    moments: Tensor, seen: np.ndarray, isotropic: np.ndarray, plain: np.ndarray
) -> np.ndarray:
    """Return the transform `[..., d, k]` of inputs with these second moments.

    It is the `plain` one of inputs that are isotropic. Those of one problem are written in a basis
    of the directions that are `seen[..., d]`; in a batch, the others become zero.
    """
    values, vectors = map(host, torch.linalg.eigh(moments))
    whitened = vectors / np.where(seen, np.sqrt(np.maximum(values, 0)), np.inf)[..., None, :]
    transform = np.where(isotropic[..., None, None], plain, whitened)
    if moments.ndim == 2:
        return transform[:, seen] if seen.any() else transform[:, -1:] * 0
    return transform


def _norm_or_one(y: Tensor) -> Tensor:
    """Return the norm of `y[..., n]`, or 1 if it is zero, `[...]`."""
    size = torch.linalg.vector_norm(y, dim=-1)
    return torch.where(size > 0, size, 1.0)


def response_scale(y: Tensor) -> Tensor:
    """Largest `|y_i|` of each problem, or 1 if all are zero, `[...]`."""
    size = largest_entry(y)
    return torch.where(size > 0, size, 1.0)


def largest_entry(y: Tensor) -> Tensor:
    """`max |y_i|`, `[...]`, without a copy of `y[..., n]`."""
    return torch.maximum(y.amax(-1), -y.amin(-1))


def repeated(one: Prepared, y: Tensor) -> Prepared:
    """Return the preparation of a batch of one problem for many responses `y[B, n]`."""

    def repeat(value: np.ndarray) -> np.ndarray:
        return np.broadcast_to(value, (len(y), *value.shape[1:]))

    def operators(batch_of_one: HeldMeasurements) -> HeldMeasurements:
        own = batch_of_one.data
        return batch_of_one.holding(own.expand(len(y), *own.shape[1:]))

    scale = response_scale(y)
    return Prepared(
        problem=Problem(operators(one.problem.operator), y / scale[:, None]),
        given=Given.of(operators(one.given.operator), None, y, scale),
        transform=one.transform.expand(len(y), *one.transform.shape[1:]),
        scale=scale,
        span=repeat(one.span),
        count=repeat(one.count),
    )


def has_uneven_rows(X: Tensor, weights: Tensor | None) -> Tensor:
    """Whether the rows, with their weights, have lengths so different that some hardly count."""
    shared = one_of_views(X) if weights is None else None
    if shared is not None:
        return has_uneven_rows(shared, None).expand(len(X))
    factor, present, _, _ = _row_sizes(X, weights, X.dtype)
    return spread(factor, present) > 2 * math.log2(UNEVEN)


def normalize_rows(X: Tensor, y: Tensor, weights: Tensor | None) -> Prepared | None:
    """Prepare the problems with rows of length one.

    Returns None if the lengths are similar already, or a response would overflow.
    """
    if weights is None and X.ndim == 2:
        low, high = (end.item() for end in torch.linalg.vector_norm(X, dim=-1).aminmax())
        if PLAIN_LENGTHS.of(X.dtype).low < low and high <= UNEVEN * low < math.inf:
            return None
    shared = one_of_views(X) if weights is None else None
    batch = X.shape[:-2]
    X = X if shared is None else shared
    factor, present, peak, lengths = _row_sizes(X, weights, y.dtype)
    if not bool((spread(factor, present) > 2 * math.log2(UNEVEN)).any()):
        return None
    # A response to a zero input is kept, because it cannot be reproduced and must count as misfit.
    responses = y / peak / peak / lengths.square()
    if weights is not None:
        responses = torch.where(weights > 0, responses, 0.0)
    if not bool(torch.isfinite(responses).all()):
        return None
    shorten = torch.where(present, 1 / peak / lengths, 0.0)
    if is_large(X):
        even = prepare(X, responses, None, rows=shorten)
    else:
        unit = torch.where(present[..., None], X / peak[..., None] / lengths[..., None], 0.0)
        even = prepare(unit.expand(*batch, *unit.shape[-2:]), responses, None)
        given = RankOne.of_checked(X.expand(*batch, *X.shape[-2:]))
        shorten = shorten.expand(responses.shape)
        even = replace(even, given=Given.of(given, shorten, responses, even.scale))
    top = torch.where(present, factor, -torch.inf).amax(-1, keepdim=True)
    rows = torch.where(present, (factor - top).exp2(), 0.0)
    return replace(even, rows=rows.expand(responses.shape))


def _row_sizes(
    X: Tensor, weights: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return, for each row, log2 of `w^(1/2) ||x||^2`, whether it counts, max |x_j|, and the rest.

    The length of a row is the product of the last two. They are computed in the given precision.
    """
    peak = largest_entry(X).to(dtype)  # [..., n]
    present = peak > 0 if weights is None else (peak > 0) & (weights > 0)
    peak = torch.where(present, peak, 1.0)
    limits = ROW_ENTRIES.of(dtype)
    in_range = (peak > limits.low) & (peak < limits.high)
    if X.dtype == dtype and bool(in_range.all()):
        norms = torch.linalg.vector_norm(X, dim=-1) / peak  # squares are in range
    else:
        rows = _part_rows(X)
        norms = torch.empty_like(peak)
        for k in range(0, X.shape[-2], rows):
            part = slice(k, k + rows)
            scaled = X[..., part, :].to(dtype) / peak[..., part, None]
            norms[..., part] = torch.linalg.vector_norm(scaled, dim=-1)
    lengths = torch.where(present, norms, 1.0)
    factor = 2 * (peak.log2() + lengths.log2())
    if weights is not None:
        factor = factor + torch.where(present, weights, 1).log2() / 2
    return factor, present, peak, lengths


def is_large(X: Tensor) -> bool:
    """Whether X is too large for copies: scaled, whitened, and those of a step."""
    return X.ndim == 2 and not costs.fits(4 * X.numel())


def has_single(operator: HeldMeasurements) -> bool:
    """Whether some products with the inputs of one problem are made in single precision.

    A pass over X must cost more than its calls, and a copy at half the size and its products fit.
    """
    if not isinstance(operator, RankOne):
        return False
    if operator.batch_shape or operator.dtype != torch.float64:
        return False
    return operator.n * operator.d >= costs.BLOCK and costs.fits(operator.single_entries)


def _part_rows(X: Tensor) -> int:
    """Return the rows of a block whose temporary copy is small."""
    return max(1, costs.BLOCK // max(1, X[..., 0, :].numel()))


def spread(values: Tensor, present: Tensor) -> Tensor:
    """Return the largest minus the smallest of the values present; 0 if there are none."""
    top = torch.where(present, values, -torch.inf).amax(-1)
    low = torch.where(present, values, torch.inf).amin(-1)
    return torch.where(present.any(-1), top - low, 0.0)


def looks_nongeneric(X: Tensor) -> np.ndarray:
    """Whether the inputs have zeros or many repeated entries, and may not be generic, `[...]`.

    In large ones, zeros in few rows do not count: among many numbers in single precision some are
    zero by rounding, and the other rows have no zeros.
    """
    shared = one_of_views(X)
    if shared is not None:
        return np.broadcast_to(looks_nongeneric(shared), len(X))
    flat = X.flatten(-2)
    stride = max(1, flat.shape[-1] // _INSPECTED)
    values = np.sort(abs(host(flat[..., ::stride])), axis=-1)
    fresh = (values[..., 1:] > values[..., :-1]).sum(-1) + 1
    if stride == 1:
        zeros = values[..., 0] == 0
    else:
        parts = X.split(_part_rows(X), dim=-2)
        counts = [(part.count_nonzero(-1) < X.shape[-1]).sum(-1) for part in parts]
        zeros = host(torch.stack(counts).sum(0)) > _FEW_ROWS * X.shape[-2]
    return zeros | (_REPEATED * fresh <= values.shape[-1])


def _eigenvalues(moments: Tensor) -> Tensor:
    """Eigenvalues of second moments, ascending, `[..., d]`.

    The workspace of a large decomposition on a GPU is four times the matrix. Single precision
    halves it, and is enough unless it finds a direction with less than 1e-3 of the variance.
    """
    if moments.device.type != "cpu" and moments.shape[-1] >= _WIDE:
        values = torch.linalg.eigvalsh(moments.float()).double()
        if bool((values[..., 0] > _SINGLE_VARIANCE * values[..., -1]).all()):
            return values
    return torch.linalg.eigvalsh(moments)


def _units(X: Tensor, rows: Tensor | None, dtype: torch.dtype) -> np.ndarray | None:
    """Return powers of two to divide the columns by, `[..., 1, 1 or d]`; None if all are 1.

    They keep squares in range, and avoid that inputs with columns in different units appear not to
    span the space. `rows` are factors of the rows of X, which is worked on in the given precision.
    """
    if rows is None:
        columns = host(largest_entry(X.mT)[..., None, :].to(dtype))
    else:
        size = _part_rows(X)
        largest = rows.new_zeros(1, X.shape[-1])
        parts = zip(X.split(size), rows.split(size), strict=True)
        for x, s in parts:  # a list of results would keep the temporary copies apart in memory
            torch.maximum(largest, (s[:, None] * x).abs().amax(0, keepdim=True), out=largest)
        columns = host(largest)
    limits = UNSCALED_INPUTS.of(dtype)
    low, high = columns.min(), columns.max()
    if limits.low <= high <= limits.high and high <= UNITS * low:
        return None
    peak = columns.max(-1, keepdims=True)
    far = (peak > 0) & ((peak < limits.low) | (peak > limits.high))
    common = np.where(far, peak, 1.0)
    smallest = np.where(columns > 0, columns, np.inf).min(-1, keepdims=True)
    apart = peak > UNITS * smallest
    if apart.any():
        common = np.where(apart & (columns > 0), columns, common)
    return power_of_two(common)


def power_of_two(size: np.ndarray) -> np.ndarray:
    """Return the nearest power of two, by which division is exact."""
    return np.exp2(np.round(np.log2(size)))
