"""Identities of the quotient against SciPy, pymanopt, mpmath and brute-force linear algebra.

What may be passed in, and where exp, log and geodesic are defined: test_geometry_domain.py.
"""

from itertools import combinations_with_replacement, islice, pairwise

import mpmath
import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pymanopt.manifolds import PSDFixedRank
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from posquad import geometry
from posquad.core.errors import FiberError, TangencyError
from support import SIZES, normal, ratio, rotation

EPS = torch.finfo(torch.float64).eps
# One batch of each precision; that a batch is its elements one by one: test_geometry_domain.py.
KINDS = [
    pytest.param(batch, dtype, id=f"{batch}-{str(dtype)[6:]}")
    for batch, dtype in [((), torch.float64), ((2, 3), torch.float64), ((3,), torch.float32)]
]
sizes = pytest.mark.parametrize(("d", "r"), SIZES)
kinds = pytest.mark.parametrize(("batch", "dtype"), KINDS)


def factor(rng, d, r, *, batch=(), dtype=torch.float64, values=None):
    """Random singular vectors; singular values as given, else from 2 to 1.

    Ratios below are then free of a condition number, and a bound of 60 means 60.
    """
    s = torch.linspace(2.0, 1.0, r) if values is None else torch.as_tensor(values)
    W = torch.linalg.qr(normal(rng, *batch, d, r)).Q
    P = torch.linalg.qr(normal(rng, *batch, r, r)).Q
    return ((W * s.to(W)) @ P.mT).to(dtype)


def ill_conditioned(rng, d, r, condition):
    """One large singular value and r - 1 equal small ones: the polar factor's hardest case."""
    return factor(rng, d, r, values=[1.0] + [1.0 / condition] * (r - 1))


def jacobian(U):
    """Matrix `[d*d, d*r]` of `Delta -> Delta U' + U Delta'`, one unit matrix at a time."""
    d, r = U.shape
    halves = np.eye(d * r).reshape(d * r, d, r) @ U.T
    return (halves + halves.swapaxes(-1, -2)).reshape(d * r, d * d).T


def lift_by_least_squares(U, xi):
    """The solution of least norm of `Delta U' + U Delta' = xi`."""
    # What lies below `cond` are the gauge directions; the rest is at least 1 / cond(U) of the top.
    J, rhs = jacobian(U), xi.ravel()
    return scipy.linalg.lstsq(J, rhs, cond=1e-12, lapack_driver="gelsy")[0].reshape(U.shape)


def norm(M):
    return torch.linalg.vector_norm(M)


def numpy64(*matrices):
    return [M.double().numpy() for M in matrices]


def elements(*batched):
    """The batch elements of several tensors with two trailing dimensions, as NumPy arrays."""
    return zip(*(numpy64(*M.reshape(-1, *M.shape[-2:])) for M in batched), strict=True)


# The predictors as a manifold


def test_dimension_is_the_rank_of_the_differential(rng):
    for r, d in combinations_with_replacement(range(1, 6), 2):
        J = jacobian(factor(rng, d, r).numpy())
        assert geometry.dimension(d, r) == np.linalg.matrix_rank(J) == PSDFixedRank(d, r).dim


@sizes
@kinds
def test_differential_is_the_derivative_of_the_predictor(rng, d, r, batch, dtype):
    U, Delta = normal(rng, *batch, d, r, dtype=dtype), normal(rng, *batch, d, r, dtype=dtype)
    xi = geometry.differential(U, Delta)
    _, expected = torch.autograd.functional.jvp(lambda u: u @ u.mT, U, Delta)
    assert ratio(xi - expected, norm(U) * norm(Delta), d) < 60
    # The predictor is quadratic, so its central difference has no truncation error.
    A, B = U + Delta, U - Delta
    difference = (A @ A.mT - B @ B.mT) / 2
    assert ratio(xi - difference, norm(U).square() + norm(Delta).square(), d) < 60
    assert torch.equal(xi, xi.mT)


def test_differential_is_defined_on_the_boundary():
    U = torch.zeros(3, 2, dtype=torch.float64)
    assert not geometry.differential(U, torch.ones_like(U)).any()


@sizes
@kinds
def test_fiber_rotation_recovers_the_rotation(rng, d, r, batch, dtype):
    U = factor(rng, d, r, batch=batch, dtype=dtype)
    for reflect in False, True:
        R = rotation(rng, r, reflect=reflect).to(dtype)
        found = geometry.fiber_rotation(U, U @ R)
        assert found.shape == (*batch, r, r)
        assert ratio(found - R, norm(R.expand_as(found)), d) < 60


