"""Cross-validated scores: against scikit-learn's own, and what is not validated."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold, cross_val_predict

from posquad.estimator import PositiveQuadraticRegressor
from posquad.estimator.validation import cross_validated


@pytest.mark.parametrize("weighted", [False, True])
def test_cross_validated_scores_by_hand(weighted):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((200, 4))
    y = (X @ [1.0, 1.0, 0.0, -1.0]) ** 2 + X @ [3.0, -2.0, 1.0, 0.0] + rng.standard_normal(200)
    w = np.random.default_rng(0).uniform(0.5, 2, 200) if weighted else None
    model = PositiveQuadraticRegressor(1).fit(X, y, w)
    found = cross_validated(model, X, y, w)
    folds = KFold(5, shuffle=True, random_state=0)
    mass = np.ones(200) if w is None else w
    total = mass @ (y - np.average(y, weights=mass)) ** 2
    for one, score in [
        (LinearRegression(), found.linear_regression),
        (PositiveQuadraticRegressor(1), found.model),
        (PositiveQuadraticRegressor(found.rank_with_linear, linear=True), found.with_linear),
    ]:
        told = cross_val_predict(one, X, y, cv=folds, params={"sample_weight": w})
        assert score == pytest.approx(1 - mass @ (told - y) ** 2 / total, rel=1e-9)


@pytest.mark.parametrize("terms", ["none", "constant", "linear"])
def test_rank_zero_is_validated_as_what_it_is(terms):
    """A negative form: the best positive one is zero, though parts of the samples may differ."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((80, 2)) + 5 * (terms == "linear")
    y = X @ [1.0, 2.0] + 20 + rng.standard_normal(80) if terms == "linear" else -(X[:, 0] ** 2)
    options = {"linear": terms == "linear", "fit_intercept": terms == "constant"}
    model = PositiveQuadraticRegressor(**options).fit(X, y)
    assert model.rank_ == 0
    left = y.copy()
    for train, test in KFold(5, shuffle=True, random_state=0).split(X):
        if terms == "linear":
            left[test] -= LinearRegression().fit(X[train], y[train]).predict(X[test])
        elif terms == "constant":
            left[test] -= y[train].mean()
    expected = 1 - (left**2).sum() / ((y - y.mean()) ** 2).sum()
    assert cross_validated(model, X, y).model == pytest.approx(expected, rel=1e-9)


def test_too_few_samples_and_constant_responses_are_not_validated():
    X = np.random.default_rng(0).standard_normal((30, 2))
    model = PositiveQuadraticRegressor(1).fit(X, X[:, 0] ** 2)
    assert cross_validated(model, X[:9], X[:9, 0] ** 2) is None
    assert cross_validated(model, X, np.ones(30)) is None
    with pytest.raises(ValueError, match="folds"):
        cross_validated(model, X, X[:, 0], folds=0)


def test_linear_terms_are_validated_at_a_given_rank_or_the_one_they_choose():
    rng = np.random.default_rng(8)
    X = rng.standard_normal((120, 3))
    y = (X**2) @ [3.0, 2.0, 0.0] + 4 * X[:, 2] + 0.1 * rng.standard_normal(120)
    given = PositiveQuadraticRegressor(1).fit(X, y)
    chosen = PositiveQuadraticRegressor(max_rank=1).fit(X, y).set_params(max_rank=None)
    assert cross_validated(given, X, y).rank_with_linear == 1
    assert cross_validated(chosen, X, y).rank_with_linear == 2
