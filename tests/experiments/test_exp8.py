"""Experiment 8 by hand: constants by brute force, distances by SciPy, shares and growth again."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy

from posquad.core.errors import DomainError
from posquad.experiments.exp8.run import EXPERIMENT, Guarantees, run
from posquad.report.figures import picture
from posquad.theory import N_star, Signal

SMALL = Guarantees(
    d=(3, 4, 5),
    r=(1, 2, 2),
    ratios=(4, 16, 64),
    largest_ratios=(64, 64, 16),
    trials=(4, 3, 2),
    steps=(2, 60),
)


def problem(size, ratio, trial):
    d, r = SMALL.d[size], SMALL.r[size]
    n = ratio * (d * r - r * (r - 1) // 2)
    rng = np.random.default_rng([0, d, r, n, trial])
    X = rng.standard_normal((n, d))
    U = np.linalg.qr(rng.standard_normal((d, r)))[0] * np.sqrt(np.linspace(1.0, 0.5, r))
    return X, U


CASES = [(size, i, trial) for size in range(2) for i in range(3) for trial in range(2)]


@pytest.mark.parametrize(("size", "i", "trial"), CASES)
def test_constants_are_those_of_brute_force(measured, size, i, trial):
    """The Hessian as a matrix over vec(Delta), without its kernel; mu by many directions."""
    X, U = problem(size, SMALL.ratios[i], trial)
    n, d = X.shape
    r = U.shape[1]
    rows = 2 * np.einsum("ni,nk->nik", X, X @ U).reshape(n, d * r)  # d/dDelta of |x'U|^2
    values = np.linalg.eigvalsh(rows.T @ rows / n)[r * (r - 1) // 2 :]
    rng = np.random.default_rng(0)
    V = rng.standard_normal((d, 20_000))
    quartic = np.square(np.square(X @ (V / np.linalg.norm(V, axis=0)))).mean(0).max()
    lam, radius = measured["rate"][size, i, trial], measured["radius"][size, i, trial]
    # Proved from below, and near; mu is bounded from above by the search's relaxation.
    assert 0.98 * values[0] <= lam <= values[0] * (1 + 1e-12)
    assert measured["step_limit"][size, i, trial] <= 2 / values[-1] * (1 + 1e-12)
    assert radius <= math.sqrt(values[0] / quartic) / 2
    assert radius >= math.sqrt(values[0] / quartic) / 2 / 1.6
    theta_step = measured["step"][size, i, trial]
    root = math.sqrt(values[-1]) + 0.5 * math.sqrt(values[0])
    assert theta_step == pytest.approx(0.5 / 0.75 / root**2, rel=0.02)


@pytest.mark.parametrize(("size", "i", "trial"), CASES)
def test_moment_distances_are_scipys(measured, size, i, trial):
    X, U = problem(size, SMALL.ratios[i], trial)
    y = np.square(X @ U).sum(1)
    M = (X.T @ (y[:, None] * X) - y.sum() * np.eye(X.shape[1])) / (2 * len(y))
    values, vectors = np.linalg.eigh(M)
    r = U.shape[1]
    got = measured["distance"][size, i, trial, 0, 0]
    if values[-r] <= 0:
        assert math.isnan(got)
        return
    start = vectors[:, -r:] * np.sqrt(values[-r:])
    turn = scipy.linalg.orthogonal_procrustes(U, start)[0]
    assert got == pytest.approx(np.linalg.norm(start - U @ turn), rel=1e-9)


def test_shares_count_distances_below_radii(measured):
    radius, distance = measured["radius"], measured["distance"]
    for size, trials in enumerate(SMALL.trials):
        for i, ratio in enumerate(SMALL.ratios):
            if ratio > SMALL.largest_ratios[size]:
                assert np.isnan(measured["inside"][size, i]).all()
                continue
            for name, limit in (
                ("inside", radius[size, i, :trials, None, None]),
                ("inside_paper", measured["paper_radius"][size]),
            ):
                share = (distance[size, i, :trials] < limit).sum(0) / trials
                np.testing.assert_allclose(measured[name][size, i], share)
    assert measured["moment_in_paper_basin"] == np.nanmax(measured["inside_paper"][:, :, 0, 0])


def test_the_certified_size_is_the_first_with_95_percent_from_there_on(measured):
    for size, p in enumerate(measured["size"]):
        run_to = sum(ratio <= SMALL.largest_ratios[size] for ratio in SMALL.ratios)
        for at in np.ndindex(2, 3):
            enough = [
                i
                for i in range(run_to)
                if (measured["inside"][(size, slice(i, run_to), *at)] >= 0.95).all()
            ]
            got = measured["certified_n"][(size, *at)]
            crossing = measured["crossing_n"][(size, *at)]
            if not enough:
                assert math.isnan(got)
                assert math.isnan(crossing)
                continue
            assert got == SMALL.ratios[enough[0]] * p
            below = SMALL.ratios[enough[0] - 1] * p if enough[0] else got
            assert below <= crossing <= got


def test_the_papers_numbers(measured):
    for size, (d, r) in enumerate(zip(SMALL.d, SMALL.r, strict=True)):
        signal = Signal.from_eigenvalues(d, np.linspace(1, 0.5, r))
        assert measured["N_star"][size] == N_star(signal, 0.05)
        smallest = math.sqrt(0.5 if r > 1 else 1.0)
        assert measured["paper_radius"][size] == pytest.approx(smallest / (4 * (d + 3)))


def test_rates_keep_what_the_theorem_promises(measured):
    assert measured["rates_observed"] > 5
    assert measured["rate_over_theorem"] >= 1
    assert measured["rate_over_asymptotic"] >= 1


def test_growth_is_fitted_where_every_size_is_certified(measured):
    p = np.log(measured["size"])
    fitted = 0
    for at in np.ndindex(2, 3):
        found = measured["crossing_n"][(slice(None), *at)]
        exponent = measured["growth_exponent"][at]
        if not np.isfinite(found).all():
            assert math.isnan(exponent)
            continue
        line = scipy.stats.linregress(p, np.log(found))
        assert exponent == pytest.approx(line.slope)
        half = scipy.stats.t.ppf(0.975, 1) * line.stderr
        assert measured["growth_low"][at] == pytest.approx(line.slope - half)
        assert measured["growth_high"][at] == pytest.approx(line.slope + half)
        fitted += 1
    assert fitted


def test_too_small_a_grid_is_reported_and_gives_no_verdict():
    few = Guarantees(d=(4,), r=(2,), ratios=(1, 2), largest_ratios=(2,), trials=(2,), steps=(5,))
    nothing = run(few, lambda fraction: None)
    assert "certified_below_N_star" not in nothing.quantities
    assert np.isnan(nothing["certified_n"]).all()
    assert any("is not fitted" in remark for remark in nothing.remarks)
    assert "at no tested n" in EXPERIMENT.panels[-1].describe(nothing)
    for panel in EXPERIMENT.panels:
        picture(panel, nothing).draw_without_rendering()


@pytest.mark.parametrize(
    "changes",
    [
        {"r": (1,)},
        {"ratios": (4, 2)},
        {"steps": (3, 3)},
        {"largest_ratios": (1, 64, 64)},
        {"d": (3, 3, 5), "r": (1, 1, 2)},
    ],
)
def test_parameters_that_do_not_fit_are_refused(changes):
    with pytest.raises(DomainError, match="exp8"):
        run(Guarantees(**{**vars(SMALL), **changes}), lambda fraction: None)
