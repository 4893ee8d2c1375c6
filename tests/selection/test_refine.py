"""The bound on the error of log q, part by part: by hand, and against all signs of the residual."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch

from posquad.core.twofold import from_doubles
from posquad.selection._refine import _Problem


def bound_and_step(B, d, q, residual, rounding, blur):
    """The bound and the Newton step at q; start and responses do not enter."""
    B, d, q = (torch.as_tensor(np.asarray(a, dtype=float)) for a in (B, d, q))
    problem = _Problem(B, torch.ones(1, len(B), dtype=B.dtype), d, q[None])
    parts = (torch.as_tensor(np.asarray(a, dtype=float))[None] for a in (residual, rounding, blur))
    bound, step = problem._bound_and_step(q[None], *parts)
    return float(bound[0]), step[0].numpy()


@pytest.mark.parametrize(
    ("residual", "rounding", "blur", "moved"),
    [
        (6e-7, 0.0, 0.0, 8e-7),  # e / (b q)
        (0.0, 6e-7, 0.0, 8e-7),
        (0.0, 0.0, 3e-7, 3e-7),  # a relative change of q is one of log q
        (6e-7, 6e-7, 3e-7, 19e-7),
    ],
)
def test_one_coordinate_by_hand(residual, rounding, blur, moved):
    """`3 q = y` at q = 1/4 with d = 2; the bound is 2 A nu, doubled for the rounding of R."""
    bound, step = bound_and_step([[3.0]], [2.0], [0.25], [residual], [rounding], [blur])
    assert bound == pytest.approx(4 * moved, rel=1e-12)
    assert step == pytest.approx([residual * 2 / (9 * 0.25)], rel=1e-12)  # G = b^2 q / d


@pytest.mark.parametrize("units", [(1.0, 1.0), (1e-6, 1e3)])
@pytest.mark.parametrize("angle", [1.0, 1e-3])
def test_the_bound_covers_residuals_of_every_sign(units, angle):
    """`(1/d) B'G^-1 e` at 30 digits for every e within the rounding; rows may be nearly parallel.

    The bound is `4 A nu`, and no move exceeds `A nu`; here it is less than twice the largest one.
    """
    B = np.array([[1.0, 1.0, 0.5], [1.0, 1.0 + angle, 0.5]]) * np.array(units)[:, None]
    d, q = np.array([1.0, 2.0, 1.0]), np.array([0.5, 0.125, 1.0])
    rounding = 1e-12 * np.array([2.0, 1.0]) * np.array(units)
    bound, _ = bound_and_step(B, d, q, np.zeros(2), rounding, np.zeros(3))
    with mpmath.workdps(30):
        b = mpmath.matrix(B.tolist())
        inverse = (b * mpmath.diag((q / d).tolist()) * b.T) ** -1
        moves = [
            abs((b.T * inverse * mpmath.matrix((rounding * signs).tolist()))[j]) / d[j]
            for signs in itertools.product((-1, 1), repeat=2)
            for j in range(3)
        ]
    truth = float(max(moves))
    assert 4 * truth <= bound <= 8 * truth


@pytest.mark.parametrize("unit", [2.0**-200, 3.0, 2.0**40, 2.0**200])
def test_an_exact_answer_needs_no_refinement_in_any_unit(unit):
    """`q_1 + q_2 = 2 unit` from q0 = (unit, unit), which solves it."""
    q0 = torch.full((1, 2), unit, dtype=torch.float64)
    y, d = q0.sum(-1, keepdim=True), torch.ones(2, dtype=torch.float64)
    problem = _Problem(torch.ones(1, 2, dtype=torch.float64), y, d, q0)
    error = float(problem.bound(q0.log(), torch.zeros_like(y)))
    assert error < 1e-11  # _SUFFICIENT; the logarithm of the unit is rounded, to 1e-13


def test_the_bound_of_an_exact_answer_is_its_rounding_by_hand():
    """`q = 1` from q0 = 1: log q is known to `(n + 4) eps = 5 eps`, and the bound is `4 A nu`.

    With `A = 1 / sqrt(q)` and `nu = sqrt(q) 5 eps` that is 20 eps, and 5 eps for log q itself.
    """
    one = torch.ones(1, 1, dtype=torch.float64)
    error = _Problem(one, one, one[0], one).bound(torch.zeros_like(one), torch.zeros_like(one))
    assert float(error[0]) == pytest.approx(25 * 2.0**-52, rel=1e-12, abs=0)


def test_a_newton_step_is_damped_by_the_change_of_the_logarithm_by_hand():
    """`3 q = 6` at q = 1/4 with d = 2: `G = 9/8` and `F = 21/4`, so the step is 14/3.

    It would change log q by `3/2 * 14/3 = 7`, and is shortened by the factor `log(1 + 7) / 7`.
    """
    B, d = torch.full((1, 1), 3.0, dtype=torch.float64), torch.full((1,), 2.0, dtype=torch.float64)
    problem = _Problem(B, torch.full_like(B, 6.0), d, torch.full_like(B, 0.25))
    point = problem.evaluate(from_doubles(torch.zeros_like(B)))
    assert float(point.change) == pytest.approx(7.0, rel=1e-14)
    assert float(point.move) == pytest.approx(14 / 3 * math.log(8) / 7, rel=1e-14)
