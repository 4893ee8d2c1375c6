"""Experiment 4 against closed forms, SciPy's integrator and a plain NumPy descent."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from posquad import gradient_descent
from posquad.core.errors import DomainError
from posquad.experiments.exp4 import run as exp4
from posquad.experiments.exp4.run import EXPERIMENT, Conditioning, run
from posquad.experiments.problems import gaussian

SMALL = Conditioning(perturbations=(0.005,), records=30, map_steps=400)
KAPPA = (1.0, 2.0, 4.0, 8.0)
CONVERGED, CONTRACTS, OSCILLATES, DIVERGED = range(4)


def target(kappa):
    return np.vstack([np.diag([1.0, kappa**-0.5]), np.zeros((6, 2))])


def gradient(U, star):
    """`2 T(UU' - Q*) U` with `T(H) = 2H + tr(H) I`."""
    H = U @ U.T - star @ star.T
    return 2 * (2 * H + np.trace(H) * np.eye(8)) @ U


def distance(U, V):
    left, _, right = np.linalg.svd(V.T @ U)
    return np.linalg.norm(U - V @ left @ right)


def test_printed_numbers(measured):
    """The paper's table and oracle steps, as printed; it says 4 lambda_r and lambda_r."""
    assert measured["kappa"].tolist() == list(KAPPA)
    np.testing.assert_allclose(measured["lambda_r"], [1, 0.5, 0.25, 0.125], rtol=1e-14)
    np.testing.assert_allclose(measured["effective"], [4, 2, 1, 0.5], rtol=1e-13)
    np.testing.assert_allclose(measured["effective_over_lambda_r"], 4, rtol=1e-13)
    np.testing.assert_allclose(measured["secant_rate"], [1, 0.5, 0.25, 0.125], rtol=1e-14)
    np.testing.assert_allclose(measured["secant_factor"], 4, rtol=1e-13)
    printed = [f"{step:.2e}" for step in measured["oracle_step"]]
    assert printed == ["5.40e-04", "2.81e-04", "1.45e-04", "7.41e-05"]


@pytest.mark.parametrize("k", range(4))
def test_oracle_step_from_the_papers_formulas(measured, k):
    """alpha / L^2, L = 2M (2 beta + rho)(beta + rho), rho = m sigma / (4M), m = 2, M = d + 2."""
    m, M, beta, sigma = 2.0, 10.0, 1.0, KAPPA[k] ** -0.5
    rho = m * sigma / (4 * M)
    L = 2 * M * (2 * beta + rho) * (beta + rho)
    assert measured["oracle_step"][k] == pytest.approx(m * sigma**2 / 2 / L**2, rel=1e-13)
    limit = 2 / measured["effective_largest"][k] / measured["oracle_step"][k]
    assert measured["stability_limit"][k] == pytest.approx(limit, rel=1e-13)


@pytest.mark.parametrize("k", range(4))
def test_both_ends_of_the_spectrum(measured, k):
    """The quadratic form `2 ||H||^2 + tr(H)^2`, `H = VU' + UV'`, on every factor direction."""
    U = target(KAPPA[k])
    units = np.eye(16).reshape(16, 8, 2)
    moved = np.stack([(V @ U.T + U @ V.T) for V in units])
    traces = np.trace(moved, axis1=1, axis2=2)
    form = 2 * np.einsum("aij,bij->ab", moved, moved) + np.outer(traces, traces)
    values = np.linalg.eigvalsh(form)
    assert abs(values[0]) < 1e-13  # the gauge
    assert measured["effective"][k] == pytest.approx(values[1], rel=1e-12)
    assert measured["effective_largest"][k] == pytest.approx(values[-1], rel=1e-12)


def fitted_rate(kappa, perturbation, records):
    """Along a slow mode `e_8 u_r'`; for kappa > 1 all slow modes are rotations of this one."""
    star = target(kappa)
    start = star.copy()
    start[-1, 1] += perturbation * kappa**-0.5
    times = np.linspace(0, 3 * kappa / 4, records + 1)
    flow = scipy.integrate.solve_ivp(
        lambda t, u: -gradient(u.reshape(8, 2), star).ravel(),
        (0, times[-1]),
        start.ravel(),
        t_eval=times,
        method="DOP853",
        rtol=1e-12,
        atol=1e-15,
    )
    error = np.array([distance(u.reshape(8, 2), star) for u in flow.y.T])
    return -np.polyfit(times, np.log(error), 1)[0], error


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("size", [0.005, 0.02])
def test_rates_are_those_of_scipys_flow(measured, k, size):
    rate, error = fitted_rate(KAPPA[k], size, SMALL.records)
    got = measured.at("rates", {"kappa": KAPPA[k], "perturbation": size})
    # Runge-Kutta of order four with lambda h = 0.02 on the slow mode; fast modes are not excited.
    assert got == pytest.approx(rate, rel=1e-8)
    if size == SMALL.perturbation:
        assert measured["rate"][k] == got
        np.testing.assert_allclose(measured["error"][k], error, rtol=1e-6)