@pytest.mark.parametrize("condition", [1e1, 1e3, 1e6])
def test_fiber_rotation_loses_the_condition_number_once(rng, condition):
    # R solves the least-squares problem UR = V: its error is cond(U) eps, not cond(U)^2 eps.
    U, R = ill_conditioned(rng, 6, 3, condition), rotation(rng, 3, reflect=True)
    V = U @ R
    by_least_squares = np.linalg.lstsq(U.numpy(), V.numpy(), rcond=None)[0]
    assert np.linalg.norm(by_least_squares - R.numpy()) < 60 * 6 * EPS * condition
    assert ratio(geometry.fiber_rotation(U, V) - R, condition, 6) < 60


@sizes
def test_fiber_rotation_refuses_another_predictor_and_says_how_far(rng, d, r):
    U, V = factor(rng, d, r), 1.5 * factor(rng, d, r)
    with pytest.raises(FiberError) as caught:
        geometry.fiber_rotation(U, V)
    expected = PSDFixedRank(d, r).dist(*numpy64(V, U))
    assert caught.value.distance == pytest.approx(expected, rel=1e-12)
    assert f"{caught.value.distance:.6e}" in str(caught.value)
    # The distance decides: V is accepted by a caller who tolerates it.
    assert geometry.fiber_rotation(U, V, tolerance=1.01 * expected / float(norm(V))).shape == (r, r)


def test_fiber_rotation_reports_the_distance_of_an_element_that_differs(rng):
    # Rounding in the large element exceeds the distance of the small one, which is at fault.
    U = torch.stack([1e12 * factor(rng, 4, 2), 1e-6 * factor(rng, 4, 2)])
    V = U @ rotation(rng, 2)
    V[1] *= 2
    with pytest.raises(FiberError) as caught:
        geometry.fiber_rotation(U, V)
    assert caught.value.distance == pytest.approx(float(norm(U[1])), rel=1e-12, abs=0)


# Vertical and horizontal spaces


@sizes
@kinds
def test_projections_agree_with_scipy_and_pymanopt(rng, d, r, batch, dtype):
    U = factor(rng, d, r, batch=batch, dtype=dtype)
    Z = normal(rng, *batch, d, r, dtype=dtype)
    H, V = geometry.horizontal_projection(U, Z), geometry.vertical_projection(U, Z)
    for u, z, h, v in elements(U, Z, H, V):
        S, C = u.T @ u, u.T @ z - z.T @ u
        for omega in scipy.linalg.solve_sylvester(S, S, C), scipy.linalg.solve_lyapunov(S, C):
            assert np.linalg.norm(u @ omega - v) / np.linalg.norm(z) < 60 * d * _eps(dtype)
        expected = PSDFixedRank(d, r).projection(u, z)
        assert np.linalg.norm(expected - h) / np.linalg.norm(z) < 60 * d * _eps(dtype)


@sizes
@kinds
def test_projections_split_orthogonally(rng, d, r, batch, dtype):
    U = factor(rng, d, r, batch=batch, dtype=dtype)
    Z = normal(rng, *batch, d, r, dtype=dtype)
    H, V = geometry.horizontal_projection(U, Z), geometry.vertical_projection(U, Z)
    scale = norm(Z)
    assert ratio(H + V - Z, scale, d) < 60
    assert ratio((H * V).sum(dim=(-2, -1)), scale * scale, d) < 60
    assert ratio(U.mT @ H - (U.mT @ H).mT, norm(U) * scale, d) < 60
    assert ratio(geometry.differential(U, V), norm(U) * scale, d) < 60
    assert ratio(geometry.horizontal_projection(U, H) - H, scale, d) < 60
    assert ratio(geometry.vertical_projection(U, H), scale, d) < 60
    assert ratio(geometry.vertical_projection(U, V) - V, scale, d) < 60


@pytest.mark.parametrize("condition", [1e3, 1e6])
def test_projection_of_an_ill_conditioned_factor_is_backward_stable(rng, condition):
    d, r = 5, 3
    U, Z = ill_conditioned(rng, d, r, condition), normal(rng, d, r)
    with mpmath.workdps(50):
        u, z = mpmath.matrix(U.tolist()), mpmath.matrix(Z.tolist())
        S, C = u.T * u, u.T * z - z.T * u
        # (S kron I + I kron S) vec(Omega) = vec(C), row by row.
        K = mpmath.matrix(r * r)
        for i, j, k in np.ndindex(r, r, r):
            K[r * i + j, r * k + j] += S[i, k]
            K[r * i + j, r * i + k] += S[k, j]
        omega = mpmath.lu_solve(K, mpmath.matrix(list(C)))
        omega = mpmath.matrix([[omega[r * i + j] for j in range(r)] for i in range(r)])
        exact = torch.tensor(np.array((u * omega).tolist(), dtype=float))
    # A rounding of U alone turns the vertical space by cond(U) eps.
    assert ratio(geometry.vertical_projection(U, Z) - exact, condition * norm(Z), d) < 60
    H = geometry.horizontal_projection(U, Z)
    assert ratio(H + exact - Z, condition * norm(Z), d) < 60
    # What is left is horizontal to the rounding of U and Z, whatever the conditioning.
    assert ratio(U.mT @ H - H.mT @ U, norm(U) * norm(Z), d) < 60


