"""The basin of local convergence: its radius, rates and envelopes (sections 3.4, 3.6 and 3.7).

Names are those of the paper. Constants of the target predictor come from a `Signal`. The operator
bounds `m`, `M` of `eq:abstract-operator-bounds` are arguments; the paper's choices are `m=2, M=d+2`
for the population (Lemma 3.1, `lem:gaussian-population-operator`) and `m=1, M=d+3` for samples on
the event `||T_n - T|| <= 1` (`eq:empirical-m-M`). Distances, errors, times and step counts may be
numbers or arrays. The sharper constants of `effective.py` need neither m nor M.
"""

from __future__ import annotations

import math
from typing import Any

from posquad.core.arrays import positive_number
from posquad.core.elementwise import exponential, largest, require_nonnegative
from posquad.core.errors import DomainError
from posquad.theory.signal import Signal, requires_signal

__all__ = [
    "C_star",
    "L_star",
    "alpha_star",
    "beta_star",
    "descent_envelope",
    "descent_predictor_envelope",
    "factor_predictor_bounds",
    "flow_envelope",
    "flow_predictor_envelope",
    "loss_bounds",
    "oracle_step",
    "rho_n",
    "rho_star",
    "secant_bounds",
    "sigma_star",
]


@requires_signal
def sigma_star(signal: Signal) -> float:
    """`sigma_r(U*) = sqrt(lambda_r)` (`eq:sigma-star`).

    >>> sigma_star(Signal.from_eigenvalues(8, [1.0, 0.25]))
    0.5
    """
    return math.sqrt(signal.lambda_r)


@requires_signal
def beta_star(signal: Signal) -> float:
    """`||U*||_op = sqrt(lambda_1)` (`eq:beta-star`).

    >>> beta_star(Signal.from_eigenvalues(8, [4.0, 0.25]))
    2.0
    """
    return math.sqrt(signal.lambda_1)


@requires_signal
def rho_star(signal: Signal, m: float, M: float) -> float:
    """Basin radius `m sigma* / (4M)` (`eq:abstract-basin-radius`).

    >>> rho_star(Signal.from_eigenvalues(8, [1.0, 1.0]), m=2, M=10)
    0.05
    """
    m, M = _operator_bounds(m, M)
    return m * sigma_star(signal) / (4 * M)


@requires_signal
def rho_n(signal: Signal) -> float:
    """Basin radius for samples, `sigma* / (4 (d+3))` (`eq:empirical-basin-radius`).

    >>> round(rho_n(Signal.from_eigenvalues(10, [1.0, 0.5])), 4)
    0.0136
    """
    return rho_star(signal, 1, signal.d + 3)


@requires_signal
def alpha_star(signal: Signal, m: float) -> float:
    """Guaranteed flow rate `m sigma*^2 / 2` (`eq:abstract-flow-rate`); m = 1 gives `alpha_n`.

    >>> alpha_star(Signal.from_eigenvalues(8, [1.0, 0.5]), m=2)
    0.5
    """
    return positive_number("m", m) * signal.lambda_r / 2


@requires_signal
def L_star(signal: Signal, m: float, M: float) -> float:
    """Gradient constant `2M (2 beta* + rho*) (beta* + rho*)` (`eq:local-gradient-constant`).

    >>> round(L_star(Signal.from_eigenvalues(8, [1.0, 1.0]), m=2, M=10), 10)
    43.05
    """
    rho, beta = rho_star(signal, m, M), beta_star(signal)
    return 2 * M * (2 * beta + rho) * (beta + rho)


@requires_signal
def oracle_step(signal: Signal, m: float, M: float) -> float:
    """Largest step of the descent theorem, `alpha* / L*^2`.

    Theorem 3.7 (`thm:local-gradient-descent-convergence`); it depends on the unknown target
    (Remark 3.8, `rem:oracle-step-size`).

    >>> print(f"{oracle_step(Signal.from_eigenvalues(8, [1.0, 1.0]), m=2, M=10):.2e}")
    5.40e-04
    """
    L = L_star(signal, m, M)
    return alpha_star(signal, m) / L / L


@requires_signal
def factor_predictor_bounds(signal: Signal, m: float, M: float) -> tuple[float, float]:
    """Bounds `(sigma*, 2 beta* + rho*)` on `||UU' - Q*||_F / d_P(U, U*)` within radius rho*.

    Lemma 3.2 (`lem:factor-predictor-local-comparison`).

    >>> factor_predictor_bounds(Signal.from_eigenvalues(8, [1.0, 1.0]), m=2, M=10)
    (1.0, 2.05)
    """
    return sigma_star(signal), 2 * beta_star(signal) + rho_star(signal, m, M)


@requires_signal
def secant_bounds(signal: Signal, m: float, M: float) -> tuple[float, float]:
    """Constants `(m sigma*^2 / 2, L*)` of secant regularity.

    Within radius rho*, `<grad L, Delta> >= first * ||Delta||^2` and
    `||grad L|| <= second * ||Delta||` (Theorem 3.3, `thm:local-secant-regularity`).

    >>> [round(v, 10) for v in secant_bounds(Signal.from_eigenvalues(8, [1.0, 1.0]), m=2, M=10)]
    [1.0, 43.05]
    """
    return alpha_star(signal, m), L_star(signal, m, M)


