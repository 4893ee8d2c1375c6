"""Bounds and deviation of the normal operator on S^d against explicit matrices."""

from __future__ import annotations

import numpy as np
import pytest

import posquad
from posquad.core.errors import DomainError, DtypeError
from posquad.core.status import Status
from support import normal


def explicit(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """T_n and T as matrices in an orthonormal basis of S^d, entry by entry."""
    d = X.shape[1]
    basis = []
    for a in range(d):
        for b in range(a, d):
            H = np.zeros((d, d))
            H[a, b] = H[b, a] = 1 if a == b else 2**-0.5
            basis.append(H)
    seen = np.array([[x @ H @ x for H in basis] for x in X])
    traces = np.array([np.trace(H) for H in basis])
    return seen.T @ seen / len(X), 2 * np.eye(len(basis)) + np.outer(traces, traces)


@pytest.mark.parametrize(("n", "d"), [(1, 1), (5, 1), (3, 2), (40, 4), (500, 6), (30, 8)])
def test_against_explicit_matrices(rng, n, d):
    X = normal(rng, n, d)
    T_n, T = explicit(X.numpy())
    bounds = posquad.operator_bounds(posquad.RankOne(X))
    values = np.linalg.eigvalsh(T_n)
    assert bounds.status is Status.CONVERGED
    # A residual of 1e-8 relative leaves an eigenvalue error of its square over the gap.
    np.testing.assert_allclose(float(bounds.largest), values[-1], rtol=1e-10)
    np.testing.assert_allclose(
        float(bounds.smallest), values[0], rtol=1e-8, atol=1e-12 * values[-1]
    )
    deviation = posquad.operator_deviation(posquad.RankOne(X))
    np.testing.assert_allclose(float(deviation.norm), np.linalg.norm(T_n - T, 2), rtol=1e-9)


def test_fewer_measurements_than_dimensions_have_no_lower_bound(rng):
    bounds = posquad.operator_bounds(posquad.RankOne(normal(rng, 20, 6)))  # 21 dimensions
    assert abs(float(bounds.smallest)) < 1e-12 * float(bounds.largest)


def test_batches(rng):
    X = normal(rng, 3, 50, 4)
    bounds = posquad.operator_bounds(posquad.RankOne(X))
    assert bounds.largest.shape == (3,)
    single = posquad.operator_bounds(posquad.RankOne(X[1]))
    assert float(bounds.largest[1]) == pytest.approx(single.largest, rel=1e-9)


def test_deviation_mean_square_is_below_the_theorem(rng):
    """E ||T_n - T||_HS^2 <= kappa_d / n, of which the operator norm is a lower bound."""
    n, d, trials = 200, 3, 200
    X = normal(rng, trials, n, d)
    norms = posquad.operator_deviation(posquad.RankOne(X)).norm
    bound = posquad.theory.kappa_d(d) / n
    # The mean over 200 trials; the bound is loose by more than its sampling error.
    assert float(norms.square().mean()) < bound
    epsilon = 4.0
    assert float((norms > epsilon).double().mean()) <= posquad.theory.deviation_probability(
        n, d, epsilon
    )


def test_not_converged_is_nan(rng):
    X = normal(rng, 400, 20)
    bounds = posquad.operator_bounds(posquad.RankOne(X), max_products=6)
    assert bounds.status is Status.NOT_CONVERGED
    assert np.isnan(float(bounds.smallest))


def test_bad_input(rng):
    with pytest.raises(DtypeError, match=r"^measurements: expected .*; got ndarray"):
        posquad.operator_bounds(np.ones((3, 2)))
    with pytest.raises(DtypeError, match=r"^measurements"):
        posquad.operator_deviation(None)
    operator = posquad.RankOne(normal(rng, 3, 2))
    with pytest.raises(DomainError, match=r"^tolerance"):
        posquad.operator_bounds(operator, tolerance=-1.0)
    with pytest.raises(DomainError, match=r"^max_products"):
        posquad.operator_deviation(operator, max_products=0)