@sizes
@kinds
def test_horizontal_basis_is_orthonormal_horizontal_and_complete(rng, d, r, batch, dtype):
    U = factor(rng, d, r, batch=batch, dtype=dtype)
    B = geometry.horizontal_basis(U)
    p = PSDFixedRank(d, r).dim
    assert B.shape == (*batch, p, d, r)
    flat = B.flatten(-2)
    gram = flat @ flat.mT
    assert ratio(gram - torch.eye(p, dtype=dtype), norm(gram), d) < 60
    skew = U.mT.unsqueeze(-3) @ B
    assert ratio(skew - skew.mT, norm(U) * p**0.5, d) < 60
    # Orthonormal and horizontal do not say that nothing is missing: the expansion of a vector does.
    Z = normal(rng, *batch, d, r, dtype=dtype)
    expansion = (flat.mT @ (flat @ Z.flatten(-2).unsqueeze(-1))).reshape(Z.shape)
    for u, z, got in elements(U, Z, expansion):
        expected = PSDFixedRank(d, r).projection(u, z)
        assert np.linalg.norm(got - expected) / np.linalg.norm(z) < 60 * d * _eps(dtype)


@pytest.mark.parametrize("condition", [1e3, 1e6])
def test_horizontal_basis_of_an_ill_conditioned_factor(rng, condition):
    U = ill_conditioned(rng, 6, 3, condition)
    B = geometry.horizontal_basis(U)
    flat = B.flatten(-2)
    assert ratio(flat @ flat.mT - torch.eye(len(B), dtype=B.dtype), len(B) ** 0.5, 6) < 60
    assert ratio(U.mT @ B - (U.mT @ B).mT, norm(U) * len(B) ** 0.5, 6) < 60


# The quotient metric


@pytest.mark.parametrize("condition", [1e3, 1e6])
def test_recording_a_gradient_does_not_change_the_value(rng, condition):
    """The formula that is differentiated divides by the square of the condition; the value not."""
    U = ill_conditioned(rng, 6, 3, condition)
    Z = normal(rng, 6, 3)
    xi = geometry.differential(U, Z)
    for function, other in ((geometry.horizontal_projection, Z), (geometry.horizontal_lift, xi)):
        plain = function(U, other)
        recorded = function(U.clone().requires_grad_(), other)
        assert recorded.requires_grad
        # Two additions of a difference of at most eps cond^2 to the value itself.
        assert norm(recorded.detach() - plain) <= 1e-15 * max(1, condition**2 * 1e-15) * norm(plain)


@sizes
@kinds
def test_horizontal_lift_is_the_solution_of_least_norm(rng, d, r, batch, dtype):
    U = factor(rng, d, r, batch=batch, dtype=dtype)
    xi = geometry.differential(U, normal(rng, *batch, d, r, dtype=dtype))
    lift = geometry.horizontal_lift(U, xi)
    for u, x, got in islice(elements(U, xi, lift), 2):  # least squares is slow, two will do
        expected = lift_by_least_squares(u, x)
        # ||Delta|| <= ||xi||, since 2 lambda_r >= 1 here.
        assert np.linalg.norm(got - expected) / np.linalg.norm(x) < 60 * d * _eps(dtype)
    assert ratio(geometry.differential(U, lift) - xi, norm(xi), d) < 60
    assert ratio(U.mT @ lift - (U.mT @ lift).mT, norm(U) * norm(lift), d) < 60


@pytest.mark.parametrize("condition", [1e3, 1e6])
def test_lift_and_metric_of_an_ill_conditioned_factor(rng, condition):
    # The differential has condition sqrt(2) cond(U): that, not its square, is what can be lost.
    U = ill_conditioned(rng, 6, 3, condition)
    xi = geometry.differential(U, normal(rng, 6, 3))
    expected = torch.from_numpy(lift_by_least_squares(*numpy64(U, xi)))
    lift, g = geometry.horizontal_lift(U, xi), geometry.quotient_metric(U, xi, xi)
    assert ratio(lift - expected, condition * norm(expected), 6) < 60
    assert ratio(g - norm(expected).square(), condition * norm(expected).square(), 6) < 60


