"""`recover` with other losses, against statsmodels, SciPy and simulation."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from scipy.optimize import least_squares, minimize
from statsmodels.robust.norms import HuberT, RobustNorm

from posquad import recover
from posquad.errors import DomainError
from posquad.status import Status

ROBUST = ["huber", "geman-mcclure"]
WIDTH = {"huber": 1.345, "geman-mcclure": 3.7874187608}


def problem(seed, n=80, d=4, r=2, noise=0.1, outliers=0.0):
    """Inputs, factor and responses, of which a share are gross outliers."""
    rng = np.random.default_rng(seed)
    X, U = rng.standard_normal((n, d)), rng.standard_normal((d, r))
    y = ((X @ U) ** 2).sum(axis=1) + noise * rng.standard_normal(n)
    bad = rng.permutation(n)[: int(outliers * n)]
    y[bad] += rng.choice([-40.0, 40.0, 400.0], len(bad))
    return X, U, y


def products(X):
    """The columns of the linear regression on a symmetric matrix, and its indices."""
    i, j = np.triu_indices(X.shape[1])
    return X[:, i] * X[:, j] * np.where(i == j, 1.0, 2.0), (i, j)


class GemanMcClure(RobustNorm):
    """The norm of Geman and McClure, which statsmodels does not have."""

    def rho(self, z):
        return z**2 / 2 / (1 + (z / WIDTH["geman-mcclure"]) ** 2)

    def weights(self, z):
        return 1 / (1 + (z / WIDTH["geman-mcclure"]) ** 2) ** 2

    def psi(self, z):
        return z * self.weights(z)

    def psi_deriv(self, z):
        square = (z / WIDTH["geman-mcclure"]) ** 2
        return (1 - 3 * square) / (1 + square) ** 3


@pytest.mark.parametrize(("loss", "norm"), [("huber", HuberT()), ("geman-mcclure", GemanMcClure())])
def test_the_linear_case_is_the_robust_regression_of_statsmodels(loss, norm):
    """At rank d with a positive definite answer, Q is a linear regression; scale and all."""
    X, _, y = problem(1, n=100, d=3, r=3, outliers=0.1)
    columns, indices = products(X)
    expected = sm.RLM(y, columns, M=norm).fit(tol=1e-13, maxiter=2000)
    found = recover(X, y, rank=3, loss=loss)
    assert found.status is Status.BEST_FIT
    np.testing.assert_allclose(found.Q.dense()[indices], expected.params, rtol=1e-7)
    assert float(found.scale) == pytest.approx(expected.scale, rel=1e-7)


@pytest.mark.filterwarnings("ignore:The Identity link")  # statsmodels does not keep means positive
def test_the_linear_case_of_counts_is_the_model_of_statsmodels():
    X, U, _ = problem(2, n=150, d=3, r=3)
    y = np.random.default_rng(2).poisson(0.5 * ((X @ U) ** 2).sum(axis=1)).astype(float)
    columns, indices = products(X)
    family = sm.families.Poisson(sm.families.links.Identity())
    start = recover(X, y, rank=3).Q.dense()[indices]
    expected = sm.GLM(y, columns, family=family).fit(start_params=start, tol=1e-14, maxiter=500)
    found = recover(X, y, rank=3, loss="poisson")
    assert (y == 0).any()
    np.testing.assert_allclose(found.Q.dense()[indices], expected.params, rtol=1e-7)


def by_scipy(loss, X, y, U, scale, w=1.0):
    """The predictor of least loss near U, by a general minimiser of SciPy on the factor."""

    def error(u):
        return ((X @ u.reshape(U.shape)) ** 2).sum(axis=1) - y

    if loss == "huber":
        settings = {"loss": "huber", "f_scale": WIDTH[loss] * scale, "xtol": 1e-15}
        u = least_squares(error, U.ravel(), ftol=1e-15, gtol=1e-15, **settings).x
        return u.reshape(U.shape) @ u.reshape(U.shape).T

    def value(u):
        e = error(u)
        if loss == "poisson":
            m = e + y
            return (w * (m - y * np.log(m))).sum(), pull(u, w * (1 - y / m))
        square = (e / (WIDTH[loss] * scale)) ** 2
        return (square / (1 + square)).sum(), pull(
            u, e / (1 + square) ** 2 / WIDTH[loss] ** 2 / scale**2 * 2
        )

    def pull(u, slope):
        return (2 * X.T @ (slope[:, None] * (X @ u.reshape(U.shape)))).ravel()

    u = minimize(value, U.ravel(), jac=True, method="BFGS", options={"gtol": 1e-10}).x
    return u.reshape(U.shape) @ u.reshape(U.shape).T


@pytest.mark.parametrize("given", [None, 0.15])
@pytest.mark.parametrize("loss", ROBUST)
def test_low_rank_robust_fits_are_those_of_scipy(loss, given):
    X, U, y = problem(3, outliers=0.1)
    found = recover(X, y, rank=2, loss=loss, scale=given)
    scale = float(found.scale)
    assert given is None or scale == given
    expected = by_scipy(loss, X, y, U, scale)
    # SciPy's steps of Huber's loss, which has a kink in its slope, end at 1e-7.
    np.testing.assert_allclose(found.Q.dense(), expected, atol=2e-7 * np.abs(expected).max())


@pytest.mark.parametrize(("size", "d", "r"), [(30.0, 4, 2), (3.0, 5, 2), (0.3, 3, 1), (0.3, 3, 3)])
def test_low_rank_counts_are_those_of_scipy(size, d, r):
    """Also counts with means far below one, most of which are zero."""
    X, U, _ = problem(4, n=90, d=d, r=r)
    V = np.sqrt(size) * U
    y = np.random.default_rng(5).poisson(((X @ V) ** 2).sum(axis=1)).astype(float)
    found = recover(X, y, rank=r, loss="poisson")
    assert found.status is Status.BEST_FIT
    expected = by_scipy("poisson", X, y, V, 1.0)
    # A singular answer of rank d = 3 lies on the boundary, where BFGS ends at 1e-8.
    np.testing.assert_allclose(found.Q.dense(), expected, atol=1e-7 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("loss", "sizes"), [("huber", [-1e3, 10.0, 1e3]), ("geman-mcclure", [10.0, 1e3])]
)
def test_ten_percent_of_gross_outliers_move_the_answer_by_less_than_three_standard_errors(
    loss, sizes
):
    """The standard error is the root mean square over clean data sets, entry by entry.

    Outliers of one sign bias Huber's answer, but not that of a loss that gives them no weight.
    """
    clean, moved = [], []
    for seed in range(8):
        rng = np.random.default_rng([7, seed])
        X, U, y = problem(8, n=100, d=3, r=1, noise=0.0)
        y = y + 0.1 * rng.standard_normal(100)
        clean.append(recover(X, y, rank=1).Q.dense() - U @ U.T)
        y[rng.permutation(100)[:10]] += rng.choice(sizes, 10)
        moved.append(recover(X, y, rank=1, loss=loss).Q.dense() - U @ U.T)
        assert np.abs(recover(X, y, rank=1).Q.dense() - U @ U.T).max() > 1.0
    error = np.sqrt(np.mean(np.square(clean), axis=0))
    assert (np.abs(moved) <= 3 * error).all()


@pytest.mark.parametrize("loss", [*ROBUST, "poisson"])
def test_responses_that_are_reproduced_are_recovered_with_every_loss(loss):
    rng = np.random.default_rng(9)
    X, U = rng.integers(-3, 4, (40, 4)).astype(float), rng.integers(-2, 3, (4, 2)).astype(float)
    y = ((X @ U) ** 2).sum(axis=1)
    found = recover(X, y, rank=2, loss=loss)
    assert found.status is recover(X, y, rank=2).status is Status.RECOVERED
    np.testing.assert_allclose(found.Q.dense(), U @ U.T, atol=1e-12)


@pytest.mark.parametrize("loss", ROBUST)
def test_outliers_among_exact_responses_are_ignored(loss):
    X, U, y = problem(10, noise=0.0, outliers=0.1)
    found = recover(X, y, rank=2, loss=loss)
    assert found.status is Status.BEST_FIT  # not every response is reproduced
    assert np.abs(found.Q.dense() - U @ U.T).max() < 1e-8
    errors = np.abs(y - ((X @ U) ** 2).sum(axis=1))
    assert (found.weights[errors > 1] < 1e-6 * found.weights.max()).all()


@pytest.mark.parametrize("loss", ROBUST)
def test_the_rank_is_chosen_in_spite_of_outliers(loss):
    X, U, y = problem(11, n=120, outliers=0.1)
    found = recover(X, y, loss=loss)
    assert int(found.rank) == 2
    assert found.rank_path is not None
    assert np.abs(found.Q.dense() - U @ U.T).max() < 0.1


def test_a_weight_of_two_is_a_repeated_sample_and_zero_leaves_one_out():
    X, _, y = problem(12, n=50, outliers=0.1)
    w = np.random.default_rng(0).integers(0, 3, 50)
    for loss in ROBUST:
        weighted = recover(X, y, rank=2, weights=w.astype(float), loss=loss)
        repeated = recover(np.repeat(X, w, axis=0), np.repeat(y, w), rank=2, loss=loss)
        np.testing.assert_allclose(weighted.Q.dense(), repeated.Q.dense(), atol=1e-7)


def test_a_batch_is_solved_as_its_problems_alone():
    parts = [problem(seed, n=40, d=3, r=1, outliers=0.1) for seed in (1, 2)]
    X, y = torch.from_numpy(np.stack([p[0] for p in parts])), np.stack([p[2] for p in parts])
    found = recover(X, torch.from_numpy(y), rank=1, loss="huber")
    for k, (x, _, responses) in enumerate(parts):
        alone = recover(x, responses, rank=1, loss="huber")
        np.testing.assert_allclose(found.Q.dense()[k].numpy(), alone.Q.dense(), rtol=1e-12)
        assert found.status[k] is alone.status
        assert float(found.scale[k]) == float(alone.scale)
    assert found.weights.shape == (2, 40)
    shared = recover(X[0], torch.from_numpy(y), rank=1, loss="huber")
    assert shared.U.shape == (2, 3, 1)
    empty = recover(X[:0], torch.from_numpy(y[:0]), rank=1, loss="huber")
    assert empty.U.shape == (0, 3, 1)


def test_a_result_says_which_loss_and_likelihood_it_assumes():
    X, _, y = problem(13)
    found = recover(X, y, rank=2, loss="huber", scale=0.2)
    assert (found.loss, float(found.scale)) == ("huber", 0.2)
    assert found.message.endswith("normal but for outliers (Huber loss)")
    plain = recover(X, y, rank=2)
    assert plain.message == plain.status.value
    assert (plain.loss, plain.scale, plain.weights) == ("least-squares", None, None)


def test_a_limit_ends_the_reweighting():
    X, _, y = problem(14, outliers=0.1)
    assert recover(X, y, rank=2, loss="huber", max_steps=30).status is Status.INTERRUPTED
    assert recover(X, y, rank=2, loss="huber", time_limit=1e-4).status is Status.INTERRUPTED


def test_a_start_and_a_certificate_may_be_asked_for():
    X, U, y = problem(15, noise=0.0, n=60)
    found = recover(X, y, rank=2, loss="geman-mcclure", start=U, certify=True)
    assert found.status is Status.CERTIFIED


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "l1"}, "loss: expected one of"),
        ({"scale": 1.0}, "scale: expected None for loss='least-squares'"),
        ({"loss": "poisson"}, "y: expected counts"),
        ({"loss": "huber", "time_limit": -1.0}, "time_limit: expected"),
        ({"loss": "huber", "max_steps": 0}, "max_steps: expected"),
    ],
)
def test_bad_calls_are_refused(options, message):
    X, _, y = problem(16, n=20)
    with pytest.raises(DomainError, match=message):
        recover(X, y, rank=1, **options)
