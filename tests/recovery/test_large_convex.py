"""Problems of high rank whose linear systems are too large: projected gradient steps."""

from __future__ import annotations

import pytest
import torch

from posquad import RankOne, Status, recover
from posquad.certificates import proves_infeasible
from posquad.recovery.budget import Budget, History
from posquad.recovery.prepare import prepare
from posquad.recovery.problem import Problem
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.solvers import cone
from posquad.recovery.solvers.cone import positive_fit
from posquad.recovery.solvers.projected import ProjectedGradient, largest_curvature
from posquad.recovery.solvers.small import FinalFactors
from recovery_support import costs_are
from support import normal

LARGE = {"OPERATIONS": 0, "BYTES": 0}  # as if no system could be formed


@pytest.mark.parametrize("n", [15, 40])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_the_optimum_is_that_of_the_interior_point_method(rng, n, batch):
    X, y = normal(rng, *batch, n, 6), normal(rng, *batch, n) + 0.3
    problem = Problem(RankOne(X), y)
    with costs_are(**LARGE):
        projected = positive_fit(problem, Budget(max_steps=10_000))
    path = positive_fit(problem, Budget(max_steps=10_000))
    assert bool(projected.optimal.all())
    assert bool((projected.steps == 0).all())
    torch.testing.assert_close(projected.residual, path.residual, rtol=1e-9, atol=0)
    if not batch:
        assert proves_infeasible(RankOne(X), y, projected.farkas)


@pytest.mark.parametrize("n", [15, 40])
def test_responses_of_a_predictor_are_interpolated(rng, n, monkeypatch):
    X = normal(rng, n, 6)
    y = (X @ normal(rng, 6, 2)).square().sum(-1)
    with costs_are(**LARGE):
        fit = positive_fit(Problem(RankOne(X), y), Budget(max_steps=10_000))
    assert bool(fit.interpolates)
    monkeypatch.setattr(cone, "solves", lambda size: False)
    monkeypatch.setattr(cone, "fits", lambda entries: False)
    found = recover(X, y, 6)
    assert found.status is (Status.RECOVERED if n == 40 else Status.NOT_IDENTIFIED)


def test_the_path_is_followed_where_few_steps_do_not_suffice(rng, monkeypatch):
    monkeypatch.setattr("posquad.recovery.solvers.cone._PROJECTED", 3)
    X, y = normal(rng, 15, 6), normal(rng, 15)
    problem = Problem(RankOne(X), y)
    monkeypatch.setattr(cone, "solves", lambda size: False)
    fit = positive_fit(problem, Budget(max_steps=10_000))
    assert bool(fit.optimal)
    assert int(fit.steps) > 5
    monkeypatch.setattr(cone, "fits", lambda entries: False)
    monkeypatch.setattr("posquad.recovery.problem_cache.solves", lambda size: False)
    stopped = recover(X, y, 6)  # no path, and no other starts
    assert stopped.status is Status.STALLED
    assert float(stopped.residual_bound) <= float(fit.residual) <= float(stopped.residual)


def test_the_curvature_is_the_norm_of_the_normal_operator(rng):
    X = normal(rng, 30, 4)
    system = torch.stack([torch.outer(x, x).flatten() for x in X])
    expected = torch.linalg.matrix_norm(system, 2) ** 2
    torch.testing.assert_close(
        largest_curvature(RankOne(X), torch.eye(4, dtype=X.dtype)), expected, rtol=1e-3, atol=0
    )


def test_a_step_is_repeated_where_the_curvature_is_too_small(rng):
    X, y = torch.linalg.qr(normal(rng, 30, 4))[0], normal(rng, 30)
    method = ProjectedGradient(Problem(RankOne(X), y / y.norm()))
    state = method.start(torch.zeros(4, 4, dtype=X.dtype))
    state.curvature.mul_(0.01)
    after = method.advance(state)
    assert float(after.curvature) == pytest.approx(1.5 * float(state.curvature))
    assert torch.equal(after.U, state.U)


def test_an_interrupted_fit_leaves_its_best_matrix(rng):
    class Stopped(History):
        def __call__(self, state):
            super().__call__(state)
            if self.budget.steps == 30:
                raise KeyboardInterrupt

    X, y = normal(rng, 40, 6), normal(rng, 40).abs()
    history = Stopped(Budget(max_steps=1000))
    with costs_are(**LARGE), pytest.raises(KeyboardInterrupt):
        positive_fit(Problem(RankOne(X), y), history.budget, history=history)
    assert isinstance(history.last, FinalFactors)
    (U,), (residual,) = history.last
    e = (X @ U).square().sum(-1) - y
    assert float(residual) == pytest.approx(float(e.norm() / y.norm()))
    assert float(residual) < 1


def test_the_first_start_of_a_high_rank_needs_no_more_samples_than_there_are(rng):
    """12 samples do not determine a 5 x 5 matrix on the span of five directions."""
    X = normal(rng, 12, 6)
    y = (X @ normal(rng, 6, 2)).square().sum(-1)
    with costs_are(OPERATIONS=10**3 / 3):
        U = ProblemCache(prepare(X, y, None)).start(5)
    assert U.shape == (6, 5)
    assert float(torch.linalg.svdvals(U)[-1]) > 0
