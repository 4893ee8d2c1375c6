"""Other losses of the regressor: answers, standard errors, files and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.stats import binom, norm
from sklearn.base import clone

from posquad import recover
from posquad.errors import DomainError
from posquad.estimator import PositiveQuadraticRegressor
from posquad.estimator.validation import cross_validated
from posquad.problems import rows
from posquad.status import Status

ROBUST = ["huber", "geman-mcclure"]


def samples(seed, n=80, d=3, r=1, noise=0.2, outliers=0.1):
    rng = np.random.default_rng([31, seed])
    X, U = rng.standard_normal((n, d)), rng.standard_normal((d, r))
    y = ((X @ U) ** 2).sum(axis=1) + noise * rng.standard_normal(n)
    bad = rng.permutation(n)[: int(outliers * n)]
    y[bad] += rng.choice([-30.0, 30.0, 300.0], len(bad))
    return X, U, y


@pytest.mark.parametrize("loss", [*ROBUST, "poisson"])
def test_the_model_is_that_of_recover(loss):
    X, U, y = samples(0)
    if loss == "poisson":
        y = np.random.default_rng(0).poisson(5 * ((X @ U) ** 2).sum(axis=1)).astype(float)
    model = PositiveQuadraticRegressor(rank=1, loss=loss).fit(X, y)
    found = recover(X, y, rank=1, loss=loss)
    U = model.components_.T
    np.testing.assert_allclose(U @ U.T, found.Q.dense(), atol=1e-8)
    assert model.status_ is Status.BEST_FIT
    assert model.residual_ == pytest.approx(float(found.residual), rel=1e-8)
    if loss in ROBUST:
        assert model.noise_std_ == pytest.approx(float(found.scale), rel=1e-7)


@pytest.mark.parametrize("loss", ROBUST)
@pytest.mark.parametrize("terms", ["fit_intercept", "linear"])
def test_other_terms_may_be_fitted_in_spite_of_outliers(loss, terms):
    X, U, y = samples(1, r=2)
    b = np.array([1.0, -2.0, 0.5]) if terms == "linear" else np.zeros(3)
    model = PositiveQuadraticRegressor(rank=2, loss=loss, **{terms: True}).fit(X, y + X @ b - 3)
    at = np.random.default_rng(1).standard_normal((200, 3))
    mean, error = model.predict(at, return_std=True)
    away = np.abs(mean - ((at @ U) ** 2).sum(axis=1) - at @ b + 3)
    assert (away < 5 * error).all()
    assert np.median(error) < 0.2  # the noise without outliers


def test_standard_errors_of_counts_are_those_of_statsmodels():
    """At rank d the model is linear; the covariance is the inverse of Fisher's information."""
    X, U, _ = samples(2, d=2, r=2)
    y = np.random.default_rng(2).poisson(4 * ((X @ U) ** 2).sum(axis=1)).astype(float)
    columns = np.column_stack([X[:, 0] ** 2, 2 * X[:, 0] * X[:, 1], X[:, 1] ** 2])
    model = PositiveQuadraticRegressor(rank=2, loss="poisson").fit(X, y)
    Q = model.components_.T @ model.components_
    family = sm.families.Poisson(sm.families.links.Identity())
    with pytest.warns(match="does not respect the domain"):
        oracle = sm.GLM(y, columns, family=family)
    fit = oracle.fit(start_params=[Q[0, 0], Q[0, 1], Q[1, 1]], tol=1e-14)
    variance = ((columns @ fit.cov_params()) * columns).sum(axis=1)
    mean, error = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, fit.fittedvalues, rtol=1e-6)
    np.testing.assert_allclose(error, np.sqrt(variance), rtol=1e-6)
    assert model.dispersion_ == pytest.approx(fit.pearson_chi2 / (len(y) - 3), rel=1e-6)


@pytest.mark.parametrize("intercept", [False, True])
def test_the_sandwich_is_that_of_the_linear_case(intercept):
    """`A^-1 B A^-1` with leverages, in the coordinates of linear regression, for Huber's loss."""
    X, _, y = samples(3, d=2, r=2)
    w = np.random.default_rng(3).uniform(0.5, 2.0, len(y))
    model = PositiveQuadraticRegressor(rank=2, loss="huber", fit_intercept=intercept).fit(X, y, w)
    G = np.column_stack([X[:, 0] ** 2, 2 * X[:, 0] * X[:, 1], X[:, 1] ** 2])
    G = np.column_stack([G, np.ones(len(y))]) if intercept else G
    mean, error = model.predict(X, return_std=True)
    s, k = model.noise_std_, 1.345
    z = (y - mean) / s
    A = G.T @ ((w * (np.abs(z) <= k))[:, None] * G)
    # A sample pulls its own prediction by h; without it, its error is 1 / (1 - h) as large (HC3).
    h = w * (np.abs(z) <= k) * np.diag(G @ np.linalg.inv(A) @ G.T)
    assert 0.05 < h.max() < 0.9
    B = G.T @ ((w * np.clip(z, -k, k) / (1 - h))[:, None] ** 2 * G)
    covariance = s**2 * np.linalg.inv(A) @ B @ np.linalg.inv(A)
    np.testing.assert_allclose(error, np.sqrt(((G @ covariance) * G).sum(axis=1)), rtol=1e-6)


