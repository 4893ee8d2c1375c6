"""The claims of a certificate, their proofs, and the conclusions that follow.

`Claims` holds the numbers, `proved_conclusions` proves them one by one from the data and the
witnesses, and `Conclusions` holds what follows from those that are proved. The search that proposes
claims is elsewhere; the verifier trusts only `proved_conclusions`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from posquad.certificates.proofs.bounded_operator import BoundedOperator
from posquad.certificates.proofs.rounding import norm_above, up
from posquad.certificates.proofs.statements import (
    Route,
    TangentGram,
    proves_dual,
    proves_dual_slack,
    proves_largest,
    proves_quartic,
    residual_above,
    response_size_below,
    size_below,
    trace_above,
    trace_below,
    trace_bound_below,
)
from posquad.theory.effective import effective_radius, residual_radius, stability_constant

THETA = 0.25  # critical points are considered within delta <= THETA


@dataclass(frozen=True)
class Claims:
    """Numbers to be proved; None if nothing is claimed."""

    residual: float  # upper bound on the root mean square of A(UU') - y
    largest: float  # upper bound on lambda_1(UU')
    lam: float | None = None  # lower bound on lambda_min^eff
    gauge: float = 0.0  # weight of the gauge term in the proof of lam
    Lam: float | None = None  # upper bound on lambda_max^eff
    mu: float | None = None  # upper bound on N(vv')^2 over unit vectors v
    route: Route = "moment"  # of the proof of mu, see `proves_quartic`
    parameter: float = 0.0  # of this route
    beta: float | None = None  # lower bound on V'A*(z0)V
    excess: float | None = None  # A*(dual) is at most 1 + excess


@dataclass(frozen=True)
class Witness:
    """Arrays that the proofs use."""

    U: np.ndarray  # [d, r]
    z: np.ndarray | None = None  # [n]  dual vector of global uniqueness
    dual: np.ndarray | None = None  # [n]  dual vector of minimum trace


@dataclass(frozen=True)
class Conclusions:
    """Proved bounds, which hold for the exact real numbers; None if not proved."""

    residual: float  # upper bound on the root mean square of A(UU') - y
    relative_residual: float  # the same, relative to that of y
    lam: float | None
    Lam: float | None
    mu: float | None
    radius: float | None  # radius of Theorem A
    floor: float | None  # distance within which critical points of the loss for y lie
    constant: float | None  # stability constant of Theorem D
    within: float | None  # distance to every PSD matrix that fits y as well as UU', Theorem D
    size: float  # lower bound on ||UU'||_F
    trace: float  # upper bound on tr UU'
    trace_gap: float | None  # upper bound on tr UU' over the least trace, minus one


def proved_conclusions(
    operator: BoundedOperator,
    y: np.ndarray,
    witness: Witness,
    claims: Claims,
    gram: TangentGram | None = None,
) -> Conclusions:
    """Prove the claims from the data and return the conclusions; None for what is not proved."""
    U = witness.U
    residual = claims.residual if residual_above(operator, y, U) <= claims.residual else math.inf
    response = response_size_below(y)
    relative = up(residual / response) if response > 0 else math.inf
    lam = Lam = mu = None
    if proves_largest(U, claims.largest):
        if claims.lam is not None or claims.Lam is not None:
            gram = TangentGram(operator, U) if gram is None else gram
            if claims.lam is not None and gram.proves_smallest(claims.lam, claims.gauge):
                lam = claims.lam
            if claims.Lam is not None and gram.proves_largest(claims.Lam):
                Lam = claims.Lam
        if claims.mu is not None and proves_quartic(
            operator, claims.mu, claims.route, claims.parameter
        ):
            mu = claims.mu
    radius = floor = constant = None
    if lam is not None and mu is not None:
        radius = effective_radius(lam, mu) * (1 - 1e-14)
        if math.isfinite(residual):
            floor = up(residual_radius(residual, THETA, lam))
        constant = _stability(operator, witness, claims, lam, mu)
    within = None
    if constant is not None and math.isfinite(2 * constant * residual):
        within = up(2 * constant * residual)
    trace = trace_above(U)
    return Conclusions(
        residual=residual,
        relative_residual=relative,
        lam=lam,
        Lam=Lam,
        mu=mu,
        radius=radius,
        floor=floor,
        constant=constant,
        within=within,
        size=size_below(U),
        trace=trace,
        trace_gap=trace_gap(operator, y, witness, claims, residual, constant),
    )


def _stability(
    operator: BoundedOperator, witness: Witness, claims: Claims, lam: float, mu: float
) -> float | None:
    d, r = witness.U.shape
    if r == d:  # the range of U is the whole space
        norm, beta = 0.0, math.inf
    elif (
        witness.z is not None
        and claims.beta is not None
        and proves_dual(operator, witness.U, witness.z, claims.beta, lam, mu)
    ):
        norm, beta = norm_above(witness.z), claims.beta
    else:
        return None
    constant = up(stability_constant(operator.n, claims.largest, lam, mu, norm, beta))
    return constant if math.isfinite(constant) else None


def trace_gap(
    operator: BoundedOperator,
    y: np.ndarray,
    witness: Witness,
    claims: Claims,
    residual: float,
    constant: float | None,
) -> float | None:
    """Bound how far `tr UU'` is above the least trace of PSD matrices that fit as well (10).

    The bound is relative to the least trace.
    """
    if not math.isfinite(residual):
        return None
    low, high = trace_below(witness.U), trace_above(witness.U)
    least = 0.0
    if constant is not None:
        # ||Q' - Q||_F <= 2 constant residual, and |tr(Q' - Q)| is at most sqrt(d) times that.
        least = low - up(2 * math.sqrt(operator.d) * constant * residual)
    if (
        witness.dual is not None
        and claims.excess is not None
        and proves_dual_slack(operator, witness.dual, claims.excess)
    ):
        least = max(least, trace_bound_below(y, witness.dual, claims.excess, residual))
    return up(max(0.0, high / (least * (1 - 1e-14)) - 1)) + 1e-14 if least > 0 else None
