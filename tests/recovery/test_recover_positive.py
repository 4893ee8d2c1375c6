"""`recover` at full rank, a convex problem: against least squares, Clarabel and optimality.

`Q >= 0` has the least residual of all positive semidefinite matrices if and only if `G = sum_i w_i
e_i x_i x_i'`, with `e_i = x_i'Q x_i - y_i`, is positive semidefinite and `<G, Q> = 0`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from positive_support import clarabel_fit, symmetric, system
from posquad import RankOne, Status, recover
from posquad.certificates import proves_infeasible

N, D = 64, 3


def tensors(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy responses of cigar-shaped matrices to unit inputs; the fit of many is indefinite."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, D))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    axes = rng.standard_normal((count, D))
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    y = (axes @ X.T) ** 2 + 0.05
    return X, y + 0.3 * rng.standard_normal(y.shape)


def least_squares(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    A, i, j = system(X)
    return symmetric(np.linalg.lstsq(A, y.T, rcond=None)[0].T, i, j)


def residual(X: np.ndarray, y: np.ndarray, Q: np.ndarray) -> np.ndarray:
    return np.einsum("ni,...ij,nj->...n", X, Q, X) - y


def test_positive_least_squares_is_the_answer_to_rounding():
    X, y = tensors(0, 200)
    Q = least_squares(X, y)
    positive = np.linalg.eigvalsh(Q)[:, 0] > 1e-6
    assert 20 < positive.sum() < 180
    found = recover(X, y, rank=D)
    error = np.linalg.norm((found.Q.dense() - Q)[positive], axis=(1, 2))
    scale = np.linalg.norm(y[positive], axis=1) / math.sqrt(N)
    assert float((error / (scale * N * np.finfo(float).eps)).max()) < 60
    assert set(found.starts[positive].tolist()) == {1}  # nothing is left to search for
    assert {found.status[k] for k in np.flatnonzero(positive)} == {Status.BEST_FIT}


def test_indefinite_least_squares_gives_the_constrained_optimum():
    X, y = tensors(1, 40)
    indefinite = np.flatnonzero(np.linalg.eigvalsh(least_squares(X, y))[:, 0] < 0)
    assert len(indefinite) > 10
    found = recover(X, y, rank=D)
    for k in indefinite:
        Q, reference = found.Q.dense()[k], clarabel_fit(X, y[k])
        assert found.status[k] is Status.BEST_FIT
        assert int(found.rank[k]) < D  # on the boundary of the cone
        assert np.linalg.norm(Q - reference) < 1e-5 * np.linalg.norm(reference)
        ours, theirs = (np.linalg.norm(residual(X, y[k], M)) for M in (Q, reference))
        assert ours <= theirs * (1 + 1e-9)


@pytest.mark.parametrize(("n", "d"), [(3, 1), (3, 2), (5, 2), (7, 3), (64, 3), (12, 4), (100, 6)])
@pytest.mark.parametrize("weighted", [False, True])
def test_noise_alone_is_solved_to_optimality(n, d, weighted):
    """Far from any signal, where the optimum has any rank from 0 to d."""
    for shift in (-0.5, 0.0, 0.5):
        rng = np.random.default_rng(n + d)
        X = rng.standard_normal((20, n, d))
        y = rng.standard_normal((20, n)) + shift * (X**2).sum(-1) / d
        w = rng.uniform(0.2, 1.0, y.shape) if weighted else np.ones_like(y)
        found = recover(X, y, rank=d, weights=w if weighted else None)
        fitted = found.residual > 1e-10  # n = d(d+1)/2 positive ones are reproduced
        assert {found.status[k] for k in np.flatnonzero(fitted)} == {Status.BEST_FIT}
        Q = found.Q.dense()
        e = w * (np.einsum("kni,kij,knj->kn", X, Q, X) - y)
        G = np.einsum("kn,kni,knj->kij", e, X, X)
        size = np.einsum("kn,kn->k", abs(w * y), (X**2).sum(-1))
        assert (np.linalg.eigvalsh(G)[:, 0] / size).min() > -1e-9
        scale = size * np.maximum(np.trace(Q, axis1=1, axis2=2), 1e-300)
        assert (abs(np.einsum("kij,kij->k", G, Q)) / scale).max() < 1e-9


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_an_optimum_near_zero_is_not_taken_for_zero(seed, batch):
    """`X' diag(y) X` has one positive eigenvalue, tiny: Q = 0 is a saddle, and close."""
    rng = np.random.default_rng(seed)
    X, y = tensors(seed, 1)[0], rng.standard_normal(N)
    moment = X.T @ (y[:, None] * X)
    spread = np.linalg.eigvals(np.linalg.solve(X.T @ X, moment)).real
    y = y - spread.max() + 1e-3
    found = recover(X, y[None], rank=D) if batch else recover(X, y, rank=D)
    Q = found.Q.dense().reshape(D, D)
    # Along the eigenvector v of the moment, t vv' with t = <a, y> / ||a||^2, a_i = (x_i'v)^2.
    _, vectors = np.linalg.eigh(X.T @ (y[:, None] * X))
    a = (X @ vectors[:, -1]) ** 2
    assert np.trace(Q) == pytest.approx(a @ y / (a @ a), rel=0.05)
    G = X.T @ (residual(X, y, Q)[:, None] * X)
    assert np.linalg.eigvalsh(G)[0] > -1e-9 * np.linalg.norm(G)  # at Q = 0: -1e-3


def test_a_negative_moment_gives_zero():
    X, y = tensors(5, 1)
    found = recover(X, -abs(y[0]), rank=D)
    assert found.status is Status.BEST_FIT
    assert int(found.rank) == 0
    assert float(found.residual) == 1.0


def test_the_optimum_comes_with_its_proof():
    """Below d(d+1)/2 samples: an infeasible system, and the vector that proves it."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((100, 14)), np.ones(100)
    found = recover(X, y, rank=14)
    assert found.status is Status.BEST_FIT
    assert found.residual == pytest.approx(found.residual_bound, rel=1e-9)
    assert proves_infeasible(RankOne(X), y, found.farkas)
    weights = rng.uniform(1, 2, 100)
    weighted = recover(X, y, rank=14, weights=weights)
    assert proves_infeasible(RankOne(X), y, weighted.farkas)
    # An interpolant has no such bound, and a lower rank none at all.
    assert recover(X[:40], y[:40], rank=14).residual_bound < 1e-12
    assert recover(X, y, rank=2).farkas is None
