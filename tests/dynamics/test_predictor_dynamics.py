"""Dynamics of the predictor, compared with descent of the factor itself.

Bad input of these functions is refused in test_geometry_domain.py.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from posquad import geometry
from posquad.dynamics import predictor_dynamics as dynamics
from support import SIZES, normal, ratio, rotation

EPS = torch.finfo(torch.float64).eps
sizes = pytest.mark.parametrize(("d", "r"), SIZES)
dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def symmetric(rng, *shape, dtype=torch.float64):
    A = normal(rng, *shape, shape[-1], dtype=dtype)
    return (A + A.mT) / 2


def norm(M):
    return torch.linalg.vector_norm(M)


# The recursion


@dtypes
@sizes
def test_predictor_step_is_a_step_of_the_factor(rng, d, r, dtype):
    U, G = normal(rng, 2, 3, d, r, dtype=dtype), symmetric(rng, 3, d, dtype=dtype)
    step = torch.tensor([0.01, 0.1, 0.7], dtype=dtype)
    moved = U - 2 * step[:, None, None] * G @ U
    got = dynamics.predictor_step(U @ U.mT, G, step)
    assert got.shape == (2, 3, d, d)
    scale = norm(U).square() * (1 + norm(G)).square()
    assert ratio(got - moved @ moved.mT, scale, d) < 60


@sizes
def test_predictor_step_follows_gradient_descent_of_a_loss(rng, d, r):
    # Autograd differentiates the factorized loss; the recursion sees only Q and grad ell(Q).
    T = normal(rng, d, d)
    target = T @ T.mT / d

    def ell(Q):
        return ((Q - target) ** 2).sum() / 2 + torch.cos(Q).sum()

    U = normal(rng, d, r) / d**0.5
    Q = U @ U.mT
    for _ in range(5):
        leaf = U.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(ell(leaf @ leaf.mT), leaf)
        U = U - 0.02 * gradient
        G = Q - target - torch.sin(Q)
        Q = dynamics.predictor_step(Q, (G + G.mT) / 2, 0.02)
        assert ratio(Q - U @ U.mT, 1.0 + norm(Q), d) < 60


def test_predictor_step_accepts_its_own_result(rng):
    # Q shrinks where it lives while rounding grows where it does not: an asymmetric rounding would
    # soon be too large beside Q. A congruence is symmetric, so its result must be.
    O = rotation(rng, 4)
    Q = (O * torch.tensor([1.0, 0.5, 0.0, 0.0]).double()) @ O.mT
    G = (O * torch.tensor([0.1, 0.1, -0.1, -0.1]).double()) @ O.mT
    Q, G = (Q + Q.mT) / 2, (G + G.mT) / 2
    for _ in range(40):
        Q = dynamics.predictor_step(Q, G, 1.0)
        assert torch.equal(Q, Q.mT)


@pytest.mark.parametrize("function", ["riemannian_gradient", "flow_field"])
def test_fields_are_exactly_symmetric(rng, function):
    A, G = normal(rng, 6, 6), symmetric(rng, 6)
    field = getattr(dynamics, function)(A @ A.mT, G)
    assert torch.equal(field, field.mT)


def test_discretization_correction_is_exactly_symmetric(rng):
    A, G = normal(rng, 30, 30), symmetric(rng, 30)
    correction = dynamics.discretization_correction((A @ A.mT + (A @ A.mT).mT) / 2, G, 0.1)
    assert torch.equal(correction, correction.mT)


@dtypes
@sizes
def test_step_is_flow_field_plus_correction(rng, d, r, dtype):
    U, G = normal(rng, d, r, dtype=dtype), symmetric(rng, d, dtype=dtype)
    Q, eta = U @ U.mT, 0.25
    change = (dynamics.predictor_step(Q, G, eta) - Q) / eta
    split = dynamics.flow_field(Q, G) + dynamics.discretization_correction(Q, G, eta)
    scale = norm(Q) * (1 + norm(G)).square() / eta
    assert ratio(change - split, scale, d) < 60
    # Against plain products in twice the precision.
    q, g = Q.double().numpy(), G.double().numpy()
    expected = torch.from_numpy(4 * eta * g @ q @ g).to(dtype)
    correction = dynamics.discretization_correction(Q, G, eta)
    assert ratio(correction - expected, norm(Q) * norm(G).square(), d) < 60
    flow = torch.from_numpy(-2 * (g @ q + q @ g)).to(dtype)
    assert ratio(dynamics.flow_field(Q, G) - flow, norm(Q) * norm(G), d) < 60


@dtypes
@sizes
def test_correction_bound_holds_and_is_attained(rng, d, r, dtype):
    U, G = normal(rng, 50, d, r, dtype=dtype), symmetric(rng, 50, d, dtype=dtype)
    Q, step = U @ U.mT, torch.linspace(0.01, 1.0, 50, dtype=dtype)
    bound = dynamics.correction_bound(Q, G, step)
    size = torch.linalg.matrix_norm(dynamics.discretization_correction(Q, G, step))
    assert bound.shape == (50,)
    assert bool((size <= bound * (1 + 60 * d * torch.finfo(dtype).eps)).all())
    operator = np.linalg.norm(G.double().numpy(), 2, axis=(-2, -1))
    frobenius = np.linalg.norm(Q.double().numpy(), axis=(-2, -1))
    expected = torch.from_numpy(4 * step.double().numpy() * operator**2 * frobenius).to(dtype)
    assert ratio(bound - expected, norm(bound), d) < 60
    # Equality: Q lives on an eigenvector of G of largest modulus, here a negative eigenvalue.
    O = rotation(rng, d).to(dtype)
    values = torch.linspace(-2.0, 1.0, d).to(dtype)
    G, v = (O * values) @ O.mT, O[:, :1]
    G = (G + G.mT) / 2
    size = norm(dynamics.discretization_correction(v @ v.mT, G, 0.3))
    assert ratio(dynamics.correction_bound(v @ v.mT, G, 0.3) - size, size, d) < 60


# The Riemannian gradient


@sizes
def test_riemannian_gradient_represents_the_differential_in_the_quotient_metric(rng, d, r):
    U, T = normal(rng, d, r) + torch.eye(d, r, dtype=torch.float64), symmetric(rng, d)
    Q = U @ U.mT

    def ell(Q):
        return (T * Q).sum() + torch.sin(Q).sum() + (Q @ Q).trace() / 2

    G = T + torch.cos(Q) + Q
    gradient = dynamics.riemannian_gradient(Q, (G + G.mT) / 2)
    condition = float(torch.linalg.cond(U)) ** 2
    for _ in range(3):
        xi = geometry.differential(U, normal(rng, d, r))
        _, derivative = torch.autograd.functional.jvp(ell, Q, xi)
        got = geometry.quotient_metric(U, gradient, xi)
        assert ratio(got - derivative, condition * norm(G) * norm(xi), d) < 60
    assert torch.equal(dynamics.flow_field(Q, (G + G.mT) / 2), -gradient)


@sizes
def test_riemannian_gradient_is_the_image_of_the_factor_gradient(rng, d, r):
    U, G = normal(rng, d, r), symmetric(rng, d)
    factor_gradient = (2 * G @ U).numpy()
    u = U.numpy()
    expected = torch.from_numpy(factor_gradient @ u.T + u @ factor_gradient.T)
    got = dynamics.riemannian_gradient(U @ U.mT, G)
    assert ratio(got - expected, norm(U).square() * norm(G), d) < 60


# Rank


@dtypes
@sizes
def test_margins_against_numpy(rng, d, r, dtype):
    U, G = normal(rng, 4, d, r, dtype=dtype), symmetric(rng, 4, d, dtype=dtype)
    step = torch.tensor([0.01, 0.1, 0.5, 2.0], dtype=dtype)
    sufficient = dynamics.sufficient_rank_margin(G, step)
    exact = dynamics.exact_rank_margin(U, G, step)
    u, g, eta = U.double().numpy(), G.double().numpy(), step.double().numpy()
    M = np.eye(d) - 2 * eta[:, None, None] * g
    W = np.linalg.qr(u)[0]
    expected = 1 - 2 * eta * np.linalg.norm(g, 2, axis=(-2, -1))
    scale = 1 + 2 * norm(step) * norm(G)
    assert ratio(sufficient - torch.from_numpy(expected).to(dtype), scale, d) < 60
    expected = np.linalg.svd(M @ W, compute_uv=False)[:, -1]
    # A rounding of U turns range(U) by cond(U) eps.
    scale = scale * float(torch.linalg.cond(U.double()).max())
    assert ratio(exact - torch.from_numpy(expected).to(dtype), scale, d) < 60
    # The sufficient margin never exceeds the exact one.
    slack = 60 * d * torch.finfo(dtype).eps * scale
    assert bool((sufficient <= exact + slack).all())


@pytest.mark.parametrize(("d", "r"), [(1, 1), (3, 1), (4, 2), (5, 5)])
def test_rank_lost_exactly(rng, d, r):
    # G has eigenvalue 1/(2 eta) on a direction of range(U), so the step maps it to zero.
    O, eta = rotation(rng, d), 0.3
    values = torch.linspace(-1.0, 1.0, d).double()
    values[0] = 1 / (2 * eta)
    G = (O * values) @ O.mT
    G = (G + G.mT) / 2
    U = O[:, :r] @ (torch.eye(r).double() + 0.1 * normal(rng, r, r))
    assert ratio(dynamics.exact_rank_margin(U, G, eta), 1.0, d) < 60
    assert dynamics.sufficient_rank_margin(G, eta) < 60 * d * EPS
    after = dynamics.predictor_step(U @ U.mT, G, eta)
    rounding = 60 * d * EPS * float(norm(U)) ** 2  # at r = 1 nothing else is left
    assert np.linalg.matrix_rank(after.numpy(), tol=rounding, hermitian=True) == r - 1


@pytest.mark.parametrize(("d", "r"), [(3, 1), (4, 2)])
def test_sufficient_condition_may_fail_while_the_rank_is_kept(rng, d, r):
    # The same eigenvalue, now on a direction that the factor does not use.
    O, eta = rotation(rng, d), 0.3
    values = torch.zeros(d).double()
    values[-1] = 1 / (2 * eta)
    G = (O * values) @ O.mT
    G = (G + G.mT) / 2
    U = O[:, :r] @ rotation(rng, r)
    assert dynamics.sufficient_rank_margin(G, eta) < 60 * d * EPS
    assert float(dynamics.exact_rank_margin(U, G, eta)) == pytest.approx(1.0, rel=60 * d * EPS)
    after = dynamics.predictor_step(U @ U.mT, G, eta)
    assert np.linalg.matrix_rank(after.numpy(), hermitian=True) == r


def test_overshooting_keeps_the_rank_though_the_sufficient_margin_is_negative(rng):
    U = normal(rng, 4, 2)
    G = torch.eye(4).double()
    assert float(dynamics.sufficient_rank_margin(G, 2.0)) == -3.0
    assert float(dynamics.exact_rank_margin(U, G, 2.0)) == pytest.approx(3.0, rel=60 * 4 * EPS)


def test_exact_margin_depends_on_the_range_alone(rng):
    U, G = normal(rng, 5, 2), symmetric(rng, 5)
    C = torch.tensor([[1.0, 2.0], [0.0, 1e-3]]).double()
    expected = dynamics.exact_rank_margin(U, G, 0.2)
    # The range of UC is known to cond(UC) eps.
    condition = float(torch.linalg.cond(U @ C))
    assert ratio(dynamics.exact_rank_margin(U @ C, G, 0.2) - expected, condition, 5) < 60


# Derivatives and invariance


@pytest.mark.parametrize(
    "function",
    [
        lambda U, A, eta: dynamics.predictor_step(U @ U.mT, A + A.mT, eta),
        lambda U, A, eta: dynamics.riemannian_gradient(U @ U.mT, A + A.mT),
        lambda U, A, eta: dynamics.discretization_correction(U @ U.mT, A + A.mT, eta),
        lambda U, A, eta: dynamics.correction_bound(U @ U.mT, A + A.mT, eta),
        lambda U, A, eta: dynamics.sufficient_rank_margin(A + A.mT, eta),
        lambda U, A, eta: dynamics.exact_rank_margin(U, A + A.mT, eta),
    ],
    ids=["step", "gradient", "correction", "bound", "sufficient", "exact"],
)
def test_derivatives(rng, function):
    U, A = normal(rng, 2, 3, 2).requires_grad_(), normal(rng, 3, 3).requires_grad_()
    eta = torch.tensor([0.1, 0.3], dtype=torch.float64).requires_grad_()
    assert gradcheck(function, (U, A, eta))


@given(st.integers(1, 6), st.data())
def test_equivariance_under_rotation_of_the_inputs(d, data):
    r = data.draw(st.integers(1, d))
    rng = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    eta = data.draw(st.floats(1e-3, 2.0))
    U, G = normal(rng, d, r), symmetric(rng, d)
    O = rotation(rng, d, reflect=data.draw(st.booleans()))
    R = rotation(rng, r, reflect=data.draw(st.booleans()))

    def turn(M):
        turned = O @ M @ O.mT
        return (turned + turned.mT) / 2

    Q = U @ U.mT
    scale = norm(Q) * (1 + 2 * eta * norm(G)).square() / min(eta, 1.0)
    for field in (
        lambda Q, G: dynamics.predictor_step(Q, G, eta),
        lambda Q, G: dynamics.riemannian_gradient(Q, G),
        lambda Q, G: dynamics.discretization_correction(Q, G, eta),
    ):
        assert ratio(field(turn(Q), turn(G)) - turn(field(Q, G)), scale, d) < 60
    bound = dynamics.correction_bound(Q, G, eta)
    assert ratio(dynamics.correction_bound(turn(Q), turn(G), eta) - bound, 1 + bound, d) < 60
    margin, size = dynamics.exact_rank_margin(U, G, eta), 1 + 2 * eta * norm(G)
    size = size * torch.linalg.cond(U)
    assert ratio(dynamics.exact_rank_margin(U @ R, G, eta) - margin, size, d) < 60
    assert ratio(dynamics.exact_rank_margin(O @ U, turn(G), eta) - margin, size, d) < 60


@given(st.integers(1, 6), st.integers(0, 2**32), st.floats(1e-3, 3.0))
def test_a_step_keeps_the_predictor_positive_semidefinite(d, seed, eta):
    rng = torch.Generator().manual_seed(seed)
    U, G = normal(rng, d, max(1, d - 1)), symmetric(rng, d)
    after = dynamics.predictor_step(U @ U.mT, G, eta)
    scale = norm(U).square() * (1 + 2 * eta * norm(G)).square()
    assert float(torch.linalg.eigvalsh(after)[0]) > -60 * d * EPS * scale
