"""Experiment 7, beyond the paper: the selection law as measurements stop commuting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posquad.experiments.exp7.dial import DialResult, dial_experiment
from posquad.experiments.exp7.panels import PANELS, TABLES
from posquad.experiments.framework import (
    Experiment,
    Measured,
    Parameters,
    ProgressCallback,
    own_parameter,
)

__all__ = ["EXPERIMENT", "Dial", "run"]


@dataclass(frozen=True)
class Dial(Parameters):
    """All parameters are our choice; the paper has no such experiment."""

    dials: tuple[float, ...] = own_parameter(
        (0.0, 0.1, 0.3, 0.6, 1.0), "0: commuting measurements, 1: generic eigenbases"
    )
    epsilons: tuple[float, ...] = own_parameter((0.3, 0.1, 0.03), "the flow starts at epsilon^2 I")
    seeds: int = own_parameter(20, "number of independent problems")
    n: int = own_parameter(4, "number of measurements")
    d: int = own_parameter(5, "dimension; the factor is square")
    residual_tolerance: float = own_parameter(
        1e-7, "a flow ends when ||A(Q) - y|| is below this, ||y|| = 1"
    )
    t_final: float = own_parameter(1e5, "largest time of a flow")
    max_steps: int = own_parameter(50_000, "maximum number of integrator steps")


def run(parameters: Dial, progress: ProgressCallback) -> Measured:
    """Run the dial experiment; return its results and intervals as named quantities.

    >>> small = Dial(dials=(0.0, 1.0), epsilons=(0.1,), seeds=2, n=2, d=3)
    >>> bool(run(small, lambda fraction: None)["to_bregman_max"] < 1e-4)
    True
    """
    q = parameters
    result = dial_experiment(
        q.dials,
        q.epsilons,
        seeds=q.seeds,
        n=q.n,
        d=q.d,
        seed=q.seed * q.seeds,  # different seeds share no problem
        t_final=q.t_final,
        residual_tolerance=q.residual_tolerance,
        max_steps=q.max_steps,
        progress=lambda done, of: progress(done / of),
    )
    measured = Measured()
    measured.set_coordinates("dial", result.dials)
    measured.set_coordinates("epsilon", result.epsilons)
    measured.set_coordinates("seed", np.arange(q.seeds))
    for name in ("to_von_neumann", "to_minimum_trace"):
        values = getattr(result, name)
        measured.add(name, values, "dial", "epsilon", "seed")
        for part, end in zip(("mean", "low", "high"), result.interval(values), strict=True):
            measured.add(f"{name}_{part}", 10**end, "dial", "epsilon")
    measured.add("trace_gaps", result.trace_gaps, "dial", "epsilon", "seed")
    measured.add("commutators", result.commutators, "dial", "seed")
    measured.add("converged", result.converged, "dial", "epsilon", "seed")
    if np.isfinite(result.to_bregman).all():
        measured.add("to_bregman", result.to_bregman, "epsilon", "seed")
        measured.add("to_bregman_max", result.to_bregman.max())
    measured.add("leaves_the_law", _leaves_the_law(result))
    measured.remarks.append(result.statement())
    return measured


def _leaves_the_law(result: DialResult) -> bool:
    """ProgressCallback whether the distance intervals at all dials lie above the one at dial 0."""
    _, low, high = result.interval(result.to_von_neumann)
    return bool((low[1:] > high[:1]).all())


EXPERIMENT = Experiment(
    key="exp7",
    title="Beyond the paper: the commutativity dial",
    question=(
        "The selection law is proved for commuting measurements. How much of it remains when their "
        "eigenbases differ? Full matrix flows are compared with the von Neumann projection, the "
        "natural analogue, and with the minimum-trace set. This is a measurement, not a theorem."
    ),
    section="",
    labels=("thm:global-convergence-bregman-projection",),
    parameters=Dial,
    quick={"seeds": 4, "dials": (0.0, 1.0), "epsilons": (0.3, 0.1)},
    run=run,
    seconds=55,
    quick_seconds=6,
    panels=PANELS,
    tables=TABLES,
)
