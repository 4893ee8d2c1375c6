"""LeastSquares, PopulationRisk and SmoothObjective against plain formulas and autograd of them.

Each case carries `ell(xp, Q)`, its loss written a second time for one matrix in the functions
NumPy and torch share: NumPy evaluates it, torch.autograd differentiates it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.functional import hessian, hvp, vjp

from conformance import Record
from posquad import Dense, GaussianPopulation, LeastSquares, PopulationRisk, RankOne
from posquad import SmoothObjective as Smooth
from posquad.core.errors import PosquadError, ShapeError
from posquad.problems.objectives import Objective
from support import gaussian_problem, normal, ratio, rotation

N, D, R = 14, 5, 2
_data = torch.Generator().manual_seed(7)
X, U_STAR, Y = gaussian_problem(_data, N, D, R, smallest=0.3)
WIDE = normal(_data, D, R + 2)  # targets of PopulationRisk with more, and fewer, columns than U
MATRICES = normal(_data, N, D, D)
MATRICES = MATRICES + MATRICES.mT
C = normal(_data, D, D)  # not symmetric


@dataclass(frozen=True)
class Case:
    build: Callable[[torch.dtype], Objective]
    ell: Callable[[Any, Any], Any]  # (numpy or torch, Q[d, d]) -> loss

    def loss(self, U: Tensor) -> Tensor:
        u = U.double().numpy()
        return torch.as_tensor(self.ell(np, u @ u.T))

    def torch_loss(self, U: Tensor) -> Tensor:
        return self.ell(torch, U @ U.mT)

    def gradient(self, U: Tensor) -> Tensor:
        u = U.double().detach().requires_grad_(True)
        return torch.autograd.grad(self.torch_loss(u), u)[0]

    def hessian_product(self, U: Tensor, Delta: Tensor) -> Tensor:
        H = hessian(self.torch_loss, U.double())  # [d, r, d, r]
        return torch.einsum("abcd,cd->ab", H, Delta.double())

    def predictor_gradient(self, Q: Tensor) -> Tensor:
        q = Q.double().detach().requires_grad_(True)
        (g,) = torch.autograd.grad(self.ell(torch, q), q)
        return (g + g.mT) / 2


def in_(xp: Any, data: Tensor) -> Any:
    return data.numpy() if xp is np else data


def quadratic_form(xp, Q):
    return xp.einsum("ia,ab,ib->i", in_(xp, X), Q, in_(xp, X))


def least_squares(xp, Q):
    return ((quadratic_form(xp, Q) - in_(xp, Y)) ** 2).sum() / (2 * N)


def dense_least_squares(xp, Q):
    e = xp.einsum("iab,ab->i", in_(xp, MATRICES), Q) - in_(xp, Y)
    return (e**2).sum() / (2 * N)


def population(target):
    def ell(xp, Q):
        E = Q - in_(xp, target @ target.mT)
        return (E**2).sum() + xp.trace(E) ** 2 / 2

    return ell


def huber(xp, Q):
    e = quadratic_form(xp, Q) - in_(xp, Y)
    return xp.where(abs(e) < 1, e**2 / 2, abs(e) - 0.5).sum() / N


def poisson(xp, Q):
    rate = quadratic_form(xp, Q)
    return (rate - in_(xp, Y) * xp.log(rate)).sum() / N


def logdet(xp, Q):
    return -xp.linalg.slogdet(in_(xp, torch.eye(D, dtype=X.dtype)) + Q)[1]


def lopsided(xp, Q):
    return (Q[0, 1] - 3 * Q[1, 0]) ** 2 + Q[0, 2] ** 3 + (in_(xp, C) * Q).sum()


def affine(xp, Q):
    return (in_(xp, C) * Q).sum() + 4


def smooth(function: Callable[[Tensor, torch.dtype], Tensor]):
    return lambda dtype: Smooth(lambda Q: function(Q, dtype), D)


def smooth_huber(Q, dtype):
    e = RankOne(X.to(dtype)).apply(Q)
    target = Y.to(dtype).expand(e.shape)
    return torch.nn.functional.huber_loss(e, target, reduction="none").mean(-1)


def smooth_poisson(Q, dtype):
    rate = RankOne(X.to(dtype)).apply(Q)
    target = Y.to(dtype).expand(rate.shape)
    return torch.nn.functional.poisson_nll_loss(
        rate, target, log_input=False, eps=0.0, reduction="none"
    ).mean(-1)


def smooth_lopsided(Q, dtype):
    rest = (C.to(dtype) * Q).sum((-2, -1))
    return (Q[..., 0, 1] - 3 * Q[..., 1, 0]) ** 2 + Q[..., 0, 2] ** 3 + rest


def population_least_squares(dtype):
    operator = GaussianPopulation(D)
    return LeastSquares(operator, operator.apply((U_STAR @ U_STAR.mT).to(dtype)))


CASES = {
    "least squares, RankOne": Case(
        lambda dtype: LeastSquares(RankOne(X.to(dtype)), Y.to(dtype)), least_squares
    ),
    "least squares, Dense": Case(
        lambda dtype: LeastSquares(Dense(MATRICES.to(dtype)), Y.to(dtype)), dense_least_squares
    ),
    "least squares, population": Case(population_least_squares, population(U_STAR)),
    "population risk": Case(lambda dtype: PopulationRisk(U_STAR.to(dtype)), population(U_STAR)),
    "population risk, wider": Case(lambda dtype: PopulationRisk(WIDE.to(dtype)), population(WIDE)),
    "population risk, narrower": Case(
        lambda dtype: PopulationRisk(WIDE[:, :1].to(dtype)), population(WIDE[:, :1])
    ),
    "Huber": Case(smooth(smooth_huber), huber),
    "Poisson": Case(smooth(smooth_poisson), poisson),
    "log det": Case(
        smooth(lambda Q, dtype: -torch.linalg.slogdet(torch.eye(D, dtype=dtype) + Q)[1]), logdet
    ),
    "not symmetric in Q": Case(smooth(smooth_lopsided), lopsided),
    "affine": Case(
        smooth(lambda Q, dtype: (C.to(dtype) * Q).sum((-2, -1)) + 4),
        affine,
    ),
}
POINTS = {"random": normal(_data, D, R), "interpolating": U_STAR}


@pytest.fixture(params=CASES)
def case(request) -> Case:
    return CASES[request.param]


@pytest.fixture
def objective(case) -> Objective:
    return case.build(torch.float64)


def assert_close(actual: Tensor, expected: Tensor, scale: float = 0.0) -> None:
    """Rounding of sums over at most N d^2 terms, relative to the result or to `scale`."""
    assert actual.shape == expected.shape
    scale = max(float(torch.linalg.vector_norm(expected)), scale)
    assert ratio(actual - expected.to(actual.dtype), scale, N * D) < 60


# Values and derivatives.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_is_the_formula(case, dtype):
    U = POINTS["random"].to(dtype)
    loss = case.build(dtype).loss(U)
    assert loss.dtype == dtype
    assert_close(loss, case.loss(U))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_is_autograd_of_the_formula(case, dtype):
    objective = case.build(dtype)
    for point in POINTS.values():
        U = point.to(dtype)
        loss, gradient = objective.loss_and_gradient(U)
        assert gradient.dtype == dtype
        assert_close(gradient, case.gradient(U), scale=1.0)
        assert_close(objective.gradient(U), case.gradient(U), scale=1.0)
        assert_close(loss, case.loss(U), scale=1.0)


def test_gradient_is_twice_predictor_gradient_times_factor(case, objective):
    """`lem:factor-gradient`, with G from autograd on matrices; and it is horizontal."""
    for U in POINTS.values():
        G = case.predictor_gradient(U @ U.mT)
        assert_close(objective.predictor_gradient(U @ U.mT), G, scale=1.0)
        assert_close(objective.gradient(U), 2 * G @ U, scale=1.0)
        M = U.mT @ objective.gradient(U)
        assert_close(M, M.mT, scale=1.0)


def test_predictor_gradient_off_the_factors(case, objective):
    """At a matrix of full rank, where Q = UU' with r = 2 does not hold."""
    Q = POINTS["random"] @ POINTS["random"].mT + torch.eye(D, dtype=X.dtype)
    G = objective.predictor_gradient(Q)
    assert_close(G, case.predictor_gradient(Q))
    assert_close(G, G.mT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hessian_is_autograd_of_the_formula(case, rng, dtype):
    for point in POINTS.values():
        U, Delta = point.to(dtype), normal(rng, D, R, dtype=dtype)
        product = case.build(dtype).hessian_product(U, Delta)
        assert product.dtype == dtype
        assert_close(product, case.hessian_product(U, Delta))


def test_hessian_is_symmetric(objective, rng):
    U, V, W = POINTS["random"], normal(rng, D, R), normal(rng, D, R)
    HV, HW = objective.hessian_product(U, V), objective.hessian_product(U, W)
    assert_close((W * HV).sum(), (V * HW).sum(), scale=float(HV.norm() * W.norm()))


def test_taylor_remainders(objective, rng):
    """The remainder after gradient and Hessian falls with the second and third power of the step.

    Steps 2^-6 and 2^-7: the next term changes the observed order by about the step, and the
    third-order remainder, 1e-6, is far above rounding.
    """
    U, Delta = POINTS["random"], normal(rng, D, R) / 3
    value, gradient = objective.loss_and_gradient(U)
    first = (gradient * Delta).sum()
    second = (objective.hessian_product(U, Delta) * Delta).sum()
    after_first, after_second = [], []
    for t in (2**-6, 2**-7):
        change = objective.loss(U + t * Delta) - value - t * first
        after_first.append(float(change.abs()))
        after_second.append(float((change - t**2 / 2 * second).abs()))
    assert math.log2(after_first[0] / after_first[1]) == pytest.approx(2, abs=0.1)
    if after_second[0] > 1e-12:  # L is quadratic where ell is affine, with nothing left to measure
        assert math.log2(after_second[0] / after_second[1]) == pytest.approx(3, abs=0.1)
    else:
        assert max(after_second) < 1e-14 * float(value.abs() + second.abs() + 1)


def test_hessian_at_interpolation_is_the_measurement_part(rng):
    """`thm:effective-hessian`: <Delta, Hess Delta> = ||A(xi)||^2 / n where the residual is zero."""
    Delta = normal(rng, D, R)
    xi = (Delta @ U_STAR.mT + U_STAR @ Delta.mT).numpy()
    expected = (np.einsum("ia,ab,ib->i", X.numpy(), xi, X.numpy()) ** 2).mean()
    product = LeastSquares(RankOne(X), Y).hessian_product(U_STAR, Delta)
    assert_close((Delta * product).sum(), torch.as_tensor(expected))


@pytest.mark.parametrize(("d", "r"), [(1, 1), (3, 1), (3, 3)])
@pytest.mark.parametrize("n", [1, 4])
def test_smallest_sizes(rng, n, d, r):
    X, y, U, Delta = normal(rng, n, d), normal(rng, n), normal(rng, d, r), normal(rng, d, r)

    def plain(U):
        return ((torch.einsum("ia,ar->ir", X, U) ** 2).sum(-1) - y).square().sum() / (2 * n)

    objective = LeastSquares(RankOne(X), y)
    assert_close(objective.loss(U), plain(U))
    H = torch.einsum("abcd,cd->ab", hessian(plain, U), Delta)
    assert_close(objective.hessian_product(U, Delta), H)


# Invariances.


def test_invariance_under_the_gauge(objective, rng):
    """L(UO) = L(U), and gradient and Hessian turn with the factor."""
    U, Delta, O = POINTS["random"], normal(rng, D, R), rotation(rng, R, reflect=True)
    value, gradient = objective.loss_and_gradient(U)
    assert_close(objective.loss(U @ O), value)
    assert_close(objective.gradient(U @ O), gradient @ O)
    turned = objective.hessian_product(U @ O, Delta @ O)
    assert_close(turned, objective.hessian_product(U, Delta) @ O)


@pytest.mark.parametrize("reflect", [False, True])
def test_invariance_under_rotation_of_the_inputs(rng, reflect):
    """With x -> O'x and U -> O'U nothing happens to the loss."""
    U, Delta, O = POINTS["random"], normal(rng, D, R), rotation(rng, D, reflect=reflect)
    here, there = LeastSquares(RankOne(X), Y), LeastSquares(RankOne(X @ O), Y)
    assert_close(there.loss(O.mT @ U), here.loss(U))
    assert_close(there.gradient(O.mT @ U), O.mT @ here.gradient(U))
    turned = there.hessian_product(O.mT @ U, O.mT @ Delta)
    assert_close(turned, O.mT @ here.hessian_product(U, Delta))
    assert_close(PopulationRisk(O.mT @ U_STAR).loss(O.mT @ U), PopulationRisk(U_STAR).loss(U))


@given(st.permutations(range(N)), st.integers(1, 4))
def test_permuted_and_repeated_samples(order, times):
    """The loss is a mean over samples: neither their order nor repeating all of them matters."""
    U, Delta, rows = POINTS["random"], POINTS["interpolating"], order * times
    here, there = LeastSquares(RankOne(X), Y), LeastSquares(RankOne(X[rows]), Y[rows])
    assert_close(there.loss(U), here.loss(U))
    assert_close(there.gradient(U), here.gradient(U))
    assert_close(there.hessian_product(U, Delta), here.hessian_product(U, Delta))


# Batches.

BATCHES = [
    ((3,), (3,)),
    ((3, 1), (3, 4)),
    ((3, 1), (4,)),
    ((3, 1), (1, 4)),
    ((3, 1), (2, 1, 4)),
    ((), (4,)),
    ((4,), ()),
    ((1,), (4,)),
    ((2,), (4, 2)),
]


def test_batches_of_points_and_directions(case, objective, rng):
    for points, directions in BATCHES:
        U, Delta = normal(rng, *points, D, R), normal(rng, *directions, D, R)
        outer = torch.broadcast_shapes(points, directions)
        U_all, Delta_all = U.expand(*outer, D, R), Delta.expand(*outer, D, R)
        expected = torch.empty(*outer, D, R, dtype=U.dtype)
        for index in product(*map(range, outer)):
            expected[index] = case.hessian_product(U_all[index], Delta_all[index])
        assert_close(objective.hessian_product(U, Delta), expected)


def test_batches_of_points(case, objective, rng):
    U = normal(rng, 2, 3, D, R)
    loss, gradient = objective.loss_and_gradient(U)
    each = list(product(range(2), range(3)))
    losses = torch.stack([case.loss(U[i]) for i in each]).reshape(2, 3)
    assert_close(objective.loss(U), losses)
    assert_close(loss, losses)
    gradients = torch.stack([case.gradient(U[i]) for i in each]).reshape(U.shape)
    assert_close(gradient, gradients)
    Q = U @ U.mT
    matrices = torch.stack([case.predictor_gradient(Q[i]) for i in each]).reshape(Q.shape)
    assert_close(objective.predictor_gradient(Q), matrices)


EMPTY = [((0,), (0,)), ((), (0,)), ((0,), ()), ((2, 0), ())]


def test_empty_batches(objective):
    for points, directions in EMPTY:
        U = POINTS["random"].expand(*points, D, R)
        outer = torch.broadcast_shapes(points, directions)
        loss, gradient = objective.loss_and_gradient(U)
        assert objective.loss(U).shape == loss.shape == points
        assert gradient.shape == U.shape
        assert objective.predictor_gradient(U @ U.mT).shape == (*points, D, D)
        product = objective.hessian_product(U, POINTS["random"].expand(*directions, D, R))
        assert product.shape == (*outer, D, R)


def test_batch_of_operators(rng):
    """Three designs, two sets of responses each, against one factor and a batch of factors."""
    X, y = normal(rng, 3, 1, N, D), normal(rng, 2, N)
    objective = LeastSquares(RankOne(X), y)
    for U in (normal(rng, D, R), normal(rng, 4, 1, 1, D, R)):
        outer = torch.broadcast_shapes((3, 2), U.shape[:-2])
        loss, gradient = objective.loss_and_gradient(U)
        curved = objective.hessian_product(U, U)
        assert loss.shape == objective.loss(U).shape == outer
        assert gradient.shape == curved.shape == (*outer, D, R)
        for index in product(*map(range, outer)):
            i, j = index[-2:]
            u = U.expand(*outer, D, R)[index]
            alone = LeastSquares(RankOne(X[i, 0]), y[j])
            e = ((X[i, 0].numpy() @ u.numpy()) ** 2).sum(-1) - y[j].numpy()
            assert_close(loss[index], torch.as_tensor((e**2).sum() / (2 * N)))
            assert_close(gradient[index], alone.gradient(u))
            assert_close(curved[index], alone.hessian_product(u, u))


def test_batch_of_targets(rng):
    targets, U = normal(rng, 3, D, R + 1), normal(rng, 4, 1, D, R)
    objective = PopulationRisk(targets)
    loss, gradient = objective.loss_and_gradient(U)
    curved = objective.hessian_product(U, U)
    for i, j in product(range(4), range(3)):
        plain = Case(PopulationRisk, population(targets[j]))
        assert_close(loss[i, j], plain.loss(U[i, 0]))
        assert_close(gradient[i, j], plain.gradient(U[i, 0]))
        assert_close(curved[i, j], plain.hessian_product(U[i, 0], U[i, 0]))


# Kinds of arrays.


def test_numpy_in_numpy_out(case, objective, rng):
    U, Delta = POINTS["random"], normal(rng, D, R)
    u, delta = U.numpy(), np.asfortranarray(Delta.numpy())
    u.flags.writeable = False
    results = (
        (objective.loss(u), case.loss(U)),
        (objective.gradient(u), case.gradient(U)),
        (objective.predictor_gradient(u @ u.T), case.predictor_gradient(U @ U.mT)),
        (objective.hessian_product(u, delta), case.hessian_product(U, Delta)),
    )
    for result, expected in results:
        assert isinstance(result, np.ndarray)
        assert_close(torch.from_numpy(result), expected)
    assert all(isinstance(part, np.ndarray) for part in objective.loss_and_gradient(u))


def test_strides_do_not_matter(case, objective, rng):
    U = normal(rng, R, D).mT
    Delta = normal(rng, 2 * D, 3 * R)[::2, ::3]
    assert_close(objective.loss(U), case.loss(U))
    assert_close(objective.gradient(U), case.gradient(U))
    assert_close(objective.hessian_product(U, Delta), case.hessian_product(U, Delta))


def test_inputs_are_not_modified(objective):
    U, Delta = POINTS["random"].clone(), POINTS["interpolating"].clone()
    Q = U @ U.mT
    inputs = (U, Delta, Q)
    before = [(t.clone(), t._version) for t in inputs]
    objective.loss_and_gradient(U)
    objective.loss(U)
    objective.predictor_gradient(Q)
    objective.hessian_product(U, Delta)
    for tensor, (value, version) in zip(inputs, before, strict=True):
        assert torch.equal(tensor, value)
        assert tensor._version == version
        assert not tensor.requires_grad


F32, F64 = torch.float32, torch.float64
PRECISIONS = [
    *(("least squares, RankOne", F64, u, delta) for u, delta in product([F32, F64], repeat=2)),
    *(("least squares, population", y, u, F32) for y, u in [(F32, F64), (F64, F32), (F64, F64)]),
    *(("population risk", *p) for p in product([F32, F64], repeat=3) if F64 in p),
    *(("log det", F64, u, delta) for u, delta in [(F32, F64), (F64, F32)]),
]


@pytest.mark.parametrize(("name", "data", "point", "direction"), PRECISIONS, ids=str)
def test_mixed_precision_is_computed_in_the_wider(rng, name, data, point, direction):
    """Widening is exact, so float64 anywhere gives float64, to the rounding of what was float32.

    Only measurements held in float32 refuse float64 arguments; see test_bad_input.
    """
    case = CASES[name]
    objective = case.build(data)
    U, Delta = POINTS["random"].to(point), normal(rng, D, R, dtype=direction)
    results = [(objective.hessian_product(U, Delta), case.hessian_product(U, Delta))]
    if F64 in (point, data) and not isinstance(objective, Smooth):
        Q = U.double() @ U.double().mT
        results += [
            (objective.loss(U), case.loss(U)),
            (objective.gradient(U), case.gradient(U)),
            (objective.predictor_gradient(Q.to(point)), case.predictor_gradient(Q)),
        ]
    for result, expected in results:
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)  # checks the dtype too


