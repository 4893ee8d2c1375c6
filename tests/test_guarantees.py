"""The experiment on how sharp the guarantees are, at a small size."""

from __future__ import annotations

import math

import numpy as np
import pytest

from posquad import LeastSquares, RankOne, effective_spectrum
from posquad.certificates import fit_growth, proved_constants, sharpness
from posquad.errors import DomainError
from posquad.theory import N_star, Signal, rho_n


@pytest.fixture(scope="module")
def result():
    return sharpness(5, 2, [2.0, 16.0, 200.0], trials=4, iterations=(0, 20, 200))


def test_shapes_and_the_papers_constants(result):
    signal = Signal.from_eigenvalues(5, [1.0, 0.5])
    assert result.n.tolist() == [18, 144, 1800]
    assert result.radius.shape == (3, 4)
    assert result.distance.shape == (3, 4, 3)
    assert result.paper_radius == rho_n(signal)
    assert result.paper_sample_size == N_star(signal, 0.05)


def test_guarantees_hold_and_are_far_wider_than_the_papers(result):
    many = -1
    assert np.all(result.radius[many] > 5 * result.paper_radius)
    assert np.all(result.step[many] > 50 * result.paper_step)
    assert np.all(result.step < result.step_limit)
    # The proved rate is that of the slowest mode: what is observed is at least that, and near it.
    ratio = result.observed_rate[many] / result.rate[many]
    assert np.all(ratio > 0.99)
    assert np.median(ratio) < 2


def test_shares_rise_with_steps_and_samples(result):
    inside = result.inside
    assert np.all(np.diff(inside, axis=1) >= 0)
    assert inside[-1, -1] == 1.0
    assert result.inside_paper[0, 0] == 0.0
    needed = result.sample_size()
    assert needed[-1] <= 1800
    assert math.isnan(result.sample_size(share=1.1)[0])


def test_proved_constants_bound_the_spectrum():
    rng = np.random.default_rng(0)
    X, U = rng.standard_normal((40, 4)), rng.standard_normal((4, 2))
    objective = LeastSquares(RankOne(X), np.square(X @ U).sum(1))
    lam, Lam, mu = proved_constants(objective, U)
    values = effective_spectrum(objective, U).values
    assert lam <= values[0]
    assert values[-1] <= Lam
    v = rng.standard_normal((4, 1000))
    v /= np.linalg.norm(v, axis=0)
    assert np.square(np.square(X @ v)).mean(0).max() <= mu
    assert proved_constants(LeastSquares(RankOne(X[:3]), np.ones(3)), U) is None
    with pytest.raises(DomainError):
        proved_constants(objective, np.stack([U, U]))


def test_growth_fit_against_a_line_with_known_error():
    p = np.array([10.0, 20, 40, 80])
    noise = np.array([0.1, -0.1, -0.1, 0.1])  # orthogonal to constant and slope
    fit = fit_growth(p, 3 * p**1.5 * np.exp(noise))
    assert fit.exponent == pytest.approx(1.5)
    assert fit.constant == pytest.approx(3)
    spread = math.sqrt(0.04 / 2 / np.square(np.log(p) - np.log(p).mean()).sum())
    assert fit.high - fit.exponent == pytest.approx(4.302652729911275 * spread)
    with pytest.raises(DomainError):
        fit_growth([1, 2], [1, 2])


def test_bad_requests():
    for marks in ((), (10, 5), (1, 1)):
        with pytest.raises(DomainError):
            sharpness(3, 1, [4.0], iterations=marks)
    with pytest.raises(DomainError):
        sharpness(3, 1, [4.0], trials=0)
