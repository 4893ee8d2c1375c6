"""Minima whose factor has less than the given rank are minima over all ranks, and are proved."""

from __future__ import annotations

import numpy as np
import pytest

from posquad import RankOne, Status, recover
from posquad.certificates import proves_infeasible


def with_known_optimum(
    seed: int, n: int, d: int, rank: int, share: float = 0.1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return X, y, U such that UU' is the best positive semidefinite matrix.

    The residual `e = y - A(UU')` has `A*(e) = -VV'`, where V spans the complement of the range of
    U, so `<e, A(Q)> = -||V'Q||_* <= 0 = <e, A(UU')>` for every positive semidefinite Q.
    """
    rng = np.random.default_rng(seed)
    X, U = rng.standard_normal((n, d)), rng.standard_normal((d, rank))
    V = np.linalg.svd(U)[0][:, rank:]
    samples = (X[:, :, None] * X[:, None, :]).reshape(n, -1)
    e = np.linalg.lstsq(samples.T, -(V @ V.T).ravel(), rcond=None)[0]
    y = np.square(X @ U).sum(1)
    return X, y + share * np.linalg.norm(y) / np.linalg.norm(e) * e, U


@pytest.mark.parametrize(
    ("n", "d", "low", "rank"), [(12, 4, 1, 3), (60, 10, 1, 2), (60, 10, 2, 5), (150, 16, 2, 4)]
)
def test_the_best_of_all_matrices_is_proved_at_a_higher_rank(
    n: int, d: int, low: int, rank: int
) -> None:
    X, y, U = with_known_optimum(n, n, d, low)
    found = recover(X, y, rank)
    assert found.status is Status.BEST_FIT
    assert found.rank == low
    P = U @ U.T
    assert np.linalg.norm(found.Q.dense() - P) <= 1e-6 * np.linalg.norm(P)
    assert found.residual == pytest.approx(0.1 / np.sqrt(1.01), rel=1e-9)  # e is orthogonal to A(P)
    assert found.residual * (1 - 1e-9) <= found.residual_bound <= found.residual * (1 + 1e-12)
    assert proves_infeasible(RankOne(X), y, found.farkas)


@pytest.mark.parametrize(("n", "d", "rank"), [(130, 40, 3), (24, 6, 2), (30, 6, 2)])
def test_zero_is_the_best_fit_to_negative_responses(n: int, d: int, rank: int) -> None:
    """(130, 40, 3) once ended STALLED after 10 seconds, because hardly two starts agreed."""
    rng = np.random.default_rng(n)
    X = rng.standard_normal((n, d))
    found = recover(X, -np.square(X @ rng.standard_normal((d, rank))).sum(1), rank)
    assert (found.status, found.rank) == (Status.BEST_FIT, 0)
    assert (found.residual, found.residual_bound) == (1.0, pytest.approx(1.0, abs=1e-12))
    assert found.starts < 20


def test_a_batch_proves_what_its_problems_prove_alone() -> None:
    problems = [with_known_optimum(seed, 60, 10, 1 + seed) for seed in range(3)]
    X, y = (np.stack([problem[k] for problem in problems]) for k in (0, 1))
    y[1] = -1.0
    together = recover(X, y, 3)
    for k, status in enumerate(together.status):
        alone = recover(X[k], y[k], 3)
        assert status is alone.status
        assert together.residual_bound[k] == pytest.approx(alone.residual_bound, rel=1e-6)
        assert together.starts[k] == alone.starts
