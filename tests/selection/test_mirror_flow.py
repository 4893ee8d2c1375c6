"""The mirror flow against stiff SciPy integrators, the full factor flow, and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.integrate
import torch

import posquad
from posquad.core.errors import DomainError, DtypeError, InfeasibleError, NonFiniteError, ShapeError
from posquad.core.status import Status
from posquad.selection import (
    bregman_divergence,
    bregman_projection,
    commuting_family,
    descent_constants,
    joint_spectral_reduction,
    mirror_flow,
)
from selection_support import PAPER
from support import normal, rotation


def random_system(
    seed: int, n: int, m: int, *, redundant: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A strictly feasible (B, y, d); `redundant` appends a multiple of a row and a sum of two."""
    rng = np.random.default_rng(seed)
    B = rng.normal(size=(n, m))
    if redundant:
        B = np.vstack([B, -2 * B[0], B[0] + B[-1]])
    return B, B @ rng.uniform(0.2, 2.0, m), rng.integers(1, 4, m)


def wide_start(seed: int, m: int, decades: float) -> np.ndarray:
    exponents = np.random.default_rng(seed).permutation(np.linspace(-decades, 0, m))
    return 10.0**exponents


def scipy_flow(system, q0, times, method: str) -> np.ndarray:
    """`log q` at the times, from the m equations of the paper in log coordinates: [T, m]."""
    B, y, d = system
    n = len(y)

    def slope(t, z):
        return -4 / d * (B.T @ (B @ np.exp(z) - y)) / n

    def jacobian(t, z):
        return -4 / d[:, None] * (B.T @ (B * np.exp(z))) / n

    solution = scipy.integrate.solve_ivp(
        slope,
        (0.0, times[-1]),
        np.log(q0),
        method=method,
        t_eval=times,
        rtol=1e-10,
        atol=1e-10,
        jac=jacobian,
    )
    assert solution.success
    return solution.y.T


@pytest.mark.parametrize(
    ("system", "q0", "method"),
    [
        (PAPER, np.full(4, 0.04), "Radau"),
        (PAPER, np.full(4, 1e-12), "BDF"),
        (random_system(1, 3, 7), wide_start(1, 7, 12), "Radau"),
        (random_system(2, 3, 6, redundant=True), wide_start(2, 6, 6), "LSODA"),
        (random_system(3, 1, 1), np.array([5.0]), "LSODA"),
    ],
    ids=["paper", "eps-1e-6", "wide", "redundant", "scalar"],
)
def test_matches_scipy_at_given_times(system, q0, method):
    times = np.array([0.03, 1.0, 30.0])
    expected = scipy_flow(system, q0, times, method)
    for t, z in zip(times, expected, strict=True):
        flow = mirror_flow(*system, q0, t_final=t, residual_tolerance=0.0, tolerance=1e-11)
        assert flow.status in (Status.TIME_REACHED, Status.LOSS_REACHED)
        assert flow.status is Status.LOSS_REACHED or flow.times[-1] == t
        # In log q: local errors of 1e-10 a step in the oracle, over up to some hundred steps; with
        # a growing mode from 1e-12 to 1, errors in time grow no further than log q itself moves.
        np.testing.assert_allclose(np.log(flow.q), z, rtol=0, atol=3e-8)


@pytest.mark.parametrize(
    ("B", "y", "d", "q0"),
    [([[2.0]], [3.0], 2, 0.01), ([[2.0]], [3.0], 1, 40.0), ([[1.0], [2.0]], [1.5, 3.0], 3, 1e-9)],
)
def test_one_coordinate_is_logistic(B, y, d, q0):
    """dq/dt = -(4q/(n d)) (|b|^2 q - b'y) is logistic, of rate 4 b'y/(n d) to K = b'y/|b|^2."""
    B, y = np.array(B), np.array(y)
    rate, limit = 4 * (B[:, 0] @ y) / (len(y) * d), (B[:, 0] @ y) / (B[:, 0] @ B[:, 0])
    flow = mirror_flow(B, y, np.array([d]), np.array([q0]))
    expected = limit / (1 + (limit / q0 - 1) * np.exp(-rate * flow.times))
    # The tolerance is 1e-9 a step, and each of the some 50 steps may use it.
    np.testing.assert_allclose(flow.path[:, 0], expected, rtol=1e-7)
    assert flow.q[0] == pytest.approx(limit, rel=1e-11)


def test_identity_system_decouples():
    """B = I: each coordinate is its own logistic flow, whatever the others do."""
    y, d, q0 = np.array([1.0, 2.0, 0.5]), np.array([1, 2, 3]), np.array([1e-6, 3.0, 0.5])
    flow = mirror_flow(np.eye(3), y, d, q0, t_final=5.0)
    expected = y / (1 + (y / q0 - 1) * np.exp(-4 * y / (3 * d) * 5.0))
    np.testing.assert_allclose(flow.q, expected, rtol=1e-7)