# Automatic differentiation through the objectives.


def test_autograd_of_the_loss_is_the_gradient(case, objective):
    for U in POINTS.values():
        u = U.clone().requires_grad_(True)
        for loss in (objective.loss(u), objective.loss_and_gradient(u)[0]):
            (g,) = torch.autograd.grad(loss, u)
            assert_close(g, case.gradient(U), scale=1.0)


def test_autograd_of_the_gradient_is_the_hessian(case, objective, rng):
    U, Delta = POINTS["random"], normal(rng, D, R)
    u = U.clone().requires_grad_(True)
    (product,) = torch.autograd.grad((objective.gradient(u) * Delta).sum(), u)
    assert_close(product, case.hessian_product(U, Delta))


def test_autograd_of_the_predictor_gradient(case, objective, rng):
    """Along a symmetric direction, on which `predictor_gradient` is defined."""
    V = normal(rng, D, D)
    Q, V = U_STAR @ U_STAR.mT + 0.1 * torch.eye(D, dtype=V.dtype), V + V.mT
    actual = vjp(objective.predictor_gradient, Q, V)[1]
    expected = hvp(lambda q: case.ell(torch, (q + q.mT) / 2), Q, V)[1]
    assert_close((actual + actual.mT) / 2, expected, scale=1.0)


