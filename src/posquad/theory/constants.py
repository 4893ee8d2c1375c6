"""Every explicit constant and bound of section 3, one small function each, named as in the paper.

Constants of the target predictor come from a `Signal`: its size d, rank r, and nonzero eigenvalues.
The operator bounds `m`, `M` of `eq:abstract-operator-bounds` are arguments; the paper's choices are
`m=2, M=d+2` for the population (`lem:gaussian-population-operator`) and `m=1, M=d+3` for samples on
the event `||T_n - T|| <= 1` (`eq:empirical-m-M`). Functions are elementwise arithmetic: numbers in,
numbers out, and arrays of distances or times are welcome. The sharper constants of `effective.py`
need neither m nor M.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from posquad.core.arrays import positive_integer, positive_number
from posquad.core.elementwise import exponential, nonnegative
from posquad.core.errors import DomainError
from posquad.theory.signal import Signal, of_signal

__all__ = [
    "C_star",
    "L_star",
    "N_star",
    "alpha_star",
    "beta_star",
    "descent_envelope",
    "descent_predictor_envelope",
    "deviation_probability",
    "deviation_sample_size",
    "effective_curvature_bounds",
    "empirical_coercivity",
    "epsilon_star",
    "factor_predictor_bounds",
    "flow_envelope",
    "flow_predictor_envelope",
    "gamma_star",
    "initialization_radius",
    "kappa_d",
    "loss_bounds",
    "oracle_step",
    "population_coercivity",
    "response_mean_probability",
    "rho_n",
    "rho_star",
    "sample_scale",
    "secant_bounds",
    "sigma_star",
    "truncation_bounds",
]


# Operators: population and samples.


def kappa_d(d: int) -> int:
    """`d (d+2) (d+4) (d+6)`, the eighth moment of a Gaussian radius (`eq:kappa-d-definition`).

    >>> kappa_d(1)
    105
    """
    d = positive_integer("d", d)
    return d * (d + 2) * (d + 4) * (d + 6)


def deviation_probability(n: int, d: int, epsilon: float) -> float:
    """Bound `kappa_d / (n eps^2)` on `P(||T_n - T|| > eps)`.

    `thm:full-space-operator-concentration`.
    A bound above 1 says nothing and is returned as it is.

    >>> deviation_probability(1050, 1, 1.0)
    0.1
    """
    return _over_square(kappa_d(d) / positive_integer("n", n), positive_number("epsilon", epsilon))


def deviation_sample_size(d: int, epsilon: float, delta: float) -> float:
    """`kappa_d / (delta eps^2)` samples give `||T_n - T|| <= eps` with probability 1 - delta.

    `eq:operator-concentration-sample-size`.

    >>> round(deviation_sample_size(1, 1.0, 0.1))
    1050
    """
    return _over_square(kappa_d(d) / _probability(delta), positive_number("epsilon", epsilon))


def population_coercivity(d: int) -> tuple[float, float]:
    """`(2, d+2)`: ends of `<H, T(H)> / ||H||_F^2` (`lem:gaussian-population-operator`).

    >>> population_coercivity(8)
    (2.0, 10.0)
    """
    return 2.0, positive_integer("d", d) + 2.0


def empirical_coercivity(d: int, epsilon: float) -> tuple[float, float]:
    """`(2 - eps, d + 2 + eps)` on the event `||T_n - T|| <= eps`.

    `cor:global-empirical-coercivity`.

    >>> empirical_coercivity(8, 0.5)
    (1.5, 10.5)
    """
    epsilon = positive_number("epsilon", epsilon, zero=True)
    low, high = population_coercivity(d)
    return low - epsilon, high + epsilon


@of_signal
def effective_curvature_bounds(signal: Signal, epsilon: float = 0.0) -> tuple[float, float]:
    """`(2 (2-eps) lambda_r, 4 (d+2+eps) lambda_1)`, around the effective eigenvalues.

    `eq:empirical-effective-lower`, `eq:empirical-effective-upper`; with eps = 0 the population
    bounds `eq:population-effective-lower`, `eq:population-effective-upper`.

    >>> effective_curvature_bounds(Signal.from_eigenvalues(8, [1.0, 0.5]))
    (2.0, 40.0)
    """
    low, high = empirical_coercivity(signal.d, epsilon)
    return 2 * low * signal.lambda_r, 4 * high * signal.lambda_1


# The local regularity of section 3.4.


@of_signal
def sigma_star(signal: Signal) -> float:
    """`sigma_r(U*) = sqrt(lambda_r)` (`eq:sigma-star`).

    >>> sigma_star(Signal.from_eigenvalues(8, [1.0, 0.25]))
    0.5
    """
    return math.sqrt(signal.lambda_r)


@of_signal
def beta_star(signal: Signal) -> float:
    """`||U*||_op = sqrt(lambda_1)` (`eq:beta-star`).

    >>> beta_star(Signal.from_eigenvalues(8, [4.0, 0.25]))
    2.0
    """
    return math.sqrt(signal.lambda_1)


@of_signal
def rho_star(signal: Signal, m: float, M: float) -> float:
    """Basin radius `m sigma* / (4M)` (`eq:abstract-basin-radius`).

    >>> rho_star(Signal.from_eigenvalues(8, [1.0, 1.0]), m=2, M=10)
    0.05
    """
    m, M = _operator_bounds(m, M)
    return m * sigma_star(signal) / (4 * M)


@of_signal
def rho_n(signal: Signal) -> float:
    """Basin radius for samples, `sigma* / (4 (d+3))` (`eq:empirical-basin-radius`).

    >>> round(rho_n(Signal.from_eigenvalues(10, [1.0, 0.5])), 4)
    0.0136
    """
    return rho_star(signal, 1, signal.d + 3)


@of_signal
def alpha_star(signal: Signal, m: float) -> float:
    """Guaranteed flow rate `m sigma*^2 / 2` (`eq:abstract-flow-rate`); m = 1 gives `alpha_n`.

    >>> alpha_star(Signal.from_eigenvalues(8, [1.0, 0.5]), m=2)
    0.5
    """
    return positive_number("m", m) * signal.lambda_r / 2


@of_signal
def L_star(signal: Signal, m: float, M: float) -> float:
    """Gradient constant `2M (2 beta* + rho*) (beta* + rho*)` (`eq:local-gradient-constant`).

    >>> round(L_star(Signal.from_eigenvalues(8, [1.0, 1.0]), m=2, M=10), 10)
    43.05
    """
    rho, beta = rho_star(signal, m, M), beta_star(signal)
    return 2 * M * (2 * beta + rho) * (beta + rho)


@of_signal
def oracle_step(signal: Signal, m: float, M: float) -> float:
    """Largest step of the descent theorem, `alpha* / L*^2`.

    `thm:local-gradient-descent-convergence`.
    It depends on the unknown target (`rem:oracle-step-size`).

    >>> print(f"{oracle_step(Signal.from_eigenvalues(8, [1.0, 1.0]), m=2, M=10):.2e}")
    5.40e-04
    """
    L = L_star(signal, m, M)
    return alpha_star(signal, m) / L / L


@of_signal
def factor_predictor_bounds(signal: Signal, m: float, M: float) -> tuple[float, float]:
    """`(sigma*, 2 beta* + rho*)`: ends of `||UU' - Q*||_F / d_P(U, U*)` within radius rho*.

    `lem:factor-predictor-local-comparison`.

    >>> factor_predictor_bounds(Signal.from_eigenvalues(8, [1.0, 1.0]), m=2, M=10)
    (1.0, 2.05)
    """
    return sigma_star(signal), 2 * beta_star(signal) + rho_star(signal, m, M)


@of_signal
def secant_bounds(signal: Signal, m: float, M: float) -> tuple[float, float]:
    """`(m sigma*^2 / 2, L*)`: within rho*, `<grad L, Delta> >= first * ||Delta||^2` and
    `||grad L|| <= second * ||Delta||` (`thm:local-secant-regularity`).

    >>> [round(v, 10) for v in secant_bounds(Signal.from_eigenvalues(8, [1.0, 1.0]), m=2, M=10)]
    [1.0, 43.05]
    """
    return alpha_star(signal, m), L_star(signal, m, M)


def loss_bounds(m: float, M: float) -> tuple[float, float]:
    """`(m/2, M/2)`: ends of `L(U) / ||UU' - Q*||_F^2` (`eq:local-loss-equivalence`).

    >>> loss_bounds(2, 10)
    (1.0, 5.0)
    """
    m, M = _operator_bounds(m, M)
    return m / 2, M / 2


# Spectral initialization and sample sizes.


def response_mean_probability(n: int, epsilon: float) -> float:
    """Bound `2 / (n eps^2)` on `P(|mean(y) - tr Q*| > eps ||Q*||_F)`.

    `lem:response-mean-concentration`.

    >>> response_mean_probability(200, 1.0)
    0.01
    """
    return _over_square(2 / positive_integer("n", n), positive_number("epsilon", epsilon))


@of_signal
def truncation_bounds(signal: Signal, gamma: float) -> tuple[float, float]:
    """`(2 gamma, 2 sqrt(r gamma))`: operator and factor error after rank-r truncation.

    If `||M - Q*||_op <= gamma < lambda_r/2`, the truncation of M is within the first of Q* in
    operator norm and within the second in Procrustes distance
    (`lem:psd-truncation-factor-perturbation`).

    >>> truncation_bounds(Signal.from_eigenvalues(4, [1.0]), 0.25)
    (0.5, 1.0)
    """
    gamma = positive_number("gamma", gamma, zero=True)
    if gamma >= signal.lambda_r / 2:
        raise DomainError(
            "gamma", expected=f"gamma < lambda_r/2 = {signal.lambda_r / 2}", got=f"{gamma}"
        )
    return 2 * gamma, 2 * math.sqrt(signal.r * gamma)


@of_signal
def gamma_star(signal: Signal) -> float:
    """`lambda_r / (256 r (d+3)^2) = rho_n^2 / (16 r)` (`eq:explicit-gamma-star`).

    >>> gamma_star(Signal.from_eigenvalues(1, [4096.0]))
    1.0
    """
    return signal.lambda_r / (256 * signal.r * (signal.d + 3) ** 2)


@of_signal
def epsilon_star(signal: Signal) -> float:
    """`gamma* / ||Q*||_F`, below 1 (`eq:explicit-epsilon-star`).

    >>> epsilon_star(Signal.from_eigenvalues(1, [4096.0])) == 1 / 4096
    True
    """
    return gamma_star(signal) / signal.frobenius


@of_signal
def initialization_radius(signal: Signal) -> float:
    """`rho_n / 2`, where the moment initializer lands (`thm:initialization-enters-basin`).

    >>> initialization_radius(Signal.from_eigenvalues(1, [256.0]))
    0.5
    """
    return rho_n(signal) / 2


@of_signal
def N_star(signal: Signal, delta: float) -> float:
    """Sufficient sample size `(kappa_d + 2) / (delta eps*^2)`.

    `thm:end-to-end-gaussian-recovery`, by `cor:explicit-high-probability-initialization`.

    >>> print(f"{N_star(Signal.from_eigenvalues(10, [1.0, 0.5]), delta=0.05):.2e}")
    2.01e+16
    """
    return _over_square((kappa_d(signal.d) + 2) / _probability(delta), epsilon_star(signal))


@of_signal
def sample_scale(signal: Signal, delta: float) -> float:
    """Leading order `r^2 d^8 (||Q*||_F / lambda_r)^2 / delta` of `N_star / 256^2`.

    `rem:conservative-sample-scale`.

    >>> round(sample_scale(Signal.from_eigenvalues(2, [1.0]), 0.5))
    512
    """
    ratio = signal.frobenius / signal.lambda_r
    return signal.r**2 * signal.d**8 * ratio**2 / _probability(delta)


# Convergence.


@of_signal
def C_star(signal: Signal, m: float = 1.0, M: float | None = None) -> float:
    """`(2 beta* + rho) / sigma*`, from factor to predictor rates.

    `eq:end-to-end-predictor-constant`.
    Defaults m = 1, M = d+3 make rho the paper's `rho_n`.

    >>> C_star(Signal.from_eigenvalues(1, [1.0]))
    2.0625
    """
    low, high = factor_predictor_bounds(signal, m, _upper(signal, M))
    return high / low


@of_signal
def flow_envelope(
    signal: Signal, distance: Any, t: Any, m: float = 1.0, M: float | None = None
) -> Any:
    """`exp(-alpha* t) d_P(U(0), U*)`, above `d_P(U(t), U*)` from inside the basin.

    `thm:local-gradient-flow-convergence`; m = 1, M = d+3 is `cor:gaussian-gradient-flow-recovery`.
    `distance`, at most rho*, and `t` are numbers or arrays.

    >>> float(flow_envelope(Signal.from_eigenvalues(8, [1.0, 1.0]), 0.01, 0.0))
    0.01
    """
    distance, t = nonnegative(distance=distance, t=t)
    _require_basin(signal, distance, m, M)
    return distance * exponential(-alpha_star(signal, m) * t)


@of_signal
def flow_predictor_envelope(
    signal: Signal, error: Any, t: Any, m: float = 1.0, M: float | None = None
) -> Any:
    """`C* exp(-alpha* t) ||Q(0) - Q*||_F`, above `||Q(t) - Q*||_F` from inside the basin.

    `eq:abstract-flow-predictor-convergence`; that the start lies in the basin is not checked, it
    cannot be seen from the predictor error alone.

    >>> float(flow_predictor_envelope(Signal.from_eigenvalues(1, [1.0]), 0.01, 0.0))
    0.020625
    """
    error, t = nonnegative(error=error, t=t)
    return C_star(signal, m, M) * error * exponential(-alpha_star(signal, m) * t)


@of_signal
def descent_envelope(
    signal: Signal, distance: Any, k: Any, step: float, m: float = 1.0, M: float | None = None
) -> Any:
    """`(1 - eta alpha*/2)^k d_P(U_0, U*)`, above `d_P(U_k, U*)` (`eq:discrete-factor-convergence`).

    For `0 < eta <= oracle_step` and a distance of at most rho*; m = 1, M = d+3 is
    `cor:gaussian-gradient-descent-recovery`, otherwise `thm:local-gradient-descent-convergence`.
    `distance` and `k` are numbers or arrays.

    >>> float(descent_envelope(Signal.from_eigenvalues(8, [1.0]), 0.01, 0, step=1e-4))
    0.01
    """
    rate = _descent_rate(signal, step, m, M)
    distance, k = nonnegative(distance=distance, k=k)
    _require_basin(signal, distance, m, M)
    return distance * rate**k


@of_signal
def descent_predictor_envelope(
    signal: Signal, error: Any, k: Any, step: float, m: float = 1.0, M: float | None = None
) -> Any:
    """`C* (1 - eta alpha*/2)^k ||Q_0 - Q*||_F`, above `||Q_k - Q*||_F` from inside the basin.

    `eq:discrete-predictor-convergence`; as in `flow_predictor_envelope` the basin is not checked.

    >>> float(descent_predictor_envelope(Signal.from_eigenvalues(1, [1.0]), 0.01, 0, step=1e-4))
    0.020625
    """
    rate = _descent_rate(signal, step, m, M)
    error, k = nonnegative(error=error, k=k)
    return C_star(signal, m, M) * error * rate**k


def _descent_rate(signal: Signal, step: float, m: float, M: float | None) -> float:
    step = positive_number("step", step)
    limit = oracle_step(signal, m, _upper(signal, M))
    if step > limit:
        expected = f"at most the oracle step {limit:.6e}"
        raise DomainError("step", expected=expected, got=f"{step:.6e}")
    return 1 - step * alpha_star(signal, m) / 2


def _require_basin(signal: Signal, distance: Any, m: float, M: float | None) -> None:
    radius = rho_star(signal, m, _upper(signal, M))
    largest = float(distance.max()) if math.prod(distance.shape) else 0.0
    if largest > radius:
        expected = f"at most rho* = {radius:.6e}, where the theorem holds"
        raise DomainError("distance", expected=expected, got=f"{largest:.6e}")


def _upper(signal: Signal, M: float | None) -> float:
    return signal.d + 3 if M is None else M


def _over_square(numerator: float, x: float) -> float:
    """`numerator / x^2`, infinite where the square of x, or the quotient, leaves the floats."""
    with np.errstate(over="ignore", divide="ignore"):
        return float(np.float64(numerator) / np.float64(x) / np.float64(x))


def _operator_bounds(m: float, M: float) -> tuple[float, float]:
    m, M = positive_number("m", m), positive_number("M", M)
    if m > M:
        raise DomainError("m", expected=f"m <= M = {M}", got=f"{m}")
    return m, M


def _probability(delta: float) -> float:
    if not 0 < positive_number("delta", delta) < 1:
        raise DomainError(
            "delta", expected="a probability strictly between 0 and 1", got=f"{delta}"
        )
    return float(delta)
