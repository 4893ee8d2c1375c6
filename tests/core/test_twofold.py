"""Double-double arithmetic against mpmath."""

from __future__ import annotations

import mpmath
import numpy as np
import torch

from posquad.core.twofold import (
    UNIT,
    Twofold,
    exponential,
    from_doubles,
    power_of_two,
    scale_by_power,
)

RNG = np.random.default_rng(0)


def numbers(count: int, low: float, high: float) -> Twofold:
    """Numbers of both signs with a low part that matters."""
    x = RNG.choice([-1.0, 1.0], count) * 10.0 ** RNG.uniform(low, high, count)
    return Twofold(torch.from_numpy(x), torch.from_numpy(x * 1e-17 * RNG.uniform(-1, 1, count)))


def whole(x: Twofold) -> list:
    pairs = zip(x.high.tolist(), x.low.tolist(), strict=True)
    return [mpmath.mpf(high) + mpmath.mpf(low) for high, low in pairs]


def worst(found: Twofold, expected: list, sizes: list) -> float:
    gaps = [abs(a - b) / s for a, b, s in zip(whole(found), expected, sizes, strict=True)]
    return float(max(gaps))


def test_sums_products_and_quotients():
    with mpmath.workdps(70):
        x, y = numbers(500, -20, 20), numbers(500, -20, 20)
        a, b = whole(x), whole(y)
        pairs = list(zip(a, b, strict=True))
        sizes = [abs(s) + abs(t) for s, t in pairs]
        assert worst(x + y, [s + t for s, t in pairs], sizes) < UNIT
        products = [s * t for s, t in pairs]
        assert worst(x * y, products, [abs(p) for p in products]) < UNIT
        doubles = [mpmath.mpf(t) for t in y.high.tolist()]
        expected = [s * t for s, t in zip(a, doubles, strict=True)]
        assert worst(x.times(y.high), expected, [abs(p) for p in expected]) < UNIT
        expected = [s / t for s, t in zip(a, doubles, strict=True)]
        assert worst(x.over(y.high), expected, [abs(p) for p in expected]) < UNIT


def test_sums_along_a_dimension_of_every_length():
    with mpmath.workdps(70):
        for length in (1, 2, 3, 7, 64, 1001):
            x = numbers(2 * length, -8, 8)
            rows = Twofold(x.high.reshape(2, length), x.low.reshape(2, length))
            every = whole(x)
            parts = [every[:length], every[length:]]
            sizes = [mpmath.fsum(map(abs, part)) for part in parts]
            assert worst(rows.sum(1), [mpmath.fsum(part) for part in parts], sizes) < UNIT
            turned = Twofold(rows.high.T, rows.low.T)
            assert worst(turned.sum(0), [mpmath.fsum(part) for part in parts], sizes) < UNIT


def test_exponentials():
    with mpmath.workdps(70):
        for low, high in ((-30, 0), (-1, 1), (1, 2.9)):
            x = numbers(300, low, high)
            growth, power = exponential(x)
            expected = [
                mpmath.exp(s) / mpmath.mpf(2) ** int(k)
                for s, k in zip(whole(x), power.tolist(), strict=True)
            ]
            sizes = [e * (1 + abs(s)) for e, s in zip(expected, whole(x), strict=True)]
            assert worst(growth, expected, sizes) < UNIT


def test_powers_of_two_are_exact():
    power = torch.arange(-1022, 1024)
    assert power_of_two(power).tolist() == [2.0**k for k in power.tolist()]
    values, powers = torch.tensor([1.5, 1.0, 1.25]).double(), torch.tensor([-1070, 1023, -2500])
    assert scale_by_power(values, powers).tolist() == [1.5 * 2.0**-1070, 2.0**1023, 0.0]
    assert from_doubles(values).low.tolist() == [0.0, 0.0, 0.0]
