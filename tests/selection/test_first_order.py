"""First-order selection: SciPy's matrix flow, mpmath integrals, closed forms, Newton."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import scipy.optimize
import torch

from posquad.core.errors import (
    DomainError,
    DtypeError,
    InfeasibleError,
    NonFiniteError,
    ShapeError,
)
from posquad.core.status import Status
from posquad.selection import first_order_selection
from selection_support import symmetric

STARTS = [1.0, 1e-2, 1e-4, 1e-8]
ACCURACY = 1e-9
"""The relative accuracy that the function states."""


def system(seed: int, n: int = 3, d: int = 4, *, diagonal: bool = True, repeated: bool = False):
    """D with orthogonal rows, the first of them positive, B, and y of a positive vector."""
    rng = np.random.default_rng(seed)
    D, B = rng.normal(size=(n, d)), symmetric(rng, n, d, d)
    D[0] = rng.uniform(0.5, 1.5, d)  # a positive row bounds the solutions
    if repeated:
        D[:, 1] = D[:, 0]
    rows = np.linalg.qr(D.T)[0].T
    D = np.sqrt(d) * rows * np.sign(rows[:1, :1])
    if not diagonal:
        B[:, np.arange(d), np.arange(d)] = 0
    return D, B, D @ rng.uniform(0.5, 2, d)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def projection(D: np.ndarray, y: np.ndarray, q0: np.ndarray) -> np.ndarray:
    """The Bregman projection by SciPy, from its optimality conditions."""
    solution = scipy.optimize.root(
        lambda mu: D @ (q0 * np.exp(D.T @ mu)) - y,
        np.zeros(len(D)),
        jac=lambda mu: (D * (q0 * np.exp(D.T @ mu))) @ D.T,
        options={"xtol": 1e-14},
    )
    q = q0 * np.exp(D.T @ solution.x)
    assert np.abs(D @ q - y).max() < 1e-12
    return q


def flow_limit(A: np.ndarray, y: np.ndarray, q0: np.ndarray) -> np.ndarray:
    """Limit of `dQ/dt = -2(GQ + QG)` by SciPy, with the sums of squares not divided by n."""
    d = len(q0)

    def speed(_: float, flat: np.ndarray) -> np.ndarray:
        Q = flat.reshape(d, d)
        G = np.tensordot(np.einsum("nij,ij->n", A, Q) - y, A, 1)
        return (-2 * (G @ Q + Q @ G)).ravel()

    def near(_: float, flat: np.ndarray) -> float:
        misfit = np.einsum("nij,ij->n", A, flat.reshape(d, d)) - y
        return float(np.linalg.norm(misfit) - 1e-11)

    near.terminal = True  # type: ignore[attr-defined]
    path = scipy.integrate.solve_ivp(
        speed, (0, 1e4), np.diag(q0).ravel(), "DOP853", rtol=1e-12, atol=1e-14, events=near
    )
    assert path.status == 1
    return path.y[:, -1].reshape(d, d)


def diagonals(D: np.ndarray) -> np.ndarray:
    return D[:, :, None] * np.eye(D.shape[1])


CASES = [
    # seed, start, B has a diagonal, a joint eigenvalue is repeated
    (0, 1.0, True, False),
    (1, 1.0, False, True),
    (2, 1e-2, True, True),
    (3, 1e-2, False, False),
]


@pytest.mark.parametrize(("seed", "eps", "diagonal", "repeated"), CASES)
def test_the_full_matrix_flow_departs_as_the_law_says(seed, eps, diagonal, repeated):
    """The error of the law is of order two in s, and Richardson's derivative agrees with R."""
    D, B, y = system(seed, diagonal=diagonal, repeated=repeated)
    q0 = eps * np.random.default_rng(100 + seed).uniform(0.5, 2, 4)
    law = first_order_selection(D, B, y, q0)
    assert law.status is Status.CONVERGED
    sizes = np.array([0.04, 0.02, 0.01]) / max(1.0, np.linalg.norm(law.R) / 4)
    limits = [flow_limit(diagonals(D) + s * B, y, q0) for s in sizes]
    base = np.diag(law.q)
    errors = [np.linalg.norm(Q - base - s * law.R) for Q, s in zip(limits, sizes, strict=True)]
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert (np.abs(orders - 2) < 0.15).all()
    # The quotients are R + c s + c' s^2 + ...; two extrapolations leave the third power.
    quotients = [(Q - base) / s for Q, s in zip(limits, sizes, strict=True)]
    twice = [2 * b - a for a, b in itertools.pairwise(quotients)]
    thrice = (4 * twice[1] - twice[0]) / 3
    assert relative(thrice, law.R) < 1e-4
    assert relative(thrice, law.R) < relative(twice[1], law.R) < relative(quotients[2], law.R)


