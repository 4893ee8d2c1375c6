"""Linear terms: `f(x) = x'Qx + b'x + c`, against SciPy, linear regression, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression

import posquad
from estimator_support import jacobian, oracle
from posquad.core.status import Status
from posquad.estimator import PositiveQuadraticRegressor

ALL = {"linear": True, "intercept": True}


def table(seed, n=80, d=4, r=2, *, noise=0.0, shift=0.0):
    """Inputs, the factor, the linear coefficients and responses with the constant -7."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + shift
    U, b = rng.standard_normal((d, r)), rng.standard_normal(d)
    return X, U, b, ((X @ U) ** 2).sum(axis=1) + X @ b - 7 + noise * rng.standard_normal(n)


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("shift", [0.0, 5.0, 1000.0])
def test_everything_is_recovered_without_noise(shift, rank):
    X, U, b, y = table(1, shift=shift)
    model = PositiveQuadraticRegressor(rank, linear=True).fit(X, y)
    scale = 1 + shift**2
    assert model.status_ is Status.RECOVERED
    assert model.identifiable_
    assert model.rank_ == 2
    np.testing.assert_allclose(model.predict(X), y, rtol=1e-10)
    np.testing.assert_allclose(model.components_.T @ model.components_, U @ U.T, atol=1e-9)
    np.testing.assert_allclose(model.coef_, b, atol=1e-10 * scale)
    assert model.intercept_ == pytest.approx(-7, abs=1e-8 * scale)
    np.testing.assert_allclose(model.center_, X.mean(axis=0))
    gradient = 2 * U @ (U.T @ X.mean(axis=0)) + b
    np.testing.assert_allclose(model.center_slope_, gradient, rtol=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_best_fit_is_that_of_scipy(shift, weighted):
    X, U, b, y = table(2, noise=0.3, shift=shift)
    weights = np.random.default_rng(0).uniform(0, 3, len(y)) if weighted else None
    model = PositiveQuadraticRegressor(2, linear=True).fit(X, y, weights)
    Q, slope, constant = oracle(X, y, U, b=b, c=-7.0, weights=weights)
    assert model.status_ is Status.BEST_FIT
    np.testing.assert_allclose(model.components_.T @ model.components_, Q, atol=1e-9)
    np.testing.assert_allclose(model.coef_, slope, atol=1e-7)
    assert model.intercept_ == pytest.approx(constant, abs=1e-6)
    f = np.einsum("ni,ij,nj->n", X, Q, X) + X @ slope + constant
    w = np.ones(len(y)) if weights is None else weights / weights.mean()
    left, mean = w @ (f - y) ** 2, np.average(y, weights=w)
    assert model.residual_ == pytest.approx(np.sqrt(left / (w @ (y - mean) ** 2)), rel=1e-9)
    assert model.noise_std_ == pytest.approx(np.sqrt(left / (80 - 7 - 5)), rel=1e-9)


def test_standard_errors_are_those_of_the_joint_jacobian():
    """`g' (J'WJ)^+ g` with J in all of (U, b, c): rotations of U drop out of the pseudo-inverse."""
    X, _, _, y = table(3, noise=0.3, shift=2.0)
    weights = np.random.default_rng(1).uniform(0.5, 2, len(y))
    model = PositiveQuadraticRegressor(2, linear=True).fit(X, y, weights)
    new = np.random.default_rng(2).standard_normal((10, 4)) * 3
    root = np.sqrt(weights / weights.mean())[:, None]
    inverse = np.linalg.pinv(root * jacobian(X, model.components_.T, **ALL), rcond=1e-10)
    g = jacobian(new, model.components_.T, **ALL)
    expected = model.noise_std_ * np.linalg.norm(g @ inverse, axis=1)
    np.testing.assert_allclose(model.predict(new, return_std=True)[1], expected, rtol=1e-7)
    assert model.kernel_dimension_ == 0


def test_effective_spectrum_is_that_of_the_loss_without_linear_parts():
    """By hand: eigenvalues of `J'PJ / n`, with P the projection from the linear functions."""
    X, _, _, y = table(4, noise=0.1, shift=1.0)
    model = PositiveQuadraticRegressor(2, linear=True).fit(X, y)
    J = jacobian(X - X.mean(axis=0), model.components_.T, **ALL)
    own, others = J[:, :8], J[:, 8:]
    own = own - others @ np.linalg.lstsq(others, own)[0]
    values = np.linalg.eigvalsh(own.T @ own / len(y))
    np.testing.assert_allclose(model.effective_spectrum_, values[1:], rtol=1e-8)  # one rotation
    assert values[0] < 1e-12 * values[-1]


def test_rank_zero_is_linear_regression_with_its_standard_error():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((60, 3)) + 10
    y = X @ [1.0, -2.0, 0.5] + 3 + rng.standard_normal(60)
    model = PositiveQuadraticRegressor(linear=True).fit(X, y)
    assert model.rank_ == 0
    assert list(model.rank_path_["rank"][:2]) == [0, 1]
    line = LinearRegression().fit(X, y)
    mean, error = model.predict(X[:5], return_std=True)
    np.testing.assert_allclose(mean, line.predict(X[:5]), rtol=1e-10)
    np.testing.assert_allclose(model.coef_, line.coef_, rtol=1e-8)
    A = np.column_stack([X, np.ones(60)])
    noise = np.sqrt(((line.predict(X) - y) ** 2).sum() / 56)
    by_hand = noise * np.sqrt(np.einsum("ni,ij,nj->n", A[:5], np.linalg.inv(A.T @ A), A[:5]))
    np.testing.assert_allclose(error, by_hand, rtol=1e-7)


def test_full_rank_is_linear_least_squares_where_that_is_positive():
    X, _, _, y = table(6, n=120, d=3, r=3, noise=0.05)
    rows, columns = np.triu_indices(3)
    A = np.column_stack([X[:, rows] * X[:, columns], X, np.ones(120)])
    solution = np.linalg.lstsq(A, y)[0]
    model = PositiveQuadraticRegressor(3, linear=True).fit(X, y)
    np.testing.assert_allclose(model.predict(X), A @ solution, rtol=0, atol=1e-9)
    np.testing.assert_allclose(model.coef_, solution[6:9], atol=1e-9)


def test_centring_and_units_change_nothing():
    X, _, _, y = table(7, noise=0.2, shift=4.0)
    moved = (X - [1.0, -2.0, 30.0, 4.0]) * [1e3, 1.0, 1e-5, 0.1]
    model = PositiveQuadraticRegressor(2, linear=True)
    for mine, other in zip(
        model.fit(X, y).predict(X, return_std=True),
        model.fit(moved, y).predict(moved, return_std=True),
        strict=True,
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-6)


@pytest.mark.parametrize("options", [{"fit_intercept": True}, {"linear": True}])
@pytest.mark.parametrize(
    ("inputs", "responses"), [(1e140, 1), (1e-140, 1), (1, 1e150), (1, 1e-150)]
)
def test_extreme_units_change_nothing(options, inputs, responses):
    """Responses in a unit scale all predictions; the spectrum is quadratic in inputs of a unit."""
    X, _, _, y = table(8, noise=0.3)
    plain = PositiveQuadraticRegressor(2, **options).fit(X, y)
    model = PositiveQuadraticRegressor(2, **options).fit(X * inputs, y * responses)
    assert model.status_ is plain.status_
    np.testing.assert_allclose(model.predict(X * inputs) / responses, plain.predict(X), rtol=1e-9)
    spectrum = model.effective_spectrum_ / inputs / inputs / responses
    np.testing.assert_allclose(spectrum, plain.effective_spectrum_, rtol=1e-8)


def test_a_column_of_ones_is_a_different_model():
    """A positive form of (x, 1) is never negative; with linear terms the function may be."""
    x = np.linspace(-2, 2, 40)[:, None]
    y = x[:, 0] ** 2 - 3 * x[:, 0] - 1
    ones = np.column_stack([x, np.ones(40)])
    form = PositiveQuadraticRegressor(2).fit(ones, y)
    linear = PositiveQuadraticRegressor(1, linear=True).fit(x, y)
    assert form.predict(ones).min() >= 0
    np.testing.assert_allclose(linear.predict(x), y, atol=1e-12)
    assert linear.coef_[0] == pytest.approx(-3)
    assert linear.intercept_ == pytest.approx(-1)


# No minimum.


@pytest.mark.parametrize("response", [lambda x: 1 + 2 * x, np.sqrt, lambda x: -(x**2)])
def test_a_constant_beside_a_column_of_ones_has_no_minimum(response):
    """`(a + x/a)^2 - a^2` tends to 2x: rank 1 with a constant comes close to every line."""
    x = np.linspace(0, 3, 40)
    X, y = np.column_stack([np.ones(40), x]), response(x)
    model = PositiveQuadraticRegressor(1, fit_intercept=True)
    with pytest.warns(Warning, match="no minimum"):
        model.fit(X, y)
    assert model.status_ is Status.NO_MINIMUM
    assert not model.identifiable_
    line = np.polynomial.polynomial.Polynomial.fit(x, y, 1)
    np.testing.assert_allclose(model.predict(X), line(x), atol=1e-5)
    assert model.intercept_ < -1000
    left = np.sqrt(((model.predict(X) - y) ** 2).sum() / ((y - y.mean()) ** 2).sum())
    assert model.residual_ == pytest.approx(left, rel=1e-4, abs=1e-7)


def test_where_there_is_a_minimum_the_column_of_ones_does_no_harm():
    x = np.linspace(0, 3, 40)
    X = np.column_stack([np.ones(40), x])
    model = PositiveQuadraticRegressor(1, fit_intercept=True).fit(X, (1 + 2 * x) ** 2 + 5)
    assert model.status_ is Status.RECOVERED
    assert model.intercept_ == pytest.approx(5)


def test_a_two_valued_column_with_linear_terms_may_have_no_minimum():
    """z^2 = z is linear, so a large entry for z makes every interaction z x positive."""
    rng = np.random.default_rng(8)
    z, x = rng.integers(0, 2, 60).astype(float), rng.standard_normal(60)
    X, y = np.column_stack([z, x]), 3 * z * x + x - 2
    model = PositiveQuadraticRegressor(1, linear=True)
    with pytest.warns(Warning, match="take two values"):
        model.fit(X, y)
    assert model.status_ is Status.NO_MINIMUM
    np.testing.assert_allclose(model.predict(X), y, atol=1e-4)


# What is said.


def test_what_the_data_do_not_determine_is_a_warning():
    X, _, _, y = table(9, n=8, d=10, r=1)
    with pytest.warns(posquad.IdentifiabilityWarning, match="do not span"):
        model = PositiveQuadraticRegressor().fit(X, y)
    assert model.needed_ == 11
    with pytest.warns(posquad.IdentifiabilityWarning, match="other predictors"):
        model = PositiveQuadraticRegressor(2, linear=True).fit(*table(9, n=11)[::3])
    assert model.status_ is Status.NOT_IDENTIFIED
    assert model.needed_ == 4 * 2 - 1 + 1 + 5


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("terms", [{"fit_intercept": True}, {"linear": True}])
def test_a_constant_response_is_rank_zero(terms, rank):
    X = table(10)[0]
    model = PositiveQuadraticRegressor(rank, **terms).fit(X, np.full(80, 3.0))
    assert model.rank_ == 0
    assert not model.coef_.any()
    assert model.intercept_ == 3.0


@pytest.mark.parametrize("terms", [{}, {"fit_intercept": True}, {"linear": True}])
def test_ctrl_c_carries_the_best_model_so_far(terms):
    X, _, _, y = table(11, noise=0.3)
    steps = []

    def press(progress):
        steps.append(progress)
        if len(steps) == 4:
            raise KeyboardInterrupt

    model = PositiveQuadraticRegressor(2, **terms)
    with pytest.raises(posquad.Interrupted) as stop:
        model.fit(X, y, progress=press)
    best = stop.value.result
    assert best is model
    assert best.status_ is Status.INTERRUPTED
    assert np.isfinite(best.predict(X)).all()


def test_a_time_limit_returns_normally():
    X, _, _, y = table(12, n=400, d=8, noise=0.3)
    model = PositiveQuadraticRegressor(3, linear=True, time_limit=1e-6)
    with pytest.warns(Warning, match="time limit"):
        model.fit(X, y)
    assert model.status_ is Status.INTERRUPTED
    assert np.isfinite(model.predict(X)).all()


def test_a_large_factor_is_fitted_without_its_dense_system():
    """d r = 1,280 entries: conjugate gradients; the truth as the oracle."""
    X, _, b, y = table(13, n=4000, d=160, r=8)
    model = PositiveQuadraticRegressor(8, linear=True, standard_errors=False, max_starts=2)
    model.fit(X, y)
    assert model.status_ is Status.RECOVERED
    np.testing.assert_allclose(model.coef_, b, atol=1e-9)


@pytest.mark.parametrize("name", ["linear", "fit_intercept"])
def test_switches_must_be_booleans(name):
    X, _, _, y = table(14)
    with pytest.raises(posquad.core.errors.DomainError, match=name):
        PositiveQuadraticRegressor(**{name: "yes"}).fit(X, y)


@pytest.mark.parametrize("factor", [1e6, 1e9, 1e12])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_one_row_that_hides_all_others_is_not_a_recovery(factor, noise):
    """The residual is that of one response, and centring takes the digits of the other rows."""
    X, U, b, _ = table(3, n=200)
    X[-1] *= factor
    y = ((X @ U) ** 2).sum(axis=1) + X @ b + noise * np.random.default_rng(0).standard_normal(200)
    with pytest.warns(ConvergenceWarning, match="rounding hides the error"):
        model = PositiveQuadraticRegressor(2, linear=True).fit(X, y)
    assert model.status_ is Status.STALLED
