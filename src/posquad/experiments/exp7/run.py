"""Experiment 7, beyond the paper: the selection law as measurements stop commuting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posquad.experiments.exp7.dial import DialResult, dial_experiment
from posquad.experiments.framework import (
    Experiment,
    Measured,
    Parameters,
    ReportTable,
    Tell,
    chosen,
)
from posquad.report.palette import series
from posquad.report.panel import Panel

__all__ = ["EXPERIMENT", "Dial", "run"]


@dataclass(frozen=True)
class Dial(Parameters):
    """Everything is ours: the paper proves nothing here and claims nothing."""

    dials: tuple[float, ...] = chosen((0.0, 0.1, 0.3, 0.6, 1.0), "0: commuting, 1: generic bases")
    epsilons: tuple[float, ...] = chosen((0.3, 0.1, 0.03), "the flow starts at epsilon^2 I")
    seeds: int = chosen(20, "independent problems")
    n: int = chosen(4, "measurements")
    d: int = chosen(5, "dimension; the factor is square")
    residual_tolerance: float = chosen(
        1e-7, "a flow ends when ||A(Q) - y|| is below this, ||y|| = 1"
    )
    t_final: float = chosen(1e5, "latest time at which a flow ends")
    max_steps: int = chosen(50_000, "most steps of the integrator")


def run(parameters: Dial, tell: Tell) -> Measured:
    """The dial experiment with its intervals, as named quantities.

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
        seed=q.seed * q.seeds,  # no problem shared between seeds
        t_final=q.t_final,
        residual_tolerance=q.residual_tolerance,
        max_steps=q.max_steps,
        progress=lambda done, of: tell(done / of),
    )
    measured = Measured()
    measured.along("dial", result.dials)
    measured.along("epsilon", result.epsilons)
    measured.along("seed", np.arange(q.seeds))
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
    """The interval of the distance lies above that at dial 0, at every dial and every scale."""
    _, low, high = result.interval(result.to_von_neumann)
    return bool((low[1:] > high[:1]).all())


def _draw(name: str, scale: str):
    def draw(axes, measured: Measured) -> None:
        for k, epsilon in enumerate(measured["epsilon"]):
            style = series(k)
            middle, low, high = (
                measured[f"{name}_{part}"][:, k] for part in ("mean", "low", "high")
            )
            axes.fill_between(measured["dial"], low, high, color=style["color"], alpha=0.2, lw=0)
            axes.plot(measured["dial"], middle, **style, label=rf"$\varepsilon={epsilon:g}$")
        axes.set(yscale=scale, xlabel="dial (0: commuting, 1: generic)",
                 ylabel="relative distance of the flow's limit")  # fmt: skip
        axes.legend()

    return draw


def _describe(name: str, words: str):
    def describe(measured: Measured) -> str:
        middle = measured[f"{name}_mean"]
        return (
            f"The typical distance to {words} goes from {middle[0, -1]:.1e} at dial "
            f"{measured['dial'][0]:g} to {middle[-1, -1]:.1e} at dial {measured['dial'][-1]:g}, at "
            f"epsilon = {measured['epsilon'][-1]:g}."
        )

    return describe


def _rows(measured: Measured) -> list[list[str]]:
    names = ("to_von_neumann_mean", "to_minimum_trace_mean")
    return [
        [f"{dial:g}", f"{measured['commutators'][i].mean():.3f}", f"{epsilon:g}"]
        + [f"{measured[name][i, k]:.1e}" for name in names]
        for i, dial in enumerate(measured["dial"])
        for k, epsilon in enumerate(measured["epsilon"])
    ]


EXPERIMENT = Experiment(
    key="exp7",
    title="Beyond the paper: the commutativity dial",
    question=(
        "The selection law is proved for commuting measurements. What is left of it when their "
        "eigenbases are turned apart? Full matrix flows are compared with the von Neumann "
        "projection, the natural analogue, and with the minimum-trace set. A measurement, not a "
        "theorem."
    ),
    section="",
    labels=("thm:global-convergence-bregman-projection",),
    parameters=Dial,
    quick={"seeds": 4, "dials": (0.0, 1.0), "epsilons": (0.3, 0.1)},
    run=run,
    seconds=55,
    quick_seconds=6,
    panels=(
        Panel(
            key="exp7-von-neumann",
            title="Distance to the von Neumann projection",
            caption="Geometric mean over problems with its 95% band.",
            draw=_draw("to_von_neumann", "log"),
            describe=_describe("to_von_neumann", "the von Neumann projection"),
        ),
        Panel(
            key="exp7-minimum-trace",
            title="Distance to the minimum-trace set",
            caption="Geometric mean over problems with its 95% band.",
            draw=_draw("to_minimum_trace", "linear"),
            describe=_describe("to_minimum_trace", "the minimum-trace set"),
        ),
    ),
    tables=(
        ReportTable(
            key="exp7-dial",
            title="Typical relative distances of the flow's limit",
            header=("dial", "commutator", "ε", "to von Neumann projection", "to minimum trace"),
            rows=_rows,
        ),
    ),
)  # fmt: skip