def von_neumann(A: np.ndarray, y: np.ndarray, q0: np.ndarray) -> np.ndarray:
    """The von Neumann projection of diag(q0) by SciPy: Newton's method on its dual."""

    def point(dual: np.ndarray) -> np.ndarray:
        return scipy.linalg.expm(np.diag(np.log(q0)) + np.tensordot(dual, A, 1))

    def misfit(dual: np.ndarray) -> np.ndarray:
        return np.einsum("nij,ij->n", A, point(dual)) - y

    def jacobian(dual: np.ndarray) -> np.ndarray:
        exponent = np.diag(np.log(q0)) + np.tensordot(dual, A, 1)
        changes = [scipy.linalg.expm_frechet(exponent, M, compute_expm=False) for M in A]
        return np.einsum("nij,mij->nm", A, np.array(changes))

    dual = np.zeros(len(y))
    for _ in range(100):
        step = np.linalg.solve(jacobian(dual), misfit(dual))
        dual = dual - step * min(1.0, 1.0 / np.abs(step).max())
        if np.abs(step).max() < 1e-14:
            break
    assert np.abs(misfit(dual)).max() < 1e-12
    return point(dual)


def integrated(D: np.ndarray, y: np.ndarray, q0: np.ndarray) -> np.ndarray:
    """The path integrals by SciPy, `[n, d, d]`, with the log of q as the unknown of the flow."""
    n, d = D.shape
    logs = np.log(q0)

    def field(_: float, state: np.ndarray) -> np.ndarray:
        L = logs + D.T @ state[:n]
        speed = -(D @ np.exp(L) - y)
        weight = np.cosh((L[:, None] - L[None, :]) / 2)
        return np.concatenate([speed, (speed[:, None, None] * weight).ravel()])

    def near(_: float, state: np.ndarray) -> float:
        return np.linalg.norm(D @ np.exp(logs + D.T @ state[:n]) - y) - 1e-12

    near.terminal = True  # type: ignore[attr-defined]
    path = scipy.integrate.solve_ivp(
        field, (0, 1e4), np.zeros(n + n * d * d), "DOP853", rtol=1e-13, atol=1e-13, events=near
    )
    assert path.status == 1
    end = np.exp(logs + D.T @ path.y[:n, -1])
    return np.sqrt(np.outer(end, end)) * path.y[n:, -1].reshape(n, d, d)


@pytest.mark.parametrize("eps", [1.0, 1e-4, 1e-8])
def test_coupled_measurements_against_scipys_quadrature(eps):
    """Three measurements that share all coordinates, with a repeated joint eigenvalue."""
    D, B, y = system(12, repeated=True)
    q0 = eps * np.array([1.0, 2.0, 0.5, 1.5])
    law = first_order_selection(D, B, y, q0)
    assert law.status is Status.CONVERGED
    assert relative(law.integrals, integrated(D, y, q0)) < ACCURACY


@pytest.mark.parametrize(("seed", "eps", "diagonal", "repeated"), CASES)
def test_von_neumann_matrix_is_the_derivative_of_the_projection(seed, eps, diagonal, repeated):
    D, B, y = system(seed, diagonal=diagonal, repeated=repeated)
    q0 = eps * np.random.default_rng(100 + seed).uniform(0.5, 2, 4)
    law = first_order_selection(D, B, y, q0)

    def central(s: float) -> np.ndarray:
        ends = (von_neumann(diagonals(D) + t * B, y, q0) for t in (s, -s))
        return (next(ends) - next(ends)) / (2 * s)

    s = 5e-4
    derivative = (4 * central(s) - central(2 * s)) / 3  # up to s^4
    assert relative(derivative, law.V) < 1e-7
    np.testing.assert_array_equal(law.gap, law.R - law.V)
    np.testing.assert_array_equal(np.diagonal(law.gap), 0)


