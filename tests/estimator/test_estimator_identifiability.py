"""Free directions: their number, and the predictions that they change."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_support import jacobian
from posquad.core.status import Status
from posquad.estimator import PositiveQuadraticRegressor
from posquad.estimator._uncertainty import standard_errors
from posquad.problems import rows

# Whether the data determine the predictor is asserted through `status_` and `identifiable_`.
pytestmark = pytest.mark.filterwarnings("ignore::posquad.IdentifiabilityWarning")


def determined(X, U, at, *, intercept=False):
    """Whether the slope at each input lies in the row space of the Jacobian; the space's size."""
    units = np.abs(X).max(axis=0)
    units = np.where(units > 0, units, 1.0)
    X, at, U = X / units, at / units, U * units[:, None]
    J, g = jacobian(X, U, intercept=intercept), jacobian(at, U, intercept=intercept)
    _, s, right = np.linalg.svd(J, full_matrices=False)
    rows = right[s > 1e-10 * s[0]]
    missed = np.linalg.norm(g - g @ rows.T @ rows, axis=1)
    return missed <= 1e-8 * np.linalg.norm(g, axis=1), len(rows)


@pytest.mark.parametrize(
    ("n", "d", "r", "intercept"),
    [
        (1, 1, 1, False),
        (1, 3, 1, False),
        *((n, d, r, c) for n, d, r in [(3, 4, 1), (5, 4, 2), (9, 5, 3)] for c in (False, True)),
    ],
)
def test_fewer_samples_than_unknowns(n, d, r, intercept):
    rng = np.random.default_rng(n + d)
    X, U = rng.standard_normal((n, d)), rng.standard_normal((d, r))
    y = ((X @ U) ** 2).sum(axis=1) + intercept
    model = PositiveQuadraticRegressor(rank=r, fit_intercept=intercept).fit(X, y)
    assert not model.identifiable_
    assert np.isnan(model.noise_std_)
    assert np.isnan(model.predict(X, return_std=True)[1]).all()
    k = model.rank_  # which may be lower
    assert k > 0
    at = np.concatenate([X, rng.standard_normal((6, d))])
    fitted = model.components_.T
    seen, size = determined(X, fitted, at, intercept=intercept)
    p = d * k - k * (k - 1) // 2
    assert model.kernel_dimension_ == p - (size - intercept)
    error = standard_errors(model.uncertainty_, at, fitted)
    np.testing.assert_array_equal(np.isfinite(error), seen)
    assert seen[:n].all()


def two_planes(rng, n):
    """Inputs in one of two coordinate planes: how U turns between them is free."""
    X = rng.standard_normal((n, 4))
    X[::2, :2] = 0
    X[1::2, 2:] = 0
    return X


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("units", [np.ones(4), np.array([1e-6, 1e6, 1e3, 1e-3])], ids=["1", "any"])
def test_a_direction_that_no_sample_sees(units, intercept):
    """Errors are finite in the planes, where they are known, and infinite between them."""
    rng = np.random.default_rng(2)
    X = two_planes(rng, 40)
    y = ((X @ rng.standard_normal((4, 2))) ** 2).sum(axis=1) + 0.1 * rng.standard_normal(40)
    model = PositiveQuadraticRegressor(rank=2, fit_intercept=intercept).fit(X * units, y)
    assert model.rank_ == 2
    assert model.kernel_dimension_ == 1
    assert not model.identifiable_
    at = np.concatenate([two_planes(rng, 6), rng.standard_normal((6, 4))]) * units
    error = model.predict(at, return_std=True)[1]
    seen, size = determined(X * units, model.components_.T, at, intercept=intercept)
    assert size == 6 + intercept  # of p = 7
    assert list(seen) == [True] * 6 + [False] * 6
    np.testing.assert_array_equal(np.isfinite(error), seen)


