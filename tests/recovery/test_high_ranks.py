"""Ranks that the spectrum of a linear fit shows, and what limits the ranks that are tried."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from posquad import Status, recover
from posquad.recovery.prepare import prepare
from posquad.recovery.problem_cache import ProblemCache


def noise_floor(d, n, noise=0.0, seed=0, signal=3):
    """Responses of a covariance `LL' + 0.1 I`."""
    rng = np.random.default_rng(seed)
    L, X = rng.normal(size=(d, signal)), rng.normal(size=(n, d))
    Q = L @ L.T + 0.1 * np.eye(d)
    y = np.einsum("ni,ij,nj->n", X, Q, X)
    return X, y + noise * y.std() * rng.normal(size=n), Q


@pytest.mark.parametrize(("d", "n"), [(14, 200), (20, 300)])
def test_a_covariance_with_a_noise_floor_is_found_at_once(d, n):
    X, y, Q = noise_floor(d, n)
    found = recover(X, y)
    assert found.status is Status.RECOVERED
    assert int(found.rank) == d
    assert float(found.rank_confidence) == 1
    assert np.linalg.norm(found.Q.dense() - Q) < 1e-12 * np.linalg.norm(Q)
    assert found.rank_path.rank.tolist() == [d]
    together = recover(X, np.array([y, 2 * y]))
    assert together.status == [Status.RECOVERED] * 2
    assert together.rank.tolist() == [d, d]


def test_a_noise_floor_above_the_noise_of_eigenvalues_is_seen():
    """Noise of 0.1%: the rank is d, by the criterion over the last ranks alone."""
    X, y, Q = noise_floor(14, 200, noise=1e-3)
    found = recover(X, y)
    assert found.status is Status.BEST_FIT
    assert int(found.rank) == 14
    assert found.rank_path.rank.tolist()[-1] == 14
    assert len(found.rank_path.rank) <= 4
    assert np.linalg.norm(found.Q.dense() - Q) < 1e-2 * np.linalg.norm(Q)


@pytest.mark.parametrize("seed", [100, 101, 102])
def test_with_hardly_more_samples_than_entries_the_convex_problem_decides(seed):
    """Of every rank from that of its answer on, the answer is the best fit, with a proof."""
    X, y, _ = noise_floor(12, 82, noise=1e-3, seed=seed, signal=2)
    found, convex = recover(X, y), recover(X, y, 12)
    assert found.status is convex.status is Status.BEST_FIT
    assert int(found.rank) == int(convex.rank)
    assert float(found.residual) == pytest.approx(float(convex.residual), rel=1e-9)
    assert float(found.residual_bound) == pytest.approx(float(found.residual), rel=1e-9)


@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_a_chosen_high_rank_is_the_best_of_its_neighbours(noise):
    """The score of the rank, worked out by hand, is below those of the next ranks."""
    X, y, _ = noise_floor(10, 300, noise=noise, signal=6, seed=1)
    found = recover(X, y)
    rank = int(found.rank)

    def score(k):
        residual = float(recover(X, y, k).residual)
        return 300 * math.log(residual**2) + (10 * k - k * (k - 1) // 2) * math.log(300)

    assert rank > 3
    near = [k for k in range(rank - 2, rank + 3) if 0 < k <= 10]
    assert min(near, key=score) == rank


def test_eigenvalues_that_stand_out_of_the_noise():
    """n = 4000, d = 5: noise of the eigenvalues ends at s sqrt(d / n) = 0.035 s."""
    rng = torch.Generator().manual_seed(0)
    X = torch.randn(4000, 5, generator=rng, dtype=torch.float64)
    values = torch.tensor([1.0, 0.5, 0.3, 0.0, -0.3], dtype=torch.float64)
    noise = torch.randn(4000, generator=rng, dtype=torch.float64)

    def seen(size):
        return int(ProblemCache(prepare(X, X.square() @ values + size * noise, None)).visible_rank)

    assert [seen(s) for s in (0.0, 1.0, 5.0, 100.0)] == [3, 3, 2, 0]
    few = X[:14], X[:14].square() @ values
    assert int(ProblemCache(prepare(*few, None)).visible_rank) == 0  # 15 entries are not determined
    for noisy in torch.linalg.eigvalsh(
        ProblemCache(prepare(X, noise, None)).problem.operator.symmetric_fit(noise)[0]
    )[[0, -1]]:
        assert 0.5 < abs(float(noisy)) / math.sqrt(5 / 4000) < 1.5


@pytest.mark.parametrize(
    ("max_rank", "n", "words"),
    [
        (2, 200, "rank 2 is the highest that was tried, and the best: allow higher ones by max_r"),
        (None, 45, "rank 5 is the highest that was tried, and the best: 45 independent samples a"),
    ],
)
def test_the_message_names_the_limit_of_the_ranks(max_rank, n, words):
    X, y, _ = noise_floor(10, n, noise=1e-5, signal=6)
    found = recover(X, y, max_rank=max_rank, max_starts=20)
    assert float(found.rank_confidence) == 0
    assert words in found.message
    assert found.rank_limit is not None
    assert recover(X, y, 2).rank_limit is None


def test_no_limit_is_named_where_a_lower_rank_is_the_best():
    rng = np.random.default_rng(0)
    X, U = rng.normal(size=(200, 6)), rng.normal(size=(6, 2))
    y = np.square(X @ U).sum(1) * (1 + 0.1 * rng.normal(size=200))
    found = recover(X, y, max_rank=4)
    assert int(found.rank) == 2
    assert found.rank_limit is None
    assert found.message == Status.BEST_FIT.value
    assert recover(X, np.array([y, y])).rank_limit is None
