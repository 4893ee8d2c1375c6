"""The budget is asked in the diagnosis too, and what cannot change the status is not computed."""

from __future__ import annotations

import math
import time

import pytest
import torch

from posquad import RankOne, Status, recover
from posquad.curvature.ends import spectrum_ends
from posquad.recovery import diagnose as module
from posquad.recovery.budget import Budget
from posquad.recovery.diagnose import diagnose
from posquad.recovery.prepare import prepare
from posquad.recovery.problem_cache import ProblemCache
from support import gaussian_problem, normal


def test_what_is_left_is_passed_on():
    budget = Budget(max_steps=10, time_limit=100.0)
    assert budget.limits["max_steps"] == 10
    budget.count(4)
    budget.count(3)
    assert not budget.spent
    assert budget.limits["max_steps"] == 3
    assert 99 < budget.limits["time_limit"] <= budget.seconds_left + 1 <= 101
    budget.count(3)
    assert budget.spent
    assert budget.limits["max_steps"] == 1
    budget.deadline = time.perf_counter() - 1
    assert budget.seconds_left == 0
    assert budget.limits["time_limit"] == 1e-3
    assert Budget(max_steps=1).limits["time_limit"] is None
    assert Budget(max_steps=1).seconds_left == math.inf


def test_the_ends_of_a_spectrum_are_not_known_when_they_are_stopped(rng):
    X, U, _ = gaussian_problem(rng, 400, 20, 2, smallest=0.5)
    asked = []

    def stopped():
        asked.append(len(asked))
        return len(asked) > 5

    assert bool(spectrum_ends(RankOne(X), U, 0.1).known)
    assert not bool(spectrum_ends(RankOne(X), U, 0.1, stopped=stopped).known)
    assert len(asked) == 6 + 1  # once more between two attempts


def test_a_late_diagnosis_of_a_large_problem_is_left_out(rng, monkeypatch):
    X, U, y = gaussian_problem(rng, 60, 8, 2, smallest=0.5)
    shared = ProblemCache(prepare(X, y, None))
    monkeypatch.setattr(module, "is_quick", lambda multiplications: False)
    U = shared.prepared.enter(U)
    residual = shared.problem.relative_residual(U).numpy()
    monkeypatch.setattr(module, "effective_spectrum", lambda *_, **__: pytest.fail("too late"))
    budget = Budget(max_steps=1, time_limit=100.0)
    assert bool(diagnose(shared, U, residual, budget=budget).converged)
    budget.deadline = 0.0
    late = diagnose(shared, U, residual, budget=budget)
    assert not bool(late.converged | late.free | late.isolated)


@pytest.mark.parametrize("spent", [False, True])
def test_no_curvature_at_full_rank_if_the_samples_leave_a_direction_free(rng, monkeypatch, spent):
    for name in ("effective_spectrum", "spectrum_ends", "_clear_curvature"):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("it changes nothing"))
    X = normal(rng, 14, 5)
    y = X.square().sum(-1)  # Q = I is one of many
    steps = 100_000
    if spent:
        steps = recover(X, y, 5).steps
    found = recover(X, y, 5, max_steps=max(1, steps))
    assert found.status is Status.NOT_IDENTIFIED
    assert bool(torch.isnan(found.curvature).all())
    assert bool(torch.isnan(found.error_estimate))


@pytest.mark.parametrize("rank", [3, None])
@pytest.mark.parametrize("most", [1, 5, 20])
def test_a_search_of_several_runs_takes_as_many_steps_as_allowed(rng, rank, most):
    X, _, y = gaussian_problem(rng, 60, 12, 3, smallest=0.5)
    found = recover(X, y + 0.1 * normal(rng, 60), rank, max_steps=most)
    assert (found.status, found.steps) == (Status.INTERRUPTED, most)
