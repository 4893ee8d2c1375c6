"""`verify`: check a certificate again, by proofs and without a search.

The verifier shares the proofs (`posquad.certificates.proofs`) and the words of the findings
(`posquad.certificates.words`) with `certify`, and nothing of the search.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

import numpy as np

from posquad.certificates import words
from posquad.certificates.certificate import (
    FINDINGS,
    Certificate,
    Finding,
    fingerprint_of,
    is_answer,
)
from posquad.certificates.proofs.bounded_operator import BoundedOperator, bounded_problem
from posquad.certificates.proofs.claims import Claims, proved_conclusions
from posquad.core.arrays import Array, doubles, positive_number
from posquad.core.errors import DtypeError
from posquad.core.results import Result
from posquad.problems.objectives import Objective

__all__ = ["Verification", "verify"]


@dataclass(frozen=True, eq=False, repr=False)
class Verification(Result):
    """The outcome of `verify`: which findings of a certificate are proved again."""

    valid: bool  # whether there are PROVED findings, and all of them are proved again
    confirmed: tuple[str, ...]  # PROVED findings that are proved again
    problems: tuple[str, ...]  # differences from the certificate, in words
    findings: Mapping[str, Finding] = field(default_factory=lambda: MappingProxyType({}))
    """The findings as proved here; nothing in them is taken over from the certificate."""

    @property
    def proved(self) -> bool:
        """Whether UU' is proved here to be the answer; see `Certificate.proved`."""
        if not {"interpolation", "global_uniqueness"} <= set(self.confirmed):
            return False
        return is_answer(self.findings["interpolation"], self.findings["global_uniqueness"])


def verify(
    objective: Objective,
    certificate: Certificate,
    U: Array | None = None,
    *,
    tolerance: float = 1e-9,
    trace_tolerance: float = 1e-6,
) -> Verification:
    """Prove again, from the data, the findings that a certificate calls PROVED.

    Every claim of the certificate is proved again with its witnesses (positive definiteness by a
    factorization whose residual is bounded), and the findings are derived again. The certificate is
    valid if it belongs to these data, calls at least one finding PROVED, and every such finding is
    PROVED here, with no number stronger than the one proved here, and with the margin and the
    reason that follow from its numbers. If a factor U is given, it must equal the certified one bit
    for bit. The tolerances are those of the verifier.

    Notes of the search in the details (`method`, `paper`, `lam_estimate`, ...) and findings that
    are not PROVED are not checked, and `Verification.findings` does not contain them. The
    statements are Theorems A to D of `docs/theory.md`.

    >>> from posquad import LeastSquares, RankOne, certify
    >>> X = np.random.default_rng(0).standard_normal((30, 4))
    >>> u = np.array([[1.0], [2.0], [0.0], [-1.0]])
    >>> objective = LeastSquares(RankOne(X), (X @ u)[:, 0] ** 2)
    >>> verify(objective, certify(objective, u)).valid
    True
    """
    if not isinstance(certificate, Certificate):
        got = type(certificate).__name__
        raise DtypeError("certificate", expected="a Certificate, see certify or load", got=got)
    tolerance = positive_number("tolerance", tolerance)
    trace_tolerance = positive_number("trace_tolerance", trace_tolerance)
    operator, y = bounded_problem(objective)
    problems = (*_shape_problems(operator, certificate), *_number_problems(certificate.claims))
    if problems:
        return Verification(False, (), problems)
    certified = certificate.witness.U
    if U is not None:
        (u,) = objective.admit(U=U)
        if not np.array_equal(doubles(u), certified):
            return Verification(False, (), ("the certificate belongs to another factor",))
    if fingerprint_of(operator, y, certified) != certificate.fingerprint:
        return Verification(False, (), ("the certificate belongs to other data",))
    with np.errstate(all="ignore"):  # nothing is proved from overflows
        found = proved_conclusions(operator, y, certificate.witness, certificate.claims)
    beta = certificate.claims.beta if operator.d > certified.shape[1] else None
    fresh = {
        "interpolation": words.interpolation(found, tolerance, {}),
        "identifiability": words.identifiability(found, None),
        "local_uniqueness": words.local_uniqueness(found, {}),
        "global_uniqueness": words.global_uniqueness(found, beta, None),
        "minimum_trace": words.minimum_trace(found, trace_tolerance, {}),
    }
    confirmed, wrong = [], []
    for name in FINDINGS:
        stated: Finding = getattr(certificate, name)
        if not stated.proved:
            continue
        differences = _differences(name, stated, fresh[name])
        if differences:
            wrong.append(f"{name}: {differences}")
        else:
            confirmed.append(name)
    if not confirmed and not wrong:
        wrong.append("the certificate calls nothing PROVED, so there is nothing to confirm")
    return Verification(not wrong, tuple(confirmed), tuple(wrong), MappingProxyType(fresh))


def _shape_problems(operator: BoundedOperator, certificate: Certificate) -> tuple[str, ...]:
    witness = certificate.witness
    U = witness.U
    if U.ndim != 2 or U.shape[0] != operator.d or not 1 <= U.shape[1] <= operator.d:
        return (f"the factor has shape {U.shape}, the data have d = {operator.d}",)
    arrays = [("z", witness.z), ("dual", witness.dual)]
    problems = [
        f"{name} has shape {array.shape}, the data have n = {operator.n}"
        for name, array in arrays
        if array is not None and array.shape != (operator.n,)
    ]
    given = [U, *(array for _, array in arrays if array is not None)]
    if not all(array.dtype == np.float64 and np.isfinite(array).all() for array in given):
        problems.append("the witnesses are not finite numbers in double precision")
    return tuple(problems)


def _number_problems(claims: Claims) -> tuple[str, ...]:
    given = [(f.name, getattr(claims, f.name)) for f in fields(Claims) if f.name != "route"]
    return tuple(
        f"the claim {name} is not a finite number"
        for name, value in given
        if value is not None and not _is_number(value)
    )


def _is_number(value: Any) -> bool:
    """Return whether a value is a finite float; integers may be too large for one."""
    return type(value) is float and math.isfinite(value)


def _differences(name: str, stated: Finding, fresh: Finding) -> str:
    """Say where a finding that is called PROVED states more than is proved here; "" if nowhere."""
    if not fresh.proved:
        return f"not proved: {fresh.reason}"
    if stated.value is None:
        return "the value is missing"
    given = {**stated.details, "value": stated.value}
    known = {**fresh.details, "value": fresh.value}
    sides = words.CHECKED[name]
    wrong = [key for key, side in sides.items() if not _follows(given.get(key), known[key], side)]
    wrong += sorted(str(key) for key in set(given) - set(sides) - words.NOTES[name])
    tolerance = stated.details.get("tolerance")
    if "tolerance" in fresh.details and not _is_number(tolerance):
        wrong.append("tolerance")
    if wrong:
        return f"{', '.join(wrong)} not supported by what is proved here"
    margin = words.margin_of(name, stated.value, stated.details)
    if stated.margin != margin or (margin is not None and not margin >= 0):
        return f"the margin is {stated.margin}, but its numbers give {margin}"
    if stated.reason != words.sentence(name, stated.value, stated.details):
        return "the reason does not match its numbers"
    return ""


def _follows(stated: Any, fresh: Any, side: int) -> bool:
    """Return whether a stated bound follows from a proved one, by being equal or weaker."""
    if stated is None or fresh is None:
        return stated is None and fresh is None
    if side == words.EQUAL:
        return type(stated) is type(fresh) and stated == fresh
    return _is_number(stated) and (stated >= fresh if side == words.ABOVE else stated <= fresh)
