"""Experiment 2 against explicit Hessians, SciPy's eigensolvers and SciPy's integrator."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from posquad.core.errors import DomainError
from posquad.experiments.exp2.run import EXPERIMENT, Curvature, run
from posquad.experiments.problems import planted

SMALL = Curvature(d=4, r=2, n=40, lambda_r=(1.0, 0.4), seeds=2, records=20)
CASES = [(i, k) for i in range(2) for k in range(2)]


def problem(i, k):
    X, U, _ = planted(
        SMALL.seed, "problem", SMALL.n, SMALL.d, [1.0, SMALL.lambda_r[i]], SMALL.seeds
    )
    X, U = X[k].numpy(), U[k].numpy()
    return X, U, ((X @ U) ** 2).sum(1)


def loss(X, y, U):
    return ((((X @ U) ** 2).sum(1) - y) ** 2).sum() / (2 * len(y))


def gradient(X, y, U):
    return 2 / len(y) * (X.T * (((X @ U) ** 2).sum(1) - y)) @ X @ U


def hessian(X, U):
    """At an interpolating U: `(1/n) sum J_i J_i'` with `J_i` the gradient of `x_i'UU'x_i`."""
    J = np.stack([(2 * np.outer(x, x) @ U).ravel() for x in X])
    return J.T @ J / len(X)


def horizontal_basis(U):
    """An orthonormal basis, in columns, of the factor directions off the gauge `U Omega`."""
    gauge = (U @ np.array([[0.0, -1.0], [1.0, 0.0]])).reshape(-1, 1)
    return scipy.linalg.null_space(gauge.T)


@pytest.mark.parametrize(("i", "k"), CASES)
def test_effective_curvature_is_the_hessian_off_the_gauge(measured, i, k):
    X, U, _ = problem(i, k)
    basis = horizontal_basis(U)
    smallest = np.linalg.eigvalsh(basis.T @ hessian(X, U) @ basis)[0]
    assert measured["effective"][i, k] == pytest.approx(smallest, rel=1e-11)


def test_the_explicit_hessian_is_that_of_the_loss():
    """Second differences of the plain loss; of order h^2 plus eps / h^2, 1e-6 with this h."""
    X, U, y = problem(1, 0)
    H, h = hessian(X, U), 1e-4
    rng = np.random.default_rng(0)
    for _ in range(5):
        V = rng.standard_normal(U.shape)
        second = (loss(X, y, U + h * V) - 2 * loss(X, y, U) + loss(X, y, U - h * V)) / h**2
        assert second == pytest.approx(V.ravel() @ H @ V.ravel(), rel=1e-5)


@pytest.mark.parametrize(("i", "k"), CASES)
def test_frobenius_curvature_is_a_generalized_eigenvalue(measured, i, k):
    """Smallest `V'HV / ||VU' + UV'||_F^2`, by SciPy's generalized eigensolver."""
    X, U, _ = problem(i, k)
    basis = horizontal_basis(U)
    moved = np.stack(
        [(V @ U.T + U @ V.T).ravel() for V in (c.reshape(U.shape) for c in basis.T)], axis=1
    )
    form = basis.T @ hessian(X, U) @ basis
    smallest = scipy.linalg.eigh(form, moved.T @ moved, eigvals_only=True)[0]
    assert measured["frobenius"][i, k] == pytest.approx(smallest, rel=1e-10)
    tangents = moved @ np.random.default_rng(1).standard_normal((basis.shape[1], 2000))
    quotients = [np.mean((np.einsum("nd,de,ne->n", X, T.reshape(4, 4), X)) ** 2) / (T @ T)
                 for T in tangents.T]  # fmt: skip
    assert min(quotients) > measured["frobenius"][i, k]  # nothing sampled lies below the minimum


@pytest.mark.parametrize(("i", "k"), CASES)
def test_the_factor_hessian_has_a_zero(measured, i, k):
    X, U, _ = problem(i, k)
    values = np.linalg.eigvalsh(hessian(X, U))
    assert abs(values[0]) < 60 * values[-1] * len(values) * np.finfo(float).eps
    assert abs(measured["factor"][i, k]) < 60 * values[-1] * len(values) * np.finfo(float).eps
    assert measured["factor_max"] == abs(measured["factor"]).max()


def distance(U, V):
    """Procrustes distance: the best rotation from a singular value decomposition."""
    left, _, right = np.linalg.svd(V.T @ U)
    return np.linalg.norm(U - V @ left @ right)