def separate(y, q0, B):
    """R for D = I, where `q_a` is a logistic function of time, by quadrature with mpmath."""
    d = len(y)
    with mpmath.workdps(30):
        Y, start = [mpmath.mpf(float(v)) for v in y], [mpmath.mpf(float(v)) for v in q0]

        def q(a, t):
            return Y[a] / (1 + (Y[a] / start[a] - 1) * mpmath.exp(-4 * Y[a] * t))

        wake = [mpmath.log(Y[a] / start[a]) / (4 * Y[a]) for a in range(d)]
        last = max(0, *wake) + 70 / (4 * min(Y))
        inner = {t + k for t in wake for k in (-4, -2, -1, 0, 1, 2, 4)}
        points = [0, *sorted(t for t in inner if 0 < t < last), last]
        R = np.diag(np.zeros(d))
        for a in range(d):
            for b in range(a):

                def integrand(t, a=a, b=b):
                    force = sum((q(i, t) - Y[i]) * float(B[i, a, b]) for i in range(d))
                    return mpmath.cosh(mpmath.log(q(a, t) / q(b, t)) / 2) * force

                value = -4 * mpmath.sqrt(Y[a] * Y[b]) * mpmath.quad(integrand, points)
                R[a, b] = R[b, a] = float(value)
    return R


@pytest.mark.parametrize("eps", STARTS)
def test_separate_measurements_against_mpmath(eps):
    rng = np.random.default_rng(5)
    B, y = symmetric(rng, 3, 3, 3), np.array([1.0, 0.25, 0.6])
    B[:, np.arange(3), np.arange(3)] = 0
    q0 = eps * np.array([1.0, 0.5, 2.0])
    law = first_order_selection(np.eye(3), B, y, q0)
    assert law.status is Status.CONVERGED
    np.testing.assert_allclose(law.q, y, rtol=1e-13)
    assert relative(law.R, separate(y, q0, B)) < ACCURACY


def test_two_by_two_by_hand():
    """D = I, y = (1, 1/2), Q0 = I/4.

    With x = exp(-2t), from 1 to 0: q_1 = 1 / (1 + 3x^2) and q_2 = 1 / (2 (1 + x)), so that
    dmu_1 = -6x dx / (1 + 3x^2), dmu_2 = -dx / (1 + x) and q_1/q_2 = 2(1 + x) / (1 + 3x^2).
    """
    with mpmath.workdps(30):

        def weight(x):
            ratio = 2 * (1 + x) / (1 + 3 * x**2)
            return mpmath.sqrt(0.5) * (mpmath.sqrt(ratio) + 1 / mpmath.sqrt(ratio)) / 2

        first = mpmath.quad(lambda x: weight(x) * 6 * x / (1 + 3 * x**2), [0, 0.5, 1])
        second = mpmath.quad(lambda x: weight(x) / (1 + x), [0, 0.5, 1])
        # At the end Delta = log 2: the logarithmic mean of 1 and 1/2 is 1 / (2 log 2).
        mean = 1 / (2 * mpmath.log(2))
        V = mean * (mpmath.log(4) + 3 * mpmath.log(2))
    B = np.array([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 3.0], [3.0, 0.0]]])
    law = first_order_selection(np.eye(2), B, np.array([1.0, 0.5]), np.full(2, 0.25))
    np.testing.assert_allclose(law.dual, [np.log(4), np.log(2)], rtol=1e-13)
    np.testing.assert_allclose(law.integrals[:, 0, 1], [float(first), float(second)], rtol=1e-10)
    np.testing.assert_allclose(law.R, float(first + 3 * second) * B[0], rtol=1e-10)
    np.testing.assert_allclose(law.V, float(V) * B[0], rtol=1e-12)
    assert abs(law.gap[0, 1]) > 0.01
    # The integrals with the weights (1, -1) depend on the end alone: q_1 - q_2.
    assert float(first - second) == pytest.approx(0.5, rel=1e-20)


