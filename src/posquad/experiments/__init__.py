"""Experiments: parameters, a run that measures, claims with computed verdicts, and a report.

The names below are what a file needs that defines an experiment of its own; the paper's experiments
are in `registry`.
"""

from posquad.experiments.claims import Claim
from posquad.experiments.framework import (
    Experiment,
    Measured,
    Parameters,
    ReportTable,
    own_parameter,
    paper_parameter,
)
from posquad.report.panel import Panel

__all__ = [
    "Claim",
    "Experiment",
    "Measured",
    "Panel",
    "Parameters",
    "ReportTable",
    "own_parameter",
    "paper_parameter",
]