@pytest.mark.parametrize("units", [np.ones(4), np.array([1.0, 30.0, 0.02, 5.0])], ids=["1", "any"])
def test_inputs_in_a_subspace(units):
    """Inside it, the errors are those of the problem in its own coordinates."""
    rng = np.random.default_rng(3)
    basis = rng.standard_normal((2, 4)) * units
    Z = rng.standard_normal((30, 2))
    y = (Z @ [1.0, 2.0]) ** 2 + 0.1 * rng.standard_normal(30)
    inner = PositiveQuadraticRegressor(rank=1).fit(Z, y)
    model = PositiveQuadraticRegressor(rank=1).fit(Z @ basis, y)
    assert inner.identifiable_
    assert not model.identifiable_
    assert model.kernel_dimension_ == 2  # of a vector in four dimensions
    at = rng.standard_normal((5, 2))
    for mine, other in zip(
        model.predict(at @ basis, return_std=True), inner.predict(at, return_std=True), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-7)
    assert model.noise_std_ == pytest.approx(inner.noise_std_, rel=1e-9)
    outside = at @ basis + 1e-3 * rng.standard_normal((5, 4)) * units
    assert np.isinf(model.predict(outside, return_std=True)[1]).all()


def test_a_column_of_zeros():
    rng = np.random.default_rng(4)
    X = rng.standard_normal((30, 3)) * [1.0, 0.0, 1.0]
    y = (X @ [1.0, 5.0, -1.0]) ** 2 + 0.1 * rng.standard_normal(30)
    model = PositiveQuadraticRegressor(rank=1).fit(X, y)
    error = model.predict([[1.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.0]], return_std=True)[1]
    np.testing.assert_array_equal(np.isfinite(error), [True, False, False])
    assert model.components_[0, 1] == 0


def test_a_constant_that_inputs_of_one_size_cannot_tell_from_the_predictor():
    """`f(x) = q x^2 + c` at x = 1 and -1: only q + c is determined, as accurately as a mean."""
    x = np.array([1.0, -1.0] * 5)
    y = 3 + np.random.default_rng(5).uniform(0, 0.1, 10)
    model = PositiveQuadraticRegressor(rank=1, fit_intercept=True).fit(x[:, None], y)
    assert model.rank_ == 1
    assert model.kernel_dimension_ == 1
    assert not model.identifiable_
    assert np.isinf(model.predict([[2.0]], return_std=True)[1]).all()
    mean, error = model.predict([[1.0], [-1.0]], return_std=True)
    np.testing.assert_allclose(mean, y.mean(), rtol=1e-12)
    np.testing.assert_allclose(error, model.noise_std_ / np.sqrt(10), rtol=1e-9)


def test_samples_without_weight_determine_nothing():
    rng = np.random.default_rng(6)
    X, U = rng.standard_normal((20, 4)), rng.standard_normal((4, 1))
    y = ((X @ U) ** 2).sum(axis=1)
    weights = np.arange(20) < 3
    model = PositiveQuadraticRegressor(rank=1).fit(X, y, weights)
    assert not model.identifiable_
    assert model.n_samples_ == 3
    assert model.kernel_dimension_ == 1
    assert PositiveQuadraticRegressor(rank=1).fit(X, y, weights + 1e-3).identifiable_


def test_repeated_samples_add_no_information():
    rng = np.random.default_rng(7)
    X, U = rng.standard_normal((3, 4)), rng.standard_normal((4, 1))
    X, y = np.tile(X, (4, 1)), np.tile(((X @ U) ** 2).sum(axis=1), 4) + 0.1 * np.arange(12)
    model = PositiveQuadraticRegressor(rank=1).fit(X, y)
    assert model.kernel_dimension_ == 1
    assert not model.identifiable_
    error = model.predict(np.concatenate([X[:3], rng.standard_normal((2, 4))]), return_std=True)[1]
    np.testing.assert_array_equal(np.isfinite(error), [True] * 3 + [False] * 2)
    # each input is a mean of four responses, known as such
    np.testing.assert_allclose(error[:3], model.noise_std_ / 2, rtol=1e-9)