@pytest.mark.parametrize("eps", STARTS)
@pytest.mark.parametrize("seed", range(2))
def test_common_rotation_turns_the_limit(seed, eps):
    """`A_i(s) = exp(sK) D_i exp(-sK)` still commute: the limit from eps I turns with them.

    From another start `exp(sK) Q0 exp(-sK)` would do so; what is missing is its first-order part,
    `[K, Q0]`, which the flow multiplies by `sqrt(q_a q_b / (q0_a q0_b))`.
    """
    D, _, y = system(seed, repeated=True)
    M = np.random.default_rng(seed).normal(size=(4, 4))
    K = M - M.T
    B = K * D[:, None, :] - D[:, :, None] * K
    starts = eps * np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 0.5, 1.5]])
    law = first_order_selection(D, B, y, starts)
    assert law.status is Status.CONVERGED
    np.testing.assert_allclose(law.q @ D.T, np.stack([y, y]), atol=1e-12)
    for q, q0, R, integrals in zip(law.q, starts, law.R, law.integrals, strict=True):
        growth = np.sqrt(np.outer(q, q) / np.outer(q0, q0))
        turned = K * (q[None, :] - q[:, None]) - growth * K * (q0[None, :] - q0[:, None])
        # The terms of R are as large as this and cancel.
        size = np.einsum("iab,iab->ab", np.abs(integrals), np.abs(B)).max()
        assert np.abs(R - turned).max() < ACCURACY * size
        assert np.abs(np.diagonal(R)).max() < 1e-12 * size
    assert np.abs(law.gap[0]).max() < ACCURACY * np.abs(law.integrals[0]).max()


@pytest.mark.parametrize("eps", STARTS)
def test_one_measurement_from_a_multiple_of_the_identity_has_no_gap(eps):
    D, B, y = system(4, n=1)
    law = first_order_selection(D, B, y, np.full(4, eps))
    assert law.status is Status.CONVERGED
    assert np.abs(law.gap).max() < ACCURACY * np.abs(law.R).max()
    # From another start there is one.
    other = first_order_selection(D, B, y, eps * np.array([1.0, 2.0, 0.5, 1.5]))
    assert np.abs(other.gap).max() > 1e-3 * np.abs(other.R).max()


@pytest.mark.parametrize("eps", STARTS)
def test_straight_dual_path_has_no_gap(eps):
    """Two copies of one measurement on different coordinates: their residuals stay equal."""
    D = np.array([[1.0, 2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 2.0, 0.0]])
    B = symmetric(np.random.default_rng(0), 2, 5, 5)
    law = first_order_selection(D, B, np.array([1.5, 1.5]), np.full(5, eps))
    assert law.dual[0] == pytest.approx(law.dual[1], rel=1e-13)
    assert np.abs(law.gap).max() < ACCURACY * np.abs(law.R).max()
    bent = first_order_selection(D, B, np.array([1.5, 0.7]), np.full(5, eps))
    assert np.abs(bent.gap).max() > 1e-3 * np.abs(bent.R).max()


@pytest.mark.parametrize("seed", range(3))
def test_diagonal_is_the_derivative_of_the_bregman_projection(seed):
    D, B, y = system(seed, repeated=seed == 2)
    q0 = np.random.default_rng(seed).uniform(0.5, 2, 4)
    slope = np.diagonal(B, axis1=1, axis2=2)

    def central(s: float) -> np.ndarray:
        return (projection(D + s * slope, y, q0) - projection(D - s * slope, y, q0)) / (2 * s)

    s = 2e-3
    expected = (4 * central(s) - central(2 * s)) / 3
    law = first_order_selection(D, B, y, q0)
    assert relative(np.diagonal(law.R), expected) < 1e-8
    np.testing.assert_array_equal(np.diagonal(law.V), np.diagonal(law.R))


def test_from_the_limit_itself_only_the_diagonal_changes():
    """Where q0 already fits, the flow moves only because the measurements changed."""
    D, B, _ = system(6)
    q0 = np.array([1.0, 0.5, 2.0, 1.0])
    law = first_order_selection(D, B, D @ q0, q0)
    np.testing.assert_allclose(law.R, np.diag(np.diagonal(law.R)), atol=1e-12)
    np.testing.assert_allclose(law.q, q0, rtol=1e-13)
    assert np.abs(np.diagonal(law.R)).max() > 0.1
    # Least squares in the metric q: the change of q that restores the responses.
    weighted = D * q0
    lost = np.diagonal(B, axis1=1, axis2=2) @ q0
    expected = -weighted.T @ np.linalg.solve(weighted @ D.T, lost)
    np.testing.assert_allclose(np.diagonal(law.R), expected, rtol=1e-10)


