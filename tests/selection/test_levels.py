"""Level-set extremes against mpmath at 50 digits, and a brute-force maximum over the level set."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import scipy.optimize
import torch

from posquad.selection.levels import forward_log_ratio, largest_linear, reverse_log_ratios
from support import double

# Around 5e-5 the roots cross 1e-2, where the evaluation changes from a series to expm1.
LEVELS = [*(10.0**k for k in range(-20, 6)), 4.9e-5, 5.1e-5]


def exact_log_ratios(level: float) -> tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf]:
    """(log x low, log x high) of x - 1 - log x = level, and log x >= 0 of x log x - x + 1 = level.

    Both branches of W meet at -1/e with a square-root singularity, which costs half the digits; the
    argument itself loses another -log10(level). For large levels x underflows, hence the identity
    log x = x - 1 - level instead of the logarithm.
    """
    with mpmath.workdps(120):
        c = mpmath.mpf(level)
        low, high = (-mpmath.lambertw(-mpmath.exp(-1 - c), branch).real for branch in (0, -1))
        forward = 1 + mpmath.lambertw((c - 1) / mpmath.e).real
        return low - 1 - c, high - 1 - c, forward


def test_ratios_are_lambert_w():
    for level in LEVELS:
        computed = (*reverse_log_ratios(double(level)), forward_log_ratio(double(level)))
        for value, exact in zip(computed, exact_log_ratios(level), strict=True):
            # The series is cut at z^6; at its end z = 1e-2 the rest is 2 z^5 / 5040 = 4e-14.
            assert abs(mpmath.mpf(float(value)) / exact - 1) < 5e-14


def test_level_zero_is_the_point_itself():
    low, high = reverse_log_ratios(torch.zeros(2, dtype=torch.float64))
    assert not low.any()
    assert not high.any()
    assert not forward_log_ratio(torch.zeros(2, dtype=torch.float64)).any()


def test_levels_are_elementwise_and_ordered():
    levels = torch.tensor(sorted(LEVELS), dtype=torch.float64).reshape(2, -1)
    low, high = reverse_log_ratios(levels)
    assert low.shape == high.shape == levels.shape
    assert bool((low.flatten().diff() < 0).all())
    assert bool((high.flatten().diff() > 0).all())
    assert float(low[1, 3]) == float(reverse_log_ratios(levels[1, 3])[0])


def exact_largest(c: np.ndarray, p: np.ndarray, d: np.ndarray, level: float) -> mpmath.mpf:
    """The maximum by bisection in the multiplier, at 50 digits.

    With q_a = p_a / (1 - x_a) and x_a = 4 c_a / (mu d_a), the divergence falls in mu.
    """
    with mpmath.workdps(50):
        cs, ps, ds = ([mpmath.mpf(float(v)) for v in vector] for vector in (c, p, d))
        s = [4 * a / b for a, b in zip(cs, ds, strict=True)]
        top, size = max(*s, mpmath.mpf(0)), max(abs(v) for v in s)

        def ratios(log_gap: mpmath.mpf) -> list:
            return [v / (top + mpmath.exp(log_gap)) for v in s]

        def excess(log_gap: mpmath.mpf) -> mpmath.mpf:
            terms = zip(ratios(log_gap), ps, ds, strict=True)
            return sum(b * a * (x / (1 - x) + mpmath.log(1 - x)) for x, a, b in terms) / 4 - level

        low, high = mpmath.log(size) - 100, mpmath.log(size) + 100
        for _ in range(120):  # 200 / 2^120 is 1e-34
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return sum(a * b * x / (1 - x) for a, b, x in zip(cs, ps, ratios(high), strict=True))


@pytest.mark.parametrize("span", [0, 6, 12, 20])
def test_largest_linear_matches_mpmath(span):
    """`span` is the number of decades of p: small coordinates can grow by that much."""
    for level in (1e-14, 1e-6, 1e-2, 1.0, 1e2, 1e5):
        rng = np.random.default_rng([span, round(np.log10(level)) + 20])
        c, p = rng.normal(size=4), 10 ** rng.uniform(-span, 0, 4)
        d = rng.integers(1, 4, 4).astype(float)
        c[0], p[0] = abs(c).max() + 1, 10.0**-span  # the coordinate that gains most is the smallest
        value = float(largest_linear(*(torch.from_numpy(v) for v in (c, p, d)), double(level)))
        # The value is stationary in the multiplier: a few roundings of its m terms, and no more.
        assert abs(mpmath.mpf(value) / exact_largest(c, p, d, level) - 1) < 1e-11


@pytest.mark.parametrize(
    "c", [[1.0, -2.0, 0.5], [-1.0, -1.0, -3.0], [0.0, 0.0, 2.0]], ids=["mixed", "negative", "one"]
)
def test_largest_linear_is_a_maximum(c):
    c, p, d = np.array(c), np.array([0.5, 1.0, 2.0]), np.array([1.0, 3.0, 2.0])
    level = 0.4
    value = float(largest_linear(*(torch.from_numpy(v) for v in (c, p, d)), double(level)))

    def slack(x: np.ndarray) -> float:  # with q = p (1 + x), in which the set is convex
        return level - (d * p) @ (x - np.log1p(x)) / 4

    best = scipy.optimize.minimize(
        lambda x: -(c * p) @ x,
        np.zeros(3),
        method="SLSQP",
        bounds=[(-0.999999, None)] * 3,
        constraints={"type": "ineq", "fun": slack},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert value == pytest.approx(-best.fun, rel=1e-6)
    # Random points on the boundary of the set stay below.
    rng = np.random.default_rng(0)
    for v in rng.normal(size=(200, 3)):
        spent = lambda t, v=v: (d * p) @ (np.expm1(t * v) - t * v) / 4 - level  # noqa: E731
        t = scipy.optimize.brentq(spent, 0.0, 60.0)
        assert (c * p) @ np.expm1(t * v) <= value * (1 + 1e-9)


def test_largest_linear_of_many_and_of_nothing():
    p, d = torch.tensor([1.0, 2.0]).double(), torch.tensor([1.0, 1.0]).double()
    c = torch.tensor([[1.0, 0.0], [0.0, 0.0], [-1.0, 2.0]]).double()
    values = largest_linear(c, p, d, double(0.3))
    assert float(values[1]) == 0.0
    for row, value in zip(c, values, strict=True):
        assert float(largest_linear(row, p, d, double(0.3))) == float(value)
    # A level of zero leaves only p.
    assert float(largest_linear(c, p, d, double(0.0)).abs().max()) < 1e-15
