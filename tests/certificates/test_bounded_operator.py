"""Every result of an operator is within its error bound of the exact one, in fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from posquad.certificates.proofs import bounded_operator
from posquad.certificates.proofs.bounded_operator import BoundedDense, BoundedRankOne
from posquad.certificates.proofs.rounding import gamma
from posquad.certificates.proofs.statements import (
    TangentGram,
    residual_above,
    response_size_below,
    trace_above,
    trace_below,
    trace_bound_below,
)

N, DIM, R = 5, 3, 2


def exact(array: np.ndarray) -> np.ndarray:
    return np.vectorize(Fraction, otypes=[object])(array)


def spectral_bound(M: np.ndarray) -> float:
    """An upper bound on the spectral norm: the Frobenius norm."""
    return float(np.linalg.norm(M.astype(float)))


@pytest.fixture(params=[(kind, seed) for kind in ("rank one", "dense") for seed in range(8)])
def problem(request):
    """Operators with entries over several orders of magnitude, and their exact matrices."""
    kind, seed = request.param
    rng = np.random.default_rng(seed)
    U = rng.standard_normal((DIM, R)) * 10.0 ** rng.uniform(-4, 4, (DIM, R))
    if kind == "rank one":
        X = rng.standard_normal((N, DIM)) * 10.0 ** rng.uniform(-4, 4, (N, DIM))
        x = exact(X)
        return BoundedRankOne(X), x[:, :, None] * x[:, None, :], U, rng
    A = rng.standard_normal((N, DIM, DIM)) * 10.0 ** rng.uniform(-4, 4, (N, 1, 1))
    A = A + A.transpose(0, 2, 1)
    A[:, 0, 1] *= 1 + 2.0**-52  # symmetric to rounding only: the symmetric part is meant
    a = exact(A)
    return BoundedDense(A), (a + a.transpose(0, 2, 1)) / 2, U, rng


def test_measured_values(problem):
    operator, A, U, _ = problem
    u = exact(U)
    values, error = operator.measure(U)
    true = (A * (u @ u.T)).sum((1, 2))
    assert np.all(np.abs(exact(values) - true) <= exact(error))


def test_bounds_count_the_roundings_of_every_order_of_summation():
    """The roundings on the longest path from data to result, counted by hand, for r = d.

    Dense: the symmetric part rounds once, A U sums d products, and (A U) . U another d r of them.
    Rank one: x'U sums d products; an entry of the Gram matrix multiplies two such and sums n.
    """
    rng = np.random.default_rng(0)
    n, d = 3, 12
    dense = BoundedDense(rng.standard_normal((n, d, d)))
    U = rng.standard_normal((d, d))
    u = np.abs(exact(U))
    sizes = (np.abs(exact(dense.given)) * (u @ u.T)).sum((1, 2))
    roundings = 1 + d + 1 + d * d
    assert np.all(exact(dense.measure(U)[1]) >= Fraction(roundings, 2**53) * sizes)
    assert dense.short >= roundings
    assert dense.depth >= max(1 + d + d * n + 1, 1 + d * d)  # adjoint and tangent rows, gram
    wide = BoundedRankOne(rng.standard_normal((n, 40)))
    assert wide.short >= 2 * (40 + 1)
    assert wide.depth >= n + 2 * (40 + 1)
    assert dense.short <= 3 * roundings  # no more than is needed several times over
    assert wide.short <= 6 * (40 + 1)


@pytest.mark.parametrize(("kind", "rows"), [("rank one", [2, 2, 1]), ("dense", [1] * 5)])
def test_rows_come_in_blocks_of_bounded_size(kind, rows, monkeypatch):
    """Twelve entries: two rows of d r = 6, or one where its matrix is held too (d^2 r = 18)."""
    rng = np.random.default_rng(0)
    X, U = rng.standard_normal((N, DIM)), rng.standard_normal((DIM, R))
    A = X[:, :, None] * X[:, None, :]
    operator = BoundedRankOne(X) if kind == "rank one" else BoundedDense(A)
    gram, whole = operator.monomial_gram()[0], np.array([(a @ U).ravel() for a in A])
    monkeypatch.setattr(bounded_operator, "_BLOCK", 12)
    blocks = [block for block, _ in operator.tangent_rows(U)]
    assert [len(block) for block in blocks] == rows
    np.testing.assert_allclose(np.concatenate(blocks), whole, rtol=1e-13)
    seen = []
    monomials = operator.monomials
    monkeypatch.setattr(operator, "monomials", lambda part: seen.append(part) or monomials(part))
    del operator._monomial_gram  # which is kept
    np.testing.assert_allclose(operator.monomial_gram()[0], gram, rtol=1e-13)
    assert [(part.start, part.stop) for part in seen] == [(0, 2), (2, 4), (4, 6)]  # 12 // 6 rows


def test_residual_and_response(problem):
    operator, A, U, rng = problem
    u = exact(U)
    true = (A * (u @ u.T)).sum((1, 2))
    y = true.astype(float) * (1 + 1e-13 * rng.standard_normal(N))
    square = sum((t - Fraction(v)) ** 2 for t, v in zip(true, y, strict=True)) / N
    assert Fraction(residual_above(operator, y, U)) ** 2 >= square
    size = sum(Fraction(v) ** 2 for v in y) / N
    assert 0 < Fraction(response_size_below(y)) ** 2 <= size
    trace = (u * u).sum()
    assert Fraction(trace_below(U)) <= trace <= Fraction(trace_above(U))
    dual = rng.standard_normal(N)
    bound = sum(Fraction(a) * Fraction(b) for a, b in zip(dual, y, strict=True))
    assert Fraction(trace_bound_below(y, dual, 0.0, 0.0)) <= max(bound, 0)


@pytest.mark.parametrize("weight", [0.0, 3.7])
def test_tangent_gram_with_gauge(problem, weight):
    operator, A, U, _ = problem
    u = exact(U)
    rows = np.array([(a @ u).ravel() for a in A])
    identity = exact(np.eye(R))
    C = np.einsum("ab,jk->ajbk", u @ u.T, identity) - np.einsum("ak,bj->ajbk", u, u)
    true = rows.T @ rows + Fraction(weight) * C.reshape(DIM * R, DIM * R)
    G, spread = TangentGram(operator, U).with_gauge(weight)
    assert np.array_equal(G, G.T) or np.abs(G - G.T).max() <= 1e-12 * np.abs(G).max()
    s = exact(spread)
    error = np.abs(exact(G) - true)
    assert np.all(error <= s[:, None] * s[None, :])


def test_adjoints(problem):
    operator, A, U, rng = problem
    z = rng.standard_normal(N)
    Y, size = operator.adjoint(z)
    true = np.tensordot(exact(z), A, 1)
    assert spectral_bound(exact(Y) - true) <= gamma(operator.depth) * size
    product, sizes = operator.adjoint_factor(z, U)
    error = np.abs(exact(product) - true @ exact(U))
    assert np.all(error <= exact(gamma(operator.depth) * sizes))


def test_a_step_of_the_power_iteration(problem):
    """`N(vv')^2` and `A*(A(vv')) v` in rational arithmetic, for two vectors together."""
    operator, A, _, rng = problem
    V = rng.standard_normal((DIM, 2))
    levels, moved = operator.power_step(V)
    for k, v in enumerate(exact(V).T):
        measured = np.array([v @ a @ v for a in A])
        assert levels[k] == pytest.approx(float(measured @ measured / N), rel=1e-13)
        step = sum(m * (a @ v) for m, a in zip(measured, A, strict=True))
        np.testing.assert_allclose(moved[:, k], step.astype(float), rtol=1e-11)


def test_grams_of_the_measurements(problem):
    operator, A, _, _ = problem
    K, w, size = operator.gram()
    flat = A.reshape(N, -1)
    s = exact(np.sqrt(gamma(operator.depth)) * size)
    assert np.all(np.abs(exact(K) - flat @ flat.T) <= s[:, None] * s[None, :])
    traces = np.array([a.trace() for a in A])
    ww = exact(w[:, None] * w) - traces[:, None] * traces
    assert np.all(np.abs(ww) <= DIM * s[:, None] * s[None, :])
    i, j = np.triu_indices(DIM)
    rows = A[:, i, j] * exact(np.where(i == j, 1.0, 2.0))
    G, sizes = operator.monomial_gram()
    t = exact(np.sqrt(gamma(operator.depth) * sizes))
    assert np.all(np.abs(exact(G) - rows.T @ rows) <= t[:, None] * t[None, :])
    M, scale = operator.second_moment()
    true = sum(a @ a for a in A)
    assert spectral_bound(exact(M) - true) <= gamma(operator.depth) * scale


def test_sizes_are_sums_of_absolute_values_by_hand():
    """What `gamma` multiplies; of a matrix that is not symmetric, both triangles count by half."""
    operator = BoundedDense(np.array([[[4.0, -2.0], [6.0, 8.0]]]))  # meant: [[4, 2], [2, 8]]
    U, z = np.array([[1.0], [-3.0]]), np.array([-0.5])
    (rows, size), *_ = operator.tangent_rows(U)
    np.testing.assert_array_equal(rows, [[-2.0, -22.0]])
    np.testing.assert_array_equal(size, [[16.0, 28.0]])  # |A| = [[4, 4], [4, 8]]
    value, error = operator.measure(U)
    assert (value[0], error[0]) == (64.0, gamma(operator.short) * 100)
    assert operator.adjoint(z)[1] == 6.0
    np.testing.assert_array_equal(operator.adjoint_factor(z, U)[1], [[8.0], [14.0]])
    np.testing.assert_array_equal(operator.monomials(slice(None))[1], [[4.0, 8.0, 8.0]])
    assert operator.gram()[2][0] ** 2 == pytest.approx(2 * 112)
    assert operator.second_moment()[1] == 112.0
    operator = BoundedRankOne(np.array([[2.0, -1.0]]))  # |x||x|' = [[4, 2], [2, 1]]
    (rows, size), *_ = operator.tangent_rows(U)
    np.testing.assert_array_equal(rows, [[10.0, -5.0]])
    np.testing.assert_array_equal(size, [[10.0, 5.0]])
    assert operator.adjoint(z)[1] == 2.5
    np.testing.assert_array_equal(operator.adjoint_factor(z, U)[1], [[5.0], [2.5]])
    np.testing.assert_array_equal(operator.monomials(slice(None))[1], [[4.0, 4.0, 1.0]])
    assert operator.gram()[2][0] == 5.0
    assert operator.second_moment()[1] == 25.0
