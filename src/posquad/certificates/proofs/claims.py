"""What a certificate claims in numbers, which of it is proved, and what follows.

A `Claims` holds the numbers; `judge` proves them one by one from the data and the witnesses, and
`Conclusions` is the arithmetic from proved claims to the statements a user reads. The search that
proposes claims is elsewhere: `judge` is all that the verifier trusts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from posquad.certificates.proofs.bounded_operator import Forms
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

THETA = 0.25  # the share of delta < 1 within which critical points are counted


@dataclass(frozen=True)
class Claims:
    """Numbers to be proved; None where nothing is claimed."""

    residual: float  # root mean square of A(UU') - y, at most
    largest: float  # lambda_1(UU') at most
    lam: float | None = None  # lambda_min^eff at least
    gauge: float = 0.0  # weight of the gauge term in the proof of lam
    Lam: float | None = None  # lambda_max^eff at most
    mu: float | None = None  # max over unit v of N(vv')^2, at most
    route: Route = "moment"
    parameter: float = 0.0
    beta: float | None = None  # V'A*(z0)V at least
    excess: float | None = None  # A*(dual) at most 1 + excess


@dataclass(frozen=True)
class Witness:
    """The arrays that a proof refers to."""

    U: np.ndarray  # [d, r]
    z: np.ndarray | None = None  # [n]  dual vector of global uniqueness
    dual: np.ndarray | None = None  # [n]  dual vector of minimum trace


@dataclass(frozen=True)
class Conclusions:
    """What is proved: None where it is not. All bounds hold for the exact real numbers."""

    residual: float  # root mean square of A(UU') - y, at most
    relative_residual: float  # over that of y
    lam: float | None
    Lam: float | None
    mu: float | None
    radius: float | None  # Theorem A
    floor: float | None  # where critical points of the actual loss lie
    constant: float | None  # Theorem D
    within: float | None  # Theorem D, of every PSD matrix that fits y as well as UU'
    size: float  # ||UU'||_F, at least
    trace: float  # tr UU', at most
    trace_gap: float | None  # tr UU' over the least trace, less one, at most


def judge(
    forms: Forms,
    y: np.ndarray,
    witness: Witness,
    claims: Claims,
    gram: TangentGram | None = None,
) -> Conclusions:
    """Prove the claims from the data and draw the conclusions; what cannot be proved is None."""
    U = witness.U
    residual = claims.residual if residual_above(forms, y, U) <= claims.residual else math.inf
    response = response_size_below(y)
    relative = up(residual / response) if response > 0 else math.inf
    lam = Lam = mu = None
    if proves_largest(U, claims.largest):
        if claims.lam is not None or claims.Lam is not None:
            gram = TangentGram(forms, U) if gram is None else gram
            if claims.lam is not None and gram.proves_smallest(claims.lam, claims.gauge):
                lam = claims.lam
            if claims.Lam is not None and gram.proves_largest(claims.Lam):
                Lam = claims.Lam
        if claims.mu is not None and proves_quartic(
            forms, claims.mu, claims.route, claims.parameter
        ):
            mu = claims.mu
    radius = floor = constant = None
    if lam is not None and mu is not None:
        radius = effective_radius(lam, mu) * (1 - 1e-14)
        if math.isfinite(residual):
            floor = up(residual_radius(residual, THETA, lam))
        constant = _stability(forms, witness, claims, lam, mu)
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
        trace_gap=trace_gap(forms, y, witness, claims, residual, constant),
    )


def _stability(
    forms: Forms, witness: Witness, claims: Claims, lam: float, mu: float
) -> float | None:
    d, r = witness.U.shape
    if r == d:  # nothing lies outside the range of U
        norm, beta = 0.0, math.inf
    elif (
        witness.z is not None
        and claims.beta is not None
        and proves_dual(forms, witness.U, witness.z, claims.beta, lam, mu)
    ):
        norm, beta = norm_above(witness.z), claims.beta
    else:
        return None
    constant = up(stability_constant(forms.n, claims.largest, lam, mu, norm, beta))
    return constant if math.isfinite(constant) else None


def trace_gap(
    forms: Forms,
    y: np.ndarray,
    witness: Witness,
    claims: Claims,
    residual: float,
    constant: float | None,
) -> float | None:
    """How far `tr UU'` may lie above the least trace of PSD matrices that fit as well (10)."""
    if not math.isfinite(residual):
        return None
    low, high = trace_below(witness.U), trace_above(witness.U)
    least = 0.0
    if constant is not None:
        # ||Q' - Q||_F <= 2 constant residual; its trace is at most sqrt(d) times that.
        least = low - up(2 * math.sqrt(forms.d) * constant * residual)
    if (
        witness.dual is not None
        and claims.excess is not None
        and proves_dual_slack(forms, witness.dual, claims.excess)
    ):
        least = max(least, trace_bound_below(y, witness.dual, claims.excess, residual))
    return up(max(0.0, high / (least * (1 - 1e-14)) - 1)) + 1e-14 if least > 0 else None
