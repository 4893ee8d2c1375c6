"""Statuses of sources whose rows leave symmetric matrices free: as those of the rows in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad import Status, recover
from posquad.estimator import PositiveQuadraticRegressor
from posquad.problems import rows
from posquad.recovery.streams.compressed import _least_eigenvalue

N = 5000  # more than are kept in memory


def palindromes(rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """Rows `(a, sa)` with a sign s span 3 + 3 of the 10 dimensions; d = 4."""
    a = rng.standard_normal((N, 2))
    return np.hstack([a, rng.choice([-1.0, 1.0], (N, 1)) * a]), 6


def signs(rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """The squares of the coordinates are all 1, so that 8 of 36 dimensions become one."""
    return rng.choice([-1.0, 1.0], (N, 8)), 29


def quadric(rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """Rows with `x_1^2 = x_2^2 + x_3^2`; d = 5."""
    X = rng.standard_normal((N, 5))
    X[:, 0] = np.hypot(X[:, 1], X[:, 2]) * rng.choice([-1.0, 1.0], N)
    return X, 14


@pytest.mark.parametrize("design", [palindromes, signs, quadric])
@pytest.mark.parametrize("rotated", [False, True])
def test_the_words_of_a_source_are_those_of_its_rows(design, rotated: bool) -> None:
    """Products of coordinates that are rounding noise once counted as independent samples."""
    rng = np.random.default_rng(3)
    X, samples = design(rng)
    d = X.shape[1]
    X = X @ np.linalg.qr(rng.standard_normal((d, d)))[0] if rotated else X
    for rank in (1, 2):
        y = np.square(X @ rng.standard_normal((d, rank))).sum(1)
        found = recover(rows.in_memory(X), y, rank)
        whole = recover(X[:100], y[:100], rank)  # which span the same space
        assert (found.status, found.samples) == (whole.status, samples)
        assert found.residual <= 1e-14


def test_two_solutions_of_a_source_are_not_called_recovered() -> None:
    """`x_1^2 + x_2^2 = x_3^2 + x_4^2` for all rows, so that these are two solutions of rank 2."""
    X = np.random.default_rng(0).standard_normal((N, 6))
    X[:, 2:4] *= (np.linalg.norm(X[:, :2], axis=1) / np.linalg.norm(X[:, 2:4], axis=1))[:, None]
    y = np.square(X[:, :2]).sum(1)
    found = recover(rows.in_memory(X), y, 2)
    assert (found.status, found.rank) == (Status.NOT_IDENTIFIED, 2)


@pytest.mark.parametrize("values", [(0.0, 1.0), (-1.0, 1.0)])
def test_a_stream_of_two_values_with_linear_terms(values: tuple[float, float]) -> None:
    """Squares of such coordinates are linear in them, so that many forms have these responses. The
    sums refer to the answer for the first rows, which they therefore know to all digits."""
    rng = np.random.default_rng(1)
    X = rng.choice(values, (N, 6))
    y = np.square(X @ rng.standard_normal((6, 2))).sum(1) + X @ rng.standard_normal(6) + 1
    model = PositiveQuadraticRegressor(2, linear=True)
    model.partial_fit(X, y)
    assert model.status_ is PositiveQuadraticRegressor(2, linear=True).fit(X, y).status_
    assert model.residual_ < 1e-14
    np.testing.assert_allclose(model.predict(X), y, rtol=0, atol=1e-10 * np.abs(y).max())


def test_a_loss_that_moments_do_not_know_is_read_from_the_rows() -> None:
    """Rows that leave a quadric by 1e-9: the moments do not see it, and a pass does."""
    rng = np.random.default_rng(2)
    X, _ = quadric(rng)
    y = np.square(X @ rng.standard_normal((5, 2))).sum(1)
    X = X + 1e-9 * rng.standard_normal(X.shape)
    with pytest.warns(UserWarning, match="The search did not know the error of the fit, because"):
        found = recover(rows.in_memory(X), y, 2)
    own = np.linalg.norm(np.square(X @ found.U).sum(1) - y) / np.linalg.norm(y)
    assert 1e-10 < own < 1e-8
    assert found.residual == pytest.approx(own, rel=1e-4)
    assert found.status in (Status.BEST_FIT, Status.STALLED)


def test_a_small_eigenvalue_behind_large_pivots_is_seen() -> None:
    """`L` with -1 below the diagonal has pivots 1, and `LL'` an eigenvalue of about 4^-m."""
    m = 24
    L = torch.eye(m, dtype=torch.float64) - torch.ones(m, m).double().tril(-1)
    inverse = np.linalg.inv(L.numpy())  # exact: its entries are powers of two
    expected = 1 / np.linalg.norm(inverse, 2) ** 2
    assert expected < 1e-12
    assert _least_eigenvalue(L) == pytest.approx(expected, rel=1e-6)
