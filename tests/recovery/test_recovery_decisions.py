"""Decisions of `recover` before, between and after its solvers, on hand-worked inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.optimize
import torch

from posquad import RankOne, Status, recover
from posquad.dynamics.loop import Method, State, clock
from posquad.geometry import dimension
from posquad.recovery import rank_changes, ranks, search
from posquad.recovery.acceptance import DEFAULT
from posquad.recovery.budget import Budget, History
from posquad.recovery.candidates import visible
from posquad.recovery.diagnose import (
    Diagnosis,
    diagnose,
    diagnose_any,
    needed_samples,
)
from posquad.recovery.findings import found_evidence, largest_error
from posquad.recovery.prepare import Prepared, looks_nongeneric, normalize_rows, prepare
from posquad.recovery.problem import Given, Problem
from posquad.recovery.problem_cache import ProblemCache, positive_part
from posquad.recovery.returned import returned_factor
from posquad.recovery.second_starts import block_signs
from posquad.recovery.solvers.fit import at_rounding, cosine, stagnated
from posquad.recovery.status import grant, is_open
from recovery_support import task_of
from support import gaussian_problem, normal, vector

# The search: which factor is kept, and when starts agree.


def search_of(n, max_starts=20, tolerance=1e-10):
    """A search before its first attempt, with d = 4 and r = 1, so that p = 4."""
    X, _, y = gaussian_problem(torch.Generator().manual_seed(n), n, 4, 1)
    return search.Search(shared_of(X, y), 1, task_of(tolerance), max_starts)


def shared_of(X, y, **changes):
    """What is shared by the ranks, with the user's coordinates as the working ones."""
    batch = X.shape[:-2]
    n, d = X.shape[-2:]
    values = {
        "problem": Problem(RankOne(X), y),
        "given": Given.of(RankOne(X), None, y, torch.ones(batch, dtype=X.dtype)),
        "transform": torch.eye(d, dtype=X.dtype).expand(*batch, d, d),
        "scale": torch.ones(batch, dtype=X.dtype), "span": np.full(batch, d),
        "count": np.full(batch, n),
    }  # fmt: skip
    return ProblemCache(Prepared(**{**values, **changes}))


def ended(*residuals):
    """A run of several starts; the factor of start k is filled with k."""
    U = torch.arange(len(residuals), dtype=torch.float64)[:, None, None].expand(-1, 4, 1)
    return SimpleNamespace(residual=vector(*residuals), U=U)


def test_the_best_start_is_kept_and_those_within_a_thousandth_agree():
    search = search_of(8)
    told = []
    for run, count in [
        (ended(0.5, 0.2, 0.2001, 0.2003), True),  # 0.2 and 0.2001 agree
        (ended(0.20015), True),  # not better, agrees: a third
        (ended(math.nan, 0.1), True),  # better by far: the count begins again
        (ended(0.09995), True),  # better, and the old one agrees with it
        (ended(0.05), False),  # a polish is no start
        (ended(0.5), False),
    ]:
        search._keep(run, count=count)
        told.append(
            (
                float(search.residual),
                int(search.agreeing),
                int(search.starts),
                float(search.U[0, 0]),
            )
        )
    assert told == [
        (0.2, 2, 4, 1.0),
        (0.2, 3, 5, 1.0),
        (0.1, 1, 7, 1.0),
        (0.09995, 2, 8, 0.0),
        (0.05, 2, 8, 0.0),
        (0.05, 2, 8, 0.0),
    ]


@pytest.mark.parametrize(
    ("n", "max_starts", "least"),
    # 12 / (n/p - 1)^2 starts, at least 9 or, from 20 samples per unknown on, 2; at most three
    # quarters of those allowed.
    [
        (8, 20, 12),
        (8, 12, 9),
        (5, 20, 15),
        (4, 20, 15),
        (5, 400, 192),
        (16, 20, 9),
        (79, 20, 9),
        (80, 20, 2),
    ],
)
def test_how_many_starts_must_agree(n, max_starts, least):
    search = search_of(n, max_starts)
    search.residual = np.float64(0.5)
    for agreeing, settled in ((least - 1, False), (least, True)):
        search.agreeing = np.int64(agreeing)
        assert bool(search.settled) is settled
        assert bool(search.open) is not settled
    search.optimal, search.agreeing = np.bool_(True), np.int64(0)
    assert bool(search.settled)


@pytest.mark.parametrize(
    ("n", "d", "kernel"), [(10, 4, True), (11, 4, False), (1500, 60, True), (1501, 60, False)]
)
def test_an_interpolating_kernel_is_formed_up_to_as_many_samples_as_symmetric_matrices(
    n, d, kernel
):
    """d(d+1)/2 = 10 at d = 4; at most 1500, where it would take the time of all else."""
    shared = shared_of(torch.ones(n, d).double(), torch.ones(n).double())
    assert shared.forms_kernel is kernel


def test_a_search_ends_when_reproduced_or_out_of_starts():
    search = search_of(8, tolerance=1e-3)
    assert bool(search.open)
    search.residual = np.float64(1e-3)
    assert not bool(search.open)
    search.residual, search.starts = np.float64(1.1e-3), np.int64(19)
    assert bool(search.open)
    search.starts = np.int64(20)
    assert not bool(search.open)


