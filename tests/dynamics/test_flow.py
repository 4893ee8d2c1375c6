"""Gradient flow against SciPy's integrators, closed forms and the identities of the paper."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import simpson, solve_ivp
from scipy.linalg import expm

from posquad import (
    Dense,
    LeastSquares,
    PopulationRisk,
    RankOne,
    SmoothObjective,
    gradient_descent,
    gradient_flow,
)
from posquad.core.errors import DomainError, ShapeError
from posquad.core.linalg import norm
from posquad.core.progress import Progress
from posquad.core.status import Status
from posquad.dynamics.state import start

EPS = np.finfo(float).eps


class Problem(NamedTuple):
    objective: object
    G: Callable[[np.ndarray], np.ndarray]  # the predictor gradient, written in NumPy
    U0: np.ndarray


def problem(kind: str, d: int = 5, r: int = 2, n: int = 40, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    U_star, U0 = rng.normal(size=(d, r)), 0.5 * rng.normal(size=(d, r))
    Q_star = U_star @ U_star.T
    if kind == "least squares":
        X = rng.normal(size=(n, d))
        y = np.einsum("ni,ij,nj->n", X, Q_star, X)
        return Problem(
            LeastSquares(RankOne(X), y),
            lambda Q: (X.T * (np.einsum("ni,ij,nj->n", X, Q, X) - y)) @ X / n,
            U0,
        )
    if kind == "population":
        return Problem(
            PopulationRisk(U_star),
            lambda Q: 2 * (Q - Q_star) + np.trace(Q - Q_star) * np.eye(d),
            U0,
        )
    target = torch.from_numpy(Q_star)
    return Problem(  # a smooth robust loss, not quadratic in Q
        SmoothObjective(
            lambda Q: (1 + (Q - target).square()).sqrt().sum((-2, -1)) - d * d,
            d,
        ),
        lambda Q: (Q - Q_star) / np.sqrt(1 + (Q - Q_star) ** 2),
        U0,
    )


def linear(C: np.ndarray) -> SmoothObjective:
    """`ell(Q) = <C, Q>`, for which the flow is `exp(-2Ct) U0` exactly."""
    matrix = torch.from_numpy(C)
    return SmoothObjective(lambda Q: (matrix.to(Q) * Q).sum((-2, -1)), C.shape[0])


def logistic(u0: float, t: np.ndarray, target: float = 1.0, r: int = 1) -> np.ndarray:
    """|u(t)| for `U = u W`, `Q* = target WW'`, W orthonormal, under the population risk.

    `G W = (2 + r)(u^2 - target) W`, so that `q = u^2` solves `q' = -4 (2+r) q (q - target)`.
    """
    decay = np.exp(-4 * (2 + r) * target * np.asarray(t))
    return np.sqrt(target / (1 + (target / u0**2 - 1) * decay))


SCALAR = PopulationRisk(np.ones((1, 1)))
KINDS = ["least squares", "population", "smooth"]


def scipy_flow(field: Callable, start: np.ndarray, times: np.ndarray) -> np.ndarray:
    solution = solve_ivp(
        lambda t, v: field(v.reshape(start.shape)).ravel(),
        (0.0, times[-1]),
        start.ravel(),
        method="DOP853",
        rtol=1e-12,
        atol=1e-14,
        t_eval=times,
    )
    return solution.y.T.reshape(-1, *start.shape)


# Accuracy.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "r"), [(1, 1), (5, 2), (4, 4)])
def test_factor_flow_matches_scipy(kind: str, d: int, r: int) -> None:
    objective, G, U0 = problem(kind, d, r)
    times = np.linspace(0.0, 0.5, 6)
    flow = gradient_flow(objective, U0, t_final=0.5, times=times, save_factors=True)
    expected = scipy_flow(lambda U: -2 * G(U @ U.T) @ U, U0, times)
    # Local errors are rtol ||U|| = 1e-9 ||U||; the flow contracts, so few of them add up.
    assert np.abs(flow.factors - expected).max() < 1e-8 * np.linalg.norm(expected[-1])
    assert flow.status is Status.TIME_REACHED


@pytest.mark.parametrize("kind", KINDS)
def test_predictor_flow_matches_scipy(kind: str) -> None:
    # dQ/dt = -2 (GQ + QG), eq:predictor-gradient-flow, integrated without ever seeing U.
    objective, G, U0 = problem(kind)
    times = np.linspace(0.0, 0.5, 6)
    flow = gradient_flow(
        objective,
        U0,
        t_final=0.5,
        times=times,
        rtol=1e-11,
        observables={"Q": lambda U: U @ U.swapaxes(-1, -2)},
    )
    expected = scipy_flow(lambda Q: -2 * (G(Q) @ Q + Q @ G(Q)), U0 @ U0.T, times)
    assert np.abs(flow.observables["Q"] - expected).max() < 1e-10 * np.linalg.norm(expected[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_rk4_has_order_four(kind: str) -> None:
    objective, G, U0 = problem(kind)
    exact = scipy_flow(lambda U: -2 * G(U @ U.T) @ U, U0, np.array([0.0, 0.4]))[-1]
    errors, defects = [], []
    for k in (50, 100, 200, 400):
        flow = gradient_flow(objective, U0, t_final=0.4, times=[], method="rk4", step=0.4 / k)
        assert flow.steps == k
        errors.append(np.abs(flow.U - exact).max())
        defects.append(abs(flow.energy_defect[-1]))
    for sequence in (errors, defects):
        orders = np.log2(np.divide(sequence[:-1], sequence[1:]))
        # 4 in the limit; the next term of the expansion is still seen at these steps.
        assert np.abs(orders[-1] - 4) < 0.25, orders


def test_adaptive_error_follows_the_tolerance() -> None:
    objective, G, U0 = problem("least squares")
    exact = scipy_flow(lambda U: -2 * G(U @ U.T) @ U, U0, np.array([0.0, 0.5]))[-1]
    tolerances = (1e-3, 1e-5, 1e-7, 1e-9, 1e-11)
    flows = [
        gradient_flow(objective, U0, t_final=0.5, times=[], rtol=rtol, atol=rtol * 1e-3)
        for rtol in tolerances
    ]
    errors = np.array([np.linalg.norm(flow.U - exact) for flow in flows])
    defects = np.array([abs(flow.energy_defect[-1]) for flow in flows])
    # Tolerance proportionality: at least a factor 10 for each factor 100 of rtol.
    assert (errors[1:] < errors[:-1] / 10).all()
    assert (defects[1:] < defects[:-1] / 10).all()
    assert (errors < 10 * np.array(tolerances) * np.linalg.norm(exact)).all()
    steps = np.array([int(flow.steps) for flow in flows])
    # A fifth-order method pays 100^(1/5) = 2.5 times the steps for two digits, asymptotically.
    assert 2.2 < steps[-1] / steps[-2] < 2.8


@pytest.mark.parametrize(("method", "step"), [("adaptive", None), ("rk4", 2e-3)])
@pytest.mark.parametrize(("u0", "r"), [(0.01, 1), (0.7, 2), (3.0, 2)])
def test_isotropic_population_flow_is_logistic(
    method: str, step: float | None, u0: float, r: int
) -> None:
    W = np.linalg.qr(np.random.default_rng(3).normal(size=(4, r)))[0]
    target = 0.8
    times = np.linspace(0, 1.0, 5)
    flow = gradient_flow(
        PopulationRisk(math.sqrt(target) * W),
        u0 * W,
        t_final=1.0,
        times=times,
        method=method,
        step=step,
        save_factors=True,
    )
    expected = logistic(u0, times, target, r)[:, None, None] * W
    # rk4: (h lambda)^5 / 120 with lambda = 4(2+r) u0^2 up to 144; adaptive: rtol, grown where
    # q is small.
    tolerance = 2e-5 if method == "rk4" else 1e-8
    assert np.abs(flow.factors - expected).max() < tolerance
    q = (expected[:, 0, 0] / W[0, 0]) ** 2
    loss = r * (1 + r / 2) * (q - target) ** 2  # ||E||_F^2 + tr(E)^2 / 2
    np.testing.assert_allclose(flow.loss, loss, atol=100 * tolerance)


def test_linear_flow_is_a_matrix_exponential() -> None:
    rng = np.random.default_rng(0)
    C = rng.normal(size=(6, 6))
    C = C @ C.T / 6
    U0 = rng.normal(size=(6, 3))
    times = np.linspace(0, 2, 5)
    flow = gradient_flow(linear(C), U0, t_final=2.0, times=times, save_factors=True)
    expected = np.stack([expm(-2 * t * C) @ U0 for t in times])
    assert np.abs(flow.factors - expected).max() < 1e-8 * np.linalg.norm(U0)
    np.testing.assert_allclose(
        flow.gradient_norm, np.linalg.norm(2 * C @ expected, axis=(-2, -1)), rtol=1e-6
    )


def test_stiff_flow_stays_on_the_slow_mode() -> None:
    # Rates 1e-2 and 2e3 in one flow: steps are bounded by stability, the slow mode is exact.
    flow = gradient_flow(
        linear(np.diag([5e-3, 1e3])), np.array([[1.0], [1.0]]), t_final=0.8, times=[0.5]
    )
    assert flow.status is Status.TIME_REACHED
    assert abs(flow.U[0, 0] - math.exp(-8e-3)) < 1e-8
    assert abs(flow.U[1, 0]) < 1e-8


def test_long_flow_ends_at_the_solution() -> None:
    objective, _, U0 = problem("population", d=4, r=2)
    flow = gradient_flow(objective, U0, t_final=30.0, times=[10.0])
    target = objective.U_star.numpy()
    # Documented floor of the adaptive method: rtol ||U||.
    assert np.abs(flow.U @ flow.U.T - target @ target.T).max() < 1e-8
    assert flow.loss[-1] < 1e-16


@pytest.mark.parametrize(("u0", "t_final"), [(1e9, 0.1), (1e-9, 4.0)])
def test_initial_layer_much_shorter_than_the_final_time(u0: float, t_final: float) -> None:
    # From u0 = 1e9 the flow first moves on the scale 1e-18, which is no underflow at time zero.
    flow = gradient_flow(SCALAR, np.array([[u0]]), t_final=t_final, times=[])
    assert flow.status is Status.TIME_REACHED
    np.testing.assert_allclose(flow.U[0, 0], logistic(u0, t_final), rtol=1e-6)


@pytest.mark.parametrize(("dtype", "t_final"), [(torch.float32, 1e5), (torch.float64, 1e14)])
def test_generous_final_time_is_not_an_underflow(dtype: torch.dtype, t_final: float) -> None:
    # The natural way to say "until the gradient is small".
    objective = PopulationRisk(torch.eye(3, 1, dtype=dtype))
    U0 = torch.full((3, 1), 0.5, dtype=dtype)
    flow = gradient_flow(objective, U0, t_final=t_final, gradient_tolerance=1e-3)
    assert flow.status is Status.GRADIENT_REACHED


# Identities.


@pytest.mark.parametrize("kind", KINDS)
def test_energy_identity(kind: str) -> None:
    objective, _, U0 = problem(kind)
    flow = gradient_flow(objective, U0, t_final=1.0, rtol=1e-11)
    # Same order as the flow itself, times the squared gradient (a few hundred here).
    assert np.abs(flow.energy_defect).max() < 1e-9 * flow.loss[0]
    assert (np.diff(flow.loss) <= 1e-12 * flow.loss[0]).all()
    assert flow.energy_defect[0] == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("method", "step"), [("adaptive", None), ("rk4", 0.005)])
def test_representatives_of_one_class_give_one_predictor(
    kind: str, method: str, step: float | None
) -> None:
    objective, _, U0 = problem(kind, d=5, r=3)
    R = np.linalg.qr(np.random.default_rng(5).normal(size=(3, 3)))[0]
    first, second = (
        gradient_flow(
            objective, U, t_final=0.3, times=[0.1, 0.2], method=method, step=step, save_factors=True
        )
        for U in (U0, U0 @ R)
    )
    Q1, Q2 = (flow.factors @ flow.factors.swapaxes(-1, -2) for flow in (first, second))
    assert first.steps == second.steps  # the step control sees the class only
    # Rounding of about a hundred steps of six stages, in a contracting flow.
    assert np.abs(Q1 - Q2).max() < 100 * EPS * np.abs(Q1).max()
    assert np.abs(first.U @ R - second.U).max() < 100 * EPS * np.abs(U0).max() * 10


@pytest.mark.parametrize("kind", KINDS)
def test_flow_is_horizontal_and_keeps_rank(kind: str) -> None:
    # Liouville's formula eq:fundamental-matrix-determinant with r = d: log|det U| falls by
    # twice the integral of tr G.
    objective, G, U0 = problem(kind, d=3, r=3)
    times = np.linspace(0, 0.4, 401)
    flow = gradient_flow(objective, U0, t_final=0.4, times=times, save_factors=True)
    traces = [np.trace(G(U @ U.T)) for U in flow.factors]
    change = np.linalg.slogdet(flow.factors[-1])[1] - np.linalg.slogdet(U0)[1]
    np.testing.assert_allclose(change, -2 * simpson(traces, x=times), rtol=1e-6)
    for U in flow.factors[::100]:
        skew = U.T @ (G(U @ U.T) @ U)
        assert np.abs(skew - skew.T).max() < 100 * EPS * np.abs(skew).max()


@pytest.mark.parametrize("ratio", [1e-3, 1e-8, 1e-13])
def test_poor_conditioning_is_not_rank_loss(ratio: float) -> None:
    U0 = np.array([[1.0, 0.0], [0.0, ratio], [0.0, 0.0]])
    flow = gradient_flow(PopulationRisk(np.eye(3, 2)), U0, t_final=0.1, times=[])
    assert flow.status is Status.TIME_REACHED
    assert np.linalg.matrix_rank(flow.U, tol=ratio / 2) == 2


# Where a trajectory ends.


def test_each_trajectory_ends_for_its_own_reason() -> None:
    U0 = np.array([1.0, 1e-30, 2.0, 0.1]).reshape(2, 2, 1, 1)
    flow = gradient_flow(
        SCALAR,
        U0,
        t_final=0.2,
        times=[0.05, 0.1],
        loss_tolerance=1e-12,
        gradient_tolerance=1e-20,
        stop=lambda U, t: (U[..., 0, 0] > 1) & (U[..., 0, 0] < 1.5),
        save_factors=True,
    )
    assert flow.status == [
        [Status.LOSS_REACHED, Status.GRADIENT_REACHED],
        [Status.STOPPED, Status.TIME_REACHED],
    ]
    np.testing.assert_array_equal(flow.times[:, 0], 0)
    np.testing.assert_array_equal(flow.times[:, 1, 1], [0, 0.05, 0.1, 0.2])
    np.testing.assert_array_equal(flow.steps[0], 0)
    # The third trajectory stopped before 0.05, when u first fell below 1.5, and stays there.
    stopped = flow.times[1:, 1, 0]
    assert stopped[0] < 0.05
    assert (stopped == stopped[0]).all()
    assert (flow.factors[1:, 1, 0] == flow.U[1, 0]).all()
    assert flow.loss[1, 1, 0] == flow.loss[-1, 1, 0]
    np.testing.assert_allclose(flow.U[1, 0, 0, 0], logistic(2.0, stopped[0]), rtol=1e-8)


@pytest.mark.parametrize(
    ("rule", "status", "measured"),
    [
        ("loss_tolerance", Status.LOSS_REACHED, "loss"),
        ("gradient_tolerance", Status.GRADIENT_REACHED, "gradient_norm"),
    ],
)
@pytest.mark.parametrize(("method", "step"), [("adaptive", None), ("rk4", 0.01)])
def test_tolerances_stop_at_once(
    rule: str, status: Status, measured: str, method: str, step: float | None
) -> None:
    objective, _, U0 = problem("population")
    flow = gradient_flow(
        objective, U0, t_final=50.0, method=method, step=step, **{rule: 1e-6}, times=[]
    )
    values = getattr(flow, measured)
    assert flow.status is status
    assert values.shape == (2,)
    assert flow.times[-1] < 50
    # One step earlier it had not been reached: a step changes the values by a bounded factor.
    assert 1e-9 < values[-1] <= 1e-6


def test_predicate_sees_factor_and_time_in_the_callers_kind() -> None:
    seen = []

    def stop(U: object, t: object) -> bool:
        seen.append((type(U), type(t)))
        return bool(t > 0.1)

    objective, _, U0 = problem("population")
    for first in (U0, torch.from_numpy(U0)):
        flow = gradient_flow(objective, first, t_final=1.0, times=[], stop=stop)
        assert flow.status is Status.STOPPED
        assert 0.1 < float(flow.times[-1]) < 1.0
        assert set(seen) == {(type(first), type(first))}
        seen.clear()


@pytest.mark.parametrize(("d", "r"), [(1, 1), (4, 2)])
def test_start_at_the_solution_stays_there(d: int, r: int) -> None:
    U_star = np.random.default_rng(1).normal(size=(d, r))
    flow = gradient_flow(PopulationRisk(U_star), U_star, t_final=2.0, times=[])
    assert flow.status is Status.TIME_REACHED
    assert np.abs(flow.U - U_star).max() < 1e-9 * np.abs(U_star).max()
    assert flow.loss.max() < 1e-17
    at_once = gradient_flow(PopulationRisk(U_star), U_star, t_final=2.0, loss_tolerance=1e-28)
    assert at_once.status is Status.LOSS_REACHED
    assert at_once.steps == 0
    assert at_once.times.shape == (1,)


def test_exactly_stationary_start() -> None:
    # Integers: the gradient is exactly zero and the first step has no scale of its own.
    objective = LeastSquares(RankOne(np.eye(2)), np.array([1.0, 4.0]))
    U0 = np.array([[1.0], [2.0]])
    flow = gradient_flow(objective, U0, t_final=3.0)
    np.testing.assert_array_equal(flow.U, U0)
    np.testing.assert_array_equal(flow.gradient_norm, 0)
    assert flow.status is Status.TIME_REACHED
    assert flow.times[-1] == 3.0


def test_step_limit() -> None:
    flow = gradient_flow(SCALAR, np.array([[0.1]]), t_final=1.0, times=[0.9], max_steps=20)
    assert flow.status is Status.STEPS_EXHAUSTED
    assert 0 < int(flow.steps) <= 20
    assert 0 < flow.times[-1] < 0.9
    np.testing.assert_allclose(flow.U[0, 0], logistic(0.1, flow.times[-1]), rtol=1e-8)


def test_step_limit_is_each_trajectorys_own() -> None:
    # The first trajectory works early, the second late; alone each needs at most `enough`.
    U0, times = np.array([5.0, 1e-4]).reshape(2, 1, 1), np.arange(1, 15) / 10
    options = {"t_final": 2.0, "times": times, "rtol": 1e-6}  # few steps suffice to count them
    single = [gradient_flow(SCALAR, U, **options) for U in U0]
    enough = max(int(flow.steps) for flow in single) + 20
    alone = [gradient_flow(SCALAR, U, **options, max_steps=enough) for U in U0]
    assert [flow.status for flow in alone] == [Status.TIME_REACHED] * 2
    together = gradient_flow(SCALAR, U0, **options, max_steps=enough)
    assert together.status == [Status.TIME_REACHED] * 2


def test_blow_up_ends_in_step_underflow() -> None:
    # ell = -tr(Q)^2/2 in one dimension: q' = 4 q^2 from q = 1 has a pole at t = 1/4.
    objective = SmoothObjective(lambda Q: -Q[..., 0, 0].square() / 2, 1)
    flow = gradient_flow(objective, np.ones((1, 1)), t_final=1.0)
    assert flow.status is Status.STEP_UNDERFLOW
    assert abs(flow.times[-1] - 0.25) < 1e-9
    assert np.isfinite(flow.U).all()


@pytest.mark.parametrize("kind", ["least squares", "population"])
def test_too_large_a_fixed_step_diverges(kind: str) -> None:
    objective, _, U0 = problem(kind)
    flow = gradient_flow(objective, U0, t_final=100.0, times=[], method="rk4", step=5.0)
    assert flow.status is Status.DIVERGED
    assert flow.steps == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e3, 1e12, 1e60])
def test_a_diverging_trajectory_does_not_disturb_its_batch(kind: str, scale: float) -> None:
    objective, _, U0 = problem(kind)
    options = {"t_final": 0.1, "times": [0.05], "method": "rk4", "step": 0.01}
    flow = gradient_flow(objective, np.stack([scale * U0, U0]), **options)
    alone = gradient_flow(objective, U0, **options)
    assert flow.status[1] is Status.TIME_REACHED
    np.testing.assert_allclose(flow.U[1], alone.U, rtol=1e-12)
    if kind != "smooth":  # the gradient of the smooth one is bounded
        assert flow.status[0] is Status.DIVERGED


def test_objective_is_not_asked_for_points_off_the_trajectory() -> None:
    # tr(Q^-1) + log det Q, a Gaussian likelihood, exists on positive definite matrices only.
    objective = SmoothObjective(
        lambda Q: torch.linalg.inv(Q).diagonal(dim1=-2, dim2=-1).sum(-1) + torch.logdet(Q), 2
    )
    flow = gradient_flow(objective, np.diag([2.0, 0.5]), t_final=8.0, times=[])
    # q' = 4 (1/q - 1) from 4 and from 1/4, in the end at rate 4 to the minimizer Q = I.
    np.testing.assert_allclose(flow.U @ flow.U.T, np.eye(2), atol=1e-7)


# Units.


def in_units(kind: str, c: float) -> tuple[object, np.ndarray]:
    """The problem whose flow is c times that of `in_units(kind, 1)`, in the time t / c^2."""
    rng = np.random.default_rng(3)
    X, U_star, U0 = rng.normal(size=(12, 4)), rng.normal(size=(4, 2)), rng.normal(size=(4, 2))
    y = c * c * np.square(X @ U_star).sum(1)
    if kind == "population":
        return PopulationRisk(c * U_star), c * U0
    if kind == "dense":
        return LeastSquares(Dense(X[:, :, None] * X[:, None, :]), y), c * U0
    return LeastSquares(RankOne(X), y), c * U0


@pytest.mark.parametrize("power", [-220, 230])
@pytest.mark.parametrize("method", ["adaptive", "rk4"])
@pytest.mark.parametrize("kind", ["least squares", "dense", "population"])
def test_the_flow_does_not_depend_on_units(kind: str, method: str, power: int) -> None:
    # Powers of two scale without rounding, so that the runs agree in every digit.
    flows = []
    for c in (1.0, 2.0**power):
        objective, U0 = in_units(kind, c)
        options = {"step": 0.01 / c**2} if method == "rk4" else {}
        flows.append(
            gradient_flow(
                objective, U0, t_final=0.1 / c**2, times=[0.05 / c**2], method=method, **options
            )
        )
    one, other = flows
    c = 2.0**power
    assert other.status is one.status is Status.TIME_REACHED
    np.testing.assert_allclose(other.U / c, one.U, rtol=1e-13)
    np.testing.assert_allclose(other.times * c**2, one.times, rtol=1e-15)
    np.testing.assert_allclose(other.loss / c**4, one.loss, rtol=1e-12)
    np.testing.assert_allclose(other.gradient_norm / c**3, one.gradient_norm, rtol=1e-12)
    np.testing.assert_allclose(other.dissipated / c**4, one.dissipated, rtol=1e-12)


@pytest.mark.parametrize("kind", ["least squares", "dense", "population"])
@pytest.mark.parametrize("run", [gradient_flow, gradient_descent])
def test_units_that_leave_the_range_are_refused_before_work(
    run, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posquad.dynamics.gradient.start", None)  # nothing starts
    options = {"t_final": 1.0} if run is gradient_flow else {"step": 1.0, "max_steps": 5}
    for scale in (1e-150, 1e-90, 1e80, 1e150):
        objective, U0 = in_units(kind, scale)
        with pytest.raises(DomainError, match="rescale U") as caught:
            run(objective, U0, **options)
        assert caught.value.argument == "U0"
        # The loss is the fourth power of the scale, times a number of ordinary size.
        said = float(caught.value.got.removeprefix("terms of size 1e"))
        assert said == pytest.approx(4 * math.log10(scale), abs=4)


def test_a_tiny_start_with_ordinary_responses_is_accepted() -> None:
    # u' = 2 (1 - u^2) u from 1e-100: the solution leaves zero like 1e-100 exp(2t).
    objective = LeastSquares(RankOne(np.ones((1, 1))), np.ones(1))
    flow = gradient_flow(objective, np.full((1, 1), 1e-100), t_final=10.0, times=[])
    assert flow.status is Status.TIME_REACHED
    assert flow.U[0, 0] == pytest.approx(1e-100 * math.exp(20.0), rel=1e-5)


@pytest.mark.parametrize("scale", [1e-170, 1e-100])
def test_a_smooth_objective_that_underflows_is_refused(scale: float) -> None:
    objective = SmoothObjective(lambda Q: Q.square().sum((-2, -1)), 2)
    with pytest.raises(DomainError) as caught:
        gradient_flow(objective, scale * np.eye(2), t_final=1.0)
    assert caught.value.argument == "U0"


def test_a_stationary_start_with_zero_responses_is_accepted() -> None:
    objective = LeastSquares(RankOne(np.eye(2)[:1]), np.zeros(1))
    flow = gradient_flow(objective, np.array([[0.0], [1.0]]), t_final=1.0, times=[])
    assert flow.status is Status.TIME_REACHED
    np.testing.assert_array_equal(flow.U, [[0.0], [1.0]])


def test_a_factor_that_decays_until_its_gradient_underflows_is_reported() -> None:
    # u' = -2 u^3: u = u0 / sqrt(1 + 4 u0^2 t), here 1e-105 in the end, with a gradient of 1e-315.
    objective = LeastSquares(RankOne(np.ones((1, 1))), np.zeros(1))
    flow = gradient_flow(objective, np.full((1, 1), 1e-68), t_final=1e210, times=[], rtol=1e-5)
    assert flow.status is Status.OUT_OF_RANGE
    exact = 1e-68 / math.sqrt(1 + 4e-136 * flow.times[-1])
    assert flow.U[0, 0] == pytest.approx(exact, rel=1e-2)  # some hundred steps of 1e-5
    assert 1e-279 < 2 * exact**3 < 5e-277  # the limit, less what one step may shrink it


def test_norms_do_not_square_out_of_range() -> None:
    M = torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64, requires_grad=True)
    for scale in (1e-300, 1.0, 1e300):
        assert float(norm(scale * M.detach())) == pytest.approx(5 * scale, rel=4 * EPS)
    assert float(norm(torch.zeros(2, 2))) == 0.0
    assert math.isinf(float(norm(torch.tensor([[math.inf, 1.0]]))))
    assert math.isnan(float(norm(torch.tensor([[math.nan, 1.0]]))))
    (slope,) = torch.autograd.grad(norm(M), M)
    np.testing.assert_allclose(slope, M.detach() / 5, rtol=4 * EPS)


# What is recorded.


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0.1, 0.25, 0.3], [0.0, 0.1, 0.25, 0.3, 0.7]),
        ([0.0, 0.1, 0.7], [0.0, 0.1, 0.7]),
        ([0.7], [0.0, 0.7]),
        ([], [0.0, 0.7]),
        (torch.tensor([0.1, 0.2], dtype=torch.float64), [0.0, 0.1, 0.2, 0.7]),
        ([1e-18, 1e-17, 0.3, 0.3 + 1e-6], [0.0, 1e-18, 1e-17, 0.3, 0.3 + 1e-6, 0.7]),
    ],
)
@pytest.mark.parametrize(("method", "step"), [("adaptive", None), ("rk4", 0.03)])
def test_recorded_times_are_exact(
    times: object, expected: list, dtype: type, method: str, step: float | None
) -> None:
    objective = PopulationRisk(np.eye(3, 1, dtype=dtype))
    U0 = np.full((3, 1), 0.5, dtype=dtype)
    flow = gradient_flow(objective, U0, t_final=0.7, times=times, method=method, step=step)
    assert flow.times.dtype == dtype
    np.testing.assert_array_equal(flow.times, np.array(expected, dtype=dtype))


def test_default_times_are_a_hundred_equal_intervals() -> None:
    flow = gradient_flow(SCALAR, np.array([[0.5]]), t_final=0.7)
    np.testing.assert_allclose(flow.times, np.linspace(0, 0.7, 101), rtol=4 * EPS)
    assert flow.times[0] == 0
    assert flow.times[-1] == 0.7


@settings(max_examples=6)
@given(
    times=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=8, unique=True).map(sorted),
    u0=st.floats(0.05, 4.0),
)
def test_records_do_not_depend_on_the_other_times(times: list[float], u0: float) -> None:
    flow = gradient_flow(SCALAR, np.array([[u0]]), t_final=1.0, times=times, save_factors=True)
    # Absolute: at the limit u = 1 the method keeps u to rtol only.
    np.testing.assert_allclose(flow.factors[:, 0, 0], logistic(u0, flow.times), atol=2e-8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("t_final", "k"), [(1.0, 100), (0.3, 30), (7.0, 70)])
def test_fixed_steps_are_counted_without_slivers(
    dtype: torch.dtype, t_final: float, k: int
) -> None:
    objective = PopulationRisk(torch.eye(3, 1, dtype=dtype))
    U0 = torch.full((3, 1), 0.5, dtype=dtype)
    flow = gradient_flow(objective, U0, t_final=t_final, times=[], method="rk4", step=t_final / k)
    assert int(flow.steps) == k


@pytest.mark.parametrize(("method", "step"), [("adaptive", None), ("rk4", 0.01)])
def test_batch_equals_single_runs(method: str, step: float | None) -> None:
    objective, _, _ = problem("least squares")
    U0 = 0.5 * np.random.default_rng(7).normal(size=(2, 3, 5, 2))
    options = {"t_final": 0.3, "times": [0.1, 0.2], "method": method, "step": step}
    batch = gradient_flow(objective, U0, save_factors=True, **options)
    assert batch.factors.shape == (4, 2, 3, 5, 2)
    for i in np.ndindex(2, 3):
        single = gradient_flow(objective, U0[i], save_factors=True, **options)
        at = (slice(None), *i)
        # Batched products round differently; the step sequence must be the same.
        assert single.steps == batch.steps[i]
        np.testing.assert_allclose(batch.factors[at], single.factors, rtol=0, atol=1e-13)
        np.testing.assert_allclose(batch.loss[at], single.loss, rtol=1e-11)
        np.testing.assert_allclose(batch.dissipated[at], single.dissipated, rtol=1e-11)
        np.testing.assert_array_equal(batch.times[at], single.times)


def test_batch_of_objectives() -> None:
    rng = np.random.default_rng(0)
    X, y, U0 = rng.normal(size=(3, 20, 4)), rng.random((3, 20)), rng.normal(size=(4, 2))
    flow = gradient_flow(LeastSquares(RankOne(X), y), U0, t_final=0.05, times=[])
    assert flow.U.shape == (3, 4, 2)
    for i in range(3):
        single = gradient_flow(LeastSquares(RankOne(X[i]), y[i]), U0, t_final=0.05, times=[])
        np.testing.assert_allclose(flow.U[i], single.U, atol=1e-13)


def test_empty_batch() -> None:
    flow = gradient_flow(
        PopulationRisk(np.eye(3, 1)), np.ones((0, 3, 1)), t_final=1.0, progress=lambda p: None
    )
    assert flow.status == []
    assert flow.U.shape == (0, 3, 1)
    assert flow.loss.shape[1:] == (0,)


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_observables_are_recorded_in_the_callers_kind(convert: Callable) -> None:
    objective, _, U0 = problem("population")
    start = convert(np.stack([U0, 2 * U0]))
    kinds = set()

    def norm(U: object) -> object:
        kinds.add(type(U))
        return (U**2).sum((-2, -1)) ** 0.5

    flow = gradient_flow(
        objective,
        start,
        t_final=0.2,
        times=[0.1],
        save_factors=True,
        observables={"norm": norm, "times": lambda U: U[..., 0, :]},
    )
    assert kinds == {type(start)}
    for value in (flow.U, flow.times, flow.loss, flow.steps, flow.factors, flow.dissipated):
        assert type(value) is type(start)
    assert set(flow.observables) == {"norm", "times"}
    factors = np.asarray(flow.factors)
    np.testing.assert_allclose(
        np.asarray(flow.observables["norm"]), np.linalg.norm(factors, axis=(-2, -1)), rtol=4 * EPS
    )
    np.testing.assert_array_equal(np.asarray(flow.observables["times"]), factors[..., 0, :])
    np.testing.assert_array_equal(np.asarray(flow.times)[:, 0], [0, 0.1, 0.2])


@pytest.mark.parametrize(
    "observable",
    [lambda U: float(U[0, 0]), lambda U: [float(U[0, 0])], lambda U: np.float64(U[0, 0])],
    ids=["float", "list", "numpy"],
)
def test_plain_number_observables_keep_double_precision(observable: Callable) -> None:
    flow = gradient_flow(
        SCALAR,
        np.array([[0.3]]),
        t_final=0.1,
        times=[],
        save_factors=True,
        observables={"u": observable},
    )
    recorded = flow.observables["u"].reshape(-1)
    assert recorded.dtype == np.float64
    np.testing.assert_array_equal(recorded, flow.factors[:, 0, 0])


def test_progress_reports_the_state_of_the_run() -> None:
    heard: list[Progress] = []
    U0 = np.array([2.0, 0.1, 1.0]).reshape(3, 1, 1)
    flow = gradient_flow(
        SCALAR, U0, t_final=0.55, times=[0.2, 0.4], loss_tolerance=1e-2, progress=heard.append
    )
    assert flow.status == [Status.LOSS_REACHED, Status.TIME_REACHED, Status.LOSS_REACHED]
    assert [p.running for p in heard] == [2, 1, 1, 0]
    assert [p.time for p in heard[:3]] == [0.0, 0.2, 0.4]
    assert {p.end for p in heard} == {0.55}
    assert [p.loss for p in heard] == list(flow.loss.max(axis=1))


def test_nothing_is_printed(capsys: pytest.CaptureFixture) -> None:
    objective, _, U0 = problem("least squares")
    gradient_flow(objective, U0, t_final=0.1, progress=lambda p: None)
    gradient_flow(objective, U0, t_final=0.1, max_steps=1)
    gradient_flow(objective, 1e3 * U0, t_final=10.0, method="rk4", step=1.0)
    assert capsys.readouterr() == ("", "")


# Kinds of input.


def test_float32_flow_follows_the_double_one() -> None:
    objective, _, U0 = problem("population")
    single = PopulationRisk(objective.U_star.float())
    flow = gradient_flow(single, torch.from_numpy(U0).float(), t_final=0.1, times=[])
    expected = gradient_flow(objective, U0, t_final=0.1, times=[])
    for value in (flow.U, flow.loss, flow.times, flow.dissipated, flow.gradient_norm):
        assert value.dtype == torch.float32
    assert flow.status is Status.TIME_REACHED
    assert np.abs(flow.U.numpy() - expected.U).max() < 100 * np.finfo(np.float32).eps


@pytest.mark.parametrize("t_final", [0.1, 0.7, 1 / 3])
def test_single_precision_factor_with_double_precision_loss(t_final: float) -> None:
    # 0.7 in float32 is below 0.7; the last record must still be the end.
    target = torch.eye(2, dtype=torch.float64)
    objective = SmoothObjective(lambda Q: (Q - target).square().sum((-2, -1)), 2)
    U0 = torch.tensor([[0.5], [0.1]])
    flow = gradient_flow(objective, U0, t_final=t_final, times=[], max_steps=500)
    assert flow.status is Status.TIME_REACHED


def test_no_graph_is_kept_and_no_input_is_changed() -> None:
    rng = np.random.default_rng(0)
    X, y, U0, rate = (
        torch.tensor(v, requires_grad=True)
        for v in (rng.normal(size=(20, 4)), rng.random(20), rng.normal(size=(4, 2)), 0.5)
    )
    before = [v.detach().clone() for v in (X, y, U0)]
    smooth = SmoothObjective(lambda Q: rate * Q.square().sum((-2, -1)), 4)
    for objective in (LeastSquares(RankOne(X), y), PopulationRisk(U0), smooth):
        flow = gradient_flow(
            objective,
            U0,
            t_final=0.05,
            times=[],
            save_factors=True,
            observables={"trace": lambda U: U.square().sum()},
        )
        results = (flow.U, flow.loss, flow.times, flow.gradient_norm, flow.dissipated)
        for value in (*results, flow.factors, flow.observables["trace"], flow.steps):
            assert not value.requires_grad
            assert value.grad_fn is None
    for value, old in zip((X, y, U0), before, strict=True):
        assert value.grad is None
        assert torch.equal(value, old)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("kind", ["integer", "fortran", "strided", "read-only", "list"])
def test_unusual_arrays_give_the_usual_result(kind: str) -> None:
    U0 = np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 1.0]])
    unusual = {
        "integer": U0.astype(int),
        "fortran": np.asfortranarray(U0),
        "strided": np.repeat(U0, 2, axis=0)[::2],
        "read-only": U0.copy(),
        "list": U0.tolist(),
    }[kind]
    if kind == "read-only":
        unusual.flags.writeable = False
    objective = PopulationRisk(np.eye(3, 2))
    flow = gradient_flow(objective, unusual, t_final=0.1, times=[])
    expected = gradient_flow(objective, U0, t_final=0.1, times=[])
    # The layout may change the order of sums, nothing more.
    np.testing.assert_allclose(flow.U, expected.U, atol=1e-14)
    assert isinstance(flow.U, np.ndarray)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_result_owns_its_memory(kind: str) -> None:
    U0 = np.ones((3, 1)) if kind == "numpy" else torch.ones(3, 1, dtype=torch.float64)
    flow = gradient_flow(PopulationRisk(np.eye(3, 1)), U0, t_final=1.0, loss_tolerance=1e3)
    assert flow.steps == 0
    flow.U[0, 0] = 7.0
    assert float(U0[0, 0]) == 1.0


def test_dense_measurements_agree_with_rank_one() -> None:
    rng = np.random.default_rng(0)
    X, U0 = rng.normal(size=(30, 4)), rng.normal(size=(4, 2))
    y = rng.random(30)
    flows = [
        gradient_flow(LeastSquares(operator, y), U0, t_final=0.05, times=[])
        for operator in (RankOne(X), Dense(X[:, :, None] * X[:, None, :]))
    ]
    np.testing.assert_allclose(flows[0].U, flows[1].U, atol=1e-13)


def test_statuses_are_sentences_with_distinct_codes() -> None:
    assert sorted(status.code for status in Status) == list(range(len(Status)))
    assert Status.RUNNING.code == 0  # a fresh state is a tensor of zeros
    for status in Status:
        assert len(status.value.split()) > 1
    for failed in (Status.STEPS_EXHAUSTED, Status.DIVERGED, Status.RANK_LOST):
        assert ";" in failed.value  # cause; remedy


def test_energy_defect_belongs_to_the_flow() -> None:
    path = gradient_descent(SCALAR, np.array([[0.5]]), step=0.01, max_steps=2)
    assert path.energy_defect is None


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6])
def test_scaling_the_problem_scales_the_flow(scale: float) -> None:
    # L_c(cU) = c^4 L(U), so c U(c^2 t) is the flow of the scaled problem, step for step.
    rng = np.random.default_rng(5)
    X, target = rng.standard_normal((60, 6)), rng.standard_normal((6, 2))
    start = target + 0.1 * rng.standard_normal((6, 2))
    operator = RankOne(X)

    def run(c: float):
        objective = LeastSquares(operator, operator.apply_factor(c * target))
        return gradient_flow(objective, c * start, t_final=2.0 / c**2)

    plain, scaled = run(1.0), run(scale)
    assert scaled.status is Status.TIME_REACHED
    # The step sequences agree; rounding of the scale leaves a few units in the last places.
    np.testing.assert_allclose(scaled.U, scale * plain.U, rtol=1e-9)


def test_a_constant_in_the_loss_changes_nothing() -> None:
    rng = np.random.default_rng(6)
    target = torch.from_numpy(rng.standard_normal((4, 4)))
    target = target @ target.mT / 4
    start = rng.standard_normal((4, 2))
    square = lambda Q: (Q - target).square().sum((-2, -1))  # noqa: E731
    level = float(square(torch.from_numpy(start @ start.T)))
    paths = [
        gradient_descent(SmoothObjective(ell, 4), start, step=0.01, max_steps=50)
        for ell in (square, lambda Q: square(Q) - level)  # the second starts at exactly zero
    ]
    assert paths[0].status is paths[1].status is Status.STEPS_EXHAUSTED
    np.testing.assert_allclose(paths[0].U, paths[1].U, rtol=1e-12)


def test_an_observable_that_changes_its_shape_is_refused() -> None:
    sizes = iter(range(1, 100))
    with pytest.raises(ShapeError, match=r"^observables: expected .*; got shape"):
        gradient_flow(
            SCALAR,
            np.array([[0.5]]),
            t_final=1.0,
            observables={"growing": lambda U: np.zeros(next(sizes))},
        )


def test_results_are_shown_in_a_few_lines() -> None:
    path = gradient_flow(SCALAR, np.array([[0.5]]), t_final=1.0)
    assert "status=TIME_REACHED" in repr(path)
    assert len(repr(path)) < 800
    assert path == path


def test_first_step_is_a_hundredth_of_the_time_to_move_by_its_own_size():
    """At U = 2 and y = 1, d = n = 1: the gradient of (u^2 - 1)^2 / 2 is 2 u (u^2 - 1) = 12."""
    objective = LeastSquares(RankOne(torch.ones(1, 1, dtype=torch.float64)), torch.ones(1).double())
    state = start(objective, torch.full((1, 1), 2.0, dtype=torch.float64))
    assert float(state.step_size) == pytest.approx(0.01 * 2 / 12, rel=1e-14)
    assert float(state.loss) == pytest.approx(9 / 2, rel=1e-14)
    still = start(objective, torch.ones(1, 1, dtype=torch.float64))
    assert float(still.step_size) == 0.01  # no speed: as if it were one


@pytest.mark.parametrize(("power", "what"), [(-150, "gradient"), (77, "loss"), (150, "loss")])
def test_units_of_a_smooth_objective_are_followed_or_refused(power: int, what: str) -> None:
    """At 1e-150, UU' is a normal number and `2GU`, of size 1e-450, is zero; at 1e77 ell is 1e308.

    With ell of degree two the flow of cU and c^2 Q* takes the time t / c^2.
    """
    U0, target = np.array([[1.0], [2.0]]), torch.tensor([[3.0, 1.0], [1.0, 1.0]]).double()

    def run(c: float) -> Any:
        objective = SmoothObjective(lambda Q: (Q - c * c * target).square().sum((-2, -1)), 2)
        return gradient_flow(objective, c * U0, t_final=0.1 / c**2, times=[])

    ordinary, scaled = run(1.0), run(2.0**-200)
    assert scaled.status is ordinary.status is Status.TIME_REACHED
    np.testing.assert_array_equal(scaled.U * 2.0**200, ordinary.U)
    with pytest.raises(DomainError, match=f"^U0: expected units in which the terms of the {what}"):
        run(10.0**power)
