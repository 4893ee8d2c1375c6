"""What a status requires is what `Acceptance` says: another number in it changes the word."""

from __future__ import annotations

import numpy as np
import pytest

from posquad import Status, recover
from posquad.recovery import Acceptance

ROWS = np.random.default_rng(3).standard_normal((5, 3))  # 3 unknowns, 5 of 6 symmetric entries
# With errors far below the tolerance, but above rounding, on which no word may depend.
EXACT = np.square(ROWS @ [1.0, 2.0, -1.0]) * (1 + 1e-13 * np.array([1, -1, 1, -1, 1]))
NOISY = EXACT * [1.1, 0.9, 1.1, 0.9, 1.1]
# u_3 only enters by its square, so that (u_1, u_2, -u_3) has the responses of u.
BLOCKS = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


def status(X, y, **acceptance) -> Status:
    return recover(X, y, 1, max_starts=8, acceptance=Acceptance(**acceptance)).status


@pytest.mark.parametrize(
    "acceptance",
    [
        {"sure": 1e-30, "sure_tolerances": 1e-30},  # no estimate of an error is that small
        {"loose": 1e-30},
        {"independent_errors": 1e12},  # no two samples differ by so much
        {"flat": 2.0},  # the smallest curvature is below the largest
        {"full_rank": 2.0},  # and the smallest singular value below twice the largest
        {"full_rank_rounding": 1e20},
    ],
)
def test_a_stricter_requirement_of_recovered_is_not_met(acceptance):
    assert status(ROWS, EXACT) is Status.RECOVERED
    assert status(ROWS, EXACT, **acceptance) is Status.NOT_IDENTIFIED


def test_a_tolerance_of_the_caller_permits_larger_errors():
    acceptance = Acceptance(sure=1e-30, sure_tolerances=10.0)
    found = recover(ROWS, EXACT, 1, tolerance=1e-6, acceptance=acceptance)
    assert found.status is Status.RECOVERED


def test_solutions_nearer_than_so_many_errors_are_one():
    y = np.square(BLOCKS @ [1.0, 2.0, -1.0])
    assert status(BLOCKS, y) is Status.NOT_IDENTIFIED
    assert status(BLOCKS, y, apart_errors=1e40) is Status.RECOVERED


def test_a_best_fit_needs_starts_that_agree():
    assert status(ROWS, NOISY) is Status.BEST_FIT
    assert status(ROWS, NOISY, least_agreeing=1000) is Status.STALLED
    # 12 / (n/p - 1)^2 = 27 of 8 starts must agree, unless the share is less or the excess more.
    whole = {"agreeing_share": 10.0, "agreeing_cheap_starts": 2}
    assert status(ROWS, NOISY, **whole) is Status.STALLED
    assert status(ROWS, NOISY, **whole, least_excess=100.0) is Status.BEST_FIT
    # Two starts are enough then, but not in a small problem.
    whole["agreeing_cheap_starts"] = 9
    assert status(ROWS, NOISY, **whole, least_excess=100.0) is Status.STALLED
