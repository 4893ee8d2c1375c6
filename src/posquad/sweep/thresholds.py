r"""Published predictions for large d with n = alpha d^2, which the diagrams are compared with.

All are integrals of the semicircle law `sigma(dz) = sqrt(4 - z^2)/(2 pi) dz` on [-2, 2]; with
`q = 2 cos t` its partial moments `M_k(q) = int_q^2 z^k sigma(dz)` are

    M_0 = (t - sin t cos t)/pi,   M_1 = 4 sin^3(t)/(3 pi),   M_2 = (t - sin(4t)/4)/pi.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from scipy import optimize

from posquad.core.errors import DomainError

__all__ = ["ellipsoid_error", "ellipsoid_threshold", "semicircle_moments", "uniqueness_threshold"]

_ACCURACY = 1e-13


def semicircle_moments(q: float) -> tuple[float, float, float]:
    """Return `M_0(q)`, `M_1(q)` and `M_2(q)` of the semicircle law on [-2, 2].

    >>> semicircle_moments(-2.0)
    (1.0, 0.0, 1.0)
    """
    t = math.acos(min(1.0, max(-1.0, q / 2)))
    first = 4 * math.sin(t) ** 3 / (3 * math.pi)
    return (
        (t - math.sin(t) * math.cos(t)) / math.pi,
        first if abs(q) < 2 else 0.0,
        (t - math.sin(4 * t) / 4) / math.pi,
    )


def ellipsoid_threshold(kappa: float) -> float:
    """Return `alpha_star(kappa)`: below `n = alpha_star d^2` an ellipsoid through n points exists.

    The points have independent coordinates of variance one and fourth moment kappa (Koehler and
    Sohn, arXiv:2608.27372). With `nu`, the semicircle law on [-sqrt 2, sqrt 2],
    `s(w) = int (x-w)_+^2 nu` and `m(w) = int (x-w)_+ nu`, w solves `w = (kappa-3)/2 m(w)` and

        alpha_star = s(w) + (kappa-3)/2 m(w)^2.

    >>> ellipsoid_threshold(3.0), round(ellipsoid_threshold(1.8), 4)
    (0.25, 0.33)
    """
    c = _excess(kappa)
    m, s = _hinges(_root(lambda w: w - c * _hinges(w)[0], -math.sqrt(2), math.sqrt(2)))
    return s + c * m * m


def ellipsoid_error(alpha: float, kappa: float) -> float:
    """Return the limit `e(alpha)` of d times the least mean squared error of an ellipsoid.

    It is `(2/alpha) ((kappa-3)/2 m(w) - w)_+^2`, with w from `s(w) + (kappa-3)/2 m(w)^2 = alpha`
    (the same source; notation of `ellipsoid_threshold`), and zero below the threshold. The factor d
    is ours: x'Rx has fluctuations of order 1/sqrt(d) around 1 for R = I/d.

    >>> round(ellipsoid_error(0.3, 3.0), 4), ellipsoid_error(0.2, 3.0)
    (0.0407, 0.0)
    """
    c = _excess(kappa)
    if alpha <= ellipsoid_threshold(kappa):
        return 0.0

    def excess(w: float) -> float:
        m, s = _hinges(w)
        return s + c * m * m - alpha

    if excess(-40.0) < 0:
        raise DomainError("alpha", expected="a ratio that the formula covers", got=str(alpha))
    w = _root(excess, -40.0, math.sqrt(2))
    return 2 / alpha * max(0.0, c * _hinges(w)[0] - w) ** 2


def uniqueness_threshold(share: float) -> float:
    """Return `alpha(k)`, k = r/d: above `n = alpha d^2` minimum trace recovers a matrix of rank r.

    With q from `(M_1(q) - q M_0(q))/q = k/(1-k)`,

        alpha(k) = k - k^2/2 + (1-k)^2/2 (M_2(q) - q M_1(q)).

    For Gaussian inputs the mean of y fixes the trace, so that "no other positive semidefinite
    matrix interpolates" should have the same transition: an argument, not a theorem.

    >>> [round(uniqueness_threshold(r / d) * d * d, 1) for d, r in ((10, 2), (20, 2), (40, 3))]
    [25.6, 63.0, 202.8]
    """
    if not 0 < share < 1:
        raise DomainError("share", expected="a rank share r/d between 0 and 1", got=str(share))

    def balance(q: float) -> float:
        m0, m1, _ = semicircle_moments(q)
        return m1 - q * m0 - q * share / (1 - share)

    q = _root(balance, 0.0, 2.0)
    _, m1, m2 = semicircle_moments(q)
    return share - share**2 / 2 + (1 - share) ** 2 / 2 * (m2 - q * m1)


def _hinges(w: float) -> tuple[float, float]:
    """Return `m(w)` and `s(w)`; the law on [-sqrt 2, sqrt 2] is sigma scaled by 1/sqrt 2."""
    q = math.sqrt(2) * w
    if q <= -2:  # all of the law lies above w
        return -w, 0.5 + w * w
    m0, m1, m2 = semicircle_moments(q)
    return (m1 - q * m0) / math.sqrt(2), (m2 - 2 * q * m1 + q * q * m0) / 2


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    found: Any = optimize.brentq(function, low, high, xtol=_ACCURACY)
    return float(found)


def _excess(kappa: float) -> float:
    if not kappa > 1:
        raise DomainError("kappa", expected="a fourth moment above 1", got=str(kappa))
    return (kappa - 3) / 2
