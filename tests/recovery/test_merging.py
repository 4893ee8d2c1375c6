"""Equal inputs are merged for speed: loss, criterion, words and proofs are those of all samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from posquad import RankOne, Status, recover
from posquad.certificates import proves_infeasible
from posquad.estimator import PositiveQuadraticRegressor
from posquad.geometry import dimension
from posquad.recovery import merging
from posquad.recovery.merging import merge_equal_rows, row_hashes


def repeated(noise, seed=0, rows=30, times=10, d=4):
    """Every input several times, in random order, with responses of their own."""
    rng = np.random.default_rng(seed)
    X = np.repeat(rng.normal(size=(rows, d)), times, axis=0)[rng.permutation(rows * times)]
    y = np.square(X @ rng.normal(size=(d, 2))).sum(1)
    return X, y + noise * y.std() * rng.normal(size=len(y))


def relative(X, y, U):
    return np.linalg.norm(np.square(X @ U).sum(1) - y) / np.linalg.norm(y)


def test_means_and_what_they_leave_out():
    X = torch.tensor([[1.0, 0.0], [2.0, 1.0], [1.0, 0.0], [-0.0, 0.0], [2.0, 1.0]]).double()
    y = torch.tensor([1.0, 5.0, 3.0, 7.0, 5.0]).double()
    w = torch.tensor([1.0, 2.0, 3.0, 1.0, 0.0]).double()
    told = merge_equal_rows(X, y, w)
    order = [[1.0, 0.0], [2.0, 1.0], [0.0, 0.0]]
    place = [told.X.tolist().index(row) for row in order]
    assert told.y[place].tolist() == [2.5, 5.0, 7.0]
    assert told.weights[place].tolist() == [4.0, 2.0, 1.0]
    assert told.within == pytest.approx((1.5**2 + 3 * 0.5**2) / (4 * 2.5**2 + 2 * 25 + 49))
    assert told.samples == 3  # one has no weight, and one is zero
    assert torch.equal(told.X[torch.from_numpy(told.group)], X)
    assert merge_equal_rows(X[:2], y[:2], None) is None


def test_zero_has_one_sign_and_rows_of_one_hash_are_compared():
    X = np.array([[0.0, 1.0], [-0.0, 1.0]])
    assert len(set(row_hashes(X))) == 1


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_answer_is_that_of_all_samples(noise, monkeypatch):
    X, y = repeated(noise)
    found = recover(X, y)
    assert float(found.residual) == pytest.approx(relative(X, y, found.U), rel=1e-9, abs=1e-14)
    assert (found.rows, int(found.samples)) == (300, 10)
    monkeypatch.setattr("posquad.recovery.pipeline.merge_equal_rows", lambda *given: None)
    whole = recover(X, y)
    assert found.status is whole.status
    assert int(found.rank) == int(whole.rank) == 2
    np.testing.assert_allclose(found.Q.dense(), whole.Q.dense(), rtol=0, atol=1e-6)
    if noise:
        np.testing.assert_allclose(found.rank_path.score, whole.rank_path.score, rtol=1e-6)
        assert float(found.rank_confidence) == pytest.approx(float(whole.rank_confidence), rel=1e-6)
        assert float(found.error_estimate) == pytest.approx(float(whole.error_estimate), rel=1e-3)


def test_the_criterion_counts_all_samples():
    X, y = repeated(0.1)
    path = recover(X, y).rank_path
    for rank, residual, score in zip(path.rank, path.residual, path.score, strict=True):
        by_hand = 300 * math.log(residual**2) + dimension(4, int(rank)) * math.log(300)
        assert float(score) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rank", [1, 3])
def test_responses_that_contradict_each_other_prove_a_bound(rank, weighted):
    """Five inputs of three columns: rank 3 passes through the means, and cannot do better."""
    rng = np.random.default_rng(1)
    X = np.repeat(rng.normal(size=(5, 3)), 4, axis=0)
    y = np.abs(rng.normal(size=20)) + 0.5
    w = rng.uniform(1, 2, 20) if weighted else None
    found = recover(X, y, rank, weights=w)
    assert found.status is (Status.BEST_FIT if rank == 3 else found.status)
    assert found.residual_bound <= found.residual
    if rank == 3:
        assert float(found.residual_bound) == pytest.approx(float(found.residual), rel=1e-9)
    if float(found.residual_bound) > 0:
        assert proves_infeasible(RankOne(X), y, found.farkas)
        # The bound of the vector, by its definition.
        root = np.ones(20) if w is None else np.sqrt(w)
        bound = -(found.farkas @ y) / np.linalg.norm(found.farkas / root)
        told = float(found.residual_bound) * np.linalg.norm(root * y)
        assert bound == pytest.approx(told, rel=1e-6)


@pytest.mark.parametrize("terms", [{}, {"fit_intercept": True}, {"linear": True}])
def test_the_regressor_tells_one_residual(terms):
    """Fifty inputs, each twenty times: `residual_`, `rank_path_` and `history_` agree."""
    X, y = repeated(1.0, rows=50, times=20)
    model = PositiveQuadraticRegressor(standard_errors=False, **terms).fit(X, y)
    mean = y.mean() if terms else 0.0
    own = np.linalg.norm(y - model.predict(X)) / np.linalg.norm(y - mean)
    assert model.residual_ == pytest.approx(own, rel=1e-9)
    path = model.rank_path_
    at = path["residual"][list(path["rank"]).index(model.rank_)]
    assert at == pytest.approx(own, rel=1e-6)
    assert model.history_.min() == pytest.approx(own, rel=1e-6)
    assert model.n_samples_ == 1000


def test_ranks_of_the_regressor_are_those_of_recover():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        X = np.repeat(rng.normal(size=(30, 5)), rng.integers(2, 20), axis=0)
        y = np.square(X @ (rng.normal(size=(5, 3)) * [1, 0.5, 0.15])).sum(1)
        y += 0.3 * y.std() * rng.normal(size=len(y))
        model, found = PositiveQuadraticRegressor().fit(X, y), recover(X, y)
        assert model.rank_ == int(found.rank)
        assert model.residual_ == pytest.approx(float(found.residual), rel=1e-9)
        assert (np.diff(found.history_rank) >= 0).all()
        assert found.history_rank[-1] == found.rank
        assert found.history.min() == pytest.approx(float(found.residual), rel=1e-9)


def test_many_rows_show_by_some_of_them_whether_any_are_repeated(monkeypatch):
    """Above twice `_SHOWN` rows only some are looked at; rows that are all there twice are seen."""
    monkeypatch.setattr(merging, "_SHOWN", 200)
    X = torch.from_numpy(np.random.default_rng(0).standard_normal((500, 2)))
    assert merge_equal_rows(X, X[:, 0], None) is None
    twice = X.repeat(2, 1)
    found = merge_equal_rows(twice, twice[:, 0], None)
    assert found is not None
    assert len(found.X) == 500
    looked_at = []
    monkeypatch.setattr(merging, "row_hashes", lambda X: looked_at.append(len(X)) or row_hashes(X))
    assert merge_equal_rows(X, X[:, 0], None) is None
    assert looked_at == [len(set(np.random.default_rng(500).integers(0, 500, 200)))]
