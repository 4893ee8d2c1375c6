"""One step of the mirror flow against the polynomial that extrapolates Euler's method."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from posquad.selection.flow import _Dissipation
from posquad.selection.system import prepare
from support import double

B = np.array([[1.0, 0.5, 0.0], [0.2, 0.0, 1.0]])
y, d, q0 = np.array([1.0, 0.8]), np.array([1.0, 2.0, 3.0]), np.array([0.5, 1.0, 0.3])


def method_of(tolerance, *, t_final=math.inf):
    system, points = prepare(*(torch.as_tensor(a) for a in (B, y, d)), q0=torch.as_tensor(q0))
    end = torch.tensor(t_final, dtype=torch.float64)
    return _Dissipation(system, points["q0"].log(), end, tolerance)


def euler(w, h, substeps):
    """Linearly implicit Euler: w and the dissipation of the linearized residual."""
    J = -4 / 2 * (B * (q0 * np.exp(-4 * (w @ B) / d) / d)) @ B.T
    residual_of = lambda w: B @ (q0 * np.exp(-4 * (w @ B) / d)) - y  # noqa: E731
    slope, spent = 2 * J @ residual_of(w), 0.0
    for _ in range(substeps):
        r = residual_of(w)
        move = np.linalg.solve(np.eye(2) - h / substeps * J, h / substeps * r / 2)
        spent += h / substeps * (r @ r / 2 + slope @ move)
        w = w + move
    return np.array([*w, spent])


def extrapolated(h, first):
    """The value at zero of the polynomial in the substep, through `first`, ..., 7 substeps."""
    total = np.zeros(3)
    for j in range(first, 8):
        others = (Fraction(1, i) for i in range(first, 8) if i != j)
        weight = math.prod((x / (x - Fraction(1, j)) for x in others), start=Fraction(1))
        total += float(weight) * euler(np.zeros(2), h, j)
    return total


@pytest.mark.parametrize("h", [0.2, 0.5])
def test_a_step_is_the_extrapolation_of_seven_euler_steps(h):
    method = method_of(1.0)
    state = method.advance(replace(method.start(), step_size=double(h)))
    expected = extrapolated(h, 1)
    # Weights up to 7^6 / 6! = 163 enlarge the rounding.
    np.testing.assert_allclose(state.w, expected[:2], rtol=0, atol=1e-13)
    np.testing.assert_allclose(state.integrals[..., 0], expected[2], rtol=0, atol=1e-13)
    assert np.abs(extrapolated(h, 2) - expected).min() > 1e-12  # the test can tell them apart
    assert float(state.time) == h
    assert (int(state.steps), int(state.attempts)) == (1, 1)


@pytest.mark.parametrize("share", [0.01, 0.9, 1.5, 20.0])
def test_the_error_is_the_last_correction_in_units_of_the_tolerance(share):
    """The correction of `log q`, between the last two columns of the table, decides the step."""
    h = 0.5
    correction = (extrapolated(h, 1) - extrapolated(h, 2))[:2]
    tolerance = np.abs(4 * (correction @ B) / d).max() / share
    method = method_of(tolerance)
    state = method.advance(replace(method.start(), step_size=double(h)))
    accepted = share < 1
    assert int(state.steps) == accepted
    if accepted:
        assert float(state.error) == pytest.approx(share, rel=1e-4)
    growth = 0.9 * share ** (-1 / 7)
    growth = growth if accepted else min(growth, 0.7)
    assert float(state.step_size) == pytest.approx(h * growth, rel=1e-4)


def test_steps_grow_at_most_eightfold_and_a_rejected_one_shrinks():
    loose = method_of(1e6)
    state = loose.advance(replace(loose.start(), step_size=double(0.1)))
    assert float(state.step_size) == pytest.approx(0.8)  # 8 times
    strict = method_of(1e-300)
    state = strict.advance(replace(strict.start(), step_size=double(0.1)))
    assert float(state.step_size) == pytest.approx(0.01)  # a tenth
    assert (int(state.steps), int(state.attempts)) == (0, 1)
    assert float(state.time) == 0
    np.testing.assert_array_equal(state.w, 0)


def test_the_first_step_moves_log_q_by_a_hundredth():
    speed = np.abs(4 / 2 * ((B @ q0 - y) @ B) / d).max()
    assert float(method_of(1e-9).start().step_size) == pytest.approx(0.01 / speed, rel=1e-14)


def test_the_last_step_ends_exactly_at_the_last_time():
    first, last = 0.03, 0.29
    assert first + (last - first) != last  # in floating point
    method = method_of(1.0, t_final=last)
    state = method.advance(replace(method.start(), step_size=double(first)))
    assert float(state.time) == first
    state = method.advance(replace(state, step_size=double(1.0)))
    assert float(state.time) == last
