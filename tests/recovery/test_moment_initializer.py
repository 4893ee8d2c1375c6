"""The moment initializer: entrywise oracle, unbiasedness, truncation, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import posquad
from posquad import theory
from posquad.core.errors import (
    DomainError,
    DtypeError,
    NonFiniteError,
    RankDeficientError,
    ShapeError,
)
from posquad.recovery import moment_matrix, positive_truncation, spectral_initializer
from support import gaussian_problem, normal, rotation


def test_moment_matrix_entry_by_entry(rng):
    X, y = normal(rng, 7, 3).numpy(), normal(rng, 7).numpy()
    expected = sum(yi * (np.outer(x, x) - np.eye(3)) for x, yi in zip(X, y, strict=True)) / 14
    np.testing.assert_allclose(moment_matrix(X, y), expected, rtol=1e-13, atol=1e-14)


def test_moment_matrix_is_unbiased_for_gaussian_inputs(rng):
    """E M_n = Q*: Gauss-Hermite quadrature with 4 nodes per dimension is exact for degree 4."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(4)
    grid = np.array(np.meshgrid(nodes, nodes, nodes)).reshape(3, -1).T
    weight = np.array(np.meshgrid(weights, weights, weights)).reshape(3, -1).prod(0)
    weight = weight / weight.sum()
    U = normal(rng, 3, 2).numpy()
    y = ((grid @ U) ** 2).sum(1)
    M = moment_matrix(grid, y * weight * len(grid))
    np.testing.assert_allclose(M, U @ U.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_truncation_is_the_best_psd_approximation(rng, rank):
    """Against NumPy's eigh; the eigenvalues are 3, 1, -0.5, -2, 0.25 in a random basis."""
    O = rotation(rng, 5)
    values = torch.tensor([3.0, 1.0, -0.5, -2.0, 0.25], dtype=torch.float64)
    M = (O * values) @ O.mT
    U, found = positive_truncation(M, rank)
    kept = torch.tensor([3.0, 1.0, 0.25][:rank], dtype=torch.float64)
    assert int(found) == min(rank, 3)
    columns = O[:, [0, 1, 4]][:, : len(kept)]
    torch.testing.assert_close(U @ U.mT, (columns * kept) @ columns.mT, rtol=1e-12, atol=1e-13)
    gram = U.mT @ U  # canonical: orthogonal columns, descending
    torch.testing.assert_close(gram, torch.diag(gram.diagonal()), atol=1e-13, rtol=0)
    assert bool((gram.diagonal().diff() <= 0).all())


def test_large_samples_enter_the_neighbourhood(rng):
    X, U, y = gaussian_problem(rng, 200_000, 4, 2, smallest=0.5)
    U0 = spectral_initializer(X, y, 2)
    # ||M_n - Q*|| is about sqrt(d ||Q*||^2 / n) times a small constant, here below 0.05; the
    # truncation lemma turns that into a Procrustes distance.
    gamma = float(torch.linalg.matrix_norm(moment_matrix(X, y) - U @ U.mT, 2))
    signal = theory.Signal.from_factor(U)
    _, radius = theory.truncation_bounds(signal, gamma)
    assert gamma < 0.05
    assert float(posquad.geometry.procrustes_distance(U0, U)) <= radius


@given(st.integers(0, 50))
def test_truncation_lemma_on_random_perturbations(seed):
    rng = torch.Generator().manual_seed(seed)
    U = normal(rng, 6, 2)
    signal = theory.Signal.from_factor(U)
    E = normal(rng, 6, 6)
    E = E + E.mT
    gamma = 0.49 * signal.lambda_r * float(torch.rand((), generator=rng)) + 1e-6
    M = U @ U.mT + gamma * E / torch.linalg.matrix_norm(E, 2)
    U0, found = positive_truncation(M, 2)
    operator, factor = theory.truncation_bounds(signal, gamma)
    assert int(found) == 2
    slack = 1 + 1e-10  # rounding
    assert float(torch.linalg.matrix_norm(U0 @ U0.mT - U @ U.mT, 2)) <= operator * slack
    assert float(posquad.geometry.procrustes_distance(U0, U)) <= factor * slack


def test_batches_and_kinds(rng):
    X, y = normal(rng, 3, 50, 4), normal(rng, 3, 50).square()
    U = spectral_initializer(X, y, 1)
    assert U.shape == (3, 4, 1)
    single = spectral_initializer(X[1].numpy(), y[1].numpy(), 1)
    assert isinstance(single, np.ndarray)
    np.testing.assert_allclose(single @ single.T, (U[1] @ U[1].mT).numpy(), rtol=1e-12, atol=1e-13)


def test_too_few_positive_eigenvalues_are_reported(rng):
    X, y = normal(rng, 30, 3), -torch.ones(30, dtype=torch.float64)
    M = moment_matrix(X, y)
    positive = int((torch.linalg.eigvalsh(M) > 0).sum())
    assert positive < 3
    with pytest.raises(RankDeficientError, match=f"positive eigenvalues; got {positive} in"):
        spectral_initializer(X, y, 3)
    assert int(positive_truncation(M, 3)[1]) == positive


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda X, y: moment_matrix(X, y[:-1]), ShapeError, "y"),
        (lambda X, y: moment_matrix(X[0], y), ShapeError, "X"),
        (lambda X, y: moment_matrix(X * np.nan, y), NonFiniteError, "X"),
        (lambda X, y: moment_matrix(X, y * np.inf), NonFiniteError, "y"),
        (lambda X, y: spectral_initializer(X, y, 0), DomainError, "rank"),
        (lambda X, y: spectral_initializer(X, y, 4), DomainError, "rank"),
        (lambda X, y: spectral_initializer(X, y, 1.5), DomainError, "rank"),
        (lambda X, y: spectral_initializer(X, y, 1, kind="magic"), DomainError, "kind"),
        (lambda X, y: positive_truncation(X, 1), ShapeError, "M"),
        (lambda X, y: positive_truncation(np.triu(np.ones((3, 3))), 1), DomainError, "M"),
        (lambda X, y: positive_truncation(np.eye(3) * 1j, 1), DtypeError, "M"),
    ],
)
def test_bad_input(rng, call, error, named):
    X, y = normal(rng, 10, 3).numpy(), normal(rng, 10).numpy()
    with pytest.raises(error, match=rf"^{named}: expected .*; got "):
        call(X, y)
