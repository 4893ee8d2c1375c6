"""How well a fitted model predicts samples that it has not seen, beside linear regression."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold
from sklearn.utils.validation import check_is_fitted

from posquad.core.arrays import positive_integer
from posquad.core.progress import Progress
from posquad.estimator.regressor import PositiveQuadraticRegressor
from posquad.geometry import dimension

__all__ = ["Validation", "cross_validated"]

_FEWEST = 10  # samples below which leaving some out says nothing
_POOR = 0.9  # cross-validated R2 below which linear terms are tried


@dataclass(frozen=True)
class Validation:
    """Cross-validated coefficients of determination, over the predictions of all folds."""

    folds: int
    model: float  # R2 of the model at its rank
    linear_regression: float  # R2 of linear regression
    with_linear: float | None = None  # R2 of the model with linear terms, if tried
    rank_with_linear: int | None = None  # its rank, given or chosen as that of the model


def cross_validated(
    model: PositiveQuadraticRegressor,
    X: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    folds: int = 5,
    progress: Callable[[Progress], None] | None = None,
) -> Validation | None:
    """Return the cross-validated R2 of a fitted model and of linear regression.

    Samples are divided at random, but in the same way at every call. The rank is that of the fitted
    model, so that its choice is not validated. If the model has no linear terms and R2 is below
    0.9, the model with linear terms is validated as well. None is returned if there are too few
    samples, or if the responses are constant.

    Args:
        model: a fitted regressor.
        X, y, weights: the samples `[n, d]`, `[n]` and `[n]` it was fitted to.
        folds: number of parts, each left out once.
        progress: called with a `Progress` at every step of every search.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((100, 3))
    >>> y = (X[:, 0] + 1) ** 2 - 3 * X[:, 1]
    >>> model = PositiveQuadraticRegressor(rank=1).fit(X, y)
    >>> found = cross_validated(model, X, y)
    >>> found.model < found.linear_regression < found.with_linear, found.rank_with_linear
    (True, 1)
    """
    check_is_fitted(model, "components_")
    positive_integer("folds", folds)
    X, y = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
    w = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=np.float64)
    kept = w > 0
    X, y, w = X[kept], y[kept], w[kept]
    if len(y) < _FEWEST or y.min() == y.max():
        return None
    folds = max(2, min(folds, len(y)))
    parts = list(KFold(folds, shuffle=True, random_state=0).split(X))
    total = float(w @ (y - np.average(y, weights=w)) ** 2)

    def score(one: Any) -> float:
        predicted = np.empty(len(y))
        watched = isinstance(one, PositiveQuadraticRegressor)
        options = {"progress": progress} if watched else {}
        for train, test in parts:
            copy: Any = clone(one)
            fitted = copy.fit(X[train], y[train], sample_weight=w[train], **options)
            predicted[test] = fitted.predict(X[test])
        return 1 - float(w @ (predicted - y) ** 2) / total

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fold; those of the whole were issued by `fit`
        own = score(_at_rank(model, model.rank_))
        line = score(LinearRegression())
        d = X.shape[1]
        enough = len(y) * (1 - 1 / folds) > 2 * (dimension(d, model.rank or 1) + d + 1)
        if model.linear or model.loss == "poisson" or own >= _POOR or not enough:
            return Validation(folds, own, line)
        better: Any = clone(model)
        better.set_params(linear=True, standard_errors=False)
        rank = better.fit(X, y, sample_weight=w, progress=progress).rank_
        with_linear = score(_at_rank(better, rank))
    return Validation(folds, own, line, with_linear, rank)


def _at_rank(model: PositiveQuadraticRegressor, rank: int) -> Any:
    """Return an estimator of the same terms at this rank; at rank 0, of the other terms alone."""
    if rank:
        copy: Any = clone(model)
        return copy.set_params(rank=rank, standard_errors=False, certify=False)
    if model.linear:
        return LinearRegression()
    return (
        DummyRegressor() if model.fit_intercept else DummyRegressor(strategy="constant", constant=0)
    )
