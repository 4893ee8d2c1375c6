"""The experiment on how sharp the guarantees are, at a small size."""

from __future__ import annotations

import math

import numpy as np
import pytest

from posquad import LeastSquares, RankOne, effective_spectrum, spectral_initializer
from posquad.certificates import proved_constants
from posquad.core.errors import DomainError
from posquad.experiments.exp8.sharpness import compare_starts, fit_growth
from posquad.geometry import procrustes_distance
from posquad.theory import N_star, Signal, rho_n


def sharpness(d, r, ratios, kind="moment", **options):
    return compare_starts(d, r, ratios, [kind], **options)[0]


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
    with pytest.raises(DomainError, match="kind"):
        sharpness(3, 1, [40.0], trials=1, kind="spectral")


def drawn(d, r, n, trial):
    """The problem of a trial, written down again."""
    rng = np.random.default_rng([0, d, r, n, trial])
    X = rng.standard_normal((n, d))
    U = np.linalg.qr(rng.standard_normal((d, r)))[0] * np.sqrt(np.linspace(1.0, 0.5, r))
    return X, U, np.square(X @ U).sum(1)


@pytest.mark.parametrize("kind", ["moment", "bounded"])
def test_distances_are_those_of_plain_descent(kind):
    """One problem at a time, the gradient (2/n) X' diag(r) X U written out."""
    d, r, n = 4, 2, 56
    got = sharpness(d, r, [8.0], trials=3, iterations=(0, 1, 7), kind=kind)
    for trial in range(3):
        X, U_star, y = drawn(d, r, n, trial)
        _, Lam, _ = proved_constants(LeastSquares(RankOne(X), y), U_star)
        U = spectral_initializer(X, y, r, kind=kind)
        expected = []
        for k in range(8):
            if k in (0, 1, 7):
                expected.append(procrustes_distance(U, U_star))
            residual = np.square(X @ U).sum(1) - y
            U = U - (2 / n) * X.T @ (residual[:, None] * (X @ U)) / (2 * Lam)
        np.testing.assert_allclose(got.distance[0, trial], expected, rtol=1e-9)


def test_kinds_share_problems_and_a_start_without_rank_is_not_inside():
    """With so few samples the moment matrix of some trials has one positive eigenvalue only."""
    told = []
    moment, bounded = compare_starts(
        3, 3, [1.5], ("moment", "bounded"), trials=40, iterations=(0, 5), progress=told.append
    )
    np.testing.assert_array_equal(moment.radius, bounded.radius)
    lost = np.isnan(moment.distance[0, :, 0]) & np.isfinite(moment.radius[0])
    assert lost.any()
    assert np.isnan(moment.distance[0, lost]).all()
    assert moment.inside.max() < 1
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1)
