"""Check a certificate again: proofs only, no search.

Of the code that produced it the verifier shares the proofs, the rounding bounds and the words
(`_proofs`, `_rounding`, `_forms`, `_claims`, `_report`), and nothing of the search.
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
from posquad.certificates.proofs.bounded_operator import Forms, forms_of
from posquad.certificates.proofs.claims import Claims, judge
from posquad.core.arrays import Array, positive_number
from posquad.core.errors import DtypeError
from posquad.core.results import Result
from posquad.problems.objectives import Objective

__all__ = ["Verification", "verify"]


@dataclass(frozen=True, eq=False, repr=False)
class Verification(Result):
    """The outcome of `verify`: what of a certificate is proved again, and what is not."""

    valid: bool  # something is called PROVED, and all that is, is proved again
    confirmed: tuple[str, ...]  # findings that are PROVED, here and there
    problems: tuple[str, ...]  # what is not as the certificate says
    findings: Mapping[str, Finding] = field(default_factory=lambda: MappingProxyType({}))
    """The findings as they were proved here, with nothing in them that was only told."""

    @property
    def proved(self) -> bool:
        """Whether UU' was proved here to be the answer, see `Certificate.proved`."""
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
    """Prove again, from the data alone, what a certificate says is proved.

    The claims of the certificate are numbers and its witnesses arrays; each claim is proved anew
    (positive definiteness by a factorization whose residual is bounded) and the findings are drawn
    from it anew. The certificate is valid if it belongs to these data, it calls a finding PROVED,
    and every finding it calls PROVED is PROVED here, with no number of it stronger than what is
    proved here and its margin and reason those of its numbers. If a factor U is given, it must be
    the one that was certified, bit for bit. The tolerances are the verifier's own.

    Notes of the search in the details (`method`, `paper`, `lam_estimate`, ...) and what the
    certificate says of findings that are not PROVED are not checked; `Verification.findings` is
    free of them. The statements are Theorems A to D of `docs/theory.md`.

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
    forms, y = forms_of(objective)
    problems = (*_shape_problems(forms, certificate), *_number_problems(certificate.claims))
    if problems:
        return Verification(False, (), problems)
    certified = certificate.witness.U
    if U is not None:
        (u,) = objective.admit(U=U)
        if not np.array_equal(u.detach().double().cpu().numpy(), certified):
            return Verification(False, (), ("the certificate belongs to another factor",))
    if fingerprint_of(forms, y, certified) != certificate.fingerprint:
        return Verification(False, (), ("the certificate belongs to other data",))
    with np.errstate(all="ignore"):  # what overflows is not proved
        found = judge(forms, y, certificate.witness, certificate.claims)
    beta = certificate.claims.beta if forms.d > certified.shape[1] else None
    fresh = {
        "interpolation": words.interpolation(found, tolerance, {}),
        "identifiability": words.identifiability(found, None),
        "local_uniqueness": words.local_uniqueness(found, {}),
        "global_uniqueness": words.global_uniqueness(found, beta, None),
        "minimum_trace": words.minimum_trace(found, trace_tolerance, {}),
    }
    confirmed, wrong = [], []
    for name in FINDINGS:
        told: Finding = getattr(certificate, name)
        if not told.proved:
            continue
        differences = _differences(name, told, fresh[name])
        if differences:
            wrong.append(f"{name}: {differences}")
        else:
            confirmed.append(name)
    if not confirmed and not wrong:
        wrong.append("the certificate calls nothing PROVED: there is nothing to confirm")
    return Verification(not wrong, tuple(confirmed), tuple(wrong), MappingProxyType(fresh))


def _shape_problems(forms: Forms, certificate: Certificate) -> tuple[str, ...]:
    witness = certificate.witness
    U = witness.U
    if U.ndim != 2 or U.shape[0] != forms.d or not 1 <= U.shape[1] <= forms.d:
        return (f"the factor has shape {U.shape}, the data have d = {forms.d}",)
    arrays = [("z", witness.z), ("dual", witness.dual)]
    problems = [
        f"{name} has shape {array.shape}, the data have n = {forms.n}"
        for name, array in arrays
        if array is not None and array.shape != (forms.n,)
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
    """A float: integers may be too large to become one."""
    return type(value) is float and math.isfinite(value)


def _differences(name: str, told: Finding, fresh: Finding) -> str:
    """In words, where a finding that is called PROVED says more than what was proved here."""
    if not fresh.proved:
        return f"not proved: {fresh.reason}"
    said = {**told.details, "value": told.value}
    known = {**fresh.details, "value": fresh.value}
    sides = words.CHECKED[name]
    wrong = [key for key, side in sides.items() if not _follows(said.get(key), known[key], side)]
    wrong += sorted(str(key) for key in set(said) - set(sides) - words.NOTES[name])
    tolerance = told.details.get("tolerance")
    if "tolerance" in fresh.details and not _is_number(tolerance):
        wrong.append("tolerance")
    if wrong:
        return f"{', '.join(wrong)} not as proved"
    if told.value is None:
        return "value missing"
    margin = words.margin_of(name, told.value, told.details)
    if told.margin != margin or (margin is not None and not margin >= 0):
        return f"margin {told.margin} is not that of its numbers, {margin}"
    if told.reason != words.sentence(name, told.value, told.details):
        return "the reason is not that of its numbers"
    return ""


def _follows(told: Any, fresh: Any, side: int) -> bool:
    """Whether a told bound follows from a proved one: it is on the same side, or further out."""
    if told is None or fresh is None:
        return told is None and fresh is None
    if side == words.EQUAL:
        return type(told) is type(fresh) and told == fresh
    return _is_number(told) and (told >= fresh if side == words.ABOVE else told <= fresh)
