"""`recover` for measurements `<A_i, Q>` by symmetric matrices.

Oracles: the same problem given by rows, Clarabel at rank d, SciPy from many starts below it, proofs
of certificates, and closed forms.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch

from positive_support import clarabel_fit, largest_least_eigenvalue
from posquad import Dense, GaussianPopulation, Interrupted, LeastSquares, RankOne, Status, recover
from posquad.certificates import proved_least_residual, verify
from posquad.core.errors import DomainError, NonFiniteError, PosquadError, ShapeError
from posquad.geometry import dimension
from posquad.problems.combination import positive_combination
from posquad.problems.operator import Measurements
from posquad.recovery import diagnose
from posquad.recovery.budget import Budget, History
from posquad.recovery.coordinates import has_uneven_norms, prepare
from posquad.recovery.problem import Problem
from posquad.recovery.search import Search
from posquad.recovery.solvers.reflections import MatrixReflections, run_reflections
from recovery_support import costs_are

UNIQUE = {Status.RECOVERED, Status.CERTIFIED}


def symmetric(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Gaussian symmetric matrices `[..., d, d]`."""
    A = rng.standard_normal(shape)
    return (A + A.swapaxes(-1, -2)) / 2


def forms(A: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """`<A_i, Q>`, by einsum."""
    return np.einsum("...iab,...ab->...i", A, Q)


def outer(X: np.ndarray) -> np.ndarray:
    """`x_i x_i'`, `[..., n, d, d]`."""
    return X[..., :, None] * X[..., None, :]


def away(Q: np.ndarray, P: np.ndarray) -> float:
    """`||Q - P|| / ||P||`."""
    return float(np.linalg.norm(Q - P) / np.linalg.norm(P))


def sensed(seed: int, n: int, d: int, r: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gaussian matrices, a positive semidefinite Q of rank r, and its measurements."""
    rng = np.random.default_rng([seed, n, d, r])
    A, U = symmetric(rng, n, d, d), rng.standard_normal((d, r))
    return A, U @ U.T, forms(A, U @ U.T)


# The same problem by rows.


def rows_problem(seed: int, n: int, d: int, r: int, noise: float = 0.0):
    rng = np.random.default_rng([7, seed])
    X, U = rng.standard_normal((n, d)), rng.standard_normal((d, r))
    y = ((X @ U) ** 2).sum(1)
    return X, y * (1 + noise * rng.standard_normal(n))


def exact():
    return *rows_problem(0, 24, 6, 2), 2, {}


def rank_unknown():
    return *rows_problem(1, 30, 5, 2), None, {}


def rank_unknown_noisy():
    return *rows_problem(2, 60, 4, 2, 0.02), None, {}


def noisy():
    return *rows_problem(3, 40, 5, 2, 0.1), 2, {}


def weighted():
    X, y = rows_problem(4, 40, 5, 2, 0.1)
    w = np.random.default_rng(4).uniform(0, 3, 40)
    w[:3] = 0  # and left out
    return X, y, 2, {"weights": w}


def rank_too_low():
    return *rows_problem(5, 40, 5, 3), 1, {}


def full_rank_few():
    return *rows_problem(6, 12, 5, 5), 5, {}


def full_rank_few_noisy():
    return *rows_problem(6, 12, 5, 5, 0.5), 5, {}


def full_rank_many():
    return *rows_problem(7, 40, 5, 5, 0.5), 5, {}


def full_rank_exact():
    return *rows_problem(8, 25, 5, 5), 5, {}


def indefinite():
    """No positive semidefinite matrix is near: the best fit is on the boundary of the cone."""
    X, _ = rows_problem(9, 30, 4, 4)
    return X, X[:, 0] ** 2 - 2 * X[:, 1] ** 2, 4, {}


def as_many_as_unknowns():
    return *rows_problem(10, dimension(5, 2), 5, 2), 2, {}


def uneven():
    X, _ = rows_problem(11, 30, 5, 2)
    X = X * 10.0 ** np.random.default_rng(11).uniform(-3, 3, (30, 1))
    return X, ((X @ np.random.default_rng(12).standard_normal((5, 2))) ** 2).sum(1), 2, {}


def subspace():
    X, _ = rows_problem(13, 40, 5, 2)
    X = X @ np.linalg.qr(np.random.default_rng(13).standard_normal((5, 3)))[0] @ np.eye(3, 5)
    return X, (X[:, :2] ** 2).sum(1), 2, {}


def zero():
    return rows_problem(14, 20, 4, 1)[0], np.zeros(20), 2, {}


def started():
    X, y = rows_problem(15, 24, 6, 2)
    return X, y, 2, {"start": np.random.default_rng(0).standard_normal((6, 2))}


def undiagnosed():
    return *rows_problem(16, 24, 6, 2), 2, {"diagnose": False}


def huber():
    X, y = rows_problem(17, 60, 4, 2, 0.05)
    y[:4] += 60
    return X, y, 2, {"loss": "huber"}


def geman_mcclure():
    X, y = rows_problem(17, 60, 4, 2, 0.05)
    y[:4] += 60
    return X, y, 2, {"loss": "geman-mcclure"}


def poisson():
    X, y = rows_problem(18, 80, 4, 2)
    return X, np.random.default_rng(18).poisson(5 * y).astype(float), 2, {"loss": "poisson"}


def batch():
    parts = [rows_problem(19 + k, 24, 5, 2, 0.1 * (k == 1)) for k in range(3)]
    X, y = (np.array(part) for part in zip(*parts, strict=True))
    return X, y, 2, {}


def many_responses():
    X, _ = rows_problem(23, 24, 5, 2)
    U = np.random.default_rng(23).standard_normal((4, 5, 2))
    return X, ((X @ U) ** 2).sum(-1), 2, {}


def many_responses_full_rank():
    X, _ = rows_problem(24, 24, 4, 4)
    return X, np.random.default_rng(24).standard_normal((4, 24)) + 1, 4, {}


KINDS = (
    *(exact, rank_unknown, rank_unknown_noisy, noisy, weighted, rank_too_low),
    *(
        full_rank_few,
        full_rank_few_noisy,
        full_rank_many,
        full_rank_exact,
        indefinite,
        as_many_as_unknowns,
    ),
    *(uneven, subspace, zero, started, undiagnosed, huber, geman_mcclure, poisson),
    *(batch, many_responses, many_responses_full_rank),
)
NOT_UNIQUE = {full_rank_few, as_many_as_unknowns}  # any answer that reproduces y will do


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_of_rank_one_give_the_answer_of_their_rows(kind):
    X, y, rank, options = kind()
    rows = recover(X, y, rank, **options)
    found = recover(Dense(outer(X)), y, rank, **options)
    assert found.status == rows.status
    assert np.array_equal(found.rank, rows.rank)
    assert np.array_equal(found.samples, rows.samples)
    assert np.array_equal(found.needed, rows.needed)
    # Residuals of best fits agree to 1e-10, and so their matrices to the root of that.
    exact = np.max(rows.residual) < 1e-10
    if kind not in NOT_UNIQUE:
        P = rows.Q.dense()
        apart = np.linalg.norm(found.Q.dense() - P)
        assert apart <= (1e-9 if exact else 1e-5) * np.linalg.norm(P)
    assert found.residual == pytest.approx(np.asarray(rows.residual), rel=1e-6, abs=1e-11)
    if options.get("loss") != "poisson":  # whose squares have weights of their own
        root = np.sqrt(options.get("weights", np.ones(y.shape[-1])))
        e = np.linalg.norm(root * (forms(outer(X), found.Q.dense()) - y), axis=-1)
        size = np.linalg.norm(root * y, axis=-1)
        expected = e / np.where(size > 0, size, 1)
        assert found.residual == pytest.approx(expected, rel=1e-6, abs=1e-13)


def test_rank_one_measurements_are_their_rows():
    X, y, rank, _ = noisy()
    rows, found = recover(X, y, rank), recover(RankOne(X), y, rank)
    assert np.array_equal(found.U, rows.U)
    assert found.status is rows.status is Status.BEST_FIT
    assert type(found.U) is np.ndarray


# Recovery.


@pytest.mark.parametrize(
    ("n", "d", "r"),
    [(2, 1, 1), (4, 2, 2), (6, 3, 1), (20, 5, 2), (16, 5, 3), (22, 6, 6), (40, 8, 2), (80, 12, 3)],
)
def test_gaussian_matrices_determine_a_matrix(n, d, r):
    A, Q, y = sensed(0, n, d, r)
    found = recover(Dense(A), y, r)
    assert found.status is Status.RECOVERED
    assert int(found.rank) == r
    assert away(found.Q.dense(), Q) < 1e-12
    assert int(found.samples) == min(n, d * (d + 1) // 2)
    path = recover(Dense(A), y, max_rank=max(r, 1))
    assert int(path.rank) == r
    assert away(path.Q.dense(), Q) < 1e-12


LARGE = {"_FEW_UNKNOWNS": 5, "_MODERATE_UNKNOWNS": 15}


@pytest.mark.parametrize(
    ("n", "d", "r", "sizes"),
    [(110, 24, 3, {}), (30, 10, 2, LARGE), (40, 8, 3, LARGE)],  # p = 69, and as if p were > 500
)
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_larger_problems(n, d, r, sizes, noise, monkeypatch):
    """The curvature and the offset of the answer are those of the Jacobian `2 vec(A_i U)`."""
    A, Q, y = sensed(0, n, d, r)
    y = y + noise * np.std(y) * np.random.default_rng(0).standard_normal(n)
    if sizes:
        monkeypatch.setattr(diagnose, "_decomposes", lambda unknowns: False)
    with costs_are(**sizes):
        found = recover(Dense(A), y, r)
    J = (2 * A @ found.U).reshape(n, -1)
    e = forms(A, found.Q.dense()) - y
    if noise:
        assert found.status in (Status.BEST_FIT, Status.STALLED)
        # The columns of J have r(r - 1) / 2 relations, the turns of U.
        offset = np.linalg.norm(np.linalg.svd(J)[0][:, : dimension(d, r)].T @ e)
        assert offset <= 1e-6 * np.linalg.norm(e)
        assert 0.01 < float(found.residual) < 0.15
    else:
        assert found.status is Status.RECOVERED
        assert away(found.Q.dense(), Q) < 1e-10
        values = np.linalg.svd(J)[1][: dimension(d, r)] ** 2
        low, high = found.curvature
        assert high / low == pytest.approx(values[0] / values[-1], rel=0.15)


@pytest.mark.parametrize(("n", "d", "r"), [(1, 1, 1), (3, 2, 2), (9, 5, 2), (5, 5, 2), (21, 6, 6)])
def test_as_many_matrices_as_unknowns_are_not_enough(n, d, r):
    A, _, y = sensed(0, n, d, r)
    found = recover(Dense(A), y, r)
    assert found.status is Status.NOT_IDENTIFIED
    assert np.linalg.norm(forms(A, found.Q.dense()) - y) <= 1e-10 * np.linalg.norm(y)


def test_multiples_of_a_matrix_count_once():
    A, _, y = sensed(0, 9, 5, 2)
    factors = np.repeat([1.0, -2.0, 0.5], 9)
    found = recover(
        Dense(factors[:, None, None] * np.tile(A, (3, 1, 1))), factors * np.tile(y, 3), 2
    )
    assert int(found.samples) == 9
    assert found.status is Status.NOT_IDENTIFIED


@pytest.mark.parametrize("rank", [2, None, 5])
def test_norms_and_coordinates_of_very_different_size(rank):
    """Twenty orders in the A_i and four in the coordinates change nothing."""
    A, Q, _ = sensed(1, 30, 5, 2)
    rng = np.random.default_rng(0)
    D = np.diag([100.0, 0.01, 1.0, 3.0, 0.1])
    turned = D @ A @ D * 10.0 ** rng.uniform(-10, 10, 30)[:, None, None]
    P = np.linalg.inv(D) @ Q @ np.linalg.inv(D)
    found = recover(Dense(turned), forms(turned, P), rank)
    assert found.status is Status.RECOVERED
    assert int(found.rank) == 2
    assert away(D @ found.Q.dense() @ D, Q) < 1e-10


@pytest.mark.parametrize(("spread", "rotated"), [(1e6, False), (1e3, True)])
def test_whitening_makes_the_sum_of_squares_isotropic(spread, rotated):
    A, _, y = sensed(1, 30, 5, 2)
    D = np.diag(np.geomspace(1, spread, 5))
    if rotated:
        D = D @ np.linalg.qr(np.random.default_rng(0).standard_normal((5, 5)))[0]
    prepared = prepare(Dense(torch.as_tensor(D.T @ A @ D)), torch.as_tensor(y), None)
    working = prepared.problem.operator.A.numpy()
    values = np.linalg.eigvalsh((working @ working).sum(0))
    assert values[-1] <= 1.8 * values[0]  # that of Gaussian A_i, which are not whitened
    T = prepared.transform.numpy()
    assert working == pytest.approx(T.T @ D.T @ A @ D @ T, rel=1e-8, abs=1e-8)


def test_norms_are_uneven_with_their_weights():
    """The square of a measurement counts with its weight, so that `w^(1/2) ||A_i||` is its size."""
    sizes = 10.0 ** np.linspace(-6, 6, 30)
    A, _, _ = sensed(1, 30, 5, 2)
    A /= np.linalg.norm(A, axis=(1, 2))[:, None, None]
    even, spread = Dense(torch.as_tensor(A)), Dense(torch.as_tensor(sizes[:, None, None] * A))
    w = torch.as_tensor(1 / sizes**2)
    assert has_uneven_norms(spread, None)
    assert not has_uneven_norms(spread, w)
    assert has_uneven_norms(even, w)
    assert not has_uneven_norms(even, None)


def test_matrices_in_a_subspace_leave_the_rest_undetermined():
    A, Q, y = sensed(2, 20, 3, 2)
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 3)))[0]
    found = recover(Dense(basis @ A @ basis.T), y, 2)
    assert found.status is Status.UNDETERMINED
    assert away(found.Q.dense(), basis @ Q @ basis.T) < 1e-10


def test_two_blocks_that_no_matrix_joins_are_not_identified():
    """`diag(Q_1, Q_2)` with other signs of the second block of U has the same measurements."""
    A, Q, _ = sensed(3, 40, 6, 2)
    first = np.arange(6) < 3
    A = A * (first[:, None] == first)
    turn = np.linalg.qr(np.random.default_rng(3).standard_normal((6, 6)))[0]
    for T in (np.eye(6), turn):
        found = recover(Dense(T.T @ A @ T), forms(A, Q), 2)
        assert found.status is Status.NOT_IDENTIFIED


def test_other_methods_than_two_kernels_are_not_needed():
    A, Q, y = sensed(1, 24, 5, 2)
    held = torch.as_tensor(A)

    class Mapped(Measurements):
        n, d, batch_shape = 24, 5, torch.Size()

        def apply_kernel(self, Q):
            return torch.einsum("iab,...ab->...i", held, Q)

        def adjoint_kernel(self, z):
            return torch.einsum("...i,iab->...ab", z, held)

    found = recover(Mapped(), y, 2)
    assert found.status is Status.RECOVERED
    assert away(found.Q.dense(), Q) < 1e-12


@pytest.mark.parametrize("rank", [1, 2, 4, None])
def test_the_population_determines_every_matrix(rank):
    U = np.random.default_rng(0).standard_normal((4, rank or 2))
    operator = GaussianPopulation(4)
    found = recover(operator, operator.apply(U @ U.T), rank)
    assert found.status is Status.RECOVERED
    assert away(found.Q.dense(), U @ U.T) < 1e-12


def test_every_problem_of_a_batch_has_its_answer_alone():
    A, _, y = (
        np.array(part) for part in zip(*(sensed(k, 24, 5, 2) for k in range(4)), strict=True)
    )
    y[1] += np.random.default_rng(0).standard_normal(24)
    y[2] = 0
    together = recover(Dense(A[None]), y[None], 2)
    assert together.U.shape == (1, 4, 5, 2)
    for k in range(4):
        alone = recover(Dense(A[k]), y[k], 2)
        assert together.status[0][k] is alone.status
        assert int(together.rank[0, k]) == int(alone.rank)
        Q = alone.Q.dense()
        assert np.linalg.norm(together.Q.dense()[0, k] - Q) <= 1e-6 * np.linalg.norm(Q)


# The best fit.


@pytest.mark.parametrize(("n", "d"), [(1, 2), (4, 3), (6, 3), (10, 4), (20, 5), (60, 5)])
@pytest.mark.parametrize("bounded", [False, True])
def test_the_best_fit_at_full_rank_is_that_of_clarabel(n, d, bounded):
    """A positive definite A_1 bounds Q, so that the least error is reached."""
    for seed in range(3):
        rng = np.random.default_rng([n, d, seed])
        A, y = symmetric(rng, n, d, d), rng.standard_normal(n)
        if bounded:
            A[0] = np.eye(d) + 0.1 * A[0]
            y[0] = -abs(y[0])
        found, size = recover(Dense(A), y, d), np.linalg.norm(y)
        reference = float(np.linalg.norm(forms(A, clarabel_fit(A, y)) - y) / size)
        own = float(np.linalg.norm(forms(A, found.Q.dense()) - y) / size)
        assert float(found.residual) == pytest.approx(own, abs=1e-12)
        assert own == pytest.approx(reference, abs=1e-8)
        if bounded:
            assert found.status is Status.BEST_FIT
        if found.status is Status.BEST_FIT:
            proved = proved_least_residual(Dense(A), y, found.farkas) / size
            assert reference * (1 - 1e-6) <= proved <= own * (1 + 1e-14)
            assert float(found.residual_bound) == pytest.approx(own, rel=1e-8)


def test_weights_at_full_rank_are_those_of_the_squares():
    rng = np.random.default_rng(5)
    A, y, w = symmetric(rng, 30, 4, 4), rng.standard_normal(30), rng.uniform(0.1, 5, 30)
    found = recover(Dense(A), y, 4, weights=w)
    root = np.sqrt(w)
    scaled, target = root[:, None, None] * A, root * y
    least = np.linalg.norm(forms(scaled, clarabel_fit(scaled, target)) - target)
    assert float(found.residual) == pytest.approx(least / np.linalg.norm(target), abs=1e-8)
    plain = recover(Dense(A), y, 4)
    assert away(plain.Q.dense(), found.Q.dense()) > 0.05


@pytest.mark.parametrize(("n", "d", "r"), [(20, 3, 1), (30, 4, 2), (25, 5, 1)])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_best_fit_of_low_rank_is_the_best_of_scipy(n, d, r, weighted):
    A, _, y = sensed(4, n, d, r)
    rng = np.random.default_rng([n, d, r])
    y = y + 0.3 * np.std(y) * rng.standard_normal(n)
    w = rng.uniform(0, 4, n) if weighted else np.ones(n)
    found = recover(Dense(A), y, r, weights=w if weighted else None)

    def errors(u):
        U = u.reshape(d, r)
        return np.sqrt(w) * (forms(A, U @ U.T) - y)

    def slopes(u):
        return np.sqrt(w)[:, None] * (2 * A @ u.reshape(d, r)).reshape(n, -1)

    runs = [
        scipy.optimize.least_squares(errors, start, slopes, xtol=1e-12, ftol=1e-14, gtol=1e-14)
        for start in rng.standard_normal((25, d * r))
    ]
    best = min(runs, key=lambda run: run.cost)
    U = best.x.reshape(d, r)
    assert found.status is Status.BEST_FIT
    least = np.sqrt(2 * best.cost) / np.linalg.norm(np.sqrt(w) * y)
    assert float(found.residual) == pytest.approx(least, rel=1e-9)
    assert away(found.Q.dense(), U @ U.T) < 1e-5


def test_outliers_do_not_move_a_robust_fit():
    A, Q, y = sensed(5, 80, 5, 2)
    y[::10] += 100
    far = away(recover(Dense(A), y, 2).Q.dense(), Q)
    for loss in ("huber", "geman-mcclure"):
        found = recover(Dense(A), y, 2, loss=loss, scale=0.01)
        assert away(found.Q.dense(), Q) < 0.1 * far
    assert away(found.Q.dense(), Q) < 1e-3


# What is proved, and what must not be said.


@pytest.mark.parametrize(("n", "d", "r"), [(40, 5, 1), (40, 5, 2), (60, 6, 2), (12, 3, 3)])
def test_a_certificate_proves_that_the_answer_is_the_only_one(n, d, r):
    A, Q, y = sensed(1, n, d, r)
    found = recover(Dense(A), y, r, certify=True)
    assert found.status is Status.CERTIFIED
    assert found.certificate.proved
    assert verify(LeastSquares(Dense(A), y), found.certificate).proved
    assert away(found.Q.dense(), Q) < 1e-12


@pytest.mark.parametrize("rank", [1, 4, None])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_zero_is_not_the_only_answer_where_the_kernel_holds_a_positive_matrix(rank, k):
    """P, of rank k, is taken out of every A_i: every multiple of it has measurements zero."""
    rng = np.random.default_rng(k)
    for n in (9, 12, 40):
        A, V = symmetric(rng, n, 4, 4), rng.standard_normal((4, k))
        P = V @ V.T / np.linalg.norm(V @ V.T)
        found = recover(Dense(A - forms(A, P)[:, None, None] * P), np.zeros(n), rank)
        assert found.status is Status.NOT_IDENTIFIED
        assert int(found.rank) == 0
    found = recover(Dense(A), np.zeros(n), rank)  # 40 matrices determine every Q
    assert found.status is Status.RECOVERED
    assert not found.Q.dense().any()


@pytest.mark.parametrize("rank", [1, 2, None])
def test_a_least_error_that_no_matrix_reaches_is_no_minimum(rank):
    """`q_11 = 0` and `q_12 = 1` hold in the limit of [[1 / t, 1], [1, t]] only."""
    A = np.array([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.5], [0.5, 0.0]]])
    found = recover(Dense(A), np.array([0.0, 1.0]), rank)
    assert found.status is Status.NO_MINIMUM
    assert float(found.residual_bound) == 0
    assert 0 < float(found.residual) < 1e-6


def test_two_solutions_are_not_called_one():
    """The difference of two matrices of rank 2 is taken out of every A_i."""
    rng = np.random.default_rng(0)
    for n in (16, 25, 40):
        U, V = rng.standard_normal((2, 6, 2))
        H = U @ U.T - V @ V.T
        H /= np.linalg.norm(H)
        A = symmetric(rng, n, 6, 6)
        A -= forms(A, H)[:, None, None] * H
        found = recover(Dense(A), forms(A, U @ U.T), 2, certify=True)
        assert found.status is Status.NOT_IDENTIFIED
        assert not bool(found.excluded)


# Kinds of arrays.


def test_tensors_give_tensors():
    A, Q, y = sensed(0, 24, 5, 2)
    found = recover(Dense(torch.as_tensor(A)), torch.as_tensor(y), 2)
    assert all(isinstance(part, torch.Tensor) for part in (found.U, found.residual, found.rank))
    assert away(found.Q.dense().numpy(), Q) < 1e-12
    assert isinstance(recover(Dense(torch.as_tensor(A)), y, 2).U, np.ndarray)


@pytest.mark.parametrize("precision", ["float64", "input"])
@pytest.mark.parametrize("rank", [2, 5])
def test_single_precision(precision, rank):
    A, Q, y = (part.astype(np.float32) for part in sensed(0, 30, 5, rank))
    found = recover(Dense(A), y, rank, precision=precision)
    assert found.U.dtype == (np.float32 if precision == "input" else np.float64)
    assert found.status is Status.RECOVERED
    assert away(found.Q.dense(), Q) < 1e-5


def test_arrays_that_are_not_contiguous():
    A, Q, y = sensed(0, 24, 5, 2)
    flipped = np.ascontiguousarray(A[::-1].transpose(2, 1, 0)).transpose(2, 1, 0)
    found = recover(Dense(flipped), np.repeat(y[::-1], 2)[::2], 2)
    assert away(found.Q.dense(), Q) < 1e-12


# Wrong calls.


@pytest.mark.parametrize(
    ("error", "words", "options"),
    [
        (
            ShapeError,
            r"^y: .*30.*one response per measurement; got shape \(29,\)",
            {"y": np.ones(29)},
        ),
        (DomainError, r"^y: ", {"y": None}),
        (NonFiniteError, r"^y: ", {"y": np.full(30, np.nan)}),
        (ShapeError, r"^A, y: .*batch", {"A": np.zeros((3, 30, 5, 5)), "y": np.ones((2, 30))}),
        (ShapeError, r"^weights: .*one weight per measurement", {"weights": np.ones(3)}),
        (DomainError, r"^weights: .*nonnegative", {"weights": -np.ones(30)}),
        (DomainError, r"^weights: .*only zeros", {"weights": np.zeros(30)}),
        (ShapeError, r"^start: ", {"start": np.ones((4, 2))}),
        (DomainError, r"^start: .*at most rank", {"start": np.ones((5, 3))}),
        (DomainError, r"^rank: ", {"rank": 6}),
        (DomainError, r"^checkpoint: ", {"checkpoint": "state"}),
        (DomainError, r"^certify: .*batch", {"y": np.ones((2, 30)), "certify": True}),
        (DomainError, r"^A: .*symmetric", {"A": np.arange(750.0).reshape(30, 5, 5)}),
        (NonFiniteError, r"^A: ", {"A": np.full((30, 5, 5), np.inf)}),
        (ShapeError, r"^A: ", {"A": np.ones((30, 5, 4))}),
        (ShapeError, r"^A: ", {"A": np.ones((5, 5))}),
        (DomainError, r"^y: .*count", {"loss": "poisson", "y": -np.ones(30)}),
    ],
)
def test_wrong_calls(error, words, options):
    given = {"A": sensed(0, 30, 5, 2)[0], "y": np.ones(30), "rank": 2, **options}
    with pytest.raises(error, match=words) as caught:
        recover(Dense(given.pop("A")), given.pop("y"), given.pop("rank"), **given)
    assert isinstance(caught.value, PosquadError)


def test_matrices_that_would_not_fit_into_memory():
    with pytest.raises(DomainError, match="GaussianPopulation with n = 20101, d = 200"):
        recover(GaussianPopulation(200), np.zeros(20_101), 1)


def test_matrices_given_as_inputs_are_pointed_out():
    A, _, y = sensed(0, 6, 4, 1)
    with pytest.warns(UserWarning, match=r"posquad\.Dense\(A\)") as caught:
        found = recover(A, np.abs(y)[:, None] * np.ones(4), 1)
    assert [warning.filename for warning in caught] == [__file__]
    assert found.residual.shape == (6,)
    recover(A + np.triu(np.ones((4, 4)), 1), np.ones((6, 4)), 1)  # a batch: no warning


# Limits.


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("rank", "options"), [(2, {}), (5, {}), (None, {}), (2, {"loss": "huber"})]
)
def test_ctrl_c_returns_the_best_so_far(rank, options, count):
    A, _, y = sensed(6, 30, 5, 2)
    y = y + np.random.default_rng(0).standard_normal(30)
    seen = []

    def press(progress):
        seen.append(progress)
        if len(seen) == count:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        recover(Dense(A), y, rank, progress=press, **options)
    found = caught.value.result
    assert found.status is Status.INTERRUPTED
    e = forms(A, found.Q.dense()) - y
    if not options:
        assert float(found.residual) == pytest.approx(np.linalg.norm(e) / np.linalg.norm(y))


def test_ctrl_c_between_two_searches_keeps_what_was_found(monkeypatch):
    A, _, y = sensed(6, 30, 5, 2)
    y[:3] += 50
    run, calls = Search.run, []

    def interrupted(*args, **options):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return run(*args, **options)

    monkeypatch.setattr(Search, "run", interrupted)
    with pytest.raises(Interrupted) as caught:
        recover(Dense(A), y, 2, loss="geman-mcclure")
    found = caught.value.result
    e = forms(A, found.Q.dense()) - y
    assert found.status is Status.INTERRUPTED
    assert float(found.residual) == pytest.approx(np.linalg.norm(e) / np.linalg.norm(y))
    assert float(found.residual) < 1


@pytest.mark.parametrize("limit", [{"max_steps": 1}, {"time_limit": 1e-9}])
@pytest.mark.parametrize("rank", [2, 5, None])
def test_a_limit_ends_the_call(limit, rank):
    A, _, y = sensed(7, 30, 5, 2)
    y = y + np.random.default_rng(0).standard_normal(30)
    found = recover(Dense(A), y, rank, **limit)
    assert found.status is Status.INTERRUPTED
    e = forms(A, found.Q.dense()) - y
    assert float(found.residual) == pytest.approx(np.linalg.norm(e) / np.linalg.norm(y))
    assert found.steps <= 1


# The parts.


def test_a_positive_combination_is_found_where_there_is_one():
    """Clarabel finds the largest least eigenvalue of `A*(w)` over `|w_i| <= 1`: 0 if none."""
    seen = {True: 0, False: 0}
    for seed in range(120):
        rng = np.random.default_rng([11, seed])
        d = int(rng.integers(1, 5))
        n = int(rng.integers(1, d * (d + 1) // 2 + 2))
        A = symmetric(rng, n, d, d)
        if seed % 3 == 0:  # a positive semidefinite matrix is taken out
            V = rng.standard_normal((d, int(rng.integers(1, d + 1))))
            P = V @ V.T / np.linalg.norm(V @ V.T)
            A = A - forms(A, P)[:, None, None] * P
        least = largest_least_eigenvalue(A)
        sizes = 10.0 ** rng.uniform(-3, 3, n)
        found = positive_combination(Dense(torch.as_tensor(A * sizes[:, None, None])))
        if found is not None:
            w, M = found
            combined = np.einsum("i,iab->ab", w.numpy() * sizes, A)
            values = np.linalg.eigvalsh(combined)
            assert values[0] > 1e-3 * values[-1] > 0
            assert M.numpy() == pytest.approx(combined, rel=1e-9, abs=1e-9 * values[-1])
            assert least > 1e-7
        else:
            assert least < 0.1
        seen[found is not None] += 1
    assert min(seen.values()) > 30


def test_a_batch_has_positive_combinations_where_every_problem_has():
    eye, mixed = np.eye(2)[None], np.diag([1.0, -1.0])[None]
    found = positive_combination(Dense(torch.as_tensor(np.stack([eye, 3 * eye]))))
    assert found is not None
    assert bool((found[0] > 0).all())
    assert positive_combination(Dense(torch.as_tensor(np.stack([eye, mixed])))) is None


def reflected_problem(*batch: int) -> tuple[Problem, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(8)
    A, U = symmetric(rng, *batch, 14, 5, 5), rng.standard_normal((*batch, 5, 2))
    Q = U @ U.swapaxes(-1, -2)
    y = forms(A, Q)
    return Problem(Dense(torch.as_tensor(A)), torch.as_tensor(y)), A, U, y


def test_a_step_is_ten_reflections_of_the_formula():
    problem, A, _, y = reflected_problem()
    U0 = np.random.default_rng(0).standard_normal((3, 5, 2))
    method = MatrixReflections(problem, 0.6)
    state = method.advance(method.start(torch.as_tensor(U0)))
    rows = A.reshape(14, 25)
    inverse = np.linalg.pinv(rows)
    for k in range(3):
        Z = U0[k] @ U0[k].T
        for _ in range(10):
            inside = Z - (inverse @ (rows @ Z.ravel() - y)).reshape(5, 5)
            values, vectors = np.linalg.eigh(2 * inside - Z)
            low = (vectors[:, -2:] * np.maximum(values[-2:], 0)) @ vectors[:, -2:].T
            Z = Z + 0.6 * (low - inside)
        assert state.Z[k].numpy() == pytest.approx(Z, rel=1e-8, abs=1e-8)
        assert (state.U[k] @ state.U[k].mT).numpy() == pytest.approx(low, rel=1e-8, abs=1e-8)
        gap = np.linalg.norm(low - inside) / np.linalg.norm(inside)
        assert float(state.gap[k]) == pytest.approx(gap, rel=1e-6)
        misfit = np.linalg.norm(forms(A, low) - y) / np.linalg.norm(y)
        assert float(state.residual[k]) == pytest.approx(misfit, rel=1e-6)


def test_reflections_rest_at_a_solution_and_only_there():
    problem, A, U, y = reflected_problem()
    starts = torch.as_tensor(np.stack([U, *np.random.default_rng(1).standard_normal((7, 5, 2))]))
    method, history = MatrixReflections(problem, 0.6), History(Budget(max_steps=10_000))
    first = method.advance(method.start(starts))
    assert float(first.gap[0]) < 1e-12
    assert first.Z[0].numpy() == pytest.approx(U @ U.T, abs=1e-12)
    assert bool((first.gap[1:] > 1e-6).all())
    ended = run_reflections(method, starts, history, gap=1e-9, steps=20_000, enough=4)
    near = (ended.gap <= 1e-9).nonzero()[:, 0].tolist()
    assert len(near) >= 4
    for k in near:
        V = ended.U[k].numpy()
        assert np.linalg.norm(forms(A, V @ V.T) - y) <= 1e-7 * np.linalg.norm(y)


def test_problems_of_a_batch_are_reflected_as_alone():
    problem, *_ = reflected_problem(3)
    U0 = torch.as_tensor(np.random.default_rng(2).standard_normal((4, 1, 5, 2)))
    method = MatrixReflections(problem, 0.6)
    state = method.advance(method.start(U0))
    for k in range(3):
        alone = MatrixReflections(
            Problem(problem.operator.holding(problem.operator.data[k]), problem.y[k]), 0.6
        )
        one = alone.advance(alone.start(U0[:, 0]))
        torch.testing.assert_close(state.Z[:, k], one.Z, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(state.gap[:, k], one.gap, rtol=1e-6, atol=1e-9)


def test_counts_need_nonnegative_means():
    A = np.array([np.diag([1.0, -1.0]), np.eye(2), np.diag([1.0, 0.0])])
    with pytest.raises(DomainError, match=r"A: expected positive semidefinite.*got a least.*-1"):
        recover(Dense(A), np.array([1.0, 2.0, 1.0]), 1, loss="poisson")
    assert recover(Dense(A[1:]), np.array([2.0, 1.0]), 1, loss="poisson").rank == 1