@pytest.mark.parametrize(("d", "r"), [(2, 1), (5, 3), (30, 4)])
@pytest.mark.parametrize("share", [1e-6, 0.3, 1.0])
def test_lift_and_metric_refuse_a_matrix_that_is_not_tangent(rng, d, r, share):
    U = factor(rng, d, r)
    inside = geometry.differential(U, normal(rng, d, r))
    outside = scipy.linalg.null_space(U.numpy().T) @ np.eye(d - r, 1)
    normal_part = torch.from_numpy(outside @ outside.T)
    xi = (1 - share) * inside / norm(inside) + share * normal_part
    distance = share / float(norm(xi))
    for name, call in {
        "xi": lambda: geometry.horizontal_lift(U, xi),
        "zeta": lambda: geometry.quotient_metric(U, inside, xi),
    }.items():
        with pytest.raises(TangencyError) as caught:
            call()
        assert caught.value.argument == name
        assert caught.value.distance == pytest.approx(distance, rel=1e-8)
    # A caller may tolerate the distance; the lift is then that of the tangent part.
    tolerated = geometry.horizontal_lift(U, xi, tolerance=1.01 * distance)
    expected = geometry.horizontal_lift(U, inside) * (1 - share) / norm(inside)
    assert ratio(tolerated - expected, 1.0, d) < 60


@pytest.mark.parametrize(("d", "r"), [(1, 1), (2, 2), (6, 6)])
def test_every_symmetric_matrix_is_tangent_at_full_rank(rng, d, r):
    U, M = factor(rng, d, r), normal(rng, d, d)
    A = scipy.linalg.solve_continuous_lyapunov((U @ U.mT).numpy(), (M + M.mT).numpy())
    assert ratio(geometry.horizontal_lift(U, M + M.mT) - torch.from_numpy(A) @ U, norm(M), d) < 60


@sizes
@kinds
def test_quotient_metric_is_the_inner_product_of_lifts_at_any_representative(
    rng, d, r, batch, dtype
):
    U = factor(rng, d, r, batch=batch, dtype=dtype)
    xi, zeta = (geometry.differential(U, normal(rng, *batch, d, r, dtype=dtype)) for _ in range(2))
    g = geometry.quotient_metric(U, xi, zeta)
    assert g.shape == batch
    for u, x, z, got in islice(elements(U, xi, zeta, g[..., None, None]), 2):
        expected = np.vdot(lift_by_least_squares(u, x), lift_by_least_squares(u, z))
        scale = np.linalg.norm(x) * np.linalg.norm(z)
        assert abs(got.item() - expected) / scale < 60 * d * _eps(dtype)
    moved = geometry.quotient_metric(U @ rotation(rng, r, reflect=True).to(dtype), xi, zeta)
    assert ratio(moved - g, norm(xi) * norm(zeta), d) < 60
    swapped = geometry.quotient_metric(U, zeta, xi)
    assert ratio(swapped - g, norm(xi) * norm(zeta), d) < 60


@sizes
def test_norm_bounds_are_the_extreme_ratios(rng, d, r):
    U = factor(rng, d, r, values=torch.linspace(3.0, 0.5, r))
    low, high = geometry.norm_bounds(U)
    # ||xi||^2 / g(xi, xi) runs through the nonzero squared singular values of the differential.
    ratios = np.linalg.svd(jacobian(U.numpy()), compute_uv=False)[: geometry.dimension(d, r)] ** 2
    assert ratios[0] == pytest.approx(float(high), rel=60 * d * EPS)
    # At r = d nothing lies outside the range and the smallest ratio is 4 lambda_r instead.
    assert ratios[-1] == pytest.approx(float(low) * (2 if r == d else 1), rel=60 * d * EPS)


# Procrustes


@sizes
@kinds
def test_alignment_agrees_with_scipy(rng, d, r, batch, dtype):
    U, V = (factor(rng, d, r, batch=batch, dtype=dtype) for _ in range(2))
    V = U + 0.3 * V  # keeps V'U well away from singular, where the alignment has no derivative
    R = geometry.procrustes_alignment(U, V)
    for u, v, got in elements(U, V, R):
        expected, _ = scipy.linalg.orthogonal_procrustes(v, u)
        gap = np.linalg.svd(v.T @ u, compute_uv=False)[-1]
        assert np.linalg.norm(got - expected) * gap < 60 * d * _eps(dtype) * np.vdot(u, u)
    aligned = V @ R
    product = aligned.mT @ U
    scale = norm(U) * norm(V)
    assert ratio(product - product.mT, scale, d) < 60
    assert float(torch.linalg.eigvalsh(product.double()).min()) > 0


