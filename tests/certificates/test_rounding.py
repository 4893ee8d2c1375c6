"""The proofs of positive definiteness and their rounding bounds, against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posquad.certificates.proofs.rounding import (
    UNIT,
    down,
    gamma,
    in_range,
    norm_above,
    product_with_error,
    proves_above,
    total,
    up,
    witness_error,
)


def exactly(array):
    return [[Fraction(float(x)) for x in row] for row in array]


def is_positive_semidefinite(M: list[list[Fraction]]) -> bool:
    """Positive semidefinite, by exact symmetric elimination; a zero pivot needs a zero row."""
    M = [row[:] for row in M]
    m = len(M)
    for k in range(m):
        pivot = M[k][k]
        if pivot < 0 or (pivot == 0 and any(M[k][j] != 0 for j in range(k, m))):
            return False
        if pivot == 0:
            continue
        for i in range(k + 1, m):
            factor = M[i][k] / pivot
            for j in range(k, m):
                M[i][j] -= factor * M[k][j]
    return True


def near_singular(rng, m, size):
    """A symmetric matrix with smallest eigenvalue about `size`, the others of order one."""
    Q = np.linalg.qr(rng.standard_normal((m, m)))[0]
    M = (Q * np.append(size, rng.uniform(0.5, 2, m - 1))) @ Q.T
    return np.tril(M) + np.tril(M, -1).T


@pytest.mark.parametrize("m", [1, 2, 5, 9])
def test_what_is_proved_is_true_in_exact_arithmetic(m):
    rng = np.random.default_rng(m)
    proved = 0
    for size in np.concatenate([10.0 ** np.arange(-17, 0.0), -(10.0 ** np.arange(-17, 0.0))]):
        for _ in range(6):
            G = near_singular(rng, m, size)
            if proves_above(G, np.zeros(m), 0.0):
                proved += 1
                assert is_positive_semidefinite(exactly(G))
    assert proved > 50  # it is not always False


def test_what_is_clearly_definite_is_proved():
    """The proof succeeds down to about 8 m^2 u times the size of the matrix."""
    rng = np.random.default_rng(0)
    for m in (1, 3, 20, 60):
        for _ in range(5):
            G = near_singular(rng, m, 40 * (m + 10) * m * UNIT)
            assert proves_above(G, np.zeros(m), 0.0)
            assert not proves_above(G, np.zeros(m), 80 * (m + 10) * m * UNIT)


def test_shift_is_below_the_smallest_eigenvalue_in_fifty_digits():
    rng = np.random.default_rng(1)
    with mpmath.workdps(50):
        for _ in range(40):
            m = int(rng.integers(2, 7))
            G = near_singular(rng, m, rng.uniform(-1, 1))
            low = float(mpmath.eigsy(mpmath.matrix(G.tolist()), eigvals_only=True)[0])
            for off in (1e-13, 1e-10, 1e-3):
                assert proves_above(G, np.zeros(m), low - 10 * off - 1e-11)
                assert not proves_above(G, np.zeros(m), low + off)


def test_spread_counts():
    """Every matrix within the spread is covered: the worst one is G minus the rank-one spread."""
    rng = np.random.default_rng(2)
    answers = set()
    for _ in range(200):
        m = int(rng.integers(1, 6))
        G = near_singular(rng, m, rng.uniform(0, 1))
        spread = 10.0 ** rng.uniform(-3, 0, m)
        answer = proves_above(G, spread, 0.0)
        answers.add(answer)
        if answer:
            signs = rng.choice([-1.0, 1.0], m)
            worst = exactly(G)
            s = [Fraction(float(x)) for x in spread * signs]
            worst = [[worst[i][j] - s[i] * s[j] for j in range(m)] for i in range(m)]
            assert is_positive_semidefinite(worst)
    assert answers == {True, False}


def test_graded_matrices_lose_nothing():
    """Positive definite through thirty orders of magnitude: the weights scale with the rows."""
    rng = np.random.default_rng(3)
    G = near_singular(rng, 6, 0.1)
    scale = 10.0 ** np.arange(0, -18, -3.0)
    graded = scale[:, None] * G * scale
    graded = np.tril(graded) + np.tril(graded, -1).T
    assert proves_above(graded, np.zeros(6), 0.0)
    assert np.linalg.eigvalsh(graded)[0] < 1e-16 * np.linalg.eigvalsh(graded)[-1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e308])
def test_nothing_is_proved_from_overflowing_numbers(bad):
    G = np.eye(3)
    G[0, 1] = G[1, 0] = bad
    assert not proves_above(G, np.zeros(3), 0.0)
    assert not proves_above(np.eye(3), np.array([0.0, bad, 0.0]), 0.0)
    assert not proves_above(np.eye(3), np.zeros(3), abs(bad))


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(0, 40))
def test_compensated_products_are_within_their_bound(seed, k, digits):
    """Against fractions, with cancellation up to forty digits."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((2, k)) * 10.0 ** rng.uniform(-digits / 4, digits / 4, (2, k))
    U = rng.standard_normal((k, 2)) * 10.0 ** rng.uniform(-digits / 4, digits / 4, (k, 2))
    result, error = product_with_error(X, U)
    x, u = exactly(X), exactly(U)
    for i in range(2):
        for j in range(2):
            exact = sum((x[i][a] * u[a][j] for a in range(k)), Fraction(0))
            assert abs(Fraction(float(result[i, j])) - exact) <= Fraction(float(error[i, j]))


