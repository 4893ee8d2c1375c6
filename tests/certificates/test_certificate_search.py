"""Searches that proofs start from, against dense linear algebra and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from posquad.certificates.proofs.bounded_operator import BoundedRankOne
from posquad.certificates.proofs.statements import TangentGram
from posquad.certificates.search import curvature, trace
from posquad.certificates.search.dual import DualSearch

rng = np.random.default_rng(7)
X = rng.standard_normal((9, 3))
U = rng.standard_normal((3, 1))  # p = 3, so that the space of z has dimension 6


def search_of(X, U):
    operator = BoundedRankOne(X)
    factor = np.linalg.cholesky(TangentGram(operator, U).with_gauge(1.0)[0])
    return DualSearch(operator, U, factor)


def space_of(X, U):
    """An orthonormal basis `[n, k]` of `{z : A*(z) U = 0}`, by NumPy."""
    rows = (X[:, :, None] * (X @ U)[:, None, :]).reshape(len(X), -1)  # A*(z)U = sum z_i rows_i
    _, s, vh = np.linalg.svd(rows.T)
    return vh[int((s > 1e-10 * s[0]).sum()) :].T


def adjoint(X, z):
    return np.einsum("n,ni,nj->ij", z, X, X)


# The space of dual vectors.


def test_projection_and_compression_are_those_of_numpy():
    search, basis = search_of(X, U), space_of(X, U)
    assert basis.shape == (9, 6)
    z = rng.standard_normal(9)
    np.testing.assert_allclose(search.project(z), basis @ (basis.T @ z), atol=1e-13)
    assert search.V.shape == (3, 2)
    np.testing.assert_allclose(search.V.T @ U, 0, atol=1e-14)
    np.testing.assert_allclose(search.compressed(z), search.V.T @ adjoint(X, z) @ search.V)


def test_reduced_matrices_act_on_the_space_alone():
    search, basis = search_of(X, U), space_of(X, U)
    P = basis @ basis.T
    H = rng.standard_normal((9, 9))
    H = H @ H.T
    expected = P @ H @ P + np.trace(H) / 9 * (np.eye(9) - P)
    np.testing.assert_allclose(search._reduced(H), expected, atol=1e-11)


@pytest.mark.parametrize("n", [5, 9])
def test_the_nearest_matrix_is_that_of_least_squares(n):
    """Also where the space is smaller than the matrices V'A*(z)V, and by conjugate gradients."""
    search, basis = search_of(X[:n], U), space_of(X[:n], U)
    target = np.array([[2.0, 0.5], [0.5, 1.0]])
    columns = np.stack(
        [(search.V.T @ adjoint(X[:n], b) @ search.V).ravel() for b in basis.T], axis=1
    )
    least = np.linalg.lstsq(columns, target.ravel(), rcond=None)[0]
    nearest = columns @ least
    found = search.compressed(search.project(search._nearest_to(target))).ravel()
    np.testing.assert_allclose(found, nearest, atol=1e-5)
    right = search.project(search.operator.apply(search.V @ target @ search.V.T))
    iterated = search.compressed(search._conjugate_gradients(right)).ravel()
    assert np.linalg.norm(iterated - nearest) < 0.1 * np.linalg.norm(nearest)


def test_systems_that_are_singular_are_solved_with_a_ridge():
    H, right = np.diag([2.0, 4.0]), np.array([2.0, 2.0])
    np.testing.assert_allclose(DualSearch._solve(H, right), [1.0, 0.5])
    singular = np.ones((2, 2))
    solved = DualSearch._solve(singular, right)
    np.testing.assert_allclose(singular @ solved, right, rtol=1e-3)
    assert DualSearch._solve(np.diag([1.0, -1.0]), right) is None


