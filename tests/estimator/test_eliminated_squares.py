"""Squares that other terms replace, by rows in memory, from a source and from a stream: one word.

The problems are those by which a fresh reading broke the words of sums over samples.
"""

from __future__ import annotations

import numpy as np
import pytest

from posquad.core.status import Status
from posquad.estimator import PositiveQuadraticRegressor as Regressor
from posquad.problems import rows

pytestmark = [  # what a fit says beside its status
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::posquad.core.errors.IdentifiabilityWarning"),
    pytest.mark.filterwarnings("ignore:The search did not know the error:UserWarning"),
]

COPIES = 5000  # rows of which a source keeps fewer


def in_memory(model, X, y):
    return model.fit(X, y)


def from_source(model, X, y):
    return model.fit(rows.in_memory(_tiled(X)), _tiled(y))


def from_stream(model, X, y):
    return model.partial_fit(_tiled(X), _tiled(y))


def _tiled(values):
    return np.concatenate([values] * (COPIES // len(values) + 1))


WAYS = pytest.mark.parametrize("fit", [in_memory, from_source, from_stream])


@WAYS
@pytest.mark.parametrize("levels", [(-1.0, 1.0), (0.0, 1.0), (-0.3, 0.7), (2.0, 5.0)])
def test_the_square_of_a_two_valued_input_is_not_identified(levels, fit):
    """`x^2` is a linear function of x: t x^2 may stand for any t >= 0.

    Of a source, rounding of the sums may hide that the responses are reproduced (STALLED).
    """
    x = np.array(levels)[[0, 1, 1, 0, 1, 1, 0]]
    model = fit(Regressor(1, linear=True), x[:, None], 2 + 3 * x)
    hidden = fit is from_source and model.status_ is Status.STALLED
    assert hidden or model.status_ is Status.NOT_IDENTIFIED
    assert model.residual_ < 1e-12


@WAYS
def test_the_corners_of_a_simplex_are_not_identified(fit):
    X = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    model = fit(Regressor(1, linear=True), X, np.array([1.0, 2.0, 4.0]))
    assert model.status_ is Status.NOT_IDENTIFIED


@WAYS
def test_a_constant_beside_a_column_of_signs_is_not_identified(fit):
    """2 = t x_1^2 + (2 - t)."""
    said = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((20, 3))
        X[:, 0] = rng.choice([-1.0, 1.0], 20)
        said.append(fit(Regressor(3, fit_intercept=True), X, np.full(20, 2.0)).status_)
    assert said == [Status.NOT_IDENTIFIED] * 5


@WAYS
@pytest.mark.parametrize("options", [{"fit_intercept": True}, {"linear": True}])
def test_rows_that_other_terms_explain_entirely(options, fit):
    """No measurement is left."""
    X = np.array([[0.0], [1.0]]) if "linear" in options else np.full((2, 1), 0.3)
    y = 1 + 2 * X[:, 0]
    model = fit(Regressor(1, **options), X, y)
    assert model.status_ is Status.NOT_IDENTIFIED
    np.testing.assert_allclose(model.predict(X), y, rtol=1e-12)


@WAYS
@pytest.mark.parametrize("rank", [1, 2])
def test_equal_inputs_with_different_responses_have_a_minimum(rank, fit):
    """One-hot rows: the best function has the means of the groups, and none is better."""
    X = np.eye(2)[[0, 1, 0, 1, 0, 1]]
    y = np.array([1.0, 3.1, 1.4, 3.1, 1.0, 3.0])
    model = fit(Regressor(rank, fit_intercept=True), X, y)
    assert model.status_ in (Status.BEST_FIT, Status.STALLED)
    np.testing.assert_allclose(model.predict(np.eye(2)), [y[::2].mean(), y[1::2].mean()], rtol=1e-7)


def test_weights_that_leave_one_row():
    X = np.array([[2.0, -1.0, 0.0, -1.0, -2.0], [-2.0, 0.0, -1.0, -2.0, 0.0]])
    weights = np.tile([1.266971, 0.0], 2500)
    model = Regressor(1, linear=True)
    model.fit(rows.in_memory(np.tile(X, (2500, 1))), np.tile([1.0, 3.0], 2500), weights)
    assert model.status_ in (Status.UNDETERMINED, Status.NOT_IDENTIFIED)
