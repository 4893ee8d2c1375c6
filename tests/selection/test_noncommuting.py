"""Beyond commuting measurements: SciPy's logm and expm, mpmath, linear programs, brute force."""

from __future__ import annotations

import itertools
import math
import sys

import mpmath
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st

from posquad.core.errors import (
    DomainError,
    DtypeError,
    InfeasibleError,
    MissingExtraError,
    NonFiniteError,
    ShapeError,
)
from posquad.core.status import Status
from posquad.selection import (
    bregman_divergence,
    bregman_projection,
    commutator_size,
    commuting_family,
    dialed_family,
    distance_to_minimum_trace,
    joint_spectral_reduction,
    minimum_trace_interpolant,
    von_neumann_divergence,
    von_neumann_projection,
)
from posquad.selection.projection import Projection
from posquad.selection.von_neumann import divided_differences
from selection_support import symmetric

EPS = np.finfo(float).eps
X, Z = np.array([[0.0, 1.0], [1.0, 0.0]]), np.diag([1.0, -1.0])


def definite(rng: np.random.Generator, d: int, smallest: float = 0.1) -> np.ndarray:
    V = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return symmetrized((V * rng.uniform(smallest, 2, d)) @ V.T)


def symmetrized(M: np.ndarray) -> np.ndarray:
    return (M + M.T) / 2


def measure(A: np.ndarray, Q: np.ndarray) -> np.ndarray:
    return np.einsum("nij,...ij->...n", A, Q)


def problem(n: int, d: int, seed: int = 0, scale: float = 1.0):
    """Generic A, the measurements of a positive definite matrix, and a start of the given scale."""
    rng = np.random.default_rng(seed)
    A = symmetric(rng, n, d, d)
    return A, measure(A, definite(rng, d)), scale * definite(rng, d)


def assert_feasible(A, y, found: Projection) -> None:
    assert found.status is Status.CONVERGED
    assert np.linalg.eigvalsh(found.q).min() > -10 * EPS * np.abs(found.q).max()
    np.testing.assert_array_equal(found.q, np.swapaxes(found.q, -1, -2))
    # Eigenvectors round like d additions.
    size = np.linalg.norm(A, axis=(-2, -1)).max() * np.linalg.norm(found.q)
    misfit = np.abs(measure(A, found.q) - y).max()
    assert misfit < 20 * A.shape[-1] * EPS * size
    # Its own report leaves out how rows are scaled.
    assert found.residual < 200 * A.shape[-1] * EPS


SIZES = [(1, 1), (1, 4), (2, 3), (3, 3), (5, 4), (10, 4), (14, 5)]
"""(n, d), up to n = d(d+1)/2, where the constraints leave one matrix."""


@pytest.mark.parametrize(("n", "d"), SIZES)
def test_projection_is_feasible_and_its_logarithm_moves_in_the_span(n, d):
    """Feasibility and `log Q - log Q0` in span(A_i) characterise the minimum: it is convex."""
    A, y, Q0 = problem(n, d)
    found = von_neumann_projection(A, y, Q0)
    assert_feasible(A, y, found)
    change = scipy.linalg.logm(found.q) - scipy.linalg.logm(Q0)
    rounding = 1e3 * d * EPS * np.linalg.cond(found.q) * np.linalg.cond(Q0)
    np.testing.assert_allclose(change, np.tensordot(found.dual, A, 1), atol=rounding)
    again = scipy.linalg.expm(scipy.linalg.logm(Q0) + np.tensordot(found.dual, A, 1))
    np.testing.assert_allclose(again, found.q, atol=rounding)


def entropy(M: np.ndarray) -> float:
    values = np.linalg.eigvalsh(M)
    return float(values @ np.log(values))


