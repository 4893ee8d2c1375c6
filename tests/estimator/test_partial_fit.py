"""Fits to a stream or a source of rows, against `fit` to all rows in memory."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import least_squares
from sklearn.exceptions import NotFittedError

from posquad.core.errors import DomainError, IdentifiabilityWarning, NonFiniteError
from posquad.core.status import Status
from posquad.estimator import PositiveQuadraticRegressor as Regressor
from posquad.estimator import _stream, _streaming
from posquad.geometry import dimension
from posquad.io.models import load_model
from posquad.io.tables import TableError
from posquad.problems import rows
from posquad.problems.moments import Moments
from posquad.recovery.streams import entry

N, D, R = 6000, 5, 2
TERMS = [{}, {"fit_intercept": True}, {"linear": True}]


def problem(terms, *, noise=0.1, seed=0, n=N):
    """Samples of unequal scales and weights, off the origin if there are linear terms."""
    rng = np.random.default_rng(seed)
    units = np.logspace(-2, 2, D)
    X = rng.standard_normal((n, D))
    X = (X + 3.0 * ("linear" in terms)) * units
    U = rng.standard_normal((D, R)) / units[:, None]
    y = ((X @ U) ** 2).sum(1)
    y += (-2 if terms else 0) + ("linear" in terms) * X @ (rng.standard_normal(D) / units)
    weights = rng.random(n)
    weights[:60] = 0
    return X, y + noise * y.std() * rng.standard_normal(n), weights


def streamed(model, X, y, weights, cuts):
    for part in np.split(np.arange(len(y)), cuts):
        model.partial_fit(X[part], y[part], weights[part], refit=part[-1] == len(y) - 1)
    return model


def assert_same(model, whole, X, tolerance):
    new = X[:200]
    for found, expected in zip(
        model.predict(new, return_std=True), whole.predict(new, return_std=True), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    assert (model.rank_, model.status_) == (whole.rank_, whole.status_)
    assert model.n_samples_ == whole.n_samples_
    assert model.identifiable_ == whole.identifiable_
    assert model.kernel_dimension_ == whole.kernel_dimension_
    np.testing.assert_allclose(model.noise_std_, whole.noise_std_, rtol=1e-10)
    np.testing.assert_allclose(model.residual_, whole.residual_, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(model.effective_spectrum_, whole.effective_spectrum_, rtol=1e-7)


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_chunks_give_the_answer_of_all_rows(terms):
    X, y, weights = problem(terms)
    whole = Regressor(R, **terms).fit(X, y, weights)
    one = streamed(Regressor(R, **terms), X, y, weights, [10, 2000, 5500])
    assert one._stream.moments is not None
    assert_same(one, whole, X, 1e-9)
    order = np.random.default_rng(1).permutation(N)
    other = streamed(Regressor(R, **terms), X[order], y[order], weights[order], [5900])
    assert_same(other, whole, X, 1e-9)


@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("r", [2, 3])
def test_what_rows_leave_free_is_that_of_all_rows(r, terms):
    """Rows of +-1 do not tell the diagonal of Q: some predictions have no standard error.

    Rotations of the columns of the factor, one for two and three for three, are no such freedom.
    """
    rng = np.random.default_rng(0)
    X = rng.choice([-1.0, 1.0], (N, 3))
    y = ((X @ rng.standard_normal((3, r))) ** 2).sum(1) + 0.1 * rng.standard_normal(N)
    new = np.concatenate([X[:10], rng.standard_normal((10, 3))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IdentifiabilityWarning)
        whole = Regressor(r, **terms).fit(X, y)
        one = streamed(Regressor(r, **terms), X, y, np.ones(N), [5000])
    # Many forms fit as well, also of different ranks: the rows determine as much of each.
    assert min(whole.kernel_dimension_, one.kernel_dimension_) > 0
    seen = [dimension(3, model.rank_) - model.kernel_dimension_ for model in (one, whole)]
    assert seen[0] == seen[1]
    expected = whole.predict(new, return_std=True)[1]
    assert np.isfinite(expected).tolist() == [True] * 10 + [False] * 10
    np.testing.assert_allclose(one.predict(new, return_std=True)[1], expected, rtol=1e-6)


def test_the_fit_is_a_minimum_for_scipy():
    """The squared error of SciPy's minimum, from the answer, is not lower."""
    X, y, weights = problem({})
    model = streamed(Regressor(R), X, y, weights, [3000])
    units, root = np.abs(X).max(0), np.sqrt(weights)

    def errors(v):
        return root * ((((X / units) @ v.reshape(D, R)) ** 2).sum(1) - y)

    start = model.components_.T * units[:, None]
    best = least_squares(errors, start.ravel(), xtol=1e-15, ftol=1e-15, gtol=1e-15)
    ours = float((errors(start.ravel()) ** 2).sum())
    np.testing.assert_allclose(ours, 2 * best.cost, rtol=1e-12)
    expected = np.sqrt(ours / weights.sum() * 5940 / (5940 - (D * R - 1)))
    np.testing.assert_allclose(model.noise_std_, expected, rtol=1e-10)


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_exact_responses_are_recovered_and_the_rank_is_chosen(terms):
    X, y, weights = problem(terms, noise=0)
    model = streamed(Regressor(max_rank=3, **terms), X, y, weights, [1, 4000])
    assert (model.status_, model.rank_) == (Status.RECOVERED, R)
    assert model.residual_ < 1e-14
    np.testing.assert_allclose(model.predict(X), y, rtol=1e-10, atol=1e-10 * np.abs(y).max())
    assert list(model.rank_path_["rank"]) == ([0, 1, 2] if terms else [1, 2])


