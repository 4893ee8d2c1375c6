"""The dual matrix that excludes a second solution, against the convex program that it decides."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from positive_support import extreme_trace
from posquad import Status, recover
from posquad.recovery import Acceptance
from posquad.recovery.exclusion import _is_dual, excludes_others
from posquad.recovery.prepare import prepare
from posquad.recovery.problem_cache import ProblemCache
from recovery_support import costs_are
from support import gaussian_problem


def excluded(X, U):
    prepared = prepare(X, (X @ U).square().sum(-1), None)
    return excludes_others(ProblemCache(prepared), prepared.enter(U))


@pytest.mark.parametrize(("n", "d", "r"), [(9, 4, 1), (15, 6, 1), (18, 6, 2), (26, 8, 2)])
def test_what_is_excluded_does_not_exist(n, d, r):
    """The least and the greatest trace of a positive semidefinite interpolant agree."""
    answers = []
    for seed in range(6):
        X, U, y = gaussian_problem(torch.Generator().manual_seed(seed), n, d, r, smallest=0.5)
        answers.append(bool(excluded(X, U)))
        if answers[-1]:
            traces = [extreme_trace(X.numpy(), y.numpy(), sign) for sign in (1, -1)]
            assert traces[0] == pytest.approx(traces[1], rel=1e-5)
            assert traces[0] == pytest.approx(float(U.square().sum()), rel=1e-5)
    assert any(answers)


def test_a_second_positive_semidefinite_solution_is_not_excluded():
    """Rows in two complementary subspaces do not see the sign of one part of u."""
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        turn = torch.linalg.qr(torch.randn(6, 6, generator=draw, dtype=torch.float64)).Q
        rows = torch.randn(18, 6, generator=draw, dtype=torch.float64)
        rows[:9, :3] = 0
        rows[9:, 3:] = 0
        u = torch.randn(6, 1, generator=draw, dtype=torch.float64)
        assert not bool(excluded(rows @ turn.mT, turn @ u))


def test_a_batch_is_told_what_its_problems_are_told():
    draw = torch.Generator().manual_seed(0)
    problems = [gaussian_problem(draw, 23, 8, 2, smallest=0.5) for _ in range(12)]
    X, U, _ = (torch.stack(part) for part in zip(*problems, strict=True))
    together = excluded(X, U)
    assert together.tolist() == [bool(excluded(x, u)) for x, u in zip(X, U, strict=True)]
    assert 0 < int(together.sum()) < 12
    few = [gaussian_problem(draw, 7, 4, 1) for _ in range(40)]
    X, U, _ = (torch.stack(part) for part in zip(*few, strict=True))
    alone = [bool(excluded(x, u)) for x, u in zip(X, U, strict=True)]
    assert excluded(X, U).tolist() == alone


@pytest.mark.parametrize(
    ("n", "sizes"),
    [
        (7, {}),  # p = 7: only z = 0
        (11, {}),  # more than d(d+1)/2 = 10
        (9, {"OPERATIONS": 4 * 9 * 9 * 10 - 1}),
    ],
)
def test_no_dual_matrix_is_sought_outside_its_range(n, sizes):
    X, U, _ = gaussian_problem(torch.Generator().manual_seed(0), n, 4, 2, smallest=0.5)
    with costs_are(**sizes):
        assert not bool(excluded(X, U))
    assert bool(excluded(*gaussian_problem(torch.Generator().manual_seed(0), 10, 4, 1)[:2]))


def test_samples_that_are_not_independent_do_no_harm():
    """Repeated rows and rows of zeros leave combinations z that A* does not see."""
    for seed in range(10):
        X, U, y = gaussian_problem(torch.Generator().manual_seed(seed), 10, 4, 1)
        X[9], X[8] = X[0], 0.0
        assert excluded(X, U).dtype == bool  # and nothing is raised
        y = (X @ U).square().sum(-1)
        assert recover(X, y, 1).status is recover(X[:8], y[:8], 1).status


def test_the_dual_matrix_is_checked_by_hand():
    """Rows e_1, e_2 and e_1 + e_2 for U = e_1: M = diag(0, 1) has z = (0, 1, 0)."""
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    B = rows[:, :, None] * rows[:, None, :]
    good, indefinite, slanted = np.array([[0.0, 1.0, 0.0], [0.0, -1.0, 0.0], [0.0, 1.0, 1e-9]])
    assert [bool(_is_dual(B, z, 1, 1e-6)) for z in (good, indefinite, slanted)] == [
        True,
        False,
        False,
    ]
    assert not bool(_is_dual(B, good, 1, 1.0))  # the eigenvalue is 1 and so is the size
    assert not bool(_is_dual(B, good * np.nan, 1, 1e-6))


def test_recover_says_how_a_second_solution_was_ruled_out():
    X, U, y = gaussian_problem(torch.Generator().manual_seed(1), 50, 10, 2, smallest=0.5)
    found = recover(X, y, 2)
    assert found.status is Status.RECOVERED
    assert (bool(found.excluded), int(found.second_starts)) == (True, 0)
    X, U, y = gaussian_problem(torch.Generator().manual_seed(1), 24, 10, 2, smallest=0.5)
    found = recover(X, y, 2)
    assert found.status is Status.RECOVERED
    assert not bool(found.excluded)
    assert int(found.second_starts) >= Acceptance().agreeing_others
    np.testing.assert_allclose(found.Q.dense(), U @ U.T, atol=1e-8)
