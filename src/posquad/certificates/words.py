"""From conclusions to findings: verdicts, margins and reasons in words.

A number of a PROVED finding is a bound; `CHECKED` says on which side. `certify` states each rounded
outward by GIVE, and the verifier, which may round differently, asks that what it proves is no
weaker. Margin and reason are functions of the other numbers (`margin_of`, `sentence`), so that they
can be made again from a file; what else stands in the details are notes of the search (`NOTES`),
which prove nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from posquad.certificates.certificate import Finding, Verdict
from posquad.certificates.proofs.claims import THETA, Conclusions
from posquad.certificates.proofs.rounding import down
from posquad.theory.effective import effective_step

GIVE = 1e-12  # far above the difference between two machines, far below any use of the numbers
ABOVE, BELOW, EQUAL = 1, -1, 0

CHECKED: Mapping[str, Mapping[str, int]] = {
    "interpolation": {"value": ABOVE, "residual": ABOVE},
    "identifiability": {"value": BELOW, "Lam": ABOVE, "kernel_dimension": EQUAL},
    "local_uniqueness": {
        "value": BELOW,
        "lam": BELOW,
        "Lam": ABOVE,
        "mu": ABOVE,
        "radius": BELOW,
        "critical_points_within": ABOVE,
        "rate": BELOW,
        "theta": EQUAL,
        "secant": BELOW,
        "step": BELOW,
        "step_limit": BELOW,
    },
    "global_uniqueness": {
        "value": ABOVE,
        "residual": ABOVE,
        "beta": BELOW,
        "within": ABOVE,
        "size": BELOW,
    },
    "minimum_trace": {"value": ABOVE, "gap": ABOVE},
}
"""On which side of the truth each number of a PROVED finding lies."""

NOTES: Mapping[str, frozenset[str]] = {
    "interpolation": frozenset({"tolerance", "computed", "rounding"}),
    "identifiability": frozenset({"n", "p", "lam_estimate", "condition"}),
    "local_uniqueness": frozenset({"mu_lower", "mu_route", "paper"}),
    "global_uniqueness": frozenset({"n", "p", "method", "smallest", "exhausted"}),
    "minimum_trace": frozenset({"tolerance", "method"}),
}
"""What else may stand in the details: settings, and what the search saw; nothing that is proved."""

_UNPROVED = "not proved from the data, the claims and the witnesses"


def interpolation(
    found: Conclusions, tolerance: float, beside: Mapping[str, Any], give: float = 0.0
) -> Finding:
    """The relative residual, rounding included, against the tolerance."""
    numbers = {"value": found.relative_residual, "residual": found.residual}
    details = {**_outward("interpolation", numbers, give), "tolerance": tolerance, **beside}
    value = details.pop("value")
    if math.isfinite(value) and value <= tolerance:
        return proved("interpolation", value, details)
    reason = f"||A(UU') - y|| / ||y|| <= {value:.3e} > tolerance {tolerance:.1e}"
    if not math.isfinite(found.residual):
        reason = "the residual could not be bounded"
    elif not math.isfinite(value):
        reason = "no relative residual: y is zero, or so small that its squares underflow"
    return Finding(value, tolerance - value, Verdict.REFUSED, reason, details)


def identifiability(
    found: Conclusions, seen: Mapping[str, Any] | None, give: float = 0.0
) -> Finding:
    """lambda_min^eff from below, or the dimension of what the measurements do not see."""
    if found.lam is not None:
        numbers = {"value": found.lam, "Lam": found.Lam, "kernel_dimension": 0}
        details = {**(seen or {}), **_outward("identifiability", numbers, give)}
        return proved("identifiability", details.pop("value"), details)
    if seen is None:
        return Finding(None, None, Verdict.REFUSED, _UNPROVED)
    estimate, kernel = seen["lam_estimate"], seen["kernel_dimension"]
    if seen["n"] < seen["p"]:
        reason = f"n = {seen['n']} < p = {seen['p']}: at least {kernel} directions unmeasured"
        return Finding(0.0, None, Verdict.REFUSED, reason, dict(seen))
    if not seen["condition"] < math.inf:
        reason = "U has not full column rank, to rounding: certify a factor with fewer columns"
        return Finding(None, None, Verdict.REFUSED, reason, {**seen, "condition": None})
    if kernel:
        reason = f"lambda_min^eff = 0 to rounding: a kernel of dimension {kernel} is not measured"
        return Finding(0.0, None, Verdict.REFUSED, reason, dict(seen))
    if kernel is None or not estimate > 0:
        reason = f"no positive lower bound on lambda_min^eff (computed {estimate:.3e})"
        return Finding(estimate, None, Verdict.REFUSED, reason, dict(seen))
    reason = f"lambda_min^eff = {estimate:.3e} computed; too small beside its rounding to prove"
    return Finding(estimate, None, Verdict.NUMERICAL, reason, dict(seen))


def local_uniqueness(found: Conclusions, beside: Mapping[str, Any], give: float = 0.0) -> Finding:
    """The radius of Theorem A, with room for the residual of the data."""
    if found.lam is None or found.mu is None or found.radius is None or found.floor is None:
        reason = "the residual could not be bounded"
        if found.lam is None:
            reason = "identifiability is not proved"
        elif found.mu is None:
            reason = "mu is not bounded"
        return Finding(None, None, Verdict.REFUSED, reason, dict(beside))
    step = None if found.Lam is None else down(effective_step(THETA, found.lam, found.Lam))
    numbers: dict[str, Any] = {
        "value": found.radius,
        "lam": found.lam,
        "Lam": found.Lam,
        "mu": found.mu,
        "radius": found.radius,
        "critical_points_within": found.floor,
        "rate": found.lam,
        "theta": THETA,
        "secant": down((1 - THETA) * (1 - 2 * THETA) * found.lam),
        "step": step,
        "step_limit": None if found.Lam is None else down(1 / found.Lam),
    }
    details = {**_outward("local_uniqueness", numbers, give), **beside}
    value = details.pop("value")
    finding = proved("local_uniqueness", value, details)
    if finding.margin is not None and finding.margin > 0:
        return finding
    reason = (
        f"4 residual / sqrt(lam) = {found.floor:.3e} >= sqrt(lam/mu)/4 = "
        f"{found.radius * 2 * THETA:.3e}: the data are fitted too poorly"
    )
    return Finding(value, finding.margin, Verdict.REFUSED, reason, details)


def global_uniqueness(
    found: Conclusions, beta: float | None, beside: Mapping[str, Any] | None, give: float = 0.0
) -> Finding:
    """The stability constant of Theorem D."""
    if found.constant is not None and found.within is not None:
        numbers = {
            "value": found.constant,
            "residual": found.residual,
            "beta": beta,
            "within": found.within,
            "size": found.size,
        }
        details = {**_outward("global_uniqueness", numbers, give), **(beside or {})}
        return proved("global_uniqueness", details.pop("value"), details)
    details = {"residual": found.residual, "beta": beta, **(beside or {})}
    if found.lam is None:
        reason = "identifiability is not proved"
    elif found.mu is None:
        reason = "mu is not bounded"
    elif found.constant is not None:
        reason = "the residual could not be bounded"
    elif beside is None:
        reason = _UNPROVED
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


def minimum_trace(
    found: Conclusions, tolerance: float, beside: Mapping[str, Any], give: float = 0.0
) -> Finding:
    """The trace of UU' against a proved lower bound."""
    if found.trace_gap is None:
        reason = "no dual vector bounds the trace from below"
        details = {"gap": None, "tolerance": tolerance, **beside}
        return Finding(found.trace, None, Verdict.REFUSED, reason, details)
    numbers = {"value": found.trace, "gap": found.trace_gap}
    details = {**_outward("minimum_trace", numbers, give), "tolerance": tolerance, **beside}
    value, gap = details.pop("value"), details["gap"]
    if math.isfinite(value) and gap <= tolerance:
        return proved("minimum_trace", value, details)
    reason = _trace_sentence(value, gap, tolerance, ">")
    return Finding(value, tolerance - gap, Verdict.REFUSED, reason, details)


