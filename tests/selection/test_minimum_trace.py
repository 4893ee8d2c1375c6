"""Minimum trace and entropic tie-breaking, against hand-worked cases, all vertices and mpmath."""

from __future__ import annotations

import itertools

import clarabel
import mpmath
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import torch

from posquad.core.errors import DomainError, DtypeError, InfeasibleError, NonFiniteError, ShapeError
from posquad.selection import (
    bregman_projection,
    check_trace_bound,
    commuting_family,
    entropic_minimizer,
    joint_spectral_reduction,
    minimum_trace,
    trace,
    trace_gap_bound,
)
from posquad.selection.system import prepare

LOG = np.log
PAPER_B = [[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]]

# name: (B, y, d), value, q, dual or None where it is not unique, slack or None, dimension, C
BY_HAND = {
    "experiment 6": (
        (PAPER_B, [1.0, 0.3], [1, 1, 2, 3]),
        (1.3, [0.35, 0.35, 0.3, 0.0], [1.0, 1.0], [0.0, 0.0, 0.0, 2.0], 1),
        0.7 * LOG(0.35) + 0.6 * LOG(0.3) - 1.3 + 7,
    ),
    # One row: the cheapest ratio d_a / B_a wins, and only the third attains it.
    "unique vertex": (
        ([[1.0, 1.0, 3.0]], [3.0], [1, 1, 1]),
        (1.0, [0.0, 0.0, 1.0], [1 / 3], [2 / 3, 2 / 3, 0.0], 0),
        -1.0 + 3,
    ),
    # B = d: every feasible point has trace y, and sum d q log q is least at a constant q.
    "whole simplex": (
        ([[1.0, 2.0, 3.0]], [6.0], [1, 2, 3]),
        (6.0, [1.0, 1.0, 1.0], [1.0], [0.0, 0.0, 0.0], 2),
        -6.0 + 6,
    ),
    # q = (2-t, t, 1-t) has trace 3 for all t; stationary where t^2 = (2-t)(1-t), at t = 2/3.
    "segment": (
        ([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]], [2.0, 1.0], [1, 2, 1]),
        (3.0, [4 / 3, 2 / 3, 1 / 3], [1.0, 1.0], [0.0, 0.0, 0.0], 1),
        4 / 3 * LOG(4 / 3) + 4 / 3 * LOG(2 / 3) + LOG(1 / 3) / 3 - 3 + 4,
    ),
    # y on the boundary of the cone: q2 is forced to zero, any dual (1, s) with s <= 1 is optimal.
    "degenerate dual": (
        ([[1.0, 0.0], [0.0, 1.0]], [1.0, 0.0], [1, 1]),
        (1.0, [1.0, 0.0], None, None, 0),
        -1.0 + 2,
    ),
    "signed": (
        ([[1.0, -1.0]], [2.0], [1, 3]),
        (2.0, [2.0, 0.0], [1.0], [0.0, 4.0], 0),
        2 * LOG(2) - 2 + 4,
    ),
    "zero": (
        (PAPER_B, [0.0, 0.0], [1, 1, 2, 3]),
        (0.0, [0.0, 0.0, 0.0, 0.0], None, None, 0),
        7.0,
    ),
    "redundant rows": (
        ([*PAPER_B, [1, 1, 2, 1], [0, 0, -3, -3]], [1, 0.3, 1.3, -0.9], [1, 1, 2, 3]),
        (1.3, [0.35, 0.35, 0.3, 0.0], None, [0.0, 0.0, 0.0, 2.0], 1),
        0.7 * LOG(0.35) + 0.6 * LOG(0.3) - 1.3 + 7,
    ),
    "one coordinate": (([[2.0]], [3.0], [4]), (6.0, [1.5], [2.0], [0.0], 0), 6 * LOG(1.5) - 6 + 4),
}  # fmt: skip


def arrays(system) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(part, dtype=float) for part in system)


def faced_system(seed: int, n: int, m: int, size: int) -> tuple[np.ndarray, ...]:
    """(B, y, d) whose optimal face is spanned by the first `size` coordinates, by construction.

    d = B'lam there and at least half as much again elsewhere; y comes from a point of the face.
    """
    rng = np.random.default_rng(seed)
    B = rng.integers(1, 5, size=(n, m)).astype(float)
    d = B.T @ rng.integers(1, 3, size=n)
    d[size:] += np.ceil(d[size:] / 2)
    q = np.zeros(m)
    q[:size] = rng.integers(1, 9, size=size) / 4
    return B, B @ q, d