@pytest.mark.parametrize("redundant", [False, True])
def test_full_factor_flow_is_the_reduced_flow(rng, redundant):
    """On d x d matrices, from Q(q0)^(1/2) R for random orthogonal R, at r = d."""
    B, y, d = random_system(5, 2, 4, redundant=redundant)
    A = commuting_family(B, d, seed=3)
    reduction = joint_spectral_reduction(A)
    # The reduction orders the joint eigenspaces itself; columns of coefficients identify them.
    gaps = np.abs((B / d)[:, :, None] - reduction.coefficients[:, None, :]).max(0)
    order = gaps.argmin(0)
    assert gaps.min(0).max() < 1e-12
    assert sorted(order) == list(range(len(d)))
    q0 = np.array([0.3, 0.02, 1.5, 0.5])
    root = torch.from_numpy(reduction.predictor(np.sqrt(q0[order])))
    size = root.shape[0]
    starts = torch.stack(
        [root, root @ rotation(rng, size), root @ rotation(rng, size, reflect=True)]
    )
    objective = posquad.LeastSquares(posquad.Dense(torch.from_numpy(A)), torch.from_numpy(y))
    times = torch.tensor([0.1, 1.0, 6.0], dtype=torch.float64)
    full = posquad.gradient_flow(
        objective, starts, t_final=6.0, times=times, rtol=1e-11, save_factors=True
    )
    for k, t in enumerate(times.tolist()):
        U = full.factors[k + 1]
        Q = (U @ U.mT).numpy()
        reduced = mirror_flow(B, y, d, q0, t_final=t, residual_tolerance=0.0, tolerance=1e-11)
        # Global error of both integrators, some 1e3 times the local 1e-11.
        expected = np.broadcast_to(reduced.q[order], (3, len(d)))
        np.testing.assert_allclose(reduction.coordinates(Q), expected, rtol=1e-8)
        # Q(t) stays in the joint spectral algebra: nothing is lost in the averages.
        np.testing.assert_allclose(reduction.predictor(reduction.coordinates(Q)), Q, atol=1e-9)


@pytest.mark.parametrize(
    ("system", "q0"),
    [
        (PAPER, np.full(4, 1e-12)),
        (random_system(6, 3, 8), wide_start(6, 8, 12)),
        (random_system(7, 3, 6, redundant=True), wide_start(7, 6, 3)),
        (random_system(8, 1, 5), np.ones(5)),
        (random_system(9, 4, 4), wide_start(9, 4, 2)),
    ],
    ids=["eps-1e-6", "wide", "redundant", "one row", "square"],
)
def test_limit_lyapunov_and_positivity(system, q0):
    B, y, d = system
    flow = mirror_flow(*system, q0)
    assert flow.status is Status.LOSS_REACHED
    assert flow.residual[-1] <= 1e-12 * np.linalg.norm(y)
    projection = bregman_projection(*system, q0).q
    # The limit depends on q0 through range(B') only, which the method keeps exactly: no error of
    # the integration remains, only the residual times the conditioning of the system.
    np.testing.assert_allclose(flow.q, projection, rtol=1e-9)
    assert (flow.path > 0).all()
    rounding = 1e-13 * np.linalg.norm(y)
    recomputed = np.linalg.norm(flow.path @ B.T - y, axis=-1)
    np.testing.assert_allclose(flow.residual, recomputed, rtol=1e-12, atol=rounding)
    assert (np.diff(flow.residual) <= rounding).all()
    # Local errors of 1e-9 in log q, relative to the divergence spent.
    initial = bregman_divergence(projection, q0, d)
    assert np.abs(flow.lyapunov_defect(projection)).max() < 1e-7 * initial


@pytest.mark.parametrize(
    ("system", "factor"),
    [(PAPER, 0.6), (random_system(7, 3, 6, redundant=True), 1.5), (random_system(3, 1, 1), 0.1)],
    ids=["paper", "redundant", "scalar"],
)
def test_residual_stays_below_the_exponential_bound(system, factor):
    """The rate is a worst case over a level set, so the start is kept near a feasible point."""
    q0 = factor * bregman_projection(*system, np.ones(system[0].shape[1])).q
    flow = mirror_flow(*system, q0)
    rate = descent_constants(*system, q0).residual_rate
    bound = flow.residual[0] * np.exp(-rate * flow.times)
    assert rate * flow.times[-1] > 0.1  # the bound says something
    rounding = 1e-13 * np.linalg.norm(system[1])
    assert (flow.residual <= bound * (1 + 1e-8) + rounding).all()