def test_the_shortfall_is_of_second_order(measured):
    """Four times the perturbation, sixteen times the distance of the ratio from one."""
    small, large = (1 - measured["ratios"][:, j] for j in (0, 1))
    np.testing.assert_allclose(large / small, 16, rtol=0.05)
    assert measured["ratio_deviation"] == pytest.approx(large.max(), rel=1e-9)
    np.testing.assert_allclose(measured["ratio"], measured["rate"] / measured["effective"])


def plain_outcome(kappa, start, step):
    star, U = target(kappa), start.copy()
    for _ in range(SMALL.map_steps):
        U = U - step * gradient(U, star)
        if not np.isfinite(U).all() or np.linalg.norm(U) > 1e6:
            return DIVERGED
    shrunk = distance(U, star) / distance(start, star)
    return CONVERGED if shrunk <= 1e-6 else CONTRACTS if shrunk < 1 else OSCILLATES


def map_start(kappa):
    direction = gaussian(SMALL.seed, f"direction {kappa:g}", 8, 2).numpy()
    return target(kappa) + 0.02 * kappa**-0.5 * direction / np.linalg.norm(direction)


def test_the_start_of_a_kappa_does_not_depend_on_the_others(monkeypatch):
    starts = []

    def spy(objective, start, **options):
        starts.append(start.numpy())
        return gradient_descent(objective, start, **options)

    monkeypatch.setattr(exp4, "gradient_descent", spy)
    for kappa in ((1.0, 2.0, 8.0), (8.0, 2.0)):
        starts.clear()
        run(Conditioning(**{**vars(SMALL), "kappa": kappa, "map_steps": 2}), lambda f: None)
        (found,) = starts
        for start, value in zip(found, kappa, strict=True):
            np.testing.assert_allclose(start, map_start(value), rtol=1e-14)


@pytest.mark.parametrize("k", range(4))
def test_outcomes_are_those_of_a_plain_descent(measured, k):
    start = map_start(KAPPA[k])
    for j, multiplier in enumerate(SMALL.multipliers):
        step = multiplier * measured["oracle_step"][k]
        assert measured["step"][j, k] == pytest.approx(step, rel=1e-13)
        assert measured["outcome"][j, k] == plain_outcome(KAPPA[k], start, step), multiplier


def test_the_stability_map_agrees_with_the_paper(measured):
    """Far above the oracle step is stable; far enough is not; kappa = 8 diverges at 10000."""
    assert measured.at("diverged", {"kappa": 8, "multiplier": 10_000})
    assert (measured["outcome"][:3] <= CONTRACTS).all()
    np.testing.assert_array_equal(measured["contracts"], measured["outcome"] <= CONTRACTS)
    np.testing.assert_array_equal(measured["unstable"], measured["outcome"] >= OSCILLATES)
    np.testing.assert_array_equal(measured["diverged"], measured["outcome"] == DIVERGED)
    assert measured.at("contracts", {"multiplier": 1}).all()
    assert measured.at("contracts", {"multiplier": 100}).all()
    assert measured.at("unstable", {"multiplier": 10_000}).all()
    limits = measured["stability_limit"]
    for j, multiplier in enumerate(SMALL.multipliers):
        for k in range(4):
            assert (measured["outcome"][j, k] <= CONTRACTS) == (multiplier < limits[k])


def test_multipliers_in_any_order_give_one_map():
    changes = {"kappa": (8.0,), "map_steps": 50}
    one, other = (
        run(Conditioning(**{**vars(SMALL), **changes, "multipliers": given}), lambda f: None)
        for given in ((10_000.0, 1.0, 100.0), (1.0, 100.0, 10_000.0))
    )
    assert one["multiplier"].tolist() == [1, 100, 10_000]
    for name in ("step", "outcome"):
        np.testing.assert_array_equal(one[name], other[name])
    assert one["outcome"][:, 0].tolist() == [CONTRACTS, CONTRACTS, DIVERGED]


@pytest.mark.parametrize(
    ("r", "kappa", "fits"),
    [
        (2, (1.0, 2.0), True),
        (2, (2.0, 0.999), False),  # lambda_r would be the largest eigenvalue
        (1, (1.0,), True),
        (1, (1.0, 2.0), False),  # one eigenvalue has no condition but 1
    ],
)
def test_impossible_condition_numbers_are_refused(r, kappa, fits):
    q = Conditioning(**{**vars(SMALL), "r": r, "kappa": kappa, "map_steps": 2, "records": 5})
    if fits:
        assert run(q, lambda fraction: None)["lambda_r"].tolist() == [1 / k for k in kappa]
        return
    with pytest.raises(DomainError, match=r"^exp4\.kappa: expected condition numbers >= 1"):
        run(q, lambda fraction: None)


def test_same_parameters_same_arrays():
    q = Conditioning(**{**vars(SMALL), "kappa": (2.0,), "map_steps": 20})
    one, again = run(q, lambda f: None), run(q, lambda f: None)
    for name in one.quantities:
        np.testing.assert_array_equal(one[name], again[name])


def test_it_is_the_papers_experiment():
    q = EXPERIMENT.parameters()
    assert (q.d, q.r, q.kappa) == (8, 2, KAPPA)
    assert q.multipliers == (1, 10, 100, 500, 1000, 2000, 5000, 10_000)