def test_spectral_factor_is_scaled_to_its_least_residual(rng):
    """<A(UU') - y, A(UU')> = 0 at the best multiple; zero where W = X' diag(y) X is negative."""
    X, _, y = gaussian_problem(rng, 30, 4, 2)
    y = y + normal(rng, 30)
    U = shared_of(X, y).better_than_zero(2)
    values = (X @ U).square().sum(-1)
    assert abs(float((values - y) @ values)) < 1e-12 * float(y @ y)
    assert float(torch.linalg.vector_norm(values - y)) < float(torch.linalg.vector_norm(y))
    w, V = np.linalg.eigh((X.mT @ (y[:, None] * X)).numpy())
    P = (V[:, -2:] * w[-2:]) @ V[:, -2:].T
    measured = np.einsum("ia,ab,ib->i", X, P, X)
    best = measured @ y.numpy() / (measured @ measured)
    np.testing.assert_allclose((U @ U.mT).numpy(), best * P, rtol=0, atol=1e-12 * best * w[-1])
    assert not bool(shared_of(X, -y.abs()).better_than_zero(2).any())


def test_positive_part_is_that_of_numpy(rng):
    Q = torch.diag(vector(3.0, -2.0, 0.5, 1.0))
    turn = torch.linalg.qr(normal(rng, 4, 4)).Q
    U = positive_part(turn @ Q @ turn.mT, 3)
    expected = turn @ torch.diag(vector(3.0, 0.0, 0.5, 1.0)) @ turn.mT
    torch.testing.assert_close(U @ U.mT, expected, rtol=0, atol=1e-13)
    squares = U.square().sum(-2)  # columns in descending order
    torch.testing.assert_close(squares, vector(3.0, 1.0, 0.5), rtol=1e-13, atol=0)
    raised = torch.linalg.svdvals(positive_part(-torch.diag(vector(-2.0, 1, 3)), 2))
    # Eigenvalues 2 and -1: the second is raised to 1e-8 of the first.
    torch.testing.assert_close(raised.square(), vector(2.0, 2e-8), rtol=1e-12, atol=0)


def test_first_factors_of_a_batch_are_those_of_its_problems(rng):
    X = normal(rng, 3, 30, 4)
    y = X.square().sum(-1) + normal(rng, 3, 30)
    Q = normal(rng, 3, 4, 4)
    Q = Q + Q.mT
    together = shared_of(X, y).better_than_zero(2), positive_part(Q, 2)
    for k in range(3):
        alone = (
            shared_of(X[k], y[k]).better_than_zero(2),
            positive_part(Q[k], 2),
        )
        for one, other in zip(together, alone, strict=True):
            gram = other @ other.mT
            torch.testing.assert_close(one[k] @ one[k].mT, gram, rtol=1e-11, atol=1e-11)


def test_blocks_are_the_coordinates_that_no_row_joins():
    X = vector([1.0, 2, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 3, 0], [0, 0, 0, 0, 1])
    signs = sorted(block_signs(RankOne(X))[..., 0].tolist())
    assert signs == [[-1, -1, -1, 1, 1], [1, 1, 1, -1, 1], [1, 1, 1, 1, -1]]


def test_perturbed_starts_are_as_far_as_the_startis_large(rng):
    search = search_of(8)
    search.first = 3 * torch.ones(4, 1, dtype=torch.float64)
    away = search._perturbed(None, 4000, round=0) - search.first
    # 16,000 normal numbers of standard deviation 3: the sample one is within 5 / sqrt(2 * 16000).
    assert float(away.std()) == pytest.approx(3, rel=0.03)
    assert abs(float(away.mean())) < 5 * 3 / math.sqrt(16_000)
    # Of a batch each problem has its own size: entries 1, 2 and 3 of (d, r) = (4, 2).
    entries = vector(1.0, 2.0, 3.0)
    search.first = entries[:, None, None].expand(3, 4, 2)
    away = search._perturbed(torch.tensor([0, 2]), 4000, round=0) - search.first[[0, 2]]
    assert away.shape == (4000, 2, 4, 2)
    torch.testing.assert_close(away.std((0, 2, 3)), vector(1.0, 3.0), rtol=0.03, atol=0)
    # The same random numbers for all problems, others in another round.
    torch.testing.assert_close(away[:, 1], 3 * away[:, 0], rtol=1e-13, atol=1e-15)
    other = search._perturbed(torch.tensor([0, 2]), 4000, round=1) - search.first[[0, 2]]
    assert abs(float((other * away).mean())) < 0.1


# The rules by which a run ends.


def met(rule, residuals):
    """Whether the rule is met at each record."""
    states = [
        SimpleNamespace(residual=vector(r)[0], steps=torch.tensor(0), running=torch.tensor(True))
        for r in residuals
    ]
    return [bool(rule[1](state)) for state in states]


def test_rounding_is_reached_when_tiny_residuals_no_longer_halve():
    assert met(at_rounding(2), [1e-14] * 4) == [False, False, True, True]
    # 0.6 of the best is no halving; 0.4 is, and the count begins again.
    assert met(at_rounding(2), [1e-14, 6e-15, 4e-15, 4e-15, 4e-15]) == [False] * 4 + [True]
    # 1e-11 is small, not tiny: five times the patience. 1e-9 > eps^0.6 is neither.
    assert met(at_rounding(2), [1e-11] * 12) == [False] * 10 + [True] * 2
    assert met(at_rounding(2), [1e-9] * 40) == [False] * 40
    assert met(at_rounding(), [1e-14] * 4) == [False] * 3 + [True]


def test_stagnation_looks_back_once_in_so_many_attempts():
    # At attempts 3, 6 and 9 the residual is compared with 0.5 times that of attempts 1, 3 and 6.
    path = [1.0, 0.9, 0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.11]
    assert met(stagnated(3, 0.5), path) == [False] * 8 + [True]
    assert met(stagnated(3, 0.5), [1.0, 0.9, 0.51]) == [False, False, True]


