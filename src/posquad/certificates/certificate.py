"""`Certificate`: five findings about one computed factor, and the data needed to check them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from posquad.certificates.proofs.bounded_operator import BoundedOperator
from posquad.certificates.proofs.claims import Claims, Witness
from posquad.core.elementwise import require_nonnegative
from posquad.core.errors import DomainError
from posquad.core.ranges import BOUND_SIZES
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
"""Accuracy, relative to `||UU'||_F`, that `Certificate.proved` requires of the answer."""

_ENVELOPE_MARGIN = 1e-12  # covers the rounding of an envelope


@dataclass(frozen=True, eq=False, repr=False)
class Finding(Result):
    """One finding: a value, its margin to failure, a verdict, and the reason in words."""

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
    """Findings about `Q = UU'` as the answer to `A(Q) = y`; see `certify`.

    `verify` proves them again from `claims` and the arrays of `witness`.
    """

    interpolation: Finding
    identifiability: Finding
    local_uniqueness: Finding
    global_uniqueness: Finding
    minimum_trace: Finding
    claims: Claims
    witness: Witness
    fingerprint: str  # SHA-256 of the data and the factor
    loaded: bool = False  # whether it was read from a file, so that only `verify` can confirm it

    @property
    def proved(self) -> bool:
        """Whether UU' is proved to be the answer: it fits, and no other matrix of any rank does.

        This requires that interpolation and global uniqueness are PROVED, and that every positive
        semidefinite matrix that fits y as well as UU' lies within ACCURACY of it, relative to
        `||UU'||_F`. Two such answers to the same y agree to the ACCURACY of the one that fits
        worse. For a loaded certificate this is only what the file says; see `verify`.
        """
        return is_answer(self.interpolation, self.global_uniqueness)

    def error_bound(self, misfit: float = 0.0) -> float:
        """Bound `||Q' - UU'||_F` for every PSD matrix Q', of any rank, with this misfit or less.

        The misfit of Q' is `||A(Q') - y||_2 / sqrt(n)`. Theorem D gives the bound
        `C (misfit + residual)`, with the residual of UU'. It is infinite if global uniqueness is
        not proved.
        """
        if not (isinstance(misfit, int | float) and misfit >= 0):
            raise DomainError("misfit", expected="a number >= 0", got=repr(misfit))
        if not self.global_uniqueness.proved or self.global_uniqueness.value is None:
            return math.inf
        residual = self.global_uniqueness.details["residual"]
        return self.global_uniqueness.value * (misfit + residual) * (1 + 1e-14)

    def flow_envelope(self, distance: Any, t: Any) -> Any:
        """Bound `d_P(U(t), U)` along the gradient flow from this distance (Theorem A).

        The flow is that for the data `A(UU')`. Raises `DomainError` unless local uniqueness is
        proved.
        """
        if not self.local_uniqueness.proved:
            raise DomainError(
                "self",
                expected="a certificate with local uniqueness proved",
                got=self.local_uniqueness.reason,
            )
        details = self.local_uniqueness.details
        distance, t = require_nonnegative(distance=distance, t=t)
        # Round outward: the larger distance covers the rounding of delta, the factor that of the
        # rest (the exponential is off by at most about 800 units), the last term underflow.
        lam, mu = details["lam"], details["mu"]
        envelope = effective_flow_envelope(distance * (1 + 1e-14), t, lam, mu)
        return envelope * (1 + _ENVELOPE_MARGIN) + BOUND_SIZES.of().low * math.sqrt(lam / mu)

    def __str__(self) -> str:
        lines = [
            f"{name:>17}: {getattr(self, name).verdict.name:9} {getattr(self, name).reason}"
            for name in FINDINGS
        ]
        warning = ["read from a file and not verified here; it says:"] if self.loaded else []
        return "\n".join([*warning, self._headline(), *lines])

    def _headline(self) -> str:
        head = "proved to be the only answer" if self.proved else "not proved to be the only answer"
        within = self.global_uniqueness.details.get("within")
        if not (self.interpolation.proved and self.global_uniqueness.proved) or within is None:
            return head
        far = f"every PSD matrix that fits as well lies within {within:.1e} of it"
        limit = ACCURACY * self.global_uniqueness.details["size"]
        return f"{head}: {far}" if self.proved else f"{head}: {far}, more than {limit:.1e}"


def is_answer(interpolation: Finding, global_uniqueness: Finding) -> bool:
    """Return whether these two findings make UU' the answer; see `Certificate.proved`."""
    if not (interpolation.proved and global_uniqueness.proved):
        return False
    details = global_uniqueness.details
    return details["within"] <= ACCURACY * details["size"]


def fingerprint_of(operator: BoundedOperator, y: np.ndarray, U: np.ndarray) -> str:
    """Return the SHA-256 of shapes and bytes of the data and the factor, in double precision."""
    digest = hashlib.sha256(operator.tag.encode())
    for array in (*operator.arrays(), y, U):
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    return digest.hexdigest()
