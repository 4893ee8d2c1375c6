"""Whether the squared error has no minimum, for any operator, against limits by hand."""

from __future__ import annotations

import numpy as np
import pytest

from posquad import Dense, Status, recover
from posquad.core.errors import ShapeError
from posquad.recovery import Options, recover_with_terms


def fitted(X, y, terms, rank=1, weights=None):
    return recover_with_terms(X, y, weights, terms, Options(rank, max_starts=50))


def predicted(found, X):
    X = X - found.center
    return ((X @ found.recovery.U) ** 2).sum(1) + X @ found.slope + found.value


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e-3, 1e3])
def test_a_constant_input_beside_a_constant_gives_every_line(size, weighted):
    """The limit is linear regression, also with weights, whatever the unit of the column."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(30), rng.standard_normal(30)
    w = rng.uniform(0.1, 2.0, 30) if weighted else np.ones(30)
    X = np.column_stack([np.full(30, size), x])
    found = fitted(X, y - 3 * x**2, "constant", weights=w if weighted else None)
    line = np.polynomial.Polynomial.fit(x, y - 3 * x**2, 1, w=np.sqrt(w))
    assert found.recovery.status is Status.NO_MINIMUM
    np.testing.assert_allclose(predicted(found, X), line(x), atol=1e-4)


def test_signs_beside_a_constant():
    """x_1^2 = 1 is a constant, so that one column gives every product of x_1 with the others."""
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.choice([-1.0, 1.0], 40), rng.standard_normal((40, 2))])
    y = X[:, 0] * (X[:, 1] - 2 * X[:, 2])
    found = fitted(X, y, "constant")
    assert found.recovery.status is Status.NO_MINIMUM
    np.testing.assert_allclose(predicted(found, X), y, atol=1e-3)


def test_where_the_limit_is_not_better_there_is_a_minimum():
    """The products with x_1 explain nothing here: the best fit is that of x_2."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal(40)
    X = np.column_stack([np.repeat([-1.0, 1.0], 20), np.concatenate([x[:20], x[:20]])])
    y = 2 * X[:, 1] ** 2 + 1
    found = fitted(X, y, "constant")
    assert found.recovery.status is not Status.NO_MINIMUM
    np.testing.assert_allclose(predicted(found, X), y, atol=1e-9)


@pytest.mark.parametrize("rank", [1, 2])
def test_matrices_that_do_not_see_a_coordinate_alone(rank):
    """Without the last diagonal entry, products with that coordinate are free, in the limit."""
    rng = np.random.default_rng(3)
    A = rng.standard_normal((30, 3, 3))
    A = A + A.swapaxes(1, 2)
    A[:, 2, 2] = 0.0
    Q = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0], [1.0, -1.0, 0.0]])
    found = recover(Dense(A), np.einsum("iab,ab->i", A, Q), rank)
    assert found.status is Status.NO_MINIMUM
    assert float(found.residual) < 1e-4


def test_matrices_that_see_every_direction_have_a_best_fit():
    rng = np.random.default_rng(4)
    A = rng.standard_normal((60, 3, 3))
    found = recover(Dense(A + A.swapaxes(1, 2)), rng.standard_normal(60), 1)
    assert found.status is Status.BEST_FIT


def test_one_problem_at_a_time():
    with pytest.raises(ShapeError, match="batch"):
        fitted(np.zeros((2, 5, 3)) + 1, np.ones((2, 5)), "linear")