@pytest.mark.parametrize("variable", ["U", "Delta"])
def test_autograd_of_the_hessian_product(case, objective, rng, variable):
    """A product that carries a graph must carry the whole derivative, not a part of it."""
    U, Delta, W = POINTS["random"], normal(rng, D, R), normal(rng, D, R)

    def place(moving: Tensor) -> tuple[Tensor, Tensor]:
        return (moving, Delta) if variable == "U" else (U, moving)

    def plain(moving: Tensor) -> Tensor:
        return hvp(case.torch_loss, *place(moving), create_graph=True)[1]

    moving = U if variable == "U" else Delta
    actual = vjp(lambda moving: objective.hessian_product(*place(moving)), moving, W)[1]
    assert_close(actual, vjp(plain, moving, W)[1], scale=1.0)


def test_under_no_grad(case, objective):
    """Everything is computed, and nothing carries a graph, also for a U that asks for one."""
    U = POINTS["random"]
    expected = (
        case.loss(U),
        case.gradient(U),
        case.predictor_gradient(U @ U.mT),
        case.hessian_product(U, U),
    )
    for u in (U, U.clone().requires_grad_(True)):
        with torch.no_grad():
            actual = (
                *objective.loss_and_gradient(u),
                objective.predictor_gradient(u @ u.mT),
                objective.hessian_product(u, u),
            )
        for a, e in zip(actual, expected, strict=True):
            assert not a.requires_grad
            assert_close(a, e)


