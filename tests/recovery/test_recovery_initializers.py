"""The bounded and interpolating initializers: oracles, large problems, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad import RankOne
from posquad.core.errors import DomainError, RankDeficientError, ShapeError
from posquad.geometry import procrustes_distance
from posquad.recovery import initializers, spectral_initializer
from support import gaussian_problem, normal


def test_interpolant_is_the_truncation_of_numpys_least_norm_solution(rng):
    X, _, y = gaussian_problem(rng, 14, 6, 2, smallest=0.5)
    monomials = np.einsum("ia,ib->iab", X, X).reshape(14, 36)
    least = np.linalg.lstsq(monomials, y.numpy(), rcond=None)[0].reshape(6, 6)
    values, vectors = np.linalg.eigh(least)
    expected = (vectors[:, -2:] * values[-2:]) @ vectors[:, -2:].T
    U = spectral_initializer(X.numpy(), y.numpy(), 2, kind="interpolant")
    np.testing.assert_allclose(U @ U.T, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("n", [5, 40])
def test_interpolant_with_enough_samples_is_the_answer(rng, n):
    X, U, y = gaussian_problem(rng, 21 + n, 6, 2, smallest=0.5)
    V = spectral_initializer(X, y, 2, kind="interpolant")
    torch.testing.assert_close(V @ V.mT, U @ U.mT, rtol=1e-10, atol=1e-12)


def test_bounded_is_its_formula(rng):
    """Eigenvectors by NumPy, then least squares of the 2 x 2 matrix on their span, by lstsq."""
    X, _, y = (t.numpy() for t in gaussian_problem(rng, 60, 5, 2, smallest=0.5))
    t = y / y.mean()
    M = (X.T * ((t - 1) / (t + 0.3))) @ X
    W = np.linalg.eigh(M)[1][:, -2:]
    Z = X @ W
    features = np.stack([Z[:, 0] ** 2, 2 * Z[:, 0] * Z[:, 1], Z[:, 1] ** 2], axis=1)
    a, b, c = np.linalg.lstsq(features, y, rcond=None)[0]
    expected = W @ np.array([[a, b], [b, c]]) @ W.T
    U = spectral_initializer(X, y, 2, kind="bounded")
    np.testing.assert_allclose(U @ U.T, expected, rtol=1e-10, atol=1e-12)


def test_a_huge_response_does_not_move_the_bounded_initializer(rng):
    X, U, y = gaussian_problem(rng, 400, 5, 1)
    y[0] = 1e4 * y.max()
    far = {
        kind: float(procrustes_distance(_unit(spectral_initializer(X, y, 1, kind=kind)), _unit(U)))
        for kind in ("moment", "bounded")
    }
    assert far["moment"] > 0.5 > far["bounded"]


@pytest.mark.parametrize("kind", ["moment", "bounded"])
def test_matrix_free_agrees_with_dense(rng, kind, monkeypatch):
    X, _, y = gaussian_problem(rng, 4000, 30, 2, smallest=0.5)
    dense = spectral_initializer(X, y, 2, kind=kind)
    monkeypatch.setattr(initializers, "_DENSE_MOST", 10)
    free = spectral_initializer(X, y, 2, kind=kind)
    # Residuals of 1e-3 leave errors of about that over the gap to the bulk.
    torch.testing.assert_close(free @ free.mT, dense @ dense.mT, rtol=0, atol=1e-2)


@pytest.mark.parametrize("kind", ["bounded", "interpolant"])
def test_batches(rng, kind):
    X, U = normal(rng, 3, 40, 4), normal(rng, 3, 4, 2)
    y = (X @ U).square().sum(-1)
    together = spectral_initializer(X, y, 2, kind=kind)
    for k in range(3):
        alone = spectral_initializer(X[k], y[k], 2, kind=kind)
        torch.testing.assert_close(together[k] @ together[k].mT, alone @ alone.mT)


@pytest.mark.parametrize("kind", ["moment", "bounded", "interpolant"])
def test_too_few_positive_eigenvalues_are_reported(rng, kind):
    X = normal(rng, 30, 3)
    with pytest.raises(RankDeficientError, match="positive eigenvalues; got"):
        spectral_initializer(X, -X.square().sum(-1), 3, kind=kind)


def test_sizes_that_a_kind_cannot_take_are_refused(rng, monkeypatch):
    X, _, y = gaussian_problem(rng, 14, 6, 1)
    monkeypatch.setattr(initializers, "_KERNEL_MOST", 10)
    with pytest.raises(DomainError, match="at most 10 samples"):
        spectral_initializer(X, y, 1, kind="interpolant")
    with pytest.raises(DomainError, match=r"at least r\(r\+1\)/2 samples"):
        spectral_initializer(X[:2], y[:2], 3, kind="bounded")
    for kind in ("moment", "bounded", "interpolant"):
        with pytest.raises(ShapeError, match=r"^y: expected"):
            spectral_initializer(X[:9], y[:8], 1, kind=kind)
    with pytest.raises(DomainError, match="kind: expected 'moment' or 'bounded'"):
        spectral_initializer(X, y, 1, kind="other")


def _unit(U):
    return U / torch.linalg.matrix_norm(U)


def test_a_raised_factor_has_full_rank_by_hand():
    """The interpolant of `4 q_11 = 6` is diag(1.5, 0), whose zero is raised to a twentieth."""
    operator = RankOne(torch.tensor([[2.0, 0.0]], dtype=torch.float64))
    y = torch.tensor([6.0], dtype=torch.float64)
    values, vectors = np.linalg.eigh(initializers.least_interpolant(operator, y).numpy())
    U = initializers.raised_factor(values[::-1], vectors[:, ::-1], y)
    np.testing.assert_allclose(U @ U.mT, np.diag([1.5, 0.075]), rtol=1e-14, atol=1e-16)


def test_an_estimate_without_positive_eigenvalues_is_raised_to_the_size_of_the_responses():
    """Mean |y| = 3 and d = 2, so 1.5 takes the place of the largest eigenvalue."""
    y = torch.tensor([-2.0, 4.0], dtype=torch.float64)
    U = initializers.raised_factor(np.array([-1.0, -2.0]), np.eye(2), y)
    np.testing.assert_allclose(U @ U.mT, np.diag([0.075, 0.075]), rtol=1e-14)


@pytest.mark.parametrize("unit", [1e-16, 1.0, 1e16])
def test_a_kernel_that_is_singular_to_rounding_is_solved_in_its_range(unit):
    """`[[1, 1], [1, 1 + 1e-15]]` has a factor with a pivot of 3e-8; the pseudoinverse is meant."""
    K = unit * torch.tensor([[1.0, 1.0], [1.0, 1.0 + 1e-15]], dtype=torch.float64)
    found = initializers.kernel_solve(K, unit * torch.ones(2, dtype=torch.float64))
    np.testing.assert_allclose(found, [0.5, 0.5], rtol=1e-13)
