"""Random problems that stay the same, and the two fits, against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from posquad.core.rates import wilson
from posquad.experiments.problems import gaussian, line_fit, planted
from support import ratio


def test_gaussian_depends_on_seed_and_purpose_only():
    torch.randn(5, generator=torch.default_generator)
    before = torch.get_rng_state()
    first = gaussian(3, "inputs", 40, 5)
    torch.randn(7, generator=torch.default_generator)
    assert torch.equal(gaussian(3, "inputs", 40, 5), first)
    torch.set_rng_state(before)
    gaussian(3, "inputs", 40, 5)
    assert torch.equal(torch.get_rng_state(), before)  # global state is left alone
    assert first.dtype == torch.float64
    assert not torch.equal(gaussian(4, "inputs", 40, 5), first)
    assert not torch.equal(gaussian(3, "outputs", 40, 5), first)


def test_neighbouring_seeds_and_purposes_are_unrelated():
    """Correlations of 5000 pairs have standard deviation 1/sqrt(5000); five of them is far."""
    draws = [gaussian(s, w, 5000) for s in (0, 1, 11) for w in ("a", "b", "1 a")]
    correlations = torch.corrcoef(torch.stack(draws)) - torch.eye(len(draws))
    assert correlations.abs().max() < 5 / 5000**0.5


def test_gaussian_is_standard_normal():
    test = scipy.stats.kstest(gaussian(0, "law", 20_000).numpy(), "norm")
    assert test.pvalue > 1e-4  # a fixed draw: fails only if the law is another


def test_planted_trials_do_not_depend_on_their_number():
    X, U, y = planted(5, "trial", 12, 6, [1.0, 0.5], 7)
    for count in (1, 3):
        fewer = planted(5, "trial", 12, 6, [1.0, 0.5], count)
        assert torch.equal(fewer[0], X[:count])
        assert torch.equal(fewer[1], U[:count])
        # The product may be summed in another order for another batch.
        assert ratio(fewer[2] - y[:count], y.norm(), 12) < 60
    assert not torch.equal(X[0], X[1])
    assert not torch.equal(planted(6, "trial", 12, 6, [1.0, 0.5], 1)[0], X[:1])


@pytest.mark.parametrize(
    ("n", "d", "eigenvalues", "count"),
    [(20, 6, [2.0, 1.0, 0.25], 3), (1, 1, [0.5], 1), (5, 4, [1.0, 1.0, 1.0, 1.0], 2)],
)
def test_planted_has_the_eigenvalues_and_responses_it_promises(n, d, eigenvalues, count):
    X, U, y = planted(0, "check", n, d, eigenvalues, count)
    r = len(eigenvalues)
    assert X.shape == (count, n, d)
    assert U.shape == (count, d, r)
    expected = torch.tensor(sorted(eigenvalues), dtype=torch.float64)
    found = torch.linalg.eigvalsh(U @ U.mT)[:, d - r :]
    assert ratio(found - expected, expected.max(), d) < 60
    direct = torch.einsum("kni,kij,knj->kn", X, U @ U.mT, X)
    assert ratio(direct - y, y.norm(), d) < 60


def test_line_fit_is_linear_regression():
    x, noise = gaussian(0, "x", 30).numpy(), gaussian(0, "noise", 4, 30).numpy()
    y = np.array([2.0, -1.0, 0.0, 1e3])[:, None] * x + 0.3 + noise
    slope, intercept, r2 = line_fit(x, y)
    assert slope.shape == intercept.shape == r2.shape == (4,)
    for k in range(4):
        oracle = scipy.stats.linregress(x, y[k])
        assert slope[k] == pytest.approx(oracle.slope, rel=1e-12, abs=1e-13)
        assert intercept[k] == pytest.approx(oracle.intercept, rel=1e-11)
        assert r2[k] == pytest.approx(oracle.rvalue**2, rel=1e-11, abs=1e-13)


def test_line_fit_pairs_rows_with_rows():
    x = np.array([[0.0, 1.0, 2.0], [0.0, 2.0, 4.0]])
    slope, intercept, r2 = line_fit(x, [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    np.testing.assert_allclose(slope, [1.0, 0.5], rtol=1e-15)
    np.testing.assert_allclose(intercept, [1.0, 1.0], rtol=1e-15)
    np.testing.assert_allclose(r2, 1.0, rtol=1e-15)


def test_line_fit_far_from_the_origin():
    """Logarithms of small steps lie far from 0: the centred formula keeps the digits."""
    x = 1e6 + np.linspace(0.0, 1.0, 11)
    slope, _, r2 = line_fit(x, 3.0 * (x - 1e6))
    assert slope == pytest.approx(3.0, rel=1e-9)
    assert r2 == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("trials", [1, 16, 256])
@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_wilson_is_the_score_interval(trials, level):
    for successes in {0, 1, trials // 8, trials // 2, trials - 1, trials}:
        test = scipy.stats.binomtest(successes, trials)
        oracle = test.proportion_ci(confidence_level=level, method="wilson")
        low, high = wilson(successes, trials, level)
        assert low == pytest.approx(oracle.low, abs=1e-12)
        assert high == pytest.approx(oracle.high, abs=1e-12)


def test_wilson_takes_arrays():
    low, high = wilson(np.array([0, 8, 16]), 16)
    assert low.shape == high.shape == (3,)
    assert (low[1], high[1]) == wilson(8, 16)
    assert low[0] == pytest.approx(0, abs=1e-15)
    np.testing.assert_allclose(low + high[::-1], 1.0, rtol=1e-12)  # failures mirror successes