def optimal_vertices(B: np.ndarray, y: np.ndarray, d: np.ndarray) -> np.ndarray:
    """All minimum-trace basic solutions, by trying every basis: [k, m]."""
    m, rank = B.shape[1], np.linalg.matrix_rank(B)
    vertices = []
    for basis in itertools.combinations(range(m), rank):
        columns = B[:, basis]
        if np.linalg.matrix_rank(columns) < rank:
            continue
        x = np.zeros(m)
        x[list(basis)] = np.linalg.lstsq(columns, y, rcond=None)[0]
        if (x > -1e-10).all() and np.abs(B @ x - y).max() < 1e-9:
            vertices.append(x)
    traces = np.array(vertices) @ d
    return np.array(vertices)[traces <= traces.min() + 1e-9]


def exact_entropy_point(B, y, d, support) -> np.ndarray:
    """The point of the face with `d log q` in range(B'), unique by convexity, at 50 digits."""
    rows = scipy.linalg.qr(B[:, support].T, pivoting=True, mode="r")[1]
    rows = rows[: np.linalg.matrix_rank(B[:, support])].tolist()
    with mpmath.workdps(50):
        b = mpmath.matrix(B[np.ix_(rows, support)].tolist())
        right, weights = mpmath.matrix(y[rows].tolist()), [mpmath.mpf(float(d[a])) for a in support]

        def point(lam) -> list:
            return [mpmath.exp(v / w) for v, w in zip(b.T * lam, weights, strict=True)]

        def dual(lam) -> mpmath.mpf:
            values = zip(weights, point(lam), strict=True)
            return sum(w * q for w, q in values) - (right.T * lam)[0]

        lam = mpmath.zeros(len(rows), 1)
        for _ in range(200):  # damped Newton on a smooth convex function
            q = point(lam)
            scaled = mpmath.diag([v / w for v, w in zip(q, weights, strict=True)])
            residual = right - b * mpmath.matrix(q)
            if mpmath.norm(residual) < mpmath.mpf(10) ** -40:
                break
            step, t = mpmath.lu_solve(b * scaled * b.T, residual), mpmath.mpf(1)
            while dual(lam + t * step) > dual(lam) and t > 1e-12:
                t /= 2
            lam = lam + t * step
        assert mpmath.norm(right - b * mpmath.matrix(point(lam))) < mpmath.mpf(10) ** -40
        full = np.zeros(len(d))
        full[list(support)] = [float(v) for v in point(lam)]
    return full


def require_optimal(result, B, y, d) -> None:
    """Primal and dual feasibility, equal values, strict complementarity."""
    size = max(1.0, abs(result.value))
    assert (result.q >= 0).all()
    np.testing.assert_allclose(B @ result.q, y, rtol=1e-12, atol=1e-13 * np.abs(y).max())
    assert abs(d @ result.q - result.value) < 1e-12 * size
    assert abs(y @ result.dual - result.value) < 1e-12 * size
    assert abs(result.gap) < 1e-12 * size
    np.testing.assert_allclose(result.slack, d - B.T @ result.dual, atol=1e-11 * d.max())
    support, vanishing = list(result.face.support), list(result.face.vanishing)
    assert sorted(support + vanishing) == list(range(len(d)))
    assert (result.q[support] > 0).all()
    assert not result.q[vanishing].any()
    assert not result.slack[support].any()
    assert (result.slack[vanishing] > 1e-8).all()


@pytest.mark.parametrize("name", BY_HAND)
def test_systems_worked_by_hand(name):
    system, (value, q, dual, slack, dimension), constant = BY_HAND[name]
    B, y, d = arrays(system)
    result = minimum_trace(B, y, d)
    require_optimal(result, B, y, d)
    assert result.value == pytest.approx(value, rel=1e-13, abs=1e-15)
    np.testing.assert_allclose(result.q, q, rtol=1e-12, atol=0)
    np.testing.assert_array_equal(entropic_minimizer(B, y, d), result.q)
    assert result.face.support == tuple(np.flatnonzero(q))
    assert result.face.dimension == dimension
    assert result.constant == pytest.approx(constant, rel=1e-12, abs=1e-12)
    if dual is not None:
        np.testing.assert_allclose(result.dual, dual, rtol=1e-12)
    if slack is not None:
        np.testing.assert_allclose(result.slack, slack, atol=1e-12)


