"""Bregman projections against closed forms, mpmath at 50 digits, Clarabel and Farkas' lemma."""

from __future__ import annotations

import math

import clarabel
import mpmath
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

from posquad.core.errors import DomainError, DtypeError, InfeasibleError, NonFiniteError, ShapeError
from posquad.core.linalg import solve_semidefinite
from posquad.core.status import Status
from posquad.selection import _dual, bregman_divergence, bregman_projection
from posquad.selection.feasibility import _checked
from posquad.selection.projection import Projection, SpectralFamily
from posquad.selection.system import prepare

EPS = np.finfo(float).eps
EXPERIMENT_6 = (
    np.array([[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]]),
    np.array([1.0, 0.3]),
    np.array([1, 1, 2, 3]),
)


def system(n: int, m: int, seed: int = 0, *, rank: int | None = None):
    """B with entries of both signs, y of a positive solution, multiplicities."""
    rng = np.random.default_rng(seed)
    B = rng.normal(size=(n, m))
    if rank is not None:
        B = rng.normal(size=(n, rank)) @ B[:rank]
    return B, B @ rng.uniform(0.2, 2.0, m), rng.integers(1, 5, m)


def assert_optimal(B, y, d, q0, found: Projection) -> None:
    """Feasibility and KKT, recomputed: together they characterise the unique projection."""
    q, size = found.q, np.abs(found.q) @ np.abs(B).T
    assert found.status is Status.CONVERGED
    # Zero only where the smallest double is larger than the exact value.
    logs = np.log(q0) + found.dual @ B / d
    assert ((q > 0) | (logs < math.log(np.finfo(float).tiny))).all()
    misfit = np.abs(q @ B.T - y).max(-1) / size.max(-1)
    assert misfit.max() <= 1e-14
    np.testing.assert_allclose(found.residual, misfit, atol=20 * EPS, rtol=0)
    # log q and log q0 are rounded, and so is B'dual: its terms may be larger than their sum.
    terms = np.abs(found.dual) @ np.abs(B) / d
    scale = (1 + np.abs(np.log(q0)) + terms).max(-1)
    normal = q > np.finfo(float).tiny
    kkt = np.abs(np.log(np.where(normal, q, 1.0)) - np.where(normal, logs, 0.0)).max(-1)
    assert (kkt / scale).max() < 60 * EPS
    assert (found.kkt / scale).max() < 60 * EPS


def dual_root(B, y, d, q0, start, digits: int = 50) -> np.ndarray:
    """The projection from `B (q0 exp(B'lam / d)) = y`, in multiprecision; rows independent."""
    with mpmath.workdps(digits):
        b = mpmath.matrix(B.tolist())
        n, m = B.shape

        def point(lam):
            powers = [sum(b[i, a] * lam[i] for i in range(n)) / int(d[a]) for a in range(m)]
            return [mpmath.mpf(float(q0[a])) * mpmath.exp(powers[a]) for a in range(m)]

        def misfit(*lam):
            q = point(lam)
            return [sum(b[i, a] * q[a] for a in range(m)) - float(y[i]) for i in range(n)]

        # The dual is strictly concave, so its root does not depend on where the search starts.
        if n == 1:
            lam = [mpmath.findroot(lambda x: misfit(x)[0], float(start[0]))]
        else:
            lam = list(mpmath.findroot(misfit, [float(s) for s in start]))
        return np.array([float(x) for x in point(lam)])


# Closed forms. With x = exp(lam), q_a = q0_a x^(B_a / d_a).


def test_one_row_proportional_to_the_multiplicities_only_rescales():
    d, q0 = np.array([1, 2, 5]), np.array([0.3, 7.0, 0.01])
    found = bregman_projection(2.0 * d[None], np.array([3.0]), d, q0)
    np.testing.assert_allclose(found.q, q0 * 3 / (2 * d @ q0), rtol=20 * EPS)


@pytest.mark.parametrize("q0", [(4.0, 9.0), (1e-100, 1e100), (1e-150, 1e-140)])
@pytest.mark.parametrize("d", [(1, 1), (3, 1), (2, 7)])
def test_equality_of_two_coordinates_is_their_weighted_geometric_mean(q0, d):
    found = bregman_projection(np.array([[1.0, -1.0]]), np.zeros(1), np.array(d), np.array(q0))
    mean = math.exp(np.dot(d, np.log(q0)) / sum(d))
    np.testing.assert_allclose(found.q, mean, rtol=20 * EPS * (1 + np.abs(np.log(q0)).max()))


@pytest.mark.parametrize("y", [1e-8, 0.7, 1e8])
@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (1e-6, 3.0), (5.0, 1e-9)])
def test_quadratic_equation(a, b, y):
    # B = [1, 2], d = 1: a x + 2 b x^2 = y, whose positive root is written without cancellation.
    found = bregman_projection(np.array([[1.0, 2.0]]), np.array([y]), np.ones(2), np.array([a, b]))
    x = 2 * y / (a + math.sqrt(a * a + 8 * b * y))
    np.testing.assert_allclose(found.q, [a * x, b * x * x], rtol=1e-13)