@pytest.mark.parametrize(("d", "r"), [(1, 1), (5, 3), (6, 6)])
def test_alignment_uses_reflections(rng, d, r):
    U = factor(rng, d, r)
    V = U.clone()
    V[:, 0] *= -1
    # The same minimisation over SO(r): rotate the direction of least correlation the wrong way.
    W, _, Pt = torch.linalg.svd(V.mT @ U)
    W[:, -1] *= torch.linalg.det(W @ Pt).sign()
    assert norm(U - V @ (W @ Pt)) > 1.0
    assert ratio(geometry.procrustes_distance(U, V), norm(U), d) < 60
    flip = torch.eye(r, dtype=U.dtype)
    flip[0, 0] = -1
    assert ratio(geometry.procrustes_alignment(U, V) - flip, r**0.5, d) < 60


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_alignment_is_a_minimiser_where_it_is_not_unique(rng, rank):
    # range(V) meets range(U) in `rank` dimensions and is orthogonal to it otherwise.
    O = rotation(rng, 6)
    U, V = O[:, :3] @ rotation(rng, 3), O[:, 3 - rank : 6 - rank] @ rotation(rng, 3)
    R = geometry.procrustes_alignment(U, V)
    assert ratio(R.mT @ R - torch.eye(3, dtype=R.dtype), 3**0.5, 6) < 60
    assert float(norm(U - V @ R)) == pytest.approx((6 - 2 * rank) ** 0.5, rel=60 * 6 * EPS)


@sizes
@kinds
def test_distance_agrees_with_pymanopt_and_the_closed_form(rng, d, r, batch, dtype):
    U, V = (normal(rng, *batch, d, r, dtype=dtype) for _ in range(2))
    distance = geometry.procrustes_distance(U, V)
    assert distance.shape == batch
    for u, v, got in elements(U, V, distance[..., None, None]):
        bound = 60 * d * _eps(dtype) * (np.linalg.norm(u) + np.linalg.norm(v))
        assert abs(got.item() - PSDFixedRank(d, r).dist(u, v)) < bound
        squares = np.vdot(u, u) + np.vdot(v, v)
        formula = squares - 2 * np.linalg.norm(u.T @ v, "nuc")
        assert abs(got.item() ** 2 - formula) < 60 * d * _eps(dtype) * squares


@pytest.mark.parametrize("d", [1, 2, 6])
def test_distance_is_the_bures_wasserstein_distance(rng, d):
    U, V = (factor(rng, d, d) for _ in range(2))
    distance = float(geometry.procrustes_distance(U, V))
    # At full rank SciPy's square root is accurate; the squares cost half the digits of a small d.
    expected = bures_wasserstein(*numpy64(U @ U.mT, V @ V.mT))
    assert distance**2 == pytest.approx(expected**2, abs=60 * d * EPS * float(norm(U)) ** 2)


@sizes
def test_distance_is_a_metric_on_the_quotient(rng, d, r):
    U, V, W = normal(rng, 3, 20, d, r)
    UV, VW, UW = (geometry.procrustes_distance(*p) for p in [(U, V), (V, W), (U, W)])
    slack = 60 * d * EPS * (norm(U) + norm(V) + norm(W))
    assert float((UW - UV - VW).max()) <= slack
    assert ratio(geometry.procrustes_distance(V, U) - UV, norm(UV), d) < 60
    moved = U @ rotation(rng, r, reflect=True)
    assert ratio(geometry.procrustes_distance(moved, U), norm(U), d) < 60
    assert ratio(geometry.procrustes_distance(moved, V @ rotation(rng, r)) - UV, norm(UV), d) < 60


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6])
@pytest.mark.parametrize(("d", "r"), [(5, 1), (6, 3), (4, 4)])
def test_distance_of_nearly_equal_factors_keeps_its_digits(rng, d, r, condition):
    for _ in range(4):
        U = ill_conditioned(rng, d, r, condition)
        Delta = geometry.horizontal_projection(U, normal(rng, d, r))
        V = (U + 1e-12 * Delta / norm(Delta)) @ rotation(rng, r, reflect=True)
        with mpmath.workdps(50):  # the formula with squared norms, which cancels 24 of them
            u, v = mpmath.matrix(U.tolist()), mpmath.matrix(V.tolist())
            nuclear = mpmath.fsum(mpmath.svd_r(u.T * v, compute_uv=False))
            squares = mpmath.fsum(x * x for x in u) + mpmath.fsum(x * x for x in v)
            exact = float(mpmath.sqrt(squares - 2 * nuclear))
        assert 0.99e-12 < exact < 1.01e-12  # V is rounded, so it is not 1e-12 exactly
        # Rounding of VR alone is eps ||V|| / 1e-12 = 4e-4 of the distance; five times is conceded.
        assert geometry.procrustes_distance(U, V).item() == pytest.approx(exact, rel=2e-3, abs=0)


# Exponential, logarithm, geodesics


