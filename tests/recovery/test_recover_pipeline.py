"""The stages of `recover`: a given start, other solutions, views of large inputs, constants."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad import RankOne, Status, recover
from posquad.core.errors import DomainError, DtypeError, Interrupted, ShapeError
from posquad.core.threads import one_torch_thread
from posquad.problems.views import RankOneView
from posquad.recovery import Acceptance, answers, rank_changes, second_solutions, second_starts
from posquad.recovery.costs import is_overhead
from posquad.recovery.pipeline import max_starts
from posquad.recovery.prepare import normalize_rows, prepare
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.ranks import trial_starts
from posquad.recovery.search import Search, search
from recovery_support import costs_are, task_of
from support import gaussian_problem, normal

# A given start.


def test_a_start_near_the_answer_needs_no_other(rng):
    X, U, y = gaussian_problem(rng, 24, 10, 2, smallest=0.5)
    near = U + 1e-3 * normal(rng, 10, 2)
    found = recover(X, y, 2, start=near)
    assert found.status is Status.RECOVERED
    assert int(found.starts) == 1
    torch.testing.assert_close(found.U @ found.U.mT, U @ U.mT, rtol=0, atol=1e-12)
    # In the user's coordinates, also where the inputs are whitened and the responses scaled.
    units = torch.logspace(0, 2, 10, dtype=torch.float64)
    scaled = recover(X * units, 1e6 * y, 2, start=1e3 * near / units[:, None])
    assert int(scaled.starts) == 1
    expected = 1e6 * (U @ U.mT) / units / units[:, None]
    torch.testing.assert_close(scaled.U @ scaled.U.mT, expected, rtol=1e-9, atol=1e-12)


def test_a_start_of_lower_rank_is_extended(rng):
    X, U, y = gaussian_problem(rng, 60, 10, 3, smallest=0.5)
    leading = rank_changes.leading_columns(U, 1)
    found = recover(X, y, 3, start=leading)
    assert found.status is Status.RECOVERED
    torch.testing.assert_close(found.U @ found.U.mT, U @ U.mT, rtol=0, atol=1e-12)


def test_a_start_is_used_at_its_rank_if_the_rank_is_unknown(rng):
    X, U, y = gaussian_problem(rng, 60, 12, 3, smallest=0.5)
    plain, found = recover(X, y), recover(X, y, start=U)
    assert found.status is Status.RECOVERED
    assert int(found.rank) == 3
    assert found.steps < plain.steps
    assert float(found.rank_path.residual[-1]) <= 1e-14
    wrong = recover(X, y, start=normal(rng, 12, 3))
    assert wrong.status is Status.RECOVERED
    assert int(wrong.rank) == 3


def test_every_problem_of_a_batch_has_its_start(rng):
    problems = [gaussian_problem(rng, 24, 6, 2, smallest=0.5) for _ in range(3)]
    X, U, y = (torch.stack(parts) for parts in zip(*problems, strict=True))
    found = recover(X, y, 2, start=U)
    assert found.starts.tolist() == [1, 1, 1]
    assert found.status == [Status.RECOVERED] * 3


@pytest.mark.parametrize(
    ("shape", "error", "words"),
    [
        ((10, 3), DomainError, "start: expected at most rank = 2 columns; got 3"),
        ((9, 2), ShapeError, "start"),
        ((2, 10, 2), ShapeError, "start"),
    ],
)
def test_a_start_that_does_not_fit(rng, shape, error, words):
    X, _, y = gaussian_problem(rng, 38, 10, 2)
    with pytest.raises(error, match=words):
        recover(X, y, 2, start=torch.ones(shape, dtype=torch.float64))
    assert recover(X, y, 2, start=torch.ones(10, 2, dtype=torch.float64)).rank == 2


# Other solutions.


def twins(rng):
    """Rows in one of two hidden subspaces: `u + v` and `u - v` have the same responses."""
    turn = torch.linalg.qr(normal(rng, 8, 8)).Q
    rows = normal(rng, 40, 8)
    rows[:20, 4:] = 0
    rows[20:, :4] = 0
    u = normal(rng, 8, 1)
    flipped = torch.cat([u[:4], -u[4:]])
    return rows @ turn.mT, turn @ u, turn @ flipped


def test_a_second_solution_is_found_and_said(rng):
    X, U, V = twins(rng)
    y = (X @ U).square().sum(-1)
    torch.testing.assert_close((X @ V).square().sum(-1), y, rtol=1e-12, atol=1e-12)
    found = recover(X, y, 1)
    assert found.status is Status.NOT_IDENTIFIED
    assert int(found.second_starts) > 0
    together = recover(torch.stack([X, X]), torch.stack([y, y]), 1)
    assert together.status == [Status.NOT_IDENTIFIED] * 2


def test_how_many_starts_sought_another(rng, monkeypatch):
    """None where the samples determine every symmetric matrix."""
    X, _, y = gaussian_problem(rng, 60, 5, 1)
    assert int(recover(X, y, 1).second_starts) == 0  # d(d+1)/2 = 15 < 60
    X, _, y = gaussian_problem(rng, 30, 10, 2, smallest=0.5)
    assert int(recover(X, y, 2).second_starts) >= Acceptance().agreeing_others
    none, zero = torch.tensor(False), torch.tensor(0)
    monkeypatch.setattr(
        answers,
        "find_second_solution",
        lambda *a, **k: second_solutions.SecondSolutionSearch(none, zero, zero, ~none),
    )
    few = recover(X, y, 2)
    assert few.status is Status.NOT_IDENTIFIED  # where no start was made, none was sought
    assert int(few.second_starts) == 0


def test_reflections_have_the_same_responses(rng):
    """At rank d nothing is cut off where the reflection is positive definite."""
    X = normal(rng, 9, 4)
    U = torch.eye(4, dtype=X.dtype)
    y = X.square().sum(-1)
    shared = ProblemCache(prepare(X, y, None))
    W = shared.prepared.enter(U)
    found = second_starts._mirrored_interpolants(shared, W)[0]
    assert float(torch.linalg.matrix_norm(found @ found.mT - W @ W.mT)) > 1e-3
    torch.testing.assert_close(
        shared.problem.operator.apply_factor_kernel(found), shared.problem.y, rtol=1e-9, atol=1e-9
    )


def test_other_interpolants_have_the_same_responses(rng):
    """At rank d nothing is cut off but the negative part, so responses agree where H is small."""
    X, U, y = gaussian_problem(rng, 8, 4, 4, smallest=0.5)
    shared = ProblemCache(prepare(X, y, None))
    W = shared.prepared.enter(U)
    found = second_starts._other_interpolants(shared, W, 0, 2)[
        1
    ]  # the second is a tenth as long as Q
    assert float(torch.linalg.matrix_norm(found @ found.mT - W @ W.mT)) > 1e-3
    torch.testing.assert_close(
        shared.problem.operator.apply_factor_kernel(found), shared.problem.y, rtol=1e-6, atol=1e-6
    )


# Working coordinates.


@pytest.mark.parametrize("kind", ["isotropic", "whitened", "weighted", "units", "uneven"])
def test_a_view_prepares_as_a_copy_does(rng, kind):
    X, U, y = gaussian_problem(rng, 60, 5, 2, smallest=0.5)
    weights = None
    if kind == "whitened":
        X = X * torch.logspace(0, 1.5, 5, dtype=X.dtype)
    if kind == "units":
        X = X * torch.logspace(0, 6, 5, dtype=X.dtype)
    if kind == "weighted":
        weights = torch.linspace(1, 3, 60, dtype=X.dtype)
    if kind == "uneven":
        X = X * torch.logspace(0, 3, 60, dtype=X.dtype)[:, None]
    make = normalize_rows if kind == "uneven" else prepare
    copy = make(X, y, weights)
    with costs_are(BYTES=1):
        view = make(X, y, weights)
    assert isinstance(view.problem.operator, RankOneView) is (kind != "isotropic")
    assert not isinstance(copy.problem.operator, RankOneView)
    V = normal(rng, 5, 2)
    for told in (copy, view):
        # What a factor predicts does not depend on the signs of eigenvectors.
        assert told.problem.operator.n == 60
    torch.testing.assert_close(
        view.problem.operator.apply_factor_kernel(view.enter(V)),
        copy.problem.operator.apply_factor_kernel(copy.enter(V)),
        rtol=1e-9, atol=1e-9,
    )  # fmt: skip
    torch.testing.assert_close(view.problem.y, copy.problem.y, rtol=1e-14, atol=0)
    assert int(view.count) == int(copy.count) == 60
    found = search(ProblemCache(view), 2, task_of(), 20)
    if kind == "isotropic":
        Q = view.restore(found.U) @ view.restore(found.U).mT
        torch.testing.assert_close(Q, U @ U.mT, rtol=0, atol=1e-10)
    assert float(found.residual) < 1e-10 or kind not in ("isotropic", "weighted")


def test_repeated_rows_are_counted_once_in_large_problems(rng):
    """Rows that agree with one random direction by chance are not repeated ones."""
    X = normal(rng, 2000, 60)
    repeated = torch.cat([X, -3 * X[:100], torch.zeros(5, 60, dtype=X.dtype)])
    shared = ProblemCache(prepare(repeated, repeated.square().sum(-1), None))
    assert int(shared.distinct) == min(2000, 60 * 61 // 2)
    assert not bool(shared.linear)
    # Equal cosines with the first probe only: reflect a row across it.
    generator = torch.Generator().manual_seed(60)
    probe = torch.randn(60, 2, generator=generator, dtype=torch.float64)[:, 0]
    unit = probe / probe.norm()
    x = X[:900]
    mirrored = 2 * (x @ unit)[:, None] * unit - x
    both = torch.cat([x, mirrored])
    with costs_are(OPERATIONS=1):
        assert int(ProblemCache(prepare(both, both.square().sum(-1), None)).distinct) == 1800


# Constants and threads.


def test_acceptance_is_passed_in(rng):
    X, _, y = gaussian_problem(rng, 76, 10, 2, smallest=0.5)
    strict = Acceptance(loose=1e-30)
    assert recover(X, y, 2, acceptance=strict).status is Status.NOT_IDENTIFIED
    noisy = y * (1 + 0.1 * normal(rng, 76))
    assert recover(X, noisy, max_rank=1).rank_path.rank.tolist() == [1]
    assert recover(X, noisy).rank_path.rank.tolist() == [1, 2, 3, 4]


def test_starts_of_a_problem_by_its_size():
    # 200,000 over the unknowns, from 20 to 2000; 24 starts of a trial up to 150 unknowns, then 8.
    assert [max_starts(p) for p in (100, 200, 10**4, 10**6)] == [2000, 1000, 20, 20]
    assert [trial_starts(p) for p in (150, 151)] == [24, 8]
    assert is_overhead(2**17 // 20, 10, 2, 60)
    assert not is_overhead(2**17 // 20 + 1, 10, 2, 60)
    assert not is_overhead(10, 10, 2, 61)


def test_a_small_problem_runs_on_one_thread(rng):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = []
        X, _, y = gaussian_problem(rng, 24, 10, 2)
        recover(X, y, 2, progress=lambda _: seen.append(torch.get_num_threads()))
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
        with one_torch_thread(when=False):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_rounds_of_a_batch_are_those_of_one_problem(rng):
    """The same starts, counted problem by problem: with noise all rounds are used."""
    X, y = normal(rng, 4, 14, 6), normal(rng, 4, 14).square()
    together = recover(X, y, 2, max_starts=40)
    alone = [recover(X[k], y[k], 2, max_starts=40) for k in range(4)]
    np.testing.assert_allclose(together.residual, [float(a.residual) for a in alone], rtol=1e-6)
    assert together.status == [a.status for a in alone]


def test_a_running_search_reports_what_it_has(rng):
    X, _, y = gaussian_problem(rng, 24, 6, 2)
    run = Search(ProblemCache(prepare(X, y, None)), 2, task_of(), 5)
    before = run.candidates()
    assert (float(before.residual), int(before.starts), before.farkas) == (1.0, 0, None)
    after = run.run()
    assert run.history.best.U is after.U
    assert float(after.residual) < 1e-10
    assert RankOne(X).n == 24


# What is said of an interrupted or unusual call.


def test_a_bound_is_for_the_rows_of_the_user():
    """Rows from 1e-3 to 1e3 are first solved with length one, whose bound is another one."""
    g = np.random.default_rng(1)
    for _ in range(12):
        X = g.standard_normal((40, 5)) * np.logspace(-3, 3, 40)[:, None]
        y = g.standard_normal(40)
        best, cut = recover(X, y, 5), recover(X, y, 5, max_steps=5)
        assert cut.residual_bound <= best.residual * (1 + 1e-9)
        assert cut.residual <= 1


def test_a_rank_choice_that_was_cut_short_is_no_best_fit(rng):
    X, _, y = gaussian_problem(rng, 80, 8, 2, smallest=0.5)
    found = recover(X, y, time_limit=1e-9)
    assert found.status is Status.INTERRUPTED
    assert float(found.rank_confidence) == 0


def test_finished_problems_of_an_interrupted_batch_are_kept(rng):
    problems = [gaussian_problem(rng, 30, 5, 2, smallest=0.5) for _ in range(4)]
    X, _, y = (torch.stack(parts) for parts in zip(*problems, strict=True))
    # Problems with a start of their own and without a rank are solved one by one.
    first = normal(rng, 4, 5, 2)
    steps = [recover(X[k], y[k], start=first[k]).steps for k in range(4)]
    count = [0]

    def stop(_):
        count[0] += 1
        if count[0] > sum(steps[:2]) + 4:  # in the third problem
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stopped:
        recover(X, y, start=first, progress=stop)
    found = stopped.value.result
    assert found.status[0] is Status.RECOVERED
    assert found.status[3] is Status.INTERRUPTED
    assert float(found.residual[3]) == 1.0
    assert found.error_estimate[3].isnan()


def test_a_start_of_any_size(rng):
    X, U, y = gaussian_problem(rng, 24, 6, 2, smallest=0.5)
    for size in (1e-150, 1e150):
        found = recover(X, y, 2, start=size * U)
        assert found.status is Status.RECOVERED
        assert found.steps < 200


def test_the_convex_case_reports_its_steps(rng):
    seen = []
    recover(normal(rng, 60, 12), normal(rng, 60), 12, progress=seen.append)
    assert len(seen) > 5


def test_constants_of_the_wrong_kind(rng):
    X, _, y = gaussian_problem(rng, 24, 6, 2)
    with pytest.raises(
        DtypeError, match=r"acceptance: expected posquad\.recovery\.Acceptance; got int"
    ):
        recover(X, y, 2, acceptance=3)


def test_inputs_that_are_zero_leave_the_error_unknown(rng):
    found = recover(torch.zeros(9, 3, dtype=torch.float64), torch.ones(9, dtype=torch.float64), 1)
    assert float(found.residual) == 1
    assert found.error_estimate.isnan()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_ranks_chosen_in_a_batch_are_those_chosen_alone(rng, noise, shared):
    """Ranks 1 to 3, from hardly enough samples to many; one X for all, or one each."""
    for n in (12, 20, 60):
        X = normal(rng, n, 5) if shared else normal(rng, 9, n, 5)
        factors = normal(rng, 9, 5, 3)
        for k in range(9):
            factors[k, :, 1 + k % 3 :] = 0
        y = (X @ factors).square().sum(-1) * (1 + noise * normal(rng, 9, n))
        together = recover(X, y)
        for k in range(9):
            alone = recover(X if shared else X[k], y[k])
            assert together.status[k] is alone.status
            assert int(together.rank[k]) == int(alone.rank)
            assert float(together.residual[k]) == pytest.approx(
                float(alone.residual), rel=1e-6, abs=1e-12
            )
            assert float(together.rank_confidence[k]) == pytest.approx(
                float(alone.rank_confidence), abs=1e-3
            )
