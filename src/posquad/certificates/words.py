"""Turn conclusions into findings: verdicts, margins and reasons in words.

The numbers of a PROVED finding are bounds, and `CHECKED` says on which side. `certify` rounds each
outward by OUTWARD_MARGIN; the verifier, which may round differently, requires that its own bounds
are at least as strong. Margin and reason are functions of the other numbers (`margin_of`,
`sentence`), so that they can be recomputed from a file. Everything else in the details are notes of
the search (`NOTES`), which prove nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from posquad.certificates.certificate import Finding, Verdict
from posquad.certificates.proofs.claims import THETA, Conclusions
from posquad.certificates.proofs.rounding import down
from posquad.theory.effective import effective_step

OUTWARD_MARGIN = 1e-12  # far above the differences between machines, and negligible for users
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
"""Other keys allowed in the details: settings and notes of the search, which are not proved."""

_UNPROVED = "the data, the claims and the witnesses do not prove it"


def interpolation(
    found: Conclusions, tolerance: float, notes: Mapping[str, Any], outward_margin: float = 0.0
) -> Finding:
    """Return the finding on the relative residual, with its rounding, and the tolerance."""
    numbers = {"value": found.relative_residual, "residual": found.residual}
    details = {
        **_outward("interpolation", numbers, outward_margin),
        "tolerance": tolerance,
        **notes,
    }
    value = details.pop("value")
    if math.isfinite(value) and value <= tolerance:
        return proved("interpolation", value, details)
    reason = f"||A(UU') - y|| / ||y|| <= {value:.3e} > tolerance {tolerance:.1e}"
    if not math.isfinite(found.residual):
        reason = "no upper bound on the residual could be proved"
    elif not math.isfinite(value):
        reason = "the relative residual is undefined: y is zero, or its squares underflow"
    return Finding(value, tolerance - value, Verdict.REFUSED, reason, details)


def identifiability(
    found: Conclusions, notes: Mapping[str, Any] | None, outward_margin: float = 0.0
) -> Finding:
    """Return the finding on a lower bound on lambda_min^eff, or on its kernel."""
    if found.lam is not None:
        numbers = {"value": found.lam, "Lam": found.Lam, "kernel_dimension": 0}
        details = {**(notes or {}), **_outward("identifiability", numbers, outward_margin)}
        return proved("identifiability", details.pop("value"), details)
    if notes is None:
        return Finding(None, None, Verdict.REFUSED, _UNPROVED)
    estimate, kernel = notes["lam_estimate"], notes["kernel_dimension"]
    if notes["n"] < notes["p"]:
        reason = (
            f"n = {notes['n']} < p = {notes['p']}: at least {kernel} directions are not measured"
        )
        return Finding(0.0, None, Verdict.REFUSED, reason, dict(notes))
    if not notes["condition"] < math.inf:
        reason = "U does not have full column rank up to rounding; certify fewer columns"
        return Finding(None, None, Verdict.REFUSED, reason, {**notes, "condition": None})
    if kernel:
        reason = (
            f"lambda_min^eff = 0 up to rounding: a kernel of dimension {kernel} is not measured"
        )
        return Finding(0.0, None, Verdict.REFUSED, reason, dict(notes))
    if kernel is None or not estimate > 0:
        reason = f"no positive lower bound on lambda_min^eff (computed {estimate:.3e})"
        return Finding(estimate, None, Verdict.REFUSED, reason, dict(notes))
    reason = f"computed lambda_min^eff = {estimate:.3e} is too close to its rounding error to prove"
    return Finding(estimate, None, Verdict.NUMERICAL, reason, dict(notes))


def local_uniqueness(
    found: Conclusions, notes: Mapping[str, Any], outward_margin: float = 0.0
) -> Finding:
    """Return the finding on the radius of Theorem A, reduced by the residual of the data."""
    if found.lam is None or found.mu is None or found.radius is None or found.floor is None:
        reason = "no upper bound on the residual could be proved"
        if found.lam is None:
            reason = "identifiability is not proved"
        elif found.mu is None:
            reason = "no upper bound on mu could be proved"
        return Finding(None, None, Verdict.REFUSED, reason, dict(notes))
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
    details = {**_outward("local_uniqueness", numbers, outward_margin), **notes}
    value = details.pop("value")
    finding = proved("local_uniqueness", value, details)
    if finding.margin is not None and finding.margin > 0:
        return finding
    reason = (
        f"4 residual / sqrt(lam) = {found.floor:.3e} >= sqrt(lam/mu)/4 = "
        f"{found.radius * 2 * THETA:.3e}: the residual is too large"
    )
    return Finding(value, finding.margin, Verdict.REFUSED, reason, details)


def global_uniqueness(
    found: Conclusions,
    beta: float | None,
    notes: Mapping[str, Any] | None,
    outward_margin: float = 0.0,
) -> Finding:
    """Return the finding on the stability constant of Theorem D."""
    if found.constant is not None and found.within is not None:
        numbers = {
            "value": found.constant,
            "residual": found.residual,
            "beta": beta,
            "within": found.within,
            "size": found.size,
        }
        details = {**_outward("global_uniqueness", numbers, outward_margin), **(notes or {})}
        return proved("global_uniqueness", details.pop("value"), details)
    details = {"residual": found.residual, "beta": beta, **(notes or {})}
    if found.lam is None:
        reason = "identifiability is not proved"
    elif found.mu is None:
        reason = "no upper bound on mu could be proved"
    elif found.constant is not None:
        reason = "no upper bound on the residual could be proved"
    elif notes is None:
        reason = _UNPROVED
    elif notes.get("n", 0) <= notes.get("p", 0):
        reason = f"n = {notes.get('n')} <= p = {notes.get('p')}: A*(z)U = 0 only for z = 0"
    elif (notes.get("smallest") or 0.0) > 0:
        reason = "a dual matrix was found, but too close to singular to prove it positive definite"
        return Finding(None, None, Verdict.NUMERICAL, reason, details)
    elif notes.get("exhausted"):
        reason = (
            "numerically no z has A*(z)U = 0 and V'A*(z)V > 0, as happens if PSD matrices of "
            "higher rank fit as well; more measurements may help"
        )
    else:
        reason = "no z with A*(z)U = 0 and V'A*(z)V > 0 was found, which proves nothing"
    return Finding(None, None, Verdict.REFUSED, reason, details)


def minimum_trace(
    found: Conclusions, tolerance: float, notes: Mapping[str, Any], outward_margin: float = 0.0
) -> Finding:
    """Return the finding on the trace of UU' and a proved lower bound on the least trace."""
    if found.trace_gap is None:
        reason = "no dual vector that bounds the trace from below was found"
        details = {"gap": None, "tolerance": tolerance, **notes}
        return Finding(found.trace, None, Verdict.REFUSED, reason, details)
    numbers = {"value": found.trace, "gap": found.trace_gap}
    details = {
        **_outward("minimum_trace", numbers, outward_margin),
        "tolerance": tolerance,
        **notes,
    }
    value, gap = details.pop("value"), details["gap"]
    if math.isfinite(value) and gap <= tolerance:
        return proved("minimum_trace", value, details)
    reason = _trace_sentence(value, gap, tolerance, ">")
    return Finding(value, tolerance - gap, Verdict.REFUSED, reason, details)


