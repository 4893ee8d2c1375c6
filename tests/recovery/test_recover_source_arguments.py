"""Arguments of `recover` and `fit` for sources of rows: taken, passed on, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad import recover
from posquad.core.errors import DomainError, NonFiniteError
from posquad.estimator import PositiveQuadraticRegressor as Regressor
from posquad.problems import rows

RNG = np.random.default_rng(3)
X = RNG.standard_normal((5000, 3))
U = RNG.standard_normal((3, 1))
Y = (X @ U)[:, 0] ** 2 + 0.1 * RNG.standard_normal(len(X))
WEIGHTS = RNG.random(len(X))


class Halves:
    """A table in two pieces, with responses and weights."""

    def __init__(self, n):
        self.n, self.k = n, 0

    def reset(self):
        self.k = 0

    def next(self, input_data):
        self.k += 1
        part = slice(0, self.n // 2) if self.k == 1 else slice(self.n // 2, self.n)
        if self.k <= 2:
            input_data(data=X[part], label=Y[part], weight=WEIGHTS[part])
        return self.k <= 2


@pytest.mark.parametrize("n", [200, 5000])
def test_responses_and_weights_are_those_of_the_source(n):
    source = rows.from_iterator(Halves(n))
    expected = recover(X[:n], Y[:n], 1, weights=WEIGHTS[:n]).Q.dense()
    converted = recover(source.to(torch.float32), None, 1).Q.dense()
    np.testing.assert_allclose(converted, expected, rtol=1e-5)
    for y in (None, source.y):
        np.testing.assert_allclose(recover(source, y, 1).Q.dense(), expected, rtol=1e-8)
    model = Regressor(1).fit(source)
    np.testing.assert_allclose(model.components_.T @ model.components_, expected, rtol=1e-8)
    other = recover(source, None, 1, weights=np.ones(n)).Q.dense()
    np.testing.assert_allclose(other, recover(X[:n], Y[:n], 1).Q.dense(), rtol=1e-8)


@pytest.mark.parametrize("n", [200, 5000])
def test_a_source_without_responses_needs_them(n):
    source = rows.in_memory(X[:n])
    for call in (lambda: recover(source, None, 1), lambda: Regressor(1).fit(source)):
        with pytest.raises(DomainError, match="y: expected responses, because this source"):
            call()


@pytest.mark.parametrize("n", [200, 5000])
def test_small_and_large_sources_have_the_same_checks(n, tmp_path):
    with pytest.raises(DomainError, match="a source of rows has no batch"):
        recover(rows.in_memory(X[:n]), np.stack([Y[:n], Y[:n]]), 1)
    bad = X[:n].copy()
    bad[7, 1] = np.nan
    np.save(tmp_path / "bad.npy", bad)
    with pytest.raises(NonFiniteError, match=r"NaN in row 7 of .*bad\.npy, column 1"):
        recover(rows.from_npy(tmp_path / "bad.npy"), Y[:n], 1)


def test_diagnose_is_passed_on_or_refused():
    few = recover(rows.in_memory(X[:200]), Y[:200], 1, diagnose=False)
    assert np.isnan(few.curvature).all()
    with pytest.raises(DomainError, match="diagnose: expected True for a source"):
        recover(rows.in_memory(X), Y, 1, diagnose=False)


@pytest.mark.parametrize("columns", [0, "ab", [], [1.5], ["a"], [3], [-1], [True]])
def test_columns_that_are_none_are_refused(columns, tmp_path):
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(DomainError, match="columns: expected columns from 0 to 2, at least one"):
        rows.from_npy(tmp_path / "x.npy", columns)


def test_columns_may_be_an_array_and_what_is_no_source_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", X)
    chosen = rows.from_npy(tmp_path / "x.npy", np.array([2, 0])).read_all().numpy()
    np.testing.assert_array_equal(chosen, X[:, [2, 0]])
    for paths in (None, [None]):
        with pytest.raises(DomainError, match="paths: expected"):
            rows.from_npy(paths)
    with pytest.raises(DomainError, match="pieces: expected an object with the methods next"):
        rows.from_iterator(5)


@pytest.mark.parametrize("refused", [{"criterion": "cv"}, {"max_steps": 0}], ids=str)
def test_a_refused_partial_fit_adds_no_samples(refused):
    model = Regressor(**refused)
    with pytest.raises(DomainError):
        model.partial_fit(X, Y)
    model.set_params(criterion="bic", max_steps=1000)
    assert model.partial_fit(X, Y).n_samples_ == len(X)