def test_residuals_are_relative_to_the_responses_and_absolute_to_none():
    X = torch.ones(2, 1, dtype=torch.float64)
    e = vector(0.6, 0.8)
    assert float(Problem(RankOne(X), vector(3.0, 4.0)).relative(e)) == pytest.approx(
        1 / 5, rel=1e-15
    )
    assert float(Problem(RankOne(X), vector(0.0, 0.0)).relative(e)) == pytest.approx(1, rel=1e-15)


@dataclass(frozen=True)
class Halved(State):
    residual: torch.Tensor


class Halving(Method[Halved]):
    """Halves the residual at every step."""

    def advance(self, state):
        return state.stepped(residual=state.residual / 2)


def halved(history, *, steps=None):
    """Run from residual 1 down to 1/8, which takes three steps if nothing ends it before."""
    one = vector(1.0)
    ends = [(Status.LOSS_REACHED, lambda state: state.residual <= 1 / 8)]
    return history.run(Halving(), Halved(**clock(one), residual=one), ends, steps=steps)


def test_the_starts_of_runs_are_recorded_but_are_not_steps():
    seen = []
    history = History(Budget(max_steps=100), seen.append)
    for total in (3, 6):
        assert halved(history).steps.tolist() == [3]
        assert history.budget.steps == total
    assert history.least_residuals() == (2 * [1.0, 0.5, 0.25, 0.125], 8 * [0])
    assert [p.time for p in seen] == [0, 1, 2, 3, 3, 4, 5, 6]
    assert halved(history, steps=2).steps.tolist() == [2]
    assert history.budget.steps == 8


def test_a_budget_allows_as_many_steps_as_it_says():
    """Three steps, then two of the next run, then none; the statuses say why a run has ended."""
    history = History(Budget(max_steps=5))
    ended = [halved(history) for _ in range(3)]
    assert [int(state.steps) for state in ended] == [3, 2, 0]
    reached, stopped = Status.LOSS_REACHED.code, Status.INTERRUPTED.code
    assert [int(state.outcome) for state in ended] == [reached, stopped, stopped]
    assert history.budget.spent
    assert history.last is ended[-1]


def test_cosine_is_between_the_residual_and_the_jacobian(rng):
    X, U, y = gaussian_problem(rng, 9, 3, 2)
    V = U + 0.1 * normal(rng, 3, 2)
    problem = Problem(RankOne(X), y)
    Z = problem.operator.project(V)
    state = SimpleNamespace(Z=Z, e=problem.residual(Z))
    J = 2 * np.einsum("ia,ib->iab", X, Z).reshape(9, 6)
    e = ((X @ V).square().sum(1) - y).numpy()
    expected = np.linalg.norm(J.T @ e) / (np.linalg.norm(J) * np.linalg.norm(e))
    assert float(
        cosine(problem, state, problem.operator.weighted_adjoint(state.e, Z))
    ) == pytest.approx(expected, rel=1e-13)


# Which rank.


def solver_of(residuals):
    """`solve` with a given residual at each rank, and the list of its calls (rank, starts)."""
    asked = []

    def solve(rank, starts, start=None, *, rough=False):
        asked.append((rank, starts))
        one, residual = np.array(1), np.array(residuals[rank - 1])
        U = torch.eye(6, rank, dtype=torch.float64)
        return search.Candidates(rank, U, residual, one, one, one > 0, np.array(0.0))

    return solve, asked


def setting(n, distinct=None, *, rows=None, spent=False, shown=0):
    """A problem with d = 6 of n samples, and a task; `rows` is the number of rows if not n.

    A linear fit has `shown` its rank.
    """
    X, _, y = gaussian_problem(torch.Generator().manual_seed(0), rows or n, 6, 2)
    shared = SimpleNamespace(
        problem=Problem(RankOne(X), y), is_convex_small=True,
        prepared=SimpleNamespace(count=np.array(n), of_all_samples=float, other_terms=0),
        samples=rows or n, distinct=np.array(n if distinct is None else distinct),
        acceptance=DEFAULT, visible_rank=np.array(shown), other_terms=0,
        unknowns=lambda rank: dimension(6, rank),
        suffices=lambda rank: np.array((distinct or n) >= needed_samples(6, rank)),
    )  # fmt: skip
    budget = SimpleNamespace(spent=spent)
    return shared, search.Task(1e-10, 0, SimpleNamespace(budget=budget))


def test_information_criterion_by_hand():
    assert ranks.bic(0.1, 50, 7) == pytest.approx(100 * math.log(0.1) + 7 * math.log(50))
    assert math.isfinite(ranks.bic(0.0, 50, 7))
    both = ranks.bic(np.array([0.1, 0.0]), np.array([50, 20]), 7)
    assert both.tolist() == [ranks.bic(0.1, 50, 7), ranks.bic(0.0, 20, 7)]


def test_weight_of_the_best_score_by_hand():
    """Scores 0 and 2 log 3 weigh 1 and 1/3; far, infinite or equal scores weigh nothing or 1."""
    close, far = 2 * math.log(3), 1e5
    scores = np.array([[0.0, close, far], [-far, far, np.inf], [7.0, 7.0, 7.0]])
    assert ranks.weight_of_best(scores) == pytest.approx([3 / 4, 1, 1 / 3], rel=1e-15)


def test_visible_eigenvalues_by_hand():
    """Squares are compared with the share 1e-6 of the largest; zero has none."""
    s = np.array([[2.0, 2.1e-3, 1.9e-3], [0.0, 0.0, 0.0]])
    assert visible(s, 1e-6).tolist() == [[True, True, False], [False] * 3]


