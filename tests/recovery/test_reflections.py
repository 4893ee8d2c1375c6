"""Relaxed reflections: the iteration, where it rests, and what the search gains by it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad import RankOne, recover
from posquad.recovery.budget import Budget, History
from posquad.recovery.problem import Problem
from posquad.recovery.restarts import reflected_starts
from posquad.recovery.solvers.reflections import Reflections, run_reflections
from recovery_support import costs_are, task_of
from support import gaussian_problem, normal


def problem_of(n=14, d=5, r=2, seed=0):
    X, U, y = gaussian_problem(torch.Generator().manual_seed(seed), n, d, r)
    return Problem(RankOne(X), y), U


def test_a_step_is_25_reflections_of_the_formula(rng):
    problem, _ = problem_of()
    U0 = normal(rng, 3, 5, 2)
    new = Reflections(problem, 0.6).advance(Reflections(problem, 0.6).start(U0))
    given = problem.operator.X.numpy()
    size = np.linalg.norm(given, axis=1)
    X, lengths = given / size[:, None], problem.y.numpy() ** 0.5 / size  # all rows count alike
    project = X @ np.linalg.pinv(X)
    for start in range(3):
        Z = X @ U0[start].numpy()
        for _ in range(25):
            inside = project @ Z
            turned = 2 * inside - Z
            sphere = turned / np.linalg.norm(turned, axis=1)[:, None] * lengths[:, None]
            Z = Z + 0.6 * (sphere - inside)
        U = np.linalg.pinv(X) @ inside
        # Rounding grows by a factor of at most 2.2 per reflection near a sphere, here far less.
        np.testing.assert_allclose(new.Z[start].mT, Z, rtol=0, atol=1e-9)
        np.testing.assert_allclose(new.U[start], U, rtol=0, atol=1e-9)
        gap = np.linalg.norm(sphere - inside) / np.linalg.norm(lengths)
        assert float(new.gap[start]) == pytest.approx(gap, rel=1e-6)
        misfit = np.square(given @ U).sum(1) - problem.y.numpy()
        residual = np.linalg.norm(misfit) / np.linalg.norm(problem.y.numpy())
        assert float(new.residual[start]) == pytest.approx(residual, rel=1e-6)


def test_narrow_reflections_are_made_in_single_precision(rng):
    problem, _ = problem_of()
    U0 = normal(rng, 3, 5, 2)
    wide, narrow = (Reflections(problem, 0.6, narrow=narrow) for narrow in (False, True))
    expected, state = (method.advance(method.start(U0)) for method in (wide, narrow))
    assert (state.Z.dtype, state.U.dtype) == (torch.float32, torch.float64)
    # Rounding, 6e-8, grows in 25 reflections, here by less than a factor of 100.
    torch.testing.assert_close(state.U, expected.U, rtol=0, atol=1e-5)
    torch.testing.assert_close(state.gap, expected.gap, rtol=1e-4, atol=0)


def test_a_solution_is_at_rest_and_ends_the_other_starts(rng):
    problem, U = problem_of()
    starts = torch.stack([normal(rng, 5, 2), U])
    history = History(Budget(max_steps=100))
    method = Reflections(problem, 0.6)
    ended = run_reflections(method, starts, history, gap=1e-6, steps=1000, enough=1)
    assert ended.steps.tolist() == [1, 1]
    torch.testing.assert_close(ended.U[1] @ ended.U[1].mT, U @ U.mT)
    assert float(ended.gap[1]) < 1e-13
    assert float(ended.gap[0]) > 1e-6
    ended = run_reflections(method, starts, history, gap=1e-6, steps=50, enough=2)
    assert ended.steps.tolist() == [2, 2]


def test_reflections_end_after_their_number(rng):
    history, method = History(Budget(max_steps=100)), Reflections(problem_of()[0], 0.6)
    U0 = normal(rng, 2, 5, 2)
    ended = run_reflections(method, U0, history, gap=1e-300, steps=60, enough=1)
    assert ended.steps.tolist() == [3, 3]  # of 25 each


def test_problems_of_a_batch_are_reflected_as_alone(rng):
    alone = [problem_of(seed=seed)[0] for seed in range(3)]
    X, y = (torch.stack(part) for part in zip(*((p.operator.X, p.y) for p in alone), strict=True))
    together, U0 = Reflections(Problem(RankOne(X), y), 0.6), normal(rng, 4, 1, 5, 2)
    state = together.advance(together.start(U0))
    for k, problem in enumerate(alone):
        method = Reflections(problem, 0.6)
        one = method.advance(method.start(U0[:, 0]))
        torch.testing.assert_close(state.Z[:, k], one.Z, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(state.U[:, k], one.U, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(state.gap[:, k], one.gap, rtol=1e-6, atol=1e-9)


def test_the_starts_are_those_of_least_gap(monkeypatch):
    problem, _ = problem_of()
    seen = []

    def run(method, U0, history, **settings):
        state = run_reflections(method, U0, history, **settings)
        seen.append((U0, settings["steps"], state))
        return state

    monkeypatch.setattr("posquad.recovery.restarts.run_reflections", run)
    monkeypatch.setattr("posquad.recovery.restarts._REFLECTIONS", 50)
    monkeypatch.setattr("posquad.recovery.restarts.GAP", 1e-300)
    for sizes, round, most, expected in [
        ({}, 0, 9, (2, 16, 50)),
        ({}, 1, 9, (2, 16, 100)),
        ({}, 5, 1, (1, 16, 200)),
        ({"_MODERATE_UNKNOWNS": 8}, 0, 9, (2, 4, 50)),  # p = 9
    ]:
        with costs_are(**sizes):
            U = reflected_starts(problem, 2, most, task_of(), round)
        U0, steps, state = seen[-1]
        assert (len(U), len(U0), steps) == expected
        torch.testing.assert_close(U, state.U[state.gap.argsort()[: len(U)]])
        # The first predictions have the size of sqrt(y), up to the mean of a few squared normals.
        ratio = float(problem.operator.project(U0).square().sum((-2, -1)).mean() / problem.y.sum())
        assert ratio == pytest.approx(1, abs=0.5)


@pytest.mark.parametrize("seed", [3, 7])
def test_spurious_minima_do_not_trap_the_search(seed):
    """Problems at n = 1.05p that 1,709 descents from perturbed and reweighted starts miss."""
    generator = torch.Generator().manual_seed(123)
    for _ in range(seed + 1):
        X = torch.randn(123, 40, generator=generator, dtype=torch.float64)
        W = torch.linalg.qr(torch.randn(40, 3, generator=generator, dtype=torch.float64)).Q
    U = W * torch.tensor([1.0, 0.75, 0.5], dtype=torch.float64).sqrt()
    found = recover(X, RankOne(X).apply_factor(U), 3, max_starts=40)
    assert found.status.name == "RECOVERED"
    torch.testing.assert_close(found.Q.dense(), U @ U.mT, rtol=0, atol=1e-6)