@pytest.mark.parametrize("seed", range(4))
def test_the_interior_point_search_maximizes_the_smallest_eigenvalue(seed):
    """Two more measurements than degrees of freedom: all unit z of the space, by angle."""
    g = np.random.default_rng(seed)
    inputs, factor = g.standard_normal((5, 3)), g.standard_normal((3, 1))
    search, basis = search_of(inputs, factor), space_of(inputs, factor)
    assert basis.shape == (5, 2)
    angles = np.linspace(0, 2 * np.pi, 20001)
    lowest = [
        np.linalg.eigvalsh(search.compressed(basis @ [math.cos(a), math.sin(a)]))[0]
        for a in angles[::20]
    ]
    best = max(lowest)
    found = search.find()
    assert found is not None
    assert np.linalg.norm(found.z) == pytest.approx(1, rel=1e-9)
    if best > 1e-3:
        assert 0.9 * best <= found.smallest <= best * (1 + 1e-3)
        assert not found.exhausted
        # It is within (m + 2) / weight <= 5% of the maximum over the ball.
        polished = search._interior_point(found.z)
        assert polished.method == "interior point"
        assert polished.smallest >= 0.94 * best
    elif best < -1e-3:
        assert found.smallest <= 0
        assert found.exhausted


def test_nothing_is_sought_without_room():
    assert search_of(X[:3], U).find() is None  # n = p: only z = 0
    assert search_of(X[:4], U).find() is not None
    assert search_of(X, np.eye(3)).find() is None  # r = d
    assert search_of(X, U)._guess(np.zeros(9), "least squares") is None


def test_alternating_projections_reach_their_floor():
    """From the least squares solution with n = 30, where a positive definite matrix exists."""
    g = np.random.default_rng(3)
    search = search_of(g.standard_normal((30, 3)), g.standard_normal((3, 1)))
    start = search.project(g.standard_normal(30))
    assert np.linalg.eigvalsh(search.compressed(start))[0] < 0
    found = search._alternating_projections(start)
    assert found.method == "alternating projections"
    assert found.smallest > 0
    size = np.linalg.norm(found.z)
    assert size == pytest.approx(1, rel=1e-9)


def test_short_projections_are_stretched(monkeypatch):
    """Eigenvalues -1 and 1, and a step of (0.1, -0.02): stretched by 16 they are 0.6 and 0.68."""
    search = search_of(X, U)
    steps = []

    def nearest(target):
        np.testing.assert_allclose(np.linalg.eigvalsh(target), [0, 1.1])  # up to the floor 0.1
        steps.append(target)
        return np.array([0.1, -0.02])

    monkeypatch.setattr(search, "compressed", np.diag)
    monkeypatch.setattr(search, "_nearest_to", nearest)
    monkeypatch.setattr(search, "_guess", lambda z, method: z)
    found = search._alternating_projections(np.array([-1.0, 1.0]))
    assert len(steps) == 1
    np.testing.assert_allclose(found, [0.6, 0.68])


# Curvature.


@pytest.mark.parametrize("limit", [0, 600])
def test_extreme_values_by_either_way(limit, monkeypatch):
    monkeypatch.setattr(curvature, "_DENSE", limit)
    Q = np.linalg.qr(rng.standard_normal((30, 30)))[0]
    for values in (np.linspace(1, 5, 30), np.linspace(-2, 5, 30)):
        low, high = curvature.extreme_values(Q * values @ Q.T)
        assert low == pytest.approx(values[0], rel=1e-3)
        assert high == pytest.approx(5, rel=1e-3)


def brute_quartic(X):
    """`max (1/n) sum (x_i'v)^4` over the unit circle."""
    angles = np.linspace(0, np.pi, 20001)
    return float(((X @ np.stack([np.cos(angles), np.sin(angles)])) ** 4).mean(0).max())


@pytest.mark.parametrize("n", [2, 3, 4, 40])
def test_quartic_bounds_enclose_the_maximum(n):
    inputs = np.random.default_rng(n).standard_normal((n, 2))
    operator, exact = BoundedRankOne(inputs), brute_quartic(inputs)
    below, v = curvature.quartic_below(operator)
    assert np.linalg.norm(v) == pytest.approx(1)
    assert below <= exact * (1 + 1e-7)
    assert below == pytest.approx(exact, rel=1e-6)
    guess = curvature.quartic_guess(operator)
    assert guess.route == ("gram" if n <= 3 else "monomials")
    assert guess.value >= exact * (1 - 1e-3)


