"""Problems of a batch do not depend on each other: their answers are those that they get alone."""

from __future__ import annotations

import pytest
import torch

from posquad import Status, recover
from support import normal


def test_a_problem_with_few_samples_does_not_limit_the_ranks_of_others(rng):
    """The first problem has 7 samples of positive weight, which suffice for rank 1 only."""
    X, factors = normal(rng, 2, 20, 5), normal(rng, 2, 5, 3)
    y = (X @ factors).square().sum(-1)
    weights = torch.ones_like(y)
    weights[0, 7:] = 0
    together = recover(X, y, weights=weights)
    assert together.status == [Status.BEST_FIT, Status.RECOVERED]
    assert together.rank.tolist() == [1, 3]
    assert together.rank_confidence.tolist() == [0, 1]


@pytest.mark.parametrize(("kind", "n"), [("noise", 10), ("signs", 10), ("generic", 5)])
def test_full_rank_has_the_same_answers_and_error_estimates_alone(rng, kind, n):
    """Best fits of rank two, and matrices that rows of signs or few rows do not determine."""
    X, factors = normal(rng, 4, n, 3), normal(rng, 4, 3, 1)
    if kind == "signs":
        X = X.sign()
    y = normal(rng, 4, n) if kind == "noise" else (X @ factors).square().sum(-1)
    together = recover(X, y, 3)
    for k in range(4):
        alone = recover(X[k], y[k], 3)
        assert together.status[k] is alone.status
        # An optimum within 1e-10 of its bound is within the root of that.
        torch.testing.assert_close(together.Q.dense()[k], alone.Q.dense(), rtol=0, atol=1e-5)
        torch.testing.assert_close(
            together.error_estimate[k], alone.error_estimate, rtol=1e-6, atol=1e-12, equal_nan=True
        )
        assert bool(alone.error_estimate.isnan()) == (alone.status is not Status.RECOVERED)


@pytest.mark.parametrize("n", [1, 2])
def test_a_rank_that_nothing_checks_has_no_confidence(n):
    """In one dimension a single sample leaves nothing to check the answer with."""
    X = torch.tensor([[1.0], [2.0]], dtype=torch.float64)[:n]
    y = 3 * X[:, 0].square()
    together = recover(X.expand(2, n, 1), y.expand(2, n))
    assert together.rank_confidence.tolist() == [float(recover(X, y).rank_confidence)] * 2
    assert together.rank_confidence.tolist() == [float(n > 1)] * 2
