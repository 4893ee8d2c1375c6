"""Accuracy of the moment initializer and sufficient sample sizes (sections 3.5 and 3.8).

Names are those of the paper. Functions take numbers and return numbers.
"""

from __future__ import annotations

import math

from posquad.core.arrays import positive_integer, positive_number
from posquad.core.errors import DomainError
from posquad.theory.basin import rho_n
from posquad.theory.operators import divide_by_square, kappa_d, probability
from posquad.theory.signal import Signal, requires_signal

__all__ = [
    "N_star",
    "epsilon_star",
    "gamma_star",
    "initialization_radius",
    "response_mean_probability",
    "sample_scale",
    "truncation_bounds",
]


def response_mean_probability(n: int, epsilon: float) -> float:
    """Bound `2 / (n eps^2)` on `P(|mean(y) - tr Q*| > eps ||Q*||_F)`.

    Lemma 3.3 (`lem:response-mean-concentration`).

    >>> response_mean_probability(200, 1.0)
    0.01
    """
    return divide_by_square(2 / positive_integer("n", n), positive_number("epsilon", epsilon))


@requires_signal
def truncation_bounds(signal: Signal, gamma: float) -> tuple[float, float]:
    """Bounds `(2 gamma, 2 sqrt(r gamma))` on operator and factor error after rank-r truncation.

    If `||M - Q*||_op <= gamma < lambda_r/2`, the truncation of M is within the first of Q* in
    operator norm and within the second in Procrustes distance
    (Lemma 3.4, `lem:psd-truncation-factor-perturbation`).

    >>> truncation_bounds(Signal.from_eigenvalues(4, [1.0]), 0.25)
    (0.5, 1.0)
    """
    gamma = positive_number("gamma", gamma, zero=True)
    if gamma >= signal.lambda_r / 2:
        raise DomainError(
            "gamma", expected=f"gamma < lambda_r/2 = {signal.lambda_r / 2}", got=f"{gamma}"
        )
    return 2 * gamma, 2 * math.sqrt(signal.r * gamma)


@requires_signal
def gamma_star(signal: Signal) -> float:
    """`lambda_r / (256 r (d+3)^2) = rho_n^2 / (16 r)` (`eq:explicit-gamma-star`).

    >>> gamma_star(Signal.from_eigenvalues(1, [4096.0]))
    1.0
    """
    return signal.lambda_r / (256 * signal.r * (signal.d + 3) ** 2)


@requires_signal
def epsilon_star(signal: Signal) -> float:
    """`gamma* / ||Q*||_F`, below 1 (`eq:explicit-epsilon-star`).

    >>> epsilon_star(Signal.from_eigenvalues(1, [4096.0])) == 1 / 4096
    True
    """
    return gamma_star(signal) / signal.frobenius


@requires_signal
def initialization_radius(signal: Signal) -> float:
    """Distance `rho_n / 2` within which the moment initializer lies.

    Theorem 3.4 (`thm:initialization-enters-basin`).

    >>> initialization_radius(Signal.from_eigenvalues(1, [256.0]))
    0.5
    """
    return rho_n(signal) / 2


@requires_signal
def N_star(signal: Signal, delta: float) -> float:
    """Sufficient sample size `(kappa_d + 2) / (delta eps*^2)`.

    Theorem 3.9 (`thm:end-to-end-gaussian-recovery`), by Corollary 3.2
    (`cor:explicit-high-probability-initialization`).

    >>> print(f"{N_star(Signal.from_eigenvalues(10, [1.0, 0.5]), delta=0.05):.2e}")
    2.01e+16
    """
    return divide_by_square((kappa_d(signal.d) + 2) / probability(delta), epsilon_star(signal))


@requires_signal
def sample_scale(signal: Signal, delta: float) -> float:
    """Leading order `r^2 d^8 (||Q*||_F / lambda_r)^2 / delta` of `N_star / 256^2`.

    Remark 3.5 (`rem:conservative-sample-scale`).

    >>> round(sample_scale(Signal.from_eigenvalues(2, [1.0]), 0.5))
    512
    """
    ratio = signal.frobenius / signal.lambda_r
    return signal.r**2 * signal.d**8 * ratio**2 / probability(delta)