@sizes
@kinds
def test_log_agrees_with_pymanopt_and_inverts_exp(rng, d, r, batch, dtype):
    U, V = (factor(rng, d, r, batch=batch, dtype=dtype) for _ in range(2))
    V = U + 0.3 * V
    Delta = geometry.log(U, V)
    for u, v, got in elements(U, V, Delta):
        expected = PSDFixedRank(d, r).log(u, v)
        gap = np.linalg.svd(v.T @ u, compute_uv=False)[-1]
        bound = 60 * d * _eps(dtype) * np.vdot(u, u) / gap
        assert np.linalg.norm(got - expected) / np.linalg.norm(v) < bound
    scale = norm(U) * norm(V)
    assert ratio(U.mT @ Delta - (U.mT @ Delta).mT, scale, d) < 60
    end = geometry.exp(U, Delta)
    assert ratio(end @ end.mT - V @ V.mT, scale, d) < 60


@sizes
def test_log_inverts_exp_on_short_horizontal_vectors(rng, d, r):
    U = factor(rng, d, r)
    Delta = geometry.horizontal_projection(U, normal(rng, d, r))
    Delta = 0.5 * Delta / norm(Delta)  # shorter than the smallest singular value, 1
    assert ratio(geometry.log(U, geometry.exp(U, Delta)) - Delta, norm(U), d) < 60


@sizes
def test_geodesic_has_constant_speed_and_the_right_length(rng, d, r):
    U, V = factor(rng, d, r), factor(rng, d, r) @ rotation(rng, r, reflect=True)
    t, h = torch.linspace(0.0, 1.0, 5, dtype=U.dtype), 0.25
    points = geometry.geodesic(U, V, t)  # [5, d, r]
    predictors = points @ points.mT
    assert ratio(predictors[0] - U @ U.mT, norm(U).square(), d) < 60
    assert ratio(predictors[-1] - V @ V.mT, norm(V).square(), d) < 60
    distance = PSDFixedRank(d, r).dist(*numpy64(U, V))
    # Q(t) is quadratic in t: central differences are its exact velocity.
    for k in range(1, 4):
        velocity = (predictors[k + 1] - predictors[k - 1]) / (2 * h)
        speed = np.linalg.norm(lift_by_least_squares(*numpy64(points[k], velocity)))
        # One lost digit for each factor of cond(U(t)), which stays below 10 for these pairs.
        assert speed == pytest.approx(distance, rel=1e-11, abs=1e-12)
        assert PSDFixedRank(d, r).dist(*numpy64(U, points[k])) == pytest.approx(
            float(t[k]) * distance, rel=1e-12, abs=60 * d * EPS
        )


def test_geodesic_is_shorter_than_other_curves():
    # Predictors that do not commute, where a straight line of matrices is far from a geodesic.
    U = torch.diag(torch.tensor([2.0, 1.0, 1.0]).double())
    V = torch.tensor([[0.5, 1.0, 0.0], [0.0, 1.0, 0.5], [1.0, 0.0, 2.0]]).double()
    P, Q = numpy64(U @ U.mT, V @ V.mT)
    bend = 0.4 * np.diag([1.0, -1.0, 0.5])
    times = np.linspace(0.0, 1.0, 201)

    def length(curve):
        """Sum of `g(dQ, dQ)^{1/2}`: at full rank the lift is A U with A Q + Q A = dQ."""
        total = 0.0
        for a, b in pairwise(times):
            middle = curve((a + b) / 2)
            A = scipy.linalg.solve_continuous_lyapunov(middle, curve(b) - curve(a))
            total += np.trace(A @ middle @ A) ** 0.5
        return total

    def geodesic(t):
        point = geometry.geodesic(U, V, t).numpy()
        return point @ point.T

    distance = float(geometry.procrustes_distance(U, V))
    shortest = length(geodesic)
    # The midpoint rule at 200 intervals is good to 1e-5 of the length.
    assert shortest == pytest.approx(distance, rel=1e-4)
    assert length(lambda t: (1 - t) * P + t * Q) > 1.001 * shortest
    assert length(lambda t: geodesic(t) + t * (1 - t) * bend) > 1.001 * shortest


@pytest.mark.parametrize("t", [0.1, -0.4, 1 / 3, 1.7])
def test_geodesic_uses_the_whole_precision_of_its_parameter(rng, t):
    U, V = factor(rng, 5, 3), factor(rng, 5, 3)
    expected = U.numpy() + t * PSDFixedRank(5, 3).log(*numpy64(U, V))
    assert ratio(geometry.geodesic(U, V, t) - torch.from_numpy(expected), norm(U), 5) < 60


def test_geodesic_parameters_broadcast_over_the_batch(rng):
    U, V = factor(rng, 5, 3, batch=(4,)), factor(rng, 5, 3, batch=(4,))
    t = torch.linspace(-0.1, 1.1, 7, dtype=U.dtype)[:, None]
    curve = geometry.geodesic(U, V, t)
    assert curve.shape == (7, 4, 5, 3)
    for i, j in np.ndindex(7, 4):
        expected = U[j].numpy() + float(t[i, 0]) * PSDFixedRank(5, 3).log(*numpy64(U[j], V[j]))
        assert ratio(curve[i, j] - torch.from_numpy(expected), norm(U[j]), 5) < 600


