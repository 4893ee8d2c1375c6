"""`recover`, flows and spectra on a source of rows, against the same rows in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad import (
    LeastSquares,
    RankOne,
    Status,
    effective_spectrum,
    gradient_descent,
    gradient_flow,
    recover,
    spectral_initializer,
)
from posquad.core.errors import DomainError, NonFiniteError, ShapeError
from posquad.problems import rows
from posquad.recovery.streams import curvature, entry
from posquad.recovery.streams.passes import sweep_line


def samples(n, d, r, noise, seed=0):
    rng = np.random.default_rng(seed)
    scale = np.linspace(0.5, 2, d)
    X, U = rng.standard_normal((n, d)) * scale, rng.standard_normal((d, r)) / scale[:, None]
    y = ((X @ U) ** 2).sum(1)
    return X, U, y + noise * y.std() * rng.standard_normal(n)


@pytest.fixture
def stored(tmp_path):
    def keep(X):
        np.save(tmp_path / "x.npy", X)
        return rows.from_npy(tmp_path / "x.npy")

    return keep


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("rank", [2, None])
def test_moments_give_the_answer_in_memory(stored, noise, rank):
    X, U, y = samples(5000, 6, 2, noise)
    weights = np.random.default_rng(1).random(5000)
    source = stored(X)
    found, whole = (recover(x, y, rank, weights=weights) for x in (source, X))
    assert (found.status, int(found.rank)) == (whole.status, 2)
    np.testing.assert_allclose(found.Q.dense(), whole.Q.dense(), atol=1e-11)
    np.testing.assert_allclose(found.residual, whole.residual, atol=1e-12)
    np.testing.assert_allclose(found.curvature, whole.curvature, rtol=0.1)  # other coordinates
    np.testing.assert_allclose(found.rank_confidence, whole.rank_confidence, rtol=1e-6)
    assert int(found.needed) == int(whole.needed)
    assert found.rows == 5000
    assert source.passes <= 2  # the block of the first rows, which is all, and then one pass
    if not noise:
        np.testing.assert_allclose(found.Q.dense(), U @ U.T, atol=1e-12)


def test_responses_that_no_form_explains(stored):
    X, _, y = samples(5000, 3, 1, 0.0)
    found = recover(stored(X), -y, 1)
    assert (found.status, int(found.rank)) == (Status.BEST_FIT, 0)
    assert float(found.residual) == 1


def test_single_precision_has_a_looser_level(stored):
    X, U, y = samples(5000, 4, 1, 0.0)
    found = recover(stored(X.astype(np.float32)), y, 1)
    assert found.status is Status.RECOVERED
    np.testing.assert_allclose(found.Q.dense(), U @ U.T, rtol=1e-5, atol=1e-5)


@pytest.fixture
def passing(monkeypatch):
    """Moments are not formed, and few rows fit into memory."""
    monkeypatch.setattr(entry, "MOMENT_MOST", 0)
    monkeypatch.setattr(entry, "MEMORY_ENTRIES", 900 * 12)


@pytest.mark.usefixtures("passing")
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_passes_give_the_answer_in_memory(stored, noise):
    X, _, y = samples(5000, 12, 2, noise)
    weights = np.random.default_rng(1).random(5000)
    source = stored(X)
    found, whole = (recover(x, y, 2, weights=weights) for x in (source, X))
    assert found.status is whole.status
    np.testing.assert_allclose(found.Q.dense(), whole.Q.dense(), atol=1e-6 if noise else 1e-11)
    np.testing.assert_allclose(found.residual, whole.residual, rtol=1e-12, atol=1e-12)
    assert source.passes < (20 if noise else 3)
    tiny = recover(source, y, 2, weights=2.0**-60 * weights)  # weights are known up to a factor
    np.testing.assert_array_equal(tiny.Q.dense(), found.Q.dense())


@pytest.mark.usefixtures("passing")
def test_the_limit_of_steps_is_on_the_whole_call(stored):
    X, _, y = samples(5000, 12, 2, 0.1)
    first = recover(X[:900], y[:900], 2)  # the rows that fit into memory
    source = stored(X)
    found = recover(source, y, 2, max_steps=first.steps + 2)
    assert (found.status, found.steps) == (Status.INTERRUPTED, first.steps + 2)
    whole = recover(source, y, 2)
    assert whole.steps == first.steps + len(whole.history) - 1  # of the start, and of each pass


@pytest.mark.usefixtures("passing")
def test_a_row_beyond_those_in_memory_is_named(stored):
    X, _, y = samples(5000, 12, 2, 0.1)
    X[4321, 7] = np.nan
    with pytest.raises(NonFiniteError, match=r"NaN in row 4321 of .*x.npy, column 7"):
        recover(stored(X), y, 2)


def test_one_pass_gives_the_line_and_the_gradient_at_its_end(stored):
    """Against NumPy: the loss at several t, and its gradient by the formula at U + tD."""
    X, U, y = samples(50, 4, 2, 0.3)
    w = np.random.default_rng(2).random(50)
    D = np.random.default_rng(3).standard_normal((4, 2))
    source = stored(X)
    given = (torch.from_numpy(a) for a in (y, w, U, D))
    line = sweep_line(RankOne(source), *given)
    assert source.passes == 1

    def loss(t):
        return float(w @ (((X @ (U + t * D)) ** 2).sum(1) - y) ** 2)

    for t in (0.0, 0.5, -2.0):
        np.testing.assert_allclose(line.loss_at(t), loss(t), rtol=1e-12)
        e = ((X @ (U + t * D)) ** 2).sum(1) - y
        gradient = X.T @ ((w * e)[:, None] * (X @ (U + t * D)))
        np.testing.assert_allclose(line.gradient_at(t), gradient, rtol=1e-10, atol=1e-10)
    t = line.step()
    grid = np.linspace(0, 2, 2001)
    assert loss(t) <= min(map(loss, grid)) * (1 + 1e-12)


@pytest.mark.parametrize("rows_in_all", [40, 100])
def test_the_expected_curvature_of_all_rows(rows_in_all, monkeypatch):
    """Against the pseudo-inverse of the dense matrix `f H + (1 - f) P` by its formulas."""
    monkeypatch.setattr(curvature, "_ACCURACY", 1e-13)
    monkeypatch.setattr(curvature, "_STEPS", 200)
    rng = np.random.default_rng(0)
    X, V, w = rng.standard_normal((40, 4)), rng.standard_normal((4, 2)), rng.random(40)
    T = rng.standard_normal((4, 4)) + 3 * np.eye(4)
    f, slopes = 40 / rows_in_all, np.einsum("ni,nj->nij", X @ T, X @ T @ V).reshape(40, 8)
    H = 4 / 40 * slopes.T @ (w[:, None] * slopes)
    P = np.empty((8, 8))
    for k, D in enumerate(np.eye(8).reshape(8, 4, 2)):
        P[:, k] = 4 * (D @ V.T @ V + V @ D.T @ V + np.trace(V.T @ D) * V).ravel()
    turn = (V @ np.array([[0.0, 1.0], [-1.0, 0.0]])).ravel()
    g = rng.standard_normal(8)
    g -= turn * (turn @ g) / (turn @ turn)
    expected = np.linalg.pinv(f * H + (1 - f) * P, rcond=1e-12, hermitian=True) @ g
    factor, slope, metric = (torch.from_numpy(a) for a in (V, g.reshape(4, 2), T))
    known = curvature.Known(torch.from_numpy(X), torch.from_numpy(w), rows_in_all)
    found = curvature.expected_solve(factor, metric, known)(slope)
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-9, atol=1e-11)


def test_descent_flow_spectrum_and_initializer(stored):
    X, U, y = samples(300, 4, 2, 0.0)
    one, other = (LeastSquares(RankOne(x), y) for x in (stored(X), X))
    U0 = U + 0.1
    for run in (
        lambda objective: gradient_descent(objective, U0, step=1e-3, max_steps=5).U,
        lambda objective: gradient_flow(objective, U0, t_final=0.01).U,
        lambda objective: effective_spectrum(objective, U, which="smallest").values,
    ):
        np.testing.assert_allclose(run(one), run(other), rtol=1e-9, atol=1e-9)
    start = spectral_initializer(stored(X), y, 2)
    expected = spectral_initializer(X, y, 2)
    np.testing.assert_allclose(start @ start.T, expected @ expected.T, rtol=1e-10, atol=1e-10)


def test_refusals(stored):
    X, _, y = samples(5000, 3, 1, 0.1)
    source = stored(X)
    for name, value in {
        "certify": True,
        "start": np.ones((3, 1)),
        "precision": "input",
    }.items():
        with pytest.raises(DomainError, match=f"{name}: expected .* for a source"):
            recover(source, y, 1, **{name: value})
    with pytest.raises(ShapeError, match="one response per row"):
        recover(source, y[:-1], 1)
    with pytest.raises(DomainError, match="a source of rows has no batch"):
        recover(source, np.stack([y, y]), 1)
    with pytest.raises(DomainError, match="rank: expected at most d = 3"):
        recover(source, y, 4)
    with pytest.raises(DomainError, match="nonnegative weights, not all zero"):
        recover(source, y, 1, weights=0 * y)
    with pytest.raises(NonFiniteError, match="y"):
        recover(source, y * np.nan, 1)