def test_experiment_6_printed_numbers():
    B, y, d = arrays(BY_HAND["experiment 6"][0])
    result = minimum_trace(B, y, d)
    assert round(result.constant, 3) == 4.243
    q = bregman_projection(B, y, d, np.full(4, 0.005**2)).q
    assert d @ q - result.value == pytest.approx(1.086e-3, abs=5e-7)
    assert np.linalg.norm(q - result.q) == pytest.approx(8.58e-4, abs=5e-7)


@pytest.mark.parametrize(
    ("n", "m", "size"),
    [(1, 3, 1), (1, 4, 3), (2, 5, 1), (2, 6, 4), (3, 7, 3), (3, 7, 7), (4, 7, 5)],
)
@pytest.mark.parametrize("seed", range(3))
def test_face_against_all_vertices(n, m, size, seed):
    B, y, d = faced_system(10 * seed + m, n, m, size)
    result = minimum_trace(B, y, d)
    require_optimal(result, B, y, d)
    vertices = optimal_vertices(B, y, d)
    assert result.value == pytest.approx(float(vertices[0] @ d), rel=1e-12)
    assert result.face.support == tuple(np.flatnonzero(vertices.max(0) > 1e-9))
    spread = np.linalg.matrix_rank(vertices - vertices[0], tol=1e-9)
    assert result.face.dimension == spread
    expected = exact_entropy_point(B, y, d, result.face.support)
    np.testing.assert_allclose(result.q, expected, rtol=1e-12)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 12), (10, 60), (20, 300)])
def test_generic_systems_against_a_linear_program(n, m):
    """A generic program has one optimal vertex; the interior-point code is a second opinion."""
    rng = np.random.default_rng(m)
    B, d = rng.normal(size=(n, m)), rng.integers(1, 5, m).astype(float)
    y = B @ rng.exponential(size=m)
    result = minimum_trace(B, y, d)
    require_optimal(result, B, y, d)
    program = scipy.optimize.linprog(d, A_eq=B, b_eq=y, method="highs-ipm")
    assert result.value == pytest.approx(program.fun, rel=1e-7)
    assert result.face.dimension == 0
    assert len(result.face.support) == n


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
def test_the_face_does_not_depend_on_the_unit_of_y(scale):
    """The program is homogeneous in y."""
    B, y, d = arrays(BY_HAND["experiment 6"][0])
    result = minimum_trace(B, scale * y, d)
    assert result.face.support == (0, 1, 2)
    assert result.value == pytest.approx(1.3 * scale, rel=1e-12)
    np.testing.assert_allclose(result.q, scale * np.array([0.35, 0.35, 0.3, 0.0]), rtol=1e-12)


def test_small_initialization_selects_the_entropic_minimizer():
    """q_eps -> q_ent, one batched call for all scales down to q0 = 1e-300."""
    scales = 10.0 ** -np.array([5.0, 10.0, 20.0, 50.0, 150.0])
    for seed in range(3):
        B, y, d = faced_system(seed, 2, 6, 4)
        ent = entropic_minimizer(B, y, d)
        starts = np.broadcast_to(scales[:, None] ** 2, (5, 6))
        errors = np.abs(bregman_projection(B, y, d, starts).q - ent).max(-1)
        # Off the face q_a is of order eps^(2 slack_a / d_a); slack_a >= d_a / 3 here, so that the
        # last error is rounding, and each one well below the one before until then.
        assert errors[0] < 0.1
        assert (errors[1:] < np.maximum(0.1 * errors[:-1], 1e-12)).all()
        assert errors[-1] < 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_trace_gap_bound_holds(seed):
    B, y, d = faced_system(seed, 2, 6, 3) if seed % 2 else arrays(BY_HAND["experiment 6"][0])
    result = minimum_trace(B, y, d)
    scales = np.array([0.9, 0.7, 0.3, 0.1, 1e-3, 1e-8, 1e-100])
    q = bregman_projection(B, y, d, np.broadcast_to(scales[:, None] ** 2, (7, len(d)))).q
    for gap, eps in zip(q @ d - result.value, scales, strict=True):
        assert -1e-12 * result.value <= gap
        assert gap <= trace_gap_bound(result.constant, eps) + 1e-12 * result.value
        # The constant is psi at the face's best point; psi >= -d makes it nonnegative.
        assert trace_gap_bound(result.constant, eps) == pytest.approx(
            result.constant / np.log(1 / eps**2)
        )
    assert result.constant >= 0