def test_few_rows_are_fitted_as_by_fit():
    X, y, weights = problem({}, n=100)
    whole = Regressor(R).fit(X, y, weights)
    model = streamed(Regressor(R), X, y, weights, [30, 70])
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))


@pytest.mark.parametrize("n", [200, N])
def test_a_saved_stream_goes_on(n, tmp_path):
    X, y, weights = problem({"linear": True}, n=n)
    half = n * 4 // 5
    model = Regressor(R, linear=True).partial_fit(X[:half], y[:half], weights[:half])
    model.save(tmp_path / "m")
    again = Regressor.load(tmp_path / "m")
    for each in (model, again):
        each.partial_fit(X[half:], y[half:], weights[half:])
    np.testing.assert_allclose(again.predict(X), model.predict(X), rtol=1e-12)
    again.save(tmp_path / "m")
    assert Regressor.load(tmp_path / "m").n_samples_ == n - 60
    whole = Regressor.load(tmp_path / "m").fit(X, y)
    assert whole._stream is None  # `fit` begins anew


@pytest.fixture
def threads():
    """Set the number of threads of torch in a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_moments_have_the_same_bits_on_any_number_of_threads(threads, monkeypatch):
    """Each thread takes whole chunks and runs torch on one: many small products wait for nobody."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((9000, 16))
    y = X[:, 0] ** 2 + 0.1 * rng.standard_normal(9000)
    seen, chunk = [], Moments.chunk

    def watched(*given):
        seen.append((threading.get_ident(), torch.get_num_threads()))
        return chunk(*given)

    monkeypatch.setattr(Moments, "chunk", watched)
    found = []
    for count in (1, 3):
        threads(count)
        seen.clear()
        found.append(Regressor(1).partial_fit(X, y))
        assert torch.get_num_threads() == count
        assert {here for _, here in seen} == {1}
        assert (len({thread for thread, _ in seen}) > 1) == (count > 1)
    np.testing.assert_array_equal(found[0].components_, found[1].components_)
    assert found[0].noise_std_ == found[1].noise_std_


@pytest.mark.parametrize("saved_after", [1, 2, 3], ids=["one part", "rows", "moments"])
def test_a_stream_is_saved_before_its_first_fit(saved_after, tmp_path):
    """The answer has the bits of the stream that was not disturbed, and its single precision."""
    X, y, weights = problem({})
    parts = [(slice(0, 700), np.float32), (slice(700, 3000), float), (slice(3000, 5500), float)]
    parts += [(slice(5500, N), float)]
    models = [Regressor(R), Regressor(R)]
    for k, (part, dtype) in enumerate(parts):
        if k == saved_after:
            models[1].save(tmp_path / "m")
            models[1] = Regressor.load(tmp_path / "m")
            with pytest.raises(NotFittedError):
                models[1].predict(X)
            with pytest.raises(TableError, match="expected a fitted model; got a stream that is"):
                load_model(tmp_path / "m.json")
        for model in models:
            w = None if k == 1 else weights[part]
            model.partial_fit(X[part].astype(dtype), y[part], w, refit=k == 3)
    expected, found = models
    assert (found._stream.moments is None) == (expected._stream.moments is None)
    assert found._stream.moments.narrow
    np.testing.assert_array_equal(found.components_, expected.components_)
    assert found.noise_std_ == expected.noise_std_


def test_a_column_that_is_a_combination_of_others(tmp_path):
    X, y, weights = problem({})
    X = np.column_stack([X, X[:, 0] / 0.01 - X[:, 1] / 0.1])
    model = Regressor(R)
    with pytest.warns(IdentifiabilityWarning):
        streamed(model, X, y, weights, [3000])
    assert model.status_ is Status.UNDETERMINED
    with pytest.warns(IdentifiabilityWarning):
        whole = Regressor(R).fit(X, y, weights)
    np.testing.assert_allclose(model.predict(X[:50]), whole.predict(X[:50]), rtol=1e-8, atol=1e-8)
    away = X[:3] + np.array([0, 0, 0, 0, 0, 1.0])  # outside the span of the samples
    assert np.isinf(model.predict(away, return_std=True)[1]).all()


