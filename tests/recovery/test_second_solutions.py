"""The search for a second solution: how many starts, which ones, and what counts as different."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch

from posquad import RankOne, Status, recover
from posquad.recovery import Acceptance, budget, second_solutions, second_starts
from posquad.recovery import problem_cache as shared_module
from posquad.recovery.candidates import Candidates
from posquad.recovery.prepare import prepare
from posquad.recovery.problem import Problem
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.second_solutions import Radii
from recovery_support import costs_are, task_of
from support import gaussian_problem, normal


def shared_of(n, d, r):
    """A problem and the factor that explains it, in working coordinates."""
    X, U, y = gaussian_problem(torch.Generator().manual_seed(n), n, d, r, smallest=0.5)
    prepared = prepare(X, y, None)
    return ProblemCache(prepared), prepared.enter(U)


def candidates(U, residual=1e-16, starts=1):
    number, level = np.array(starts), np.array(residual)
    return Candidates(U.shape[-1], U, level, number, number, number > 0, level * 0)


def radii(near=0.0, apart=1e-5):
    return Radii(*torch.tensor([near, apart], dtype=torch.float64))


# How many starts. The dimension of the matrices of rank 2 in five dimensions is 9.


@pytest.mark.parametrize(
    ("n", "sizes", "nongeneric", "plan"),
    [
        (13, {}, False, (11, 24, 12, 64, 52, 44)),
        (14, {}, False, (11, 24, 12, 64, 52, 44)),
        (13, {}, True, (11, 24, 12, 64, 52, 132)),
        (14, {}, True, (11, 24, 12, 64, 52, 132)),
        (13, {"_FEW_UNKNOWNS": 8}, False, (3, 0, 0, 64, 48, 44)),
        (13, {"_CALLS": 2 * 130 - 1}, False, (3, 0, 0, 64, 48, 44)),
        (13, {"_CALLS": 2 * 130}, False, (11, 24, 12, 64, 52, 44)),
    ],
)
def test_plans(n, sizes, nongeneric, plan):
    shared, _ = shared_of(n, 5, 2)
    with costs_are(**sizes):
        assert second_starts.plan_search(shared, 2, nongeneric=nongeneric) == (*plan, 0)


@pytest.mark.parametrize(
    ("operations", "many"), [(7 * 260 + 259, (1, 7)), (130 * 260, (2, 64)), (1, (1, 3))]
)
@costs_are(_FEW_UNKNOWNS=8)
def test_a_plan_for_a_large_problem_has_as_many_starts_as_it_can_afford(
    operations, many, monkeypatch
):
    """A reflection takes 2 n d r = 260 multiplications; then as many rounds as it can afford."""
    shared, _ = shared_of(13, 5, 2)
    monkeypatch.setattr(second_starts, "_OPERATIONS", operations)
    plan = second_starts.plan_search(shared, 2, nongeneric=False)
    assert (plan.rounds, plan.reflected) == many
    assert (plan.enough, plan.agreeing) == (-(-3 * plan.reflected // 4), 44)


@pytest.mark.parametrize("nongeneric", [False, True])
def test_independent_starts_agree_before_the_search_ends(nongeneric, monkeypatch):
    """Rounds of five starts, of which three are independent, and all lead to the first solution."""
    shared, U = shared_of(13, 5, 2)

    def fake_starts(shared, U, task, plan, round, *, nongeneric):
        return second_starts.Starts(torch.zeros(5, 5, 2), torch.ones(5, dtype=torch.bool), 3, 5)

    def fake_ends(known, task, starts):
        again = torch.ones(len(starts), dtype=torch.bool)
        return again, ~again

    monkeypatch.setattr(
        second_solutions, "plan_search", lambda *a, **k: second_starts.Plan(11, 24, 12, 0, 0, 20)
    )
    monkeypatch.setattr(second_solutions, "make_starts", fake_starts)
    monkeypatch.setattr(second_solutions, "_ends", fake_ends)
    told = second_solutions.find_second_solution(
        shared, candidates(U), task_of(), radii(), 2, nongeneric=nongeneric
    )
    # The least multiple of 3 from 20 agrees.
    assert (bool(told.different), int(told.starts), int(told.agreeing)) == (False, 5 * 7, 21)


def test_the_search_ends_with_the_first_different_end(monkeypatch):
    shared, U = shared_of(13, 5, 2)
    ends = iter(
        [
            ([False, False], [False, False]),  # neither reproduces
            ([True, False], [False, True]),  # found
            ([True, True], [True, True]),  # never asked for
        ]
    )
    starts = second_starts.Starts(torch.zeros(2, 5, 2), torch.tensor([True, True]), 2, 2)
    monkeypatch.setattr(second_solutions, "make_starts", lambda *a, **k: starts)
    monkeypatch.setattr(
        second_solutions, "_ends", lambda *a: tuple(torch.tensor(e) for e in next(ends))
    )
    told = second_solutions.find_second_solution(
        shared, candidates(U), task_of(), radii(), 2, nongeneric=False
    )
    assert (bool(told.different), int(told.starts), int(told.agreeing)) == (True, 4, 1)
    assert len(list(ends)) == 1


# Which starts.


PLAN = second_starts.Plan(rounds=11, random=24, local=12, reflected=64, enough=52, agreeing=44)


def starts_of(shared, U, round=0, *, nongeneric=False, plan=PLAN):
    return second_starts.make_starts(shared, U, task_of(), plan, round, nongeneric=nongeneric)


def test_rounds_double_twice():
    """Reflections of both kinds and the local starts come with the first round."""
    shared, U = shared_of(13, 5, 2)
    rounds = [starts_of(shared, U, round) for round in range(5)]
    assert [starts.independent for starts in rounds] == [64 + 24, 48, 96, 96, 96]
    sizes = [2 + 12 + 24 + 64 + 24, 24 + 48, 24 + 96, 24 + 96, 24 + 96]
    assert [len(starts.U) for starts in rounds] == sizes
    assert [starts.tried for starts in rounds] == sizes
    assert not torch.equal(rounds[2].U, rounds[3].U)
    for samples, more in ((13, 2 + 12), (12, 0)):  # where n x n systems are affordable
        shared, U = shared_of(13, 5, 2)
        with costs_are(OPERATIONS=samples**3 / 3):
            starts = starts_of(shared, U)
        assert (len(starts.U), starts.independent) == (24 + 88 + more, 88)


def test_ends_of_reflections_are_solutions():
    """With 13 samples for 9 unknowns, a third of 64 starts reproduce the responses at least."""
    shared, U = shared_of(13, 5, 2)
    ends = starts_of(shared, U).U[2 + 12 + 24 : 2 + 12 + 24 + 64]
    e = (shared.problem.operator.X @ ends).square().sum(-1) - shared.problem.y
    misfit = torch.linalg.vector_norm(e, dim=-1) / torch.linalg.vector_norm(shared.problem.y)
    assert int((misfit < 0.02).sum()) >= 21


def test_reflections_that_are_not_near_a_solution_are_given_up_where_steps_are_expensive():
    plan = PLAN._replace(random=0, local=0, reflected=20, enough=16)
    shared, U = shared_of(13, 5, 2)
    starts = starts_of(shared, U, plan=plan)
    e = (shared.problem.operator.X @ starts.U[2:]).square().sum(-1) - shared.problem.y
    misfit = torch.linalg.vector_norm(e, dim=-1) / torch.linalg.vector_norm(shared.problem.y)
    assert (starts.tried, len(starts.U)) == (22, 2 + starts.independent)
    assert 1 <= starts.independent < 20
    assert float(misfit.max()) < 0.02


def test_half_of_the_starts_are_nearly_orthogonal_to_the_first_solution():
    """19/20 of their part in the range of U is removed; they are 1, 2, 4, 1/2 times as long."""
    _, U = shared_of(13, 5, 2)
    U = 7 * U
    starts = second_starts.random_starts(U, 0, 0, 8000)
    aside, random = starts[:4000], starts[4000:]
    lengths = torch.linalg.matrix_norm(U) * torch.tensor([1.0, 2.0, 4.0, 0.5]).repeat(1000)
    np.testing.assert_allclose(torch.linalg.matrix_norm(aside), lengths, rtol=1e-6)
    W = torch.linalg.qr(U).Q
    inside = torch.linalg.matrix_norm(W.mT @ aside)
    outside = torch.linalg.matrix_norm(aside - W @ (W.mT @ aside))
    # Of 10 normal numbers 4 are inside: a ratio of chi variables, whose mean is known.
    mean = scipy.stats.chi(4).mean() * scipy.stats.chi(6).expect(lambda x: 1 / x)
    assert float((inside / outside).mean()) == pytest.approx(mean / 20, rel=0.05)
    assert float((torch.linalg.matrix_norm(random) / lengths).mean()) == pytest.approx(1, rel=0.05)


def test_reflections_at_the_least_interpolant(monkeypatch):
    """`Q_0 - t (Q - Q_0)` with t = 1 and 3 has the responses of Q, and Q_0 is NumPy's."""
    shared, U = shared_of(13, 5, 2)
    monkeypatch.setattr(second_starts, "positive_part", lambda Q, rank: Q)
    X, y = shared.problem.operator.X.numpy(), shared.problem.y.numpy()
    outer = np.einsum("ni,nj->nij", X, X).reshape(13, 25)
    least = np.linalg.lstsq(outer, y, rcond=None)[0].reshape(5, 5)
    Q = (U @ U.mT).numpy()
    expected = [least - t * (Q - least) for t in (1, 3)]
    np.testing.assert_allclose(second_starts._mirrored_interpolants(shared, U), expected, atol=1e-9)


