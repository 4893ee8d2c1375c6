"""Better coordinates and a better reference fit for moments, when later rows are unlike the first.

Moments are sums in coordinates t of covariance I, of the errors of a reference fit. Both come from
the first rows. Where later rows are much larger in some direction, or are fitted much worse, the
sums lose digits. Better coordinates and a better reference follow from the sums themselves. Rows
that can be read again are summed again; the sums of rows that are gone are converted, before the
rows that differ are added: they are then still accurate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.core.symmetric import svec_weights, symmetric_congruence
from posquad.core.twofold import from_doubles
from posquad.problems.moments import ROUNDING, Frame, Moments, normal_equations, used_products

__all__ = ["extended", "improved", "is_accurate"]

_LARGER = 100.0  # variance of the rows, over that of the first ones, at which coordinates change
_WORSE = 100.0  # squared error of rows, over that of earlier ones, at which the reference changes
_CANCELLED = 1e6  # squared error of the reference, over the least one, that costs too many digits
_EXACT = 1e-14  # error, over the largest response, that is rounding
_ROUNDS = 4  # improvements for the same rows
_LEAST = 1e-14  # variance of a direction, over the largest, below which its scale is not resolved


def is_accurate(moments: Moments) -> bool:
    """Tell whether the sums keep their digits: neither coordinates nor reference are far off.

    >>> from posquad.problems.moments import begin_moments
    >>> X = torch.tensor([[1.0], [-1.0], [2.0]], dtype=torch.float64)
    >>> moments = begin_moments(X, X[:, 0] ** 2)
    >>> moments.add(X, X[:, 0] ** 2)
    >>> is_accurate(moments)
    True
    """
    if not moments.mass:
        return True
    if _is_outgrown(moments):
        return False
    floor = moments.mass * (_EXACT * moments.largest) ** 2
    if moments.squared_error <= _CANCELLED * floor:
        return True
    decrease = float(_correction(moments) @ moments.raw_cross())
    return moments.squared_error <= _CANCELLED * max(moments.squared_error - decrease, floor)


def improved(moments: Moments) -> Moments:
    """Return moments of no rows, with better coordinates or, if these suit, a better reference.

    >>> from posquad.problems.moments import begin_moments
    >>> X = torch.tensor([[1.0], [-1.0], [2.0]], dtype=torch.float64)
    >>> moments = begin_moments(X, X[:, 0] ** 2)
    >>> moments.add(1000 * X, 1e6 * X[:, 0] ** 2)
    >>> better = improved(moments)
    >>> better.add(1000 * X, 1e6 * X[:, 0] ** 2)
    >>> is_accurate(moments), is_accurate(better)
    (False, True)
    """
    if _is_outgrown(moments):  # the sums are too poor for a reference fit
        return _moved(moments.empty(), *_better_frame(moments)).empty()
    better = moments.empty()
    better.reference = moments.reference + _correction(moments)
    return better


def extended(moments: Moments, X: Tensor, y: Tensor, weights: Tensor | None) -> Moments:
    """Return the moments with further samples `X[n, d]`, `y[n]`; the given ones may be changed.

    If these samples are unlike those before, the sums are first converted to coordinates and a
    reference that suit both.

    >>> from posquad.problems.moments import begin_moments
    >>> X = torch.tensor([[1.0], [-1.0], [2.0]], dtype=torch.float64)
    >>> moments = extended(begin_moments(X, X[:, 0] ** 2), 1000 * X, 1e6 * X[:, 0] ** 2, None)
    >>> moments.count, is_accurate(moments)
    (3, True)
    """
    known, more = moments, _summed(moments, X, y, weights)
    for _ in range(_ROUNDS):
        both = known.joined(more)
        if not _is_outgrown(both) and (known is moments or _is_even(both)):
            break
        known = _moved(known, *_better_frame(both))
        more = _summed(known, X, y, weights)
    moments = known
    for _ in range(_ROUNDS):
        if _is_alike(known, more):
            break
        # From the known reference each time: the changes of earlier rounds leave no rounding.
        reference = moments.reference + _correction(moments.joined(more))
        moments = _referred(known, reference)
        more = _summed(moments, X, y, weights)
    return moments.joined(more)


def _summed(moments: Moments, X: Tensor, y: Tensor, weights: Tensor | None) -> Moments:
    more = moments.empty()
    more.add(X, y, weights)
    return more


def _is_alike(known: Moments, more: Moments) -> bool:
    """Tell whether the reference reproduces further samples about as well as the known ones."""
    if not known.mass:
        return True
    usual = _WORSE * known.squared_error / known.mass
    usual = max(usual, (_EXACT * max(known.largest, more.largest)) ** 2)
    return more.squared_error <= usual * more.mass


def _is_outgrown(moments: Moments) -> bool:
    values = torch.linalg.eigvalsh(moments.second_moments() / (moments.mass or 1.0))
    return float(values[-1]) > _LARGER


def _is_even(moments: Moments) -> bool:
    values = torch.linalg.eigvalsh(moments.second_moments())
    return float(values[0]) * _LARGER >= float(values[-1])


def _better_frame(moments: Moments) -> tuple[Frame, Tensor]:
    """Return coordinates t' in which the rows have covariance near I, and L with `z' = L'z`."""
    frame, d = moments.frame, moments.d
    second = moments.second_moments() / moments.mass
    mean = torch.zeros(d, dtype=torch.float64)
    if moments.terms == "linear":
        center = moments.mean()
        spread = second - center[:, None] * center
        if bool((center.square() > _LARGER * spread.diagonal()).any()):
            mean, second = center, spread
    scale = second.diagonal().clamp_min(0).sqrt()
    scale = torch.where(scale > 0, scale, 1.0)
    values, vectors = torch.linalg.eigh(second / scale / scale[:, None])
    if float(values[0]) * _LARGER >= float(values[-1]):
        A = torch.diag(1 / scale)  # coordinates without samples so far are not mixed with others
    else:
        values = values.clamp_min(_LEAST * float(values[-1]))
        A = vectors * values.rsqrt() / scale[:, None]
    lift = torch.eye(moments.layout.k, dtype=torch.float64)
    lift[:d, :d] = A
    if moments.terms != "none":
        lift[-1, :d] = -mean @ A
    origin = frame.origin + torch.linalg.solve(frame.T.T, mean)
    return Frame(frame.unit, origin, frame.T @ A), lift