@given(st.lists(st.floats(0, 1e20), min_size=1, max_size=50))
def test_sums_and_norms_are_bounded_above(values):
    exact = sum((Fraction(x) for x in values), Fraction(0))
    assert Fraction(total(np.array(values))) >= exact
    squares = sum((Fraction(x) ** 2 for x in values), Fraction(0))
    assert Fraction(norm_above(np.array(values))) ** 2 >= squares


@given(st.integers(1, 2**48))
def test_gamma_is_its_formula_rounded_up(k):
    exact = Fraction(k, 2**53) / (1 - Fraction(k, 2**53))
    assert exact <= Fraction(gamma(k)) <= exact * (1 + Fraction(2, 10**14))


def test_gamma_is_infinite_from_a_tenth_on():
    assert math.isfinite(gamma(int(0.0999 * 2**53)))
    assert gamma(int(0.1001 * 2**53)) == math.inf


def test_scalars_are_moved_by_a_hundred_roundings_and_not_more():
    assert 90 * UNIT <= up(1.0) - 1 <= 100 * UNIT
    assert 90 * UNIT <= 1 - down(1.0) <= 100 * UNIT
    assert up(0.0) == down(0.0) == 0.0
    assert math.isnan(up(-1.0))
    assert math.isnan(down(-1.0))


def test_bounds_are_near_what_they_bound():
    """Sums of 50 numbers to 1e-13, products in twice the precision to two roundings."""
    rng = np.random.default_rng(0)
    values = rng.uniform(0, 1, 50)
    exact = sum((Fraction(x) for x in values), Fraction(0))
    assert exact <= Fraction(total(values)) <= exact * (1 + Fraction(1, 10**13))
    squares = sum((Fraction(x) ** 2 for x in values), Fraction(0))
    assert squares <= Fraction(norm_above(values)) ** 2 <= squares * (1 + Fraction(1, 10**13))
    X, U = rng.uniform(1, 2, (3, 6)), rng.uniform(1, 2, (6, 2))
    result, error = product_with_error(X, U)
    assert np.all(error <= 3 * UNIT * np.abs(result))
    assert np.all(error >= UNIT * np.abs(result))


@pytest.mark.parametrize("m", [1, 4, 9])
def test_residual_of_a_wrong_witness_is_its_row_sum(m):
    """A witness that is off by a thousandth: the largest row sum of `D^-1 |M - LL'| D^-1`."""
    rng = np.random.default_rng(m)
    L = np.tril(rng.standard_normal((m, m))) + 2 * np.eye(m)
    E = 1e-3 * rng.standard_normal((m, m))
    M = L @ L.T + E + E.T
    weights = rng.uniform(1, 2, m)
    off = np.abs(E + E.T) / np.sqrt(weights[:, None] * weights)
    told = witness_error(M.copy(), L, weights, 0.25)
    assert told == pytest.approx(off.sum(1).max() + 0.25, rel=1e-11)
    assert told >= (off.sum(1).max() + 0.25) * (1 - 1e-13)


def test_gamma_and_range():
    assert in_range(np.array([1e-20, 0.0]))
    assert not in_range(np.full(3, 0.99e-20))
    assert gamma(100) >= 100 * UNIT / (1 - 100 * UNIT)
    assert gamma(2**51) == math.inf
    assert in_range(np.ones(2), np.full(3, 1e20))
    assert not in_range(np.ones(2), np.full(3, 1e21))
    assert not in_range(np.zeros(2))
