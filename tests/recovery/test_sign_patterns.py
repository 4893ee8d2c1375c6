"""All solutions of rank one by their signs, against a list of all signs of all rows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from posquad.problems.measurements import RankOne
from posquad.recovery import costs
from posquad.recovery.problem import Problem
from posquad.recovery.sign_patterns import sign_candidates


def candidates(X, y):
    """Candidates other than Q = 0."""
    none = y.new_zeros(*y.shape[:-1], X.shape[-1], 1)
    return sign_candidates(Problem(RankOne(X), y), none, none[..., 0, 0])


def all_solutions(X, y):
    """Least squares for every sign of every row; the vectors that fit, up to their sign."""
    found = []
    for signs in itertools.product([1.0, -1.0], repeat=len(y) - 1):
        right = np.sqrt(y) * np.array([1.0, *signs])
        u = np.linalg.lstsq(X, right, rcond=None)[0]
        near = [np.allclose(np.outer(u, u), np.outer(v, v), atol=1e-8) for v in found]
        if np.allclose(np.square(X @ u), y, rtol=1e-9) and not any(near):
            found.append(u)
    return found


def twins(seed, d):
    """Rows in two complementary subspaces of a rotated space: u has a second solution."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((d + 3, d))
    X[: d // 2 + 2, : d // 2] = 0
    X[d // 2 + 2 :, d // 2 :] = 0
    u = rng.standard_normal(d)
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return X @ turn, np.square(X @ u)


@pytest.mark.parametrize(("seed", "d"), [(0, 2), (1, 3), (2, 4), (3, 5)])
def test_every_solution_is_among_the_candidates(seed, d):
    X, y = twins(seed, d)
    solutions = all_solutions(X, y)
    assert len(solutions) >= 2
    told = candidates(torch.tensor(X), torch.tensor(y)).numpy()[..., 0]
    for u in solutions:
        errors = [np.abs(np.outer(v, v) - np.outer(u, u)).max() for v in told]
        assert min(errors) < 1e-10 * np.square(u).sum()


def test_one_dimension_has_one_candidate():
    told = candidates(torch.tensor([[2.0], [1.0]]).double(), torch.tensor([4.0, 1.0]).double())
    torch.testing.assert_close(told, torch.ones(1, 1, 1).double())


def test_a_batch_in_parts_has_the_candidates_of_its_problems(monkeypatch):
    problems = [twins(seed, 4) for seed in range(5)]
    X, y = (torch.tensor(np.array(part)) for part in zip(*problems, strict=True))
    alone = torch.stack([candidates(a, b) for a, b in zip(X, y, strict=True)], 1)
    monkeypatch.setattr(costs, "BYTES", 16 * 2 * 8 * 7)  # two problems at a time
    together = candidates(X, y)
    assert together.shape == (8, 5, 4, 1)
    # Candidates of equal residual may change places: compare those that reproduce.
    for first, second in ((alone, together), (together, alone)):
        fits = ((X @ first).square().sum(-1) - y).norm(dim=-1) < 1e-9
        gaps = (first[:, None] @ first[:, None].mT - second[None] @ second[None].mT).norm(
            dim=(-2, -1)
        )
        assert float(gaps.amin(1)[fits].max()) < 1e-9


def test_a_negative_response_is_read_as_zero_and_does_not_spoil_the_others():
    X = torch.eye(3).double()
    told = candidates(X, torch.tensor([1.0, 4.0, -1e-20]).double())
    assert bool(torch.isfinite(told).all())
    assert sorted({tuple(v.abs().ravel().tolist()) for v in told}) == [(1.0, 2.0, 0.0)]


def test_copies_of_the_first_solution_do_not_hide_the_second():
    """Each zero response doubles the candidates of a solution; here each of the two has 64."""
    X = np.vstack([np.eye(8), 2 * np.eye(8)])
    first, second = (np.array([1.0, b, *[0.0] * 6]) for b in (-0.5, 0.5))
    y = torch.tensor(np.square(X @ first))
    np.testing.assert_allclose(np.square(X @ second), y)
    problem, U = Problem(RankOne(torch.tensor(X)), y), torch.tensor(first)[:, None]
    told = sign_candidates(problem, U, torch.tensor(1e-5).double())[..., 0].numpy()
    assert min(np.abs(np.outer(v, v) - np.outer(second, second)).max() for v in told) < 1e-12
    assert min(np.abs(np.outer(v, v) - np.outer(first, first)).max() for v in told) > 0.1
