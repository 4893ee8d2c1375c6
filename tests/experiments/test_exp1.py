"""Experiment 1 against plain NumPy gradient descent."""

from __future__ import annotations

import numpy as np
import pytest

from posquad import gradient_descent
from posquad.core.errors import DomainError
from posquad.experiments.exp1 import run as exp1
from posquad.experiments.exp1.run import EXPERIMENT, Invariance, run
from posquad.experiments.problems import gaussian

SMALL = Invariance(
    d=6, r=2, n=30, rotations=2, seeds=3, step=5e-3, steps=25, etas=(4e-3, 2e-3, 1e-3)
)
EPS = np.finfo(float).eps


def problem(k):
    """Inputs, responses and start of seed k; only the random numbers are the experiment's."""
    q = SMALL
    X = gaussian(q.seed, f"inputs {k}", q.n, q.d).numpy()
    target = gaussian(q.seed, f"target {k}", q.d, q.r).numpy() / np.sqrt(q.d)
    start = gaussian(q.seed, f"start {k}", q.d, q.r).numpy() / np.sqrt(q.d)
    return X, ((X @ target) ** 2).sum(1), start


def predictor_gradient(X, y, U):
    """`G = (1/n) sum (x'UU'x - y) xx'`, one sample at a time."""
    G = np.zeros((X.shape[1], X.shape[1]))
    for x, response in zip(X, y, strict=True):
        G += (x @ U @ U.T @ x - response) * np.outer(x, x)
    return G / len(y)


def descend(X, y, U, eta, steps):
    path = [U]
    for _ in range(steps):
        U = U - 2 * eta * predictor_gradient(X, y, U) @ U
        path.append(U)
    return path


@pytest.mark.parametrize("k", range(SMALL.seeds))
def test_losses_are_those_of_a_plain_descent(measured, k):
    X, y, start = problem(k)
    path = descend(X, y, start, SMALL.step, SMALL.steps)
    losses = [
        (((X @ U) ** 2).sum(1) - y) @ (((X @ U) ** 2).sum(1) - y) / (2 * len(y)) for U in path
    ]
    # 25 contracting steps, each with a rounding error of a few dozen eps.
    np.testing.assert_allclose(measured["loss"][k], losses, rtol=1e-12)


def test_rotated_starts_give_one_predictor(measured):
    """A plain descent has the same discrepancy, rounding; an exact zero would be no test."""
    X, y, start = problem(0)
    angle = 1.0
    R = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    one, other = (descend(X, y, U, SMALL.step, SMALL.steps)[-1] for U in (start, start @ R))
    plain = np.linalg.norm(one @ one.T - other @ other.T) / np.linalg.norm(one @ one.T)
    assert plain < 60 * EPS
    assert measured["invariance"].shape == (SMALL.seeds, SMALL.steps + 1)
    assert 0 < measured["invariance"].max() < 60 * EPS
    assert (measured["invariance"].max(1) > 0).all()
    np.testing.assert_array_equal(measured["invariance_max"], measured["invariance"].max(1))


def test_the_recursion_is_exact_and_sees_a_wrong_one(measured):
    assert 0 < measured["recursion"].max() < 60 * EPS
    assert (measured["recursion"][:, 0] == 0).all()  # no step leads to the start
    np.testing.assert_array_equal(measured["recursion_max"], measured["recursion"].max(1))
    X, y, start = problem(0)
    first, second = descend(X, y, start, SMALL.step, 1)
    G, Q = predictor_gradient(X, y, first), first @ first.T
    factor = np.eye(SMALL.d) - 2 * SMALL.step * G
    wrong = np.eye(SMALL.d) - SMALL.step * G
    residual = np.linalg.norm(second @ second.T - factor @ Q @ factor)
    assert residual / np.linalg.norm(second @ second.T) < 60 * EPS
    off = np.linalg.norm(second @ second.T - wrong @ Q @ wrong) / np.linalg.norm(second @ second.T)
    assert off > 1e10 * measured["recursion"].max()


def test_corrections_are_four_eta_GQG(measured):
    """The mean over two steps of the norm of `4 eta GQG`, at the points of that descent."""
    for k in range(SMALL.seeds):
        X, y, start = problem(k)
        for j, eta in enumerate(SMALL.etas):
            norms = []
            for U in descend(X, y, start, eta, SMALL.correction_steps)[:-1]:
                G = predictor_gradient(X, y, U)
                norms.append(4 * eta * np.linalg.norm(G @ U @ U.T @ G))
            # The measured difference quotient loses eps / eta to cancellation, some 1e-12 here.
            assert measured["correction"][k, j] == pytest.approx(np.mean(norms), rel=1e-8)


def test_slopes_are_least_squares_slopes(measured):
    for k in range(SMALL.seeds):
        expected = np.polyfit(np.log(SMALL.etas), np.log(measured["correction"][k]), 1)[0]
        assert measured["slope"][k] == pytest.approx(expected, abs=1e-10)
    np.testing.assert_allclose(measured["slope_single"], 1, atol=1e-8)  # cancellation, as above
    assert (abs(measured["slope"] - 1) > 1e-5).all()  # along trajectories it is another number


def test_a_seed_does_not_depend_on_the_number_of_seeds(measured):
    alone = run(Invariance(**{**vars(SMALL), "seeds": 1}), lambda fraction: None)
    np.testing.assert_allclose(alone["loss"][0], measured["loss"][0], rtol=1e-12)
    np.testing.assert_allclose(alone["correction"][0], measured["correction"][0], rtol=1e-8)


def test_rotations_depend_only_on_their_seed(monkeypatch):
    """The starts of seed 0, rotated ones included, are the same in a run of one and of three."""
    starts = []

    def spy(objective, start, **options):
        starts.append(start.numpy())
        return gradient_descent(objective, start, **options)

    monkeypatch.setattr(exp1, "gradient_descent", spy)
    one, three = (Invariance(**{**vars(SMALL), "seeds": k, "steps": 1}) for k in (1, 3))
    run(one, lambda fraction: None)
    first = starts[0]
    starts.clear()
    run(three, lambda fraction: None)
    second = starts[0]
    assert first.shape == (SMALL.rotations + 1, 1, SMALL.d, SMALL.r)
    np.testing.assert_allclose(first[:, 0], second[:, 0], rtol=1e-13)
    for turned in first[1:, 0]:  # each is the first one, rotated, and no two are alike
        np.testing.assert_allclose(turned @ turned.T, first[0, 0] @ first[0, 0].T, atol=1e-14)
        assert np.linalg.norm(turned - first[0, 0]) > 1e-3


@pytest.mark.parametrize(("step", "stable"), [(5e-2, True), (5.0, False)])
def test_a_descent_that_diverges_is_refused_and_named(step, stable):
    """Halfway to the limit of these problems, and far beyond it."""
    q = Invariance(**{**vars(SMALL), "step": step})
    if stable:
        assert np.isfinite(run(q, lambda fraction: None)["loss"]).all()
        return
    with pytest.raises(DomainError, match=r"^exp1\.step: expected a stable step; got 5, for") as e:
        run(q, lambda fraction: None)
    assert e.value.argument == "exp1.step"


def test_it_is_the_papers_experiment():
    q = EXPERIMENT.parameters()
    assert (q.d, q.r, q.n, q.rotations) == (20, 5, 80, 5)