@pytest.mark.parametrize(("a", "b"), [(2.0, 2.0), (1.0, 5.0), (0.01, 0.3)])
def test_shared_coordinate_is_the_product_of_the_others(a, b):
    # q3 = q1 q2 with q1 + q3 = a, q2 + q3 = b.
    B = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    found = bregman_projection(B, np.array([a, b]), np.ones(3), np.ones(3))
    half = (1 - a + b) / 2
    q1 = -half + math.sqrt(half * half + a)
    np.testing.assert_allclose(found.q, [q1, q1 - a + b, q1 * (q1 - a + b)], rtol=1e-13)


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (3, 4), (1, 5)])
def test_a_table_with_given_margins_is_their_product(rows, columns):
    # Row and column sums are redundant: their ranks add to one less than their number.
    rng = np.random.default_rng(rows)
    r, c = rng.uniform(0.1, 1, rows), rng.uniform(0.1, 1, columns)
    r, c = r / r.sum(), c / c.sum()
    B = np.vstack(
        [np.kron(np.eye(rows), np.ones(columns)), np.kron(np.ones(rows), np.eye(columns))]
    )
    q0 = np.full(rows * columns, 1e-30)
    found = bregman_projection(B, np.concatenate([r, c]), np.ones(rows * columns), q0)
    np.testing.assert_allclose(found.q, np.outer(r, c).ravel(), rtol=1e-13)
    assert_optimal(B, np.concatenate([r, c]), np.ones(rows * columns), q0, found)


@pytest.mark.parametrize("m", [1, 2, 6])
@pytest.mark.parametrize("eps", [1.0, 1e-20])
def test_a_square_system_has_one_solution(m, eps):
    rng = np.random.default_rng(m)
    B, q = np.eye(m) + 0.3 * rng.normal(size=(m, m)), rng.uniform(0.5, 2, m)
    found = bregman_projection(B, B @ q, np.ones(m), np.full(m, eps))
    np.testing.assert_allclose(found.q, q, rtol=1e-13 * np.linalg.cond(B))


def test_experiment_6():
    # The initial factor is eps times the identity, so q0 = eps^2.
    B, y, d = EXPERIMENT_6
    q = bregman_projection(B, y, d, np.full(4, 0.005**2)).q
    assert d @ q - 1.3 == pytest.approx(1.086e-3, abs=5e-7)
    assert np.linalg.norm(q - [0.35, 0.35, 0.3, 0]) == pytest.approx(8.58e-4, abs=5e-7)


def test_a_feasible_start_is_its_own_projection():
    B, _, d = system(4, 9)
    q0 = np.random.default_rng(5).uniform(0.5, 2, 9)
    found = bregman_projection(B, B @ q0, d, q0)
    np.testing.assert_allclose(found.q, q0, rtol=100 * EPS)
    np.testing.assert_allclose(found.dual, 0, atol=100 * EPS)


# Independent solvers.


@pytest.mark.parametrize("eps", [1.0, 1e-6, 1e-40, 1e-150])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 4), (2, 3), (3, 6), (4, 5)])
def test_matches_mpmath_at_50_digits(n, m, eps):
    B, y, d = system(n, m, seed=10 * n + m)
    q0 = eps * np.random.default_rng(1).uniform(0.5, 2, m)
    found = bregman_projection(B, y, d, q0)
    assert_optimal(B, y, d, q0, found)
    expected = dual_root(B, y, d, q0, found.dual)
    # Coordinates that stay small carry the rounding of logarithms as large as |log eps|.
    rounding = 1e2 * np.linalg.cond(B) * EPS * (1 + abs(math.log(eps)))
    np.testing.assert_allclose(found.q, expected, rtol=rounding)


@pytest.mark.parametrize("seed", range(4))
def test_q0_over_two_hundred_orders_of_magnitude(seed):
    B, y, d = system(3, 7, seed=seed)
    q0 = 10.0 ** np.random.default_rng(seed).uniform(-100, 100, 7)
    q0[:2] = 1e-100, 1e100
    found = bregman_projection(B, y, d, q0)
    assert_optimal(B, y, d, q0, found)
    expected = dual_root(B, y, d, q0, found.dual, digits=250)  # q may exceed y by 1e100
    np.testing.assert_allclose(found.q, expected, rtol=1e2 * np.linalg.cond(B) * EPS * 300)


@pytest.mark.parametrize("seed", range(3))
def test_matches_the_exponential_cone_of_clarabel(seed):
    """min sum d_a (t_a - q_a) with (-t_a, q_a, q0_a) in the cone y exp(x/y) <= z."""
    n, m = 5, 12
    B, y, d = system(n, m, seed=seed)
    q0 = np.random.default_rng(seed).uniform(0.1, 1, m)
    rows, constant = np.zeros((3 * m, 2 * m)), np.zeros(3 * m)
    for a in range(m):
        rows[3 * a, m + a] = 1.0  # s = b - Ax = -t
        rows[3 * a + 1, a] = -1.0
        constant[3 * a + 2] = q0[a]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    solver = clarabel.DefaultSolver(
        scipy.sparse.csc_matrix((2 * m, 2 * m)),
        np.concatenate([-d, d]).astype(float),
        scipy.sparse.csc_matrix(np.vstack([np.hstack([B, np.zeros((n, m))]), rows])),
        np.concatenate([y, constant]),
        [clarabel.ZeroConeT(n)] + [clarabel.ExponentialConeT()] * m,
        settings,
    )
    expected = np.array(solver.solve().x[:m])
    found = bregman_projection(B, y, d, q0).q
    # A gap of 1e-10 in a strongly convex objective leaves its square root in the point.
    np.testing.assert_allclose(found, expected, atol=1e-4)
    # The feasible point with the smaller divergence is ours.
    values = bregman_divergence(np.stack([found, np.maximum(expected, 0)]), q0, d)
    assert values[0] <= values[1] + 1e-7


# Well-posed systems of every kind.


