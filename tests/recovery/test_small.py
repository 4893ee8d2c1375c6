"""Levenberg-Marquardt on NumPy arrays, from many starts of small problems."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import least_squares

from adversarial.recovery_designs import DESIGNS
from adversarial.recovery_problems import drawn, seeded
from posquad.core.progress import Progress
from posquad.problems.measurements import RankOne
from posquad.recovery.budget import Budget, History
from posquad.recovery.diagnose import diagnose
from posquad.recovery.prepare import prepare
from posquad.recovery.problem import Problem
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.solvers.levenberg import FIRST_DAMPING
from posquad.recovery.solvers.small import Known, StopRule, run_small
from support import gaussian_problem, normal


def history_of(max_steps=10_000, progress=None):
    return History(Budget(max_steps=max_steps), progress)


def problem_of(X, y):
    return Problem(RankOne(X), y)


def error(V, U):
    P = U @ U.mT
    return torch.linalg.matrix_norm(V @ V.mT - P) / torch.linalg.matrix_norm(P)


@pytest.mark.parametrize(("n", "d", "r"), [(12, 4, 1), (20, 5, 2), (9, 3, 3), (6, 1, 1), (3, 4, 2)])
def test_a_step_is_damped_least_squares(rng, n, d, r):
    """`argmin_D ||e + JD||^2 + damping ||D||^2`, solved as one stacked system."""
    X, _, y = gaussian_problem(rng, n, d, r)
    starts = normal(rng, 3, d, r)
    found = run_small(problem_of(X, y), starts, StopRule(steps=1), history_of())
    for V, end in zip(starts, found.U, strict=True):
        Z = X @ V
        e = Z.square().sum(-1) - y
        J = 2 * (X[:, :, None] * Z[:, None, :]).flatten(1)
        residual = torch.linalg.vector_norm(e) / torch.linalg.vector_norm(y)
        damping = FIRST_DAMPING * J.square().sum() / min(n, d * r) * residual.clamp_max(1.0)
        stacked = torch.cat([J, damping.sqrt() * torch.eye(d * r, dtype=J.dtype)])
        right = torch.cat([-e, e.new_zeros(d * r)])
        step = torch.linalg.lstsq(stacked, right[:, None]).solution.reshape(d, r)
        after = (X @ (V + step)).square().sum(-1) - y
        better = after.norm() < e.norm()
        torch.testing.assert_close(end, V + step if better else V, rtol=1e-9, atol=1e-9)


def test_the_ends_are_minima(rng):
    """With noise, SciPy finds no lower residual from the end of a run."""
    X, _, y = gaussian_problem(rng, 30, 5, 2)
    y = y + 0.1 * normal(rng, 30)
    found = run_small(problem_of(X, y), normal(rng, 4, 5, 2), StopRule(steps=200), history_of())
    for V, residual in zip(found.U, found.residual, strict=True):

        def misfit(v):
            return np.square(X.numpy() @ v.reshape(5, 2)).sum(1) - y.numpy()

        best = least_squares(misfit, V.numpy().ravel(), xtol=1e-15, ftol=1e-15, gtol=1e-15)
        least = np.linalg.norm(best.fun) / np.linalg.norm(y.numpy())
        assert float(residual) == pytest.approx(least, rel=1e-9)
        told = np.linalg.norm(misfit(V.numpy().ravel())) / np.linalg.norm(y.numpy())
        assert float(residual) == pytest.approx(told, rel=1e-12)


@pytest.mark.parametrize("fitted", [None, 1e-10])
def test_a_batch_ends_as_each_problem_alone(rng, fitted):
    """Although problems and starts leave the grid at different steps."""
    problems = [gaussian_problem(rng, 14, 5, 2, smallest=0.3) for _ in range(6)]
    X, _, y = (torch.stack(parts) for parts in zip(*problems, strict=True))
    starts = normal(rng, 7, 6, 5, 2)
    ending = StopRule(steps=60, patience=8, rate=0.7, fitted=fitted)
    together = run_small(problem_of(X, y), starts, ending, history_of())
    assert together.U.shape == (7, 6, 5, 2)
    for k in range(6):
        alone = run_small(problem_of(X[k], y[k]), starts[:, k], ending, history_of())
        torch.testing.assert_close(together.residual[:, k], alone.residual, rtol=1e-6, atol=1e-13)
        difference = together.U[:, k] @ together.U[:, k].mT - alone.U @ alone.U.mT
        assert float(difference.abs().max()) < 1e-6


def test_one_fitted_start_ends_the_others(rng):
    X, U, y = gaussian_problem(rng, 24, 6, 2, smallest=0.5)
    starts = torch.stack([U + 1e-4 * normal(rng, 6, 2), *normal(rng, 3, 6, 2)])
    history = history_of()
    found = run_small(problem_of(X, y), starts, StopRule(steps=50, fitted=1e-8), history)
    assert float(found.residual[0]) < 1e-15  # goes on to rounding
    assert float(found.residual[1:].min()) > 1e-3
    assert history.budget.steps < 8


def test_rounded_responses_end_where_nothing_improves(rng):
    """Responses of single precision are fitted to 1e-8, above the rounding of double."""
    X, _, y = gaussian_problem(rng, 40, 4, 2, smallest=0.5)
    problem = Problem(RankOne(X), y.float().double())
    budget = Budget(max_steps=100_000)
    ending = StopRule(steps=100_000, patience=10, rate=0.5, fitted=1e-5)
    ends = run_small(problem, normal(rng, 3, 4, 2), ending, History(budget))
    assert budget.steps < 200
    assert 1e-9 < float(ends.residual.min()) < 1e-7


def test_a_start_near_a_known_solution_ends(rng):
    X, U, y = gaussian_problem(rng, 24, 6, 2, smallest=0.5)
    problem = problem_of(X, y)
    starts = (U + 0.1 * normal(rng, 6, 2))[None]
    near = torch.tensor(1e-3, dtype=torch.float64)
    found = run_small(problem, starts, StopRule(steps=50), history_of(), Known(U, near))
    away = float(torch.linalg.matrix_norm(found.U[0] @ found.U[0].mT - U @ U.mT))
    assert 1e-9 < away <= 1e-3  # it has not converged
    free = run_small(problem, starts, StopRule(steps=50), history_of())
    assert float(error(free.U[0], U)) < 1e-13


def test_starts_without_a_step(rng):
    """Zero is stationary, and what overflows is given up; neither raises."""
    X, U, y = gaussian_problem(rng, 12, 4, 2)
    starts = torch.stack([torch.zeros_like(U), torch.full_like(U, 1e200), U])
    found = run_small(problem_of(X, y), starts, StopRule(steps=20, patience=5), history_of())
    assert float(found.residual[0]) == 1.0
    assert not torch.isfinite(found.residual[1])
    assert float(found.residual[2]) < 1e-15
    torch.testing.assert_close(found.U[0], starts[0])


def test_the_budget_counts_every_step(rng):
    X, _, y = gaussian_problem(rng, 24, 6, 2)
    seen: list[Progress] = []
    history = history_of(4, seen.append)
    found = run_small(problem_of(X, y), normal(rng, 3, 6, 2), StopRule(steps=50), history)
    assert history.budget.steps == 4
    assert [p.time for p in seen] == [0, 1, 2, 3, 4]
    assert seen[0].running == 3
    assert len(history.least_residuals()[0]) == 5
    assert min(history.least_residuals()[0]) == pytest.approx(float(found.residual.min()))


def test_an_interrupted_run_keeps_its_last_factors(rng):
    X, _, y = gaussian_problem(rng, 24, 6, 2)
    problem = problem_of(X, y)
    starts = normal(rng, 3, 6, 2)

    def stop(progress: Progress) -> None:
        if progress.time == 3:
            raise KeyboardInterrupt

    history = history_of(progress=stop)
    with pytest.raises(KeyboardInterrupt):
        run_small(problem, starts, StopRule(steps=50), history)
    expected = run_small(problem, starts, StopRule(steps=3), history_of())
    torch.testing.assert_close(history.last.U, expected.U)
    torch.testing.assert_close(history.last.residual, expected.residual)


@pytest.mark.parametrize("name", ["quadric", "full kernel", "newton kernel", "hyperplane kernel"])
def test_no_second_solution_is_near(name):
    """The radius within which a start counts as back at the first solution."""
    compared = 0
    for seed in range(30):
        twins = drawn(DESIGNS[name](seeded(seed, name)))
        shared = ProblemCache(prepare(torch.tensor(twins.X), torch.tensor(twins.y), None))
        if shared.problem.d < twins.X.shape[1]:
            continue
        U, V = (shared.prepared.enter(torch.tensor(F)) for F in (twins.U, twins.V))
        near = float(diagnose(shared, U, np.float64(1e-16)).near)
        assert near < float(error(V, U))
        compared += near > 1e-3
    assert compared > 5
