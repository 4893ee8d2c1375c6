"""`positive_fit`: least squares over positive semidefinite matrices of any rank, with its proof.

Oracles: closed forms, Clarabel, the conditions of optimality in 50 digits, and exact fractions.
`Q >= 0` is optimal if and only if `G = A*(A(Q) - y)` is positive semidefinite and `<G, Q> = 0`.
"""

from __future__ import annotations

import math
import time
from dataclasses import fields

import mpmath
import numpy as np
import pytest
import torch

from adversarial.rational import is_positive_semidefinite, weighted_gram
from positive_support import clarabel_fit
from posquad import RankOne
from posquad.certificates import proved_least_residual, proves_infeasible
from posquad.recovery.budget import Budget
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.cone import PositiveFit, positive_fit
from posquad.recovery.solvers.interior_point import InteriorPoint, _rescaled

SIZES = [  # n < d, n = d, around d(d+1)/4, n = D - 1, D, D + 1, and more than 3 D
    *[(1, 1), (4, 1), (2, 3), (3, 3), (4, 4), (5, 4), (9, 4), (10, 4), (11, 4), (40, 4)],
    *[(5, 9), (20, 9), (44, 9), (45, 9), (46, 9), (160, 9)],
]


def fit(X, y, *, level=1e-12, **limits) -> PositiveFit:
    limits = {"max_steps": 10_000, **limits}
    problem = Problem(RankOne(torch.as_tensor(X)), torch.as_tensor(y))
    return positive_fit(problem, Budget(**limits), level=level)


def matrix(found: PositiveFit) -> np.ndarray:
    return (found.factor @ found.factor.mT).numpy()


def residual(X, y, Q) -> np.ndarray:
    return np.einsum("...ni,...ij,...nj->...n", X, Q, X) - y


def clarabel_residual(X: np.ndarray, y: np.ndarray) -> float:
    """The least `||A(Q) - y||` over positive semidefinite Q, by Clarabel."""
    return float(np.linalg.norm(np.einsum("ni,ij,nj->n", X, clarabel_fit(X, y), X) - y))


# Closed forms.