# The population risk.


def exact_population(U: Tensor, target: Tensor) -> tuple[mpmath.mpf, mpmath.matrix]:
    """||E||^2 + tr(E)^2/2 and 2 (2E + tr(E)I) U with 50 digits, at the given floats."""
    u, v = mpmath.matrix(U.tolist()), mpmath.matrix(target.tolist())
    E = u * u.T - v * v.T
    trace = mpmath.fsum(E[i, i] for i in range(E.rows))
    return mpmath.fsum(e**2 for e in E) + trace**2 / 2, 2 * (2 * E * u + trace * u)


@pytest.mark.parametrize("delta", [1e-3, 1e-8, 1e-12])
@pytest.mark.parametrize(("d", "r"), [(1, 1), (5, 1), (5, 3), (6, 6), (30, 4)])
@pytest.mark.parametrize("turned", [False, True])
def test_population_risk_near_the_solution(rng, d, r, delta, turned):
    """Losses down to 1e-24, of factors far apart but nearly of the same predictor.

    The aligned difference D is of size delta and rounded as U is, so the relative error is
    eps ||U|| / ||D|| (1e-3 at worst) and not the eps ||Q||^2 / ||D||^2 (1e8) of squared norms.
    """
    target = normal(rng, d, r)
    O = rotation(rng, r) if turned else torch.eye(r, dtype=target.dtype)
    D = delta * normal(rng, d, r)
    U = target @ O + D
    loss, gradient = PopulationRisk(target).loss_and_gradient(U)
    with mpmath.workdps(50):
        value, G = exact_population(U, target)
        error = float(abs(mpmath.mpf(float(loss)) - value) / value)
        slope = torch.from_numpy(np.array(G.tolist(), dtype=np.float64))
    condition = float(target.norm() / D.norm())
    assert error < 60 * d * torch.finfo(U.dtype).eps * condition
    assert ratio(gradient - slope, float(slope.norm()) * condition, d) < 60


