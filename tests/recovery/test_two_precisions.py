"""Descents in single precision with corrections in double, compared with what y was made from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from posquad import RankOne, Status, recover
from posquad.recovery.budget import Budget, History
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.mixed import Corrections, descend_in_two_precisions
from recovery_support import costs_are, relative_error
from support import gaussian_problem, normal

EPS = torch.finfo(torch.float64).eps


def descend(X, y, U0, steps=1000):
    operator, history = RankOne(X), History(Budget(max_steps=steps))
    found = descend_in_two_precisions(Problem(operator, y), operator.single(), U0[None], history)
    return found.U[0], float(found.residual[0]), history


@pytest.mark.parametrize("smallest", [1.0, 1e-3])
@pytest.mark.parametrize("scale", [1.0, 1e-12])
def test_corrections_reach_the_rounding_of_double_precision(rng, smallest, scale):
    """Also where the slopes, about 1e-24 near the end, are below the range of single precision."""
    X, U, y = gaussian_problem(rng, 480, 40, 3, smallest=smallest)
    U0 = scale**0.5 * (U + 0.1 * normal(rng, 40, 3) / 120**0.5)
    V, residual, history = descend(X, scale * y, U0)
    assert residual <= 20 * EPS
    # The error of a fit with residual 20 eps is below that over the root of the curvature, 1e-3.
    assert relative_error(V @ V.mT, scale**0.5 * U) < 1e-11
    assert len(history.residuals) < 40


def test_a_correction_squares_the_error(rng):
    """An error of 1e-4 becomes one below 1e-7, then one below 1e-11."""
    X, U, y = gaussian_problem(rng, 480, 40, 3, smallest=0.5)
    method = Corrections(Problem(RankOne(X), y), RankOne(X).single())
    state = method.start((U + 1e-4 * normal(rng, 40, 3) / 120**0.5)[None])
    errors = []
    for _ in range(2):
        state = method.advance(state)
        errors.append(relative_error(state.U[0] @ state.U[0].mT, U))
    assert errors[0] < 1e-7
    assert errors[1] < 1e-11
    worse = method.advance(replace(state, errors=-1e6 * state.errors))
    assert torch.equal(worse.U, state.U)  # a step that raises the residual is not taken


def test_a_correction_solves_the_weighted_system(rng):
    """Compared with LAPACK on the Jacobian, whose rows are weighted by `||W'x_i||`."""
    X, U, y = gaussian_problem(rng, 480, 40, 3, smallest=0.1)
    V = U + 1e-5 * normal(rng, 40, 3) / 120**0.5  # the system is then solved to 5e-5
    state = Corrections(Problem(RankOne(X), y), RankOne(X).single()).start(V[None])
    Z, W = X @ V, torch.linalg.qr(V).Q
    sizes = (X @ W).square().sum(-1)
    root = (0.3 + sizes / sizes.mean()).rsqrt()
    J = 2 * (X[:, :, None] * Z[:, None, :]).flatten(1) * root[:, None]
    e = (Z.square().sum(-1) - y) * root
    D = -np.linalg.lstsq(J.numpy(), e.numpy(), rcond=1e-10)[0].reshape(40, 3)
    moved = Corrections(Problem(RankOne(X), y), RankOne(X).single()).advance(state).U[0] - V
    np.testing.assert_allclose(moved, D, atol=1e-3 * np.linalg.norm(D))


def test_responses_that_are_not_reproduced_are_left_to_double_precision(rng):
    X, U, y = gaussian_problem(rng, 480, 40, 3, smallest=0.5)
    for noise in (0.1, 3e-4):  # above and below the residual at which corrections begin
        noisy = y * (1 + noise * normal(rng, 480))
        V, residual, _ = descend(X, noisy, U + 0.1 * normal(rng, 40, 3) / 120**0.5)
        assert residual == torch.inf
        truth, fitted = ((X @ F).square().sum(-1) - noisy for F in (U, V))
        assert float(fitted.norm()) < float(truth.norm())


def test_a_budget_ends_the_descent(rng):
    X, U, y = gaussian_problem(rng, 480, 40, 3, smallest=0.5)
    V, residual, _ = descend(X, y, U + 0.1 * normal(rng, 40, 3) / 120**0.5, steps=3)
    assert residual == torch.inf
    assert bool(torch.isfinite(V).all())


def test_recover_takes_this_path(rng):
    """Sizes that admit single precision for a small problem; the same answer as without."""
    X, U, y = gaussian_problem(rng, 480, 40, 3, smallest=0.1)
    with costs_are(BLOCK=1, OPERATIONS=100**3 / 3, _FEW_UNKNOWNS=0):
        found = recover(X, y, 3)
    assert found.status is Status.RECOVERED
    assert relative_error(found.Q.dense(), U) < 1e-13
    assert float(found.residual) <= 20 * EPS