@pytest.mark.parametrize("errors", [False, "auto"])
@pytest.mark.parametrize("seed", range(4))
def test_rows_along_the_axes_leave_the_products_of_coordinates_free(errors, seed):
    """`y_i = x_ij^2 Q_jj` shows the diagonal alone: six numbers for eleven unknowns."""
    rng = np.random.default_rng(seed)
    d, n = 6, 120
    X = np.zeros((n, d))
    X[np.arange(n), np.arange(n) % d] = rng.standard_normal(n)
    y = X**2 @ (rng.standard_normal((d, 2)) ** 2).sum(axis=1) + 0.1 * rng.standard_normal(n)
    model = PositiveQuadraticRegressor(rank=2, standard_errors=errors).fit(X, y)
    assert model.rank_ == 2
    assert model.kernel_dimension_ == 5
    assert model.identifiable_ is False


@pytest.mark.parametrize(
    ("options", "identifiable"),
    [({}, True), ({"standard_errors": False}, None), ({"linear": True}, True)],
)
def test_what_nothing_shows_is_unknown(options, identifiable):
    """Units 1e8 apart hide the free directions from the spectrum, but not from whitened inputs."""
    rng = np.random.default_rng(9)
    X = rng.standard_normal((60, 3))
    y = (X @ [1.0, 2.0, 3.0]) ** 2 + 0.1 * rng.standard_normal(60)
    model = PositiveQuadraticRegressor(rank=1, **options).fit(X * [1.0, 1e8, 1e-8], y)
    assert model.identifiable_ is identifiable
    assert np.isnan(model.kernel_dimension_) == (identifiable is None)
    # too few samples are too few, whatever the spectrum shows
    few = PositiveQuadraticRegressor(rank=1, **options).fit(X[:3] * [1.0, 1e8, 1e-8], y[:3])
    assert few.identifiable_ is False


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_passes_over_rows_show_free_directions_only_where_the_search_excludes_them(
    noise, monkeypatch
):
    monkeypatch.setattr("posquad.estimator._streaming.MOMENT_MOST", 2)
    monkeypatch.setattr("posquad.recovery.streams.entry.MOMENT_MOST", 2)
    rng = np.random.default_rng(10)
    X = rng.standard_normal((5000, 3))
    y = (X @ [1.0, 2.0, 3.0]) ** 2 + noise * rng.standard_normal(5000)
    model = PositiveQuadraticRegressor(rank=1).fit(rows.in_memory(X), y)
    assert model.status_ is (Status.BEST_FIT if noise else Status.RECOVERED)
    assert np.isnan(model.kernel_dimension_)
    assert model.identifiable_ is (None if noise else True)


def test_problems_too_large_for_a_dense_spectrum_say_what_is_not_known(monkeypatch):
    for module in ("_fitted", "_uncertainty"):
        monkeypatch.setattr(f"posquad.estimator.{module}.DENSE_MOST", 3)
    rng = np.random.default_rng(8)
    X = rng.standard_normal((40, 4))
    y = (X @ [1.0, 2.0, 3.0, 4.0]) ** 2 + 0.1 * rng.standard_normal(40)
    model = PositiveQuadraticRegressor(rank=1).fit(X, y)
    assert model.uncertainty_ is None
    assert (model.kernel_dimension_, model.identifiable_) == (0, True)  # the smallest end shows it
    linear = PositiveQuadraticRegressor(rank=1, linear=True).fit(X, y)  # its ends leave terms out
    assert np.isnan(linear.kernel_dimension_)
    assert linear.identifiable_ is None
    monkeypatch.undo()
    known = PositiveQuadraticRegressor(rank=1).fit(X, y)
    ends = known.effective_spectrum_[[0, -1]]
    np.testing.assert_allclose(model.effective_spectrum_, ends, rtol=1e-8)
    assert model.noise_std_ == known.noise_std_