def test_population_risk_of_rank_one_keeps_full_relative_accuracy(rng):
    """For r = 1 the alignment is a sign and adds no rounding."""
    target = normal(rng, 6, 1)
    U = -target + 1e-12 * normal(rng, 6, 1)
    with mpmath.workdps(50):
        value, _ = exact_population(U, target)
        error = abs(mpmath.mpf(float(PopulationRisk(target).loss(U))) - value) / value
    assert error < 60 * 6 * torch.finfo(U.dtype).eps


def test_population_risk_is_zero_at_the_target():
    objective = PopulationRisk(U_STAR)
    loss, gradient = objective.loss_and_gradient(U_STAR)
    eps = torch.finfo(U_STAR.dtype).eps
    assert 0 <= float(loss) <= (60 * D * eps) ** 2
    assert float(gradient.norm()) <= 60 * D * eps


@pytest.mark.parametrize("columns", [1, R, R + 2])
def test_population_risk_of_orthogonal_factors(columns):
    """The alignment is then any rotation, and the answer must not depend on which.

    E = UU' - Q* has orthogonal parts: ||E||^2 = ||UU'||^2 + ||Q*||^2.
    """
    I = torch.eye(6, dtype=torch.float64)
    U, target = 2 * I[:, :2], 3 * I[:, 2 : 2 + columns]
    objective = PopulationRisk(target)
    square = 16 * 2 + 81 * columns
    trace = 4 * 2 - 9 * columns
    assert_close(objective.loss(U), torch.tensor(square + trace**2 / 2, dtype=U.dtype))
    assert_close(objective.gradient(U), 2 * (2 * 4 + trace) * U)
    u = U.clone().requires_grad_(True)
    (g,) = torch.autograd.grad(objective.loss(u), u)
    assert_close(g, 2 * (2 * 4 + trace) * U)


