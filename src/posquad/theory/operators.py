"""Bounds on the normal operator of Gaussian measurements (section 3.3), one function each.

Names are those of the paper. Functions take numbers and return numbers.
"""

from __future__ import annotations

import numpy as np

from posquad.core.arrays import positive_integer, positive_number
from posquad.core.errors import DomainError
from posquad.theory.signal import Signal, requires_signal

__all__ = [
    "deviation_probability",
    "deviation_sample_size",
    "effective_curvature_bounds",
    "empirical_coercivity",
    "kappa_d",
    "population_coercivity",
]


def kappa_d(d: int) -> int:
    """`d (d+2) (d+4) (d+6)`, the eighth moment of a Gaussian radius (`eq:kappa-d-definition`).

    >>> kappa_d(1)
    105
    """
    d = positive_integer("d", d)
    return d * (d + 2) * (d + 4) * (d + 6)


def deviation_probability(n: int, d: int, epsilon: float) -> float:
    """Bound `kappa_d / (n eps^2)` on `P(||T_n - T|| > eps)`.

    Theorem 3.2 (`thm:full-space-operator-concentration`). A bound above 1 is vacuous; it is
    returned unchanged.

    >>> deviation_probability(1050, 1, 1.0)
    0.1
    """
    return divide_by_square(
        kappa_d(d) / positive_integer("n", n), positive_number("epsilon", epsilon)
    )


def deviation_sample_size(d: int, epsilon: float, delta: float) -> float:
    """Sample size `kappa_d / (delta eps^2)`, enough for `||T_n - T|| <= eps`.

    The event has probability at least 1 - delta (`eq:operator-concentration-sample-size`).

    >>> round(deviation_sample_size(1, 1.0, 0.1))
    1050
    """
    return divide_by_square(kappa_d(d) / probability(delta), positive_number("epsilon", epsilon))


def population_coercivity(d: int) -> tuple[float, float]:
    """Bounds `(2, d+2)` on `<H, T(H)> / ||H||_F^2` (Lemma 3.1, `lem:gaussian-population-operator`).

    >>> population_coercivity(8)
    (2.0, 10.0)
    """
    return 2.0, positive_integer("d", d) + 2.0


def empirical_coercivity(d: int, epsilon: float) -> tuple[float, float]:
    """Bounds `(2 - eps, d + 2 + eps)` on `<H, T_n(H)> / ||H||_F^2`.

    They hold on the event `||T_n - T|| <= eps` (Corollary 3.1, `cor:global-empirical-coercivity`).

    >>> empirical_coercivity(8, 0.5)
    (1.5, 10.5)
    """
    epsilon = positive_number("epsilon", epsilon, zero=True)
    low, high = population_coercivity(d)
    return low - epsilon, high + epsilon


@requires_signal
def effective_curvature_bounds(signal: Signal, epsilon: float = 0.0) -> tuple[float, float]:
    """Bounds `(2 (2-eps) lambda_r, 4 (d+2+eps) lambda_1)` on the effective eigenvalues.

    `eq:empirical-effective-lower`, `eq:empirical-effective-upper`; with eps = 0 the population
    bounds `eq:population-effective-lower`, `eq:population-effective-upper`.

    >>> effective_curvature_bounds(Signal.from_eigenvalues(8, [1.0, 0.5]))
    (2.0, 40.0)
    """
    low, high = empirical_coercivity(signal.d, epsilon)
    return 2 * low * signal.lambda_r, 4 * high * signal.lambda_1


def divide_by_square(numerator: float, x: float) -> float:
    """`numerator / x^2`, infinite where the quotient overflows or the square underflows."""
    with np.errstate(over="ignore", divide="ignore"):
        return float(np.float64(numerator) / np.float64(x) / np.float64(x))


def probability(delta: float) -> float:
    """Require a probability strictly between 0 and 1."""
    if not 0 < positive_number("delta", delta) < 1:
        raise DomainError(
            "delta", expected="a probability strictly between 0 and 1", got=f"{delta}"
        )
    return float(delta)