def test_the_routes_are_minimized_over_their_parameter():
    """Each value is the least of its formula on a fine grid, to the accuracy of the search."""
    n, d = 6, 3
    inputs = np.random.default_rng(5).standard_normal((n, d))
    operator = BoundedRankOne(inputs)
    K, w = (inputs @ inputs.T) ** 2, (inputs**2).sum(1)
    top = lambda M: np.linalg.eigvalsh(M)[-1]  # noqa: E731
    ks = np.linspace(0, 0.999 / d, 4000)
    gram = min(top(K - k * np.outer(w, w)) / n * (1 + k / (1 - k * d)) for k in ks)
    assert curvature._gram_guess(operator).value == pytest.approx(gram, rel=1e-3)
    lifted = np.stack([np.outer(x, x).ravel() for x in inputs])
    T, trace_form = lifted.T @ lifted / n, np.outer(np.eye(d).ravel(), np.eye(d).ravel())
    cs = np.linspace(0, top(T), 4000)
    monomial = min(c + top(T - c * trace_form) for c in cs)
    assert curvature._monomial_guess(operator).value == pytest.approx(monomial, rel=1e-3)
    moment = curvature._moment_guess(operator)
    expected = top(np.einsum("n,ni,nj->ij", w, inputs, inputs)) / n
    assert moment == (pytest.approx(expected), "moment", 0.0)


def test_the_route_is_that_of_the_smaller_matrix(monkeypatch):
    """q = d(d+1)/2 = 3 at d = 2; beyond the limit only second moments are formed."""
    for n, limit, route in ((3, 3, "gram"), (4, 3, "monomials"), (3, 2, "moment"), (2, 2, "gram")):
        monkeypatch.setattr(curvature, "_GRAM_LIMIT", limit)
        operator = BoundedRankOne(np.random.default_rng(n).standard_normal((n, 2)))
        assert curvature.quartic_guess(operator).route == route


def test_the_lower_end_of_an_interval_is_tried():
    assert curvature._minimise(lambda x: 1 + x, 0.0, 1.0) == (0.0, 1.0)
    where, least = curvature._minimise(lambda x: (x - 0.25) ** 2, 0.0, 1.0)
    assert where == pytest.approx(0.25, abs=2e-3)
    assert least < 1e-5


# The trace.


def test_the_barrier_method_solves_a_box():
    """With inputs e_1, e_2, `A*(dual) <= I` is `dual <= 1`: the maximum of `<dual, y>` is 3."""
    found = trace.barrier_dual(BoundedRankOne(np.eye(2)), np.array([1.0, 2.0]), 3.0)
    assert np.all(found < 1)
    gap = 3 - found @ [1.0, 2.0]
    assert 0 < gap < 1e-9


def test_the_barrier_method_ends_where_the_program_is_unbounded():
    """A negative response: dual_1 falls without end, until the bound is ten times the trace."""
    y = np.array([-1.0, 2.0])
    found = trace.barrier_dual(BoundedRankOne(np.eye(2)), y, 3.0)
    assert found @ y > 30


def test_excess_and_bound_by_hand():
    operator = BoundedRankOne(np.eye(2))
    slack = 1e-13
    for vector, excess in (([0.5, 0.5], 0.0), ([1.0, 1.5], 0.5), ([-3.0, 0.0], 0.0)):
        found = trace._with_excess(operator, np.array(vector), "least squares")
        size = operator.adjoint(np.array(vector))[1]
        assert size == pytest.approx(np.abs(vector).sum(), rel=1e-9)
        assert found.excess == pytest.approx(excess + slack * (1 + size), rel=1e-9)
    found = trace.TraceDual(np.array([1.0, 2.0]), 0.5, "least squares")
    assert trace._bound(np.array([3.0, 6.0]), found) == 10
    with np.errstate(all="ignore"):
        found = trace._with_excess(operator, np.array([math.inf, 0]), "least squares")
    assert found.excess == math.inf


def test_the_better_candidate_is_taken():
    """Q = I and inputs with `tr Q` not the least trace: the interior point bound is the larger."""
    inputs = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    y = (inputs**2).sum(1)
    found = trace.trace_dual(BoundedRankOne(inputs), y, np.eye(2))
    least = float(y @ found.dual) / (1 + found.excess)
    assert least == pytest.approx(2, rel=1e-8)
    assert least <= 2 * (1 + 1e-12)
