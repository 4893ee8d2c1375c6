"""Refits of a factor within its range, compared with NumPy's linear least squares."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad import RankOne
from posquad.recovery import population_lbfgs, spectral_initializer
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.refit import refit_in_range
from support import gaussian_problem, normal

FALLEN = torch.tensor(1e6, dtype=torch.float64)  # a residual before that any other is below


def best_in_range(X, y, U):
    """The S of least `||A(USU') - y||`, by `lstsq` over the entries of its upper triangle."""
    Z = (X @ U).numpy()
    i, j = np.triu_indices(Z.shape[1])
    system = Z[:, i] * Z[:, j] * np.where(i == j, 1, 2)
    entries = np.linalg.lstsq(system, y.numpy())[0]
    S = np.zeros((Z.shape[1],) * 2)
    S[i, j] = S[j, i] = entries
    return S


def weak_problem(rng, n=200, d=20, r=3):
    """A problem, and a factor whose last two columns are too strong and point anywhere."""
    X, U, y = gaussian_problem(rng, n, d, r, smallest=1e-3)
    V = torch.cat([U[:, :1], 0.3 * normal(rng, d, r - 1) / d**0.5], dim=1)
    return X, y, V


def test_the_refit_is_the_least_squares_fit_over_the_range(rng):
    X, y, V = weak_problem(rng)
    S = best_in_range(X, y, V)
    assert np.linalg.eigvalsh(S)[0] > 0.1  # so that nothing is raised
    problem = Problem(RankOne(X), y)
    refitted, Z = refit_in_range(problem, V, X @ V, FALLEN)
    expected = V.numpy() @ S @ V.mT.numpy()
    np.testing.assert_allclose(refitted @ refitted.mT, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(Z, X @ refitted, rtol=1e-12, atol=1e-13)


def test_a_column_is_shrunk_at_most_to_a_tenth_of_its_eigenvalue(rng):
    X, y, V = weak_problem(rng)
    y = (X @ V[:, :1]).square().sum(-1)  # the other columns should vanish
    refitted, _ = refit_in_range(Problem(RankOne(X), y), V, X @ V, FALLEN)
    ratio = torch.linalg.svdvals(refitted)[-1] / torch.linalg.svdvals(V)[-1]
    assert float(ratio) ** 2 == pytest.approx(0.1, rel=0.05)


def test_what_needs_no_refit_is_returned_as_it_is(rng):
    X, y, V = weak_problem(rng)
    problem, Z = Problem(RankOne(X), y), X @ V
    residual = problem.relative(problem.residual(Z))
    assert refit_in_range(problem, V, Z, residual)[0] is V  # it has not fallen
    assert refit_in_range(problem, V, Z, residual / 0.96)[0] is not V
    strong = Problem(RankOne(X), Z.square().sum(-1) * 1.001)
    assert refit_in_range(strong, V, Z, FALLEN)[0] is V
    few = Problem(RankOne(X[:5]), y[:5])  # five samples do not determine six entries
    assert torch.equal(refit_in_range(few, V, Z[:5], FALLEN)[0], V)
    wide = Problem(RankOne(X[:, :5]), y)  # the system costs more than a product with X
    W = normal(rng, 5, 4)
    assert refit_in_range(wide, W, X[:, :5] @ W, FALLEN)[0] is W


def test_each_problem_of_a_batch_is_refitted_alone(rng):
    X, y, V = weak_problem(rng)
    strong = torch.linalg.qr(normal(rng, 20, 3)).Q
    both = torch.stack([y, (X @ strong).square().sum(-1) * 1.001])
    U = torch.stack([V, strong])
    refitted, _ = refit_in_range(Problem(RankOne(X), both), U, X @ U, FALLEN.expand(2))
    alone, _ = refit_in_range(Problem(RankOne(X), y), V, X @ V, FALLEN)
    torch.testing.assert_close(refitted[0], alone, rtol=1e-12, atol=1e-14)
    assert torch.equal(refitted[1], strong)


def test_passes_from_a_spectral_start_hardly_grow_with_the_condition_number():
    """Without refits, the ratio is 1.25 to 1.4."""
    counts = []
    for smallest in (1.0, 1e-4):
        rng = torch.Generator().manual_seed(3)
        X, U, y = gaussian_problem(rng, 1176, 100, 3)
        U = U * torch.tensor([1.0, smallest**0.5, smallest], dtype=X.dtype).sqrt()
        y = (X @ U).square().sum(-1)
        start = spectral_initializer(X, y, 3, kind="bounded")
        counts.append(int(population_lbfgs(X, y, start, tolerance=1e-10).passes))
    assert counts[1] <= 1.15 * counts[0]