def refused(reason: str) -> Finding:
    """Nothing was tried."""
    return Finding(None, None, Verdict.REFUSED, reason)


def proved(name: str, value: float, details: Mapping[str, Any]) -> Finding:
    """A PROVED finding: margin and reason follow from the numbers."""
    margin = margin_of(name, value, details)
    return Finding(value, margin, Verdict.PROVED, sentence(name, value, details), dict(details))


def margin_of(name: str, value: float, details: Mapping[str, Any]) -> float | None:
    """How far a PROVED finding is from failing, from its own numbers."""
    if name == "interpolation":
        return details["tolerance"] - value
    if name == "identifiability":
        return value / details["Lam"] if details["Lam"] else None
    if name == "local_uniqueness":
        return details["radius"] * 2 * THETA - details["critical_points_within"]
    if name == "global_uniqueness":
        return details["beta"]
    return details["tolerance"] - details["gap"]


def sentence(name: str, value: float, details: Mapping[str, Any]) -> str:
    """The reason of a PROVED finding, in words, from its own numbers."""
    if name == "interpolation":
        tolerance = details["tolerance"]
        return f"||A(UU') - y|| / ||y|| <= {value:.3e} <= tolerance {tolerance:.1e}"
    if name == "identifiability":
        return f"lambda_min^eff >= {value:.6e} > 0"
    if name == "local_uniqueness":
        within = details["critical_points_within"]
        return (
            f"no critical point but UU' within d_P < {value:.3e} for the data A(UU'); "
            f"for y, all within {value * 2 * THETA:.3e} lie within {within:.1e}"
        )
    if name == "global_uniqueness":
        return (
            "UU' is the only PSD matrix of any rank with its measurements; one that explains y to "
            f"rms misfit eps lies within {value:.3e} (eps + {details['residual']:.1e})"
        )
    return _trace_sentence(value, details["gap"], details["tolerance"], "<=")


def _trace_sentence(value: float, gap: float, tolerance: float, relation: str) -> str:
    return (
        f"tr UU' = {value:.6e} is within a factor 1 + {gap:.1e} of the least "
        f"trace of PSD matrices that fit as well ({relation} {tolerance:.0e})"
    )


def _outward(name: str, numbers: Mapping[str, Any], give: float) -> dict[str, Any]:
    sides = CHECKED[name]
    return {
        key: number if number is None or sides[key] == EQUAL else number * (1 + sides[key] * give)
        for key, number in numbers.items()
    }
