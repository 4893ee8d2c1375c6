"""Where a rate crosses a level: against a direct maximisation, and by coverage."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from scipy.special import expit

from posquad.core.errors import DomainError, ShapeError
from posquad.sweep.crossing import crossing


def penalised_fit(x, hits, counts):
    """Maximise the likelihood times Jeffreys' prior by a general optimizer."""
    design = np.stack([np.ones_like(x), x], 1)

    def objective(theta):
        p = expit(design @ theta)
        weights = counts * p * (1 - p)
        information = design.T @ (weights[:, None] * design)
        likelihood = hits @ np.log(p) + (counts - hits) @ np.log1p(-p)
        return -likelihood - 0.5 * np.linalg.slogdet(information)[1]

    best = scipy.optimize.minimize(
        objective, [0.0, 0.1], method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-13}
    )
    return best.x


@pytest.mark.parametrize("hits", [[0, 2, 9, 10], [10, 7, 4, 1], [0, 0, 10, 10]])
@pytest.mark.parametrize("target", [0.5, 0.8])
def test_the_fit_maximises_the_penalised_likelihood(hits, target):
    x, counts = np.array([-1.0, -0.2, 0.3, 1.0]), np.full(4, 10.0)
    a, b = penalised_fit(x, np.array(hits, dtype=float), counts)
    found = crossing(x, hits, counts, target=target)
    assert found.slope == pytest.approx(b, rel=1e-5)
    expected = (np.log(target / (1 - target)) - a) / b
    assert found.value == pytest.approx(np.clip(expected, -1, 1), abs=1e-5)
    assert found.rate(found.value, target) == pytest.approx(target)
    assert found.low <= found.value <= found.high


def test_the_interval_covers_the_crossing_as_often_as_it_says():
    rng, x, trials = np.random.default_rng(1), np.linspace(0, 1, 7), np.full(7, 20)
    covered = 0
    for _ in range(200):
        found = crossing(x, rng.binomial(trials, expit((x - 0.4) / 0.1)), trials)
        covered += found.low <= 0.4 <= found.high
    low = scipy.stats.binomtest(covered, 200).proportion_ci(0.999).low
    high = scipy.stats.binomtest(covered, 200).proportion_ci(0.999).high
    assert low <= 0.95 <= high


def test_resamples_that_fall_where_the_rate_rises_count_to_both_ends():
    """Many trials in the middle fix the crossing of any slope; few at the ends leave its sign open.

    The two ends are alike, so that the slope of a resample is positive exactly if the right end has
    more successes. Of the resamples at the fitted rates, 14% have no positive slope. The half of
    them at either end is more than the 2.5% that an interval of 95% leaves out there, and less than
    the 10% that one of 80% does.
    """
    x, hits, counts = [-1.0, 0.0, 1.0], [3, 500, 6], [10, 1000, 10]
    found = crossing(x, hits, counts)
    left, right = (scipy.stats.binom(10, float(found.rate(end))).pmf(range(11)) for end in (-1, 1))
    falling = sum(left[i] * right[: i + 1].sum() for i in range(11))
    assert 0.13 < falling < 0.14
    assert (found.low, found.high) == (-1, 1)
    narrow = crossing(x, hits, counts, level=0.8)
    assert -0.5 < narrow.low < found.value < narrow.high < 0.5


def test_a_rate_that_does_not_cross_is_not_bracketed():
    assert not crossing([0, 1, 2], [9, 9, 9], [10, 10, 10]).bracketed
    assert crossing([0, 1, 2], [0, 5, 10], [10, 10, 10]).bracketed
    found = crossing([0, 1], [1, 1], [2, 2])
    assert (found.low, found.high) == (0, 1)


def test_bad_counts_are_refused():
    with pytest.raises(ShapeError, match="one length"):
        crossing([0, 1], [1], [2, 2])
    with pytest.raises(DomainError, match="two values or more"):
        crossing([1, 1], [1, 1], [2, 2])
    with pytest.raises(DomainError, match="between 0 and 1"):
        crossing([0, 1], [1, 1], [2, 2], target=1.0)
    with pytest.raises(DomainError, match="level: expected a rate between 0 and 1"):
        crossing([0, 1], [1, 1], [2, 2], level=95)
    with pytest.raises(DomainError, match="got 3 successes of 2 at 1"):
        crossing([0, 1], [1, 3], [2, 2])
    with pytest.raises(DomainError, match="got 1 successes of 2 at nan"):
        crossing([np.nan, 1], [1, 3], [2, 2])