@pytest.mark.parametrize(
    ("n", "m", "rank"), [(1, 1, 1), (6, 4, 2), (8, 20, 3), (5, 5, 4), (40, 10, 9)]
)
@pytest.mark.parametrize("eps", [1.0, 1e-150])
def test_redundant_rows(n, m, rank, eps):
    B, y, d = system(n, m, rank=rank)
    q0 = np.full(m, eps)
    found = bregman_projection(B, y, d, q0)
    assert_optimal(B, y, d, q0, found)
    # Only the row space matters: an orthonormal basis of it gives the same point.
    _, _, vh = np.linalg.svd(B)
    basis = vh[:rank]
    other = bregman_projection(basis, basis @ found.q, d, q0)
    np.testing.assert_allclose(other.q, found.q, rtol=1e-10)


@pytest.mark.parametrize("row", [0, 2])
def test_zero_rows_and_repeated_rows_do_not_matter(row):
    B, y, d = EXPERIMENT_6
    more = np.insert(np.vstack([B, -1e6 * B[0]]), row, 0.0, axis=0)
    target = np.insert(np.append(y, -1e6 * y[0]), row, 0.0)
    q0 = np.full(4, 1e-3)
    found = bregman_projection(more, target, d, q0)
    np.testing.assert_allclose(found.q, bregman_projection(B, y, d, q0).q, rtol=1e-13)
    assert found.dual.shape == (4,)


def test_nothing_measured_leaves_the_start():
    q0 = np.array([1.0, 2.0])
    found = bregman_projection(np.zeros((1, 2)), np.zeros(1), np.ones(2), q0)
    np.testing.assert_allclose(found.q, q0, rtol=2 * EPS)
    assert found.status is Status.CONVERGED


@pytest.mark.parametrize("eps", [1.0, 1e-10, 1e-50, 1e-150])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_small_initialization(eps, scale):
    B, y, d = EXPERIMENT_6
    q0 = np.full(4, eps)
    assert_optimal(B, scale * y, d, q0, bregman_projection(B, scale * y, d, q0))


def test_homogeneous_systems():
    rng = np.random.default_rng(0)
    B = rng.normal(size=(3, 8))
    B[:, -1] = -B[:, :-1].sum(1)  # q = 1 solves Bq = 0
    for q0 in (np.ones(8), rng.uniform(0.1, 1, 8), 10.0 ** rng.uniform(-60, 60, 8)):
        found = bregman_projection(B, np.zeros(3), np.arange(1, 9), q0)
        assert_optimal(B, np.zeros(3), np.arange(1, 9), q0, found)


def test_a_degenerate_linear_program():
    # Every vertex of a 3 x 3 assignment polytope is degenerate, and all of its faces are optimal.
    B = np.vstack([np.kron(np.eye(3), np.ones(3)), np.kron(np.ones(3), np.eye(3))])
    q0 = 1e-80 * np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 10])
    found = bregman_projection(B, np.ones(6), np.ones(9), q0)
    assert_optimal(B, np.ones(6), np.ones(9), q0, found)
    # Scaling rows and columns keeps cross ratios (Sinkhorn), and here nothing is forced to zero.
    q, start = found.q.reshape(3, 3), q0.reshape(3, 3) / 1e-80
    found_ratio, ratio = (x[0, 0] * x[1, 1] / (x[0, 1] * x[1, 0]) for x in (q, start))
    assert found_ratio == pytest.approx(ratio, rel=1e-11)


@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-9, 1e-12])
def test_nearly_infeasible_but_not(gap):
    # q2 = 1 - (1 - gap), known only to rounding of the ones.
    found = bregman_projection(
        np.array([[1.0, 1.0], [1.0, 0.0]]), np.array([1.0, 1.0 - gap]), np.ones(2), np.ones(2)
    )
    assert found.status is Status.CONVERGED
    assert found.residual <= 1e-14
    np.testing.assert_allclose(found.q, [1 - gap, gap], atol=20 * EPS)


def test_many_coordinates_take_few_steps():
    B, y, d = system(50, 20_000)
    q0 = np.full(20_000, 1e-3)
    found = bregman_projection(B, y, d, q0)
    assert found.steps <= 20
    assert_optimal(B, y, d, q0, found)


def test_batch_over_q0_equals_single_calls():
    B, y, d = system(3, 6)
    scales = np.array([[1.0, 1e-3], [1e-50, 1e-150]])
    q0 = scales[..., None] * np.random.default_rng(2).uniform(0.5, 2, 6)
    found = bregman_projection(B, y, d, q0)
    assert found.q.shape == (2, 2, 6)
    assert found.dual.shape == (2, 2, 3)
    assert found.residual.shape == found.kkt.shape == (2, 2)
    assert_optimal(B, y, d, q0, found)
    for index in np.ndindex(2, 2):
        single = bregman_projection(B, y, d, q0[index])
        np.testing.assert_allclose(found.q[index], single.q, rtol=1e-11)


@pytest.mark.parametrize("shapes", [((4,), ()), ((3, 1), (4,)), ((1,), (4,))])
def test_batch_over_y(shapes):
    B, _, d = system(3, 6)
    rng = np.random.default_rng(3)
    y = rng.uniform(0.2, 2, (*shapes[0], 6)) @ B.T
    q0 = 10.0 ** rng.uniform(-20, 1, (*shapes[1], 6))
    found = bregman_projection(B, y, d, q0)
    batch = np.broadcast_shapes(*shapes)
    assert found.q.shape == (*batch, 6)
    assert_optimal(B, y, d, q0, found)
    full_y, full_q0 = np.broadcast_to(y, (*batch, 3)), np.broadcast_to(q0, (*batch, 6))
    for index in np.ndindex(*batch):
        single = bregman_projection(B, full_y[index], d, full_q0[index])
        np.testing.assert_allclose(found.q[index], single.q, rtol=1e-11)


def test_empty_batch():
    B, y, d = system(3, 6)
    found = bregman_projection(B, y, d, np.ones((0, 6)))
    assert found.q.shape == (0, 6)
    assert found.dual.shape == (0, 3)
    assert found.residual.shape == (0,)


