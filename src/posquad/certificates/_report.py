"""From conclusions to findings: verdicts, margins and reasons in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posquad.certificates._claims import THETA, Conclusions
from posquad.certificates.certificate import Finding, Verdict
from posquad.sharper import effective_step


def interpolation(found: Conclusions, tolerance: float) -> Finding:
    """The relative residual, rounding included, against the tolerance."""
    value = found.relative_residual
    good = value <= tolerance
    relation = "<=" if good else ">"
    return Finding(
        value=value,
        margin=tolerance - value,
        verdict=Verdict.PROVED if good else Verdict.REFUSED,
        reason=f"||A(UU') - y|| / ||y|| <= {value:.3e} {relation} tolerance {tolerance:.1e}",
        details={"residual": found.residual, "tolerance": tolerance},
    )


def identifiability(found: Conclusions, seen: Mapping[str, Any]) -> Finding:
    """lambda_min^eff from below, or the dimension of what the measurements do not see."""
    if found.lam is not None:
        return Finding(
            value=found.lam,
            margin=found.lam / found.Lam if found.Lam else None,
            verdict=Verdict.PROVED,
            reason=f"lambda_min^eff >= {found.lam:.6e} > 0",
            details={**seen, "kernel_dimension": 0},
        )
    estimate, kernel = seen["lam_estimate"], seen["kernel_dimension"]
    if kernel:
        reason = f"lambda_min^eff = 0 to rounding: a kernel of dimension {kernel} is not measured"
        if seen["n"] < seen["p"]:
            reason = f"n = {seen['n']} < p = {seen['p']}: at least {kernel} directions unmeasured"
        return Finding(0.0, None, Verdict.REFUSED, reason, dict(seen))
    if kernel is None or not estimate > 0:
        reason = f"no positive lower bound on lambda_min^eff (computed {estimate:.3e})"
        return Finding(estimate, None, Verdict.REFUSED, reason, dict(seen))
    reason = f"lambda_min^eff = {estimate:.3e} computed; too small beside its rounding to prove"
    return Finding(estimate, None, Verdict.NUMERICAL, reason, dict(seen))


def local_uniqueness(found: Conclusions, beside: Mapping[str, Any]) -> Finding:
    """The radius of Theorem A, with room for the residual of the data."""
    if found.lam is None or found.mu is None or found.radius is None or found.floor is None:
        reason = "identifiability is not proved" if found.lam is None else "mu is not bounded"
        return Finding(None, None, Verdict.REFUSED, reason, dict(beside))
    margin = found.radius * 2 * THETA - found.floor
    details: dict[str, Any] = {
        "lam": found.lam,
        "Lam": found.Lam,
        "mu": found.mu,
        "radius": found.radius,
        "critical_points_within": found.floor,
        "rate": found.lam,
        "theta": THETA,
        "secant": (1 - THETA) * (1 - 2 * THETA) * found.lam,
        "step": None if found.Lam is None else effective_step(THETA, found.lam, found.Lam),
        "step_limit": None if found.Lam is None else 1 / found.Lam,
        **beside,
    }
    if not margin > 0:
        reason = (
            f"4 residual / sqrt(lam) = {found.floor:.3e} >= sqrt(lam/mu)/4 = "
            f"{found.radius * 2 * THETA:.3e}: the data are fitted too poorly"
        )
        return Finding(found.radius, margin, Verdict.REFUSED, reason, details)
    reason = (
        f"no critical point but UU' within d_P < {found.radius:.3e} for the data A(UU'); "
        f"for y, all within {found.radius * 2 * THETA:.3e} lie within {found.floor:.1e}"
    )
    return Finding(found.radius, margin, Verdict.PROVED, reason, details)


def global_uniqueness(found: Conclusions, beta: float | None, beside: Mapping[str, Any]) -> Finding:
    """The stability constant of Theorem D."""
    details = {"residual": found.residual, "beta": beta, **beside}
    if found.constant is not None:
        reason = (
            "UU' is the only PSD matrix of any rank with its measurements; one that explains y to "
            f"rms misfit eps lies within {found.constant:.3e} (eps + {found.residual:.1e})"
        )
        return Finding(found.constant, beta, Verdict.PROVED, reason, details)
    if found.lam is None:
        reason = "identifiability is not proved"
    elif found.mu is None:
        reason = "mu is not bounded"
    elif beside.get("n", 0) <= beside.get("p", 0):
        reason = f"n = {beside.get('n')} <= p = {beside.get('p')}: A*(z)U = 0 only for z = 0"
    elif (beside.get("smallest") or 0.0) > 0:
        reason = "a dual matrix was found, but too close to singular to prove it positive definite"
        return Finding(None, None, Verdict.NUMERICAL, reason, details)
    elif beside.get("exhausted"):
        reason = (
            "numerically no z has A*(z)U = 0 and V'A*(z)V > 0, as happens where PSD matrices of "
            "higher rank fit as well; more measurements may help"
        )
    else:
        reason = "no z with A*(z)U = 0 and V'A*(z)V > 0 was found, which proves nothing"
    return Finding(None, None, Verdict.REFUSED, reason, details)


def minimum_trace(found: Conclusions, tolerance: float, beside: Mapping[str, Any]) -> Finding:
    """The trace of UU' against a proved lower bound."""
    details = {"gap": found.trace_gap, "tolerance": tolerance, **beside}
    if found.trace_gap is None:
        reason = "no dual vector bounds the trace from below"
        return Finding(found.trace, None, Verdict.REFUSED, reason, details)
    good = found.trace_gap <= tolerance
    reason = (
        f"tr UU' = {found.trace:.6e} is within a factor 1 + {found.trace_gap:.1e} of the least "
        f"trace of PSD matrices that fit as well ({'<=' if good else '>'} {tolerance:.0e})"
    )
    verdict = Verdict.PROVED if good else Verdict.REFUSED
    return Finding(found.trace, tolerance - found.trace_gap, verdict, reason, details)