def test_population_risk_forms_nothing_of_size_d_squared(rng):
    d, r = 400, 3
    target, U = normal(rng, d, r), normal(rng, d, r)
    objective = PopulationRisk(target)
    with Record(target) as record:
        objective.loss_and_gradient(U)
        objective.hessian_product(U, U)
    assert record.largest <= d * r


# The smooth objective.


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda Q: Q.sum(-1), f"({D},)"),
        (lambda Q: Q.sum((-2, -1))[..., None], "(1,)"),
        (lambda Q: Q, f"({D}, {D})"),
        (lambda Q: 1.0, "float"),
        (lambda Q: None, "NoneType"),
    ],
)
@pytest.mark.parametrize("method", ["loss", "gradient", "predictor_gradient", "hessian_product"])
def test_function_of_the_wrong_shape(function, got, method):
    objective, U = Smooth(function, D), POINTS["random"]
    arguments = {"predictor_gradient": (U @ U.mT,), "hessian_product": (U, U)}.get(method, (U,))
    with pytest.raises(ShapeError, match=r"^function: expected .* one loss per matrix; got") as e:
        getattr(objective, method)(*arguments)
    assert e.value.got == got


def test_function_that_sums_over_the_batch_is_refused():
    with pytest.raises(ShapeError, match=r"^function: expected a tensor of shape \(3,\)"):
        Smooth(lambda Q: Q.sum(), D).loss(POINTS["random"].expand(3, D, R))


