"""Certificates: five findings about one computed factor, with what is needed to check them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from posquad.certificates.proofs.bounded_operator import Forms
from posquad.certificates.proofs.claims import Claims, Witness
from posquad.core.elementwise import nonnegative
from posquad.core.errors import DomainError
from posquad.core.results import Result
from posquad.core.verdict import Verdict
from posquad.theory.effective import effective_flow_envelope

__all__ = ["ACCURACY", "FINDINGS", "Certificate", "Finding", "Verdict"]

FINDINGS = (
    "interpolation",
    "identifiability",
    "local_uniqueness",
    "global_uniqueness",
    "minimum_trace",
)
"""The findings of a certificate, in the order in which they build on each other."""

ACCURACY = 1e-6
"""`Certificate.proved` asks that all that fits as well lies within this share of `||UU'||_F`."""


_GIVE = 1e-12  # above the rounding of an envelope


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
    loaded: bool = False  # read from a file: what it says is told, until `verify` has proved it

    @property
    def proved(self) -> bool:
        """Whether UU' is proved to be the answer: it fits, and nothing else of any rank does.

        That is: interpolation and global uniqueness are PROVED, and every positive semidefinite
        matrix that fits y as well as UU' lies within ACCURACY of it, relative to `||UU'||_F`. Of
        two such answers to the same y the one that fits worse covers the other, so that they agree
        to its ACCURACY. Of a loaded certificate this is what it says; see `verify`.
        """
        return is_answer(self.interpolation, self.global_uniqueness)

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
        distance, t = nonnegative(distance=distance, t=t)
        # Outward: a distance moved up covers the rounding of delta, the factor that of the rest
        # (the exponential is off by at most some 800 units), the last term its underflow.
        lam, mu = details["lam"], details["mu"]
        envelope = effective_flow_envelope(distance * (1 + 1e-14), t, lam, mu)
        return envelope * (1 + _GIVE) + 1e-290 * math.sqrt(lam / mu)

    def __str__(self) -> str:
        lines = [
            f"{name:>17}: {getattr(self, name).verdict.name:9} {getattr(self, name).reason}"
            for name in FINDINGS
        ]
        told = ["read from a file and not verified here; it says:"] if self.loaded else []
        return "\n".join([*told, self._headline(), *lines])

    def _headline(self) -> str:
        head = "proved to be the only answer" if self.proved else "not proved to be the only answer"
        within = self.global_uniqueness.details.get("within")
        if not (self.interpolation.proved and self.global_uniqueness.proved) or within is None:
            return head
        far = f"every PSD matrix that fits as well lies within {within:.1e} of it"
        limit = ACCURACY * self.global_uniqueness.details["size"]
        return f"{head}: {far}" if self.proved else f"{head}: {far}, more than {limit:.1e}"


def is_answer(interpolation: Finding, global_uniqueness: Finding) -> bool:
    """Whether these two findings make UU' the answer; see `Certificate.proved`."""
    if not (interpolation.proved and global_uniqueness.proved):
        return False
    details = global_uniqueness.details
    return details["within"] <= ACCURACY * details["size"]


def fingerprint_of(forms: Forms, y: np.ndarray, U: np.ndarray) -> str:
    """SHA-256 of shapes and bytes of the data and the factor, in double precision."""
    digest = hashlib.sha256(type(forms).__name__.encode())
    for array in (*forms.arrays(), y, U):
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    return digest.hexdigest()
