"""Starts of a loss with many minima: the least of them, by hand, by brute force and by SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from adversarial.outliers import NOISE, by_scipy, loss_and_slope, problem
from posquad import RankOne, recover
from posquad.recovery import other_losses, robust_starts
from posquad.recovery.budget import Budget
from posquad.recovery.losses import Robust
from posquad.recovery.reweight import Reweighted, Squares, _Reweighting, fit_by_reweighting
from posquad.recovery.robust_starts import nearest_half, robust_factors

WIDTH = 3.7874187608


def location(n):
    """Fits of one mean, which has no other minima than the loss."""

    def fit(squares, start, *, full):
        mean = (squares.weights * squares.responses).sum() / squares.weights.sum()
        return mean, mean.expand(n)

    return fit


def location_loss(y, at, scale):
    square = np.square((y - at) / scale)
    return float((square / (1 + square / WIDTH**2)).sum() / 2)


@pytest.mark.parametrize("scale", [None, 0.05])
@pytest.mark.parametrize("seed", range(5))
def test_the_mean_of_the_larger_of_two_groups_is_found(seed, scale):
    """A quarter of the responses is far away on one side, a fifth near on the other.

    The first fit lies between them, and with a small scale it is a stationary point.
    """
    rng = np.random.default_rng(seed)
    y = np.concatenate([rng.normal(1, 0.05, 22), rng.normal(3, 0.05, 8), rng.normal(40, 0.1, 10)])
    given = torch.from_numpy(y)
    loss = Robust("geman-mcclure", scale)
    end = fit_by_reweighting(location(40), loss, given, torch.ones_like(given), 1e-10, seed=seed)
    s = float(end.scale)
    grid = np.linspace(0, 41, 4001)
    low = grid[np.argmin([location_loss(y, at, s) for at in grid])]
    best = minimize_scalar(lambda m: location_loss(y, m, s), (low - 0.02, low, low + 0.02))
    assert end.settled
    assert abs(float(end.answer) - best.x) < 1e-6
    if scale is None:
        assert s == pytest.approx(np.median(np.abs(y - float(end.answer))) / 0.6744897501960817)


def test_two_answers_are_compared_at_the_smaller_of_their_scales():
    rng = np.random.default_rng(0)
    differ = 0
    for _ in range(50):
        y = rng.standard_cauchy(15)
        means = rng.standard_normal(2)
        scales = [float(np.median(np.abs(y - m))) / 0.6744897501960817 for m in means]
        given = torch.from_numpy(y)
        run = _Reweighting(
            location(15), Robust("geman-mcclure"), given, torch.ones(15), 0.0, lambda: False
        )
        new, old = (given.new_tensor(m).expand(15) for m in means)
        end = Reweighted(old, old, Squares(given, given), given.new_tensor(scales[1]))
        small, large = (
            location_loss(y, means[0], s) < location_loss(y, means[1], s)
            for s in (min(scales), max(scales))
        )
        assert run.is_lower(new, end) == small
        differ += small != large
    assert differ > 0


def test_the_nearest_half_has_half_of_the_weights():
    errors = torch.tensor([[5.0, 1.0, 3.0], [0.0, 2.0, 1.0]])
    w = torch.tensor([1.0, 1.0, 4.0])
    expected = torch.tensor([[0.0, 1.0, 4.0], [1.0, 0.0, 4.0]])
    torch.testing.assert_close(nearest_half(errors, w), expected)
    assert (nearest_half(torch.rand(50, 9), torch.ones(9)).sum(-1) == 5).all()


def hard_problem(seed):
    return problem(np.random.default_rng([29, seed]), 0.3)


@pytest.mark.parametrize("units", [(1.0, 1.0), (1e-9, 1e12), (1e80, 1e-120)])
@pytest.mark.parametrize("scale", [None, NOISE])
def test_units_and_weights_do_not_change_what_is_found(units, scale):
    X, U, y = hard_problem(3)
    a, b = units
    factor = np.sqrt(b) / a
    w = np.ones(len(y))
    w[-1] = 0.0
    spoiled = y.copy()
    spoiled[-1] = 1e30
    given = [torch.from_numpy(v) for v in (a * X, b * spoiled, 1e5 * w)]
    loss = Robust("geman-mcclure", None if scale is None else b * scale)
    given[0] = RankOne(given[0])
    found = robust_factors(*given, U.shape[1], loss, 1e-10, 0, Budget(max_steps=10**6))
    V = found[0].numpy() / factor
    # Near the least loss that SciPy reaches from the truth, at one scale.
    at = scale or float(np.median(np.abs(np.square(X @ V).sum(1) - y)[:-1])) / 0.6744897501960817
    best = by_scipy(X[:-1], y[:-1], U, at, np.random.default_rng(0))
    ours, theirs = (loss_and_slope(W.ravel(), X[:-1], y[:-1], U.shape[1], at)[0] for W in (V, best))
    assert ours < 1.01 * theirs


def test_there_are_no_starts_without_anything_to_start_from():
    X, _, y = hard_problem(0)
    given = [torch.from_numpy(v) for v in (X, y, np.ones(len(y)))]
    rest = (1, Robust("geman-mcclure"), 1e-10, 0, Budget(max_steps=1000))
    assert len(robust_factors(RankOne(torch.zeros_like(given[0])), *given[1:], *rest)) == 0
    assert len(robust_factors(RankOne(given[0]), torch.zeros_like(given[1]), given[2], *rest)) == 0
    large = torch.zeros(3000, 300, dtype=torch.float64)
    assert len(robust_factors(RankOne(large), large[:, 0], 1 + large[:, 0], *rest)) == 0
    zeros = recover(np.zeros((20, 2)), np.arange(20.0), rank=1, loss="geman-mcclure")
    assert int(zeros.rank) == 0


def is_worse_than_the_truth(found, X, y, U):
    scale = float(found.scale)
    own, true = (
        loss_and_slope(np.ravel(V), X, y, V.shape[1], scale)[0] for V in (np.asarray(found.U), U)
    )
    return own > true


def test_large_problems_begin_at_trimmed_fits(monkeypatch):
    """Where there are no random factors, halves of the samples do; one start is not enough."""
    monkeypatch.setattr(robust_starts, "_OPERATIONS", 0)
    problems = [hard_problem(seed) for seed in (2, 5)]
    options = {"loss": "geman-mcclure", "scale": NOISE}

    def worse():
        return [
            is_worse_than_the_truth(recover(X, y, U.shape[1], **options), X, y, U)
            for X, U, y in problems
        ]

    assert not any(worse())
    monkeypatch.setattr(Robust, "redescends", property(lambda self: False))
    assert any(worse())


def test_a_given_start_is_one_of_the_starts(monkeypatch):
    X, U, y = hard_problem(1)
    poor = torch.from_numpy(5 + np.random.default_rng(0).standard_normal((1, *U.shape)))
    monkeypatch.setattr(other_losses, "robust_factors", lambda *_: poor)
    options = {"loss": "geman-mcclure", "scale": NOISE}
    assert is_worse_than_the_truth(recover(X, y, U.shape[1], **options), X, y, U)
    near = recover(X, y, U.shape[1], start=U, **options)
    assert not is_worse_than_the_truth(near, X, y, U)


def test_steps_of_the_starts_are_counted_and_limited():
    X, U, y = hard_problem(2)
    found = recover(X, y, U.shape[1], loss="geman-mcclure")
    assert found.steps > len(found.history)
    budget = Budget(max_steps=3)
    given = [torch.from_numpy(v) for v in (X, y, np.ones(len(y)))]
    given[0] = RankOne(given[0])
    robust_factors(*given, U.shape[1], Robust("geman-mcclure"), 1e-10, 0, budget)
    assert budget.steps <= 3 + 1