@pytest.mark.parametrize("loss", ["huber", "poisson"])
def test_intervals_cover_as_often_as_they_say(loss):
    """Every fit is of an own data set and checked at an own input, so that hits are independent."""
    fits, levels, errors = 30, (0.8, 0.5), []
    for seed in range(fits):
        X, U, y = samples(100 + seed, n=60, d=2, r=1)
        rng = np.random.default_rng(seed)
        factor = 1.0
        if loss == "poisson":
            factor = 10.0
            y = rng.poisson(factor * ((X @ U) ** 2).sum(axis=1)).astype(float)
        model = PositiveQuadraticRegressor(rank=1, loss=loss, max_starts=4).fit(X, y)
        at = rng.standard_normal((1, 2))
        mean, error = model.predict(at, return_std=True)
        errors.append(abs(mean[0] - factor * ((at @ U) ** 2).sum()) / error[0])
    for level in levels:  # the interval of counts that this rate leaves once in a thousand times
        hits = (np.array(errors) <= norm.ppf((1 + level) / 2)).sum()
        assert binom.ppf(5e-4, fits, level) <= hits <= binom.ppf(1 - 5e-4, fits, level)


@pytest.mark.parametrize(("loss", "scale"), [("huber", 0.25), ("geman-mcclure", None)])
def test_a_saved_model_keeps_its_loss_and_standard_errors(tmp_path, loss, scale):
    X, _, y = samples(4)
    model = PositiveQuadraticRegressor(rank=1, loss=loss, scale=scale).fit(X, y)
    model.save(tmp_path / "model")
    again = PositiveQuadraticRegressor.load(tmp_path / "model")
    assert (again.loss, again.scale) == (loss, scale)
    assert again.likelihood_ == model.likelihood_
    for a, b in zip(*(m.predict(X, return_std=True) for m in (model, again)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_dispersion_of_counts_is_saved_and_nan_for_other_losses(tmp_path):
    X, U, y = samples(5)
    counts = np.random.default_rng(5).poisson(9 * ((X @ U) ** 2).sum(axis=1))
    model = PositiveQuadraticRegressor(rank=1, loss="poisson").fit(X, counts)
    model.save(tmp_path / "model")
    assert PositiveQuadraticRegressor.load(tmp_path / "model").dispersion_ == model.dispersion_
    assert np.isnan(PositiveQuadraticRegressor(rank=1).fit(X, y).dispersion_)


def test_the_likelihood_is_said_in_words():
    X, _, y = samples(6)
    words = {
        loss: clone(PositiveQuadraticRegressor(rank=1, loss=loss))
        .fit(X, np.round(y**2))
        .likelihood_
        for loss in ("least-squares", "huber", "poisson")
    }
    assert "least squares" in words["least-squares"]
    assert "Huber loss, scale" in words["huber"]
    assert " estimated)" in words["huber"]
    assert words["huber"].endswith("(sandwich)")
    given = PositiveQuadraticRegressor(rank=1, loss="huber", scale=2.0).fit(X, y)
    assert "Huber loss, scale 2 given)" in given.likelihood_
    assert "Poisson counts" in words["poisson"]


def test_repeated_inputs_keep_their_own_responses():
    """The mean of a good and a bad response would hide the outlier."""
    X, U, y = samples(7, n=40, outliers=0.0)
    X, y = np.vstack([X, X]), np.concatenate([y, y])
    y[:4] += 1e3
    model = PositiveQuadraticRegressor(rank=1, loss="geman-mcclure").fit(X, y)
    assert np.abs(model.components_.T @ model.components_ - U @ U.T).max() < 0.2


def test_counts_are_cross_validated_without_linear_terms():
    X, U, _ = samples(8, n=60)
    y = np.random.default_rng(8).poisson(0.3 * ((X @ U) ** 2).sum(axis=1)).astype(float)
    model = PositiveQuadraticRegressor(rank=1, loss="poisson").fit(X, y)
    found = cross_validated(model, X, y)
    assert found is not None
    assert found.with_linear is None


def test_ctrl_c_keeps_the_best_model_so_far():
    X, _, y = samples(9)
    calls = []

    def stop(_):
        calls.append(1)
        if len(calls) > 40:
            raise KeyboardInterrupt

    model = PositiveQuadraticRegressor(rank=1, loss="huber")
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y, progress=stop)
    assert model.status_ is Status.INTERRUPTED
    assert np.isfinite(model.predict(X)).all()


def test_rows_that_are_not_kept_are_fitted_by_least_squares_only():
    X, _, y = samples(11, n=20)
    model = PositiveQuadraticRegressor(rank=1, loss="huber")
    with pytest.raises(DomainError, match="loss: expected 'least-squares' for a stream of samples"):
        model.partial_fit(X, y)
    X = np.ones((5000, 2))
    with pytest.raises(DomainError, match="loss: expected 'least-squares' for rows that are not"):
        model.fit(rows.in_memory(X), X[:, 0])
    with pytest.raises(DomainError, match="loss: expected 'least-squares' for a source that is"):
        recover(rows.in_memory(X), X[:, 0], rank=1, loss="huber")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "l1"}, "loss: expected one of"),
        ({"scale": 1.0}, "scale: expected None for loss='least-squares'"),
        ({"loss": "poisson"}, "y: expected counts"),
        ({"loss": "poisson", "linear": True}, "loss: expected another loss than 'poisson' for a"),
    ],
)
def test_bad_options_are_refused(options, message):
    X, _, y = samples(10, n=20)
    with pytest.raises(DomainError, match=message):
        PositiveQuadraticRegressor(rank=1, **options).fit(X, y)
