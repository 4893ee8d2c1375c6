"""Sources and streams whose first rows do not represent the rest, against all rows in memory."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from posquad import recover
from posquad.core.status import Status
from posquad.estimator import PositiveQuadraticRegressor as Regressor
from posquad.problems import rows

N, D, R, FIRST = 10_000, 4, 2, 5000
NOISE = 0.5


def scaled(part, factor):
    def change(X):
        X[part] *= factor

    return change


def equal(X):
    X[:FIRST] = X[0]


CASES = {
    "column small": scaled((slice(FIRST), 2), 1e-5),
    "column zero": scaled((slice(FIRST), 2), 0.0),
    "column zero but for ten rows": scaled((slice(N - 10), 2), 0.0),
    "all small": scaled(slice(FIRST), 1e-6),
    "all zero": scaled(slice(FIRST), 0.0),
    "equal": equal,
    "last row large": scaled(-1, 1e6),
}
TERMS = [{}, {"linear": True}]


def problem(change, noise, terms):
    rng = np.random.default_rng(7)
    X = rng.standard_normal((N, D))
    change(X)
    U = rng.standard_normal((D, R))
    y = ((X @ U) ** 2).sum(1) + noise * rng.standard_normal(N)
    return X, y + (3 + 2 * X[:, 0] if terms else 0)


def streamed(X, y, terms):
    model = Regressor(R, standard_errors=False, **terms)
    for part in np.array_split(np.arange(N), 4):
        model.partial_fit(X[part], y[part], refit=part[-1] == N - 1)
    return model


def assert_right_or_refused(model, whole, X, y, terms):
    """The fit is that of all rows, and its residual is its own; or its status is STALLED."""
    if model.status_ is Status.STALLED:
        assert np.isnan(model.residual_)
        return
    size = np.linalg.norm(y - y.mean() if terms else y)
    own = np.linalg.norm(model.predict(X) - y) / size
    np.testing.assert_allclose(model.residual_, own, rtol=1e-6, atol=1e-13)
    if model.status_ is Status.NOT_IDENTIFIED:  # a large row hides the others, by its tolerance
        assert np.abs(X).max() > 1e5
        return
    assert model.status_ is whole.status_
    found, expected = (m.components_.T @ m.components_ for m in (model, whole))
    digits = 1e-3 if np.abs(X).max() > 1e5 else 1e-9  # a large row hides the others from both
    np.testing.assert_allclose(found, expected, atol=digits)


@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("noise", [0.0, NOISE])
@pytest.mark.parametrize("name", CASES)
def test_first_rows_need_not_represent_the_rest(name, noise, terms):
    X, y = problem(CASES[name], noise, terms)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = Regressor(R, standard_errors=False, **terms).fit(X, y)
        read = Regressor(R, standard_errors=False, **terms).fit(rows.in_memory(X), y)
        given = streamed(X, y, terms)
    assert read.status_ is not Status.STALLED  # rows that can be read again are not refused
    assert_right_or_refused(read, whole, X, y, terms)
    assert_right_or_refused(given, whole, X, y, terms)


@pytest.mark.parametrize("noise", [0.0, NOISE])
def test_a_row_that_hides_all_others_from_linear_terms(noise):
    """Its square and its linear term agree to 1e-18, so that the loss cancels in the moments."""
    X, y = problem(scaled(-1, 1e9), noise, True)
    ways = {
        "read": lambda: Regressor(R, linear=True).fit(rows.in_memory(X), y),
        "streamed": lambda: streamed(X, y, {"linear": True}),
    }
    for way, fit in ways.items():
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            model = fit()
        own = np.linalg.norm(model.predict(X) - y) / np.linalg.norm(y - y.mean())
        if noise:
            assert model.status_ is Status.STALLED
            assert any("a few rows are very much larger" in str(each.message) for each in told)
        if noise and way == "streamed":
            assert np.isnan([model.residual_, model.noise_std_]).all()
        else:  # a source is read once more
            np.testing.assert_allclose(model.residual_, own, rtol=1e-6, atol=1e-14)


def test_recover_reads_unlike_rows_again_and_others_once():
    X, y = problem(CASES["column small"], NOISE, {})
    source = rows.in_memory(X)
    found, expected = recover(source, y, R), recover(X, y, R)
    np.testing.assert_allclose(found.Q.dense(), expected.Q.dense(), atol=1e-9)
    np.testing.assert_allclose(found.residual, expected.residual, rtol=1e-9)
    assert 2 < source.passes <= 5  # the first rows of a small source are a pass too
    X, y = problem(scaled(0, 1.0), NOISE, {})
    source = rows.in_memory(X)
    recover(source, y, R)
    assert source.passes == 2


def test_lost_digits_are_said_and_survive_a_file(tmp_path):
    X, y = problem(CASES["equal"], 0.0, {})
    model = Regressor(R)
    for part in np.array_split(np.arange(N), 4)[:3]:
        model.partial_fit(X[part], y[part], refit=False)
    lost = "first rows do not represent the rest"
    with pytest.warns(ConvergenceWarning), pytest.warns(UserWarning, match=lost):
        model.partial_fit(X[7500:], y[7500:])
    assert model.status_ is Status.STALLED
    assert np.isnan([model.residual_, model.noise_std_]).all()
    model.save(tmp_path / "fit")
    with pytest.warns(ConvergenceWarning), pytest.warns(UserWarning, match=lost):
        again = Regressor.load(tmp_path / "fit").partial_fit(X[:3], y[:3])
    assert again.status_ is Status.STALLED
