"""Losses other than least squares, as weighted squares.

A loss `sum_i w_i l(y_i, m_i)` of the means `m_i = x_i'Qx_i` is stationary where the squares
`sum_i w_i v_i (m_i - z_i)^2 / 2` are, if `v_i (m_i - z_i) = dl/dm_i` there:

    Huber            v = min(1, k s / |e|)             z = y
    Geman-McClure    v = 1 / (1 + (e / (c s))^2)^2     z = y
    Poisson          v = max(1 / max(m, a), y / m^2)   z = m - (1 - y / m) / v

with errors `e = y - m` and a scale s, the standard deviation of normal noise without outliers. The
constants k and c give 95% efficiency for normal noise. If no scale is given, it is the median of
`|e_i|` at the answer over that of a standard normal variable (MAD).

For counts, `l = m - y log m`, and a is the mean count. The weight 1/m, with which z = y, is that of
Fisher's scoring, the expected curvature of l; y/m^2 is the observed one. The larger of the two is
taken, because with Fisher's alone a count above a small mean pulls so hard that a minimum of the
loss need not be one of the weighted squares. Fisher's is bounded by 1/a, because a zero count with
a small mean would otherwise have a huge weight, though its loss is m.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import positive_number
from posquad.core.errors import DomainError, RowError

__all__ = [
    "LOSS_NAMES",
    "Poisson",
    "Robust",
    "chosen_loss",
    "describe_likelihood",
    "require_counts",
]

LossName = Literal["least-squares", "huber", "poisson", "geman-mcclure"]
"""The losses of `recover`."""

LOSS_NAMES: tuple[LossName, ...] = ("least-squares", "huber", "poisson", "geman-mcclure")
"""The names of the losses, least squares first."""

# The k of Huber's loss. Cited: Holland and Welsch, Commun. Statist. A 6, 1977: 95% efficiency for
# normal noise.
_HUBER = 1.345
# The c of Geman and McClure's loss. Derived: 95% efficiency, `E[psi']^2 / E[psi^2]`, for normal
# noise.
_GEMAN_MCCLURE = 3.7874187608
# Median of the absolute value of a standard normal variable. Derived: Phi^{-1}(3/4).
_NORMAL_MEDIAN = 0.6744897501960817
# Responses above this multiple of their median count less in the first fit. A choice: gross
# outliers do not decide that fit, and an eighth of the responses of Gaussian inputs at rank two
# only lose some weight.
_LARGE = 3.0
# A weight below this share of the largest is zero. Derived: eps / 2, below which it changes no sum.
_NEGLIGIBLE = 1e-16
# Least mean of a count, over the mean count, for which 1 / m is its weight. A definition: the
# default tolerance of `recover`, so that smaller means cannot be told from zero.
_LEAST_MEAN = 1e-10
# Factor by which the next means of the weights may leave the interval of the last two, and the one
# by which they may fall below the last. A choice: the acceleration extrapolates, and far from the
# answer it would lead to means near zero, whose weights are huge.
_OUTSIDE = 2
_FALL = 8
# Share of the weights up to which a sum of them counts as a half. Derived: sums of n weights are
# rounded by sqrt(n) eps, which is 2e-13 at n = 1e6.
_TIE = 1e-12


@dataclass(frozen=True)
class Robust:
    """Huber's loss or that of Geman and McClure; errors are in units of the scale."""

    name: Literal["huber", "geman-mcclure"]
    given_scale: float | None = None

    @property
    def for_ranks(self) -> Robust:
        """The loss by which a rank is chosen, that of Geman and McClure.

        The pull of outliers under Huber's loss is bounded, but their squares hide a missing rank.
        """
        return replace(self, name="geman-mcclure")

    @property
    def redescends(self) -> bool:
        """Whether gross outliers have no weight, so that the loss has many minima."""
        return self.name == "geman-mcclure"

    def scale(self, y: Tensor, mean: Tensor, w: Tensor, level: float) -> Tensor:
        """Return the scale `[...]`: the given one, or the MAD of the errors.

        The MAD of data without noise is zero; the scale is then `level` times the responses.
        """
        if self.given_scale is not None:
            return torch.full_like(y[..., 0], self.given_scale)
        deviation = weighted_median((y - mean).abs(), w) / _NORMAL_MEDIAN
        return torch.maximum(deviation, level * typical_size(y, w))

    def squares(self, y: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights v, up to a common factor, and responses z, `[..., n]` each."""
        e = (y - mean).abs() / scale[..., None]
        if self.name == "huber":
            return _HUBER / e.clamp_min(_HUBER), y
        size = 1 + (e / _GEMAN_MCCLURE).square()
        v = (size.amin(-1, keepdim=True) / size).square()
        return torch.where(v > _NEGLIGIBLE, v, 0.0), y

    def bounded(self, mean: Tensor, last: Tensor, fitted: Tensor) -> Tensor:
        """Return the next means of the weights, which for a robust loss may be any."""
        del last, fitted
        return mean

    def values(self, y: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        """Return the loss of every sample, `[..., n]`; `e^2 / (2 s^2)` for small errors."""
        e = (y - mean).abs() / scale[..., None]
        if self.name == "huber":
            near = e.clamp_max(_HUBER)
            return near * (e - near / 2)
        square = e.square()
        return square / 2 / (1 + square / _GEMAN_MCCLURE**2)

    def slopes(self, y: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and second derivative of the loss in `e / s`, `[..., n]` each."""
        z = (y - mean) / scale[..., None]
        if self.name == "huber":
            return z.clamp(-_HUBER, _HUBER), (z.abs() <= _HUBER).to(z)
        square = (z / _GEMAN_MCCLURE).square()
        return z * (1 + square).pow(-2), (1 - 3 * square) * (1 + square).pow(-3)

    def first_weights(self, y: Tensor, w: Tensor) -> Tensor:
        """Return factors for a first fit by least squares, which bound the pull of a response."""
        bound = _LARGE * typical_size(y, w)[..., None]
        return torch.where(bound > 0, bound / torch.maximum(y.abs(), bound), 1.0)


@dataclass(frozen=True)
class Poisson:
    """The negative log-likelihood of counts with means m."""

    name: Literal["poisson"] = "poisson"

    def scale(self, y: Tensor, mean: Tensor, w: Tensor, level: float) -> Tensor:
        """Return ones: the variance of a count is its mean."""
        del mean, w, level
        return torch.ones_like(y[..., 0])

    def squares(self, y: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights v and responses z, `[..., n]` each."""
        del scale
        mean = self._positive(y, mean)
        expected = 1 / torch.maximum(mean, y.mean(-1, keepdim=True))
        v = torch.maximum(expected, y / mean.square())
        return v, mean - (1 - y / mean) / v

    def expected_weights(self, y: Tensor, mean: Tensor) -> Tensor:
        """Return `1 / m`, the expected curvature of the loss, `[..., n]`."""
        return 1 / self._positive(y, mean)

    def bounded(self, mean: Tensor, last: Tensor, fitted: Tensor) -> Tensor:
        """Return the next means of the weights, from the last ones and those of their fit.

        They leave the interval of the two by a factor of 2 at most, and fall by at most 8.
        """
        low = torch.minimum(last, fitted) / _OUTSIDE
        high = _OUTSIDE * torch.maximum(last, fitted)
        return torch.minimum(torch.maximum(mean, torch.maximum(low, last / _FALL)), high)

    def values(self, y: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        """Return `m - y log m`, `[..., n]`."""
        del scale
        return mean - torch.xlogy(y, self._positive(y, mean))

    def first_weights(self, y: Tensor, w: Tensor) -> Tensor:
        """Return the weights for means between each count and the mean count."""
        average = ((w * y).sum(-1) / w.sum(-1))[..., None]
        return torch.where(average > 0, 2 / (y + average), 1.0)

    def _positive(self, y: Tensor, mean: Tensor) -> Tensor:
        return torch.maximum(mean, _LEAST_MEAN * y.mean(-1, keepdim=True))


Loss = Robust | Poisson
"""A loss other than least squares."""


def chosen_loss(name: str, scale: float | None) -> Loss | None:
    """Return the loss of this name; None for least squares. Names and scales are checked.

    >>> chosen_loss("huber", 0.5)
    Robust(name='huber', given_scale=0.5)
    """
    if name not in LOSS_NAMES:
        expected = "one of " + ", ".join(repr(each) for each in LOSS_NAMES)
        raise DomainError("loss", expected=expected, got=repr(name))
    if scale is not None:
        if name not in ("huber", "geman-mcclure"):
            expected = f"None for loss={name!r}, because only the robust losses have a scale"
            raise DomainError("scale", expected=expected, got=repr(scale))
        scale = positive_number("scale", scale)
    if name == "least-squares":
        return None
    return Poisson() if name == "poisson" else Robust(name, scale)  # type: ignore[arg-type]


def require_counts(data: Tensor, y: Tensor, w: Tensor, rows: np.ndarray | None = None) -> None:
    """Refuse responses that cannot be Poisson counts with means `<A_i, Q>`.

    `data[..., n, k]` are the numbers of the measurements, all zero where A_i vanishes. `rows` are
    the places of these samples among those that the user gave, if they are not the same.

    >>> ones = torch.ones(2, 1)
    >>> require_counts(ones, torch.tensor([0.0, 3.0]), ones[:, 0])
    """
    wrong = (y < 0) | (y != y.round())
    if bool(wrong.any()):
        index = _first(wrong)
        expected = "counts (0, 1, 2, ...) for loss='poisson'"
        _refuse_row("y", expected, f"{float(y[index]):g}", index[-1], rows)
    impossible = (y > 0) & (w > 0) & ~(data != 0).any(-1)
    if bool(impossible.any()):
        expected = "an input that is not zero wherever the count is positive, because x'Qx is the "
        _refuse_row("X", expected + "mean of the count", "zeros", _first(impossible)[-1], rows)


def _refuse_row(
    argument: str, expected: str, found: str, place: int, rows: np.ndarray | None
) -> NoReturn:
    row = place if rows is None else int(rows[place])
    raise RowError(argument, expected=expected, got=f"{found} in row {row}", found=found, row=row)


def describe_likelihood(name: str, scale: float | None = None, *, given: bool = False) -> str:
    """Return what a fit with this loss assumes about the responses, in words.

    >>> describe_likelihood("poisson")
    'independent Poisson counts, whose variance is their mean'
    """
    if name == "least-squares":
        return "independent normal noise of equal variance, up to the weights (least squares)"
    if name == "poisson":
        return "independent Poisson counts, whose variance is their mean"
    who = "Huber" if name == "huber" else "Geman-McClure"
    known = "" if scale is None else f", scale {scale:.3g} {'given' if given else 'estimated'}"
    return f"independent symmetric noise, normal but for outliers ({who} loss{known})"


def typical_size(y: Tensor, w: Tensor) -> Tensor:
    """Return the weighted median of `|y_i|`, or their mean if that is zero, `[...]`.

    >>> typical_size(torch.tensor([1.0, -2.0, 50.0]), torch.ones(3)).item()
    2.0
    """
    middle = weighted_median(y.abs(), w)
    return torch.where(middle > 0, middle, (w * y.abs()).sum(-1) / w.sum(-1))


def weighted_median(values: Tensor, w: Tensor) -> Tensor:
    """Return the median over the last dimension, each value counted w times, `[...]`.

    >>> weighted_median(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1.0, 1.0, 2.0])).item()
    2.0
    >>> weighted_median(torch.tensor([4.0, 1.0]), torch.ones(2)).item()
    2.5
    """
    ordered, order = values.sort(-1)
    shares = w.expand_as(values).gather(-1, order).cumsum(-1)
    half = shares[..., -1:] / 2
    close = _TIE * shares[..., -1:]
    low = (shares < half - close).sum(-1, keepdim=True)
    high = (shares <= half + close).sum(-1, keepdim=True).clamp_max(values.shape[-1] - 1)
    return (ordered.gather(-1, low) + ordered.gather(-1, high))[..., 0] / 2


def _first(mask: Tensor) -> tuple[int, ...]:
    return tuple(int(k) for k in mask.nonzero()[0])