@pytest.mark.parametrize(
    "function",
    [
        lambda Q: Q.detach().square().sum((-2, -1)),
        lambda Q: torch.zeros(Q.shape[:-2], dtype=Q.dtype),
        lambda Q: Q.sum((-2, -1)).long(),
        lambda Q: Q.sum((-2, -1)) * (1 + 1j),
    ],
    ids=["detached", "constant", "integer", "complex"],
)
@pytest.mark.parametrize("method", ["gradient", "predictor_gradient", "hessian_product"])
def test_function_that_cannot_be_differentiated(function, method):
    """Said by an error that names the function, not by one from inside autograd."""
    objective, U = Smooth(function, D), POINTS["random"]
    arguments = {"predictor_gradient": (U @ U.mT,), "hessian_product": (U, U)}.get(method, (U,))
    with pytest.raises(PosquadError, match=r"^function: expected"):
        getattr(objective, method)(*arguments)


def test_affine_function_with_parameters_that_are_learned(rng):
    """Its gradient requires grad, but not through Q: the Hessian is 2 G Delta all the same."""
    M, U, Delta = normal(rng, D, D), POINTS["random"], normal(rng, D, R)
    learned = M.clone().requires_grad_(True)
    objective = Smooth(lambda Q: (learned * Q).sum((-2, -1)), D)
    assert_close(objective.hessian_product(U, Delta).detach(), (M + M.mT) @ Delta)


def test_gradients_are_contiguous():
    """`torch.optim.LBFGS` flattens them with `view`."""
    X = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    objective = LeastSquares(RankOne(X), X.square().sum(-1))
    assert objective.gradient(torch.ones(3, 2, dtype=torch.float64)).is_contiguous()


@pytest.mark.parametrize(
    ("u", "target", "loss", "gradient"), [(1e3, 1.0, 12, 9), (1.0, 1e3, 12, 6)]
)
def test_sizes_of_the_population_risk_by_hand(u, target, loss, gradient):
    """The loss sums squares of the larger predictor, the gradient products of it with u."""
    one = torch.ones(1, 1, dtype=torch.float64)
    sizes = PopulationRisk(target * one).log_sizes(u * one)
    expected = [loss * math.log(10), gradient * math.log(10)]
    np.testing.assert_allclose([float(size) for size in sizes], expected, rtol=1e-14)