@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-6, 1e-9])
def test_from_near_the_limit_the_path_is_short(distance):
    """One measurement of two coordinates: the integral is elementary."""
    D, B = np.array([[1.0, 3.0]]), np.array([[[0.0, 1.0], [1.0, 0.0]]])
    q0 = np.array([1.0, 0.5])
    mu = distance
    q = q0 * np.exp(D[0] * mu)
    with mpmath.workdps(40):
        start = mpmath.log(mpmath.mpf(2)) / 2
        turn = mpmath.sinh(start - mpmath.mpf(mu)) - mpmath.sinh(start)
        root = mpmath.sqrt(mpmath.mpf(0.5)) * mpmath.exp(2 * mpmath.mpf(mu))
        expected = float(-root * turn)  # Delta = log 2 - 2 mu
    law = first_order_selection(D, B, D @ q, q0)
    # The response is known to rounding, hence mu to about eps.
    rounding = 20 * np.finfo(float).eps / distance
    rel = ACCURACY * max(1.0, 1e-4 / distance) + rounding
    assert law.R[0, 1] == pytest.approx(expected, rel=rel)


def test_growth_for_small_starts_has_the_predicted_power_and_constant():
    """`R_12 ~ y_1^(1-k/2) y_2^(1/2) Beta(1 + k/2, (1-k)/2) / 2 eps^(-(1-k)/2)`, k = y_2/y_1."""
    k, starts = 0.4, np.array([1e-6, 1e-9, 1e-12])
    B = np.array([[[0.0, 1.0], [1.0, 0.0]], np.zeros((2, 2))])
    law = first_order_selection(np.eye(2), B, np.array([2.0, 2 * k]), starts[:, None] * np.ones(2))
    constant = 2 ** (1 - k / 2) * np.sqrt(2 * k) * float(mpmath.beta(1 + k / 2, (1 - k) / 2)) / 2
    deviations = np.abs(law.R[:, 0, 1] * starts ** ((1 - k) / 2) / constant - 1)
    assert (deviations[1:] < 0.3 * deviations[:-1]).all()
    assert deviations[-1] < 1e-3


def test_batches_broadcast_and_match_single_calls():
    D, B, y = system(7)
    targets = np.stack([y, 1.2 * y])[:, None]
    q0 = np.array([1.0, 1e-2, 1e-5])[:, None] * np.array([1.0, 2.0, 0.5, 1.0])
    law = first_order_selection(D, B, targets, q0)
    assert law.R.shape == law.V.shape == law.gap.shape == (2, 3, 4, 4)
    assert law.q.shape == (2, 3, 4)
    assert law.dual.shape == (2, 3, 3)
    assert law.integrals.shape == (2, 3, 3, 4, 4)
    assert law.error.shape == law.steps.shape == (2, 3)
    np.testing.assert_array_equal(law.R, np.swapaxes(law.R, -1, -2))
    for i, j in np.ndindex(2, 3):
        single = first_order_selection(D, B, targets[i, 0], q0[j])
        assert relative(single.R, law.R[i, j]) < ACCURACY
        np.testing.assert_allclose(single.V, law.V[i, j], rtol=1e-10, atol=1e-13)
    empty = first_order_selection(D, B, y, q0[:0])
    assert empty.R.shape == (0, 4, 4)
    assert empty.status is Status.CONVERGED


def test_integrals_serve_every_perturbation():
    D, B, y = system(8, diagonal=False)
    law = first_order_selection(D, B, y, np.full(4, 1e-3))
    other = symmetric(np.random.default_rng(1), 3, 4, 4)
    other[:, np.arange(4), np.arange(4)] = 0
    expected = np.einsum("iab,iab->ab", law.integrals, other)
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(
        first_order_selection(D, other, y, np.full(4, 1e-3)).R, expected, atol=1e-12
    )


@pytest.mark.parametrize(("unit_D", "unit_q"), [(1e60, 1.0), (1.0, 1e-90), (1e-40, 1e70)])
def test_units_do_not_matter(unit_D, unit_q):
    D, B, y = system(9)
    q0 = np.full(4, 1e-2)
    law = first_order_selection(D, B, y, q0)
    scaled = first_order_selection(unit_D * D, unit_D * B, unit_D * unit_q * y, unit_q * q0)
    assert scaled.status is Status.CONVERGED
    for name, unit in (("R", unit_q), ("V", unit_q), ("q", unit_q), ("dual", 1 / unit_D)):
        assert relative(getattr(scaled, name) / unit, getattr(law, name)) < ACCURACY


def test_one_coordinate():
    law = first_order_selection(
        np.array([[2.0]]), np.array([[[3.0]]]), np.array([4.0]), np.array([1e-3])
    )
    # (2 + 3s) q = 4
    np.testing.assert_allclose(law.R, [[-3.0]], rtol=1e-12)
    np.testing.assert_allclose(law.q, [2.0], rtol=1e-12)
    assert law.status is Status.CONVERGED
    assert "R=" in repr(law)