@pytest.mark.parametrize("eps", [1.0, 1e-30])
def test_float32_and_torch(eps):
    B, y, d = EXPERIMENT_6
    q0 = np.full(4, eps)
    expected = bregman_projection(B, y, d, q0).q
    single = [x.astype(np.float32) for x in (B, y, d, q0)]
    found = bregman_projection(*single)
    assert found.q.dtype == np.float32
    assert found.status is Status.CONVERGED
    # Single precision of logarithms as large as 70.
    np.testing.assert_allclose(found.q, expected, rtol=1e2 * 70 * 1.2e-7)
    tensor = bregman_projection(*(torch.from_numpy(np.asarray(x, float)) for x in (B, y, d, q0)))
    assert isinstance(tensor.q, torch.Tensor)
    np.testing.assert_array_equal(tensor.q.numpy(), expected)


@pytest.mark.parametrize("argument", ["B", "y", "multiplicities", "q0"])
def test_tensors_that_require_gradients_are_accepted(argument):
    B, y, d = EXPERIMENT_6
    arguments = {"B": B, "y": y, "multiplicities": d, "q0": np.ones(4)}
    given_ = {name: torch.tensor(value, dtype=torch.float64) for name, value in arguments.items()}
    given_[argument].requires_grad_()
    np.testing.assert_array_equal(
        bregman_projection(**given_).q.numpy(), bregman_projection(**arguments).q
    )


def test_too_few_steps_are_reported():
    B, y, d = EXPERIMENT_6
    assert bregman_projection(B, y, d, np.ones(4), max_steps=1).status is Status.NOT_CONVERGED


# What CONVERGED asserts, and what is said where it cannot be asserted.


@pytest.mark.parametrize("power", [17, 20, 22])
def test_columns_of_different_sizes_are_solved(power):
    # q = (1, 1) exactly. The sums are 2^13 + 2^-power: rounding them hides the second coordinate,
    # and in double precision alone it stays where it began, at 0.7, with a residual of rounding.
    B = np.array([[2.0**13, 2.0**-power], [2.0**13, -(2.0**-power)]])
    found = bregman_projection(B, B @ np.ones(2), np.ones(2), np.array([0.3, 0.7]))
    assert found.status is Status.CONVERGED
    np.testing.assert_allclose(found.q, 1.0, rtol=4 * EPS)


@pytest.mark.parametrize("power", [34, 38])
def test_an_error_that_is_not_bounded_is_not_called_converged(power):
    # As above, with rows so nearly dependent that double-double arithmetic does not decide either.
    B = np.array([[2.0**13, 2.0**-power], [2.0**13, -(2.0**-power)]])
    found = bregman_projection(B, B @ np.ones(2), np.ones(2), np.array([0.3, 0.7]))
    assert found.status is Status.NOT_CONVERGED
    assert found.error > EPS ** (2 / 3)


@pytest.mark.parametrize("power", [20, 40, 48])
def test_a_coordinate_near_zero_keeps_its_digits(power):
    # q_2 = y_1 - y_2 = 2^-power, and q_1 = y_2.
    small = 2.0**-power
    found = bregman_projection(
        np.array([[1.0, 1.0], [1.0, 0.0]]), np.array([1.0, 1.0 - small]), np.ones(2), np.ones(2)
    )
    assert found.status is Status.CONVERGED
    np.testing.assert_allclose(found.q, [1 - small, small], rtol=4 * EPS)
    assert found.error <= EPS ** (2 / 3)


@pytest.mark.parametrize("start", [1e-250, 1e-180, 1e-100])
def test_underflow_is_reported_and_the_logarithm_kept(start):
    # q_1 - q_2 = 1 and q_1 q_2 = start^2: q_2 = start^2 to rounding, which is zero below 1e-162.
    found = bregman_projection(np.array([[1.0, -1.0]]), np.ones(1), np.ones(2), np.full(2, start))
    assert found.status is Status.CONVERGED
    np.testing.assert_array_equal(found.underflow, [False, start < 1e-154])
    np.testing.assert_allclose(found.log_q, [0.0, 2 * math.log(start)], rtol=4 * EPS, atol=4 * EPS)
    assert found.q[0] == pytest.approx(1.0, rel=4 * EPS)
    assert found.q[1] == pytest.approx(start * start, rel=4 * EPS, abs=1e-307)


def test_single_precision_underflows_earlier():
    data = (np.array([[1.0, -1.0]]), np.ones(1), np.ones(2), np.full(2, 1e-25))
    found = bregman_projection(*(x.astype(np.float32) for x in data))
    assert found.status is Status.CONVERGED
    assert found.log_q.dtype == np.float32
    np.testing.assert_array_equal(found.underflow, [False, True])
    np.testing.assert_allclose(found.log_q[1], 2 * math.log(1e-25), rtol=1e-6)


def test_the_bound_covers_the_error_of_an_unfinished_answer():
    # One Newton step from q = 1 towards 1.1 ends at exp(0.1), worked by hand.
    found = bregman_projection(
        np.ones((1, 1)), np.array([1.1]), np.ones(1), np.ones(1), max_steps=1
    )
    assert found.status is Status.NOT_CONVERGED
    assert found.steps == 1
    np.testing.assert_allclose(found.q, math.exp(0.1), rtol=4 * EPS)
    off = abs(math.exp(0.1) / 1.1 - 1)
    assert off < found.error < 6 * off