def test_samples_needed_and_starts_of_a_trial():
    # p + 1 = 20; d(d+1)/2 = 3 where p + 1 = 4; equal at (3, 2).
    assert [needed_samples(*s) for s in ((10, 2), (2, 2), (3, 2), (1, 1))] == [20, 3, 6, 1]
    assert [ranks.trial_starts(p) for p in (1, 150, 151)] == [24, 24, 8]


def test_the_first_rank_that_reproduces_is_chosen():
    solve, asked = solver_of([0.5, 1e-12, 1e-13])
    found, sure, path = ranks.choose_rank(solve, *setting(40), 100, None)
    assert (found.rank, sure) == (2, 1.0)
    assert [step[:2] for step in path] == [(1, 0.5), (2, 1e-12)]
    # 40 samples are ample for 6 and 11 unknowns: one start each, then a full search, and one below.
    assert asked == [(1, 1), (2, 1), (2, 100), (1, 100)]
    # p = 11 at rank 2: 11 samples check nothing, 12 do; of 11 distinct ones likewise.
    for n, distinct, expected in ((11, 12, 0.0), (12, 12, 1.0), (40, 12, 1.0)):
        choice = ranks.choose_rank(solver_of([0.5, 1e-12])[0], *setting(n, distinct), 100, None)
        assert choice.confidence == expected
    # The tolerance itself reproduces.
    assert ranks.choose_rank(solver_of([1e-10])[0], *setting(40), 5, None).found.rank == 1


def test_ranks_without_enough_samples_are_not_tried():
    # 12 distinct samples decide rank 2 (p + 1 = 12) and not rank 3 (16).
    solve, asked = solver_of([0.5, 0.4, 0.3, 0.2])
    ranks.choose_rank(solve, *setting(12, rows=9), 3, None)
    assert asked == [(1, 3), (2, 3), (1, 3)]  # the last one is the full search
    solve, asked = solver_of([0.5, 0.4, 0.3, 0.2])
    ranks.choose_rank(solve, *setting(12, 1, rows=9), 3, None)
    assert asked == [(1, 3), (1, 3)]
    solve, asked = solver_of([0.5, 0.4, 0.3, 0.2, 0.1, 0.05])
    ranks.choose_rank(solve, *setting(100, rows=9), 30, 4)
    assert asked[:-1] == [(1, 24), (2, 24), (3, 24), (4, 24)]
    assert asked[-1][1] == 30
    solve, asked = solver_of([0.5] * 6)
    ranks.choose_rank(solve, *setting(100, rows=9, spent=True), 3, None)
    assert [rank for rank, _ in asked] == [1]


def test_a_history_is_the_way_to_the_answer():
    """Lower ranks before, and its own rank; not higher ones, nor lower ones that came later."""
    history = History(Budget(max_steps=9))
    for rank, residual in ((1, 0.9), (1, 0.5), (2, 0.3), (3, 0.1), (2, 0.2), (1, 0.4), (2, 0.15)):
        history.rank = rank
        history.add([residual])
    assert history.least_residuals(2) == ([0.9, 0.5, 0.3, 0.2, 0.15], [1, 1, 2, 2, 2])
    assert history.least_residuals(3) == ([0.9, 0.5, 0.3, 0.1], [1, 1, 2, 3])
    assert len(history.least_residuals()[0]) == 7
    with history.paused():
        history.note(np.array([0.01]), np.array([True]))
    assert len(history.residuals) == 7
    assert history.budget.steps == 1
    history.restart(lambda residual: 2 * residual)
    assert history.least_residuals() == ([], [])
    history.note(np.array([0.01]), np.array([True]))
    assert history.least_residuals()[0] == [0.02]


def test_trials_begin_at_the_rank_that_a_linear_fit_shows():
    """Scores for 100 samples: the trials go up until two do not gain, and down likewise."""
    solve, asked = solver_of([0.5, 0.4, 0.1, 0.0999, 0.0998, 0.0997])
    found, _, path = ranks.choose_rank(solve, *setting(100, shown=5), 50, None)
    assert found.rank == 3
    assert asked == [(5, 1), (6, 1), (4, 1), (3, 1), (2, 1), (1, 1), (3, 50)]
    assert [rank for rank, _, _ in path] == [1, 2, 3, 4, 5, 6]
    solve, asked = solver_of([0.5, 0.4, 0.1, 0.0999, 1e-13, 1e-13])
    assert ranks.choose_rank(solve, *setting(100, shown=5), 50, None).found.rank == 5
    assert asked == [(5, 1), (5, 50)]
    solve, asked = solver_of([0.5, 0.4, 0.1, 0.0999, 0.0998, 0.0997])
    ranks.choose_rank(solve, *setting(100, shown=3), 50, None)  # low ranks are tried from one on
    assert asked == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (3, 50)]


def test_a_trial_that_missed_the_answer_is_repeated():
    """The warm start fails at rank 2, a full search succeeds."""
    calls = []

    def solve(rank, starts, start=None, *, rough=False):
        calls.append((rank, rough))
        residual = 1e-13 if rank == 3 or (rank == 2 and not rough) else 0.5 / rank
        one = np.array(1)
        U = torch.eye(6, rank, dtype=torch.float64)
        return search.Candidates(rank, U, np.array(residual), one, one, one > 0, np.array(0.0))

    choice = ranks.choose_rank(solve, *setting(100), 50, None)
    assert choice.found.rank == 2
    assert calls == [(1, True), (2, True), (3, True), (3, False), (2, False), (1, False)]


