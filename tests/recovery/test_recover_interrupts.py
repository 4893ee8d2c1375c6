"""Ctrl-C at any moment of `recover` raises `Interrupted` with the best answer so far."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from posquad import Interrupted, RankOne, Status, recover
from posquad.recovery.budget import Budget, History
from posquad.recovery.problem import Problem
from posquad.recovery.result import Answers
from posquad.recovery.search import Search
from posquad.recovery.solvers import small
from support import gaussian_problem, normal


def interrupt(monkeypatch, owner, name, call):
    """Let this call of a method end with Ctrl-C."""
    method, calls = getattr(owner, name), []

    def counted(*args, **options):
        calls.append(name)
        if len(calls) == call:
            raise KeyboardInterrupt
        return method(*args, **options)

    monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize("moment", range(5, 400, 11))
def test_small_problems_can_be_interrupted_between_any_two_lines(rng, monkeypatch, moment):
    X, U, y = gaussian_problem(rng, 14, 4, 2)
    problem, starts = Problem(RankOne(X), y), U + normal(rng, 6, 4, 2)
    history = History(Budget(max_steps=100))
    lines = 0

    def trace(frame, event, _):
        nonlocal lines
        if frame.f_code.co_filename != small.__file__ or frame.f_code.co_name == "store":
            return None
        lines += event == "line"
        if lines == moment:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    run = small._Run(problem, starts, small.StopRule(steps=100, patience=3, rate=0.5), None)
    monkeypatch.setattr(small, "_Run", lambda *_: run)  # complete before the first moment
    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            small.run_small(problem, starts, small.StopRule(steps=100), history)
    finally:
        sys.settrace(before)
    ends = history.last
    assert ends is not None
    torch.testing.assert_close(ends.residual, problem.relative_residual(ends.U))


@pytest.mark.parametrize(("call", "loss"), [(1, "huber"), (4, "huber"), (3, "geman-mcclure")])
def test_another_loss_keeps_its_best_fit(rng, monkeypatch, call, loss):
    X, _, y = gaussian_problem(rng, 60, 5, 2, smallest=0.5)
    y[:3] += 50
    full = recover(X, y, 2, loss=loss)
    interrupt(monkeypatch, Search, "run", call)
    with pytest.raises(Interrupted) as caught:
        recover(X, y, 2, loss=loss)
    found = caught.value.result
    assert found.loss == loss
    assert found.status is Status.INTERRUPTED
    assert found.weights.shape == y.shape
    e = (X @ found.U).square().sum(-1) - y
    assert float(found.residual) == pytest.approx(float(e.norm() / y.norm()))
    if call == 1:
        assert float(found.residual) == 1  # nothing was computed
    else:
        assert float(found.residual) == pytest.approx(float(full.residual), rel=0.3)


def test_an_interrupted_batch_with_another_loss_keeps_what_is_complete(rng, monkeypatch):
    X, _, y = gaussian_problem(rng, 40, 4, 1, smallest=0.5)
    interrupt(monkeypatch, Search, "run", 3)
    with pytest.raises(Interrupted) as caught:
        recover(X.expand(3, 40, 4), torch.stack([y, y + normal(rng, 40), y]), 1, loss="huber")
    found = caught.value.result
    assert found.status == [Status.RECOVERED, Status.INTERRUPTED, Status.INTERRUPTED]
    assert found.rank.tolist()[::2] == [1, 0]
    assert found.loss == "huber"


def test_ctrl_c_after_the_search_keeps_the_answer(rng, monkeypatch):
    X, _, y = gaussian_problem(rng, 24, 6, 2, smallest=0.5)
    interrupt(monkeypatch, Answers, "recovery", 1)
    with pytest.raises(Interrupted) as caught:
        recover(X, y, 2)
    assert caught.value.result.status is Status.RECOVERED


def stopped_at(call, count):
    """Call with a progress that presses Ctrl-C; return the result, or None if it was earlier."""
    seen = []

    def press(progress):
        seen.append(progress)
        if len(seen) == count:
            raise KeyboardInterrupt

    try:
        call(press)
    except Interrupted as stop:
        return stop.result
    return None


@pytest.mark.parametrize("count", [1, 2, 4])
def test_ctrl_c_at_full_rank_keeps_single_precision(count):
    rng = np.random.default_rng(0)
    X, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((30, 10), 30))
    found = stopped_at(lambda press: recover(X, y, 10, precision="input", progress=press), count)
    assert found is not None
    assert found.U.dtype == np.float32


@pytest.mark.parametrize("rank", [2, None])
def test_ctrl_c_while_some_problems_of_a_batch_are_polished(rank):
    """Two problems have rank 1; the parts of a batch that are refined change all the time."""
    rng = np.random.default_rng(0)
    X, U = rng.standard_normal((4, 40, 8)), rng.standard_normal((4, 8, 2))
    U[::2, :, 1] = 0
    y = ((X @ U) ** 2).sum(-1)
    for count in range(1, 60, 3):
        found = stopped_at(lambda press: recover(X, y, rank, progress=press), count)
        if found is None:
            break
        assert found.residual.shape == (4,)