def test_inputs_of_zero_determine_nothing():
    X, y, _ = problem({})
    for responses in (y, 0 * y):
        for rank in (1, R, None):
            with pytest.warns(IdentifiabilityWarning):
                model = Regressor(rank).partial_fit(0 * X, responses)
            assert (model.status_, model.rank_) == (Status.UNDETERMINED, 0)


def test_inputs_whose_fourth_powers_overflow():
    X, y, _ = problem({})
    model, large = Regressor(R).partial_fit(X, y), Regressor(R).partial_fit(1e160 * X, y)
    assert large.status_ is model.status_
    np.testing.assert_allclose(large.predict(1e160 * X), model.predict(X), rtol=1e-9, atol=1e-9)
    assert (large.effective_spectrum_ > 1e300).all()


def test_a_source_is_fitted_and_predicted(tmp_path):
    X, y, weights = problem({})
    np.save(tmp_path / "x.npy", X)
    source = rows.from_npy(tmp_path / "x.npy")
    model = Regressor(R).fit(source, y, weights, feature_names=list("abcde"))
    whole = Regressor(R).fit(X, y, weights)
    assert list(model.feature_names_in_) == list("abcde")
    assert source.passes <= 2  # the block of the first rows, which is all, and then one pass
    with pytest.raises(DomainError, match="X: expected 5 columns, as in the fit; got 2"):
        model.predict(rows.in_memory(X[:, :2]))
    found = model.predict(source, return_std=True)
    for one, other in zip(found, whole.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    small = rows.in_memory(X[:300])
    few = Regressor(R).fit(small, y[:300])
    np.testing.assert_array_equal(few.predict(X), Regressor(R).fit(X[:300], y[:300]).predict(X))
    np.testing.assert_array_equal(few.predict(small), few.predict(X[:300]))


def test_refusals(tmp_path):
    X, y, weights = problem({})
    model = Regressor(R).partial_fit(X[:100], y[:100])
    model.set_params(linear=True)
    with pytest.raises(DomainError, match="expected the terms of the first call of partial_fit"):
        model.partial_fit(X, y)
    with pytest.raises(DomainError, match="sample_weight: expected a positive weight before"):
        Regressor(R).partial_fit(X[:100], y[:100], np.zeros(100))
    with pytest.raises(DomainError, match=r"X: expected an array, .* fit takes a source of rows"):
        Regressor(R).partial_fit(rows.in_memory(X), y)
    with pytest.raises(DomainError, match="max_starts: expected an integer >= 1; got 0"):
        Regressor(R, max_starts=0).partial_fit(X, y)
    for factor in (1e200, 1e-200):  # squares of such responses overflow, or vanish
        with pytest.raises(DomainError, match="y: expected a largest size between 1e-100 and"):
            Regressor(R).partial_fit(X, factor * y)
    with pytest.raises(ValueError, match="4 features"):
        Regressor(R).partial_fit(X, y).partial_fit(X[:, :4], y)
    with pytest.raises(DomainError, match="criterion: expected 'bic' for many rows"):
        Regressor(criterion="cv").partial_fit(X, y)
    with pytest.raises(DomainError, match="criterion: expected 'bic' for many rows"):
        Regressor(criterion="cv").fit(rows.in_memory(X), y)
    broken = X.copy()
    broken[5555, 2] = np.inf
    np.save(tmp_path / "x.npy", broken)
    with pytest.raises(NonFiniteError, match=r"an infinity in row 5555 of .*x.npy, column 2"):
        Regressor(R).fit(rows.from_npy(tmp_path / "x.npy"), y)
    with pytest.raises(DomainError, match="nonnegative weights, not all zero"):
        Regressor(R).fit(rows.in_memory(X), y, weights - 1)


def test_more_columns_are_fitted_by_passes(monkeypatch):
    """A limit of 4 columns stands for that of 100."""
    X, y, weights = problem({})
    monkeypatch.setattr(_streaming, "MOMENT_MOST", 4)
    monkeypatch.setattr(_stream, "MOMENT_MOST", 4)
    monkeypatch.setattr(entry, "MOMENT_MOST", 4)
    monkeypatch.setattr(entry, "MEMORY_ENTRIES", 1000 * D)
    source = rows.in_memory(X)
    model = Regressor(R).fit(source, y, weights)
    whole = Regressor(R).fit(X, y, weights)
    np.testing.assert_allclose(model.predict(X), whole.predict(X), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(model.noise_std_, whole.noise_std_, rtol=1e-8)
    assert (model.n_samples_, model.status_) == (whole.n_samples_, whole.status_)
    assert model.uncertainty_ is None
    with pytest.raises(DomainError, match="linear: expected at most 4 columns of a source"):
        Regressor(R, linear=True).fit(source, y)
    with pytest.raises(DomainError, match="standard_errors: expected at most 4 columns"):
        Regressor(R, standard_errors=True).fit(source, y)
    with pytest.raises(DomainError, match="X: expected at most 4096 rows in all, or at most 4"):
        Regressor(R).partial_fit(X, y)