@pytest.mark.parametrize(("i", "k"), CASES)
def test_rates_are_those_of_scipys_flow(measured, i, k):
    """The slow direction has no sign, and the second order depends on it: one of two must agree."""
    X, U, y = problem(i, k)
    basis = horizontal_basis(U)
    slow = (basis @ np.linalg.eigh(basis.T @ hessian(X, U) @ basis)[1][:, 0]).reshape(U.shape)
    unit = 1 / (4 * SMALL.lambda_r[i])
    times = np.linspace(0, SMALL.window * unit, SMALL.records + 1)
    rates, curves = [], []
    for sign in (1, -1):
        flow = scipy.integrate.solve_ivp(
            lambda t, u: -gradient(X, y, u.reshape(U.shape)).ravel(),
            (0, times[-1]),
            (U + sign * SMALL.perturbation * slow).ravel(),
            t_eval=times,
            method="DOP853",
            rtol=1e-12,
            atol=1e-15,
        )
        curves.append(np.array([distance(u.reshape(U.shape), U) for u in flow.y.T]))
        rates.append(-np.polyfit(times, np.log(curves[-1]), 1)[0])
    near = int(abs(rates[1] - measured["rate"][i, k]) < abs(rates[0] - measured["rate"][i, k]))
    # Runge-Kutta of order four with lambda h = 0.08: (lambda h)^4 / 120, relative, in the rate.
    assert measured["rate"][i, k] == pytest.approx(rates[near], rel=1e-6)
    assert measured["scaled_error"][i, k] == pytest.approx(curves[near] / curves[near][0], rel=1e-5)
    expected = times * measured["effective"][i, k]
    np.testing.assert_allclose(measured["scaled_time"][i, k], expected, rtol=1e-12)


def test_summaries_follow_from_the_arrays(measured):
    ratio = measured["rate"] / measured["effective"]
    np.testing.assert_allclose(measured["ratio"], ratio, rtol=1e-14)
    np.testing.assert_allclose(measured["deviation_max"], abs(ratio - 1).max(0), rtol=1e-9)
    np.testing.assert_allclose(measured["ratio_lowest"], ratio.min(0), rtol=1e-14)
    np.testing.assert_allclose(measured["ratio_highest"], ratio.max(0), rtol=1e-14)
    gap = abs(np.log(measured["scaled_error"]) + measured["scaled_time"])
    assert measured["collapse"] == pytest.approx(gap.max(), rel=1e-9)
    # A perturbation of 1e-3 changes the curvature along the way by a few parts in a thousand.
    assert measured["deviation_max"].max() < 1e-2
    for i, k in CASES:
        t = measured["scaled_time"][i, k] / measured["effective"][i, k]
        r = np.corrcoef(t, np.log(measured["scaled_error"][i, k]))[0, 1]
        assert measured["r2"][i, k] == pytest.approx(r**2, abs=1e-12)
    assert measured["r2_min"] == measured["r2"].min()
    assert 1 - 1e-5 < measured["r2_min"] < 1


def test_another_window_is_fitted_where_it_says():
    """In units of 1 / (4 lambda_r), from the start."""
    q = Curvature(**{**vars(SMALL), "window": 1.5, "lambda_r": (0.4,), "records": 10})
    measured = run(q, lambda fraction: None)
    t = measured["scaled_time"][0] / measured["effective"][0][:, None]
    np.testing.assert_allclose(t, np.tile(np.linspace(0, 1.5, 11) / 1.6, (2, 1)), rtol=1e-12)


@pytest.mark.parametrize(
    ("lambda_r", "lambda_1", "fits"),
    [
        ((0.5, 1.0), 1.0, True),
        ((0.5, 1.0001), 1.0, False),
        ((0.5, 1.0001), 2.0, True),
        ((0.5, 0.0), 1.0, False),
        ((0.5, -0.1), 1.0, False),
    ],
)
def test_lambda_r_is_the_smallest_eigenvalue_or_refused(lambda_r, lambda_1, fits):
    changes = {"lambda_r": lambda_r, "lambda_1": lambda_1, "seeds": 1, "records": 3}
    q = Curvature(**{**vars(SMALL), **changes})
    if fits:
        measured = run(q, lambda fraction: None)
        assert measured["lambda_r"].tolist() == list(lambda_r)
        return
    with pytest.raises(DomainError, match=r"^exp2\.lambda_r: expected numbers in \(0, lambda_1"):
        run(q, lambda fraction: None)


def test_a_seed_does_not_depend_on_the_number_of_seeds(measured):
    alone = run(Curvature(**{**vars(SMALL), "seeds": 1}), lambda fraction: None)
    for name in ("effective", "rate", "frobenius"):
        np.testing.assert_allclose(alone[name][:, 0], measured[name][:, 0], rtol=1e-10)


def test_it_is_the_papers_experiment():
    q = EXPERIMENT.parameters()
    assert (q.d, q.r, q.n, q.lambda_r) == (8, 2, 800, (1.0, 0.7, 0.5, 0.35, 0.25))
    assert q.seeds >= 100
