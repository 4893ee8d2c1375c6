"""Single steps of the integrators: coefficients as in SciPy, and the control of the step."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.integrate
import torch

from posquad import PopulationRisk
from posquad.core.status import Status
from posquad.dynamics import state as states
from posquad.dynamics.integrators import DormandPrince, RungeKutta4
from posquad.dynamics.loop import merge
from support import double

TARGET = np.array([[1.0], [0.5]])
START = torch.tensor([[0.4], [0.9]], dtype=torch.float64)
RISK = PopulationRisk(TARGET)


def slope(t, u):
    """`-grad L` at a factor of one column: `-2 (2E + tr(E) I) u` with `E = uu' - Q*`."""
    E = np.outer(u, u) - TARGET @ TARGET.T
    return -2 * (2 * E @ u + np.trace(E) * u)


def prince(rtol, atol, end=1e9):
    return DormandPrince(RISK, torch.tensor([0.0, end], dtype=torch.float64), rtol, atol)


def begin(h):
    return states.start(RISK, START, double(h))


def test_coefficients_are_those_of_scipy():
    method = scipy.integrate.RK45
    for k, row in enumerate(DormandPrince.nodes, 1):
        np.testing.assert_allclose(row, method.A[k, :k], rtol=1e-15)
    np.testing.assert_allclose(DormandPrince.weights, method.B, rtol=1e-15)
    # SciPy's error is that of the fourth order less the fifth; only its size is used.
    np.testing.assert_allclose(np.abs(DormandPrince.defect), np.abs(method.E), rtol=1e-13)
    signs = np.sign(DormandPrince.defect) * np.sign(method.E)
    assert len(set(signs[signs != 0])) == 1


def test_a_fixed_step_is_the_classical_one():
    h, u = 0.05, START[:, 0].numpy()
    k1 = slope(0, u)
    k2 = slope(0, u + h / 2 * k1)
    k3 = slope(0, u + h / 2 * k2)
    k4 = slope(0, u + h * k3)
    method = RungeKutta4(RISK, torch.tensor([0.0, 1.0], dtype=torch.float64))
    new = method.advance(begin(h))
    expected = u + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    np.testing.assert_allclose(new.U[:, 0], expected, rtol=1e-14)
    spent = h / 6 * (k1 @ k1 + 2 * k2 @ k2 + 2 * k3 @ k3 + k4 @ k4)
    assert float(new.dissipated) == pytest.approx(spent, rel=1e-13)
    assert (float(new.time), int(new.steps), int(new.attempts)) == (h, 1, 1)


def scipy_step(h):
    """The new point and the error vector of SciPy's step."""
    u = START[:, 0].numpy()
    K = np.empty((7, 2))
    new, _ = scipy.integrate._ivp.rk.rk_step(
        slope, 0.0, u, slope(0, u), h, *(getattr(scipy.integrate.RK45, x) for x in "ABC"), K
    )
    return new, h * K.T @ scipy.integrate.RK45.E


@pytest.mark.parametrize(("share", "before"), [(0.9, 1.0), (0.5, 0.3), (0.01, 1.0), (3.0, 0.2)])
def test_a_step_and_its_growth(share, before):
    """Growth is `0.9 error^-0.14 before^0.08`, or `0.9 error^-0.14` after a rejection."""
    h = 0.05
    point, error = scipy_step(h)
    size = max(np.linalg.norm(START), np.linalg.norm(point))
    allowed = np.linalg.norm(error) / share
    for rtol, atol in ((allowed / size, 0.0), (allowed / size / 4, allowed * 3 / 4)):
        new = prince(rtol, atol).advance(replace(begin(h), error=double(before)))
        if share < 1:
            np.testing.assert_allclose(new.U[:, 0], point, rtol=1e-13)
            assert float(new.error) == pytest.approx(share, rel=1e-6)
            growth = 0.9 * share**-0.14 * before**0.08
        else:
            np.testing.assert_array_equal(new.U, START)
            assert float(new.error) == before
            growth = 0.9 * share**-0.14
        assert float(new.step_size) == pytest.approx(h * growth, rel=1e-6)
        assert (int(new.steps), int(new.attempts)) == (share < 1, 1)