def test_the_best_score_of_noisy_responses_and_its_weight():
    """n = 100, d = 6: p = 6, 11, 15, 18, 20, 21; the score falls to rank 2 and rises after it."""
    residuals = [0.5, 0.1, 0.0995, 0.099, 0.0985, 0.098]
    solve, asked = solver_of(residuals)
    found, sure, path = ranks.choose_rank(solve, *setting(100), 50, None)
    assert found.rank == 2
    assert asked == [(1, 1), (2, 1), (3, 1), (4, 1), (2, 50)]  # two in a row without gain
    p = np.array([6, 11, 15, 18])
    scores = 200 * np.log(residuals[:4]) + p * math.log(100)
    np.testing.assert_allclose([s for _, _, s in path], scores, rtol=1e-14)
    weights = np.exp(-(scores - scores.min()) / 2)
    assert sure == pytest.approx(weights[1] / weights.sum(), rel=1e-12)
    # The highest one tried is the best, and others remain: no confidence.
    found, sure, _ = ranks.choose_rank(solver_of([0.5, 0.1])[0], *setting(100), 50, 2)
    assert (found.rank, sure) == (2, 0.0)
    falling = solver_of([0.9, 0.8, 0.7, 0.6, 0.5, 0.1])[0]
    found, sure, _ = ranks.choose_rank(falling, *setting(100), 50, None)
    assert found.rank == 6
    assert sure > 0.99  # d is the highest there is


def test_the_next_column_is_the_steepest_descent_of_the_loss(rng):
    """Against a scan of unit vectors and a scalar minimisation by SciPy."""
    X, _, y = gaussian_problem(rng, 60, 3, 2, smallest=0.5)
    U = 0.5 * normal(rng, 3, 1)
    longer = ranks.with_next_column(shared_of(X, y), U)
    torch.testing.assert_close(longer[:, :1], U, rtol=0, atol=0)
    e = ((X @ U).square().sum(1) - y).numpy()
    v = longer[:, 1].numpy()

    def rate(u):
        return float((e * (X.numpy() @ u) ** 2).sum() / (u @ u))

    scan = np.random.default_rng(0).standard_normal((3000, 3))
    assert rate(v) <= min(rate(u) for u in scan)
    unit = v / np.linalg.norm(v)
    a = (X.numpy() @ unit) ** 2
    best = scipy.optimize.minimize_scalar(lambda s: ((e + s * a) ** 2).sum()).x
    assert float(v @ v) == pytest.approx(best, rel=1e-6)
    # At responses that are all too small, no positive semidefinite matrix helps.
    assert ranks.with_next_column(shared_of(X, -y), torch.zeros(3, 1).double()) is None


def test_a_higher_rank_is_taken_if_it_reproduces_a_hundredfold_better():
    def raised(residuals, n=40, distinct=40, most=6, spent=False):
        solve, asked = solver_of(residuals)
        found = rank_changes.raise_if_better(
            solve(1, 0), solve, *setting(n, distinct, spent=spent), most
        )
        return found.rank, [rank for rank, _ in asked[1:]]

    assert raised([1e-11, 9e-14, 1e-20]) == (2, [2])  # 9e-14 <= 1e-3 tolerance: exact
    assert raised([1e-11, 1.1e-13]) == (1, [2])
    assert raised([1e-10, 9e-13, 8e-15]) == (3, [2, 3])
    assert raised([1.1e-10, 1e-15]) == (1, [])  # not reproduced at all
    assert raised([1e-13, 1e-20]) == (1, [])  # exact already
    assert raised([1e-11, 1e-15], most=1) == (1, [])
    assert raised([1e-11, 1e-15], distinct=12) == (2, [2])
    assert raised([1e-11, 1e-15], distinct=11) == (1, [])
    assert raised([1e-11, 1e-15], n=11) == (1, [])
    assert raised([1e-11, 1e-15], n=12) == (2, [2])
    assert raised([1e-11, 1e-15], spent=True) == (1, [])


def test_a_lower_rank_is_tried_where_samples_decide_only_that():
    def lowered(residuals, rank, distinct, spent=False):
        solve, asked = solver_of(residuals)
        found = rank_changes.lower_if_possible(
            solve(rank, 0), solve, *setting(40, distinct, spent=spent)
        )
        return found.rank, asked[1:]

    assert lowered([0.1, 1e-12, 1e-12], 3, 12) == (2, [(1, 24), (2, 24)])
    assert lowered([0.1, 0.1, 1e-12], 3, 12) == (3, [(1, 24), (2, 24)])
    assert lowered([1e-10, 0.1, 1e-12], 3, 12) == (1, [(1, 24)])
    assert lowered([0.1, 1e-12, 1e-12], 3, 11) == (3, [(1, 24)])  # rank 2 needs 12
    assert lowered([0.1, 1e-12, 1e-12], 3, 16) == (3, [])  # rank 3 needs 16
    assert lowered([1e-12, 1e-12, 1e-12], 3, 12, spent=True) == (3, [])


def test_only_columns_that_are_negligible_are_tried_to_be_left_out(monkeypatch):
    """Squares 1, 1/4, 1e-10 and 0 of the singular values: ranks 2 and 3 are tried, in order."""
    solve, _ = solver_of([0.1, 0.1, 0.1, 1e-12])
    U = torch.diag(vector(1.0, 0.5, 1e-5, 0.0))
    tried = []

    def refined(shared, start, task, found):
        tried.append(start.shape[-1])
        return replace(found, residual=np.array(1.0))

    monkeypatch.setattr(rank_changes, "refine", refined)
    found = replace(solve(4, 0), U=U)
    assert rank_changes.lower_if_possible(found, solve, *setting(40, 40)) is found
    assert tried == [2, 3]