def refused(reason: str) -> Finding:
    """Return a REFUSED finding, for data that no proof can treat."""
    return Finding(None, None, Verdict.REFUSED, reason)


def proved(name: str, value: float, details: Mapping[str, Any]) -> Finding:
    """Return a PROVED finding, with margin and reason computed from its numbers."""
    margin = margin_of(name, value, details)
    return Finding(value, margin, Verdict.PROVED, sentence(name, value, details), dict(details))


def margin_of(name: str, value: float, details: Mapping[str, Any]) -> float | None:
    """Return how far a PROVED finding is from failing, from its own numbers."""
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
    """Return the reason of a PROVED finding in words, from its own numbers."""
    if name == "interpolation":
        tolerance = details["tolerance"]
        return f"||A(UU') - y|| / ||y|| <= {value:.3e} <= tolerance {tolerance:.1e}"
    if name == "identifiability":
        return f"lambda_min^eff >= {value:.6e} > 0"
    if name == "local_uniqueness":
        within = details["critical_points_within"]
        return (
            f"for the data A(UU'), UU' is the only critical point within d_P < {value:.3e}; "
            f"for y, all critical points within {value * 2 * THETA:.3e} lie within {within:.1e}"
        )
    if name == "global_uniqueness":
        return (
            "UU' is the only PSD matrix of any rank with its measurements; any other with rms "
            f"misfit eps to y lies within {value:.3e} (eps + {details['residual']:.1e})"
        )
    return _trace_sentence(value, details["gap"], details["tolerance"], "<=")


def _trace_sentence(value: float, gap: float, tolerance: float, relation: str) -> str:
    return (
        f"tr UU' = {value:.6e} is at most 1 + {gap:.1e} times the least trace of PSD matrices "
        f"that fit as well ({gap:.1e} {relation} tolerance {tolerance:.0e})"
    )


def _outward(name: str, numbers: Mapping[str, Any], outward_margin: float) -> dict[str, Any]:
    """Round bounds outward by a relative margin."""
    factors = {key: 1 + side * outward_margin for key, side in CHECKED[name].items()}
    return {
        key: number if number is None or CHECKED[name][key] == EQUAL else number * factors[key]
        for key, number in numbers.items()
    }