@pytest.mark.parametrize("seed", range(3))
def test_no_feasible_matrix_is_nearer(seed):
    A, y, Q0 = problem(3, 3, seed)
    Q = von_neumann_projection(A, y, Q0).q
    log_Q0 = scipy.linalg.logm(Q0)

    def excess(H: np.ndarray, t: float) -> float:
        return entropy(Q + t * H) - entropy(Q) - t * np.trace(H @ (log_Q0 + np.eye(3)))

    rng = np.random.default_rng(seed + 100)  # other numbers than those of A
    for _ in range(20):
        H = symmetric(rng, 3, 3)
        weights = np.linalg.lstsq(A.reshape(3, -1).T, H.ravel(), rcond=None)[0]
        H = H - np.tensordot(weights, A, 1)  # <A_i, H> = 0: Q + tH stays feasible
        t = 0.05 * np.linalg.eigvalsh(Q)[0] / np.linalg.norm(H)
        assert excess(H, t) > 0
        # Quadratic in t, to t^3: a first-order term would give a ratio of two.
        assert excess(H, 2 * t) / excess(H, t) == pytest.approx(4, abs=0.3)


@pytest.mark.parametrize("eps", [1.0, 1e-6, 1e-150])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_bregman_projection_when_everything_commutes(seed, eps):
    rng = np.random.default_rng(seed)
    d = np.array([1, 3, 2, 1, 2])
    B = rng.normal(size=(3, 5))
    B = np.vstack([B, d])  # the trace is measured, so that the solutions are bounded
    y, q0 = B @ rng.uniform(0.2, 2, 5), eps * rng.uniform(0.5, 2, 5)
    A = commuting_family(B, d, seed=seed)
    reduction = joint_spectral_reduction(A)
    q0 = reduction.coordinates(reduction.predictor(q0))
    expected = reduction.predictor(
        bregman_projection(reduction.B, y, reduction.multiplicities, q0).q
    )
    found = von_neumann_projection(A, y, reduction.predictor(q0))
    np.testing.assert_allclose(found.q, expected, atol=1e-12 * np.linalg.norm(expected))
    assert_feasible(A, y, found)


@pytest.mark.parametrize("eps", [1e-10, 1e-60, 1e-150])
@pytest.mark.parametrize("s", [0.1, 1.0])
def test_tiny_multiples_of_the_identity(eps, s):
    A = dialed_family(3, 5, s, seed=1).numpy()
    y = measure(A, definite(np.random.default_rng(4), 5))
    found = von_neumann_projection(A, y, eps * np.eye(5))
    assert_feasible(A, y, found)
    # Pade's expm instead of an eigendecomposition; it rounds with the norm of its argument.
    L = math.log(eps) * np.eye(5) + np.tensordot(found.dual, A, 1)
    np.testing.assert_allclose(
        scipy.linalg.expm(L), found.q, atol=1e3 * EPS * np.linalg.norm(L) * np.linalg.norm(found.q)
    )


def test_hand_worked_projections():
    # <I, Q> = 1, <X, Q> = 2t from the identity: Q = (I + 2t X) / 2 by symmetry.
    found = von_neumann_projection(np.array([np.eye(2), X]), np.array([1.0, 0.6]), np.eye(2))
    np.testing.assert_allclose(found.q, [[0.5, 0.3], [0.3, 0.5]], atol=20 * EPS)
    # Only <X, Q> = 1/2: Q = exp(t X) with 2 sinh t = 1/2. The diagonal of X is zero.
    found = von_neumann_projection(X[None], np.array([0.5]), np.eye(2))
    cosh = math.sqrt(1 + 0.25**2)
    np.testing.assert_allclose(found.q, [[cosh, 0.25], [0.25, cosh]], atol=20 * EPS)
    # The same from a thousandfold smaller start: 2 eps sinh t = 1/2, far enough for the path.
    eps = 1e-30
    found = von_neumann_projection(X[None], np.array([0.5]), eps * np.eye(2))
    np.testing.assert_allclose(found.q, [[0.25, 0.25], [0.25, 0.25]], atol=1e-13)
    assert float(found.dual[0]) == pytest.approx(math.asinh(0.25 / eps), rel=1e-13)
    # Nothing to change.
    found = von_neumann_projection(X[None], np.zeros(1), np.diag([1.0, 3.0]))
    np.testing.assert_allclose(found.q, np.diag([1.0, 3.0]), atol=20 * EPS)