@pytest.mark.parametrize("gap", [1e-6, 1e-9, 1e-12, 0.0])
def test_log_exp_and_geodesic_of_nearly_equal_predictors(rng, gap):
    # The difference is mostly rounding at the end; the answer, U itself to rounding, is not.
    U = factor(rng, 5, 3)
    V = (U + gap * normal(rng, 5, 3)) @ rotation(rng, 3, reflect=True)
    for end in geometry.exp(U, geometry.log(U, V)), geometry.geodesic(U, V, 1.0):
        assert ratio(end @ end.mT - V @ V.mT, norm(U).square(), 5) < 60
    assert ratio(geometry.geodesic(U, U, 0.5) - U, norm(U), 5) < 60


@pytest.mark.parametrize("condition", [1e3, 1e6])
def test_round_trip_of_ill_conditioned_factors(rng, condition):
    U, V = ill_conditioned(rng, 6, 3, condition), ill_conditioned(rng, 6, 3, condition)
    end = geometry.exp(U, geometry.log(U, V))
    assert ratio(end @ end.mT - V @ V.mT, norm(U).square(), 6) < 60
    half = geometry.geodesic(U, V, 0.5)
    distance = PSDFixedRank(6, 3).dist(*numpy64(U, V))
    for other in U, V:
        assert ratio(geometry.procrustes_distance(half, other) - distance / 2, norm(U), 6) < 60


# Derivatives

POINTS = {
    "general": lambda rng: normal(rng, 4, 2),
    "identity": lambda rng: torch.eye(4, 2, dtype=torch.float64),  # U'U = I
    "square": lambda rng: 2 * rotation(rng, 2),  # r = d, repeated singular values
    "batch": lambda rng: torch.stack([torch.eye(3, 2, dtype=torch.float64), normal(rng, 3, 2)]),
}


def symmetric(M):
    return M + M.mT


# exp and the lift check their domain to 1.5e-8, finer than the step of a finite difference; the
# tolerance of one lets the perturbed points through without changing the formula.
DIFFERENTIABLE = {
    "vertical_projection": geometry.vertical_projection,
    "horizontal_projection": geometry.horizontal_projection,
    "horizontal_lift": lambda U, Z: geometry.horizontal_lift(U, geometry.differential(U, Z)),
    "lift of fixed xi": lambda U, Z: geometry.horizontal_lift(U, symmetric(Z @ Z.mT), tolerance=1),
    "quotient_metric": lambda U, Z: geometry.quotient_metric(
        U, geometry.differential(U, Z), symmetric(Z @ Z.mT), tolerance=1
    ),
    "procrustes_alignment": geometry.procrustes_alignment,
    "fiber_rotation": lambda U, Z: geometry.fiber_rotation(U, Z, tolerance=10),
    "procrustes_distance": geometry.procrustes_distance,
    "exp": lambda U, Z: geometry.exp(U, Z, tolerance=1),
    "log": geometry.log,
    "geodesic": lambda U, Z: geometry.geodesic(U, Z, 0.3),
}


@pytest.mark.parametrize("function", DIFFERENTIABLE.values(), ids=DIFFERENTIABLE)
@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
def test_derivatives(rng, point, function):
    U = point(rng)
    Z = U + 0.5 * normal(rng, *U.shape)  # near enough that every function is defined
    inputs = (U.requires_grad_(), Z.requires_grad_())
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


def test_geodesic_is_differentiable_in_its_parameter(rng):
    U, V, t = factor(rng, 4, 2), factor(rng, 4, 2), torch.tensor([0.2, 0.9], dtype=torch.float64)
    assert gradcheck(lambda t: geometry.geodesic(U, V, t), (t.requires_grad_(),))


def test_norm_bounds_are_differentiable(rng):
    assert gradcheck(geometry.norm_bounds, (factor(rng, 4, 2).requires_grad_(),))


def test_distance_has_a_finite_gradient_at_zero(rng):
    U = factor(rng, 4, 2).requires_grad_()
    geometry.procrustes_distance(U, U.detach().clone()).backward()
    assert U.grad is not None
    assert bool(torch.isfinite(U.grad).all())


# Memory


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor any operation returned."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        outputs = out if isinstance(out, tuple | list) else [out]
        self.numel = max([self.numel] + [o.numel() for o in outputs if isinstance(o, torch.Tensor)])
        return out