def loss_bounds(m: float, M: float) -> tuple[float, float]:
    """Bounds `(m/2, M/2)` on `L(U) / ||UU' - Q*||_F^2` (`eq:local-loss-equivalence`).

    >>> loss_bounds(2, 10)
    (1.0, 5.0)
    """
    m, M = _operator_bounds(m, M)
    return m / 2, M / 2


@requires_signal
def C_star(signal: Signal, m: float = 1.0, M: float | None = None) -> float:
    """Constant `(2 beta* + rho) / sigma*` that turns factor envelopes into predictor envelopes.

    `eq:end-to-end-predictor-constant`; with the defaults m = 1, M = d+3, rho is the paper's
    `rho_n`.

    >>> C_star(Signal.from_eigenvalues(1, [1.0]))
    2.0625
    """
    low, high = factor_predictor_bounds(signal, m, _upper(signal, M))
    return high / low


@requires_signal
def flow_envelope(
    signal: Signal, distance: Any, t: Any, m: float = 1.0, M: float | None = None
) -> Any:
    """Bound `exp(-alpha* t) d_P(U(0), U*)` on `d_P(U(t), U*)` for a start inside the basin.

    Theorem 3.6 (`thm:local-gradient-flow-convergence`); m = 1, M = d+3 is Corollary 3.3
    (`cor:gaussian-gradient-flow-recovery`). `distance`, at most rho*, and `t` are numbers or
    arrays.

    >>> float(flow_envelope(Signal.from_eigenvalues(8, [1.0, 1.0]), 0.01, 0.0))
    0.01
    """
    distance, t = require_nonnegative(distance=distance, t=t)
    _require_basin(signal, distance, m, M)
    return distance * exponential(-alpha_star(signal, m) * t)


@requires_signal
def flow_predictor_envelope(
    signal: Signal, error: Any, t: Any, m: float = 1.0, M: float | None = None
) -> Any:
    """Bound `C* exp(-alpha* t) ||Q(0) - Q*||_F` on `||Q(t) - Q*||_F`, from inside the basin.

    `eq:abstract-flow-predictor-convergence`. Whether the start lies in the basin is not checked,
    because the predictor error alone does not tell.

    >>> float(flow_predictor_envelope(Signal.from_eigenvalues(1, [1.0]), 0.01, 0.0))
    0.020625
    """
    error, t = require_nonnegative(error=error, t=t)
    return C_star(signal, m, M) * error * exponential(-alpha_star(signal, m) * t)


@requires_signal
def descent_envelope(
    signal: Signal, distance: Any, k: Any, step: float, m: float = 1.0, M: float | None = None
) -> Any:
    """Bound `(1 - eta alpha*/2)^k d_P(U_0, U*)` on `d_P(U_k, U*)`.

    `eq:discrete-factor-convergence`, for `0 < eta <= oracle_step` and a distance of at most rho*;
    m = 1, M = d+3 is Corollary 3.4 (`cor:gaussian-gradient-descent-recovery`), otherwise
    Theorem 3.7 (`thm:local-gradient-descent-convergence`).
    `distance` and `k` are numbers or arrays.

    >>> float(descent_envelope(Signal.from_eigenvalues(8, [1.0]), 0.01, 0, step=1e-4))
    0.01
    """
    rate = _descent_rate(signal, step, m, M)
    distance, k = require_nonnegative(distance=distance, k=k)
    _require_basin(signal, distance, m, M)
    return distance * rate**k


@requires_signal
def descent_predictor_envelope(
    signal: Signal, error: Any, k: Any, step: float, m: float = 1.0, M: float | None = None
) -> Any:
    """Bound `C* (1 - eta alpha*/2)^k ||Q_0 - Q*||_F` on `||Q_k - Q*||_F`, from inside the basin.

    `eq:discrete-predictor-convergence`; as in `flow_predictor_envelope`, the basin is not checked.

    >>> float(descent_predictor_envelope(Signal.from_eigenvalues(1, [1.0]), 0.01, 0, step=1e-4))
    0.020625
    """
    rate = _descent_rate(signal, step, m, M)
    error, k = require_nonnegative(error=error, k=k)
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
    if largest(distance) > radius:
        expected = f"at most rho* = {radius:.6e}, where the theorem holds"
        raise DomainError("distance", expected=expected, got=f"{largest(distance):.6e}")


def _upper(signal: Signal, M: float | None) -> float:
    return signal.d + 3 if M is None else M


def _operator_bounds(m: float, M: float) -> tuple[float, float]:
    m, M = positive_number("m", m), positive_number("M", M)
    if m > M:
        raise DomainError("m", expected=f"m <= M = {M}", got=f"{m}")
    return m, M
