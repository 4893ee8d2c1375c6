"""Parts of the fit over positive semidefinite matrices, by hand and by NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad import RankOne
from posquad.recovery.problem import Problem
from posquad.recovery.solvers import cone
from posquad.recovery.solvers.cone import PositiveFit
from support import normal, vector


def identity_problem(*y):
    """Inputs e_i, so that `A(Q)` is the diagonal of Q and `A*(z)` is diagonal."""
    X, y = torch.eye(len(y), dtype=torch.float64), vector(*y)
    return Problem(RankOne(X), y, torch.ones_like(y))


def fit_of(residual, bound, n=4):
    zero = torch.zeros(2, 2, dtype=torch.float64)
    residual, bound = vector(residual)[0], vector(bound)[0]
    return PositiveFit(zero, residual, residual > 1, torch.zeros(n), bound, torch.tensor(0))


def test_a_fit_is_optimal_within_a_share_of_its_residual_and_rounding():
    """`residual - bound <= 1e-10 residual + 1e-12`."""
    for residual, excess, optimal in (
        (1.0, 0.99e-10, True),
        (1.0, 1.03e-10, False),
        (1e-6, 0.9e-12, True),
        (1e-6, 1.1e-12, False),
        (0.0, 0.0, True),
    ):
        assert bool(fit_of(residual, residual - excess).optimal) is optimal


def test_a_bound_beyond_rounding_proves_infeasibility():
    """The rounding of `<z, y>` is `(n + 8) eps`."""
    limit = 12 * 2.0**-52
    assert not bool(fit_of(1.0, limit).infeasible)
    assert bool(fit_of(1.0, 1.01 * limit).infeasible)
    assert float(fit_of(1.0, 0.5).gap) == 0.75


def test_normalized_inputs_are_orthonormal_and_units_do_not_matter(rng):
    X = normal(rng, 12, 3) * vector(1.0, 1e6, 1e-6)
    work, T = cone._normalized(Problem(RankOne(X), 5 * normal(rng, 12)))
    torch.testing.assert_close(
        work.operator.X.mT @ work.operator.X, torch.eye(3, dtype=torch.float64)
    )
    torch.testing.assert_close(work.operator.X, X @ T)
    assert float(work.y.norm()) == pytest.approx(1)
    flat = X.clone()
    flat[:, 1] = 2 * flat[:, 0]
    work, T = cone._normalized(Problem(RankOne(flat), normal(rng, 12)))
    assert work.d == T.shape[-1] == 2
    torch.testing.assert_close(
        work.operator.X.mT @ work.operator.X, torch.eye(2, dtype=torch.float64)
    )
    nothing, T = cone._normalized(Problem(RankOne(0 * X), normal(rng, 12)))
    assert nothing.d == 1
    assert not bool(T.any())


@pytest.mark.parametrize(("share", "columns"), [(2e-13, 2), (0.5e-13, 1)])
def test_directions_below_rounding_are_no_part_of_the_span(share, columns):
    """Columns (1, 0) and (1, t) have the correlation eigenvalues 2 and about t^2 / 2."""
    t = (4 * share) ** 0.5  # the ratio of the eigenvalues is t^2 / 4 = share
    X = torch.tensor([[1.0, 1.0], [0.0, t]], dtype=torch.float64)
    assert cone._normalized(Problem(RankOne(X), vector(1.0, 1.0)))[0].d == columns


def test_zero_is_the_best_fit_of_negative_responses():
    best = cone._Best.zero(identity_problem(-3 / 5, -4 / 5))
    assert float(best.residual) == pytest.approx(1)
    assert float(best.bound) == pytest.approx(1, rel=1e-14)
    assert not bool(best.open)
    mixed = cone._Best.zero(identity_problem(-3 / 5, 4 / 5))
    assert bool(mixed.open)
    zero = cone._Best.zero(identity_problem(0.0, 0.0))
    assert (float(zero.residual), float(zero.bound)) == (0, 0)
    assert not bool(zero.open)


def test_better_factors_and_better_bounds_are_kept_apart():
    """y = (-3, 4) / 5: Q = diag(0, 4/5) has the residual 3/5, which e = (3/5, 0) proves."""
    best = cone._Best.zero(identity_problem(-3 / 5, 4 / 5))
    half = best.offered(torch.diag(vector(0.0, (2 / 5) ** 0.5)))
    assert float(half.residual) == pytest.approx((9 + 4) ** 0.5 / 5)
    assert float(best.bound) <= float(half.bound) < 3 / 5  # e = (3, -2) / 5 is lifted far
    done = half.offered(torch.diag(vector(0.0, (4 / 5) ** 0.5)))
    assert float(done.residual) == pytest.approx(3 / 5)
    assert float(done.bound) == pytest.approx(3 / 5, rel=1e-13)
    assert not bool(done.open)
    same = done.offered(torch.diag(vector(1.0, 1.0)))
    torch.testing.assert_close(same.U, done.U)
    assert float(same.bound) == float(done.bound)


def test_truncation_keeps_what_is_larger_than_the_slack():
    """`UU' = diag(4, 1, 0.25)` against `A*(v) = diag(1, 1, 1)`: only the first is larger."""
    problem = identity_problem(1.0, 1.0, 1.0)
    U = torch.diag(vector(2.0, 1.0 - 1e-9, 0.5))
    found = cone._truncated(problem, U, vector(1.0, 1.0, 1.0))
    np.testing.assert_allclose(found @ found.mT, np.diag([4.0, 0.0, 0.0]), atol=1e-15)
    found = cone._truncated(problem, U, vector(1.0, 0.5, 0.1))
    np.testing.assert_allclose(found @ found.mT, np.diag([4.0, 1.0, 0.25]), rtol=1e-8, atol=1e-15)


def test_the_stationary_dual_is_the_projection_of_the_residual(rng):
    """Onto `{z : A*(z) U = 0}`, by NumPy."""
    X, U = normal(rng, 12, 3), normal(rng, 3, 3)
    U[:, 1:] = 0
    problem = Problem(RankOne(X), normal(rng, 12))
    e = problem.residual(X @ U).numpy()
    rows = (X[:, :, None] * (X @ U)[:, None, :]).reshape(12, -1).numpy()
    expected = e - rows @ np.linalg.lstsq(rows, e, rcond=1e-10)[0]
    found = cone._stationary_dual(problem, U)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert np.abs(rows.T @ found.numpy()).max() < 1e-12
    np.testing.assert_allclose(cone._stationary_dual(problem, 0 * U), -problem.y)


def test_least_squares_inside_the_cone_is_the_answer(rng):
    """A positive definite least squares solution: its residual proves it, without a path."""
    X = torch.linalg.qr(normal(rng, 30, 2)).Q
    y = (X**2).sum(-1) + 1e-3 * normal(rng, 30)
    problem = Problem(RankOne(X), y / y.norm(), torch.ones_like(y))
    best = cone._with_least_squares(cone._Best.zero(problem))
    features = np.stack([X[:, 0] ** 2, 2 * X[:, 0] * X[:, 1], X[:, 1] ** 2], axis=1)
    left = np.linalg.lstsq(features, problem.y.numpy(), rcond=None)[1]
    assert float(best.residual) == pytest.approx(float(left[0]) ** 0.5, rel=1e-9)
    assert not bool(best.open)
