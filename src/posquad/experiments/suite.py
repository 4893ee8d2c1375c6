"""What a run consists of: the paper's experiments and claims, or those of a file of the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posquad.experiments.claims import Claim, claims
from posquad.experiments.framework import Experiment
from posquad.experiments.registry import EXPERIMENTS

__all__ = ["Suite", "paper_suite"]

PAPER_TITLE = (
    "Quotient Dynamics, Effective Curvature, and Implicit Bias in Positive Quadratic Networks: "
    "the claims of section 5, measured"
)


@dataclass(frozen=True)
class Suite:
    """Experiments that are run and reported together, and the claims that are judged."""

    title: str  # of the report
    experiments: Mapping[str, Experiment]  # by key
    claims: Sequence[Claim]
    file: str = ""  # the file of the user that defines them; empty for the paper's


def paper_suite() -> Suite:
    """Return the experiments and claims of the paper.

    >>> len(paper_suite().experiments)
    8
    """
    return Suite(PAPER_TITLE, EXPERIMENTS, claims())
