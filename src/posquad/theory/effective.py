"""Guarantees from quotient curvature alone: Theorems A to D of `docs/theory.md`, as functions.

The paper's local theory needs bounds m, M of the normal operator on all symmetric matrices. These
functions need three numbers at the solution, which are positive and finite as soon as the tangent
space is identified:

- `lam`, `Lam`: the smallest and largest effective eigenvalue (`effective_spectrum`);
- `mu`: the largest `||A(vv')||^2 / n` over unit vectors v, or any upper bound on it.

Every statement stays true with a larger mu, a smaller lam or a larger Lam than the true one.
Distances are Procrustes distances; `delta = distance sqrt(mu / lam)` expresses them relative to the
basin, whose radius is delta = 1/2.
"""

from __future__ import annotations

import math
from typing import Any

from posquad.core.arrays import positive_integer, positive_number
from posquad.core.elementwise import exponential, largest, require_nonnegative
from posquad.core.errors import DomainError

__all__ = [
    "curvature_interval",
    "effective_descent_envelope",
    "effective_flow_envelope",
    "effective_radius",
    "effective_secant_bound",
    "effective_step",
    "interpolant_radius",
    "residual_radius",
    "stability_constant",
]


def effective_radius(lam: float, mu: float) -> float:
    """Radius `sqrt(lam / mu) / 2` within which Q* is the only critical point (Theorem A).

    The counterpart of `rho_star` (`eq:abstract-basin-radius`).

    >>> effective_radius(4.0, 1.0)
    1.0
    """
    return interpolant_radius(lam, mu) / 2


def interpolant_radius(lam: float, mu: float) -> float:
    """Radius `sqrt(lam / mu)` within which Q* is the only interpolant of rank at most r.

    Theorem A; `|A(UU' - Q*)| >= (1 - delta) |A(xi)|` is positive for delta < 1.

    >>> interpolant_radius(4.0, 1.0)
    2.0
    """
    lam, mu = positive_number("lam", lam), positive_number("mu", mu)
    return math.sqrt(lam) / math.sqrt(mu)


def effective_secant_bound(distance: Any, lam: float, mu: float) -> Any:
    """Lower bound `(1 - delta)(1 - 2 delta) lam` on `<grad L(U), Delta> / ||Delta||^2` (Theorem A).

    Delta is the aligned error of size `distance`, a number or an array, inside the basin. The
    counterpart of `secant_bounds` (Theorem 3.3, `thm:local-secant-regularity`); as the distance
    falls to zero it tends to the exact constant lam.

    >>> float(effective_secant_bound(0.5, 4.0, 1.0))
    1.5
    """
    (distance,) = require_nonnegative(distance=distance)
    delta = _basin_fraction(distance, lam, mu)
    return (1 - delta) * (1 - 2 * delta) * lam


def effective_flow_envelope(distance: Any, t: Any, lam: float, mu: float) -> Any:
    """Bound on `d_P(U(t), U*)` along the gradient flow from inside the basin (Theorem A).

    `delta(t) <= (1 - 1/sqrt(1 + 4 g e^{-lam t})) / 2` with `g = delta_0 (1 - delta_0) / (1 - 2
    delta_0)^2`, which decays at the exact rate lam. The counterpart of `flow_envelope`
    (Theorem 3.6, `thm:local-gradient-flow-convergence`). `distance` and `t` are numbers or arrays.

    >>> round(float(effective_flow_envelope(0.25, 0.0, 4.0, 1.0)), 12)
    0.25
    """
    distance, t = require_nonnegative(distance=distance, t=t)
    delta = _basin_fraction(distance, lam, mu)
    h = 4 * delta * (1 - delta) / (1 - 2 * delta) ** 2 * exponential(-lam * t)
    root = (1 + h) ** 0.5
    # (1 - 1/root)/2, without cancellation for small h.
    return h / (2 * root * (1 + root)) * interpolant_radius(lam, mu)


def effective_step(theta: float, lam: float, Lam: float) -> float:
    """Largest step `1 / L_theta` of Theorem B, for a start with `delta <= theta < 1/2`.

    `L_theta = (sqrt(Lam) + 2 theta sqrt(lam))^2 (1 - theta) / (1 - 2 theta)`; as theta falls to 0
    it tends to 1/Lam, half of the stability limit. The counterpart of `oracle_step`
    (Theorem 3.7, `thm:local-gradient-descent-convergence`).

    >>> effective_step(0.0, 1.0, 4.0)
    0.25
    """
    theta = _fraction(theta)
    lam, Lam = _ordered(lam, Lam)
    root = math.sqrt(Lam) + 2 * theta * math.sqrt(lam)
    return (1 - 2 * theta) / (1 - theta) / root / root


