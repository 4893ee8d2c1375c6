"""Panels of experiment 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from posquad.experiments.framework import Measured
from posquad.experiments.published import published_value
from posquad.report.palette import REFERENCE, draw_band, draw_published, series
from posquad.report.panel import Panel

__all__ = ["PANELS"]


def _draw_rounding(name: str, words: str):
    def draw(axes, measured: Measured) -> None:
        first = 1 if name == "recursion" else 0
        values = measured[name][:, first:]
        _draw_seeds(axes, measured["step"][first:], values, series(0, marked=False))
        axes.axhline(2.0**-52, **REFERENCE, label=r"$2^{-52}$")
        # The paper prints the maximum over its steps, whose number it does not state.
        largest = published_value(f"exp1.{name}")
        draw_published(axes, measured["step"][-1], largest, label="published maximum")
        axes.set(yscale="log", xlabel="step $k$", ylabel=words)
        axes.set_ylim(1e-17, max(1e-13, 2 * float(values.max())))
        axes.legend()

    return draw


def _draw_correction(axes, measured: Measured) -> None:
    etas, values = measured["eta"], measured["correction"]
    _draw_seeds(axes, etas, values, series(0))
    axes.plot(etas, np.median(values, 0)[-1] * etas / etas[-1], **REFERENCE, label="slope 1")
    axes.set(xscale="log", yscale="log", xlabel=r"step $\eta$",
             ylabel=r"$\|(Q_{k+1}-Q_k)/\eta+2(GQ+QG)\|_F$")  # fmt: skip
    axes.legend()


def _draw_seeds(axes, x: np.ndarray, values: np.ndarray, style: dict[str, Any]) -> None:
    """Draw the median and the range over seeds, the first dimension of the values."""
    low, middle, high = np.quantile(values, (0, 0.5, 1), axis=0)
    draw_band(axes, x, low, middle, high, style, "median seed", "all seeds")


def _draw_rotation(axes, measured: Measured) -> None:
    _draw_seeds(axes, measured["step"], measured["rotation"], series(0, marked=False))
    axes.axhline(0, **REFERENCE, label="closest point of the fiber")
    axes.set(xlabel="step $k$", ylabel="angle to the closest point (radians)")
    axes.legend()


def describe_finding(measured: Measured) -> str:
    """Say what experiment 1 found, for the summary of the report."""
    slopes, published = measured["slope"], published_value("exp1.correction-slope")
    return (
        f"Predictors of rotated starts agree to {measured['invariance'].max():.0e}, and each step "
        f"follows the exact recursion to {measured['recursion'].max():.0e}. At a single point the "
        "finite-step correction is exactly linear in the step, with slope 1; averages along "
        f"trajectories give slopes from {slopes.min():.4f} to {slopes.max():.4f}, and the "
        f"published {published} is such an average."
    )


PANELS = (
    Panel(
        key="exp1-invariance",
        title="Predictors of rotated starts",
        caption="The theory predicts zero. What is left should be rounding: a few times the "
        "dotted line, growing at most slowly with the steps.",
        draw=_draw_rounding("invariance", r"$E_{\mathrm{inv}}(k)$"),
        describe=lambda m: (
            f"The largest of {len(m['seed'])} problems is {m['invariance'].max() * 2**52:.0f} "
            "units of rounding error."
        ),
        label="fig:exp1-orthogonal-invariance",
    ),
    Panel(
        key="exp1-recursion",
        title="The exact recursion",
        caption="The residual of the recursion should not grow at all: each step is compared "
        "with the step that the recursion predicts.",
        draw=_draw_rounding("recursion", r"$E_{\mathrm{rec}}(k)$"),
        describe=lambda m: (
            f"It stays within {m['recursion'].max() * 2**52:.1f} units of rounding error."
        ),
        label="fig:exp1-exact-recurrence",
    ),
    Panel(
        key="exp1-correction",
        title="The finite-step correction",
        caption="The theory predicts the slope 1 of the dotted line. The median bends away from "
        "it at large steps, because it is averaged along trajectories that depend on the step.",
        draw=_draw_correction,
        describe=lambda m: (
            f"The slopes of the problems range from {m['slope'].min():.4f} to "
            f"{m['slope'].max():.4f}."
        ),
        label="fig:exp1-discretization",
    ),
    Panel(
        key="exp1-rotation",
        title="Training does not end at the closest point of its fiber",
        caption="Not in the paper. The angle of the rotation that takes the iterate to the point "
        "of its fiber closest to the start. It is the holonomy of the loop that follows the "
        "descent and returns along the geodesic (docs/holonomy.md).",
        draw=_draw_rotation,
        describe=lambda m: (
            f"After the last step the angle is {m['rotation'][:, -1].min():.3f} to "
            f"{m['rotation'][:, -1].max():.3f} radians."
        ),
    ),
)