def test_starts_that_keep_a_part_of_the_answer():
    """Of three columns, one or two are kept; the others are random, of four lengths."""
    generator = torch.Generator().manual_seed(0)
    U = normal(generator, 2, 6, 3) * torch.tensor([5.0, 1.0, 0.1]).double()
    starts = second_starts.partly_known(U, 0, 0, 16)
    assert starts.shape == (16, 2, 6, 3)
    W, s, _ = torch.linalg.svd(U, full_matrices=False)
    for k, start in enumerate(starts):
        kept = 1 + k % 2
        torch.testing.assert_close(start[..., :kept], (W * s[..., None, :])[..., :kept])
        factor = (1.0, 2.0, 4.0, 0.5)[k // 2 % 4]
        lengths = torch.linalg.vector_norm(start, dim=-2)
        torch.testing.assert_close(lengths[:, kept:], factor * s[:, kept:])
    assert not torch.allclose(starts[0], starts[8])


def test_symmetric_copies_come_first_where_the_design_has_structure():
    shared, U = shared_of(13, 5, 2)
    starts = starts_of(shared, U, nongeneric=True)
    copies = second_starts._symmetric_copies(shared, U, task_of(), 48)
    assert (len(starts.U), starts.independent) == (len(copies) + 2 + 12 + 24 + 88, 88)
    torch.testing.assert_close(starts.U[: len(copies)], copies)


def test_symmetric_copies_flip_blocks_and_signs_and_permute():
    """Inputs in two blocks of coordinates, {0, 1} and {2}, in units that are not the working."""
    rng = torch.Generator().manual_seed(3)
    X = normal(rng, 12, 3)
    X[:8, 2] = 0
    X[8:, :2] = 0
    X[:, 1] *= 30
    V = normal(rng, 3, 2)
    prepared = prepare(X, (X @ V).square().sum(-1), None)
    shared = ProblemCache(prepared)
    copies = second_starts._symmetric_copies(shared, prepared.enter(V), task_of(), 10)
    V = prepared.transform @ prepared.enter(V)
    there = prepared.transform @ copies
    assert len(there) == 2 + 10 + 10
    flips = {tuple((v / V)[:, 0].round(decimals=9).tolist()) for v in there[:2]}
    assert flips == {(-1.0, -1.0, 1.0), (1.0, 1.0, -1.0)}
    signs = there[2:12] / V
    torch.testing.assert_close(signs.abs(), torch.ones_like(signs))
    torch.testing.assert_close(signs[..., 0], signs[..., 1])  # a coordinate is a row
    assert len(signs[..., 0].round().unique(dim=0)) > 3
    for permuted in there[12:]:
        np.testing.assert_allclose(
            np.sort(permuted[:, 0].numpy()), np.sort(V[:, 0].numpy()), rtol=1e-9
        )
    assert len(there[12:].round(decimals=6).unique(dim=0)) > 3


def test_other_interpolants_are_at_several_distances(monkeypatch):
    """`A(Q + H) = A(Q)`; half of `||H|| / ||Q||` are 1, 2, 4, and the others make it singular."""
    shared, U = shared_of(13, 5, 2)
    monkeypatch.setattr(second_starts, "positive_part", lambda Q, rank: Q)
    found = second_starts._other_interpolants(shared, U, 0, 8)
    Q = U @ U.mT
    X = shared.problem.operator.X
    responses = torch.einsum("ni,kij,nj->kn", X, found, X)
    expected = torch.einsum("ni,ij,nj->n", X, Q, X).expand(8, -1)
    torch.testing.assert_close(responses, expected, rtol=0, atol=1e-9)
    lengths = torch.linalg.matrix_norm(found - Q) / torch.linalg.matrix_norm(Q)
    np.testing.assert_allclose(lengths[::2], [1, 2, 4, 1], rtol=1e-12)


def test_where_one_matrix_is_not_seen_all_other_solutions_are_starts():
    """Rows on a quadric in four dimensions: 9 of 10 products are independent, and V is the other.

    The second solution is 100 times as long as the first.
    """
    rng = np.random.default_rng(2)
    U, V = rng.standard_normal((4, 2)), 10 * rng.standard_normal((4, 2))
    values, vectors = np.linalg.eigh(U @ U.T - V @ V.T)
    g = rng.standard_normal((20, 4))
    positive, negative = values > 0, values < 0
    ratio = (g[:, positive] ** 2 @ values[positive]) / -(g[:, negative] ** 2 @ values[negative])
    g[:, negative] *= np.sqrt(ratio)[:, None]
    X = torch.from_numpy(g @ vectors.T)
    prepared = prepare(X, (X @ torch.from_numpy(U)).square().sum(-1), None)
    first, second = (prepared.enter(torch.from_numpy(W)) for W in (U, V))
    starts = second_starts._other_interpolants(ProblemCache(prepared), first, 0, 8)
    away = torch.linalg.matrix_norm(starts @ starts.mT - second @ second.mT)
    assert float(away.min()) < 1e-6 * float(torch.linalg.matrix_norm(second @ second.mT))


def test_singular_multiples_are_scipys_generalized_eigenvalues():
    rng = np.random.default_rng(0)
    A, B = (M + M.T for M in rng.standard_normal((2, 4, 4)))
    expected = scipy.linalg.eigvals(A, -B)
    expected = sorted(expected[abs(expected.imag) < 1e-9].real, key=abs, reverse=True)
    found = second_starts.singular_multiples(torch.from_numpy(A), torch.from_numpy(B))
    found = found[torch.isfinite(found)]
    assert 1 <= len(found) <= len(expected)
    np.testing.assert_allclose(found, expected[: len(found)], rtol=1e-9)
    nothing = second_starts.singular_multiples(torch.eye(3), torch.zeros(3, 3))
    assert bool(nothing.isnan().all())


# What counts as different.


@pytest.mark.parametrize(
    ("stretch", "residual", "again", "elsewhere"),
    [
        (1.0, 1e-10, True, False),
        (1.0, 2e-10, True, False),  # at U itself, whatever the residual
        (-1.0, 0.0, True, False),  # the same matrix
        (1.04**0.5, 1.0, True, False),  # nearer than 0.05 there is no other solution
        (1.06**0.5, 1.0, False, False),
        (1.06**0.5, 0.0, True, False),
        (1.09**0.5, 0.0, True, False),  # ||VV' - UU'|| = 0.09 ||UU'||
        (1.11**0.5, 0.0, False, True),
        (0.89**0.5, 0.0, False, True),
        (0.89**0.5, 1.1e-10, False, False),
    ],
)
def test_ends_are_apart_relative_to_the_solution(stretch, residual, again, elsewhere, monkeypatch):
    shared, U = shared_of(13, 5, 2)
    monkeypatch.setattr(shared_module, "is_small", lambda *sizes: False)
    end = SimpleNamespace(U=stretch * U[None], residual=torch.tensor([residual]))
    monkeypatch.setattr(budget, "iterate", lambda *a, **k: end)
    problem, U0 = shared.problem, 2 * U[None]
    told = second_solutions._ends(
        second_solutions._Known(shared, candidates(U), radii(0.05, 0.1), problem), task_of(), U0
    )
    assert [bool(t) for t in told] == [again, elsewhere]


@pytest.mark.parametrize(
    ("n", "sizes", "dense"),
    [
        (13, {}, True),
        # p = 9: dense steps for n < 1.7 p = 15.3 where n x n systems are affordable.
        (15, {"_FEW_UNKNOWNS": 0}, True),
        (16, {"_FEW_UNKNOWNS": 0}, True),  # a few dense steps are affordable
        (16, {"_FEW_UNKNOWNS": 0, "OPERATIONS": 9**3 - 1}, False),
        (16, {"_FEW_UNKNOWNS": 0, "BYTES": 8 * 2 * 160 - 1}, False),
        (15, {"_FEW_UNKNOWNS": 0, "BYTES": 0}, True),
        (15, {"_FEW_UNKNOWNS": 0, "BYTES": 0, "OPERATIONS": 12**3 / 3}, True),
        (15, {"_FEW_UNKNOWNS": 0, "BYTES": 0, "OPERATIONS": 11**3 / 3}, False),
        (16, {"OPERATIONS": 0}, True),
    ],
)
def test_dense_steps_near_the_limit_and_where_they_cost_only_calls(n, sizes, dense, monkeypatch):
    shared, U = shared_of(n, 5, 2)
    monkeypatch.setattr(shared_module, "is_small", lambda *sizes: False)
    seen = {}

    def iterate(method, state, ends, record):
        seen.update(method=type(method.method).__name__)
        for _ in range(1000):
            if bool(ends[-1][1](state).all()):
                break
            method.budget.count(1)
            seen["steps"] = seen.get("steps", 0) + 1
        return state

    monkeypatch.setattr(budget, "iterate", iterate)
    known = second_solutions._Known(shared, candidates(U), radii(), shared.problem)
    with costs_are(**sizes):
        second_solutions._ends(known, task_of(), 2 * U[None])
    assert seen["method"] == ("Levenberg" if dense else "PopulationLBFGS")
    assert seen["steps"] == (100 if dense else 300)


# Many rows.


def few_rows(shared):
    return ProblemCache(shared.prepared, Acceptance(least_thinned_rows=20))


@pytest.mark.parametrize(("n", "kept"), [(111, 111), (112, 28), (500, 28)])
def test_a_part_of_many_rows_is_kept(n, kept):
    """Matrices of rank 4 in five dimensions have dimension 14."""
    shared, _ = shared_of(n, 5, 2)
    part = few_rows(shared).thinned(2).problem
    assert part.n == kept
    given = torch.cat([shared.problem.operator.X, shared.problem.y[:, None]], 1).tolist()
    rows = torch.cat([part.operator.X, part.y[:, None]], 1).tolist()
    assert all(row in given for row in rows)


def test_all_rows_are_kept_if_a_part_spans_less():
    X = normal(torch.Generator().manual_seed(0), 400, 5)
    X[3:, 4] = 0
    shared = few_rows(ProblemCache(prepare(X, X[:, 0].square(), None)))
    assert shared.thinned(2) is shared


def test_a_solution_of_a_part_of_the_rows_is_none_of_all():
    """`x_1^2 + x_2^2 = x_3^2 + x_4^2` on a part of the rows only."""
    X = normal(torch.Generator().manual_seed(1), 60, 5)
    lengths = torch.linalg.vector_norm(X[:30, :4].reshape(30, 2, 2), dim=-1)
    X[:30, 2:4] *= (lengths[:, 0] / lengths[:, 1])[:, None]
    U, V = torch.eye(5).double()[:, :2], torch.eye(5).double()[:, 2:4]
    y = X[:, :2].square().sum(-1)
    part, whole = (ProblemCache(prepare(X[:n], y[:n], None)) for n in (30, 60))
    for problem, elsewhere in ((part.problem, True), (whole.problem, False)):
        start = part.prepared.enter(V)
        if problem.n == 60:  # the same coordinates as those of the part
            rows = X @ part.prepared.transform
            problem = Problem(RankOne(rows), y / part.prepared.scale)
        found = candidates(part.prepared.enter(U))
        told = second_solutions._ends(
            second_solutions._Known(part, found, radii(), problem), task_of(), start[None]
        )
        assert bool(told[1].any()) is elsewhere


def test_starts_are_drawn_to_the_first_solution_and_away_from_no_other(monkeypatch):
    """Those near it end at it; those near the other one, or far from both, stay where they are."""
    rng, d, r = np.random.default_rng(5), 9, 2
    X, first, second = two_solutions(5, 50, d, r)
    y = np.square(X @ first).sum(1)
    shared = ProblemCache(prepare(torch.tensor(X), torch.tensor(y), None))
    U, V = (shared.prepared.enter(torch.tensor(W)) for W in (first, second))
    noise = torch.tensor(rng.standard_normal((3, d, r)))
    size = torch.linalg.matrix_norm(U) / (d * r) ** 0.5
    starts = torch.stack([U, V, V]) + size * torch.tensor([0.05, 0.05, 3.0])[:, None, None] * noise
    monkeypatch.setattr(shared_module, "is_small", lambda *sizes: False)
    known = second_solutions._Known(shared, candidates(U), radii(1e-3, 0.1), shared.problem)
    drawn = second_solutions._drawn(known, starts)
    torch.testing.assert_close(drawn[0] @ drawn[0].mT, U @ U.mT, rtol=0, atol=2e-3)
    assert torch.equal(drawn[1:], starts[1:])


@pytest.mark.parametrize("start", [None, "first", "second"])
def test_two_solutions_are_found_among_many_rows(start):
    X, first, second = two_solutions(1, 4000, 60, 2)
    y = np.square(X @ first).sum(1)
    given = {None: None, "first": first, "second": second}[start]
    few = Acceptance(least_thinned_rows=400)
    assert recover(X, y, 2, start=given, acceptance=few).status is Status.NOT_IDENTIFIED


def two_solutions(seed, n, d, r):
    """Rows with `|a'x| = |b'x|`, and two factors with the same responses."""
    rng = np.random.default_rng(seed)
    a, b, *rest = rng.standard_normal((r + 1, d))
    X = rng.standard_normal((n, d))
    w = a - rng.choice([-1.0, 1.0], (n, 1)) * b
    X -= ((X * w).sum(1) / np.square(w).sum(1))[:, None] * w
    return X, np.stack([a, *rest], 1), np.stack([b, *rest], 1)


def test_problems_of_more_than_2_to_the_24_numbers_are_searched():
    """They were called RECOVERED without a search; no row can be left out at this size."""
    n, d, r = 7100, 600, 4
    assert n * d * r > 2**24
    X, first, second = two_solutions(1, n, d, r)
    y = np.square(X @ first).sum(1)
    np.testing.assert_allclose(np.square(X @ second).sum(1), y, rtol=1e-9)
    found = recover(X, y, r)
    assert found.status is Status.NOT_IDENTIFIED
    assert bool(found.evidence.different)
    assert int(found.second_starts) == Acceptance().least_large_others
