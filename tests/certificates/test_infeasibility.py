"""Proofs that no positive semidefinite matrix explains the responses: against exact fractions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from adversarial.rational import is_positive_semidefinite, weighted_gram
from posquad import Dense, GaussianPopulation, RankOne
from posquad.certificates import proved_least_residual, proves_infeasible
from posquad.certificates.proofs.bounded_operator import BoundedDense, BoundedRankOne
from posquad.certificates.proofs.rounding import gamma
from posquad.certificates.proofs.statements import proves_dual_feasible, residual_below
from posquad.core.errors import DomainError, DtypeError, NonFiniteError, PosquadError, ShapeError

X = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]])
INFEASIBLE = np.array([1.0, 1.0, 0.0, 5.0])  # the last two must add up to twice the first two
FARKAS = np.array([-2.0, -2.0, 1.0, 1.0])  # A* is zero, and <z, y> = 1


def dense(X: np.ndarray) -> Dense:
    return Dense(X[:, :, None] * X[:, None, :])


@pytest.mark.parametrize("measurements", [RankOne(X), dense(X)], ids=["rank one", "dense"])
def test_negative_response(measurements):
    y = np.array([1.0, 1.0, -3.0, 4.0])
    z = np.array([1e-6, 1e-6, 1.0, 0.0])
    assert proves_infeasible(measurements, y, z)
    bound = proved_least_residual(measurements, y, z)
    exact = (3 - 2e-6) / math.sqrt(1 + 2e-12)
    assert bound <= exact
    assert bound == pytest.approx(exact, rel=1e-12)
    assert not proves_infeasible(measurements, y, -z)
    assert not proves_infeasible(measurements, -y, z)


def test_a_singular_dual_matrix_is_lifted():
    """`A*(z) = 0` for z = -FARKAS, which proves that `<z, y> = -1` is impossible, by z + t 1."""
    y = INFEASIBLE.copy()
    y[3] = 3.0
    assert FARKAS @ y == -1
    assert proves_infeasible(RankOne(X), y, FARKAS)
    bound = proved_least_residual(RankOne(X), y, FARKAS)
    assert bound <= 1 / math.sqrt(10)
    assert bound == pytest.approx(1 / math.sqrt(10), rel=1e-10)
    # Among the same measurements as matrices, a positive definite combination takes the place of 1.
    assert proves_infeasible(dense(X), y, FARKAS)
    bound = proved_least_residual(dense(X), y, FARKAS)
    assert bound <= 1 / math.sqrt(10)
    assert bound == pytest.approx(1 / math.sqrt(10), rel=1e-10)


def test_vectors_that_prove_nothing():
    feasible = (X**2).sum(1)
    rng = np.random.default_rng(0)
    for z in (FARKAS, -FARKAS, np.zeros(4), np.ones(4), *rng.standard_normal((200, 4))):
        assert proved_least_residual(RankOne(X), feasible, z) == 0
        assert proved_least_residual(dense(X), feasible, z) == 0
    assert proved_least_residual(RankOne(X), np.zeros(4), np.ones(4)) == 0


def test_zero_inputs_explain_nothing():
    """A zero column and a zero row: `A(Q)_2 = 0`, so a response there is the least residual."""
    inputs = np.array([[1.0, 0.0, 2.0], [3.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    y, z = np.array([1.0, 1.0, 2.0]), np.array([0.0, 0.0, -1.0])
    lifted = proved_least_residual(RankOne(inputs), y, z)
    assert lifted <= 2
    assert lifted == pytest.approx(2, rel=1e-9)


def test_equal_inputs_up_to_sign_in_a_subspace():
    """Responses 1 and 2 to the inputs x and -x in three dimensions: the least residual."""
    inputs = np.array([[0.0, 1.0, 3.0], [0.0, -1.0, -3.0], [1.0, 1.0, 1.0]])
    y, z = np.array([1.0, 2.0, 5.0]), np.array([1.0, -1.0, 0.0])
    bound = proved_least_residual(RankOne(inputs), y, z)
    assert bound <= 1 / math.sqrt(2)
    assert bound == pytest.approx(1 / math.sqrt(2), rel=1e-12)
    assert not proves_infeasible(RankOne(inputs), y, np.array([1.0, -1.0, -1e-9]))
    tilted = inputs + np.array([[0.0], [1e-15], [0.0]])
    assert not proves_infeasible(RankOne(tilted), y, z)


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1.0, 1e30, 1e140])
def test_units_do_not_matter(scale):
    y, z = np.array([1.0, 1.0, -3.0, 4.0]), np.array([1e-6, 1e-6, 1.0, 0.0])
    plain = proved_least_residual(RankOne(X), y, z)
    units = np.array([scale, 1.0])
    for inputs in (scale * X, X * units):
        assert proved_least_residual(RankOne(inputs), y, z) == pytest.approx(plain, rel=1e-9)
    assert proved_least_residual(RankOne(X), y, scale * z) == pytest.approx(plain, rel=1e-9)
    scaled = proved_least_residual(RankOne(X), scale * y, z)
    assert scaled == pytest.approx(scale * plain, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_near_the_boundary_no_proof_is_false(seed):
    """`A*(z)` with a smallest eigenvalue of either sign and down to rounding, in fractions."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(2, 9)), int(rng.integers(1, 4))
    inputs = rng.integers(-9, 10, (n, d)).astype(float)
    z = rng.standard_normal(n)
    moments = inputs.T @ inputs + 1e-9 * np.eye(d)
    half = np.linalg.inv(np.linalg.cholesky(moments))
    lowest = np.linalg.eigvalsh(half @ (inputs.T @ (z[:, None] * inputs)) @ half.T)[0]
    for off in (0.0, *(10.0 ** rng.uniform(-17, -8, 10)), *(-(10.0 ** rng.uniform(-17, -8, 10)))):
        moved = z - lowest + off
        proved = proves_dual_feasible(BoundedRankOne(inputs), moved)
        assert not proved or is_positive_semidefinite(weighted_gram(inputs, moved))