def test_lyapunov_identity_for_any_feasible_point():
    B, y, _ = PAPER
    flow = mirror_flow(*PAPER, np.full(4, 0.04), tolerance=1e-11)
    for t in (0.0, 0.1, 0.3):  # the feasible segment of experiment 6, its two ends on the boundary
        p = np.array([0.2 + t, 0.5, 0.3 - t, t])
        np.testing.assert_allclose(B @ p, y, atol=1e-15)
        assert np.abs(flow.lyapunov_defect(p)).max() < 1e-9
    # Of an infeasible point the identity says nothing, and the defect shows it.
    assert np.abs(flow.lyapunov_defect(np.ones(4))).max() > 0.1
    with pytest.raises(ShapeError, match="reference"):
        flow.lyapunov_defect(np.ones(3))


def test_error_falls_with_the_tolerance():
    exact = np.exp(scipy_flow(PAPER, np.full(4, 0.04), np.array([2.0]), "Radau")[0])
    errors = [
        np.abs(mirror_flow(*PAPER, np.full(4, 0.04), t_final=2.0, tolerance=tol).q - exact).max()
        for tol in (1e-3, 1e-6, 1e-9)
    ]
    # The local error is the difference of the two last columns of the table: conservative.
    assert errors[0] < 1e-3
    assert errors[1] < 1e-6
    assert errors[2] < 3e-9


def test_batches_equal_single_runs():
    B, y, d = PAPER
    q0 = np.array([1e-2, 1e-6, 1.0])[:, None] * np.array([1.0, 2.0, 0.5, 1.0])
    right = np.stack([y, 2 * y])[:, None]  # [2, 1, n] against [3, m]
    flow = mirror_flow(B, right, d, q0)
    assert flow.q.shape == (2, 3, 4)
    assert flow.path.shape == (len(flow.times), 2, 3, 4)
    assert flow.times.shape == flow.residual.shape == flow.dissipated.shape == flow.path.shape[:-1]
    assert flow.status == [[Status.LOSS_REACHED] * 3] * 2
    single = mirror_flow(B, 2 * y, d, q0[1])
    # The same steps up to the rounding of batched factorizations.
    assert int(flow.steps[1, 1]) == int(single.steps)
    np.testing.assert_allclose(flow.q[1, 1], single.q, rtol=1e-11)
    # While another flow of the batch takes a step that this one rejects, its record repeats.
    np.testing.assert_allclose(np.unique(flow.times[:, 1, 1]), single.times, rtol=1e-6)
    assert (flow.path[-1, 1, 1] == flow.q[1, 1]).all()
    assert mirror_flow(B, y, d, np.ones((0, 4))).q.shape == (0, 4)


def test_statuses():
    q0 = np.full(4, 0.04)
    timed = mirror_flow(*PAPER, q0, t_final=0.5)
    assert timed.status is Status.TIME_REACHED
    assert timed.times[-1] == 0.5
    assert (np.diff(timed.times) >= 0).all()
    short = mirror_flow(*PAPER, q0, max_steps=3)
    assert short.status is Status.STEPS_EXHAUSTED
    assert int(short.steps) <= 3
    loose = mirror_flow(*PAPER, q0, residual_tolerance=0.5)
    assert loose.status is Status.LOSS_REACHED
    assert loose.residual[-1] <= 0.5 * np.linalg.norm(PAPER[1]) < loose.residual[-2]
    # A start that interpolates has ended before the first step.
    done = mirror_flow(*PAPER, np.array([0.25, 0.5, 0.25, 0.05]), residual_tolerance=1e-12)
    assert done.status is Status.LOSS_REACHED
    assert int(done.steps) == 0


def test_zero_right_hand_side():
    """y = 0 with a positive solution: q1 = q2, from (1, 4) to (2, 2), which keeps q1 q2 = 4."""
    flow = mirror_flow(
        np.array([[1.0, -1.0]]), np.zeros(1), np.ones(2), np.array([1.0, 4.0]), max_steps=300
    )
    np.testing.assert_allclose(flow.q, [2.0, 2.0], rtol=1e-9)
    assert flow.status is Status.LOSS_REACHED


def test_progress_is_called_after_every_step():
    seen = []
    flow = mirror_flow(
        *PAPER, np.full((2, 4), 0.04), progress=lambda t, residual: seen.append((t, residual))
    )
    assert len(seen) == len(flow.times)
    np.testing.assert_array_equal(np.array(seen)[:, 0], flow.times.max(-1))
    np.testing.assert_array_equal(np.array(seen)[:, 1], flow.residual.max(-1))


