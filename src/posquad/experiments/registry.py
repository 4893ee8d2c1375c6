"""All experiments, in the order of the report."""

from __future__ import annotations

from posquad.experiments.exp1 import run as exp1
from posquad.experiments.exp2 import run as exp2
from posquad.experiments.exp3 import run as exp3
from posquad.experiments.exp4 import run as exp4
from posquad.experiments.exp5 import run as exp5
from posquad.experiments.exp6 import run as exp6
from posquad.experiments.exp7 import run as exp7
from posquad.experiments.exp8 import run as exp8
from posquad.experiments.framework import Experiment

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.key: module.EXPERIMENT
    for module in (exp1, exp2, exp3, exp4, exp5, exp6, exp7, exp8)
}
