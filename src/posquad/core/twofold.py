"""Double-double arithmetic on tensors: numbers of about 106 bits as sums of two doubles.

Exact sums and products use the algorithms of Dekker and Knuth, the rest those of Hida, Li and
Bailey. Results are correct if no product overflows or underflows; callers keep their numbers near
one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

UNIT = 2.0**-100
"""Bound on the relative error of each operation below, sums of up to 2^20 terms included.

One operation has a relative error below 2^-103 (Joldes, Muller, Popescu 2017); sums are taken
pairwise.
"""

_LN2 = (0.6931471805599453, 2.3190468138462996e-17)
_HALVINGS = 9  # of the argument of exp; _TERMS terms of its series then have an error of 2^-104
_TERMS = 9


class Twofold(NamedTuple):
    """`high + low`, float64, with `|low|` at most half a unit in the last place of `high`."""

    high: Tensor
    low: Tensor

    def __add__(self, other: Twofold) -> Twofold:  # type: ignore[override]
        high, error = _sum(self.high, other.high)
        low, rest = _sum(self.low, other.low)
        high, error = _quick_sum(high, error + low)
        return Twofold(*_quick_sum(high, error + rest))

    def __mul__(self, other: Twofold) -> Twofold:  # type: ignore[override]
        high, error = _product(self.high, other.high)
        return Twofold(*_quick_sum(high, error + (self.high * other.low + self.low * other.high)))

    def __neg__(self) -> Twofold:
        return Twofold(-self.high, -self.low)

    def times(self, factor: Tensor) -> Twofold:
        """Product with a tensor of doubles."""
        high, error = _product(self.high, factor)
        return Twofold(*_quick_sum(high, error + self.low * factor))

    def over(self, divisor: Tensor) -> Twofold:
        """Quotient by a tensor of doubles."""
        first = self.high / divisor
        rest = self + -Twofold(*_product(first, divisor))
        return Twofold(*_quick_sum(first, rest.high / divisor))

    def scaled(self, factor: Tensor | float) -> Twofold:
        """Product with powers of two, which is exact."""
        return Twofold(self.high * factor, self.low * factor)

    def sum(self, dim: int) -> Twofold:
        """Pairwise sum along a dimension."""
        total = self
        while (size := total.high.shape[dim]) > 1:
            half = size // 2
            parts = [
                Twofold(*(part.narrow(dim, start, half) for part in total)) for start in (0, half)
            ]
            paired = parts[0] + parts[1]
            if size % 2:
                last = Twofold(*(part.narrow(dim, size - 1, 1) for part in total))
                paired = Twofold(*(torch.cat(both, dim) for both in zip(paired, last, strict=True)))
            total = paired
        return Twofold(total.high.squeeze(dim), total.low.squeeze(dim))


def from_doubles(values: Tensor) -> Twofold:
    """Convert a tensor of doubles, exactly."""
    return Twofold(values, torch.zeros_like(values))


def exponential(x: Twofold) -> tuple[Twofold, Tensor]:
    """`exp(x)` as a number near one and an integer power of two, for `|x| < 2^30`.

    The relative error is below `UNIT (1 + |x|)`.
    """
    power = torch.round(x.high / _LN2[0])
    constant = Twofold(*(power.new_tensor(part).expand_as(power) for part in _LN2))
    r = (x + -constant.times(power)).scaled(2.0**-_HALVINGS)
    one = torch.ones_like(power)
    series = from_doubles(one)  # Horner: expm1(r) = r (1 + r/2 (1 + r/3 (...)))
    for k in range(_TERMS, 1, -1):
        series = from_doubles(one) + (r * series).over(k * one)
    less_one = r * series
    for _ in range(_HALVINGS):
        less_one = less_one.scaled(2.0) + less_one * less_one
    return from_doubles(one) + less_one, power


def power_of_two(power: Tensor) -> Tensor:
    """Exact `2^power` for integers of any dtype, clamped to [-1022, 1023]."""
    bits = (power.to(torch.int64).clamp(-1022, 1023) + 1023) << 52  # exp2 may round
    return bits.view(torch.float64)


def scale_by_power(values: Tensor, power: Tensor) -> Tensor:
    """`values * 2^power` for values near one, also where `2^power` alone is out of range."""
    first = torch.floor(power / 2)
    return values * power_of_two(first) * power_of_two(power - first)


def _sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """`a + b` and its rounding error."""
    s = a + b
    other = s - a
    return s, (a - (s - other)) + (b - other)


def _quick_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """`a + b` and its rounding error, for `|a| >= |b|`."""
    s = a + b
    return s, b - (s - a)


def _product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """`a b` and its rounding error."""
    p = a * b
    a1, a2 = _halves(a)
    b1, b2 = _halves(b)
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


def _halves(a: Tensor) -> tuple[Tensor, Tensor]:
    """Split a into two numbers of 26 bits whose sum is a."""
    shifted = 134217729.0 * a  # 2^27 + 1
    high = shifted - (shifted - a)
    return high, a - high
