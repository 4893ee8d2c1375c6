"""Problems of a batch do not depend on each other: their answers are those that they get alone."""

from __future__ import annotations

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