DEPTH = 10**7


@pytest.mark.parametrize("kind", [BoundedRankOne, BoundedDense])
def test_dual_feasibility_under_the_worst_rounding(kind):
    """An operator whose results are too large by nine tenths of their error bound, 1e-9."""

    class Worst(kind):
        def __init__(self, array):
            super().__init__(array)
            self.depth = DEPTH

        def adjoint(self, z):
            Y, size = super().adjoint(z)
            return Y + 0.9 * gamma(DEPTH) * size * np.eye(self.d), size

    inputs = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    operator = Worst(inputs if kind is BoundedRankOne else inputs[:, :, None] * inputs[:, None, :])
    size = 1 + 40 + 40
    for low in (-1e-12, -1e-10, 0.0):  # diag(1, low), with cancellation
        assert not proves_dual_feasible(operator, np.array([1.0, 40 + low, -10.0]))
    least = 2 * gamma(DEPTH) * size
    assert proves_dual_feasible(operator, np.array([1.0, 40 + least, -10.0]))


def test_bound_by_hand():
    assert residual_below(np.array([-3.0]), np.array([1.0])) == pytest.approx(3, rel=1e-13)
    assert residual_below(np.array([-3.0]), np.array([1.0])) <= 3
    assert residual_below(np.array([-3.0, 4.0]), np.array([4.0, 3.0])) == 0  # orthogonal
    assert residual_below(np.array([1.0, 1.0]), np.array([-1.0, 1.0 - 2.0**-52])) == 0  # rounding


def test_torch_and_single_precision():
    y, z = torch.tensor([1.0, 1.0, -3.0, 4.0]), torch.tensor([0.0, 0.0, 1.0, 0.0])
    assert proves_infeasible(RankOne(torch.as_tensor(X).float()), y, z)


GOOD = np.ones(4)


@pytest.mark.parametrize(
    ("measurements", "y", "z", "error", "name"),
    [
        (X, GOOD, GOOD, DtypeError, "measurements"),
        (GaussianPopulation(2), GOOD, GOOD, DtypeError, "objective"),
        (RankOne(X), np.ones(3), GOOD, ShapeError, "y"),
        (RankOne(X), GOOD, np.ones(5), ShapeError, "z"),
        (RankOne(X), GOOD, np.ones((2, 4)), DomainError, "z"),
        (RankOne(X), np.ones((2, 4)), GOOD, DomainError, "objective"),
        (RankOne(X[None]), GOOD, GOOD, DomainError, "objective"),
        (RankOne(X), np.array([1.0, np.nan, 1.0, 1.0]), GOOD, NonFiniteError, "y"),
        (RankOne(X), GOOD, np.array([1.0, np.inf, 1.0, 1.0]), NonFiniteError, "z"),
        (RankOne(X), GOOD, np.array(["a"] * 4), DtypeError, "z"),
    ],
)
def test_bad_input_is_refused(measurements, y, z, error, name):
    for function in (proves_infeasible, proved_least_residual):
        with pytest.raises(error) as raised:
            function(measurements, y, z)
        assert isinstance(raised.value, PosquadError)
        assert raised.value.argument == name


@pytest.mark.parametrize("copies", [1, 100])
def test_many_equal_inputs_need_a_shift_for_the_rounding_of_all(copies):
    """`A*(z) = 0` for the copies together, and the bound `-<z, y> / ||z||` is that of one."""
    inputs, y = np.tile(X, (copies, 1)), np.tile(INFEASIBLE, copies)
    bound = proved_least_residual(RankOne(inputs), y, np.tile(-FARKAS, copies))
    exact = math.sqrt(copies / 10)
    assert bound <= exact
    assert bound == pytest.approx(exact, rel=1e-9)