@pytest.mark.parametrize(
    ("residual", "without", "rank"),
    [
        (1e-11, 9e-11, 1),  # up to ten times as much
        (1e-11, 1.1e-10, 2),
        (1e-17, 2e-14, 1),  # up to 100 eps = 2.2e-14, whatever the residual
        (1e-17, 3e-14, 2),
    ],
)
def test_a_column_is_left_out_where_the_residual_stays_small(monkeypatch, residual, without, rank):
    solve, _ = solver_of([without, residual])

    def refined(shared, start, task, found):
        return replace(found, rank=start.shape[-1], U=start, residual=np.array(without))

    monkeypatch.setattr(rank_changes, "refine", refined)
    found = replace(solve(2, 0), U=torch.diag(vector(1.0, 1e-5)))
    assert rank_changes.lower_if_possible(found, solve, *setting(40, 40)).rank == rank


# What is said in the end.


def diagnosis(**changes):
    told = {
        "low": 0.1, "high": 1.0, "error": 1e-9, "free": False, "isolated": True,
        "converged": True, "near": 0.01,
    }  # fmt: skip
    needed = changes.pop("needed", 5)
    values = {name: np.array([value]) for name, value in {**told, **changes}.items()}
    return Diagnosis(**values, needed=needed)


@pytest.mark.parametrize(
    ("changes", "residual", "options", "status"),
    [
        ({}, 1e-12, {}, Status.RECOVERED),
        ({}, 1e-10, {}, Status.RECOVERED),
        ({}, 1.1e-10, {}, Status.STALLED),
        ({}, 1e-3, {"settled": True}, Status.BEST_FIT),
        ({}, 1e-3, {"interrupted": True}, Status.INTERRUPTED),
        ({}, 1e-12, {"interrupted": True}, Status.RECOVERED),
        ({"low": math.nan, "error": math.nan}, 1e-12, {}, Status.NOT_IDENTIFIED),
        (
            {"low": math.nan, "error": math.nan},
            1e-12, {"interrupted": True}, Status.INTERRUPTED,
        ),
        ({"free": True}, 1e-12, {}, Status.NOT_IDENTIFIED),
        ({"isolated": False}, 1e-12, {}, Status.NOT_IDENTIFIED),
        ({"converged": False}, 1e-12, {}, Status.NOT_IDENTIFIED),
        ({"error": 1e-6}, 1e-12, {}, Status.RECOVERED),
        ({"error": 1.1e-6}, 1e-12, {}, Status.NOT_IDENTIFIED),
        ({"error": 0.99e-5}, 1e-12, {"tolerance": 1e-6}, Status.RECOVERED),
        ({"error": 1.1e-5}, 1e-12, {"tolerance": 1e-6}, Status.NOT_IDENTIFIED),
        ({"error": 1.1e-3}, 1e-12, {"tolerance": 1e-2}, Status.NOT_IDENTIFIED),
        ({"error": 0.9e-3}, 1e-12, {"tolerance": 1e-2}, Status.RECOVERED),
        ({}, 1e-12, {"off": 0.99e-10}, Status.RECOVERED),
        ({}, 1e-12, {"off": 1.01e-10}, Status.NOT_IDENTIFIED),
        ({"needed": 6}, 1e-12, {}, Status.RECOVERED),
        ({"needed": 7}, 1e-12, {}, Status.NOT_IDENTIFIED),
        ({}, 1e-12, {"rank": 2, "count": 5}, Status.NOT_IDENTIFIED),  # p = 5
        ({}, 1e-12, {"rank": 2, "count": 6}, Status.RECOVERED),
        ({}, 1e-12, {"ambient": 4}, Status.UNDETERMINED),
        # Of six samples one differs from the others by 1e-4 only: checked at 10 * 1e-11 / 1e-6.
        ({"needed": 6}, 1.1e-11, {"strengths": (1e-8, 1, 1, 1, 1, 1)}, Status.NOT_IDENTIFIED),
        ({"needed": 6}, 0.9e-11, {"strengths": (1e-8, 1, 1, 1, 1, 1)}, Status.RECOVERED),
    ],
)  # fmt: skip
def test_the_word_that_is_said(changes, residual, options, status):
    """d = 3 and rank 1: p = 3; six distinct samples of six, tolerance 1e-10."""
    X = normal(torch.Generator().manual_seed(0), 1, 6, 3)
    y = X[..., 0].square()
    y[:, 0] += options.get("off", 0.0) * (y[:, 0] + X[:, 0].square().sum(-1))
    shared = shared_of(X, y, count=np.array([options.get("count", 6)]))
    strengths = np.array([options.get("strengths", [1.0] * 6)])
    shared.__dict__["_samples"] = np.array([6]), strengths  # as if computed
    rank, one = options.get("rank", 1), np.array([1])
    U = torch.diag(vector(1.0, 0.0, 0.0))[None, :, :rank]
    settled = np.array([options.get("settled", False)])
    found = search.Candidates(rank, U, np.array([residual]), one, one, settled, np.zeros(1))
    budget = SimpleNamespace(spent=options.get("interrupted", False))
    task = search.Task(options.get("tolerance", 1e-10), 0, SimpleNamespace(budget=budget))
    answer = replace(returned_factor(shared, found, task.tolerance), residual=found.residual)
    evidence = found_evidence(
        diagnosis(**changes), found, answer, shared, task, ambient=options.get("ambient", 3)
    )
    alone = evidence.updated(sought=np.array([True]))  # no other solution was found
    assert grant(alone).tolist() == [status.code]
    recovered = status is Status.RECOVERED
    free = evidence.updated(linear=np.array([False]))
    assert is_open(free).tolist() == [recovered]
    assert not is_open(alone).any()