def test_growth_is_limited():
    """At most fivefold, at least a tenth, and at most nine tenths after a rejection."""
    assert float(prince(1e6, 0.0).advance(begin(0.01)).step_size) == pytest.approx(0.05)
    assert float(prince(1e-300, 0.0).advance(begin(0.01)).step_size) == pytest.approx(0.001)
    point, error = scipy_step(0.05)
    barely = np.linalg.norm(error) / max(np.linalg.norm(START), np.linalg.norm(point)) / 1.001
    shrunk = float(prince(barely, 0.0).advance(begin(0.05)).step_size)
    assert shrunk == pytest.approx(0.05 * 0.9, rel=1e-3)
    assert shrunk <= 0.05 * 0.9


def test_a_step_cut_short_by_an_output_time_does_not_shorten_the_next():
    method = prince(1e-3, 1e-3, end=0.01)
    new = method.advance(begin(0.2))
    assert float(new.time) == 0.01
    assert float(new.step_size) == 0.2
    # A trajectory that waits keeps its step and is not counted.
    waiting = method.advance(new)
    assert (float(waiting.time), float(waiting.step_size)) == (0.01, 0.2)
    assert (int(waiting.steps), int(waiting.attempts)) == (1, 1)
    assert float(waiting.error) == float(new.error)


def test_a_remainder_of_rounding_is_part_of_the_step():
    root = float(np.finfo(float).eps) ** 0.5
    for share, lands in ((1 - 0.5 * root, True), (1 - 2 * root, False)):
        method = RungeKutta4(RISK, torch.tensor([0.0, 0.1], dtype=torch.float64))
        new = method.advance(begin(0.1 * share))
        assert (float(new.time) == 0.1) is lands


# Rules that end a trajectory.


def test_the_first_step_is_a_hundredth_of_the_time_to_move_by_its_size():
    speed = np.linalg.norm(slope(0, START[:, 0].numpy()))
    expected = 0.01 * float(START.norm()) / speed
    assert float(states.start(RISK, START).step_size) == pytest.approx(expected, rel=1e-14)
    still = states.start(RISK, torch.as_tensor(TARGET))
    assert float(still.step_size) == pytest.approx(0.01 * np.linalg.norm(TARGET))


def test_divergence_by_hand():
    state = begin(0.1)
    status, met = states.diverged(double(2.0), 10.0)
    assert status is Status.DIVERGED
    for loss, ended in ((20.0, False), (20.1, True), (math.inf, True), (math.nan, True)):
        assert bool(met(replace(state, loss=double(loss)))) is ended
    assert bool(met(replace(state, gradient=state.gradient * math.inf)))


@pytest.mark.parametrize(("share", "lost"), [(0.99, True), (1.01, False)])
def test_rank_is_lost_at_d_eps_of_the_terms(share, lost):
    """d = 2: a smallest singular value of `2 eps` times the size of the terms is zero."""
    state = begin(0.1)
    U = torch.tensor([[0.0], [share * 2 * 2.0**-52 * 3.0]], dtype=torch.float64)
    status, met = states.rank_lost()
    assert status is Status.RANK_LOST
    assert bool(met(replace(state, U=U, scale=double(3.0)))) is lost


def test_rank_is_looked_at_again_when_the_factor_has_moved():
    state = begin(0.1)
    _, met = states.rank_lost()
    assert not bool(met(state))
    assert not bool(met(replace(state, U=0.5 * START)))
    assert bool(met(replace(state, U=0 * START)))


def test_the_range_of_a_dtype():
    """Squared rounding errors of the smallest size are normal numbers; sums of 1/eps are finite."""
    for dtype in (torch.float64, torch.float32):
        limits = torch.finfo(dtype)
        low, high = states.log_range(dtype)
        assert low == pytest.approx(math.log(limits.tiny / limits.eps / limits.eps), rel=1e-12)
        assert high == pytest.approx(math.log(limits.max) + math.log(limits.eps), rel=1e-12)


def test_tolerances_hold_at_equality():
    state = replace(begin(0.1), loss=double(0.25), gradient=torch.ones_like(START) * 3)
    size = math.sqrt(18)
    for tolerance, ended in ((0.25, True), (0.2499, False)):
        assert bool(states.loss_reached(tolerance)[1](state)) is ended
    for tolerance, ended in ((size * 1.0001, True), (size * 0.9999, False)):
        assert bool(states.gradient_reached(tolerance)[1](state)) is ended


def test_states_are_merged_by_trajectory():
    state = begin(0.1)
    other = replace(state, U=2 * state.U, time=double(5.0))
    assert torch.equal(merge(torch.tensor(True), other, state).U, 2 * START)
    assert float(merge(torch.tensor(False), other, state).time) == 0