@pytest.mark.parametrize("eps", [1.0, 1e-100])
def test_the_budget_of_steps_is_kept(monkeypatch, eps):
    """Steps are counted where they are made, and what is said after them is true."""
    moves = 0
    evaluate = _dual._line_search

    def counted(*args):
        nonlocal moves
        moves += 1
        return evaluate(*args)

    monkeypatch.setattr(_dual, "_line_search", counted)
    B, y, d = EXPERIMENT_6
    q0 = np.full(4, eps)
    exact = dual_root(B, y, d, q0, bregman_projection(B, y, d, q0).dual, digits=150)
    seen = []
    for budget in range(1, 40):
        moves = 0
        found = bregman_projection(B, y, d, q0, max_steps=budget)
        assert moves <= found.steps <= budget
        off = np.abs(found.q / exact - 1).max()
        assert off <= found.error
        assert (found.status is Status.CONVERGED) == (found.error <= EPS ** (2 / 3))
        seen.append(found.status)
    assert seen[0] is Status.NOT_CONVERGED
    assert seen[-1] is Status.CONVERGED


@pytest.mark.parametrize("start", [1.0, 0.0])
def test_a_budget_spent_on_the_path_leaves_none_for_the_end(start):
    """`project` itself: from a far start every budget is kept, and too small a one is said."""
    B, y, d = (torch.as_tensor(x, dtype=torch.float64) for x in EXPERIMENT_6)
    family = SpectralFamily(prepare(B, y, d)[0], torch.Size([1]))
    L0 = torch.full((1, 4), -200.0 + start, dtype=torch.float64)
    full = _dual.project(family, L0, max_steps=500)
    assert bool(full.converged.all())
    for budget in range(1, full.steps):
        short = _dual.project(family, L0, max_steps=budget)
        assert short.steps <= budget
        assert not bool(short.converged.any())


def test_a_step_length_is_bracketed_by_hand():
    """Slopes `1 - t/10`: 1, 4, 16 and half way, 10; `1 - 10 t`: halved to 1/8; `1 - t`: at once."""
    rates = torch.tensor([0.1, 10.0, 1.0], dtype=torch.float64)
    found = _dual._bracket_root(lambda t: 1 - rates * t, torch.ones_like(rates))
    assert found.tolist() == [10.0, 0.125, 1.0]