def test_diagnosis_is_that_of_the_dense_jacobian(rng):
    """Ends of the spectrum, first-order error, and from which residual the first order decides."""
    X, U, y = gaussian_problem(rng, 60, 4, 2, smallest=0.5)
    T = torch.diag(vector(1.0, 2.0, 4.0, 0.5))  # x_user T = x, and Q_user = T Q T'
    shared = shared_of(X, y, transform=T)
    J = 2 * np.einsum("ia,ib->iab", X, X @ U).reshape(60, 8)
    values = np.linalg.eigvalsh(J.T @ J / 60)[1:]  # one gauge direction
    top = np.linalg.norm(U.numpy(), 2) ** 2
    size = float(torch.linalg.vector_norm(y))
    limit = values[0] / (20 * math.sqrt(values[-1] / top)) * math.sqrt(60) / size
    for share in (0.99, 1.01):
        found = diagnose(shared, U, np.float64(share * limit))
        assert float(found.low) == pytest.approx(values[0] / top, rel=1e-10)
        assert float(found.high) == pytest.approx(values[-1] / top, rel=1e-10)
        assert bool(found.isolated) is (share < 1)
        assert not bool(found.free)
        assert found.needed == 8  # 4 * 2 - 1 unknowns and one more
        # ||Q - Q*|| <= 2 |U| |Delta| with |Delta| <= rms / sqrt(low), stretched by |T|^2.
        rms = share * limit * size / math.sqrt(60)
        Q = (T @ U @ U.mT @ T).numpy()
        error = 2 * math.sqrt(top) * rms / math.sqrt(values[0]) * 4.0**2 / np.linalg.norm(Q)
        error *= 60 / (60 - 7)  # the residual of a fit with 7 unknowns is that much smaller
        assert float(found.error) == pytest.approx(error, rel=1e-9)
    own = (y + 1).abs() + X.square().sum(-1) * top
    sizes = (y + 1).numpy(), X.square().sum(-1).numpy(), np.linalg.svd(U)[1]
    off = largest_error(-np.ones(60), *sizes)
    assert float(off) == pytest.approx(float((1 / own).max()), rel=1e-10)


@pytest.mark.parametrize(
    ("dtype", "smallest", "known"),
    # 1e-7, or 10 d eps where that is more: 4.8e-6 at d = 4 in float32.
    [
        (torch.float64, 1.1e-7, True),
        (torch.float64, 0.9e-7, False),
        (torch.float32, 5e-6, True),
        (torch.float32, 4.5e-6, False),
    ],
)
def test_nothing_is_known_at_a_factor_without_full_rank(rng, dtype, smallest, known):
    X = normal(rng, 60, 4)
    U = torch.diag(vector(1.0, smallest, 0.0, 0.0))[:, :2]
    X, U = X.to(dtype), U.to(dtype)
    one, zero = np.array(1), np.zeros((), dtype=U.numpy().dtype)
    fit = search.Candidates(2, U, zero, one, one, one > 0, zero)
    shared = ProblemCache(prepare(X, (X @ U).square().sum(-1), None))
    found = diagnose_any(shared, fit, np.array(2), task_of().history.budget)
    assert bool(np.isfinite(found.low)) is known
    assert bool(np.isfinite(found.error)) <= known


# Working coordinates.


def predicted(X, U):
    return (X @ U).square().sum(-1)


@pytest.mark.parametrize("kind", ["isotropic", "anisotropic", "units", "weights", "tiny", "huge"])
def test_working_coordinates_and_back(rng, kind):
    """`x_user T` are the working inputs, and a factor found there predicts the user's responses."""
    X, _, y = gaussian_problem(rng, 200, 4, 2, smallest=0.5)
    weights = None
    if kind == "anisotropic":
        X = X * vector(1.0, 1.0, 1.0, 20.0)
    if kind == "units":
        X = X * vector(1.0, 1e-5, 1.0, 1e6)
    if kind in ("tiny", "huge"):
        X = X * (1e-60 if kind == "tiny" else 1e60)
    if kind == "weights":
        weights = torch.arange(1, 201, dtype=torch.float64)
    y = 7.0 * (y + 1)
    told = prepare(X, y, weights)
    w = torch.ones(200, dtype=torch.float64) if weights is None else weights / weights.mean()
    rows = X * w.pow(0.25)[:, None]
    torch.testing.assert_close(told.problem.operator.X, rows @ told.transform, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(told.problem.y * told.scale, y * w.sqrt(), rtol=1e-14, atol=0)
    assert float(told.problem.y.abs().max()) == 1
    moment = told.problem.operator.X.mT @ told.problem.operator.X / 200
    if kind == "anisotropic":
        torch.testing.assert_close(moment, torch.eye(4, dtype=X.dtype), rtol=0, atol=1e-9)
    else:
        # Only divided by powers of two, to within a factor sqrt(2) of unit size.
        assert 0.5 <= float(moment.trace()) / 4 <= 2
        powers = (rows / told.problem.operator.X).log2()
        torch.testing.assert_close(powers, powers[:1].round().expand(200, 4), rtol=0, atol=1e-12)
        assert (int(powers[0].round().unique().numel()) == 1) is (kind != "units")
    V = normal(rng, 4, 2)
    torch.testing.assert_close(
        predicted(rows, told.restore(V)), told.scale * predicted(told.problem.operator.X, V),
        rtol=1e-8, atol=1e-10,
    )  # fmt: skip
    assert (int(told.span), int(ProblemCache(told).distinct), int(told.count)) == (4, 10, 200)
    assert bool(ProblemCache(told).linear)


@pytest.mark.parametrize(("share", "whitened"), [(1.05, False), (0.95, True)])
def test_inputs_are_whitened_beyond_four_times_the_spread_of_isotropic_ones(share, whitened):
    """d = 2, n = 32: q = 1/4 and the natural spread is (3/5)^2; the moment is diagonal exactly."""
    X = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64).repeat(16, 1)
    X = X * vector(1.0, math.sqrt(share * (3 / 5) ** 2 / 4))
    told = prepare(X, X.square().sum(-1), None)
    moment = told.problem.operator.X.mT @ told.problem.operator.X / 32
    ratio = float(moment.diagonal().min() / moment.diagonal().max())
    assert ratio == pytest.approx(1 if whitened else share * 0.09, rel=1e-12)