def test_redundant_and_zero_matrices_do_not_matter():
    A, y, Q0 = problem(3, 4)
    more = np.concatenate([A, np.zeros((1, 4, 4)), A[:1] - 1e3 * A[1:2]])
    target = np.concatenate([y, [0.0, y[0] - 1e3 * y[1]]])
    expected = von_neumann_projection(A, y, Q0)
    found = von_neumann_projection(more, target, Q0)
    np.testing.assert_allclose(found.q, expected.q, atol=1e-12)
    assert found.dual.shape == (5,)
    with pytest.raises(InfeasibleError, match="range of A"):
        von_neumann_projection(more, target + np.array([0, 0, 0, 0, 1.0]), Q0)


def test_nothing_measured_leaves_the_start():
    found = von_neumann_projection(np.zeros((1, 2, 2)), np.zeros(1), np.diag([1.0, 2.0]))
    np.testing.assert_allclose(found.q, np.diag([1.0, 2.0]), atol=10 * EPS)
    assert found.residual == 0.0
    assert found.status is Status.CONVERGED


def test_batches_equal_single_calls():
    A, _, _ = problem(3, 4)
    rng = np.random.default_rng(0)
    y = np.array([[measure(A, definite(rng, 4))] for _ in range(2)])  # [2, 1, n]
    Q0 = np.array([scale * definite(rng, 4) for scale in (1.0, 1e-6, 1e-60)])  # [3, d, d]
    found = von_neumann_projection(A, y, Q0)
    assert found.q.shape == (2, 3, 4, 4)
    assert found.dual.shape == (2, 3, 3)
    assert found.residual.shape == found.kkt.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        single = von_neumann_projection(A, y[i, 0], Q0[j])
        np.testing.assert_allclose(found.q[i, j], single.q, atol=1e-11)
    empty = von_neumann_projection(A, y[0, 0], Q0[:0])
    assert empty.q.shape == (0, 4, 4)


def test_kinds():
    A, y, Q0 = problem(2, 3)
    tensor = von_neumann_projection(*map(torch.from_numpy, (A, y, Q0)))
    assert isinstance(tensor.q, torch.Tensor)
    expected = von_neumann_projection(A, y, Q0).q
    np.testing.assert_array_equal(tensor.q.numpy(), expected)
    single = von_neumann_projection(*(x.astype(np.float32) for x in (A, y, Q0)))
    assert single.q.dtype == np.float32
    assert single.status is Status.CONVERGED
    np.testing.assert_allclose(single.q, expected, atol=1e-4)
    leaf = torch.from_numpy(A).requires_grad_()
    np.testing.assert_array_equal(von_neumann_projection(leaf, y, Q0).q.detach(), expected)


@pytest.mark.parametrize(
    ("A", "y"),
    [
        ([np.eye(2)], [-1.0]),  # a negative trace
        ([np.eye(2), X], [1.0, 2.0]),  # |<X, Q>| <= tr Q
    ],
)
def test_without_a_definite_solution_it_does_not_claim_one(A, y):
    found = von_neumann_projection(np.array(A), np.array(y), np.eye(2), max_steps=60)
    assert found.status is Status.NOT_CONVERGED


def test_too_few_steps_are_reported():
    A, y, Q0 = problem(3, 4)
    found = von_neumann_projection(A, y, Q0, max_steps=1)
    assert found.status is Status.NOT_CONVERGED


@given(seed=st.integers(0, 100), c=st.floats(1e-20, 1e20))
def test_scaling_and_rotation(seed, c):
    A, y, Q0 = problem(2, 3, seed)
    V = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    Q = von_neumann_projection(A, y, Q0).q
    turned = np.array([symmetrized(V @ M @ V.T) for M in A])
    found = von_neumann_projection(turned, c * y, c * symmetrized(V @ Q0 @ V.T))
    np.testing.assert_allclose(found.q / c, V @ Q @ V.T, atol=1e-11 * np.linalg.norm(Q))