def test_one_dimension():
    """`q = max(0, sum x^2 y / sum x^4)`."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((50, 6, 1)), rng.standard_normal((50, 6))
    found = fit(X, y)
    squares = X[..., 0] ** 2
    q = np.maximum((squares * y).sum(1) / (squares**2).sum(1), 0.0)
    assert 10 < (q > 0).sum() < 40
    assert matrix(found)[:, 0, 0] == pytest.approx(q, rel=1e-12, abs=1e-14)
    assert bool(found.optimal.all())


def test_coordinate_inputs():
    """`X = I` measures the diagonal: `Q_ii = max(y_i, 0)`, and `z = max(-y, 0)` proves it."""
    y = np.array([3.0, -4.0, 0.5, -0.1, 0.0])
    found = fit(np.eye(5), y)
    # ||A(Q) - A(Q*)||^2 <= ||e||^2 - ||e*||^2 for the projection Q* onto a convex set.
    apart = np.diag(matrix(found)) - np.maximum(y, 0)
    assert np.abs(apart[:4]).max() < 1e-10
    assert np.linalg.norm(apart) <= float(found.gap.sqrt() * found.residual) * np.linalg.norm(y)
    least = np.linalg.norm(np.minimum(y, 0)) / np.linalg.norm(y)
    assert float(found.residual) == pytest.approx(least, rel=1e-10)
    assert found.farkas.numpy()[:4] == pytest.approx(np.maximum(-y, 0)[:4], abs=1e-10)
    assert bool(found.infeasible)
    assert not bool(found.interpolates)


@pytest.mark.parametrize(("n", "d"), [(1, 2), (3, 5), (6, 6), (8, 20)])
@pytest.mark.parametrize("seed", range(3))
def test_independent_inputs_fit_exactly_the_nonnegative_responses(n, d, seed):
    """For n <= d, `A(Q)` takes every y >= 0 and no other: the least residual is that part of y."""
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, d)), rng.standard_normal(n)
    y[0] = abs(y[0])
    for response in (np.abs(y), y):
        found = fit(X, response)
        least = np.linalg.norm(np.minimum(response, 0)) / np.linalg.norm(response)
        assert float(found.residual) == pytest.approx(least, rel=1e-9, abs=1e-12)
        assert bool(found.interpolates) == (least == 0)
        assert bool(found.infeasible) == (least > 0)
        assert bool(found.optimal)


def test_hand_made_boundary_optimum():
    """The inputs determine [[1, 1], [1, 0]], which is indefinite; conditions in 50 digits."""
    X, y = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), np.array([1.0, 0.0, 3.0])
    found = fit(X, y)
    with mpmath.workdps(50):
        L, inputs = mpmath.matrix(found.factor.numpy()), mpmath.matrix(X)
        Q = L * L.T
        G, e = mpmath.zeros(2), []
        for i in range(3):
            x = inputs[i, :].T
            e.append((x.T * Q * x)[0] - mpmath.mpf(y[i]))
            G += e[i] * x * x.T
        slope = sum(G[a, b] * Q[a, b] for a in range(2) for b in range(2))
        assert min(mpmath.eigsy(G, eigvals_only=True)) > -1e-10
        assert abs(slope) < 1e-10
        least = mpmath.norm(mpmath.matrix(e)) / mpmath.norm(mpmath.matrix(y))
        assert float(found.residual) == pytest.approx(float(least), rel=1e-14)
        assert float(found.bound) <= least * (1 + mpmath.mpf("1e-14"))
    assert bool(found.optimal)


# Against Clarabel, and the conditions of optimality.


@pytest.mark.parametrize(("n", "d"), SIZES)
@pytest.mark.parametrize("shift", [-0.5, 0.0, 0.7])
def test_least_residual_is_that_of_clarabel(n, d, shift):
    for seed in range(3):
        rng = np.random.default_rng([n, d, seed])
        X = rng.standard_normal((n, d))
        y = rng.standard_normal(n) + shift * (X**2).sum(-1) / d
        found, size = fit(X, y), np.linalg.norm(y)
        reference = clarabel_residual(X, y) / size
        assert float(found.residual) <= reference + 1e-8
        assert float(found.bound) <= reference + 1e-8
        assert bool(found.optimal)
        e = residual(X, y, matrix(found))
        terms = np.linalg.norm(((abs(X) @ abs(matrix(found))) * abs(X)).sum(1)) / size
        rounding = 60 * d * np.finfo(float).eps * (1 + terms)
        assert float(found.residual) == pytest.approx(np.linalg.norm(e) / size, abs=rounding)
        if bool(found.infeasible):
            proved = proved_least_residual(RankOne(X), y, found.farkas.numpy())
            assert proved <= np.linalg.norm(e) * (1 + 1e-14)
            assert proved >= np.linalg.norm(e) * (1 - 1e-6)
        G = X.T @ (e[:, None] * X)
        scale = (np.abs(y) * (X**2).sum(1)).sum()
        assert np.linalg.eigvalsh(G)[0] > -1e-9 * scale
        assert abs((G * matrix(found)).sum()) <= 1e-9 * scale * max(np.trace(matrix(found)), 1e-300)


def test_ellipsoid_through_too_many_points():
    """d = 20 and 160 points: no centred ellipsoid passes through all; through 60, one does."""
    X = np.random.default_rng(0).standard_normal((160, 20))
    found = fit(X, np.ones(160))
    assert bool(found.optimal & found.infeasible)
    assert float(found.gap) < 1e-10
    assert int(found.steps) <= 25
    assert proves_infeasible(RankOne(X), np.ones(160), found.farkas.numpy())
    assert np.linalg.matrix_rank(matrix(found), tol=1e-6) < 20
    inside = fit(X[:60], np.ones(60))
    assert bool(inside.interpolates)
    assert np.abs(residual(X[:60], 1.0, matrix(inside))).max() < 1e-12
    assert not proves_infeasible(RankOne(X[:60]), np.ones(60), inside.farkas.numpy())


@pytest.mark.parametrize(("d", "r"), [(2, 1), (3, 1), (4, 2), (6, 1), (6, 3), (8, 4), (8, 8)])
@pytest.mark.parametrize("count", ["p + 1", "1.5 p", "D - 1", "D", "2 D"])
def test_responses_of_a_positive_matrix_are_interpolated(d, r, count):
    """Q* is on the boundary of the cone if r < d, and often the only interpolant."""
    p, D = d * r - r * (r - 1) // 2, d * (d + 1) // 2
    n = {"p + 1": p + 1, "1.5 p": 3 * p // 2, "D - 1": D - 1, "D": D, "2 D": 2 * D}[count]
    for seed in range(3):
        rng = np.random.default_rng([d, r, seed])
        X, U = rng.standard_normal((n, d)), rng.standard_normal((d, r))
        y = ((X @ U) ** 2).sum(1)
        found = fit(X, y)
        assert np.linalg.norm(residual(X, y, matrix(found))) <= 1e-12 * np.linalg.norm(y)
        assert bool(found.interpolates & found.optimal)
        assert not bool(found.infeasible)


def test_a_response_of_zero_forces_a_zero_of_the_matrix():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((12, 5))
    W = np.linalg.qr(X[0][:, None], mode="complete")[0][:, 1:]  # orthogonal to the first input
    y = ((X @ W) ** 2).sum(1)
    y[0] = 0.0
    found = fit(X, y)
    assert bool(found.interpolates)
    assert X[0] @ matrix(found) @ X[0] <= 1e-12 * np.linalg.norm(y)


# Proofs of infeasibility.


def test_equal_inputs_with_unequal_responses():
    """z = (1, -1, 0, ...) has `A*(z) = 0` and `<z, y> = -1`; what is found holds in fractions."""
    rng = np.random.default_rng(1)
    X = rng.integers(-3, 4, (9, 3)).astype(float)
    X[1] = X[0] = [1.0, 2.0, -1.0]
    y = (X**2).sum(1)
    y[1] += 1
    found = fit(X, y)
    assert bool(found.infeasible)
    z = found.farkas.numpy() + 1e-9  # covers rounding: X has full rank
    assert is_positive_semidefinite(weighted_gram(X, z))
    assert z @ y < -0.1
    assert proves_infeasible(RankOne(X), y, found.farkas.numpy())
    # The symmetric matrix of least residual is near the identity, so it is the answer.
    i, j = np.triu_indices(3)
    _, squares, rank, _ = np.linalg.lstsq(X[:, i] * X[:, j], y, rcond=None)
    assert rank == 6
    assert float(found.residual) * np.linalg.norm(y) == pytest.approx(
        math.sqrt(squares[0]), rel=1e-12
    )


def test_negative_responses_give_zero():
    X = np.random.default_rng(2).standard_normal((50, 3))
    found = fit(X, -np.ones(50))
    assert matrix(found).tolist() == np.zeros((3, 3)).tolist()
    assert float(found.residual) == pytest.approx(1.0, abs=1e-15)
    assert float(found.gap) < 1e-12
    assert int(found.steps) == 0


def test_negative_responses_at_few_inputs_give_zero_without_a_step():
    """`n < D`: the responses themselves prove it, as `A*(-y) = X'X` is positive semidefinite."""
    X = np.random.default_rng(2).standard_normal((4, 3))
    found = fit(X, -np.ones(4))
    assert int(found.steps) == 0
    assert matrix(found).tolist() == np.zeros((3, 3)).tolist()
    assert float(found.bound) == pytest.approx(1.0, abs=1e-14)
    assert found.farkas.numpy() == pytest.approx(np.ones(4), abs=1e-14)


@pytest.mark.parametrize("eta", [1e-3, 1e-5, 1e-7])
def test_nearly_consistent_responses(eta):
    """Noise of size eta on responses of rank 2: the residual is small, and proved to be needed."""
    rng = np.random.default_rng(5)
    X, U = rng.standard_normal((40, 8)), rng.standard_normal((8, 2))
    y = ((X @ U) ** 2).sum(1) * (1 + eta * rng.standard_normal(40))
    found = fit(X, y)
    proved = proved_least_residual(RankOne(X), y, found.farkas.numpy()) / np.linalg.norm(y)
    assert 0 < proved <= float(found.residual)
    assert proved > 0.99 * float(found.residual)


# Batches, spans, units, precision.


def test_zero_responses_and_zero_inputs():
    rng = np.random.default_rng(0)
    found = fit(rng.standard_normal((5, 3)), np.zeros(5))
    assert bool(found.interpolates & found.optimal)
    assert not bool(found.infeasible)
    assert matrix(found).tolist() == np.zeros((3, 3)).tolist()
    found = fit(np.zeros((5, 3)), np.array([1.0, -2.0, 0.0, 3.0, 1.0]))
    assert float(found.residual) == pytest.approx(1.0, abs=1e-15)
    assert bool(found.optimal & found.infeasible)


def test_a_batch_gives_what_its_problems_give_alone():
    """Among them zero and negative responses, zero inputs, unequal spans, interpolants."""
    rng = np.random.default_rng(7)
    X, y = rng.standard_normal((12, 14, 4)), rng.standard_normal((12, 14))
    y[1], y[2] = 0.0, -1.0
    X[3] = 0.0
    X[4, :, 3] = 0.0
    X[5] = X[5, :, :1] * X[5, :1]
    y[6] = (X[6] ** 2).sum(-1)
    y[7] = (X[7] @ rng.standard_normal(4)) ** 2
    X[8, 7:] = X[8, :7]
    for count in (14, 9, 3):  # n > D, n < D, n < d
        together = fit(X[:, :count], y[:, :count])
        for k in range(len(X)):
            alone = fit(X[k, :count], y[k, :count])
            for name in ("interpolates", "optimal", "infeasible"):
                assert bool(getattr(alone, name)) == bool(getattr(together, name)[k])
            assert float(alone.residual) == pytest.approx(float(together.residual[k]), abs=1e-11)
            assert float(alone.bound) == pytest.approx(float(together.bound[k]), abs=1e-10)
        assert bool(together.optimal.all())


def test_one_input_matrix_for_many_responses():
    rng = np.random.default_rng(8)
    X, y = rng.standard_normal((20, 3)), rng.standard_normal((6, 20))
    shared, each = fit(X, y), fit(np.broadcast_to(X, (6, 20, 3)).copy(), y)
    assert shared.factor.shape == (6, 3, 3)
    assert matrix(shared) == pytest.approx(matrix(each), abs=1e-10)


def test_an_empty_batch():
    found = fit(np.zeros((0, 7, 3)), np.zeros((0, 7)))
    assert found.factor.shape == (0, 3, 3)
    assert found.optimal.shape == (0,)


def test_inputs_in_a_subspace():
    """The fit does not depend on the space around the span of the inputs."""
    rng = np.random.default_rng(9)
    X, y = rng.standard_normal((11, 3)), rng.standard_normal(11) + 1
    basis = np.linalg.qr(rng.standard_normal((7, 3)))[0]
    within, embedded = fit(X, y), fit(X @ basis.T, y)
    assert float(embedded.residual) == pytest.approx(float(within.residual), rel=1e-10)
    assert float(embedded.bound) == pytest.approx(float(within.bound), rel=1e-9)
    assert basis.T @ matrix(embedded) @ basis == pytest.approx(matrix(within), abs=1e-8)


@pytest.mark.parametrize("inputs", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("responses", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("n", [12, 60])
def test_units_do_not_matter(inputs, responses, n):
    rng = np.random.default_rng(n)
    X, y = rng.standard_normal((n, 6)), rng.standard_normal(n) + 0.5
    plain, scaled = fit(X, y), fit(inputs * X, responses * y)
    factor = responses / inputs**2
    assert matrix(scaled) / factor == pytest.approx(matrix(plain), abs=1e-7)
    assert float(scaled.residual) == pytest.approx(float(plain.residual), abs=1e-12)
    assert float(scaled.bound) == pytest.approx(float(plain.bound), abs=1e-10)


def test_columns_in_different_units():
    rng = np.random.default_rng(11)
    X, y = rng.standard_normal((50, 6)), np.ones(50)
    units = 10.0 ** np.linspace(-6, 6, 6)
    plain, scaled = fit(X, y), fit(X * units, y)
    assert float(scaled.residual) == pytest.approx(float(plain.residual), rel=1e-10)
    assert proves_infeasible(RankOne(X * units), y, scaled.farkas.numpy())


def test_single_precision_is_solved_in_double():
    rng = np.random.default_rng(12)
    X, y = rng.standard_normal((30, 4)).astype("float32"), rng.standard_normal(30).astype("float32")
    narrow, wide = fit(X, y), fit(X.astype(float), y.astype(float))
    assert narrow.factor.dtype == narrow.bound.dtype == torch.float32
    assert float(narrow.residual) == pytest.approx(float(wide.residual), rel=1e-6)


@pytest.mark.parametrize(("n", "d"), [(30, 4), (31, 4)])
def test_both_sides_of_the_limit_for_fourth_moments(n, d):
    """D = 10: rows up to n = 3 D, fourth moments above; both solve the same equations."""
    rng = np.random.default_rng(13)
    X, y = rng.standard_normal((n, d)), rng.standard_normal(n)
    assert InteriorPoint(Problem(RankOne(X), torch.as_tensor(y))).from_moments == (n > 30)
    assert float(fit(X, y).residual) == pytest.approx(
        clarabel_residual(X, y) / np.linalg.norm(y), abs=1e-8
    )


# Levels and budgets.


def test_level_decides_what_interpolates():
    rng = np.random.default_rng(14)
    X = rng.standard_normal((40, 5))
    y = (X**2).sum(1) * (1 + 1e-4 * rng.standard_normal(40))
    found = fit(X, y)
    size = float(found.residual)
    assert not bool(found.interpolates)
    assert bool(fit(X, y, level=1.01 * size).interpolates)
    assert not bool(fit(X, y, level=0.99 * size).interpolates)


@pytest.mark.parametrize("n", [160, 400])
def test_time_limit_is_kept(n):
    X = np.random.default_rng(0).standard_normal((n, 20))
    begin = time.perf_counter()
    found = fit(X, np.ones(n), time_limit=1e-9)
    assert time.perf_counter() - begin < 2.0  # the setup, on a busy machine
    assert int(found.steps) == 0
    assert float(found.residual) <= 1.0
    assert float(found.bound) <= float(found.residual)


def test_step_limit_is_kept_and_more_steps_are_better():
    X = np.random.default_rng(0).standard_normal((160, 20))
    found = [fit(X, np.ones(160), max_steps=count) for count in (1, 4, 8, 100)]
    assert [int(one.steps) for one in found[:3]] == [1, 4, 8]
    residuals = [float(one.residual) for one in found]
    bounds = [float(one.bound) for one in found]
    assert residuals == sorted(residuals, reverse=True)
    assert bounds == sorted(bounds)
    assert max(bounds) <= min(residuals)  # every bound holds for every matrix
    assert [bool(one.optimal) for one in found] == [False, False, False, True]


def test_a_spent_budget_is_not_overdrawn():
    budget = Budget(max_steps=100)
    budget.steps = 100
    X = torch.as_tensor(np.random.default_rng(0).standard_normal((160, 20)))
    found = positive_fit(Problem(RankOne(X), torch.ones(160, dtype=torch.float64)), budget)
    assert int(found.steps) == 0


def test_fields_have_the_shapes_of_the_batch():
    rng = np.random.default_rng(15)
    found = fit(rng.standard_normal((2, 3, 8, 4)), rng.standard_normal((2, 3, 8)))
    shapes = {f.name: tuple(getattr(found, f.name).shape) for f in fields(found)}
    assert shapes.pop("factor") == (2, 3, 4, 4)
    assert shapes.pop("farkas") == (2, 3, 8)
    assert set(shapes.values()) == {(2, 3)}
    assert bool(found.optimal.all())


@pytest.mark.parametrize(
    ("dQ", "dY", "possible"),
    [
        ((0.0, 0.0), (0.0, 0.0), True),
        ((0.5, 0.0), (0.0, 1.0), True),
        ((0.0, 0.0), (-1.0, 0.0), False),  # Y has one negative eigenvalue
        ((0.0, -1.0), (0.0, 0.0), False),  # Q has one
        ((0.0, 0.0), (math.nan, 0.0), False),
    ],
)
def test_steps_that_leave_the_cone_cannot_be_rescaled(dQ, dY, possible):
    """With diagonal matrices, the common diagonal is `sqrt(Q_ii Y_ii)`, ascending."""
    start = torch.tensor([0.5, 0.25], dtype=torch.float64)
    moves = [torch.tensor(move, dtype=torch.float64) for move in (dQ, dY)]
    G = torch.eye(2, dtype=torch.float64)
    _, s, usable = _rescaled(G, start.diag(), *(m.diag() for m in moves), torch.ones_like(start[0]))
    assert bool(usable) is possible
    if possible:
        Q, Y = (start + m for m in moves)
        assert s.tolist() == pytest.approx(sorted((Q * Y).sqrt().tolist()), rel=1e-14)
