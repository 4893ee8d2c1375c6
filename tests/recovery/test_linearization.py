"""The linearization at a factor: its spectrum, and the steps that lead to the factor."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from posquad import RankOne
from posquad.curvature import effective_spectrum
from posquad.problems.objectives import LeastSquares
from posquad.recovery.linearization import Linearization
from posquad.recovery.problem import Problem
from support import gaussian_problem, normal


def linearized(n=60, d=8, r=3, batch=0):
    rng = torch.Generator().manual_seed(n)
    if not batch:
        X, U, y = gaussian_problem(rng, n, d, r)
    else:
        X, U = normal(rng, batch, n, d), normal(rng, batch, d, r)
        y = (X @ U).square().sum(-1)
    return Linearization.at(Problem(RankOne(X), y), U)


@pytest.mark.parametrize(
    ("n", "d", "r", "batch"),
    [(60, 8, 3, 0), (60, 8, 3, 2), (30, 20, 1, 0), (15, 4, 4, 0), (4, 1, 1, 0)],
)
def test_the_ends_are_those_of_the_effective_spectrum(n, d, r, batch):
    system = linearized(n, d, r, batch)
    low, high = system.ends(0.1)
    spectrum = effective_spectrum(LeastSquares(system.problem.operator, system.problem.y), system.U)
    values = spectrum.values
    torch.testing.assert_close(low, values[..., 0], rtol=0.1, atol=0)
    torch.testing.assert_close(high, values[..., -1], rtol=0.1, atol=0)
    assert bool((low >= values[..., 0] * (1 - 1e-6)).all())  # a Rayleigh quotient
    assert bool((high <= values[..., -1] * (1 + 1e-6)).all())


def test_directions_that_are_left_free_show():
    """Of p = 21 directions, 14 samples determine 14: the others have no curvature but rounding."""
    low, high = linearized(14, 8, 3).ends(0.1)
    assert not float(low) > 1e-12 * float(high)  # NaN if the factorization broke down


def test_steps_lead_to_the_factor_quadratically(rng):
    system = linearized()
    U = system.U
    away = []
    V = torch.stack([U, -U]) + 0.05 * normal(rng, 2, *U.shape)  # two of the factors of UU'
    for _ in range(5):
        away.append(float(torch.linalg.matrix_norm(V @ V.mT - U @ U.mT).max()))
        V = system.step(V)
    size = float(torch.linalg.matrix_norm(U @ U.mT))
    assert away[0] > 0.02 * size
    assert away[-1] < 1e-12 * size
    assert all(after < 5 * before**2 for before, after in pairwise(away[:3]))


def test_another_solution_stays():
    """At x1 = 0 or x2 = 0 the signs of the two entries of U do not show."""
    X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    U = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    other = torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
    system = Linearization.at(Problem(RankOne(X), (X @ U).square()[:, 0]), U)
    V = system.step(other[None])[0]
    torch.testing.assert_close(V @ V.mT, other @ other.mT)