# Divided differences of the exponential.


@pytest.mark.parametrize("top", [-300.0, 0.0, 1.5, 300.0])
def testdivided_differences(top):
    for gap in (0.0, 1e-300, 1e-12, 1e-6, 1.9e-3, 2.1e-3, 0.1, 1.0, 50.0, 900.0):
        values = torch.tensor([top, top - gap, top - 2 * gap], dtype=torch.float64)
        found = divided_differences(values[None])[0]
        with mpmath.workdps(400):  # a gap of 1e-300 cancels as many digits
            for i, j in itertools.product(range(3), repeat=2):
                a, b = mpmath.mpf(float(values[i])), mpmath.mpf(float(values[j]))
                exact = mpmath.exp(a) if a == b else (mpmath.exp(a) - mpmath.exp(b)) / (a - b)
                # The midpoint is rounded, by its own size, before it is exponentiated.
                rounding = (10 + abs(top)) * EPS
                assert float(found[i, j]) == pytest.approx(float(exact), rel=rounding, abs=1e-320)


# The divergence.


@pytest.mark.parametrize("d", [1, 2, 5])
def test_divergence_matches_logm(d):
    rng = np.random.default_rng(d)
    P, Q = definite(rng, d), definite(rng, d)
    expected = np.trace(P @ (scipy.linalg.logm(P) - scipy.linalg.logm(Q)) - P + Q)
    assert float(von_neumann_divergence(P, Q)) == pytest.approx(expected, abs=1e-13 * d)
    assert abs(float(von_neumann_divergence(P, P))) < 100 * d * EPS
    batch = von_neumann_divergence(np.array([P, Q]), Q)
    np.testing.assert_allclose(batch, [expected, 0], atol=1e-13 * d)


