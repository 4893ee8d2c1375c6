"""Gradient descent against plain NumPy loops, exact arithmetic and the local linear theory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest
import torch
from scipy.linalg import orthogonal_procrustes

from posquad import (
    LeastSquares,
    PopulationRisk,
    RankOne,
    SmoothObjective,
    gradient_descent,
    predictor_step,
)
from posquad.core.progress import Progress
from posquad.core.status import Status
from posquad.problems.objectives import Objective

EPS = np.finfo(float).eps

Gradient = Callable[[np.ndarray], np.ndarray]


def problem(kind: str, d: int = 5, r: int = 2, n: int = 40) -> tuple[Objective, Gradient, Gradient]:
    """An objective with its loss and predictor gradient written in NumPy, as functions of Q."""
    rng = np.random.default_rng(d + r)
    U_star = rng.normal(size=(d, r))
    Q_star = U_star @ U_star.T
    if kind == "population":

        def risk(Q: np.ndarray) -> np.ndarray:
            return ((Q - Q_star) ** 2).sum() + np.trace(Q - Q_star) ** 2 / 2

        return (
            PopulationRisk(U_star),
            risk,
            lambda Q: 2 * (Q - Q_star) + np.trace(Q - Q_star) * np.eye(d),
        )
    X = rng.normal(size=(n, d))
    y = np.einsum("ni,ij,nj->n", X, Q_star, X)

    def residual(Q: np.ndarray) -> np.ndarray:
        return np.einsum("ni,ij,nj->n", X, Q, X) - y

    return (
        LeastSquares(RankOne(X), y),
        lambda Q: (residual(Q) ** 2).sum() / (2 * n),
        lambda Q: (X.T * residual(Q)) @ X / n,
    )


def start(d: int = 5, r: int = 2) -> np.ndarray:
    return 0.5 * np.random.default_rng(17).normal(size=(d, r))


def loop(G: Gradient, U: np.ndarray, step: float) -> Iterator[np.ndarray]:
    """U_0, U_1, ... of eq:factor-gradient-descent."""
    while True:
        yield U
        U = U - step * 2 * G(U @ U.T) @ U


def linear(C: np.ndarray) -> SmoothObjective:
    """`ell(Q) = <C, Q>`: every step multiplies U by the same `I - 2 eta C`."""
    matrix = torch.from_numpy(C)
    return SmoothObjective(lambda Q: (matrix * Q).sum((-2, -1)), C.shape[0])


KINDS = ["least squares", "population"]


# The iteration.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "r"), [(1, 1), (5, 2), (4, 4)])
def test_equals_a_plain_loop(kind: str, d: int, r: int) -> None:
    objective, loss, G = problem(kind, d, r)
    U0, step, k = start(d, r), 0.003, 50
    path = gradient_descent(objective, U0, step=step, max_steps=k, save_factors=True)
    expected = np.stack([U for U, _ in zip(loop(G, U0, step), range(k + 1), strict=False)])
    # A rounding of size eps max|U| a step, which the contraction does not amplify.
    assert np.abs(path.factors - expected).max() < 60 * k * EPS * np.abs(expected).max()
    losses = np.array([loss(U @ U.T) for U in expected])
    assert np.abs(path.loss - losses).max() < 60 * k * EPS * losses[0]
    slopes = [np.linalg.norm(2 * G(U @ U.T) @ U) for U in expected]
    assert np.abs(path.gradient_norm - slopes).max() < 60 * k * EPS * slopes[0]
    np.testing.assert_array_equal(path.times, np.arange(k + 1) * step)
    np.testing.assert_array_equal(path.U, path.factors[-1])
    assert path.steps == k
    assert path.status is Status.STEPS_EXHAUSTED
    assert path.dissipated is None


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_predictor_recursion(kind: str) -> None:
    # prop:exact-discrete-predictor-dynamics, by congruences of Q that never see U.
    objective, _, G = problem(kind)
    U0, step, k = start(), 0.003, 40
    path = gradient_descent(
        objective,
        U0,
        step=step,
        max_steps=k,
        observables={"Q": lambda U: U @ U.swapaxes(-1, -2)},
    )
    ours = by_hand = U0 @ U0.T
    for recorded in path.observables["Q"][1:]:
        ours = predictor_step(ours, G(ours), step)
        M = np.eye(5) - 2 * step * G(by_hand)
        by_hand = M @ by_hand @ M
        assert np.abs(recorded - by_hand).max() < 60 * k * EPS * np.abs(by_hand).max()
        assert np.abs(recorded - ours).max() < 60 * k * EPS * np.abs(by_hand).max()


def test_representatives_of_one_class_give_one_predictor() -> None:
    objective, _, _ = problem("least squares", 5, 3)
    U0 = start(5, 3)
    R = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    first, second = (gradient_descent(objective, U, step=0.003, max_steps=50) for U in (U0, U0 @ R))
    error = np.abs(first.U @ first.U.T - second.U @ second.U.T).max()
    assert error < 60 * 50 * EPS * np.abs(first.U).max() ** 2


def test_each_trajectory_has_its_own_step() -> None:
    objective, _, _ = problem("least squares")
    U0 = np.stack([start(), 0.5 * start(), -start()])
    steps = np.array([[0.001], [0.004]])
    path = gradient_descent(objective, U0, step=steps, max_steps=20)
    assert path.U.shape == (2, 3, 5, 2)
    assert path.times.shape == (21, 2, 3)
    for i, j in np.ndindex(2, 3):
        single = gradient_descent(objective, U0[j], step=float(steps[i, 0]), max_steps=20)
        np.testing.assert_allclose(path.U[i, j], single.U, atol=1e-13)
        np.testing.assert_allclose(path.loss[:, i, j], single.loss, rtol=1e-12)
        np.testing.assert_array_equal(path.times[:, i, j], np.arange(21) * steps[i, 0])
    one_start = gradient_descent(objective, U0[0], step=[0.001, 0.004], max_steps=20)
    np.testing.assert_allclose(one_start.U, path.U[:, 0], atol=1e-13)


def test_result_owns_its_memory() -> None:
    # Writing to the returned factor must reach neither the caller's array nor its neighbours.
    U0 = np.ones((3, 1))
    path = gradient_descent(
        PopulationRisk(np.eye(3, 1)), U0, step=[0.1, 0.2], max_steps=5, loss_tolerance=1e3
    )
    np.testing.assert_array_equal(path.steps, [0, 0])
    path.U[0] = 7.0
    np.testing.assert_array_equal(U0, 1.0)
    np.testing.assert_array_equal(path.U[1], 1.0)


# Divergence.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [0.15, 0.2, 1.0, 50.0])
def test_divergence_is_detected_where_it_happens(kind: str, step: float) -> None:
    for bound in (1e2, 1e6, 1e40):
        objective, loss, G = problem(kind)
        U0 = start()
        reference = max(loss(U0 @ U0.T), loss(np.zeros((5, 5))))
        first = None
        for k, U in zip(range(200), loop(G, U0, step), strict=False):
            if not loss(U @ U.T) <= bound * reference:
                first = k
                break
        path = gradient_descent(objective, U0, step=step, max_steps=199, divergence=bound)
        assert first is not None, "the case is meant to diverge"
        assert path.status is Status.DIVERGED
        assert path.steps == first
        assert path.loss.shape == (first + 1,)
        assert (path.loss[:-1] <= bound * reference).all()


@pytest.mark.parametrize("kind", KINDS)
def test_overflow_is_divergence(kind: str) -> None:
    objective, _, _ = problem(kind)
    # The bound itself overflows, so only a loss that is not finite can end the run.
    path = gradient_descent(objective, start(), step=1.0, max_steps=50, divergence=1e308)
    assert path.status is Status.DIVERGED
    assert not np.isfinite(path.loss[-1])
    assert np.isfinite(path.loss[:-1]).all()


def test_divergence_from_a_start_with_tiny_loss() -> None:
    # Near the solution L(U0) is no scale to compare with; L(0) is.
    path = gradient_descent(
        PopulationRisk(np.ones((1, 1))), np.array([[1 + 1e-9]]), step=0.18, max_steps=300
    )
    # 0.18 > 2/12: unstable, but the map u -> u - 6 eta u (u^2 - 1) has bounded orbits there.
    assert path.status is Status.STEPS_EXHAUSTED
    assert path.loss[-1] > 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wild", [1.0, 1e100, 1e200, 1e308])
def test_a_diverging_trajectory_does_not_disturb_its_batch(kind: str, wild: float) -> None:
    objective, _, _ = problem(kind)
    path = gradient_descent(objective, start(), step=[wild, 0.001], max_steps=30)
    alone = gradient_descent(objective, start(), step=0.001, max_steps=30)
    assert path.status == [Status.DIVERGED, Status.STEPS_EXHAUSTED]
    np.testing.assert_allclose(path.U[1], alone.U, atol=1e-13)
    np.testing.assert_allclose(path.loss[:, 1], alone.loss, rtol=1e-12)
    # The first stays where it was when it ended.
    end = int(path.steps[0])
    assert (path.times[end:, 0] == path.times[end, 0]).all()


# Rank.


def test_rank_loss_in_one_step_of_exact_arithmetic() -> None:
    # x = 1, y = 0: G = u^2 = 1 and step = 1/(2G), so that u - step * 2 G u = 0.
    objective = LeastSquares(RankOne(np.ones((1, 1))), np.zeros(1))
    path = gradient_descent(objective, np.ones((1, 1)), step=0.5, max_steps=10)
    assert path.status is Status.RANK_LOST
    assert path.steps == 1
    assert path.U[0, 0] == 0.0


def test_rank_loss_at_the_second_step_of_exact_arithmetic() -> None:
    # G(q) = 3q - 19 and step 1/16: u = 1 -> 1 + 16/8 = 3 -> 3 - 3 * 8/8 = 0, all exact.
    objective = SmoothObjective(lambda Q: 1.5 * Q[..., 0, 0].square() - 19 * Q[..., 0, 0] + 64, 1)
    U0, steps = np.array([1.0, 1.0, -1.0]).reshape(3, 1, 1), [1 / 16, 1 / 256, 1 / 16]
    path = gradient_descent(objective, U0, step=steps, max_steps=10, save_factors=True)
    np.testing.assert_array_equal(path.factors[:3, 0, 0, 0], [1.0, 3.0, 0.0])
    assert path.status == [Status.RANK_LOST, Status.STEPS_EXHAUSTED, Status.RANK_LOST]
    np.testing.assert_array_equal(path.steps, [2, 10, 2])


@pytest.mark.parametrize(("d", "r"), [(3, 2), (2, 2), (30, 4), (6, 6)])
def test_rank_loss_through_the_exact_kernel_condition(d: int, r: int) -> None:
    # I - 2 eta G has a kernel inside range(U), hidden by a rotation and a change of basis.
    for seed, scale in product(range(5), [1.0, 1e-8, 1e8]):
        rng = np.random.default_rng(seed)
        O = np.linalg.qr(rng.normal(size=(d, d)))[0]
        g = np.concatenate([[1.0], rng.uniform(-0.9, 0.9, d - 1)])
        C = (O * g) @ O.T
        C = (C + C.T) / 2
        U0 = scale * O[:, :r] @ rng.normal(size=(r, r))
        lost = gradient_descent(linear(C), U0, step=0.5, max_steps=3)
        assert lost.status is Status.RANK_LOST
        assert lost.steps == 1
        # The same kernel outside range(U) does no harm (eq:exact-rank-preservation-condition).
        if r < d:
            V0 = scale * O[:, d - r :] @ rng.normal(size=(r, r))
            kept = gradient_descent(linear(C), V0, step=0.5, max_steps=3)
            assert kept.status is Status.STEPS_EXHAUSTED


@pytest.mark.parametrize("gap", [1e-3, 1e-7, 1e-10, 1e-13])
def test_poor_conditioning_is_not_rank_loss(gap: float) -> None:
    # One step shrinks a singular value to `gap` of the other; the rank is still two.
    rng = np.random.default_rng(2)
    O = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    C = (O * np.array([1 - gap, 0.0, 0.3])) @ O.T
    path = gradient_descent(linear((C + C.T) / 2), O[:, :2], step=0.5, max_steps=1)
    assert path.status is Status.STEPS_EXHAUSTED
    s = np.linalg.svd(path.U, compute_uv=False)
    assert 0.5 * gap < s[1] / s[0] < 2 * gap


@pytest.mark.parametrize("ratio", [1e-6, 1e-12, 1e-14])
def test_ill_conditioned_start_runs(ratio: float) -> None:
    U0 = np.array([[1.0, 0.0], [0.0, ratio], [0.0, 0.0]])
    path = gradient_descent(PopulationRisk(np.eye(3, 2)), U0, step=0.01, max_steps=5)
    assert path.status is Status.STEPS_EXHAUSTED


def test_rank_loss_in_single_precision() -> None:
    C = np.diag([1.0, 0.25, 0.0]).astype(np.float32)
    U0 = np.array([[1.0, 1.0], [1.0, 2.0], [0.0, 0.0]], dtype=np.float32)
    path = gradient_descent(linear(C), U0, step=0.5, max_steps=3)
    assert path.status is Status.RANK_LOST
    assert path.U.dtype == np.float32


# Near the solution.


def hessian_values(U: np.ndarray, T: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Nonzero eigenvalues of Delta -> 2 T(Delta U' + U Delta') U, by unit vectors."""
    d, r = U.shape
    columns = []
    for i in range(d * r):
        Delta = np.zeros(d * r)
        Delta[i] = 1
        Delta = Delta.reshape(d, r)
        columns.append((2 * T(Delta @ U.T + U @ Delta.T) @ U).ravel())
    values = np.linalg.eigvalsh(np.array(columns))
    return values[r * (r - 1) // 2 :]  # ascending; the gauge directions have value zero


def local_problem(kind: str) -> tuple[Objective, np.ndarray, np.ndarray]:
    """An objective, its solution and the effective spectrum there."""
    rng = np.random.default_rng(4)
    d, r, n = 4, 2, 400
    U = np.linalg.qr(rng.normal(size=(d, r)))[0] * np.array([1.0, 0.7])
    if kind == "population":
        values = hessian_values(U, lambda H: 2 * H + np.trace(H) * np.eye(d))
        return PopulationRisk(U), U, values
    X = rng.normal(size=(n, d))
    y = ((X @ U) ** 2).sum(-1)
    values = hessian_values(U, lambda H: (X.T * np.einsum("ni,ij,nj->n", X, H, X)) @ X / n)
    return LeastSquares(RankOne(X), y), U, values


def distance(U: np.ndarray, V: np.ndarray) -> float:
    return float(np.linalg.norm(U - V @ orthogonal_procrustes(V, U)[0]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fraction", [0.2, 0.97])
def test_local_rate_is_that_of_the_effective_spectrum(kind: str, fraction: float) -> None:
    objective, U_star, values = local_problem(kind)
    step = fraction * 2 / values[-1]
    expected = np.abs(1 - step * values).max()
    nudge = 1e-3 * np.random.default_rng(0).normal(size=U_star.shape)
    # Until the distance has fallen to 1e-10: by then the other modes and the quadratic terms
    # are gone, and rounding (1e-16) is not yet seen.
    k = int(np.log(1e-7) / np.log(expected))
    path = gradient_descent(objective, U_star + nudge, step=step, max_steps=k, save_factors=True)
    late = [distance(U, U_star) for U in path.factors[[-11, -1]]]
    assert 1e-13 < late[1] < 1e-8
    # 1e-3: the second slowest mode is still there with a relative weight of this order.
    np.testing.assert_allclose((late[1] / late[0]) ** 0.1, expected, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_stability_limit(kind: str) -> None:
    objective, U_star, values = local_problem(kind)
    U0 = U_star + 1e-3 * np.random.default_rng(0).normal(size=U_star.shape)
    limit = 2 / values[-1]
    path = gradient_descent(
        objective, U0, step=[0.98 * limit, 1.02 * limit], max_steps=800, loss_tolerance=1e-20
    )
    assert path.status[0] is Status.LOSS_REACHED
    assert path.status[1] is not Status.LOSS_REACHED
    assert path.loss[-1, 1] > path.loss[0, 1]  # it moved away from the solution


# Where it ends and what it records.


def test_stationary_start() -> None:
    objective = LeastSquares(RankOne(np.eye(2)), np.array([1.0, 4.0]))
    U0 = np.array([[1.0], [2.0]])
    path = gradient_descent(objective, U0, step=0.1, max_steps=7)
    np.testing.assert_array_equal(path.U, U0)
    np.testing.assert_array_equal(path.loss, np.zeros(8))
    for rule, status in (
        ("loss_tolerance", Status.LOSS_REACHED),
        ("gradient_tolerance", Status.GRADIENT_REACHED),
    ):
        at_once = gradient_descent(objective, U0, step=0.1, max_steps=7, **{rule: 0.0})
        assert at_once.status is status
        assert at_once.steps == 0
        assert at_once.times.shape == (1,)


def test_saddle_is_stationary_with_positive_loss() -> None:
    # Q* = e1 e1', U = e2 / sqrt(3): G e2 = (3/3 - 1) e2 = 0.
    path = gradient_descent(
        PopulationRisk(np.eye(2, 1)),
        np.array([[0.0], [1 / np.sqrt(3)]]),
        step=0.01,
        max_steps=10,
        gradient_tolerance=1e-14,
    )
    assert path.status is Status.GRADIENT_REACHED
    assert path.steps == 0
    # ||E||^2 + tr(E)^2 / 2 = 1 + 1/9 + (4/9)/2
    np.testing.assert_allclose(path.loss, [4 / 3], rtol=4 * EPS)


@pytest.mark.parametrize(
    ("rule", "status", "measured"),
    [
        ("loss_tolerance", Status.LOSS_REACHED, "loss"),
        ("gradient_tolerance", Status.GRADIENT_REACHED, "gradient_norm"),
    ],
)
def test_tolerances_stop_at_the_first_step_that_meets_them(
    rule: str, status: Status, measured: str
) -> None:
    objective, _, _ = problem("population")
    options = {"step": 0.01, "max_steps": 1000}
    full = gradient_descent(objective, start(), **options)
    first = int(np.argmax(getattr(full, measured) <= 1e-2))
    for every in (1, 7):
        path = gradient_descent(
            objective, start(), record_every=every, save_factors=True, **options, **{rule: 1e-2}
        )
        assert path.status is status
        assert path.steps == first > 0
        rows = np.unique([*range(0, first, every), first])  # the first and last are always there
        np.testing.assert_array_equal(path.times, rows * 0.01)
        np.testing.assert_allclose(path.loss, full.loss[rows], rtol=1e-12)
        np.testing.assert_array_equal(path.factors[-1], path.U)


def test_predicate_and_frozen_rows() -> None:
    objective, _, _ = problem("least squares")
    U0 = np.stack([start(), -start()])
    path = gradient_descent(
        objective,
        U0,
        step=[0.001, 0.003],
        max_steps=12,
        stop=lambda U, t: t >= np.array([1.0, 0.012]),
        save_factors=True,
        observables={"corner": lambda U: U[..., 0, 0]},
    )
    assert path.status == [Status.STEPS_EXHAUSTED, Status.STOPPED]
    np.testing.assert_array_equal(path.steps, [12, 4])
    assert (path.factors[4:, 1] == path.U[1]).all()
    assert (path.loss[4:, 1] == path.loss[4, 1]).all()
    assert (path.times[4:, 1] == path.times[4, 1]).all()
    assert (np.diff(path.times[:, 0]) > 0).all()
    np.testing.assert_array_equal(path.observables["corner"], path.factors[..., 0, 0])


def test_progress_counts_steps() -> None:
    heard: list[Progress] = []
    objective, _, _ = problem("population")
    path = gradient_descent(
        objective, start(), step=0.001, max_steps=25, record_every=10, progress=heard.append
    )
    assert [p.time for p in heard] == [0, 10, 20, 25]
    assert {p.end for p in heard} == {25}
    assert [p.loss for p in heard] == list(path.loss)


def test_loss_reaches_the_rounding_floor() -> None:
    # The population loss keeps relative accuracy, so descent converges to eps squared.
    path = gradient_descent(
        PopulationRisk(np.eye(3, 1)),
        np.full((3, 1), 0.5),
        step=0.05,
        max_steps=2000,
        loss_tolerance=1e-30,
    )
    assert path.status is Status.LOSS_REACHED


def test_nothing_is_printed(capsys: pytest.CaptureFixture) -> None:
    objective, _, _ = problem("least squares")
    for step in (0.001, 1.0):
        gradient_descent(objective, start(), step=step, max_steps=20, progress=lambda p: None)
    assert capsys.readouterr() == ("", "")


def test_empty_batch() -> None:
    objective, _, _ = problem("least squares")
    path = gradient_descent(objective, np.ones((0, 5, 2)), step=0.1, max_steps=3)
    assert path.status == []
    assert path.U.shape == (0, 5, 2)
    assert path.loss.shape == (1, 0)


def test_torch_input_float32_and_no_graph() -> None:
    objective, _, _ = problem("population")
    single = PopulationRisk(objective.U_star.float())
    U0 = torch.from_numpy(start()).float().requires_grad_(True)
    step = torch.tensor(0.003, requires_grad=True)
    path = gradient_descent(single, U0, step=step, max_steps=20, save_factors=True)
    expected = gradient_descent(objective, start(), step=float(step.detach()), max_steps=20)
    for value in (path.U, path.loss, path.times, path.factors, path.gradient_norm):
        assert value.dtype == torch.float32
        assert not value.requires_grad
    assert path.steps.dtype == torch.int64
    scale = np.abs(expected.U).max()
    assert np.abs(path.U.numpy() - expected.U).max() < 60 * np.finfo(np.float32).eps * scale
    assert U0.grad is None
