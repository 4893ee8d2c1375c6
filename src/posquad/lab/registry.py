"""The experiments, in the order of the report."""

from __future__ import annotations

from posquad.lab import (
    exp1_invariance,
    exp2_curvature,
    exp3_initialization,
    exp4_conditioning,
    exp5_bregman,
    exp6_minimum_trace,
    exp7_dial,
    exp8_sharpness,
)
from posquad.lab.experiment import Experiment

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.key: module.EXPERIMENT
    for module in (
        exp1_invariance,
        exp2_curvature,
        exp3_initialization,
        exp4_conditioning,
        exp5_bregman,
        exp6_minimum_trace,
        exp7_dial,
        exp8_sharpness,
    )
}
