"""Attempts of a search: which solver runs from which starts, what is kept, and the refinement."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from posquad.recovery import budget, restarts
from posquad.recovery import problem_cache as shared_module
from posquad.recovery import search as module
from posquad.recovery.prepare import prepare
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.search import Search
from posquad.recovery.solvers.fit import FitState
from recovery_support import costs_are, task_of
from support import gaussian_problem

CHEAP = {}
DEAR = {"_FEW_UNKNOWNS": 0}  # d = 4 and r = 1, so p = 4 and d(d+1)/2 = 10


def solving(size):
    """Systems of this size are solved in a step, and none larger."""
    return DEAR | {"OPERATIONS": size**3 / 3}


@pytest.fixture(autouse=True)
def without_the_solver_of_small_problems(monkeypatch):
    monkeypatch.setattr(shared_module, "is_small", lambda *sizes: False)


def search_of(n, *, max_starts=20, start=None, batch=None, rank=1):
    X, U, y = gaussian_problem(torch.Generator().manual_seed(n), n, 4, rank)
    if batch:
        X, y = X.expand(batch, -1, -1).clone(), y.expand(batch, -1).clone()
    shared = ProblemCache(prepare(X, y, None))
    return Search(shared, rank, task_of(), max_starts, start), shared.prepared.enter(U)


# The first attempt.


def first_tries(n, **options):
    """The starts of the first attempt, and how many of them were reweighted or perturbed."""
    run, _ = search_of(n, **options)
    told = {"reweighted": [], "perturbed": [], "tries": []}

    def reweighted(problem, count, *, plain, round):
        told["reweighted"].append((count, plain, round))
        return run.first[None]

    def perturbed(chosen, count, *, round):
        told["perturbed"].append((count, round))
        return run.first.expand(count, *run.first.shape)

    def descend(problem, U):
        told["tries"].append(len(U))
        return FitState.begin(problem, U)

    run._reweighted, run._perturbed, run._descend = reweighted, perturbed, descend
    run._first_attempt()
    return told["tries"], told["reweighted"], told["perturbed"], run.next_round


@pytest.mark.parametrize(
    ("n", "options", "sizes", "expected"),
    [
        # Near the limit, n < 1.7 p = 6.8, a round of restarts costs nothing beside the first one.
        (6, {}, CHEAP, ([9], [], [(8, 0)], 1)),
        (6, {"max_starts": 4}, CHEAP, ([4], [], [(3, 0)], 1)),
        (7, {}, CHEAP, ([1], [], [], 0)),
        (6, {"batch": 2}, CHEAP, ([1], [], [], 0)),
        # Where steps are expensive, the best of a few reflected starts is tried first.
        (6, {}, DEAR, ([1], [], [], 0)),
        (7, {}, DEAR, ([1], [], [], 0)),
        (6, {}, solving(5), ([1], [], [], 0)),
    ],
)
def test_starts_of_the_first_attempt(n, options, sizes, expected):
    with costs_are(**sizes):
        assert first_tries(n, **options) == expected


@pytest.mark.parametrize(
    ("n", "sizes", "first"),
    [
        (6, CHEAP, False),
        (6, DEAR, True),  # n < 1.7 p = 6.8
        (7, DEAR, False),
        (6, solving(4), False),  # dense steps cannot follow
        (5, solving(3), True),  # n < 1.4 p = 5.6
    ],
)
def test_reflections_come_first_near_the_limit(n, sizes, first):
    with costs_are(**sizes):
        run, _ = search_of(n)
        assert run._reflects_first is first


def test_a_start_that_fits_is_the_only_one():
    run, U = search_of(12)
    run.given = 3 * U  # scaled to its least residual first
    told = []
    run._descend = lambda problem, U: told.append(U) or FitState.begin(problem, U)
    run._first_attempt()
    assert len(told) == 1
    torch.testing.assert_close(told[0][0] @ told[0][0].mT, U @ U.mT)
    assert (int(run.starts), int(run.agreeing)) == (1, 1)


def test_a_factor_is_scaled_to_its_least_residual():
    """`t^2 = <A(UU'), y> / ||A(UU')||^2`; a factor without a positive t stays as it is."""
    run, _ = search_of(12)
    V = torch.tensor([[1.0], [2.0], [-1.0], [0.5]], dtype=torch.float64)
    X, y = run.problem.operator.X, run.problem.y
    a = (X @ V).square().sum(-1)
    square = float((a @ y) / (a @ a))
    for unit in (1.0, 1e-180, 1e180):
        torch.testing.assert_close(run._scaled(unit * V), square**0.5 * V)
    torch.testing.assert_close(run._scaled(0 * V), 0 * V)
    run.problem = replace(run.problem, y=-y)
    torch.testing.assert_close(run._scaled(V), V)


# Which solver.


def solvers(monkeypatch, n, sizes, *, residual=1e-3, cosine=1e-3, spent=False):
    """The solvers that run, with the last rule of each, from a state with these numbers."""
    run, U = search_of(n)

    def last(state):
        run.budget.steps = 10**9 if spent else 0
        full = torch.full_like(state.residual, 1.0)
        return replace(state, residual=residual * full, cosine=cosine * full)

    told = count_steps(monkeypatch, run, last)
    with costs_are(**sizes):
        run._descend(run.problem, U[None])
    return told


def count_steps(monkeypatch, run, last=lambda state: state):
    """The solvers that will run, each with the steps after which its last rule ends it."""
    told = []

    def iterate(method, state, rules, record):
        steps = 0
        while not bool(rules[-1][1](state).all()) and steps < 5000:
            run.budget.steps += 1
            steps += 1
        told.append((type(method.method).__name__, steps))
        return last(state)

    monkeypatch.setattr(budget, "iterate", iterate)
    return told


@pytest.mark.parametrize(
    ("n", "sizes", "names"),
    [
        (6, CHEAP, ["Levenberg"]),
        (100, CHEAP, ["Levenberg"]),
        (6, DEAR, ["Levenberg"]),  # n < 1.7 p, where n x n systems are affordable
        (6, solving(5), ["Levenberg"]),  # up to 1.25 as many
        (6, solving(4), ["PopulationLBFGS", "GaussNewton"]),
        (7, DEAR, ["PopulationLBFGS", "GaussNewton"]),
    ],
)
def test_the_solver_follows_from_the_sizes(n, sizes, names, monkeypatch):
    assert [name for name, _ in solvers(monkeypatch, n, sizes)] == names


def test_second_order_steps_follow_where_the_first_order_has_not_ended(monkeypatch):
    quotas = [("PopulationLBFGS", 600), ("GaussNewton", 60)]
    assert solvers(monkeypatch, 7, DEAR) == quotas
    assert solvers(monkeypatch, 7, DEAR, residual=1e-10) == quotas[:1]  # reproduced
    assert solvers(monkeypatch, 7, DEAR, residual=1.1e-10) == quotas
    assert solvers(monkeypatch, 7, DEAR, cosine=1e-8) == quotas[:1]  # stationary
    assert solvers(monkeypatch, 7, DEAR, cosine=1.1e-8) == quotas
    assert solvers(monkeypatch, 7, DEAR, spent=True) == quotas[:1]


# The refinement.


def polished(monkeypatch, n, sizes, residual, *, rank=1, optimal=False):
    """The solver of the refinement and its steps; None if there is none."""
    run, U = search_of(n, rank=rank)
    run.U, run.residual, run.optimal = U.clone(), np.array(residual), np.array(optimal)
    told = count_steps(monkeypatch, run)
    with costs_are(**sizes):
        run.polish()
    assert int(run.starts) == 0  # a refinement is no start
    return told[0] if told else None


EPS = 2.0**-52


@pytest.mark.parametrize(
    ("sizes", "residual", "expected"),
    [
        (CHEAP, 10 * EPS, None),
        (CHEAP, 11 * EPS, ("Levenberg", 60)),
        (CHEAP, 1e-3, ("Levenberg", 60)),
        ({"OPERATIONS": 4**3}, 1e-3, ("Levenberg", 60)),
        ({"OPERATIONS": 4**3 - 1}, 1e-3, ("PopulationLBFGS", 400)),
        (
            {"OPERATIONS": 4**3 - 1},
            1e-10,
            None,
        ),  # reproduced: the first run went to rounding
        ({"OPERATIONS": 4**3 - 1}, 1.1e-10, ("PopulationLBFGS", 400)),
        ({"BYTES": 8 * 2 * 48}, 1e-3, ("Levenberg", 60)),  # n d r = 48
        ({"BYTES": 8 * 2 * 48 - 1}, 1e-3, ("PopulationLBFGS", 400)),
    ],
)
def test_what_is_refined(sizes, residual, expected, monkeypatch):
    assert polished(monkeypatch, 12, sizes, residual) == expected


def test_an_optimum_that_is_proved_is_not_refined(monkeypatch):
    assert polished(monkeypatch, 12, CHEAP, 1e-3, optimal=True) is None


def test_a_rough_answer_is_refined_only_where_that_is_cheap():
    for sizes, refined in ((CHEAP, True), (DEAR, False)):
        with costs_are(**sizes):
            run, _ = search_of(12)
        told = []
        run._first_attempt = lambda run=run: run._keep(FitState.begin(run.problem, run.U[None]))
        run.max_starts = 1
        run.polish = lambda told=told: told.append(1)
        run.run(rough=True)
        assert bool(told) is refined


# What is kept between searches.


def test_the_best_result_so_far():
    """A lower residual is better, and so is a lower rank that reproduces."""
    run, U = search_of(12)

    def offered(residual, rank):
        run.residual, run.rank = np.array(residual), rank
        run._offer()
        return float(run.history.best.residual), run.history.best.rank

    assert offered(1e-3, 3) == (1e-3, 3)
    assert offered(1e-2, 2) == (1e-3, 3)
    assert offered(1e-12, 3) == (1e-12, 3)
    assert offered(1e-11, 2) == (1e-11, 2)  # reproduces with a lower rank
    assert offered(1e-11, 2) == (1e-11, 2)
    assert offered(1e-9, 1) == (1e-11, 2)
    assert U.shape == (4, 1)


def test_reweighted_starts_have_no_zero_columns(monkeypatch):
    """Weights are Wishart with mean identity; zero columns become small random ones."""
    run, _ = search_of(6, rank=2)
    seen = []
    U = torch.zeros(500, 4, 2, dtype=torch.float64)
    U[:, 0, 0], U[:, 1, 1] = 2.0, 1e-4

    def irls(problem, rank, weight, tolerance, history):
        seen.append((rank, weight, tolerance))
        return SimpleNamespace(U=U)

    monkeypatch.setattr(restarts, "run_irls", irls)
    found = run._reweighted(run.problem, 500, plain=True, round=3)
    ((rank, weight, tolerance),) = seen
    assert (rank, tolerance) == (2, 1e-3)
    np.testing.assert_array_equal(weight[0], np.eye(4))
    np.testing.assert_allclose(weight[1:].mean(0), np.eye(4), atol=0.1)  # 500 samples, 2d columns
    torch.testing.assert_close(found[:, :, 0], U[:, :, 0])
    filled = found[:, :, 1]
    # Standard normal times 0.03 ||U||, here 0.06.
    assert float(filled.std()) == pytest.approx(0.06, rel=0.1)
    run._reweighted(run.problem, 500, plain=False, round=3)
    assert not np.allclose(seen[1][1][0], np.eye(4))


def test_perturbed_starts_are_around_the_first(monkeypatch):
    monkeypatch.setattr(restarts, "SPREAD", 0.5)
    run, U = search_of(12)
    run.first = U
    found = run._perturbed(None, 4000, round=2)
    size = float(U.norm()) / 4**0.5
    np.testing.assert_allclose(found.mean(0), U, atol=0.05)
    assert float((found - U).std()) == pytest.approx(0.5 * size, rel=0.05)


def test_a_factor_of_another_rank_is_refined_with_its_history():
    run, U = search_of(12)
    found = replace(run.candidates(), starts=np.array(7), agreeing=np.array(3))
    near = U + 1e-4
    refined = module.refine(run.shared, near, run.task, found)
    assert (int(refined.starts), int(refined.agreeing), refined.rank) == (7, 3, 1)
    assert float(refined.residual) < 1e-14
    torch.testing.assert_close(refined.U @ refined.U.mT, U @ U.mT)


def test_candidates_of_a_batch():
    run, _ = search_of(12, batch=3)
    every = run.candidates()
    two = every.select(torch.tensor([2, 0]))
    assert two.U.shape == (2, 4, 1)
    assert two.farkas is None
    single, _ = search_of(12)
    assert single.candidates().one().U.shape == (1, 4, 1)
