"""Which starts a round of the search tries, and what is shared by the ranks, by the sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad import RankOne
from posquad.recovery.prepare import prepare
from posquad.recovery.problem_cache import ProblemCache, independent_samples
from posquad.recovery.restarts import common_noise
from posquad.recovery.search import Search
from recovery_support import costs_are, task_of
from support import gaussian_problem, normal

# The problems below have d = 4 and r = 1, so p = 4 unknowns and d(d+1)/2 = 10.
CHEAP = {}
MODERATE = {"_FEW_UNKNOWNS": 3, "_MODERATE_UNKNOWNS": 4}
LARGE = {"_FEW_UNKNOWNS": 3, "_MODERATE_UNKNOWNS": 3}


def solving(size):
    """Systems of this size are solved in a step, and none larger."""
    return {"OPERATIONS": size**3 / 3}


def shared_of(n, d=4):
    X, _, y = gaussian_problem(torch.Generator().manual_seed(n), n, d, 1)
    return ProblemCache(prepare(X, y, None))


def planned(n, round, sizes, **counts):
    """(kind, count, whether the first weight is the identity) of a round of restarts."""
    with costs_are(**sizes):
        return planned_here(n, round, **counts)


def planned_here(n, round, *, max_starts=1000, used=0, agreeing=0):
    search = Search(shared_of(n), 1, task_of(), max_starts)
    search.starts, search.agreeing = search.starts + used, search.agreeing + agreeing
    search.next_round, told, kept = round, [], []
    search._perturbed = lambda chosen, count, *, round: told.append(("perturbed", count, round))
    search._reweighted = lambda problem, count, *, plain, round: told.append(
        ("plain" if plain else "reweighted", count, round)
    )
    search._reflected = lambda problem, left, *, round: told.append(("reflected", left, round))
    search._descend = lambda problem, U: None
    search._keep = lambda state, chosen: kept.append(chosen)
    search._restart()
    assert kept == [None]
    assert search.next_round == round + 1
    ((kind, count, number),) = told
    assert number == round
    return kind, count


@pytest.mark.parametrize(
    ("n", "round", "sizes", "expected"),
    [
        # A step costs only its calls: 8 companions, or 2 from 20 samples per unknown; then 24.
        (8, 0, CHEAP, ("perturbed", 8)),
        (79, 0, CHEAP, ("perturbed", 8)),
        (80, 0, CHEAP, ("perturbed", 2)),
        (8, 1, CHEAP, ("plain", 12)),
        (8, 2, CHEAP, ("perturbed", 24)),
        (8, 4, CHEAP, ("perturbed", 24)),
        (8, 5, CHEAP, ("reweighted", 12)),
        (10, 5, CHEAP, ("reweighted", 12)),
        (11, 5, CHEAP, ("perturbed", 24)),  # no interpolating kernel beyond d(d+1)/2
        # Moderate sizes: two reweighted starts and sixteen perturbed ones in turn.
        (8, 0, MODERATE, ("reweighted", 2)),
        (8, 1, MODERATE, ("perturbed", 16)),
        (8, 2, MODERATE, ("reweighted", 2)),
        (11, 0, MODERATE, ("perturbed", 4)),
        (8, 1, MODERATE | solving(8), ("perturbed", 16)),
        (8, 1, MODERATE | solving(7), ("perturbed", 1)),
        # Large sizes: five reweighted rounds, then a perturbed one.
        (8, 0, LARGE, ("reweighted", 2)),
        (8, 1, LARGE, ("plain", 2)),
        (8, 4, LARGE, ("reweighted", 2)),
        (8, 5, LARGE, ("perturbed", 4)),
        (8, 11, LARGE, ("perturbed", 4)),
        (8, 5, LARGE | solving(8), ("perturbed", 4)),
        (8, 5, LARGE | solving(7), ("perturbed", 1)),
        (8, 0, LARGE | solving(7), ("perturbed", 1)),
    ],
)
def test_starts_of_a_round(n, round, sizes, expected):
    assert planned(n, round, sizes) == expected


def test_a_round_does_not_pass_the_maximum_of_starts():
    assert planned(8, 2, CHEAP, max_starts=30, used=20) == ("perturbed", 10)
    assert planned(8, 5, CHEAP, max_starts=30, used=29) == ("reweighted", 1)


@pytest.mark.parametrize("sizes", [MODERATE, LARGE])
def test_rounds_near_the_information_limit_are_reflected(sizes):
    """From p to 1.7p samples, seven rounds in eight, unless four starts agree."""
    assert planned(6, 0, sizes) == ("reflected", 1000)
    assert planned(6, 6, sizes, max_starts=30, used=29) == ("reflected", 1)
    assert planned(6, 7, sizes)[0] != "reflected"
    assert planned(6, 8, sizes, agreeing=3)[0] == "reflected"
    assert planned(6, 8, sizes, agreeing=4)[0] != "reflected"
    assert planned(7, 0, sizes)[0] != "reflected"
    assert planned(6, 0, CHEAP)[0] != "reflected"


@costs_are(**MODERATE)
def test_a_problem_is_searched_in_a_batch_as_alone_if_others_end_their_reflections():
    """Each group of problems with the same starts used gets the rest of its own."""
    X, _, y = gaussian_problem(torch.Generator().manual_seed(6), 6, 4, 1)
    shared = ProblemCache(prepare(X.expand(3, 6, 4), y.expand(3, 6), None))
    search, told = Search(shared, 1, task_of(), 30), []
    search.starts, search.agreeing = np.array([25, 25, 28]), np.array([0, 4, 4])
    search.next_round = 1
    search._reflected = lambda problem, left, *, round: told.append(("reflected", left))
    search._perturbed = lambda chosen, count, *, round: told.append(("perturbed", count))
    search._descend = lambda problem, U: None
    search._keep = lambda state, chosen: told.append(chosen.tolist())
    search._restart()
    assert told == [("reflected", 5), [0], ("perturbed", 5), [1], ("perturbed", 2), [2]]


def test_noise_depends_on_the_seed_and_the_round_alone():
    U = torch.zeros(3, 4, dtype=torch.float64)
    first = common_noise(1, 2, U, 5, 3, 4)
    assert first.shape == (5, 3, 4)
    assert torch.equal(first, common_noise(1, 2, U, 5, 3, 4))
    assert torch.equal(first[:, None], common_noise(1, 2, U[None], 5, 3, 4))
    assert not torch.equal(first, common_noise(1, 3, U, 5, 3, 4))
    assert not torch.equal(first, common_noise(2, 2, U, 5, 3, 4))
    assert common_noise(2**62, 1, U, 1, 3, 4).isfinite().all()


# What is shared by the ranks. At d = 3 there are six symmetric matrices.


@pytest.mark.parametrize(("n", "formed"), [(5, False), (6, True), (7, True)])
def test_a_symmetric_fit_needs_as_many_samples_as_symmetric_matrices(n, formed):
    shared = shared_of(n, d=3)
    assert (shared.symmetric is not None) is formed
    if formed:
        Q, unique = shared.symmetric
        assert bool(unique)
        X, y = shared.problem.operator.X.numpy(), shared.problem.y.numpy()
        i, j = np.triu_indices(3)
        columns = X[:, i] * X[:, j] * np.where(i == j, 1, 2)
        expected = np.linalg.lstsq(columns, y, rcond=None)[0]
        np.testing.assert_allclose(Q.numpy()[i, j], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("entries", "formed"), [(42, True), (41, False)])
def test_a_symmetric_fit_is_formed_up_to_a_size(entries, formed):
    """Seven samples of six unknowns are a matrix of 42 entries, and four such matrices are held."""
    with costs_are(BYTES=8 * 4 * entries):
        assert (shared_of(7, d=3).symmetric is not None) is formed


@pytest.mark.parametrize(
    ("n", "samples", "kernel", "convex"),
    [
        (6, 6, True, True),
        (6, 5, False, False),
        (5, 5, True, True),
        (7, 7, False, True),
        (7, 6, False, True),
        (7, 5, False, False),
    ],
)
def test_systems_of_the_samples_up_to_a_size(n, samples, kernel, convex):
    shared = shared_of(n, d=3)
    with costs_are(**solving(samples)):
        assert shared.forms_kernel is kernel
        assert shared.is_convex_small is convex


@pytest.mark.parametrize(
    ("sizes", "counted"),
    [
        ({}, True),
        ({"OPERATIONS": 7 * 6**2 / 2}, True),  # of the system; to solve it takes 6^3 / 3
        ({"OPERATIONS": 7 * 6**2 / 2 - 1}, False),
    ],
)
def test_the_rank_of_the_samples_is_computed_up_to_a_size(sizes, counted):
    """Seven rows, two of them multiples of each other: six samples either way, by two counts."""
    X, _, y = gaussian_problem(torch.Generator().manual_seed(0), 7, 3, 1)
    X[1], y[1] = -2 * X[0], 4 * y[0]
    shared = ProblemCache(prepare(X, y, None))
    with costs_are(**sizes):
        assert int(shared.distinct) == 6
    assert bool(shared.linear) is counted
    level = np.array(1e-12)
    assert int(shared.checks(level)) == 6
    assert int(shared.checks(level + 1)) == (0 if counted else 6)


def test_independent_samples_are_the_rank_of_their_matrices(rng):
    for n, d, plane in ((4, 3, 3), (9, 3, 3), (9, 4, 2), (2, 1, 1)):
        X = normal(rng, n, plane) @ normal(rng, plane, d)
        products = (X[:, :, None] * X[:, None, :]).reshape(n, -1).numpy()
        expected = np.linalg.matrix_rank(products)
        count, values = independent_samples(RankOne(X), True, 1e-14)
        assert int(count) == expected
        lengths = np.linalg.norm(products, axis=1, keepdims=True)
        singular = np.linalg.svd(products / lengths, compute_uv=False) ** 2
        np.testing.assert_allclose(
            np.sort(values)[-expected:], np.sort(singular)[-expected:], rtol=1e-9
        )
        count, values = independent_samples(RankOne(X), False, 1e-14)
        assert int(count) == min(n, d * (d + 1) // 2)
        assert values is None
