"""Certificates: proofs about a computed answer that anyone can check again.

`certify` searches for proofs; `verify` checks a certificate, new or from a file, without a search.
`proves_infeasible` shows that no positive semidefinite matrix explains the responses.
`exact_minimum_trace` and `check_exact_minimum_trace` treat the commuting problems of section 4 in
rational arithmetic. The statements and their proofs are in `docs/theory.md`.

These two and their result are imported when they are first used: nothing else here needs
`posquad.selection`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from posquad.certificates.certificate import FINDINGS as FINDINGS
from posquad.certificates.certificate import Certificate as Certificate
from posquad.certificates.certificate import Finding as Finding
from posquad.certificates.certificate import Verdict as Verdict
from posquad.certificates.certifier import certify as certify
from posquad.certificates.certifier import proved_constants as proved_constants
from posquad.certificates.files import load as load
from posquad.certificates.files import save as save
from posquad.certificates.infeasibility import proved_least_residual as proved_least_residual
from posquad.certificates.infeasibility import proves_infeasible as proves_infeasible
from posquad.certificates.verifier import Verification as Verification
from posquad.certificates.verifier import verify as verify

if TYPE_CHECKING:
    from posquad.selection.exact_trace import ExactMinimumTrace as ExactMinimumTrace
    from posquad.selection.exact_trace import check_exact_minimum_trace as check_exact_minimum_trace
    from posquad.selection.exact_trace import exact_minimum_trace as exact_minimum_trace

_OF_EXACT_TRACE = ("ExactMinimumTrace", "check_exact_minimum_trace", "exact_minimum_trace")


def __getattr__(name: str) -> Any:
    if name not in _OF_EXACT_TRACE:
        raise AttributeError(f"module 'posquad.certificates' has no attribute {name!r}")
    return getattr(import_module("posquad.selection.exact_trace"), name)


def __dir__() -> list[str]:
    return [*globals(), *_OF_EXACT_TRACE]
