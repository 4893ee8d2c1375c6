"""The losses themselves: derivatives, efficiency, scale, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from posquad.errors import DomainError
from posquad.recovery.losses import Poisson, Robust, chosen_loss, require_counts, weighted_median

ROBUST = [Robust("huber"), Robust("geman-mcclure")]


@pytest.mark.parametrize("loss", [*ROBUST, Poisson()], ids=lambda loss: loss.name)
def test_the_weighted_squares_have_the_slope_of_the_loss(loss):
    """`v (m - z)` is the derivative of the loss in m, up to a factor, by central differences."""
    y = torch.tensor([0.0, 1.0, 4.0, 30.0, 7.0], dtype=torch.float64)
    m = torch.tensor([0.3, 0.2, 5.0, 2.0, 6.9], dtype=torch.float64)
    scale, h = torch.tensor(0.7, dtype=torch.float64), 1e-6
    slope = (loss.values(y, m + h, scale) - loss.values(y, m - h, scale)) / (2 * h)
    v, z = loss.squares(y, m, scale)
    ratio = v * (m - z) / slope
    np.testing.assert_allclose(ratio / ratio[0], 1.0, rtol=1e-7)  # error of differences, h^2


@pytest.mark.parametrize("loss", ROBUST, ids=lambda loss: loss.name)
def test_robust_losses_have_the_slopes_that_they_say_and_95_percent_efficiency(loss):
    """Efficiency for normal noise is `(E psi')^2 / E psi^2`, here by quadrature."""
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones((), dtype=torch.float64)

    def at(z):
        return [float(t) for t in loss.slopes(zero + z, zero, one)]

    for z in (-6.0, -0.4, 1.1, 3.0):
        before, after = (float(loss.values(zero + z + h, zero, one)) for h in (-1e-6, 1e-6))
        assert at(z)[0] == pytest.approx((after - before) / 2e-6, rel=1e-7)
        assert at(z)[1] == pytest.approx((at(z + 1e-6)[0] - at(z - 1e-6)[0]) / 2e-6, abs=1e-7)
    options = {"limit": 200, "points": [1.345]}
    slope = 2 * quad(lambda z: at(z)[1] * norm.pdf(z), 0, 12, **options)[0]
    square = 2 * quad(lambda z: at(z)[0] ** 2 * norm.pdf(z), 0, 12, **options)[0]
    assert slope**2 / square == pytest.approx(0.95, abs=1e-4)  # 1.345 has four digits


def test_the_scale_is_that_of_normal_noise():
    rng = np.random.default_rng(0)
    e = torch.from_numpy(3.0 * rng.standard_normal(20_000))
    found = ROBUST[0].scale(e, torch.zeros_like(e), torch.ones_like(e), 1e-10)
    # The standard error of the MAD is 1.17 sigma / sqrt(n); four of them.
    assert abs(float(found) - 3.0) < 4 * 1.17 * 3.0 / np.sqrt(20_000)


def test_a_weighted_median_is_that_of_repeated_values():
    rng = np.random.default_rng(1)
    for _ in range(20):
        values, times = rng.standard_normal(9), rng.integers(0, 4, 9)
        times[0] += 1
        found = weighted_median(torch.from_numpy(values), torch.from_numpy(times.astype(float)))
        assert float(found) == pytest.approx(np.median(np.repeat(values, times)), rel=1e-15)


def test_data_without_noise_have_a_positive_scale():
    y = torch.tensor([2.0, 4.0, 100.0], dtype=torch.float64)
    found = ROBUST[0].scale(y, torch.tensor([2.0, 4.0, 3.0]).double(), torch.ones(3).double(), 1e-9)
    assert float(found) == pytest.approx(4e-9)  # of the median response


@pytest.mark.parametrize(
    ("name", "scale", "message"),
    [
        ("cauchy", None, "loss: expected one of 'least-squares', 'huber', 'poisson', 'geman-mccl"),
        ("least-squares", 1.0, "scale: expected None for loss='least-squares', because only the"),
        ("poisson", 1.0, "scale: expected None for loss='poisson'"),
        ("huber", 0.0, "scale: expected a finite number > 0; got 0.0"),
        ("huber", float("nan"), "scale: expected a finite number > 0; got nan"),
    ],
)
def test_a_loss_or_scale_that_makes_no_sense_is_refused(name, scale, message):
    with pytest.raises(DomainError, match="^" + message.replace("(", r"\(")):
        chosen_loss(name, scale)


@pytest.mark.parametrize(
    ("y", "X", "message"),
    [
        ([1.0, 2.5], [[1.0], [1.0]], r"y: expected counts \(0, 1, 2, ...\) .*; got 2.5 in row 1"),
        ([-1.0, 2.0], [[1.0], [1.0]], r"y: expected counts .*; got -1 in row 0"),
        ([1.0, 2.0], [[1.0], [0.0]], r"X: expected an input that is not zero .* zeros in row 1"),
    ],
)
def test_what_cannot_be_a_count_is_refused(y, X, message):
    with pytest.raises(DomainError, match=message):
        require_counts(torch.tensor(X), torch.tensor(y), torch.ones(2))