@pytest.mark.parametrize(
    "call",
    [
        geometry.vertical_projection,
        geometry.horizontal_projection,
        geometry.procrustes_alignment,
        geometry.procrustes_distance,
        geometry.log,
        lambda U, V: geometry.geodesic(U, V, 0.5),
        lambda U, V: geometry.exp(U, 0.1 * U),
        lambda U, V: geometry.fiber_rotation(U, U),
        lambda U, V: geometry.norm_bounds(U),
    ],
)
def test_no_square_matrix_of_the_large_size_is_formed(rng, call):
    d, r = 300, 2
    U, V = factor(rng, d, r), factor(rng, d, r)
    with LargestTensor() as largest:
        call(U, V)
    assert largest.numel <= r * d * r  # r points of the segment that exp inspects


# Invariance, for any factor hypothesis thinks of


@st.composite
def pairs(draw):
    """Two full-rank factors, an r x r and a d x d orthogonal matrix.

    Half of the factors have small integer entries: equal singular values, zero columns of U'V and
    shared columns are then common instead of impossible.
    """
    d = draw(st.integers(1, 6))
    r = draw(st.integers(1, d))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    integers = hnp.arrays(np.int64, (d, r), elements=st.integers(-2, 2))
    U, V = (
        torch.from_numpy(draw(integers)).double() if draw(st.booleans()) else normal(rng, d, r)
        for _ in range(2)
    )
    scale = 10.0 ** draw(st.integers(-6, 6))
    for M in U, V:
        s = torch.linalg.svdvals(M)
        assume(s[-1] > 0.05 * s[0])
    R = rotation(rng, r, reflect=draw(st.booleans()))
    O = rotation(rng, d, reflect=draw(st.booleans()))
    return scale * U, scale * V, R, O


@given(pairs())
def test_projection_lift_and_metric_are_equivariant(pair):
    U, Z, R, O = pair
    d = U.shape[0]
    H, scale = geometry.horizontal_projection(U, Z), norm(Z) / 0.05**2
    assert ratio(geometry.horizontal_projection(U @ R, Z @ R) - H @ R, scale, d) < 60
    assert ratio(geometry.horizontal_projection(O @ U, O @ Z) - O @ H, scale, d) < 60
    xi = geometry.differential(U, Z)
    assert ratio(geometry.differential(U @ R, Z @ R) - xi, norm(U) * norm(Z), d) < 60
    lift = geometry.horizontal_lift(U, xi)
    assert ratio(lift - H, scale, d) < 60
    assert ratio(geometry.horizontal_lift(U @ R, xi) - lift @ R, scale, d) < 60
    turned = O @ xi @ O.mT
    turned = (turned + turned.mT) / 2
    assert ratio(geometry.horizontal_lift(O @ U, turned) - O @ lift, scale, d) < 60
    g = geometry.quotient_metric(U, xi, xi)
    assert ratio(g - norm(H).square(), scale * norm(Z), d) < 60
    assert ratio(geometry.quotient_metric(U @ R, xi, xi) - g, scale * norm(Z), d) < 60


@given(pairs())
def test_distance_and_alignment_are_equivariant(pair):
    U, V, R, O = pair
    d, scale = U.shape[0], norm(U) + norm(V)
    distance = geometry.procrustes_distance(U, V)
    for u, v in [(U @ R, V), (U, V @ R), (O @ U, O @ V), (V, U)]:
        assert ratio(geometry.procrustes_distance(u, v) - distance, scale, d) < 60
    # The minimiser may not be unique, its value is: no rotation does better.
    align = geometry.procrustes_alignment(U, V @ R)
    assert ratio(norm(U - V @ R @ align) - distance, scale, d) < 60
    assert norm(U - V @ R) > distance - 60 * d * EPS * scale


@given(pairs())
def test_logarithm_is_equivariant(pair):
    U, V, R, O = pair
    d, product = U.shape[0], torch.linalg.svdvals(V.mT @ U)
    assume(product[-1] > 1e-2 * product[0])  # the alignment is unique and stable
    Delta, scale = geometry.log(U, V), (norm(U) + norm(V)) / 1e-2
    assert ratio(geometry.log(U @ R, V) - Delta @ R, scale, d) < 60
    assert ratio(geometry.log(U, V @ R) - Delta, scale, d) < 60
    assert ratio(geometry.log(O @ U, O @ V) - O @ Delta, scale, d) < 60


def bures_wasserstein(A, B):
    """`(tr A + tr B - 2 tr (A^{1/2} B A^{1/2})^{1/2})^{1/2}`, with SciPy's matrix square root."""
    root = scipy.linalg.sqrtm(A).real
    cross = np.trace(scipy.linalg.sqrtm(root @ B @ root).real)
    return max(np.trace(A) + np.trace(B) - 2 * cross, 0.0) ** 0.5


def _eps(dtype):
    return torch.finfo(dtype).eps
