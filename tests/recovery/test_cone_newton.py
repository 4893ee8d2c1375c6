"""Batches of positive quadratics: against projections, Clarabel, and the optimality conditions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from positive_support import clarabel_fit
from posquad.core.symmetric import svec, symmetric_matrix, symmetric_system
from posquad.recovery.solvers import cone_newton
from posquad.recovery.solvers.cone_newton import minimise_positive


def forms(d: int, count: int, condition: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random quadratic forms of this condition number, and centres that are mostly indefinite."""
    rng, D = np.random.default_rng(seed), d * (d + 1) // 2
    axes = np.linalg.qr(rng.standard_normal((count, D, D)))[0]
    values = np.geomspace(1.0, 1.0 / condition, D)
    H = np.einsum("kir,r,kjr->kij", axes, values, axes)
    return torch.from_numpy((H + H.transpose(0, 2, 1)) / 2), torch.from_numpy(
        rng.standard_normal((count, D))
    )


def assert_optimal(H: torch.Tensor, c: torch.Tensor, found, level: float = 1e-9) -> None:
    """`S >= 0`, `G = H(s - c) >= 0` and `<G, S> = 0`."""
    d = found.values.shape[-1]
    S, G = found.entries, ((found.entries - c)[:, None, :] @ H)[:, 0]
    size = torch.linalg.vector_norm((c[:, None, :] @ H)[:, 0], dim=-1)
    assert float(torch.linalg.eigvalsh(symmetric_matrix(S, d)).min()) > -1e-14 * float(
        S.abs().max()
    )
    assert float((torch.linalg.eigvalsh(symmetric_matrix(G, d))[:, 0] / size).min()) > -level
    along = (G * S).sum(-1).abs() / (size * torch.linalg.vector_norm(c, dim=-1))
    assert float(along.max()) < level


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_with_the_identity_it_is_the_projection(d):
    _, c = forms(d, 50, 1.0)
    found = minimise_positive(torch.eye(c.shape[-1], dtype=c.dtype), c)
    values, vectors = np.linalg.eigh(symmetric_matrix(c, d).numpy())
    expected = np.einsum("kir,kr,kjr->kij", vectors, values.clip(min=0), vectors)
    assert np.abs(symmetric_matrix(found.entries, d).numpy() - expected).max() < 1e-14
    half = (np.square(values.clip(max=0)).sum(1)) / 2
    assert np.abs(found.excess.numpy() - half).max() < 1e-14
    assert bool(found.solved.all())


@pytest.mark.parametrize("condition", [10.0, 1e4])
@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_optimality_conditions(d, condition):
    H, c = forms(d, 200, condition)
    found = minimise_positive(H, c)
    assert bool(found.solved.all())
    assert_optimal(H, c, found)


def test_a_shared_form_gives_the_same_answers():
    H, c = forms(3, 100, 20.0)
    shared = minimise_positive(H[0], c)
    own = minimise_positive(H[:1].expand(100, -1, -1), c)
    assert float((shared.entries - own.entries).abs().max()) < 1e-12


@pytest.mark.parametrize(("n", "d"), [(64, 3), (30, 6)])
def test_against_clarabel(n, d):
    rng = np.random.default_rng(d)
    X, y = rng.standard_normal((n, d)), rng.standard_normal((8, n)) + 0.3
    A = symmetric_system(torch.from_numpy(X))
    c = torch.linalg.lstsq(A, torch.from_numpy(y.T)).solution.mT
    found = minimise_positive(A.mT @ A, c)
    ours = np.square(found.entries.numpy() @ A.numpy().T - y).sum(1)
    values, vectors = np.linalg.eigh(np.array([clarabel_fit(X, one) for one in y]))
    theirs = np.einsum("kir,kr,kjr->kij", vectors, values.clip(min=0), vectors)  # feasible
    reference = np.square(np.einsum("ni,kij,nj->kn", X, theirs, X) - y).sum(1)
    assert (ours <= reference * (1 + 1e-10)).all()
    assert np.abs(ours - reference).max() < 1e-8 * reference.max()


def test_the_gap_bounds_the_distance_to_the_optimum(monkeypatch):
    """Stopped early, the value exceeds the least one by no more than the gap says."""
    H, c = forms(3, 200, 100.0, seed=1)
    best = minimise_positive(H, c)
    monkeypatch.setattr(cone_newton, "_STEPS", 1)
    monkeypatch.setattr(cone_newton, "_follow_path", lambda form: form.c)  # the same start again
    early = minimise_positive(H, c)
    open = ~early.solved
    assert int(open.sum()) > 50
    above = (early.excess - best.excess)[open]
    assert bool((above >= -1e-12).all())
    assert bool((above <= early.gap[open] * (1 + 1e-9) + 1e-12).all())
    assert float((above / early.gap[open]).max()) > 0.01  # the bound is not far off


def test_ill_conditioned_forms_are_solved_from_the_central_path():
    H, c = forms(3, 60, 1e6, seed=2)
    found = minimise_positive(H, c)
    assert bool(found.solved.all())
    assert int((found.steps > cone_newton._PATH_STEPS).sum()) > 10
    assert_optimal(H, c, found)


def test_positive_centres_and_empty_batches_need_no_step():
    c = svec(torch.diag_embed(torch.tensor([[1.0, 0.0], [2.0, 3.0]], dtype=torch.float64)))
    found = minimise_positive(torch.eye(3, dtype=torch.float64), c)
    assert found.entries.tolist() == c.tolist()
    assert found.steps.tolist() == [0, 0]
    assert found.excess.tolist() == found.gap.tolist() == [0.0, 0.0]
    assert minimise_positive(torch.eye(3, dtype=torch.float64), c[:0]).entries.shape == (0, 3)
