"""Panels of experiment 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from posquad.experiments.framework import Measured
from posquad.report.palette import REFERENCE, draw_band, series
from posquad.report.panel import Panel

__all__ = ["PANELS"]


def _draw_rounding(name: str, words: str):
    def draw(axes, measured: Measured) -> None:
        first = 1 if name == "recursion" else 0
        values = measured[name][:, first:]
        _draw_seeds(axes, measured["step"][first:], values, series(0, marked=False))
        axes.axhline(2.0**-52, **REFERENCE, label=r"$2^{-52}$")
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


PANELS = (
    Panel(
        key="exp1-invariance",
        title="Predictors of rotated starts",
        caption="Largest relative difference between the predictors of equivalent descents.",
        draw=_draw_rounding("invariance", r"$E_{\mathrm{inv}}(k)$"),
        describe=lambda m: (
            f"Over {len(m['seed'])} seeds and {len(m['step']) - 1} steps the discrepancy never "
            f"exceeds {m['invariance'].max():.1e}, {m['invariance'].max() * 2**52:.0f} "
            "units of rounding error."
        ),
        label="fig:exp1-orthogonal-invariance",
    ),
    Panel(
        key="exp1-recursion",
        title="The exact recursion",
        caption="Relative residual of the congruence recursion of the predictor, step by step.",
        draw=_draw_rounding("recursion", r"$E_{\mathrm{rec}}(k)$"),
        describe=lambda m: (
            f"The residual stays below {m['recursion'].max():.1e} for all seeds and steps, "
            f"{m['recursion'].max() * 2**52:.1f} units of rounding error."
        ),
        label="fig:exp1-exact-recurrence",
    ),
    Panel(
        key="exp1-correction",
        title="The finite-step correction",
        caption="Distance of one predictor step from the quotient gradient, against the step size.",
        draw=_draw_correction,
        describe=lambda m: (
            "On logarithmic axes the correction follows a line; the slopes over seeds range "
            f"from {m['slope'].min():.4f} to {m['slope'].max():.4f}."
        ),
        label="fig:exp1-discretization",
    ),
)
