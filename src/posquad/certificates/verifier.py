"""Check a certificate again: proofs only, no search; imports nothing that produced it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from posquad._arrays import Array, positive_number
from posquad._results import Result
from posquad.certificates import _report
from posquad.certificates._claims import judge
from posquad.certificates._forms import Forms, forms_of
from posquad.certificates.certificate import FINDINGS, Certificate, Finding, fingerprint_of
from posquad.errors import DtypeError
from posquad.objectives import Objective

__all__ = ["Verification", "verify"]


@dataclass(frozen=True, eq=False, repr=False)
class Verification(Result):
    """The outcome of `verify`: whether everything the certificate says is proved again."""

    valid: bool
    confirmed: tuple[str, ...]  # findings that are PROVED, here and there
    problems: tuple[str, ...]  # what is not as the certificate says


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
    from it anew. The certificate is valid if it belongs to these data, and every finding it calls
    PROVED is PROVED here with the same numbers; if a factor U is given, it must be the one that was
    certified, bit for bit. The tolerances are the verifier's own. The statements are Theorems A to
    D of `docs/theory.md`.

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
    problems = _shape_problems(forms, certificate)
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
    fresh = {
        "interpolation": _report.interpolation(found, tolerance),
        "identifiability": _report.identifiability(found, _UNSEEN),
        "local_uniqueness": _report.local_uniqueness(found, {}),
        "global_uniqueness": _report.global_uniqueness(found, certificate.claims.beta, {}),
        "minimum_trace": _report.minimum_trace(found, trace_tolerance, {}),
    }
    confirmed, wrong = [], []
    for name in FINDINGS:
        told: Finding = getattr(certificate, name)
        if not told.proved:
            continue
        differences = _differences(told, fresh[name])
        if differences:
            wrong.append(f"{name}: {differences}")
        else:
            confirmed.append(name)
    return Verification(not wrong, tuple(confirmed), tuple(wrong))


_UNSEEN: Mapping[str, Any] = {"lam_estimate": 0.0, "kernel_dimension": None, "n": 0, "p": 0}


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


def _differences(told: Finding, fresh: Finding) -> str:
    """In words, where a finding that is called PROVED is not what was proved here."""
    if not fresh.proved:
        return f"not proved: {fresh.reason}"
    pairs = [("value", told.value, fresh.value), ("margin", told.margin, fresh.margin)]
    skipped = {"tolerance", "lam_estimate", "n", "p"}
    pairs += [(k, told.details.get(k), v) for k, v in fresh.details.items() if k not in skipped]
    wrong = [name for name, a, b in pairs if not _same(name, a, b)]
    return f"{', '.join(wrong)} differ from what was proved" if wrong else ""


def _same(name: str, told: Any, fresh: Any) -> bool:
    if fresh is None or told is None:
        return fresh is None and told is None
    if not isinstance(told, int | float) or isinstance(told, bool):
        return False
    # Another machine rounds differently; gaps and margins are differences of rounded numbers.
    loose = 1e-12 if name in ("gap", "margin") else 0.0
    return math.isclose(told, fresh, rel_tol=1e-9, abs_tol=loose)
