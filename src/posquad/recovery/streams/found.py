"""What limits a search for the factor of a compressed problem, and what it finds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from posquad.core.progress import Progress
from posquad.core.status import Status
from posquad.recovery.budget import Budget
from posquad.recovery.evidence import Evidence
from posquad.recovery.status import granted
from posquad.recovery.streams.descents import Descents
from posquad.recovery.tuning import DEFAULT


@dataclass
class Limits:
    """What limits and watches a search."""

    level: float  # relative residual at which responses count as reproduced
    budget: Budget
    seed: int = 0
    max_starts: int | None = None
    progress: Callable[[Progress], None] | None = None
    history: list[float] = field(default_factory=list)  # least relative residual at each step
    descents: Descents = field(default_factory=Descents)


class Found(NamedTuple):
    """The factor that was found, and how the search ended."""

    V: np.ndarray  # [k, r]  orthogonal columns of descending norm
    loss: float  # mean squared error, in the units of the problem
    evidence: Evidence
    starts: int
    path: list[tuple[int, float, float]]  # ranks tried: rank, residual, score
    confidence: float  # weight of the rank among those tried; 1 if it was given
    lost: str | None = None  # why rounding hides the loss, and with it the status, if it does

    @property
    def status(self) -> Status:
        """The status that the evidence grants."""
        return granted(self.evidence)

    def without_digits(self) -> Found:
        """Say that the loss is not known, and warn, if rounding hides it."""
        if self.lost is None:
            return self
        self._warn("The error of the fit is lost in rounding")
        path = [(rank, math.nan, score) for rank, _, score in self.path]
        unknown = {"loss": math.nan, "evidence": self._unknown(), "confidence": math.nan}
        return self._replace(**unknown, path=path)

    def with_loss(self, loss: float, level: float) -> Found:
        """Replace a loss that rounding hides by the true one.

        The status holds if both losses are at most the `level` of responses that are reproduced, or
        if they agree.
        """
        agrees = abs(loss - self.loss) <= DEFAULT.acceptance.known_loss * loss
        holds = agrees or max(loss, self.loss) <= level
        evidence = self.evidence if holds else self._unknown()
        if granted(evidence) is Status.STALLED:
            self._warn("The search did not know the error of the fit")
        return self._replace(loss=loss, evidence=evidence, lost=None)

    def _unknown(self) -> Evidence:
        """Return the evidence of an answer whose error is not known."""
        no, lost = np.asarray(False), np.asarray(math.nan)
        return replace(self.evidence, residual=lost, reproduced=no, best=no, spent=no)

    def _warn(self, what: str) -> None:
        warnings.warn(f"{what}, because {self.lost}.", UserWarning, stacklevel=4)
