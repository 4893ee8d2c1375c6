"""Minimum trace in rational numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from posquad import certificates
from posquad.certificates import Verdict, check_exact_minimum_trace, exact_minimum_trace
from posquad.core.errors import DtypeError, PosquadError, ShapeError
from posquad.selection import exact_trace, minimum_trace
from posquad.selection.exact_trace import solve_exactly

B, Y, D = [[1, 1, 1, 0], [0, 0, 1, 1]], [1, "3/10"], [1, 1, 2, 3]


def test_experiment_6_exactly():
    proof = exact_minimum_trace(B, Y, D)
    assert proof.verdict is Verdict.PROVED
    assert proof.value == Fraction(13, 10)
    assert proof.dual == (1, 1)
    assert proof.slack == (0, 0, 0, 2)
    assert proof.q == (Fraction(7, 20), Fraction(7, 20), Fraction(3, 10), 0)
    assert all(isinstance(x, Fraction) for x in (*proof.q, *proof.slack))


@pytest.mark.parametrize(
    ("q", "dual", "reason"),
    [
        (["7/20", "7/20", "3/10", 0], [1, "999999999/1000000000"], "d'q"),
        (["7/20", "7/20", "3/10", 0], [1, 2], "d - B'dual"),
        (["2/5", "3/10", "3/10", "1/1000000000000"], [1, 1], "(Bq)_1"),
        (["3/2", "-4/5", "3/10", 0], [1, 1], "q_1"),
        (["4/5", "1/5", 0, "3/10"], [1, 1], "d'q"),
        ([0.35, 0.35, 0.3, 0], [1, 1], "(Bq)_"),  # floats are not these fractions
    ],
)
def test_wrong_pairs_are_refused_with_the_failing_relation(q, dual, reason):
    proof = check_exact_minimum_trace(B, Y, D, q, dual)
    assert proof.verdict is Verdict.REFUSED
    assert reason in proof.reason


def test_another_point_of_the_face_is_as_good():
    proof = check_exact_minimum_trace(B, Y, D, ["1/2", "1/5", "3/10", 0], [1, 1])
    assert proof.verdict is Verdict.PROVED


def test_random_rational_systems_agree_with_the_linear_program():
    proved = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        n, m = int(rng.integers(1, 4)), int(rng.integers(1, 7))
        b = rng.integers(-2, 5, (n, m))
        q, d = rng.integers(1, 6, m), rng.integers(1, 4, m)
        try:
            near = minimum_trace(b.astype(float), (b @ q).astype(float), d.astype(float))
        except PosquadError:  # rows of zeros, and other systems that are refused there
            continue
        proof = exact_minimum_trace(b, b @ q, d)
        assert proof.verdict is Verdict.PROVED
        assert float(proof.value) == pytest.approx(near.value, rel=1e-9, abs=1e-12)
        proved += 1
    assert proved > 100


def test_exact_elimination():
    rows = [[Fraction(2), Fraction(1)], [Fraction(4), Fraction(2)]]
    assert solve_exactly(rows, [Fraction(3), Fraction(6)], [Fraction(9), Fraction(1)]) == [1, 1]
    assert solve_exactly(rows, [Fraction(3), Fraction(7)], [Fraction(9), Fraction(1)]) is None


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([[1, 2]], [1, 2], [1, 1]), ShapeError),
        (([[1, 2]], [1], [1]), ShapeError),
        (([], [], [1]), ShapeError),
        (([[1, "x"]], [1], [1, 1]), DtypeError),
        (([[1, float("nan")]], [1], [1, 1]), DtypeError),
        (([[1, 1]], [1], [1, 0]), ValueError),
    ],
)
def test_bad_input(arguments, error):
    with pytest.raises(error):
        exact_minimum_trace(*arguments)


def test_the_certificates_offer_it_by_name():
    assert certificates.ExactMinimumTrace is exact_trace.ExactMinimumTrace
    assert set(exact_trace.__all__) <= set(dir(certificates))
    with pytest.raises(AttributeError, match=r"'posquad.certificates' has no attribute 'exact'"):
        certificates.exact  # noqa: B018
