"""The quotient of full-rank factors by the orthogonal group (paper, sections 2.1 to 2.4).

A factor `U` with d rows and r columns represents the predictor `Q = UU'`; all factors `UR` with R
orthogonal represent the same one and form a fiber. A vertical direction is tangent to the fiber and
leaves Q unchanged; a horizontal direction is orthogonal to it. Every function takes leading batch
dimensions, works on torch tensors or NumPy arrays, and forms no d x d matrix unless it takes or
returns one. Factors must have full column rank; others raise `RankDeficientError`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.core.arrays import (
    A,
    Array,
    like,
    positive_integer,
    positive_number,
    require_batch,
    require_factor,
    require_shape,
    require_symmetric,
    tensors,
)
from posquad.core.errors import DomainError, FiberError, TangencyError
from posquad.core.linalg import norm
from posquad.geometry.alignment import (
    aligned_distance,
    alignment,
    cosine_rounding,
    smallest_cosine,
)
from posquad.geometry.frames import Frame, frame, require_full_rank
from posquad.geometry.horizontal import (
    distance_from_tangent_space,
    horizontal_part,
    lift,
    orthonormal_basis,
    rank_loss,
    vertical_part,
)

__all__ = [
    "differential",
    "dimension",
    "exp",
    "fiber_rotation",
    "geodesic",
    "horizontal_basis",
    "horizontal_lift",
    "horizontal_projection",
    "log",
    "norm_bounds",
    "procrustes_alignment",
    "procrustes_distance",
    "quotient_metric",
    "vertical_projection",
]


def dimension(d: int, r: int) -> int:
    """Dimension `p = dr - r(r-1)/2` of the rank-r predictors.

    Proposition 2.1 (`prop:fixed-rank-psd-manifold`).

    >>> dimension(10, 2)
    19
    """
    d, r = positive_integer("d", d), positive_integer("r", r)
    if r > d:
        raise DomainError("r", expected=f"1 <= r <= d = {d}", got=str(r))
    return d * r - r * (r - 1) // 2


def differential(U: A, Delta: A) -> A:
    """Derivative of the predictor, `Delta U' + U Delta'` (`eq:differential-pi`).

    `U[..., d, r]`, `Delta[..., d, r]` give `[..., d, d]`. Defined for every U, of any rank.

    >>> differential(np.array([[1.0], [0.0]]), np.array([[0.0], [1.0]]))
    array([[0., 1.],
           [1., 0.]])
    """
    u, delta = _factor_and_direction(U, "Delta", Delta)
    half = delta @ u.mT
    return like(U, half + half.mT)


def fiber_rotation(U: A, V: A, *, tolerance: float | None = None) -> A:
    """The unique orthogonal R with `V = UR` (Theorem 2.1, `thm:exact-factor-fibers`).

    `U[..., d, r]` and `V[..., d, r]` give `R[..., r, r]`. If the predictors differ, that is if
    `min_R ||V - UR||_F > tolerance * ||V||_F` (default: square root of the machine epsilon),
    `FiberError` is raised and carries the distance.

    >>> U = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    >>> fiber_rotation(U, U[:, ::-1]).round(12) + 0.0
    array([[0., 1.],
           [1., 0.]])
    """
    u, v, _, _ = _two_factors(U, V)
    tolerance = _tolerance(u, tolerance)
    R = alignment(v, u)
    with torch.no_grad():
        distance = norm(v - u @ R)
        different = distance > tolerance * norm(v)
        if bool(different.any()):
            worst = float(distance[different].max())
            raise FiberError(
                "V",
                expected="a factor V = UR of the same predictor as U",
                got=f"Procrustes distance {worst:.6e}",
                distance=worst,
            )
    return like(U, R)


def vertical_projection(U: A, Z: A) -> A:
    """Part of Z along the fiber: `U Omega`, Omega skew.

    Omega solves `S Omega + Omega S = U'Z - Z'U` with `S = U'U`, r x r (Proposition 2.2,
    `prop:horizontal-projection`). Shapes `[..., d, r]`.

    >>> U = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> vertical_projection(U, np.array([[1.0, 2.0], [0.0, 3.0]]))
    array([[ 0.,  1.],
           [-1.,  0.]])
    """
    u, z = _factor_and_direction(U, "Z", Z)
    return like(U, vertical_part(u, z, frame("U", u)))


def horizontal_projection(U: A, Z: A) -> A:
    """Part of Z orthogonal to the fiber, `Z - U Omega`; its product with `U'` is symmetric.

    This is the orthogonal projection onto the horizontal space (Proposition 2.2,
    `prop:horizontal-projection`). Shapes `[..., d, r]`.

    >>> U = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> horizontal_projection(U, np.array([[1.0, 2.0], [0.0, 3.0]]))
    array([[1., 1.],
           [1., 3.]])
    """
    u, z = _factor_and_direction(U, "Z", Z)
    return like(U, horizontal_part(u, z, frame("U", u)))


def horizontal_basis(U: A) -> A:
    """A Frobenius-orthonormal basis of the horizontal space, `[..., p, d, r]`.

    With `U = W diag(s) P'`: the products of a direction outside range(W) with a column of P, then
    for each pair i <= j the normalised `s_j W_i P_j' + s_i W_j P_i'`
    (Proposition 2.2, `prop:horizontal-projection`). It has p = dr - r(r-1)/2 elements of size dr,
    stored in full.

    >>> horizontal_basis(np.eye(3, 2)).shape
    (5, 3, 2)
    """
    (u,) = tensors(U=U)
    require_factor("U", u)
    return like(U, orthonormal_basis(frame("U", u)))


def horizontal_lift(U: A, xi: A, *, tolerance: float | None = None) -> A:
    """The horizontal Delta with `Delta U' + U Delta' = xi` (`eq:horizontal-lift`).

    `U[..., d, r]` and a tangent matrix `xi[..., d, d]` give `Delta[..., d, r]`, the lift of least
    Frobenius norm. A matrix farther from the tangent space than `tolerance` (relative, default
    square root of the machine epsilon) raises `TangencyError` with that distance.

    >>> U = np.array([[2.0], [0.0]])
    >>> horizontal_lift(U, np.array([[4.0, 2.0], [2.0, 0.0]]))
    array([[1.],
           [1.]])
    """
    u, x = tensors(U=U, xi=xi)
    _require_tangent_shapes(u, xi=x)
    return like(U, _lift(u, x, frame("U", u), "xi", _tolerance(u, tolerance)))


def quotient_metric(U: A, xi: A, zeta: A, *, tolerance: float | None = None) -> A:
    """Quotient metric `g_Q(xi, zeta)`, the inner product of lifts.

    Definition 2.1 (`def:quotient-metric`). `xi` and `zeta` are tangent matrices `[..., d, d]` at
    `Q = UU'`; the result is `[...]`. It does not depend on the factor chosen (Proposition 2.3,
    `prop:quotient-metric-well-defined`).

    >>> U = np.array([[2.0], [0.0]])
    >>> xi = np.array([[4.0, 2.0], [2.0, 0.0]])
    >>> float(quotient_metric(U, xi, xi))
    2.0
    """
    u, x, z = tensors(U=U, xi=xi, zeta=zeta)
    _require_tangent_shapes(u, xi=x, zeta=z)
    basis, tolerance = frame("U", u), _tolerance(u, tolerance)
    lifts = _lift(u, x, basis, "xi", tolerance) * _lift(u, z, basis, "zeta", tolerance)
    return like(U, lifts.sum(dim=(-2, -1)))


def norm_bounds(U: A) -> tuple[A, A]:
    """Bounds `(2 lambda_r, 4 lambda_1)` on `||xi||_F^2 / g_Q(xi, xi)` for tangent xi.

    Proposition 2.4 (`prop:quotient-predictor-norm-comparison`); each `[...]`. The lower bound is
    attained when r < d; for r = d the smallest ratio is `4 lambda_r`.

    >>> low, high = norm_bounds(np.diag([2.0, 1.0]))
    >>> float(low), float(high)
    (2.0, 16.0)
    """
    (u,) = tensors(U=U)
    require_factor("U", u)
    require_full_rank("U", u)
    values = torch.linalg.svdvals(u).square()
    return like(U, 2 * values[..., -1]), like(U, 4 * values[..., 0])


def procrustes_alignment(U: A, V: A) -> A:
    """An orthogonal R that minimises `||U - VR||_F` (Proposition 2.5, `prop:procrustes-distance`).

    The minimum is over all of O(r), reflections included. `(VR)'U` is then symmetric positive
    semidefinite. R is unique when `V'U` is nonsingular; otherwise one minimiser is returned.
    Shapes `[..., d, r]` give `[..., r, r]`.

    >>> procrustes_alignment(np.array([[1.0], [0.0]]), np.array([[-2.0], [1.0]]))
    array([[-1.]])
    """
    u, v, _, _ = _two_factors(U, V)
    return like(U, alignment(u, v))


def procrustes_distance(U: A, V: A) -> A:
    """Procrustes distance `min_R ||U - VR||_F`, shape `[...]` (`eq:procrustes-distance`).

    Computed as the norm of the aligned difference: the formula with squared norms
    (`eq:procrustes-distance-formula`) would lose every digit below 1e-8 to cancellation.

    >>> U = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> float(procrustes_distance(U, 3 * U[:, ::-1]).round(12))
    2.828427124746
    """
    u, v, _, _ = _two_factors(U, V)
    return like(U, aligned_distance(u, v))


def exp(U: A, Delta: A, *, tolerance: float | None = None) -> A:
    """Riemannian exponential: the factor `U + Delta` for horizontal Delta.

    Horizontal straight lines project to geodesics of the quotient metric while they keep full
    rank (Proposition 2.3, `prop:quotient-metric-well-defined`: the projection is a Riemannian
    submersion of a flat space). A Delta that is not horizontal raises `TangencyError`; a line that
    meets the rank boundary on (0, 1] raises `DomainError` with the parameter. Shapes `[..., d, r]`.

    >>> exp(np.array([[1.0], [0.0]]), np.array([[0.0], [2.0]]))
    array([[1.],
           [2.]])
    """
    u, delta = _factor_and_direction(U, "Delta", Delta)
    basis = frame("U", u)
    with torch.no_grad():
        vertical, size = norm(vertical_part(u, delta, basis)), norm(delta)
        # A vertical part below the rounding of U itself cannot be seen in U + Delta.
        rounding = 10 * u.shape[-2] * torch.finfo(u.dtype).eps * basis.s[..., 0]
        far = vertical > _tolerance(u, tolerance) * size + rounding
        if bool(far.any()):
            worst = float((vertical / size)[far].max())
            raise TangencyError(
                "Delta",
                expected="a horizontal direction (U'Delta symmetric)",
                got=f"vertical part {worst:.3e} of its norm; see horizontal_projection",
                distance=worst,
            )
        loss = rank_loss(u, delta, basis)
        if bool((loss <= 1).any()):
            raise DomainError(
                "Delta",
                expected="U + t Delta of full rank for all t in [0, 1]",
                got=f"rank loss at t = {float(loss.min()):.6g}: the geodesic ends there",
            )
    return like(U, u + delta)


def log(U: A, V: A) -> A:
    """Riemannian logarithm: the horizontal `VR - U`, R the alignment of V to U.

    Its norm is the Procrustes distance, which is the geodesic distance wherever the logarithm is
    defined (compare Remark 2.2, `rem:procrustes-versus-geodesic`). If the alignment is not unique,
    that is if `V'U` is singular, `DomainError` is raised. Shapes `[..., d, r]`.

    >>> log(np.array([[1.0], [0.0]]), np.array([[-1.0], [-1.0]]))
    array([[0.],
           [1.]])
    """
    u, v, basis_u, basis_v = _two_factors(U, V)
    with torch.no_grad():
        smallest = smallest_cosine(basis_u, basis_v)
        if smallest <= cosine_rounding(u):
            raise DomainError(
                "V",
                expected="a unique alignment with U (V'U nonsingular)",
                got=f"smallest principal cosine {smallest:.3e}: a cut point of U",
            )
    return like(U, v @ alignment(u, v) - u)


def geodesic(U: A, V: A, t: float | A) -> A:
    """Point at parameter t of the geodesic from U (t = 0) to V (t = 1): `U + t log(U, V)`.

    A geodesic of the quotient metric (Definition 2.1, `def:quotient-metric`, Proposition 2.3,
    `prop:quotient-metric-well-defined`). `t` is a number or an array that broadcasts against the
    batch dimensions; values outside [0, 1] extend the geodesic as long as it keeps full rank.
    Returns a factor `[..., d, r]`.

    >>> geodesic(np.array([[1.0], [0.0]]), np.array([[-1.0], [-1.0]]), 0.5)
    array([[1. ],
           [0.5]])
    """
    u, v, basis, _ = _two_factors(U, V)
    (parameter,) = tensors(t=t)  # pyright: ignore[reportArgumentType]  a number is an array too
    require_batch(U=u.shape[:-2], V=v.shape[:-2], t=parameter.shape)
    parameter = parameter.to(u)
    delta = parameter[..., None, None] * log(u, v)  # horizontal by construction
    with torch.no_grad():
        loss = rank_loss(u, delta, basis)
        if bool((loss <= 1).any()):
            where = float((loss * parameter)[loss <= 1][0])
            raise DomainError(
                "t",
                expected="parameters up to which the geodesic keeps full rank",
                got=f"rank loss at t = {where:.6g}: the geodesic ends there",
            )
    return like(U, u + delta)


def _lift(u: Tensor, xi: Tensor, basis: Frame, name: str, tolerance: float) -> Tensor:
    with torch.no_grad():
        relative = distance_from_tangent_space(xi, basis)
        if bool((relative > tolerance).any()):
            worst = float(relative.max())
            raise TangencyError(
                name,
                expected="a matrix Delta U' + U Delta' tangent at Q = UU'",
                got=f"relative distance {worst:.3e} from the tangent space",
                distance=worst,
            )
    return lift(u, xi, basis)


def _two_factors(U: Array, V: Array) -> tuple[Tensor, Tensor, Frame, Frame]:
    u, v = _factor_and_direction(U, "V", V)
    return u, v, frame("U", u), frame("V", v)


def _factor_and_direction(U: Array, name: str, Z: Array) -> tuple[Tensor, Tensor]:
    u, z = tensors(**{"U": U, name: Z})
    require_factor("U", u)
    require_shape(name, z, u.shape[-2:], "(..., d, r) as for U")
    require_batch(**{"U": u.shape[:-2], name: z.shape[:-2]})
    return u, z


def _require_tangent_shapes(u: Tensor, **matrices: Tensor) -> None:
    require_factor("U", u)
    d = u.shape[-2]
    for name, matrix in matrices.items():
        require_shape(name, matrix, (d, d), "(..., d, d)")
        require_symmetric(name, matrix)
    require_batch(U=u.shape[:-2], **{name: m.shape[:-2] for name, m in matrices.items()})


def _tolerance(u: Tensor, tolerance: float | None) -> float:
    if tolerance is None:
        return torch.finfo(u.dtype).eps ** 0.5
    return positive_number("tolerance", tolerance, zero=True)
