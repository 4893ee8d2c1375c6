"""Stages of `recover` around its search: ranks, zero problems, distances, interruption."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from posquad import RankOne, Status, recover
from posquad.recovery import answers, returned
from posquad.recovery.acceptance import DEFAULT
from posquad.recovery.budget import Budget, History
from posquad.recovery.diagnose import diagnose_any
from posquad.recovery.pipeline import Pipeline
from posquad.recovery.prepare import prepare
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.result import Answers, blank_answers
from posquad.recovery.search import search
from posquad.recovery.second_solutions import SecondSolutionSearch
from recovery_support import task_of
from support import gaussian_problem


def pipeline_of(*, rank=1, max_starts=None):
    return Pipeline(task_of(), rank, None, max_starts, DEFAULT)


def identity_problem(responses):
    """Three inputs of length one, so that `x'Qx` is a diagonal entry of Q."""
    return ProblemCache(prepare(torch.eye(3).double(), torch.tensor(responses).double(), None))


def test_the_stages_one_after_another_are_recover():
    """Prepared, Shared, Candidates, Diagnosis and the answer, each from the ones before."""
    X, U, y = gaussian_problem(torch.Generator().manual_seed(4), 40, 6, 2)
    task = task_of()
    prepared = prepare(X, y, None)
    shared = ProblemCache(prepared)
    found = search(shared, 2, task, 20)
    assert float(found.residual) < 1e-14
    diagnosis = diagnose_any(shared, found, np.array(2), task.history.budget)
    assert 0 < float(diagnosis.error) < 1e-10
    Q = prepared.restore(found.U) @ prepared.restore(found.U).mT
    torch.testing.assert_close(Q, U @ U.mT, rtol=1e-12, atol=1e-12)
    made = answers.diagnosed_answers(shared, found, task, 1.0, 6, nongeneric=False, diagnose=True)
    told, whole = made.recovery(torch.Size(), X, task.history, 40), recover(X, y, 2)
    torch.testing.assert_close(told.Q.dense(), whole.Q.dense())
    for name in ("status", "rank", "samples", "needed", "excluded", "second_starts"):
        assert getattr(told, name) == getattr(whole, name)
    # The estimate grows with the residual, which of the returned factor is one of rounding, too.
    assert 0 < float(told.error_estimate) < 10 * float(diagnosis.error)


@pytest.mark.parametrize(
    ("diagonal", "rank"),
    # Eigenvalues of Q are the squares; those below 1e-7 of the largest do not count.
    [
        ([1.0, 1.0], 2),
        ([1.0, 3.3e-4], 2),
        ([1.0, 3.0e-4], 1),
        ([1.0, 0.0], 1),
        ([3.3e-4, 0.0], 1),  # against responses of 1
        ([3.0e-4, 0.0], 0),
        ([0.0, 0.0], 0),
    ],
)
def test_numerical_rank_by_hand(diagonal, rank):
    shared = identity_problem([1.0, 1.0, 1.0])
    root = float(shared.problem.operator.squared_lengths.mean()) ** 0.5
    assert int(returned.numerical_rank(shared, np.sort(diagonal)[::-1] / root)) == rank


def test_zero_responses_are_those_of_zero_if_the_inputs_span_the_space():
    X = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    found = recover(X, np.zeros(3), 1)
    assert found.status is Status.RECOVERED
    assert (found.rank, float(found.residual), float(found.error_estimate)) == (0, 0, 0)
    assert (int(found.samples), int(found.needed)) == (3, 2)
    np.testing.assert_array_equal(found.U, 0)
    line = recover(X * [1.0, 0.0], np.zeros(3), 1)
    assert line.status is Status.UNDETERMINED
    assert (line.rank, float(line.residual)) == (0, 0)
    nothing = recover(0 * X, np.array([1.0, 2.0, 3.0]), 1)
    assert nothing.status is Status.UNDETERMINED
    assert (nothing.rank, float(nothing.residual)) == (0, 1)
    assert np.isnan(float(nothing.error_estimate))


def test_starts_are_those_given_or_by_the_unknowns():
    assert pipeline_of(max_starts=7)._starts(10, 2) == 7
    # 200,000 over the unknowns, 19 and 199, and at most 2000.
    assert pipeline_of()._starts(10, 2) == 2000
    assert pipeline_of()._starts(100, 2) == 200_000 // 199
    assert pipeline_of()._starts(10_000, 2) == 20


@pytest.mark.parametrize(("error", "apart"), [(0.0, 1e-5), (0.9e-7, 1e-5), (1e-6, 1e-4)])
def test_a_second_solution_is_farther_than_a_hundred_errors(error, apart, monkeypatch):
    X, _, y = gaussian_problem(torch.Generator().manual_seed(0), 8, 4, 1)
    shared, seen = ProblemCache(prepare(X, y, None)), []

    def second(shared, found, task, radii, rank, *, nongeneric):
        seen.append((float(radii.apart), rank, nongeneric))
        assert float(radii.near) == 0.25
        return SecondSolutionSearch(*map(torch.tensor, (True, 5, 3, True)))

    monkeypatch.setattr(answers, "find_second_solution", second)
    diagnosis = SimpleNamespace(error=np.float64(error), near=np.float64(0.25))
    open = np.array(True)
    task = task_of()

    def told(open):
        answer = answers._others(shared, None, task, diagnosis, open, 3, nongeneric=True)
        return [int(t) for t in answer]

    assert told(open) == [1, 5, 3, 1]
    assert seen == [(pytest.approx(apart), 3, True)]
    # Nothing is sought of problems that are not open, or without a budget.
    assert told(~open) == [0, 0, 0, 0]
    task.history.budget.steps = task.history.budget.max_steps
    assert told(open) == [0, 0, 0, 0]
    assert len(seen) == 1


@pytest.mark.parametrize("n", [10, 4])  # they determine every matrix; as many as unknowns
def test_a_dual_matrix_is_sought_only_where_it_decides(n, monkeypatch):
    X, _, y = gaussian_problem(torch.Generator().manual_seed(0), n, 4, 1)
    assert recover(X, y, 1).evidence.linear == (n == 10)
    monkeypatch.setattr(answers, "excludes_others", None)
    monkeypatch.setattr(answers, "find_second_solution", None)
    assert recover(X, y, 1).status is (Status.RECOVERED if n == 10 else Status.NOT_IDENTIFIED)


def test_an_interruption_before_any_result_leaves_zero_and_no_error():
    run = pipeline_of(rank=2)
    X, _, y = gaussian_problem(torch.Generator().manual_seed(0), 8, 4, 1)
    run._single = lambda *a: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        run.answers(RankOne(X), y, None)
    left = run.unfinished_answers()
    assert left.codes.tolist() == [Status.INTERRUPTED.code]
    assert left.evidence.residual.tolist() == [1.0]
    assert np.isnan(left.evidence.error).all()
    assert left.U.shape == (1, 4, 2)
    assert not bool(left.U.any())


def test_answers_are_padded_to_the_widest_factor():
    y = torch.ones(2, 5, dtype=torch.float64)
    narrow, wide = blank_answers(y, 3, 1), blank_answers(y[:1], 3, 2)
    assert narrow.codes.tolist() == [Status.STALLED.code] * 2
    assert narrow.confidence.tolist() == [1.0, 1.0]
    assert np.isnan(narrow.evidence.curvature).all()
    wide.U, wide.rank = wide.U + 7, wide.rank + 2
    together = Answers.stacked([narrow, wide])
    assert together.U.shape == (3, 3, 2)
    assert together.rank.tolist() == [0, 0, 2]
    narrow.put(np.array([1]), wide)
    assert narrow.U.shape == (2, 3, 2)
    assert narrow.U[:, 0].tolist() == [[0, 0], [7, 7]]
    narrow.put(np.array([0]), blank_answers(y[:1], 3, 1))
    assert narrow.U[:, 0].tolist() == [[0, 0], [7, 7]]
    assert narrow.select(np.array([1])).rank.tolist() == [2]


def test_a_result_has_the_columns_of_its_rank():
    answers = blank_answers(torch.ones(2, 5, dtype=torch.float64), 3, 3)
    answers.U[0, :2, :2] = np.diag([3.0, 2.0])
    answers.rank[0] = 2
    history = History(Budget(max_steps=10))
    told = answers.recovery(torch.Size([2]), np.zeros(0), history, 5)
    assert told.U.shape == (2, 3, 2)
    np.testing.assert_array_equal(told.U[0], [[3, 0], [0, 2], [0, 0]])
    np.testing.assert_array_equal(told.U[1], 0)
    assert told.steps == 0
    np.testing.assert_array_equal(told.history, [0.0])
    assert told.message == [Status.STALLED.value] * 2
    for least in (0.5, 0.25):
        residual = torch.tensor([1.0, least], dtype=torch.float64)
        history(SimpleNamespace(residual=residual, running=residual > 0))
    told = answers.recovery(torch.Size([2]), np.zeros(0), history, 5)
    np.testing.assert_array_equal(told.history, [0.5, 0.25])
    assert told.steps == 0  # records are not steps


TURN = np.array([[0.6, 0.8], [-0.8, 0.6]])


@pytest.mark.parametrize("size", [1e200, 1.0, 1e-200])
def test_columns_are_orthogonal_and_sorted_where_their_squares_leave_the_range(size):
    U = size * np.array([np.diag([2.0, 3.0]), np.diag([2.0, 3.0]) @ TURN])
    told = returned.rotated(U, np.array([2, 2]))
    expected = np.array([[0, 2], [3, 0]])
    for one in told:
        np.testing.assert_allclose(np.abs(one), size * expected, rtol=1e-14, atol=size * 1e-14)


def test_factors_of_several_ranks_are_rotated_one_by_one():
    """A column that is 1e-20 of the first one is kept, and nothing beyond the rank appears."""
    U = np.zeros((3, 3, 2))
    U[0, :2], U[1, 0] = np.diag([1.0, 1e-20]) @ TURN, [2.0, 0.0]
    told = returned.rotated(U, np.array([2, 1, 0]))
    np.testing.assert_allclose(told @ told.swapaxes(1, 2), U @ U.swapaxes(1, 2), atol=1e-15)
    np.testing.assert_allclose(abs(told[0, 1]), [0, 1e-20], rtol=1e-14, atol=1e-34)
    np.testing.assert_array_equal(abs(told[1:]), abs(U[1:]))