def test_tensors_single_precision_and_gradients():
    D, B, y = system(10)
    arrays = (D, B, y, np.full(4, 0.1))
    expected = first_order_selection(*arrays)
    tensor = first_order_selection(*map(torch.from_numpy, arrays))
    assert isinstance(tensor.R, torch.Tensor)
    np.testing.assert_array_equal(tensor.R.numpy(), expected.R)
    single = first_order_selection(*(x.astype(np.float32) for x in arrays))
    assert single.R.dtype == single.integrals.dtype == single.error.dtype == np.float32
    assert relative(single.R, expected.R) < 1e-4  # the inputs are rounded
    leaf = torch.from_numpy(B).requires_grad_()
    again = first_order_selection(
        *map(torch.from_numpy, (D,)), leaf, *map(torch.from_numpy, arrays[2:])
    )
    np.testing.assert_array_equal(again.R.numpy(), expected.R)


def test_too_few_steps_are_reported():
    D, B, y = system(11)
    law = first_order_selection(D, B, y, np.full(4, 1e-4), max_steps=3)
    assert law.status is Status.NOT_CONVERGED
    assert np.isfinite(law.R).all()
    assert law.error > 1e-9


D2, B2 = np.array([[1.0, 1.0]]), np.eye(2)[None]
Y2, Q2 = np.array([1.0]), np.ones(2)


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ((D2[0], B2, Y2, Q2), ShapeError, "D"),
        ((np.ones((0, 2)), B2, Y2, Q2), ShapeError, "D"),
        ((D2, B2[0], Y2, Q2), ShapeError, "B"),
        ((D2, np.ones((1, 3, 3)), Y2, Q2), ShapeError, "B"),
        ((D2, np.array([[[0.0, 1.0], [0.0, 0.0]]]), Y2, Q2), DomainError, "B"),
        ((D2, B2, np.ones(2), Q2), ShapeError, "y"),
        ((D2, B2, Y2, np.ones(3)), ShapeError, "q0"),
        ((D2, B2, Y2, np.array([1.0, 0.0])), DomainError, "q0"),
        ((D2, B2, np.ones((2, 1)), np.ones((3, 2))), ShapeError, "y, q0"),
        ((D2, np.nan * B2, Y2, Q2), NonFiniteError, "B"),
        ((D2, B2, Y2, np.array(["a", "b"])), DtypeError, "q0"),
        ((D2, B2, -Y2, Q2), InfeasibleError, "y"),
    ],
)
def test_bad_arguments(arguments, error, name):
    with pytest.raises(error, match=f"^{name}:"):
        first_order_selection(*arguments)


def test_bad_step_limit():
    with pytest.raises(DomainError, match="max_steps"):
        first_order_selection(D2, B2, Y2, Q2, max_steps=0)


def test_redundant_rows_are_refused_with_the_reason():
    D = np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 3.0], [2.0, 3.0, 4.0]])
    with pytest.raises(DomainError, match=r"stop being redundant.*rank 2"):
        first_order_selection(D, np.zeros((3, 3, 3)), D @ np.ones(3), np.ones(3))
    with pytest.raises(DomainError, match="rank 0"):
        first_order_selection(np.zeros((1, 3)), np.zeros((1, 3, 3)), np.zeros(1), np.ones(3))


def test_why_redundant_rows_are_refused():
    """Two equal measurements of one number, the second turned by s: the limit jumps at s = 0.

    At s = 0 the flow keeps q_1 / q_2 and ends at (2/3, 1/3). For s > 0 the difference of the two
    measurements, s (q_1 - q_2) = 0, is a condition of its own, and the limit is (1/2, 1/2).
    """
    y, q0 = np.array([1.0, 1.0]), np.array([1.0, 0.5])
    both = np.array([np.eye(2), np.eye(2)])
    np.testing.assert_allclose(np.diagonal(flow_limit(both, y, q0)), [2 / 3, 1 / 3], atol=1e-9)
    for s in (0.2, 0.1):
        turned = both + s * np.array([np.zeros((2, 2)), np.diag([1.0, -1.0])])
        limit = np.diagonal(flow_limit(turned, y, q0))
        np.testing.assert_allclose(limit, [0.5, 0.5], atol=1e-6)