@pytest.mark.parametrize("rank", [0, 1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_divergence_of_singular_matrices(rank, seed):
    rng = np.random.default_rng(seed)
    U, Q = rng.normal(size=(5, rank)), definite(rng, 5)
    # P = UU' has the nonzero eigenvalues of U'U.
    values = np.linalg.eigvalsh(U.T @ U) if rank else np.zeros(0)
    P = U @ U.T
    expected = (values * np.log(values)).sum() - np.trace(P @ scipy.linalg.logm(Q) + P - Q)
    # x log x turns a rounded zero, d eps ||P||, into that times its logarithm.
    assert float(von_neumann_divergence(P, Q)) == pytest.approx(
        expected, abs=5e3 * EPS * (1 + values.sum())
    )


def test_divergence_is_four_times_the_reduced_one_when_they_commute():
    rng = np.random.default_rng(0)
    d = np.array([1, 2, 3])
    reduction = joint_spectral_reduction(commuting_family(rng.normal(size=(2, 3)), d))
    p, q = rng.uniform(0.1, 2, 3), rng.uniform(0.1, 2, 3)
    full = von_neumann_divergence(reduction.predictor(p), reduction.predictor(q))
    reduced = bregman_divergence(p, q, reduction.multiplicities)
    assert float(full) == pytest.approx(4 * float(reduced), abs=200 * EPS)


# The minimum trace.


@pytest.mark.parametrize("seed", range(4))
def test_minimum_trace_is_the_linear_program_when_commuting(seed):
    rng = np.random.default_rng(seed)
    d = rng.integers(1, 4, 5)
    B = rng.uniform(0.1, 1, (2, 5)) * d
    y = B @ rng.uniform(0.2, 2, 5)
    program = scipy.optimize.linprog(d, A_eq=B, b_eq=y)
    found = minimum_trace_interpolant(commuting_family(B, d, seed=seed), y)
    assert found.status is Status.CONVERGED
    assert found.value == pytest.approx(program.fun, rel=1e-8)
    np.testing.assert_allclose(found.check.bound, program.fun, rtol=1e-8)


@pytest.mark.parametrize(("n", "d", "s"), [(1, 1, 0.0), (2, 4, 0.5), (4, 6, 1.0), (3, 2, 1.0)])
def test_minimum_trace_proves_itself(n, d, s):
    A = dialed_family(n, d, s, seed=n).numpy()
    y = measure(A, definite(np.random.default_rng(2), d))
    found = minimum_trace_interpolant(A, y)
    check, Q, z = found.check, found.Q, found.dual
    assert found.status is Status.CONVERGED
    slack = np.linalg.eigvalsh(np.eye(d) - np.tensordot(z, A, 1))[0]
    assert found.value == check.trace == pytest.approx(np.trace(Q), rel=1e-13)
    assert check.bound == pytest.approx(y @ z, rel=1e-12)
    assert check.gap == pytest.approx(np.trace(Q) - y @ z, abs=1e-12)
    assert check.slack == pytest.approx(slack, abs=1e-12)
    assert check.smallest_eigenvalue == pytest.approx(np.linalg.eigvalsh(Q)[0], abs=1e-12)
    assert check.residual == pytest.approx(np.abs(measure(A, Q) - y).max(), abs=1e-12)
    # Weak duality: these four numbers are the proof that tr Q is the minimum, up to 1e-7.
    assert abs(check.gap) < 1e-7 * (1 + check.trace)
    assert check.slack > -1e-7
    assert check.smallest_eigenvalue > -1e-7
    assert check.residual < 1e-7


def test_minimum_trace_is_below_every_projection():
    A, y, Q0 = problem(3, 4, seed=2)
    A[0] += 3 * np.eye(4)
    y = measure(A, Q0)
    minimum = minimum_trace_interpolant(A, y).value
    traces = [np.trace(von_neumann_projection(A, y, eps * np.eye(4)).q) for eps in (1.0, 1e-8)]
    assert minimum <= traces[1] + 1e-8 < traces[0]


def test_minimum_trace_of_redundant_and_infeasible_measurements():
    A = np.array([np.diag([1.0, 2.0])] * 2)
    found = minimum_trace_interpolant(torch.from_numpy(A), torch.tensor([2.0, 2.0]))
    assert isinstance(found.Q, torch.Tensor)
    np.testing.assert_allclose(found.Q, np.diag([0.0, 1.0]), atol=1e-6)
    infeasible = minimum_trace_interpolant(np.eye(2)[None], np.array([-1.0]))
    assert infeasible.status is Status.NOT_CONVERGED


def test_clarabel_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "clarabel", None)  # an import of it now fails
    with pytest.raises(MissingExtraError, match=r"posquad\[sdp\]") as caught:
        minimum_trace_interpolant(np.eye(2)[None], np.ones(1))
    assert caught.value.argument == "clarabel"
    assert isinstance(caught.value, ImportError)


# The dial.


@pytest.mark.parametrize(("n", "d"), [(1, 1), (1, 3), (3, 1), (2, 2), (4, 6)])
def test_dialed_family(n, d):
    start = dialed_family(n, d, 0.0, seed=5)
    assert start.shape == (n, d, d)
    assert start.dtype == torch.float64
    for i, j in itertools.combinations(range(n), 2):
        gap = start[i] @ start[j] - start[j] @ start[i]
        assert float(gap.norm()) < 60 * d * EPS * float(start[i].norm() * start[j].norm())
    for s in (0.01, 0.3, 1.0):
        A = dialed_family(n, d, s, seed=5)
        torch.testing.assert_close(A, A.mT, rtol=0, atol=0)
        torch.testing.assert_close(A, dialed_family(n, d, s, seed=5), rtol=0, atol=0)
        # The bases turn, by at most s pi/2; the spectra stay.
        torch.testing.assert_close(torch.linalg.eigvalsh(A), torch.linalg.eigvalsh(start))
        moved = torch.linalg.matrix_norm(A - start, 2) / torch.linalg.matrix_norm(start, 2)
        assert float(moved.max()) <= math.pi * s + 1e-12
        if n > 1 and d > 1:
            assert float(commutator_size(A)) > 1e-3 * s
    assert float((start - dialed_family(n, d, 0.0, seed=6)).abs().max()) > 1e-3


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize(("n", "d"), [(2, 1), (2, 3), (5, 4)])
def test_commutator_size(batch, n, d):
    A = symmetric(np.random.default_rng(0), *batch, n, d, d) * 10.0 ** np.arange(n)[:, None, None]
    found = commutator_size(A)
    assert found.shape == batch
    for index in np.ndindex(*batch):
        a = A[index]
        squares = [
            np.linalg.norm(a[i] @ a[j] - a[j] @ a[i]) ** 2
            / (2 * np.linalg.norm(a[i]) ** 2 * np.linalg.norm(a[j]) ** 2)
            for i, j in itertools.combinations(range(n), 2)
        ]
        assert found[index] == pytest.approx(math.sqrt(np.mean(squares)), abs=20 * EPS)
        assert 0 <= found[index] <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_zero_matrix_commutes_with_everything(dtype):
    A = torch.tensor(np.array([X, 0 * X]), dtype=dtype)
    assert float(commutator_size(A)) == 0
    assert commutator_size(A).dtype == dtype


def test_pauli_matrices_have_the_largest_commutator():
    assert float(commutator_size(np.array([X, Z]))) == pytest.approx(1, rel=4 * EPS)


# Bad input.

SKEW = np.array([[0.0, 1.0], [-1.0, 0.0]])
BAD_MATRICES = [
    (np.eye(2), ShapeError),
    (np.ones((1, 2, 3)), ShapeError),
    (np.ones((0, 2, 2)), ShapeError),
    (SKEW[None], DomainError),
    (np.full((1, 2, 2), np.nan), NonFiniteError),
    (np.ones((1, 2, 2), dtype=complex), DtypeError),
    ("text", DtypeError),
]
BAD_Y = [
    (np.ones(2), ShapeError),
    (np.float64(1.0), ShapeError),
    (np.array([np.inf]), NonFiniteError),
    (np.ones(1, dtype=complex), DtypeError),
]
BAD_CALLS = [
    *((von_neumann_projection, "A", value, kind) for value, kind in BAD_MATRICES),
    (von_neumann_projection, "A", np.ones((3, 1, 2, 2)), (ShapeError, DomainError)),
    *((von_neumann_projection, "y", value, kind) for value, kind in BAD_Y),
    (von_neumann_projection, "Q0", np.eye(3), ShapeError),
    (von_neumann_projection, "Q0", np.ones(2), ShapeError),
    (von_neumann_projection, "Q0", SKEW, DomainError),
    (von_neumann_projection, "Q0", np.diag([1.0, 0.0]), DomainError),
    (von_neumann_projection, "Q0", np.diag([1.0, -1.0]), DomainError),
    (von_neumann_projection, "Q0", np.diag([1.0, np.nan]), NonFiniteError),
    (von_neumann_projection, "max_steps", 0, DomainError),
    (von_neumann_projection, "max_steps", 1.5, DomainError),
    *((minimum_trace_interpolant, "A", value, kind) for value, kind in BAD_MATRICES),
    (minimum_trace_interpolant, "A", np.ones((3, 1, 2, 2)), (ShapeError, DomainError)),
    *((minimum_trace_interpolant, "y", value, kind) for value, kind in BAD_Y),
    (minimum_trace_interpolant, "y", np.ones((3, 1)), ShapeError),
    (von_neumann_divergence, "P", np.diag([1.0, -1.0]), DomainError),
    (von_neumann_divergence, "P", SKEW, DomainError),
    (von_neumann_divergence, "P", np.ones(2), ShapeError),
    (von_neumann_divergence, "P", np.diag([1.0, np.nan]), NonFiniteError),
    (von_neumann_divergence, "Q", np.diag([1.0, 0.0]), DomainError),
    (von_neumann_divergence, "Q", np.diag([1.0, -1.0]), DomainError),
    (von_neumann_divergence, "Q", SKEW, DomainError),
    (von_neumann_divergence, "Q", np.eye(3), ShapeError),
    (von_neumann_divergence, "Q", np.diag([1.0, np.inf]), NonFiniteError),
    (von_neumann_divergence, "Q", np.eye(2, dtype=complex), DtypeError),
    *((commutator_size, "A", value, kind) for value, kind in BAD_MATRICES),
    (commutator_size, "A", np.eye(2)[None], DomainError),
    (dialed_family, "n", 0, DomainError),
    (dialed_family, "n", 2.0, DomainError),
    (dialed_family, "d", -1, DomainError),
    (dialed_family, "dial", -0.1, DomainError),
    (dialed_family, "dial", 1.1, DomainError),
    (dialed_family, "dial", math.nan, DomainError),
    (dialed_family, "dial", "half", DomainError),
    (distance_to_minimum_trace, "Q", np.eye(3), ShapeError),
    (distance_to_minimum_trace, "Q", np.eye(2)[None], ShapeError),
    (distance_to_minimum_trace, "Q", np.triu(np.ones((2, 2))), DomainError),
]
GOOD = {
    von_neumann_projection: {"A": np.eye(2)[None], "y": np.ones(1), "Q0": np.eye(2)},
    minimum_trace_interpolant: {"A": np.eye(2)[None], "y": np.ones(1)},
    von_neumann_divergence: {"P": np.eye(2), "Q": np.eye(2)},
    commutator_size: {"A": np.array([X, Z])},
    dialed_family: {"n": 2, "d": 2, "dial": 0.5},
    distance_to_minimum_trace: {"A": np.eye(2)[None], "y": np.ones(1), "Q": np.eye(2)},
}


@pytest.mark.parametrize("function", GOOD)
def test_bad_input(function):
    for argument, value, kind in (case[1:] for case in BAD_CALLS if case[0] is function):
        with pytest.raises(kind) as caught:
            function(**{**GOOD[function], argument: value})
        assert caught.value.argument == argument
        assert caught.value.expected
        assert caught.value.got


def test_batches_must_broadcast():
    with pytest.raises(ShapeError) as caught:
        von_neumann_projection(np.eye(2)[None], np.ones((3, 1)), np.array([np.eye(2)] * 2))
    assert caught.value.argument == "y, Q0"
    with pytest.raises(ShapeError) as caught:
        von_neumann_divergence(np.array([np.eye(2)] * 3), np.array([np.eye(2)] * 2))
    assert caught.value.argument == "P, Q"


@pytest.mark.parametrize("scale", [1e-6, 1e9])
def test_semidefinite_programs_do_not_depend_on_units(scale):
    A = dialed_family(4, 5, 1.0, seed=2).numpy()
    G = np.random.default_rng(0).standard_normal((5, 5))
    y = np.einsum("nij,ij->n", A, G @ G.T)
    plain = minimum_trace_interpolant(A, y)
    for scaled, unit in ((minimum_trace_interpolant(A, scale * y), scale),
                         (minimum_trace_interpolant(scale * A, scale * y), 1.0)):  # fmt: skip
        assert scaled.status is Status.CONVERGED
        assert scaled.value / unit == pytest.approx(plain.value, rel=1e-6)


@pytest.mark.parametrize("corner", [0.0, 1.0, 2.0])
def test_distance_to_the_one_minimum_trace_interpolant(corner):
    """<e1 e1', Q> = 1 has the one solution diag(1, 0); diag(c, c) is |(c - 1, c)| away from it."""
    far = distance_to_minimum_trace(np.diag([1.0, 0.0])[None], np.ones(1), corner * np.eye(2))
    assert far == pytest.approx(math.hypot(corner - 1, corner), abs=1e-4)


@pytest.mark.parametrize("value", [1.0, 1e10])
def test_a_zero_measurement_with_a_response_has_no_interpolant(value):
    """No number overflows on the way, whatever the response."""
    A, y = np.stack([np.eye(2), np.zeros((2, 2))]), np.array([1.0, value])
    assert minimum_trace_interpolant(A, y).status is Status.NOT_CONVERGED
