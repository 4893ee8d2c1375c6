"""Experiment 3 against NumPy loops over trials, samples and steps."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from posquad import gradient_descent
from posquad.core.rates import wilson
from posquad.experiments.exp3 import run as exp3
from posquad.experiments.exp3.run import EXPERIMENT, Initialization, run
from posquad.experiments.problems import line_fit, planted

NO_FLOWS = {"flow_trials": 1, "flow_steps": 2}  # of which nothing is asked here
SMALL = Initialization(
    d=4, ratios=(2, 6), trials=5, budgets=(20, 200, 800), tabled_budget=400, **NO_FLOWS
)
P = 4 * 2 - 1  # dr - r(r-1)/2
CASES = [(i, k) for i in range(2) for k in range(SMALL.trials)]


def problem(i, k):
    ratio = SMALL.ratios[i]
    X, U, _ = planted(SMALL.seed, f"n/p = {ratio}", ratio * P, SMALL.d, [1.0, 0.5], SMALL.trials)
    X, U = X[k].numpy(), U[k].numpy()
    return X, U, ((X @ U) ** 2).sum(1)


def moment(X, y):
    M = np.zeros((X.shape[1], X.shape[1]))
    for x, response in zip(X, y, strict=True):
        M += response * (np.outer(x, x) - np.eye(len(x)))
    return M / (2 * len(y))


def truncated(M):
    values, vectors = np.linalg.eigh(M)
    return vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0)), bool(values[-2] > 0)


def distance(U, V):
    left, _, right = np.linalg.svd(V.T @ U)
    return np.linalg.norm(U - V @ left @ right)


def largest_curvature(X, y, U):
    """Largest eigenvalue of the Hessian off the gauge, at a point that does not interpolate."""
    residual = ((X @ U) ** 2).sum(1) - y
    J = np.stack([(2 * np.outer(x, x) @ U).ravel() for x in X])
    G = (X.T * residual) @ X / len(y)
    H = J.T @ J / len(y) + 2 * np.kron(G, np.eye(2))
    gauge = (U @ np.array([[0.0, -1.0], [1.0, 0.0]])).reshape(1, -1)
    basis = scipy.linalg.null_space(gauge)
    return np.linalg.eigvalsh(basis.T @ H @ basis)[-1]


def steps_to_recover(X, y, U, target, most):
    eta = 1 / abs(largest_curvature(X, y, U))
    for step in range(most + 1):
        if np.linalg.norm(U @ U.T - target @ target.T) <= 1e-6:
            return step
        residual = ((X @ U) ** 2).sum(1) - y
        U = U - 2 * eta / len(y) * (X.T * residual) @ (X @ U)
    return np.inf


@pytest.mark.parametrize(("i", "k"), CASES)
def test_the_start_is_that_of_a_loop(measured, i, k):
    X, U, y = problem(i, k)
    M = moment(X, y)
    assert measured["moment_error"][i, k] == pytest.approx(np.linalg.norm(M - U @ U.T), rel=1e-12)
    start, full = truncated(M)
    radius = np.sqrt(0.5) / (4 * (SMALL.d + 3))
    assert measured["rho_n"] == pytest.approx(radius, rel=1e-14)
    if full:
        assert measured["distance_over_radius"][i, k] == pytest.approx(
            distance(start, U) / radius, rel=1e-10
        )
    else:
        assert np.isnan(measured["distance_over_radius"][i, k])


@pytest.mark.parametrize(("i", "k"), CASES)
def test_steps_are_those_of_a_loop(measured, i, k):
    X, U, y = problem(i, k)
    start, full = truncated(moment(X, y))
    expected = steps_to_recover(X, y, start, U, max(SMALL.budgets)) if full else np.inf
    got = measured["steps_to_recover"][i, k]
    # Passing the tolerance can shift by a step when two roundings straddle it.
    assert got == expected or abs(got - expected) <= 1


def test_rates_count_trials(measured):
    needed = measured["steps_to_recover"]
    for j, budget in enumerate(SMALL.budgets):
        np.testing.assert_allclose(measured["recovery"][:, j], (needed <= budget).mean(1))
    np.testing.assert_allclose(measured["recovery_tabled"], (needed <= 400).mean(1))
    full = [[truncated(moment(*problem(i, k)[::2]))[1] for k in range(5)] for i in range(2)]
    np.testing.assert_allclose(measured["full_rank"], np.mean(full, axis=1))
    inside = measured["distance_over_radius"] <= 1
    np.testing.assert_allclose(measured["basin"], inside.mean(1))
    assert (measured["recovery_tabled"] > 0).any()
    assert measured["nearest"] == np.nanmin(measured["distance_over_radius"])
    assert measured["samples"].tolist() == [2 * P, 6 * P]
    assert measured["dimension"] == P
    assert measured["tabled_budget"] == 400


def test_the_trend_of_the_moment_error_needs_several_ratios(measured):
    errors = [
        np.median([np.linalg.norm(moment(X, y) - U @ U.T) for X, U, y in problems])
        for problems in ([problem(i, k) for k in range(SMALL.trials)] for i in range(2))
    ]
    assert measured["moment_error_falls"] == (errors[1] < errors[0])
    alone = run(Initialization(**{**vars(SMALL), "ratios": (6,), "budgets": (5,)}), lambda f: None)
    assert "moment_error_falls" not in alone.quantities
    backwards = run(
        Initialization(**{**vars(SMALL), "ratios": (6, 2), "budgets": (5,)}), lambda f: None
    )
    assert backwards["moment_error_falls"] == measured["moment_error_falls"]


def test_N_star_by_hand():
    """(kappa_d + 2) / (delta eps*^2) with d = 10, r = 2, eigenvalues (1, 0.5), delta = 0.05."""
    q = Initialization(ratios=(2,), trials=1, budgets=(1,), tabled_budget=1, **NO_FLOWS)
    kappa = 10 * 12 * 14 * 16
    epsilon = 0.5 / (256 * 2 * 13**2) / np.sqrt(1**2 + 0.5**2)
    measured = run(q, lambda fraction: None)
    assert measured["N_star"] == pytest.approx((kappa + 2) / (0.05 * epsilon**2), rel=1e-13)
    assert f"{measured['N_star']:.2e}" == "2.01e+16"  # as the paper prints it
    assert measured["dimension"] == 19


def test_no_full_rank_start_is_no_recovery():
    """Three samples in two dimensions: some moment matrices have a negative eigenvalue."""
    budgets = {"budgets": (5,), "tabled_budget": 5}
    q = Initialization(d=2, lambda_r=0.01, ratios=(1,), trials=40, **budgets, **NO_FLOWS)
    measured = run(q, lambda fraction: None)
    full = np.isfinite(measured["distance_over_radius"][0])
    assert 0 < measured["full_rank"][0] < 1
    assert measured["full_rank"][0] == full.mean()
    assert np.isinf(measured["steps_to_recover"][0, ~full]).all()


def test_the_step_of_a_start_where_the_loss_is_concave(monkeypatch):
    """With seed 100 a start has a negative largest curvature; the step is one over its size."""
    steps = []

    def spy(objective, start, *, step, **options):
        steps.append(step.numpy())
        return gradient_descent(objective, start, step=step, **options)

    monkeypatch.setattr(exp3, "gradient_descent", spy)
    budgets = {"budgets": (5,), "tabled_budget": 5}
    q = Initialization(d=2, r=1, ratios=(8,), trials=2, seed=100, **budgets, **NO_FLOWS)
    measured = run(q, lambda fraction: None)
    assert measured["full_rank"].tolist() == [1.0]
    X, _, y = (v.numpy() for v in planted(100, "n/p = 8", 16, 2, [0.5], 2))
    tops = []
    for k in range(2):
        values, vectors = np.linalg.eigh(moment(X[k], y[k]))
        u = vectors[:, -1] * np.sqrt(values[-1])
        inner, n = X[k] @ u, len(y[k])
        J = 2 * X[k] * inner[:, None]
        H = J.T @ J / n + 2 * (X[k].T * (inner**2 - y[k])) @ X[k] / n
        tops.append(np.linalg.eigvalsh(H)[-1])
    assert min(tops) < 0 < max(tops)
    np.testing.assert_allclose(steps[0], 1 / np.abs(tops), rtol=1e-10)


def test_a_trial_does_not_depend_on_the_number_of_trials(measured):
    fewer = run(Initialization(**{**vars(SMALL), "trials": 2}), lambda fraction: None)
    np.testing.assert_array_equal(fewer["steps_to_recover"], measured["steps_to_recover"][:, :2])
    np.testing.assert_allclose(fewer["moment_error"], measured["moment_error"][:, :2], rtol=1e-13)


def test_a_trial_does_not_depend_on_the_budgets(measured):
    """Runs are cut at every budget and carried on; where they are cut must not be seen."""
    uncut = run(Initialization(**{**vars(SMALL), "budgets": (800,)}), lambda fraction: None)
    np.testing.assert_array_equal(uncut["steps_to_recover"], measured["steps_to_recover"])


def test_it_is_the_papers_experiment():
    q = EXPERIMENT.parameters()
    assert (q.d, q.r, q.lambda_r, q.ratios) == (10, 2, 0.5, (2, 4, 8, 16, 32))
    assert q.trials >= 256


@pytest.mark.parametrize(
    ("hits", "trials"), [(0, 16), (2, 16), (15, 16), (16, 16), (1, 1), (70, 256)]
)
@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_wilson_is_scipys(hits, trials, level):
    interval = scipy.stats.binomtest(hits, trials).proportion_ci(level, method="wilson")
    low, high = wilson(hits, trials, level)
    assert (float(low), float(high)) == pytest.approx((interval.low, interval.high), abs=1e-12)


def test_line_fit_is_numpys():
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((2, 4, 9))
    slope, intercept, r2 = line_fit(x, y)
    for k in range(4):
        assert (slope[k], intercept[k]) == pytest.approx(
            tuple(np.polyfit(x[k], y[k], 1)), abs=1e-12
        )
        assert r2[k] == pytest.approx(np.corrcoef(x[k], y[k])[0, 1] ** 2, abs=1e-12)


def test_planted_problems_are_what_they_say():
    X, U, y = (v.numpy() for v in planted(5, "x", 7, 4, [1.0, 0.7, 0.2], 3))
    for k in range(3):
        np.testing.assert_allclose(np.linalg.eigvalsh(U[k] @ U[k].T), [0, 0.2, 0.7, 1], atol=1e-14)
        by_hand = [x @ U[k] @ U[k].T @ x for x in X[k]]
        np.testing.assert_allclose(y[k], by_hand, rtol=1e-13)
    assert len({float(v) for v in X.ravel()}) == X.size  # no draw is used twice
