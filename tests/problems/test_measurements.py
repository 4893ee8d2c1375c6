"""RankOne, Dense and GaussianPopulation: the conformance suite, and what is particular to each."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance import EVERY, MeasurementsConformance, Record, arguments, check, twin
from posquad import Dense, GaussianPopulation, LeastSquares, RankOne
from posquad.problems import measurements, packed
from posquad.problems.packed import Packed
from support import normal, ratio, rotation

# (n, d, batch shape of the operator)
SHAPES = [
    (1, 1, ()),
    (5, 1, ()),
    (1, 4, ()),
    (7, 3, ()),
    (40, 6, ()),
    (6, 3, (2,)),
    (4, 2, (2, 3)),
    (4, 2, (0,)),
]


class TestRankOne(MeasurementsConformance):
    @pytest.fixture(params=SHAPES, ids=str)
    def build(self, request, rng):
        n, d, batch = request.param
        X = normal(rng, *batch, n, d)
        return lambda dtype=torch.float64, device="cpu": RankOne(X.to(device, dtype))


class TestDense(MeasurementsConformance):
    @pytest.fixture(params=SHAPES, ids=str)
    def build(self, request, rng):
        n, d, batch = request.param
        S = normal(rng, *batch, n, d, d)
        return lambda dtype=torch.float64, device="cpu": Dense((S + S.mT).to(device, dtype))


class TestPacked(MeasurementsConformance):
    @pytest.fixture(params=[*SHAPES, "large", "triangular"], ids=str)
    def build(self, request, rng, monkeypatch):
        if request.param == "large":  # the A_i are not kept in full
            monkeypatch.setattr(packed, "_HELD", 0)
        special = request.param in ("large", "triangular")
        n, d, batch = (15, 5, ()) if special else request.param
        R, triangular = normal(rng, *batch, n, d * (d + 1) // 2), request.param == "triangular"
        R = R.triu() if triangular else R
        return lambda dtype=torch.float64, device="cpu": Packed(
            R.to(device, dtype), triangular=triangular
        )


class TestGaussianPopulation(MeasurementsConformance):
    @pytest.fixture(params=[1, 2, 3, 6])
    def build(self, request):
        return lambda dtype=torch.float64, device="cpu": GaussianPopulation(request.param)


class TestSmallBlocks(MeasurementsConformance):
    """RankOne in blocks of 64 rows, the last of them short."""

    @pytest.fixture(params=[(150, 2, ()), (129, 2, (2,))], ids=str)
    def build(self, request, rng, monkeypatch):
        monkeypatch.setitem(measurements._BLOCK_BYTES, "cpu", 1)
        n, d, batch = request.param
        X = normal(rng, *batch, n, d)
        return lambda dtype=torch.float64, device="cpu": RankOne(X.to(device, dtype))


def test_rank_one_matrices_are_outer_products(rng):
    X = normal(rng, 2, 7, 3)
    expected = X.numpy()[..., :, None] * X.numpy()[..., None, :]
    np.testing.assert_allclose(twin(RankOne(X)), expected, rtol=4 * np.finfo(float).eps)


def test_rank_one_adjoint_is_symmetric_exactly(rng):
    """To the last bit, so that factorizations may read either triangle."""
    operator = RankOne(normal(rng, 50, 37))
    M = operator.adjoint(normal(rng, 2, 50))
    assert torch.equal(M, M.mT)


def test_dense_matrices_are_the_given_ones(rng):
    S = normal(rng, 2, 7, 3, 3)
    A = S + S.mT
    np.testing.assert_allclose(twin(Dense(A)), A.numpy(), rtol=4 * np.finfo(float).eps)


def test_operators_keep_their_data_without_a_copy(rng):
    """X may be most of the memory there is."""
    X = normal(rng, 5, 3)
    assert RankOne(X).X.data_ptr() == X.data_ptr()
    array = X.numpy()
    assert RankOne(array).X.data_ptr() == array.ctypes.data


def test_gradients_with_respect_to_the_inputs(rng):
    X, U, y = normal(rng, 5, 3), normal(rng, 3, 2), normal(rng, 5)

    def function(X):
        loss, gradient = LeastSquares(RankOne(X), y).loss_and_gradient(U)
        return loss, gradient, RankOne(X).normal(U @ U.mT)

    assert torch.autograd.gradcheck(function, (X.requires_grad_(True),))


# Blocks of rows.


def rows_in_a_block(d: int) -> int:
    return max(64, measurements._BLOCK_BYTES["cpu"] // (8 * d))


@pytest.mark.parametrize("n", [1, 63, 64, 65, 127, 128, 129, 200])
def test_results_do_not_depend_on_blocks(rng, monkeypatch, n):
    """Below, at and above one and two blocks of 64 rows; the twin is made in one block."""
    operator = RankOne(normal(rng, n, 3))
    assert len(list(operator._blocks())) == 1
    a = arguments(operator, rng, r=2, batch="same")
    wholes = {name: compute(operator, a) for name, (compute, _) in EVERY.items()}
    monkeypatch.setitem(measurements._BLOCK_BYTES, "cpu", 1)
    blocks = [block for block, _ in operator._blocks()]
    assert [b.stop - b.start for b in blocks] == [64] * (n // 64) + [n % 64] * (n % 64 > 0)
    for name, whole in wholes.items():
        scale = max(1.0, float(torch.linalg.vector_norm(whole)))
        assert ratio(EVERY[name][0](operator, a) - whole, scale, n) < 60, name
        check(name, operator, a)


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_the_boundary_of_a_real_block(rng, extra):
    d = 4096  # 64 rows
    n = rows_in_a_block(d) + extra
    operator = RankOne(normal(rng, n, d))
    assert len(list(operator._blocks())) == (2 if extra > 0 else 1)
    U, y = normal(rng, d, 2), normal(rng, n)
    e, product = operator.gradient_sweep(U, y)
    Z = operator.X.numpy() @ U.numpy()
    expected = (Z**2).sum(-1) - y.numpy()
    assert ratio(e - torch.from_numpy(expected), np.linalg.norm(Z) ** 2, d) < 60
    expected = operator.X.numpy().T @ (expected[:, None] * Z)
    scale = float(torch.linalg.vector_norm(operator.X)) * np.linalg.norm(Z) ** 3
    assert ratio(product - torch.from_numpy(expected), scale, d) < 60


# Memory and passes over X.


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("batch", ["none", "same"])
def test_rank_one_allocates_blocks_not_matrices(rng, name, batch):
    """The largest object is a block of rows per argument of the batch, or the d x d result.

    Columns are filled up to groups of four. An n x d^2 object would have 1.2e8 entries, a copy of X
    6e5.
    """
    n, d, r = 3000, 200, 2
    operator = RankOne(normal(rng, n, d))
    a = arguments(operator, rng, r=r, batch=batch)
    copies = 1 if batch == "none" else 3
    with torch.no_grad(), Record(operator.X) as record:
        EVERY[name][0](operator, a)
    factor_path = name not in ("apply", "adjoint", "normal")
    block = rows_in_a_block(d) * d
    columns = math.ceil(copies * r / 4) * 4
    assert record.largest <= (n * columns if factor_path else copies * max(block, d * d))


def test_building_rank_one_needs_no_more_than_another_x(rng):
    X = normal(rng, 3000, 50)
    with Record(X) as record:
        RankOne(X)
    assert record.largest <= X.numel()


@pytest.mark.parametrize("compute", ["gradient", "hessian"])
def test_x_is_read_once(rng, compute):
    """Both products with a block are made before the next block is touched."""
    n, d = 3000, 200
    objective = LeastSquares(RankOne(normal(rng, n, d)), normal(rng, n))
    U, Delta = normal(rng, d, 2), normal(rng, d, 2)
    X, rows = objective.measurements.X, rows_in_a_block(d)
    hessian = objective.linearize(U)
    with Record(X) as record:
        if compute == "gradient":
            objective.loss_and_gradient(U)
        else:
            hessian(Delta)
    starts = [start * d for start in range(0, n, rows)]
    assert record.reads == [start for start in starts for _ in range(2)]


# The Gaussian population.


def hermite_normal(H: np.ndarray) -> np.ndarray:
    """E[(x'Hx) xx'] by Gauss-Hermite quadrature: 3 nodes are exact to degree 5, needed is 4."""
    d = H.shape[0]
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    weights = weights / math.sqrt(2 * math.pi)
    total = np.zeros((d, d))
    for index in itertools.product(range(3), repeat=d):
        x = nodes[list(index)]
        total += np.prod(weights[list(index)]) * (x @ H @ x) * np.outer(x, x)
    return total


@pytest.mark.parametrize("d", [1, 2, 3])
def test_population_normal_is_the_gaussian_expectation(rng, d):
    S = normal(rng, d, d).numpy()
    H = S + S.T
    operator = GaussianPopulation(d)
    for result in (operator.normal(H), operator.adjoint(operator.apply(H)) / operator.n):
        error = torch.from_numpy(result - hermite_normal(H))
        assert ratio(error, float(np.linalg.norm(H)), 3**d) < 60


@given(st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_population_bounds(d, seed):
    """`eq:population-coercivity-smoothness`, attained by traceless matrices and by the identity."""
    S = normal(torch.Generator().manual_seed(seed), d, d)
    operator, H = GaussianPopulation(d), S + S.mT

    def form(H):
        return float((H * operator.normal(H)).sum())

    square, slack = float(H.square().sum()), 1e-13  # rounding of sums of at most 64 terms
    assert 2 * square * (1 - slack) <= form(H) <= (d + 2) * square * (1 + slack)
    eye = torch.eye(d, dtype=H.dtype)
    assert form(eye) == pytest.approx((d + 2) * d, rel=slack)
    traceless = H - H.diagonal().sum() / d * eye
    rest = 2 * float(traceless.square().sum())
    assert form(traceless) == pytest.approx(rest, rel=slack, abs=slack * square)


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_population_commutes_with_rotations(d, seed):
    """T(OHO') = O T(H) O', because Ox has the law of x."""
    rng = torch.Generator().manual_seed(seed)
    S, O = normal(rng, d, d), rotation(rng, d, reflect=bool(seed % 2))
    operator, H = GaussianPopulation(d), S + S.mT
    error = operator.normal((M := O @ H @ O.mT) / 2 + M.mT / 2) - O @ operator.normal(H) @ O.mT
    assert ratio(error, float(torch.linalg.matrix_norm(H)) * (d + 2), d) < 60