def test_torch_numpy_integers_and_float32(rng):
    B, y, d = PAPER
    q0 = np.full(4, 0.04)
    arrays = mirror_flow(B, y, d, q0)
    assert all(
        isinstance(getattr(arrays, name), np.ndarray)
        for name in ("q", "times", "path", "residual", "dissipated", "steps", "multiplicities")
    )
    strided = normal(rng, 4, 2).mT
    strided.copy_(torch.from_numpy(B))
    tensor = mirror_flow(*(torch.as_tensor(v) for v in (strided, y, d, q0)))
    assert isinstance(tensor.q, torch.Tensor)
    np.testing.assert_array_equal(tensor.q.numpy(), arrays.q)
    assert isinstance(tensor.lyapunov_defect(tensor.q), torch.Tensor)
    single = mirror_flow(
        *(torch.as_tensor(v).float() for v in (B, y, d, q0)),
        residual_tolerance=1e-5,
        tolerance=1e-4,
    )
    assert single.q.dtype == torch.float32
    np.testing.assert_allclose(single.q.numpy(), arrays.q, rtol=1e-4)


@pytest.mark.parametrize(
    ("changed", "error", "named"),
    [
        ({"q0": np.array([1.0, 1.0, 0.0, 1.0])}, DomainError, "q0"),
        ({"q0": np.array([1.0, 1.0, -1.0, 1.0])}, DomainError, "q0"),
        ({"q0": np.array([1.0, 1.0, np.nan, 1.0])}, NonFiniteError, "q0"),
        ({"q0": np.ones(3)}, ShapeError, "q0"),
        ({"q0": np.ones(4) + 0j}, DtypeError, "q0"),
        ({"q0": np.ones((3, 4)), "y": np.ones((2, 2))}, ShapeError, "y, q0"),
        ({"multiplicities": np.array([1, 1, 0, 3])}, DomainError, "multiplicities"),
        ({"multiplicities": np.ones(3)}, ShapeError, "multiplicities"),
        ({"y": np.ones(3)}, ShapeError, "y"),
        ({"y": np.array([np.inf, 1.0])}, NonFiniteError, "y"),
        ({"B": np.ones(4)}, ShapeError, "B"),
        ({"B": np.ones((2, 0))}, ShapeError, "B"),
        ({"B": np.ones((2, 4))}, InfeasibleError, "y"),
        ({"t_final": 0.0}, DomainError, "t_final"),
        ({"t_final": np.nan}, DomainError, "t_final"),
        ({"t_final": -np.inf}, DomainError, "t_final"),
        ({"residual_tolerance": -1.0}, DomainError, "residual_tolerance"),
        ({"tolerance": 0.0}, DomainError, "tolerance"),
        ({"max_steps": 0}, DomainError, "max_steps"),
        ({"max_steps": 1.5}, DomainError, "max_steps"),
    ],
)
def test_bad_input_is_refused(changed, error, named):
    B, y, d = PAPER
    arguments = {"B": B, "y": y, "multiplicities": d, "q0": np.full(4, 0.1)} | changed
    with pytest.raises(error, match=rf"^{named}: expected .*; got"):
        mirror_flow(**arguments)


def test_a_flow_that_starts_at_the_solution_has_reached_it():
    """A residual of zero is within a tolerance of zero."""
    one = np.ones(1)
    flow = mirror_flow(one[None], one, one, one, residual_tolerance=0.0)
    assert (flow.status, int(flow.steps)) == (Status.LOSS_REACHED, 0)


@pytest.mark.parametrize(("b", "u"), [(1e-200, 1e250), (1.0, 1.0), (1e200, 1e-250)])
def test_one_coordinate_in_any_units_of_the_measurements(b, u):
    """`q' = -4 b^2 q (q - u)` is the logistic equation; the square of b alone is out of range."""
    rate = 4 * (b * u) * b
    times = np.array([0.25, 1.0, 3.0]) / rate
    B, y, q0 = np.full((1, 1), b), np.array([b * u]), np.array([0.1 * u])
    found = [mirror_flow(B, y, np.ones(1), q0, t_final=t, tolerance=1e-10).q[0] for t in times]
    expected = u / (1 + 9 * np.exp(-rate * times))
    assert found == pytest.approx(expected, rel=1e-7, abs=0)


@pytest.mark.parametrize("b", [1e-200, 1e200])
def test_measurements_whose_time_is_out_of_range_are_refused(b):
    """`bq = b` approaches its limit in the time `1 / (4 b^2)`, which is no double."""
    with pytest.raises(DomainError, match="rescale"):
        mirror_flow(np.full((1, 1), b), np.array([b]), np.ones(1), np.array([0.1]))