def random_interpolant(A: np.ndarray, Q: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Q plus a symmetric direction that no measurement sees, up to the boundary of the cone."""
    n, size = len(A), len(Q)
    N = rng.normal(size=(size, size))
    N = N + N.T
    flat = A.reshape(n, -1)
    N = N - (np.linalg.lstsq(flat.T, N.ravel(), rcond=None)[0] @ flat).reshape(size, size)
    root = np.linalg.inv(np.linalg.cholesky(Q))
    lowest = np.linalg.eigvalsh(root @ N @ root.T)[0]
    return Q + (0.0 if lowest == 0 else rng.uniform(0, 1) / abs(lowest)) * N


@pytest.mark.parametrize("name", ["experiment 6", "segment", "redundant rows", "unique vertex"])
def test_no_positive_semidefinite_interpolant_has_less_trace(name):
    B, y, d = arrays(BY_HAND[name][0])
    result = minimum_trace(B, y, d)
    A = commuting_family(B, d, seed=1)
    reduction = joint_spectral_reduction(A)
    q = bregman_projection(reduction.B, y, reduction.multiplicities, np.ones(reduction.B.shape[1]))
    rng = np.random.default_rng(0)
    for _ in range(20):
        Q = random_interpolant(A, reduction.predictor(q.q), rng)
        check = check_trace_bound(A, y, Q, result.dual)
        assert check.residual < 1e-12
        assert check.smallest_eigenvalue > -1e-12
        assert check.bound == pytest.approx(result.value, rel=1e-12)
        # Eigenvalues of I - sum dual_i A_i are the reduced slacks over their multiplicities.
        assert check.slack == pytest.approx((result.slack / d).min(), abs=1e-12)
        assert check.gap == pytest.approx(np.trace(Q) - result.value, abs=1e-12)
        certificate = np.eye(len(Q)) - np.einsum("n,nij->ij", result.dual, A)
        assert check.gap == pytest.approx(float((certificate * Q).sum()), abs=1e-12)
        assert check.gap > -1e-12
    too_large = check_trace_bound(A, y, Q, 1.5 * result.dual)
    assert too_large.slack == pytest.approx(-0.5, abs=1e-12)  # proves nothing
    wrong = check_trace_bound(A, y, 2 * Q, result.dual)
    assert wrong.residual == pytest.approx(np.abs(y).max())


@pytest.mark.parametrize(
    ("B", "y"),
    [
        ([[1.0, 1.0], [1.0, 2.0]], [1.0, 3.0]),
        ([[1.0, 1.0], [100.0, 200.0]], [1.0, 300.0]),
        ([[1.0, 1.0], [2.0, 2.0], [1.0, 2.0]], [1.0, 2.0, 3.0]),
        ([[1.0, 2.0]], [-1.0]),
        ([[1.0, 1.0], [2.0, 2.0]], [1.0, 3.0]),
        ([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], [1.0, -0.1]),
    ],
    ids=["cone", "scaled rows", "redundant", "negative", "outside the range", "three"],
)
def test_infeasible_systems_come_with_a_proof(B, y):
    """z with B'z >= 0 and y'z < 0, for the system as it was passed."""
    B, y = np.array(B), np.array(y)
    with pytest.raises(InfeasibleError, match=r"^y: expected .*; got") as caught:
        minimum_trace(B, y, np.ones(B.shape[1]))
    z = np.asarray(caught.value.farkas)
    assert z.shape == y.shape
    size = np.abs(z) @ np.abs(B)
    assert (B.T @ z >= -1e-9 * size).all()
    assert y @ z < -1e-3 * np.abs(y) @ np.abs(z)


def test_not_strictly_feasible_is_no_obstacle():
    """q = (1, 0) is the only solution, so it is the answer although it has a zero."""
    result = minimum_trace(np.array([[1.0, 0.0], [1.0, 1.0]]), np.ones(2), np.ones(2))
    np.testing.assert_allclose(result.q, [1.0, 0.0], rtol=1e-14)
    assert result.face.vanishing == (1,)


def test_torch_numpy_and_float32():
    B, y, d = arrays(BY_HAND["experiment 6"][0])
    result = minimum_trace(torch.from_numpy(B), torch.from_numpy(y), torch.from_numpy(d))
    assert all(isinstance(t, torch.Tensor) for t in (result.q, result.dual, result.slack))
    assert isinstance(minimum_trace(B, y, d).dual, np.ndarray)
    single = minimum_trace(*(v.astype(np.float32) for v in (B, y, d)))
    assert single.q.dtype == np.float32
    np.testing.assert_allclose(single.q, result.q, atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "error", "named"),
    [
        ({"B": np.ones(4)}, ShapeError, "B"),
        ({"B": np.full((2, 4), np.nan)}, NonFiniteError, "B"),
        ({"y": np.ones(3)}, ShapeError, "y"),
        ({"y": np.array([[1.0, 0.3]])}, DomainError, "y"),
        ({"y": np.array([1.0, 0.3j])}, DtypeError, "y"),
        ({"multiplicities": np.array([1, 1, 2])}, ShapeError, "multiplicities"),
        ({"multiplicities": np.array([1, 1, 2, -3])}, DomainError, "multiplicities"),
    ],
)
def test_bad_systems_are_refused(changed, error, named):
    B, y, d = arrays(BY_HAND["experiment 6"][0])
    arguments = {"B": B, "y": y, "multiplicities": d} | changed
    for compute in (minimum_trace, entropic_minimizer):
        with pytest.raises(error, match=rf"^{named}: expected .*; got"):
            compute(**arguments)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 2.0, -0.1, float("nan"), "0.1"])
def test_bad_scales_are_refused(epsilon):
    with pytest.raises(DomainError, match=r"^epsilon: expected .*; got"):
        trace_gap_bound(1.0, epsilon)


@pytest.mark.parametrize(
    ("changed", "error", "named"),
    [
        ({"Q": np.ones((3, 3))}, ShapeError, "Q"),
        ({"Q": np.array([[1.0, 1.0], [0.0, 1.0]])}, DomainError, "Q"),
        ({"Q": np.stack([np.eye(2)] * 2)}, ShapeError, "Q"),
        ({"y": np.ones(2)}, ShapeError, "y"),
        ({"y": np.ones((2, 1))}, ShapeError, "y"),
        ({"dual": np.ones(3)}, ShapeError, "dual"),
        ({"dual": np.ones((2, 1))}, ShapeError, "dual"),
        ({"dual": np.array([np.nan])}, NonFiniteError, "dual"),
        ({"A": np.eye(2)}, ShapeError, "A"),
        ({"A": np.stack([np.eye(2)[None]] * 3)}, ShapeError, "A"),
        ({"A": np.array([[[1.0, 1.0], [0.0, 1.0]]])}, DomainError, "A"),
    ],
)
def test_bad_checks_are_refused(changed, error, named):
    arguments = {"A": np.eye(2)[None], "y": np.ones(1), "Q": np.eye(2), "dual": np.ones(1)}
    with pytest.raises(error, match=rf"^{named}: expected .*; got"):
        check_trace_bound(**arguments | changed)


def test_columns_tied_but_for_1e_11_are_told_apart():
    """The second column is cheaper by 1e-11, far above rounding: it alone is optimal."""
    B, d = np.array([[1.0, 1 + 1e-11]]), np.array([1, 1])
    found = minimum_trace(B, np.array([1.0]), d)
    assert found.face.support == (1,)
    assert found.slack[0] == pytest.approx(1e-11, rel=1e-4)


@pytest.mark.parametrize("small", [1e-8, 1e-12, 1e-15])
def test_small_coordinates_are_found(small):
    """Two programs of one row each: the cheaper of the last two columns takes all of y_2."""
    B, d = np.array([[1.0, 0, 0], [0, 1, 1]]), np.array([1, 1, 2])
    found = minimum_trace(B, np.array([1.0, small]), d)
    np.testing.assert_allclose(found.q, [1, small, 0], rtol=1e-14, atol=0)
    assert found.face.support == (0, 1)
    assert found.resolution < 1e-14


@pytest.mark.parametrize("small", [1e-11, 1e-13])
def test_a_basis_that_is_infeasible_by_less_than_the_solver_sees_is_left(small):
    """q_1 + q_3 = 1 and q_1 + q_2 = 1 - small: without q_3, whose cost is 5, q_2 is -small."""
    B, d = np.array([[1.0, 0, 1], [1, 1, 0]]), np.array([1, 1, 5])
    found = minimum_trace(B, np.array([1.0, 1 - small]), d)
    assert found.face.support == (0, 2)
    np.testing.assert_allclose(found.q, [1 - small, 0, small], rtol=0, atol=1e-15)


def test_a_coordinate_below_the_rounding_of_y_is_zero():
    """y = (1, 1 + eps) differs from (1, 1) in the last bit, and (1, 1) has q = (1, 0)."""
    B = np.array([[1.0, 0.0], [1.0, 1.0]])
    found = minimum_trace(B, np.array([1.0, 1.0 + 2.3e-16]), np.ones(2))
    assert found.face.support == (0,)
    assert 4e-16 < found.resolution < 1e-14


def test_the_resolution_is_relative_by_hand():
    """`q_1 - 0.75 q_2 = 1`, `q_1 = q_2`: both are 4, with four units of rounding in every entry.

    `|B^-1| = [[4, 3], [4, 4]]` and `|B|q + |y| = (8, 8)`, so that q moves by up to 4 x 64 eps of 4.
    """
    found = minimum_trace(np.array([[1, -0.75], [1, -1.0]]), np.array([1.0, 0.0]), np.ones(2))
    np.testing.assert_allclose(found.q, 4.0, rtol=1e-14)
    assert found.resolution == pytest.approx(64 * 2.0**-52, rel=1e-10, abs=0)


def test_nothing_measured_is_refused():
    with pytest.raises(DomainError, match=r"^B: expected at least one row"):
        minimum_trace(np.zeros((1, 2)), np.zeros(1), np.ones(2))


@pytest.mark.parametrize(("n", "m"), [(4, 5), (10, 100), (40, 500), (60, 2000)])
def test_value_agrees_with_other_solvers(n, m):
    """The value against HiGHS without presolve and against Clarabel, each to its own accuracy."""
    for seed in range(3):
        rng = np.random.default_rng([seed, m])
        B, d = rng.standard_normal((n, m)), rng.uniform(0.5, 3.0, m)
        y = B @ (rng.exponential(size=m) * (np.arange(m) % 3 == 0))
        result = minimum_trace(B, y, d)
        require_optimal(result, B, y, d)
        program = scipy.optimize.linprog(
            d, A_eq=B, b_eq=y, method="highs", options={"presolve": False}
        )
        assert result.value == pytest.approx(program.fun, rel=1e-8)
        assert result.value == pytest.approx(clarabel_value(B, y, d), rel=1e-6)


def clarabel_value(B: np.ndarray, y: np.ndarray, d: np.ndarray) -> float:
    n, m = B.shape
    constraints = scipy.sparse.csc_matrix(np.vstack([B, -np.eye(m)]))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    cones = [clarabel.ZeroConeT(n), clarabel.NonnegativeConeT(m)]
    none = scipy.sparse.csc_matrix((m, m))
    solver = clarabel.DefaultSolver(
        none, d, constraints, np.append(y, np.zeros(m)), cones, settings
    )
    return solver.solve().obj_val


WRONG = {
    "a row of Bq = y": lambda q, dual: (q * [1 + 1e-9, 1, 1, 1], dual),
    "a coordinate of the face": lambda q, dual: (q * [-1, 1, 1, 1] + [0, 0.7, 0, 0], dual),
    "a slack of": lambda q, dual: (q, dual * [1 + 1e-9, 1]),
    "a slack off the face": lambda q, dual: (q, dual * [1, 3]),
}


@pytest.mark.parametrize("failure", WRONG)
def test_an_answer_that_does_not_prove_itself_is_refused(failure):
    """The system of experiment 6, whose answer is known, with one thing wrong at a time."""
    system, _ = prepare(*arrays(BY_HAND["experiment 6"][0]))
    rows, scale = system.rows.numpy(), system.scale.numpy()
    q, dual, face = np.array([0.35, 0.35, 0.3, 0.0]), np.ones(2), trace.Face((0, 1, 2), (3,), 1)

    def checked(q, dual):
        return trace._require_proof(system, q, dual[rows] / scale, face, np.finfo(float).eps)

    assert checked(q, dual) < 1e-15
    if failure == "a slack off the face":  # the dual (1, 3) has slack (0, 0, -2, 0)
        q, face = np.array([0.5, 0.5, 0.0, 0.3]), trace.Face((0, 1), (2, 3), 1)
    with pytest.raises(DomainError, match=failure):
        checked(*WRONG[failure](q, dual))


def test_the_dual_vector_has_the_largest_smallest_slack():
    """q = (1, 0, 0) alone solves it; z_1 = 1 is tight; -z_2 and 1 - z_2 are at least 1 at z_2 = -1.

    The dual vector of least norm, z = (1, 0), has the slack 0 instead: two constraints, one of them
    free.
    """
    B = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    found = minimum_trace(B, np.array([1.0, 0.0]), np.ones(3))
    np.testing.assert_allclose(found.q, [1, 0, 0], atol=1e-12)
    slack = 1 - B.T @ found.dual
    assert abs(slack[0]) < 1e-12
    assert slack[1:].min() >= 1 - 1e-9
