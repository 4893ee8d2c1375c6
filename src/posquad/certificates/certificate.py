"""Certificates: five findings about one computed factor, with what is needed to check them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np

from posquad._results import Result
from posquad.certificates._claims import Claims, Witness
from posquad.certificates._forms import Forms
from posquad.errors import DomainError
from posquad.sharper import effective_flow_envelope

__all__ = ["FINDINGS", "Certificate", "Finding", "Verdict"]

FINDINGS = (
    "interpolation",
    "identifiability",
    "local_uniqueness",
    "global_uniqueness",
    "minimum_trace",
)
"""The findings of a certificate, in the order in which they build on each other."""


class Verdict(Enum):
    """How sure a finding is; the value is the sentence a user should read."""

    PROVED = "proved, with every rounding error bounded"
    NUMERICAL = "computed in floating point but not proved: no rounding-error bound could be kept"
    REFUSED = "not certified; the reason names the inequality that failed"


@dataclass(frozen=True, eq=False, repr=False)
class Finding(Result):
    """One finding: a value, how far it is from failing, a verdict and the reason in words."""

    value: float | None
    margin: float | None
    verdict: Verdict
    reason: str
    details: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def proved(self) -> bool:
        """Whether the verdict is PROVED."""
        return self.verdict is Verdict.PROVED


@dataclass(frozen=True, eq=False, repr=False)
class Certificate(Result):
    """What is known about `Q = UU'` as the answer to `A(Q) = y`; see `certify`.

    `claims` and the arrays of `witness` are what `verify` needs to prove it again.
    """

    interpolation: Finding
    identifiability: Finding
    local_uniqueness: Finding
    global_uniqueness: Finding
    minimum_trace: Finding
    claims: Claims
    witness: Witness
    fingerprint: str  # of the data and the factor, SHA-256

    @property
    def proved(self) -> bool:
        """Whether UU' is proved to be the answer: it fits, and nothing else of any rank does."""
        return self.interpolation.proved and self.global_uniqueness.proved

    def error_bound(self, misfit: float = 0.0) -> float:
        """A bound on `||Q' - UU'||_F` for every PSD Q', of any rank, with rms misfit `<= misfit`.

        The misfit is that of Q' to the data, `||A(Q') - y||_2 / sqrt(n)`; Theorem D gives
        `C (misfit + residual)` with the residual of UU'. Infinite if global uniqueness is not
        proved.
        """
        if not (isinstance(misfit, int | float) and misfit >= 0):
            raise DomainError("misfit", expected="a number >= 0", got=repr(misfit))
        if not self.global_uniqueness.proved or self.global_uniqueness.value is None:
            return math.inf
        residual = self.global_uniqueness.details["residual"]
        return self.global_uniqueness.value * (misfit + residual) * (1 + 1e-14)

    def flow_envelope(self, distance: Any, t: Any) -> Any:
        """Above `d_P(U(t), U)` along the gradient flow from this distance (Theorem A).

        For the data `A(UU')`; raises unless local uniqueness is proved.
        """
        if not self.local_uniqueness.proved:
            raise DomainError(
                "self",
                expected="a certificate with local uniqueness proved",
                got=self.local_uniqueness.reason,
            )
        details = self.local_uniqueness.details
        return effective_flow_envelope(distance, t, details["lam"], details["mu"])

    def __str__(self) -> str:
        lines = [
            f"{name:>17}: {getattr(self, name).verdict.name:9} {getattr(self, name).reason}"
            for name in FINDINGS
        ]
        head = "proved to be the only answer" if self.proved else "not proved to be the only answer"
        return "\n".join([head, *lines])


def fingerprint_of(forms: Forms, y: np.ndarray, U: np.ndarray) -> str:
    """SHA-256 of shapes and bytes of the data and the factor, in double precision."""
    digest = hashlib.sha256(type(forms).__name__.encode())
    for array in (*forms.arrays(), y, U):
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    return digest.hexdigest()
