"""Lists as arrays, answers that the precision cannot hold, and what `farkas` holds."""

from __future__ import annotations

import numpy as np
import pytest

from posquad import Status, recover
from posquad.core.errors import DomainError, DtypeError


@pytest.fixture
def problem():
    rng = np.random.default_rng(3)
    X, U = rng.standard_normal((30, 6)), rng.standard_normal((6, 2))
    return X, np.square(X @ U).sum(1)


def test_lists_are_arrays(problem):
    """They once raised an AttributeError after the search."""
    X, y = problem
    found, expected = recover(X.tolist(), y.tolist(), 2), recover(X, y, 2)
    np.testing.assert_array_equal(found.U, expected.U)
    assert found.rows == 30
    with pytest.raises(DtypeError):
        recover([[1.0, 2.0], [3.0]], [1.0, 2.0], 1)


@pytest.mark.parametrize(
    ("inputs", "responses"), [(1e-170, 1e300), (1e200, 1e-230), (1e160, 1e-307)]
)
def test_a_factor_out_of_range_is_refused(problem, inputs, responses):
    """They were RECOVERED, with an infinite factor or one without its digits."""
    X, y = problem
    with pytest.raises(DomainError, match=r"y: expected .* factor has entries of .*; rescale X"):
        recover(inputs * X, responses * y, 2)
    with pytest.raises(DomainError, match="problem 1 of the batch"):
        recover(np.stack([X, inputs * X]), np.stack([y, responses * y]), 2)


@pytest.mark.parametrize("size", [1e-150, 1e150])
def test_a_factor_at_the_ends_of_the_range(problem, size):
    X, y = problem
    found = recover(X / size, y, 2)
    assert found.status is Status.RECOVERED
    np.testing.assert_allclose(np.square(X / size @ found.U).sum(1), y, rtol=1e-12)


def test_farkas_is_there_only_with_a_bound(problem):
    X, y = problem
    assert recover(X, y, 6).farkas is None
    missed = recover(X, -y, 6)
    assert missed.residual_bound > 0.9
    assert missed.farkas is not None


def test_a_proof_needs_every_response_at_its_own_size(problem):
    """Ten responses are a billion times smaller than the others, and twice what UU' predicts."""
    X, y = problem
    X[20:] *= 1e-9
    y[20:] *= 2e-18
    found = recover(X, y, 2, certify=True)
    assert found.certificate.proved
    assert found.status is Status.NOT_IDENTIFIED
