"""What a status is granted from: what was computed about an answer, and what was not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from posquad.core.arrays import host, like
from posquad.core.errors import ShapeError

__all__ = ["Evidence", "Finding"]


class Finding(NamedTuple):
    """One line of the evidence: what was asked, what was found, and what RECOVERED requires."""

    name: str
    found: str
    required: str


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """Findings about an answer, or about each answer of a batch `[...]`.

    Numbers that were not computed are NaN. Printed, the evidence of one answer is a table, which
    says why a finding is missing. `posquad.recovery.status.grant` makes the status from it, and
    from nothing else.

    >>> from posquad import recover
    >>> X = np.random.default_rng(0).standard_normal((9, 3))
    >>> evidence = recover(X, (X @ [1.0, 2.0, 0.0]) ** 2, rank=1).evidence
    >>> [finding.name for finding in evidence.findings()][:2]
    ['relative residual', 'largest error of one response']
    """

    # The fit.
    tolerance: Any  # [...]  relative residual at which responses count as reproduced
    residual: Any  # [...]  ||A(Q) - y|| / ||y||, weighted; NaN where rounding hides it
    reproduced: Any  # [...]  whether the responses are reproduced, up to the rounding of U
    worst: Any  # [...]  largest error of one response, over |y_i| + ||A_i|| ||Q||; NaN if unknown
    bound: Any  # [...]  no positive semidefinite matrix has a lower residual; 0 if unknown
    best: Any  # [...]  whether the bound is reached, or the search settled at a stationary point
    escapes: Any  # [...]  whether the error falls as coefficients grow without bound

    # The samples.
    spans: Any  # [...]  whether the inputs, or the ranges of the A_i, span the space
    samples: Any  # [...]  independent samples: the dimension of the span of the A_i
    needed: Any  # [...]  samples that identify a generic predictor of this rank
    checked: Any  # [...]  whether there are enough, and more than unknowns

    # The curvature at the answer.
    curvature: Any  # [..., 2]  ends of the effective spectrum over lambda_1(Q); NaN if unknown
    free: Any  # [...]  whether a direction is free
    isolated: Any  # [...]  whether the curvature is known, and the estimate of the error valid
    error: Any  # [...]  estimate of ||Q - Q*||_F / ||Q||_F
    largest: Any  # [...]  largest estimate that is allowed

    # Other solutions.
    linear: (
        Any  # [...]  whether the samples determine every symmetric matrix, so that there is none
    )
    excluded: Any  # [...]  whether a dual matrix excludes every other solution, up to rounding
    second_starts: Any  # [...]  starts from which a second solution was sought
    agreeing: Any  # [...]  those that ended at the answer again, without being made from it
    different: Any  # [...]  whether one of them ended at another solution
    sought: Any  # [...]  whether the search for a second solution came to its end

    # The call.
    diagnosed: Any  # [...]  False where the caller left out the diagnosis
    spent: Any  # [...]  whether a limit ended the work
    proved: Any  # [...]  whether a certificate proves that there is no other solution

    @classmethod
    def blank(cls, count: int, dtype: np.dtype) -> Evidence:
        """Return the evidence of answers of which nothing is known, `[count]`."""

        def number(value: float) -> np.ndarray:
            return np.full(count, value, dtype=dtype)

        no = np.zeros(count, dtype=bool)
        none = np.zeros(count, dtype=np.int64)
        return cls(
            tolerance=number(0.0),
            residual=number(0.0),
            reproduced=no.copy(),
            worst=number(np.nan),
            bound=number(0.0),
            best=no.copy(),
            escapes=no.copy(),
            spans=~no,
            samples=none.copy(),
            needed=none.copy(),
            checked=no.copy(),
            curvature=np.full((count, 2), np.nan, dtype=dtype),
            free=no.copy(),
            isolated=no.copy(),
            error=number(0.0),
            largest=number(0.0),
            linear=no.copy(),
            excluded=no.copy(),
            second_starts=none.copy(),
            agreeing=none.copy(),
            different=no.copy(),
            sought=no.copy(),
            diagnosed=~no,
            spent=no.copy(),
            proved=no.copy(),
        )

    @classmethod
    def alone(cls, **known: Any) -> Evidence:
        """Return the evidence of one answer, of which this is known."""
        blank = cls.blank(1, np.dtype(float)).each(lambda value: value[0])
        return blank.updated(**known)

    def updated(self, **known: Any) -> Evidence:
        """Return the evidence with these findings in place of those before."""
        model = self.residual
        return replace(self, **{k: like(model, np.asarray(v)) for k, v in known.items()})

    def each(self, change: Callable[[Any], Any]) -> Evidence:
        """Return the evidence with every array changed."""
        return Evidence(**{f.name: change(getattr(self, f.name)) for f in fields(self)})

    def numpy(self) -> Evidence:
        """Return the evidence in NumPy arrays."""
        return self.each(lambda value: host(torch.as_tensor(value)))

    @staticmethod
    def stacked(
        parts: list[Evidence], join: Callable[[list[Any]], Any] = np.concatenate
    ) -> Evidence:
        """Return the evidence of all parts, each of whose arrays are joined."""
        names = [f.name for f in fields(Evidence)]
        return Evidence(**{name: join([getattr(part, name) for part in parts]) for name in names})

    def findings(self) -> list[Finding]:
        """Return the lines of the table, for the evidence of one answer."""
        if np.ndim(self.residual):
            expected = "the evidence of one answer: evidence.each(lambda value: value[0])"
            raise ShapeError(
                "evidence", expected=expected, got=f"{tuple(np.shape(self.residual))} of them"
            )
        return self.numpy()._findings()

    def _findings(self) -> list[Finding]:
        tolerance, samples = f"<= {_short(self.tolerance)}", f"{int(self.samples)}"
        return [
            Finding("relative residual", _number(self.residual, _HIDDEN), tolerance),
            Finding("largest error of one response", self._worst(), tolerance),
            Finding("lower bound of the residual", self._bound(), ""),
            Finding("inputs span the space", _yes(self.spans), "yes"),
            Finding("independent samples", samples, f">= {int(self.needed)}, and > p"),
            Finding("smallest curvature", self._curvature(), "positive"),
            Finding("estimated relative error", self._error(), f"<= {_short(self.largest)}"),
            Finding("symmetric matrices determined", _yes(self.linear), "yes, or"),
            Finding("dual matrix excludes others", self._excluded(), "yes, or"),
            Finding("search for a second solution", self._second(), "none found"),
            Finding("certificate", "proved" if self.proved else "no proof", "for CERTIFIED"),
        ]

    def __repr__(self) -> str:
        if np.ndim(self.residual):
            return f"<evidence of {tuple(np.shape(self.residual))} answers>"
        lines = self.findings()
        widths = [max(len(line[k]) for line in lines) for k in range(2)]
        return "\n".join(
            f"{name:<{widths[0]}}  {found:<{widths[1]}}  {required}".rstrip()
            for name, found, required in lines
        )

    def _worst(self) -> str:
        missed = "the responses are not reproduced"
        return _number(self.worst, "the rows were not read again" if self.reproduced else missed)

    def _bound(self) -> str:
        return _short(self.bound) if self.bound > 0 else "not computed, because none is proved"

    def _curvature(self) -> str:
        if self.free and np.isnan(self.curvature[..., 0]):
            return "0: a direction is free"
        return _number(self.curvature[..., 0], self._undiagnosed())

    def _error(self) -> str:
        return _number(self.error, self._undiagnosed())

    def _undiagnosed(self) -> str:
        if not self.diagnosed:
            return "of diagnose=False"
        if not self.reproduced:
            return "the responses are not reproduced, or the factor does not have full rank"
        return "the time is over" if self.spent else "the factor does not have full rank"

    def _excluded(self) -> str:
        if self.excluded:
            return "yes"
        return "not needed" if self.linear else "no: none was found, or it was not sought"

    def _second(self) -> str:
        if self.different:
            return f"another solution, from {int(self.second_starts)} starts"
        if self.second_starts:
            unfinished = "" if self.sought else "; it was not completed"
            starts = f"{int(self.second_starts)} starts, {int(self.agreeing)} agreed"
            return f"none from {starts}{unfinished}"
        if self.linear or self.excluded:
            return "not computed, because there is no other"
        if not self.reproduced:
            return "not computed, because the responses are not reproduced"
        if self.spent:
            return "not computed, because a limit ended the work"
        return "not computed, because another check failed first"


_HIDDEN = "rounding hides it"


def _number(value: Any, reason: str) -> str:
    return f"not computed, because {reason}" if np.isnan(value) else _short(value)


def _short(value: Any) -> str:
    return f"{float(value):.3g}"


def _yes(value: Any) -> str:
    return "yes" if value else "no"