@pytest.mark.parametrize("n", [8, 12, 20])
def test_eigenvalues_that_are_zero_up_to_rounding_carry_no_step(n):
    """G = VV' of half the rank: with W = V of rows of length 1, the step is `W (W'W)^-2 W'b`.

    Rounding leaves eigenvalues of up to about eps times the largest in place of zeros.
    """
    for seed in range(3):
        rng = np.random.default_rng(seed)
        V = rng.standard_normal((n, n // 2))
        right = V @ (V.T @ V @ rng.standard_normal(n // 2))
        s = 1 / np.linalg.norm(V, axis=1)
        W = s[:, None] * V
        inside = np.linalg.inv(W.T @ W)
        expected = s * (W @ (inside @ (inside @ (W.T @ (s * right)))))
        found = solve_semidefinite(torch.from_numpy(V @ V.T)[None], torch.from_numpy(right)[None])[
            0
        ]
        # W'W has a condition number of at most 30 and enters twice: 900 eps is 2e-13.
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


# Laws.

positive = st.floats(0.05, 20.0)


@given(
    seed=st.integers(0, 50),
    c=st.floats(1e-30, 1e30),
    q0=st.lists(positive, min_size=5, max_size=5),
)
def test_scaling_y_and_q0_scales_the_projection(seed, c, q0):
    B, y, d = system(2, 5, seed=seed)
    one = bregman_projection(B, y, d, np.array(q0))
    other = bregman_projection(B, c * y, d, c * np.array(q0))
    rounding = 1e3 * np.linalg.cond(B) * EPS * (1 + abs(math.log(c)))
    np.testing.assert_allclose(other.q, c * one.q, rtol=rounding)


@given(seed=st.integers(0, 50), order=st.permutations(range(5)))
def test_the_order_of_coordinates_does_not_matter(seed, order):
    B, y, d = system(2, 5, seed=seed)
    q0 = np.random.default_rng(seed).uniform(0.1, 2, 5)
    one = bregman_projection(B, y, d, q0)
    other = bregman_projection(B[:, order], y, d[order], q0[order])
    np.testing.assert_allclose(other.q, one.q[order], rtol=1e3 * np.linalg.cond(B) * EPS)


@given(seed=st.integers(0, 50), c=st.floats(0.01, 100))
def test_row_operations_change_the_dual_only(seed, c):
    B, y, d = system(3, 6, seed=seed)
    q0 = np.random.default_rng(seed).uniform(0.1, 2, 6)
    T = np.diag([c, -1.0, 1.0]) + np.eye(3, k=1)
    one = bregman_projection(B, y, d, q0)
    other = bregman_projection(T @ B, T @ y, d, q0)
    rounding = 1e3 * np.linalg.cond(B) * np.linalg.cond(T) * EPS
    np.testing.assert_allclose(other.q, one.q, rtol=rounding)
    np.testing.assert_allclose(
        other.dual @ T, one.dual, atol=rounding * (1 + np.abs(one.dual).max())
    )


@given(seed=st.integers(0, 50))
def test_pythagorean_identity(seed):
    """`D(p, q0) = D(p, q) + D(q, q0)` for every feasible p, which makes q the minimiser."""
    B, y, d = system(2, 5, seed=seed)
    rng = np.random.default_rng(seed)
    q0 = rng.uniform(0.1, 2, 5)
    q = bregman_projection(B, y, d, q0).q
    _, _, vh = np.linalg.svd(B)
    direction = rng.normal(size=3) @ vh[2:]
    p = q + 0.9 * direction / np.abs(direction / q).max()  # feasible, short of zero
    left = bregman_divergence(p, q0, d)
    right = bregman_divergence(p, q, d) + bregman_divergence(q, q0, d)
    size = d @ (p * (1 + np.abs(np.log(p / q0))) + q + q0)
    assert abs(left - right) < 1e3 * EPS * size


# Infeasible systems.


def assert_proves(B, y, error: InfeasibleError) -> None:
    """A Farkas vector in terms of the rows that the user passed."""
    z = np.asarray(error.farkas, dtype=float)
    assert z.shape == (len(B),)
    size = np.abs(z) @ np.abs(B)
    assert (z @ B >= -1e-9 * size).all()
    assert y @ z <= 1e-9 * (np.abs(y) @ np.abs(z))


INFEASIBLE = {
    "negative": ([[1.0, 1.0]], [-1.0]),
    "subset larger": ([[1.0, 1.0], [1.0, 0.0]], [1.0, 2.0]),
    "badly scaled": ([[1e4, 1e4], [1.0, 0.0]], [1e4, 2.0]),
    "pivoted": ([[0.1, 0.0, 0.0], [1.0, 2.0, 3.0], [0.0, 1.0, 1.0]], [1.0, 1.0, 0.5]),
    "redundant": ([[1.0, 1.0], [2.0, 2.0], [1.0, 0.0]], [1.0, 2.0, 2.0]),
    "signs": ([[1.0, 1.0, -1.0], [0.0, 1.0, 1.0]], [-3.0, 1.0]),
    "nearly": ([[1.0, 1.0], [1.0, 0.0]], [1.0, 1.0 + 1e-5]),
}


@pytest.mark.parametrize("eps", [1.0, 1e-20])
@pytest.mark.parametrize("name", INFEASIBLE)
def test_infeasible_systems_are_refused_with_a_proof(name, eps):
    B, y = (np.array(part) for part in INFEASIBLE[name])
    m = B.shape[1]
    # The proof does not depend on how long Newton's method tried.
    with pytest.raises(InfeasibleError) as caught:
        bregman_projection(B, y, np.ones(m), np.full(m, eps), max_steps=20)
    assert caught.value.argument == "y"
    assert caught.value.forced_zero == ()
    assert_proves(B, y, caught.value)
    assert y @ np.asarray(caught.value.farkas) < 0


@pytest.mark.parametrize("gap", [1e-8, 1e-10, 1e-12, 1e-14])
def test_barely_infeasible_systems_are_never_called_solved(gap):
    B, y = np.array([[1.0, 1.0], [1.0, 0.0]]), np.array([1.0, 1.0 + gap])
    with pytest.raises(InfeasibleError) as caught:
        bregman_projection(B, y, np.ones(2), np.ones(2), max_steps=60)
    assert_proves(B, y, caught.value)


def test_refusal_takes_few_evaluations(monkeypatch):
    """Newton gives up on an unbounded dual after tens of steps, not after its whole budget."""
    count = 0
    evaluate = SpectralFamily.values_and_gram

    def counted(self, L):
        nonlocal count
        count += 1
        return evaluate(self, L)

    monkeypatch.setattr(SpectralFamily, "values_and_gram", counted)
    with pytest.raises(InfeasibleError):
        bregman_projection(np.ones((1, 2)), -np.ones(1), np.ones(2), np.ones(2))
    assert count <= 100


FORCED = {
    "zero sum": ([[1.0, 1.0]], [0.0], (0, 1)),
    "last": ([[1.0, 1.0], [1.0, 0.0]], [1.0, 1.0], (1,)),
    "same sum": ([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]], [1.0, 1.0], (2,)),
    "one row": ([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [2.0, 0.0], (2,)),
    "difference": ([[1.0, -1.0, 0.0, 0.0], [1.0, -1.0, 1.0, 2.0]], [0.5, 0.5], (2, 3)),
    "redundant": ([[1.0, 1.0], [2.0, 2.0], [1.0, 0.0]], [1.0, 2.0, 1.0], (1,)),
}


@pytest.mark.parametrize("eps", [1.0, 1e-20])
@pytest.mark.parametrize("name", FORCED)
def test_coordinates_forced_to_zero_are_named(name, eps):
    B, y, forced = FORCED[name]
    B, y = np.array(B), np.array(y)
    m = B.shape[1]
    with pytest.raises(InfeasibleError) as caught:
        bregman_projection(B, y, np.ones(m), np.full(m, eps), max_steps=60)
    assert caught.value.forced_zero == forced
    assert_proves(B, y, caught.value)
    z = np.asarray(caught.value.farkas)
    assert abs(y @ z) <= 1e-9 * max(np.abs(y) @ np.abs(z), 1e-300)
    # z itself shows each of them, and shows nothing of the others.
    assert tuple(np.flatnonzero(z @ B > 1e-6 * np.abs(z).max())) == forced


@pytest.mark.parametrize("batch", [(), (3,)])
def test_y_outside_the_range_is_refused_before_work(monkeypatch, batch):
    B = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0], [2.0, 5.0, 1.0]])  # third: 2 first + second
    y = np.broadcast_to(B @ np.ones(3), (*batch, 3)).copy()
    y[..., 2] += 1e-6

    def refuse(*args, **kwargs):
        raise AssertionError("work began")

    monkeypatch.setattr("posquad.selection.projection.project", refuse)
    with pytest.raises(InfeasibleError, match="range of B") as caught:
        bregman_projection(B, y, np.ones(3), np.ones(3))
    z = np.asarray(caught.value.farkas)
    np.testing.assert_allclose(z @ B, 0, atol=50 * EPS * np.abs(z).max())
    assert (y @ z).min() < -1e-7 * np.abs(z).max()


@pytest.mark.parametrize("bad", [0, 2])
def test_one_infeasible_element_refuses_the_batch(bad):
    B = np.array([[1.0, 1.0], [1.0, 0.0]])
    y = np.tile([1.0, 0.5], (3, 1))
    y[bad] = 1.0, 2.0
    with pytest.raises(InfeasibleError) as caught:
        bregman_projection(B, y, np.ones(2), np.ones(2), max_steps=20)
    assert_proves(B, y[bad], caught.value)


# The divergence.


def exact_divergence(p, q, d) -> float:
    with mpmath.workdps(50):
        total = mpmath.mpf(0)
        for x, z, w in zip(p, q, d, strict=True):
            x, z = mpmath.mpf(float(x)), mpmath.mpf(float(z))
            total += int(w) * ((x * mpmath.log(x / z) if x else 0) - x + z)
        return float(total / 4)


@pytest.mark.parametrize("relative", [0.0, 1e-15, 1e-12, 1e-8, 1e-5, 9e-4, 1.1e-3, 0.1, 0.9, 30])
def test_divergence_matches_mpmath_also_at_nearly_equal_points(relative):
    for scale in (1e-200, 1.0, 1e200):
        rng = np.random.default_rng(0)
        q, d = scale * rng.uniform(0.5, 2, 6), rng.integers(1, 5, 6)
        p = q * (1 + relative * rng.uniform(-1, 1, 6).clip(-1 / max(relative, 1), 1))
        # Where the series ends (1e-3) the bracket t^2/2 is left of terms of size t: 2e3 roundings.
        expected = exact_divergence(p, q, d)
        assert bregman_divergence(p, q, d) == pytest.approx(expected, rel=4e3 * EPS, abs=0)


def test_divergence_at_the_boundary_and_far_apart():
    p, q = np.array([0.0, 1.0, 1e-300, 1e100]), np.array([2.0, 1e-300, 1.0, 1e-100])
    d = np.array([1, 2, 3, 4])
    for pair in ((p, q), (q, p + 1e-100), (p[:2], q[:2]), (p[2:3], q[2:3])):
        weights = d[: len(pair[0])]
        expected = exact_divergence(*pair, weights)
        assert bregman_divergence(*pair, weights) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize(("p", "q"), [(1e200, 1e-200), (1.0, 1e-310), (1e-200, 1e200)])
def test_divergence_where_the_ratio_overflows(p, q):
    p, q, d = np.array([p]), np.array([q]), np.ones(1)
    assert bregman_divergence(p, q, d) == pytest.approx(exact_divergence(p, q, d), rel=1e-13)


def test_divergence_batches_and_kinds():
    rng = np.random.default_rng(1)
    p, q, d = rng.uniform(0, 1, (3, 1, 4)), rng.uniform(0.1, 1, (2, 4)), np.arange(1, 5)
    found = bregman_divergence(torch.from_numpy(p), torch.from_numpy(q), torch.from_numpy(d))
    assert found.shape == (3, 2)
    for i, j in np.ndindex(3, 2):
        assert float(found[i, j]) == pytest.approx(exact_divergence(p[i, 0], q[j], d), rel=1e-13)
    single = bregman_divergence(p.astype(np.float32), q.astype(np.float32), d.astype(np.float32))
    assert single.dtype == np.float32


# Bad input.

GOOD = {"B": EXPERIMENT_6[0], "y": EXPERIMENT_6[1], "multiplicities": EXPERIMENT_6[2]}
BAD_PROJECTION = [
    ("q0", np.array([1.0, 0.0, 1.0, 1.0]), DomainError),
    ("q0", np.array([1.0, -1.0, 1.0, 1.0]), DomainError),
    ("q0", np.array([[1.0] * 4, [1.0, 1.0, 1.0, -1e-300]]), DomainError),
    ("q0", np.ones(3), ShapeError),
    ("q0", np.float64(1.0), ShapeError),
    ("q0", np.array([1.0, np.nan, 1.0, 1.0]), NonFiniteError),
    ("q0", np.array([1.0, np.inf, 1.0, 1.0]), NonFiniteError),
    ("q0", np.ones(4, dtype=complex), DtypeError),
    ("q0", "text", DtypeError),
    ("multiplicities", np.array([1, 0, 1, 1]), DomainError),
    ("multiplicities", np.array([1, -2, 1, 1]), DomainError),
    ("multiplicities", np.ones(3), ShapeError),
    ("multiplicities", np.ones((1, 4)), ShapeError),
    ("multiplicities", np.array([1, np.nan, 1, 1]), NonFiniteError),
    ("multiplicities", np.ones(4, dtype=np.float16), DtypeError),
    ("y", np.ones(3), ShapeError),
    ("y", np.float64(1.0), ShapeError),
    ("y", np.array([1.0, np.nan]), NonFiniteError),
    ("y", np.ones(2, dtype=complex), DtypeError),
    ("B", np.ones(4), ShapeError),
    ("B", np.ones((0, 4)), ShapeError),
    ("B", np.ones((2, 0)), ShapeError),
    ("B", np.ones((1, 2, 4)), ShapeError),
    ("B", np.full((2, 4), np.inf), NonFiniteError),
    ("B", np.ones((2, 4), dtype=complex), DtypeError),
    ("max_steps", 0, DomainError),
    ("max_steps", 2.5, DomainError),
    ("max_steps", True, DomainError),
]


@pytest.mark.parametrize(("argument", "value", "kind"), BAD_PROJECTION)
def test_bad_input_of_the_projection(monkeypatch, argument, value, kind):
    monkeypatch.setattr("posquad.selection.projection.project", None)  # nothing starts
    with pytest.raises(kind) as caught:
        bregman_projection(**{**GOOD, "q0": np.ones(4), argument: value})
    assert caught.value.argument == argument
    assert caught.value.expected
    assert caught.value.got


def test_batches_must_broadcast():
    B, y, d = EXPERIMENT_6
    with pytest.raises(ShapeError) as caught:
        bregman_projection(B, np.tile(y, (3, 1)), d, np.ones((2, 4)))
    assert caught.value.argument == "y, q0"


@pytest.mark.parametrize(
    ("argument", "value", "kind"),
    [
        ("p", np.array([1.0, -1.0]), DomainError),
        ("p", np.ones(3), ShapeError),
        ("p", np.array([1.0, np.nan]), NonFiniteError),
        ("p", np.ones(2, dtype=complex), DtypeError),
        ("q", np.array([1.0, 0.0]), DomainError),
        ("q", np.array([1.0, -1.0]), DomainError),
        ("q", np.ones(3), ShapeError),
        ("q", np.array([1.0, np.inf]), NonFiniteError),
        ("multiplicities", np.array([1, 0]), DomainError),
        ("multiplicities", np.array([1, -1]), DomainError),
        ("multiplicities", np.ones(3), ShapeError),
        ("multiplicities", np.ones((2, 2)), ShapeError),
        ("multiplicities", np.array([1, np.nan]), NonFiniteError),
    ],
)
def test_bad_input_of_the_divergence(argument, value, kind):
    arguments = {"p": np.ones(2), "q": np.ones(2), "multiplicities": np.ones(2)}
    with pytest.raises(kind) as caught:
        bregman_divergence(**{**arguments, argument: value})
    assert argument in caught.value.argument or kind is ShapeError
    assert caught.value.expected
    assert caught.value.got


def test_redundant_rows_with_zero_right_hand_sides_are_consistent():
    """Row 3 is row 1 minus row 2 exactly; a dependency of rounding size is no contradiction."""
    B = np.array(
        [
            [1, 0, 1, -2, 1, -2, 0, -2],
            [2, 0, 0, 0, -1, 1, -1, 0],
            [0, 1, -1, 2, -1, 2, 0, -2],
            [2, -1, 1, -2, 0, -1, -1, 2.0],
        ]
    )
    y = np.array([-2.0, 0, 0, 0])
    found = bregman_projection(B, y, np.ones(8), np.full(8, 0.5))
    assert found.status is Status.CONVERGED
    assert np.abs(B @ found.q - y).max() < 1e-14


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_the_scale_of_the_rows_does_not_matter(scale):
    B, y = np.array([[1.0, 1, 1, 0], [0, 0, 1, 1]]), np.array([1.0, 0.3])
    d, q0 = np.array([1, 1, 2, 3]), np.ones(4)
    plain, scaled = (bregman_projection(c * B, c * y, d, q0) for c in (1.0, scale))
    assert scaled.status is Status.CONVERGED
    np.testing.assert_allclose(scaled.q, plain.q, rtol=1e-13)


@pytest.mark.parametrize("margin", [1e-6, 1e-9, 1e-12])
def test_the_boundary_of_feasibility_is_drawn_by_proofs(margin):
    """q_1 = 1 - q_0 and q_2 = q_0 - y_1: positive solutions exist exactly when y_1 < 1."""
    B = np.array([[1.0, 1, 0], [1, 0, -1]])
    inside = bregman_projection(B, np.array([1.0, 1 - margin]), np.ones(3), np.full(3, 0.1))
    assert inside.status is Status.CONVERGED
    assert (inside.q > 0).all()
    y = np.array([1.0, 1 + margin])
    with pytest.raises(InfeasibleError) as caught:
        bregman_projection(B, y, np.ones(3), np.full(3, 0.1))
    z = caught.value.farkas.numpy()
    assert caught.value.forced_zero == ()
    assert (B.T @ z >= -1e-15).all()
    assert y @ z < 0


def test_forced_zeros_of_many_coordinates_fit_in_memory():
    """The proof works on m + n sparse rows: a dense identity of this size would be 3 GB."""
    m = 20_000
    rng = np.random.default_rng(0)
    B = np.abs(rng.standard_normal((3, m)))
    B[0] = 0
    B[0, 0] = 1
    q = rng.exponential(size=m)
    q[0] = 0
    with pytest.raises(InfeasibleError) as caught:
        bregman_projection(B, B @ q, np.ones(m), np.ones(m))
    assert caught.value.forced_zero == (0,)


def test_a_proof_of_infeasibility_does_not_depend_on_its_length():
    """B = I, y = (-1, 0): z = (1, 1e-9) is polished to (1, 0), however long it comes."""
    for length in (1e-12, 1.0, 1e12):
        z, forced = _checked(np.eye(2), np.array([-1.0, 0.0]), length * np.array([1.0, 1e-9]))
        np.testing.assert_allclose(z, [1.0, 0.0], atol=1e-16)
        assert forced == ()
    assert _checked(np.eye(2), np.array([-1.0, 0.0]), np.zeros(2)) is None
    assert _checked(np.eye(2), np.array([1.0, 0.0]), np.array([-1.0, 0.0])) is None
    # y'z = 0 and B'z = (0, 1): the second coordinate vanishes in every solution.
    assert _checked(np.eye(2), np.array([1.0, 0.0]), np.array([0.0, 5.0]))[1] == (1,)


def test_rows_that_differ_only_in_a_column_of_small_units_are_independent():
    """`q_1 + 1e-20 q_2 = 2` and `q_1 + 2e-20 q_2 = 3` have the one solution (1, 1e20)."""
    B = np.array([[1.0, 1e-20], [1.0, 2e-20]])
    found = bregman_projection(B, np.array([2.0, 3.0]), np.ones(2), np.array([1.0, 1e20]))
    assert found.status is Status.CONVERGED
    assert found.q == pytest.approx([1.0, 1e20], rel=1e-14)