def effective_descent_envelope(
    distance: Any, k: Any, step: float, lam: float, Lam: float, mu: float
) -> Any:
    """Bound `(1 - eta (1-theta)(1-2 theta) lam)^(k/2) d_P(U_0, U*)` on `d_P(U_k, U*)` (Theorem B).

    theta is delta(U_0) at the largest distance given, and the step must be at most
    `effective_step(theta, lam, Lam)`. The counterpart of `descent_envelope`
    (`eq:discrete-factor-convergence`). `distance` and `k` are numbers or arrays.

    >>> float(effective_descent_envelope(0.25, 0, 0.01, 4.0, 16.0, 1.0))
    0.25
    """
    step = positive_number("step", step)
    distance, k = require_nonnegative(distance=distance, k=k)
    delta = _basin_fraction(distance, lam, mu)
    theta = largest(delta)
    limit = effective_step(theta, lam, Lam)
    if step > limit:
        expected = f"at most the certified step {limit:.6e}"
        raise DomainError("step", expected=expected, got=f"{step:.6e}")
    return distance * (1 - step * (1 - theta) * (1 - 2 * theta) * lam) ** (k / 2)


def curvature_interval(value: float, mu: float, distance: float) -> tuple[float, float]:
    """Interval that contains an extreme effective eigenvalue at U*, given its value at U.

    Theorem C: `|sqrt(value(U)) - sqrt(value(U*))| <= 2 sqrt(mu) d_P(U, U*)`, for the smallest and
    for the largest eigenvalue.

    >>> curvature_interval(4.0, 1.0, 0.25)
    (2.25, 6.25)
    """
    root = math.sqrt(positive_number("value", value, zero=True))
    moved = (
        2 * math.sqrt(positive_number("mu", mu)) * positive_number("distance", distance, zero=True)
    )
    return max(0.0, root - moved) ** 2, (root + moved) ** 2


def residual_radius(residual: float, theta: float, lam: float) -> float:
    """Distance from Q* to critical points of a loss with noise (corollary of Theorem A).

    If the root mean square residual of Q* is `residual`, every critical point of the loss with
    `delta <= theta` lies within the Procrustes distance
    `residual (1 + 2 theta) / ((1 - theta)(1 - 2 theta) sqrt(lam))` of Q*. For theta = 1/4 that is
    `4 residual / sqrt(lam)`.

    >>> residual_radius(0.5, 0.25, 4.0)
    1.0
    """
    residual = positive_number("residual", residual, zero=True)
    theta, lam = _fraction(theta), positive_number("lam", lam)
    return residual * (1 + 2 * theta) / ((1 - theta) * (1 - 2 * theta) * math.sqrt(lam))


def stability_constant(
    n: int, lambda_1: float, lam: float, mu: float, norm: float, beta: float
) -> float:
    """C with `||Q' - Q||_F <= C eps` for every PSD Q' with `||A(Q' - Q)|| <= sqrt(n) eps`.

    Theorem D, for a dual vector z of norm `norm` with `A*(z)U = 0` and `V'A*(z)V >= beta I`. With
    `s = sqrt(n) norm / beta`, `C^2 = s^2 + 4 (lambda_1 / lam) (1 + sqrt(mu) s)^2`, a sum of squares
    because the two parts of `Q' - Q` are orthogonal. Pass `beta=inf` when r = d.

    >>> round(stability_constant(1, 1.0, 4.0, 1.0, 0.0, 1.0), 12)
    1.0
    """
    n = positive_integer("n", n)
    lambda_1, lam = positive_number("lambda_1", lambda_1), positive_number("lam", lam)
    root = math.sqrt(positive_number("mu", mu, zero=True))
    norm = positive_number("norm", norm, zero=True)
    if beta != math.inf:
        beta = positive_number("beta", beta)
    outside = math.sqrt(n) * norm / beta
    return math.hypot(outside, 2 * math.sqrt(lambda_1 / lam) * (1 + root * outside))


def _basin_fraction(distance: Any, lam: float, mu: float) -> Any:
    """The ratio delta, which must be below 1/2."""
    delta = distance / interpolant_radius(lam, mu)
    if not largest(delta) < 0.5:
        expected = (
            f"below sqrt(lam/mu)/2 = {effective_radius(lam, mu):.6e}, where the theorem holds"
        )
        raise DomainError("distance", expected=expected, got=f"delta = {largest(delta):.6e}")
    return delta


def _fraction(theta: float) -> float:
    theta = positive_number("theta", theta, zero=True)
    if theta >= 0.5:
        raise DomainError("theta", expected="0 <= theta < 1/2", got=f"{theta}")
    return theta


def _ordered(lam: float, Lam: float) -> tuple[float, float]:
    lam, Lam = positive_number("lam", lam), positive_number("Lam", Lam)
    if lam > Lam:
        raise DomainError("lam", expected=f"lam <= Lam = {Lam}", got=f"{lam}")
    return lam, Lam
