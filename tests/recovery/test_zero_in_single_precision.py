"""Divisions by zero in single precision, where a guard such as 1e-300 is zero itself."""

import numpy as np
import pytest
import torch

from posquad.core.status import Status
from posquad.recovery.initializers import raised_factor
from posquad.recovery.prepare import prepare
from posquad.recovery.problem_cache import ProblemCache, positive_part
from posquad.recovery.solvers.descent import scaled_descent
from posquad.recovery.solvers.direct import direct_least_squares
from posquad.recovery.solvers.fit import regularized_frame
from posquad.recovery.solvers.gauss_newton import gauss_newton
from posquad.recovery.solvers.lbfgs import population_lbfgs

DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def problem(dtype):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 4)).astype(dtype)
    return X, ((X @ rng.standard_normal((4, 2)).astype(dtype)) ** 2).sum(1)


@DTYPES
@pytest.mark.parametrize("solve", [population_lbfgs, gauss_newton, scaled_descent])
def test_solvers_stay_at_zero_where_the_gradient_vanishes(solve, dtype):
    """U = 0 is stationary for every loss, with residual 1."""
    X, y = problem(dtype)
    found = solve(X, y, np.zeros((4, 2), dtype), max_steps=5)
    assert found.status is Status.GRADIENT_REACHED
    assert float(found.residual) == 1.0
    assert not found.U.any()


@DTYPES
def test_a_zero_least_squares_matrix_is_the_best_fit(dtype):
    """One unknown: (x^2) = (1, 0), y = (0, 1)."""
    X, y = np.array([[1.0], [0.0]], dtype), np.array([0.0, 1.0], dtype)
    found = direct_least_squares(X, y, 1)
    assert found.status is Status.BEST_FIT
    assert found.U.tolist() == [[0.0]]


@DTYPES
def test_zero_is_the_best_fit_to_negative_responses(dtype):
    X, y = (torch.from_numpy(a) for a in problem(dtype))
    shared = ProblemCache(prepare(X, -y, None))
    assert not shared.better_than_zero(2).any()


@DTYPES
def test_factors_that_are_raised_have_full_rank(dtype):
    """Singular values are positive, and so are their squares, by which the solvers divide."""
    zero = torch.from_numpy(np.zeros((3, 2), dtype))
    factors = [
        positive_part(-torch.from_numpy(np.eye(3, dtype=dtype)), 2),
        raised_factor(np.zeros(2, dtype), np.eye(3, 2, dtype=dtype), zero[:, 0]),
    ]
    for U in factors:
        assert bool((torch.linalg.svdvals(U) > 0).all())
    assert bool((regularized_frame(zero).s.square() > 0).all())