def _moved(moments: Moments, frame: Frame, lift: Tensor) -> Moments:
    """Return the same moments in the coordinates `z' = L'z` of a frame."""
    d, weights = moments.d, svec_weights(moments.layout.k)
    turn = symmetric_congruence(lift)
    gram = (turn.T @ moments.gram() @ turn) / weights / weights[:, None]
    cross = (turn.T @ moments.cross()) / weights
    known = symmetric_congruence(torch.linalg.inv(lift)) @ moments.reference_svec()
    A = lift[:d, :d]
    second = A.T @ moments.second_moments() @ A
    if moments.terms == "linear":  # t' = A't + shift
        shift, first = lift[-1, :d], moments.mean() * moments.mass @ A
        second += shift[:, None] * first + first[:, None] * shift
        second += moments.mass * shift[:, None] * shift
    moved = Moments(moments.terms, frame, known * weights, moments.center, narrow=moments.narrow)
    moved.count, moved.largest, moved.doubt = moments.count, moments.largest, moments.doubt
    total = moved.layout.stored(gram)
    scalars = moments.scalars().clone()
    parts = [total, cross, second.flatten(), scalars]
    moved.sums = from_doubles(torch.cat(parts))
    return moved


def _referred(moments: Moments, reference: Tensor) -> Moments:
    """Return the same moments with another reference fit: `e' = e - delta'(z_i z_j)`."""
    delta = reference - moments.reference
    gram = moments.layout.gram(moments.raw_fourth())
    cross, change = moments.raw_cross(), gram @ delta
    scalars = moments.scalars().clone()
    scalars[1] = (scalars[1] - 2 * delta @ cross + delta @ change).clamp_min(0.0)
    second = moments.second_moments().flatten()
    other = Moments(moments.terms, moments.frame, reference, moments.center, narrow=moments.narrow)
    other.count, other.largest = moments.count, moments.largest
    size = delta.abs() @ (gram.abs() @ delta.abs() + 2 * cross.abs())
    other.doubt = moments.doubt + ROUNDING * float(size)
    other.sums = from_doubles(torch.cat([moments.raw_fourth(), cross - change, second, scalars]))
    return other


def _correction(moments: Moments) -> Tensor:
    """Return what least squares adds to the reference fit, `[pairs]`."""
    rows = used_products(moments.layout, moments.terms)
    gram = moments.layout.gram(moments.raw_fourth())[rows][:, rows]
    delta = torch.zeros(moments.layout.pairs, dtype=torch.float64)
    delta[rows] = normal_equations(gram)(moments.raw_cross()[rows])
    return delta
