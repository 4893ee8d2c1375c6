"""Tolerances of the quotient geometry at equality, with numbers that are exact."""

from __future__ import annotations

import numpy as np
import pytest

from posquad.core.errors import DomainError, FiberError, TangencyError
from posquad.geometry import exp, fiber_rotation, geodesic, horizontal_lift, log, quotient_metric

U = np.array([[1.0], [0.0]])
NORMAL = np.diag([0.0, 1.0])  # orthogonal to the tangent space at UU'


def test_a_lift_is_refused_beyond_the_tolerance_and_not_at_it():
    np.testing.assert_array_equal(horizontal_lift(U, NORMAL, tolerance=1.0), 0)
    assert quotient_metric(U, NORMAL, NORMAL, tolerance=1.0) == 0
    with pytest.raises(TangencyError) as raised:
        horizontal_lift(U, NORMAL, tolerance=np.nextafter(1.0, 0))
    assert raised.value.distance == 1
    assert raised.value.argument == "xi"
    tangent = np.array([[4.0, 2.0], [2.0, 0.0]])
    np.testing.assert_allclose(horizontal_lift(U, tangent, tolerance=0.0), [[2.0], [2.0]])
    with pytest.raises(TangencyError) as raised:
        quotient_metric(U, tangent, NORMAL)
    assert raised.value.argument == "zeta"


def test_the_default_tolerance_is_the_square_root_of_the_epsilon():
    tangent = np.diag([1.0, 0.0])
    for dtype in (np.float64, np.float32):
        root = float(np.finfo(dtype).eps) ** 0.5
        point = U.astype(dtype)
        horizontal_lift(point, (tangent + 0.9 * root * NORMAL).astype(dtype))
        with pytest.raises(TangencyError) as raised:
            horizontal_lift(point, (tangent + 1.1 * root * NORMAL).astype(dtype))
        assert raised.value.distance == pytest.approx(1.1 * root, rel=1e-3)


def test_a_factor_of_another_predictor_is_refused_beyond_the_tolerance():
    """`min_R ||2U - UR|| = 1`, half of `||2U||`."""
    np.testing.assert_array_equal(fiber_rotation(U, 2 * U, tolerance=0.5), [[1.0]])
    with pytest.raises(FiberError) as raised:
        fiber_rotation(U, 2 * U, tolerance=np.nextafter(0.5, 0))
    assert raised.value.distance == 1
    stack = np.stack([U, 2 * U, 3 * U])
    with pytest.raises(FiberError) as raised:
        fiber_rotation(np.stack([U, U, U]), stack)
    assert raised.value.distance == 2  # the worst of the batch


def test_a_vertical_direction_is_refused_beyond_the_tolerance():
    """At the identity, Delta = S + t W with S symmetric and W skew has the vertical part t W."""
    symmetric, skew = np.diag([1.0, 0.0]), np.array([[0.0, 1.0], [-1.0, 0.0]]) / np.sqrt(2)
    root = np.finfo(float).eps ** 0.5
    np.testing.assert_allclose(exp(np.eye(2), symmetric + 0.9 * root * skew)[0, 0], 2.0)
    with pytest.raises(TangencyError) as raised:
        exp(np.eye(2), symmetric + 1.1 * root * skew)
    assert raised.value.distance == pytest.approx(1.1 * root, rel=1e-6)
    # 10 d eps = 4.4e-15 is below the rounding of U + Delta, whatever the tolerance.
    exp(np.eye(2), 4e-15 * skew, tolerance=0.0)
    with pytest.raises(TangencyError):
        exp(np.eye(2), 5e-15 * skew, tolerance=0.0)


def test_a_geodesic_ends_where_the_rank_is_lost():
    """`U + t(-U)` is zero at t = 1; `U + t(V - U)` with V = U/2 at t = 2."""
    exp(U, -0.999 * U)
    with pytest.raises(DomainError, match="rank loss at t = 1:"):
        exp(U, -U)
    with pytest.raises(DomainError, match=r"rank loss at t = 0\.5:"):
        exp(U, -2 * U)
    np.testing.assert_allclose(geodesic(U, U / 2, 1.99), 0.005 * U, rtol=1e-12)
    with pytest.raises(DomainError, match="rank loss at t = 2:"):
        geodesic(U, U / 2, 2.0)
    with pytest.raises(DomainError, match="rank loss at t = 2:"):
        geodesic(U, U / 2, 3.0)


def test_a_logarithm_needs_an_angle_below_a_right_one():
    """The cosine of the angle between U and V is c; 10 d eps = 4.4e-15."""
    for cosine, defined in ((0.0, False), (4e-15, False), (5e-15, True), (-1e-3, True)):
        V = np.array([[cosine], [1.0]])
        if defined:
            expected = np.sign(cosine) * V - U
            np.testing.assert_allclose(log(U, V), expected, rtol=1e-12, atol=1e-15)
        else:
            with pytest.raises(DomainError, match="a cut point of U"):
                log(U, V)
