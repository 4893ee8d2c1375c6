"""The population curvature and its closed-form inverse, against a dense matrix of it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch

from posquad.geometry.frames import frame
from posquad.geometry.population import population_product, population_solve
from support import SIZES, normal, ratio, rotation


def dense_product(U: np.ndarray) -> np.ndarray:
    """The matrix, on vectorized V, of `P(V) = 2 T(VU' + UV') U` with `T(H) = 2H + tr(H) I`."""
    d, r = U.shape
    columns = []
    for V in np.eye(d * r).reshape(d * r, d, r):
        xi = V @ U.T + U @ V.T
        columns.append((2 * (2 * xi + np.trace(xi) * np.eye(d)) @ U).ravel())
    return np.stack(columns, axis=1)


def dense_horizontal_basis(U: np.ndarray) -> np.ndarray:
    """Orthonormal columns spanning the vectorized V with U'V symmetric: a null space."""
    d, r = U.shape
    constraints = [
        (U.T @ V - V.T @ U)[np.triu_indices(r, 1)] for V in np.eye(d * r).reshape(d * r, d, r)
    ]
    if r == 1:
        return np.eye(d)
    return scipy.linalg.null_space(np.stack(constraints, axis=1))


def factor(rng: torch.Generator, d: int, r: int, smallest: float) -> torch.Tensor:
    """Singular values from 1 to `smallest`, in a random position."""
    W = torch.linalg.qr(normal(rng, d, r)).Q
    s = torch.logspace(0, float(np.log10(smallest)), r, dtype=torch.float64)
    return W * s @ rotation(rng, r)


@pytest.mark.parametrize(("d", "r"), SIZES)
def test_product(rng, d, r):
    U, V = normal(rng, d, r), normal(rng, d, r)
    P = dense_product(U.numpy())
    expected = torch.from_numpy(P @ V.numpy().ravel()).reshape(d, r)
    scale = np.linalg.norm(P, 2) * np.linalg.norm(V.numpy())
    assert ratio(population_product(U, U.mT @ U, V) - expected, scale, d) < 60


@pytest.mark.parametrize(("d", "r"), SIZES)
def test_solve_against_a_dense_solve(rng, d, r):
    """In horizontal coordinates the dense matrix has condition at most (d + 2) / smallest^2."""
    for smallest in (1.0, 1e-1, 1e-4):
        U = factor(rng, d, r, smallest)
        H = dense_horizontal_basis(U.numpy())
        assert H.shape[1] == d * r - r * (r - 1) // 2
        M = H.T @ dense_product(U.numpy()) @ H
        R = H @ normal(rng, H.shape[1]).numpy()
        expected = torch.from_numpy(H @ scipy.linalg.solve(M, H.T @ R, assume_a="pos"))
        V = population_solve(frame("U", U), torch.from_numpy(R).reshape(d, r))
        scale = np.linalg.cond(M) * float(expected.norm())
        assert ratio(V.ravel() - expected, scale, d) < 60


@pytest.mark.parametrize("smallest", [1.0, 1e-4])
@pytest.mark.parametrize(("d", "r"), SIZES)
def test_solution_is_horizontal_with_a_small_residual(rng, d, r, smallest):
    """Backward stable: the residual does not grow with the condition number, the error does."""
    U = factor(rng, d, r, smallest)
    P, H = dense_product(U.numpy()), dense_horizontal_basis(U.numpy())
    R = torch.from_numpy(H @ normal(rng, H.shape[1]).numpy()).reshape(d, r)
    V = population_solve(frame("U", U), R)
    residual = torch.from_numpy(P @ V.numpy().ravel()).reshape(d, r) - R
    size = np.linalg.norm(P, 2) * float(V.norm())
    assert ratio(residual, size, d * r) < 60
    assert ratio(U.mT @ V - V.mT @ U, float(V.norm()), d * r) < 60


def test_batches_of_factors_and_directions(rng):
    U, V = normal(rng, 2, 5, 3), normal(rng, 4, 2, 5, 3)
    products = population_product(U, U.mT @ U, V)
    basis = frame("U", U)
    R = V - V  # filled with a horizontal right side at each factor
    for j in range(2):
        H = torch.from_numpy(dense_horizontal_basis(U[j].numpy()))
        R[:, j] = (V[:, j].flatten(-2) @ H @ H.mT).unflatten(-1, (5, 3))
    solutions = population_solve(basis, R)
    assert products.shape == solutions.shape == V.shape
    for i in range(4):
        for j in range(2):
            P = dense_product(U[j].numpy())
            size, cond = np.linalg.norm(P, 2), np.linalg.cond(U[j].numpy()) ** 2
            expected = torch.from_numpy(P @ V[i, j].numpy().ravel())
            assert ratio(products[i, j].ravel() - expected, size * float(V.norm()), 5) < 60
            residual = torch.from_numpy(P @ solutions[i, j].numpy().ravel()) - R[i, j].ravel()
            assert ratio(residual, cond * float(R.norm()), 5) < 60


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 5, 3)])
def test_empty_batches(shape):
    U = torch.ones(shape, dtype=torch.float64)
    assert population_product(U, U.mT @ U, U).shape == shape
    assert population_solve(frame("U", U), U).shape == shape


def test_float32_follows(rng):
    U = normal(rng, 5, 2, dtype=torch.float32)
    R = population_product(U, U.mT @ U, U)  # U is horizontal at U, and so is P(U)
    V = population_solve(frame("U", U), R)
    assert R.dtype == V.dtype == torch.float32
    condition = float(torch.linalg.cond(U)) ** 2
    assert ratio(V - U, condition * float(U.norm()), 5) < 60