def test_inputs_in_a_subspace_and_samples_that_repeat(rng):
    basis = torch.linalg.qr(normal(rng, 5, 3)).Q
    X = normal(rng, 40, 3) @ basis.mT
    told = prepare(X, X.square().sum(-1), None)
    assert (int(told.span), told.problem.d, int(ProblemCache(told).distinct)) == (3, 3, 6)
    x = normal(rng, 4, 5)
    repeated = torch.cat([x, -2 * x, torch.zeros(1, 5, dtype=x.dtype)])
    told = prepare(repeated, repeated.square().sum(-1), None)
    assert (int(ProblemCache(told).distinct), int(told.count), int(told.span)) == (4, 8, 4)
    assert not bool(ProblemCache(told).linear)


@pytest.mark.parametrize("weighted", [False, True])
def test_samples_of_one_length(rng, weighted):
    """Lengths from 1 to 1000 become one; the residual is reported for the user's lengths."""
    X, _, y = gaussian_problem(rng, 30, 3, 2, smallest=0.5)
    lengths = torch.logspace(0, 3, 30, dtype=torch.float64)
    X, y = X * lengths[:, None], y * lengths.square()
    weights = torch.linspace(1, 2, 30, dtype=torch.float64) if weighted else None
    told = normalize_rows(X, y, weights)
    assert told is not None
    working = told.problem.operator.X @ torch.linalg.inv(told.transform)
    torch.testing.assert_close(
        torch.linalg.vector_norm(working, dim=-1), torch.ones(30, dtype=X.dtype)
    )
    V = normal(rng, 3, 2)
    e = predicted(X, told.restore(V)) - y
    w = 1 if weights is None else weights.sqrt()
    expected = torch.linalg.vector_norm(e * w) / torch.linalg.vector_norm(y * w)
    given = told.given_relative(told.given.errors(told.restore(V))[0])
    np.testing.assert_allclose(given, expected, rtol=1e-10)


def test_lengths_that_are_alike_stay():
    """Rows are normalized from a ratio of thirty on, with weights to the power 1/4."""
    X = torch.eye(3, dtype=torch.float64)
    y = torch.ones(3, dtype=torch.float64)
    for most, changed in ((29.0, False), (31.0, True)):
        scaled = X * vector(1.0, 1.0, most)
        assert (normalize_rows(scaled, y, None) is not None) is changed
        assert (normalize_rows(X, y, vector(1.0, 1.0, most**4)) is not None) is changed
    # A sample of weight zero has no length; a zero input keeps its response.
    assert normalize_rows(X * vector(1.0, 1.0, 1e6), y, vector(1.0, 1.0, 0.0)) is None
    for weights, last in ((None, 5.0), (torch.ones(3), 5.0), (vector(1.0, 1.0, 0.0), 0.0)):
        told = normalize_rows(torch.diag(vector(1.0, 100.0, 0.0)), vector(1.0, 2e4, 5.0), weights)
        torch.testing.assert_close(told.problem.y * told.scale, vector(1.0, 2.0, last))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_response_to_a_zero_input_is_never_reproduced(rng, weighted):
    """0'Q 0 = 0 for every Q, so a nonzero response to a zero input leaves a residual."""
    X, _, y = gaussian_problem(rng, 40, 4, 1)
    lengths = torch.logspace(0, 3, 40, dtype=torch.float64)
    X, y = X * lengths[:, None], y * lengths.square()
    X[-1], y[-1] = 0.0, 5.0
    found = recover(X, y, 1, weights=torch.ones_like(y) if weighted else None)
    assert found.status is Status.BEST_FIT
    left = torch.linalg.vector_norm(predicted(X, found.U) - y) / torch.linalg.vector_norm(y)
    assert float(found.residual) == pytest.approx(float(left), rel=1e-9)
    assert float(left) >= 5 / float(torch.linalg.vector_norm(y)) * (1 - 1e-12)


def test_structure_is_zeros_or_repeated_entries(rng):
    X = normal(rng, 6, 4)
    assert not bool(looks_nongeneric(X))
    assert bool(looks_nongeneric(X.sign()))
    X[2, 1] = 0
    assert bool(looks_nongeneric(X))
    half = vector(*range(1, 13), *range(-12, 0)).reshape(6, 4)  # 12 absolute values in 24 entries
    assert bool(looks_nongeneric(half))
    half[0, 0] = 0.5
    assert not bool(looks_nongeneric(half))
