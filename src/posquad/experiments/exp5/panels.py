"""Panels and tables of experiment 5."""

from __future__ import annotations

import numpy as np

from posquad.experiments.framework import Measured, ReportTable
from posquad.experiments.words import listed, rows_over
from posquad.report.palette import INK, draw_series, legend_below, mark_values, series
from posquad.report.panel import Panel

__all__ = ["PANELS", "TABLES"]


def _draw_residuals(axes, measured: Measured) -> None:
    for k, epsilon in enumerate(measured["epsilon"]):
        axes.plot(measured["base_time"][:, k], measured["base_residual"][:, k],
                  **series(k, marked=False), label=rf"$\varepsilon={epsilon:g}$")  # fmt: skip
    axes.set(yscale="log", xlabel="time $t$", ylabel=r"$\|Bq(t)-y\|\,/\,\|y\|$")
    axes.legend()


def _draw_agreement(axes, measured: Measured) -> None:
    names = {
        "base flow to projection": "base_to_projection",
        "augmented flow to projection": "augmented_to_projection",
        "between the two flows": "flows_apart",
        "between the two projections": "projections_apart",
        "our projection to SciPy's": "scipy_apart",
    }
    lines = {words: np.maximum(measured[name], 1e-17) for words, name in names.items()}
    draw_series(axes, measured["epsilon"], lines)
    axes.set(xscale="log", yscale="log", xlabel=r"$\varepsilon$", ylabel="Euclidean distance")
    axes.set_ylim(1e-17, 1e-8)
    mark_values(axes.xaxis, measured["epsilon"])
    legend_below(axes, 2)


def _draw_paths(axes, measured: Measured) -> None:
    k = int(np.argmin(measured["epsilon"]))
    shown = np.argsort(-abs(measured["projection"][k]))[:2]
    for j, name in enumerate(("base", "augmented")):
        path = measured[f"{name}_path"][:, k]
        axes.plot(path[:, shown[0]], path[:, shown[1]], **series(j, marked=False), label=name)
    end = measured["projection"][k]
    axes.plot(*end[shown], marker="*", ms=13, color=INK, ls="", label="Bregman projection")
    axes.set(xlabel=f"$q_{shown[0] + 1}$", ylabel=f"$q_{shown[1] + 1}$")
    axes.legend()


PANELS = (
    Panel(
        key="exp5-residual",
        title="Decay of the residual",
        caption="Relative residual along the flow of the base system, for several scales.",
        draw=_draw_residuals,
        describe=lambda m: (
            "The residual passes the tolerance at times "
            + listed("{:.1f} (epsilon = {:g})", m["base_stop"], m["epsilon"])
            + "."
        ),
        label="fig:exp5-residual-decay",
    ),
    Panel(
        key="exp5-agreement",
        title="Flow limits and projections",
        caption="Distances between limits of flows and independently computed projections.",
        draw=_draw_agreement,
        describe=lambda m: (
            f"Flows end within {m['base_to_projection'].max():.1e} (base) and "
            f"{m['augmented_to_projection'].max():.1e} (augmented) of the projection; the two "
            f"projections agree to {m['projections_apart'].max():.1e}."
        ),
        label="fig:exp5-projection-agreement",
    ),
    Panel(
        key="exp5-paths",
        title="Two paths to one point",
        caption="Two coordinates of the flow at the smallest scale, with and without redundant "
        "rows.",
        draw=_draw_paths,
        describe=lambda m: (
            "At equal residual the paths are up to "
            f"{m['paths_apart'].max():.2g} apart, and their ends {m['flows_apart'].max():.1e}."
        ),
        label="fig:exp5-redundant-paths",
    ),
)

TABLES = (
    ReportTable(
        key="exp5-selection",
        title="Flows and projections: Euclidean distances",
        header=(
            "ε",
            "between projections",
            "base flow to projection",
            "augmented flow to projection",
            "between flow limits",
        ),
        rows=rows_over(
            "epsilon",
            projections_apart=".2e",
            base_to_projection=".2e",
            augmented_to_projection=".2e",
            flows_apart=".2e",
        ),
        label="tab:bregman-selection-results",
    ),
    ReportTable(
        key="exp5-times",
        title="Stopping times",
        header=("ε", "base", "augmented"),
        rows=rows_over("epsilon", base_stop=".4g", augmented_stop=".4g"),
    ),
)
