"""The same call on an accelerator gives the same answer, on that device.

Run by hand where one exists: `PYTHONPATH=src python -m pytest tests/test_devices.py`.
"""

from __future__ import annotations

import pytest
import torch

import posquad
from posquad import geometry, selection
from posquad.core.errors import DtypeError
from support import gaussian_problem, normal

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, which this machine does not have"
)
CUDA = torch.device("cuda")


def both(compute, *arrays: torch.Tensor) -> None:
    """Compare on CPU and CUDA, at rounding level relative to the size of the result."""
    here = compute(*arrays)
    there = compute(*(a.to(CUDA) for a in arrays))
    here, there = ((x,) if isinstance(x, torch.Tensor) else x for x in (here, there))
    for a, b in zip(here, there, strict=True):
        assert b.device.type == "cuda"
        torch.testing.assert_close(b.cpu(), a, rtol=1e-9, atol=1e-11 * (1 + float(a.abs().max())))


def test_geometry(rng):
    U, V, Z = (normal(rng, 3, 6, 2) for _ in range(3))
    both(geometry.horizontal_projection, U, Z)
    both(geometry.vertical_projection, U, Z)
    both(geometry.procrustes_alignment, U, V)
    both(geometry.procrustes_distance, U, V)
    both(geometry.norm_bounds, U)
    both(geometry.log, U, V)
    both(lambda U, V: geometry.geodesic(U, V, 0.3), U, V)
    both(lambda U, Z: geometry.horizontal_lift(U, geometry.differential(U, Z)), U, Z)
    both(lambda U: geometry.fiber_rotation(U, U.flip(-1)), U)
    # A basis is not unique; the projector that it spans is.
    both(lambda U: torch.einsum("...pab,...pcd->...abcd", *[geometry.horizontal_basis(U)] * 2), U)


def test_operators_and_objectives(rng):
    X, U, y = gaussian_problem(rng, 5000, 20, 3)
    V, D = normal(rng, 2, 20, 3), normal(rng, 2, 20, 3)
    both(lambda X, y, V: posquad.LeastSquares(posquad.RankOne(X), y).loss_and_gradient(V), X, y, V)
    both(
        lambda X, y, V, D: posquad.LeastSquares(posquad.RankOne(X), y).hessian_product(V, D),
        X, y, V, D,
    )  # fmt: skip
    both(lambda U, V: posquad.PopulationRisk(U).loss_and_gradient(V), U, V)
    both(lambda Q: posquad.GaussianPopulation(20).normal(Q), U @ U.mT)
    both(lambda z: posquad.GaussianPopulation(20).adjoint(z), normal(rng, 211))
    both(lambda X, z: posquad.RankOne(X).adjoint(z), X, y)
    with pytest.raises(DtypeError, match=r"^U: expected the operator's device"):
        posquad.LeastSquares(posquad.RankOne(X.to(CUDA)), y.to(CUDA)).loss(U)


def test_dynamics(rng):
    X, U, y = gaussian_problem(rng, 200, 8, 2)
    U0 = U + 0.1 * normal(rng, 4, 8, 2)

    def flow(X, y, U0):
        objective = posquad.LeastSquares(posquad.RankOne(X), y)
        path = posquad.gradient_flow(objective, U0, t_final=1.0)
        return path.loss, path.U @ path.U.mT

    def descent(X, y, U0):
        objective = posquad.LeastSquares(posquad.RankOne(X), y)
        path = posquad.gradient_descent(objective, U0, step=0.01, max_steps=50)
        return path.loss, path.U @ path.U.mT

    both(flow, X, y, U0)
    both(descent, X, y, U0)


def test_curvature(rng):
    X, U, y = gaussian_problem(rng, 600, 30, 3, smallest=0.1)

    def values(X, y, U, **request):
        objective = posquad.LeastSquares(posquad.RankOne(X), y)
        return posquad.effective_spectrum(objective, U, **request).values

    both(values, X, y, U)
    both(lambda *a: values(*a, which="smallest", k=2, method="matrix-free"), X, y, U)
    both(lambda *a: values(*a, which="largest", k=2, method="matrix-free"), X, y, U)
    both(posquad.population_spectrum, U)


def test_selection():
    B = torch.tensor([[1.0, 1, 1, 0], [0, 0, 1, 1]], dtype=torch.float64)
    y, d = torch.tensor([1.0, 0.3]).double(), torch.tensor([1.0, 1, 2, 3]).double()
    q0 = torch.full((4,), 0.04, dtype=torch.float64)
    both(lambda *a: selection.bregman_projection(*a).q, B, y, d, q0)
    both(lambda *a: selection.mirror_flow(*a).q, B, y, d, q0)
    both(lambda *a: selection.descent_limit(*a, 0.1).q, B, y, d, q0)
    both(lambda *a: selection.minimum_trace(*a).q, B, y, d)
    A = selection.commuting_family(B, d)
    both(lambda A: selection.joint_spectral_reduction(A).projectors, A)
    Q0 = 0.04 * torch.eye(7, dtype=torch.float64)
    both(lambda *a: selection.von_neumann_projection(*a).q, A, y, Q0)
