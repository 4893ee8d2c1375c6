"""Panels and tables of experiment 5."""

from __future__ import annotations

import numpy as np

from posquad.experiments.framework import Measured, ReportTable
from posquad.experiments.published import published_points
from posquad.experiments.words import rows_over
from posquad.report.palette import (
    INK,
    draw_published,
    draw_series,
    legend_below,
    mark_values,
    series,
)
from posquad.report.panel import Panel

__all__ = ["PANELS", "TABLES"]


def _draw_residuals(axes, measured: Measured) -> None:
    for k, epsilon in enumerate(measured["epsilon"]):
        axes.plot(measured["base_time"][:, k], measured["base_residual"][:, k],
                  **series(k, marked=False), label=rf"$\varepsilon={epsilon:g}$")  # fmt: skip
    # The paper prints one stopping time, for a system that it does not print.
    _, stop = published_points("exp5", "base_stop", "epsilon")
    level = np.nanmin(measured["base_residual"])
    words = r"published stop at $\varepsilon=0.1$, another system"
    draw_published(axes, stop, [level] * len(stop), label=words)
    axes.set(yscale="log", xlabel="time $t$", ylabel=r"$\|Bq(t)-y\|\,/\,\|y\|$")
    legend_below(axes, 2)


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
    for k, name in enumerate(names.values()):
        x, y = published_points("exp5", name, "epsilon")
        label = "published, another system" if k == 0 else "_nolegend_"
        draw_published(axes, x, y, series(k)["marker"], label)
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


def describe_finding(measured: Measured) -> str:
    """Say what experiment 5 found, for the summary of the report."""
    flows = max(measured["base_to_projection"].max(), measured["augmented_to_projection"].max())
    ratio = float(np.median(measured["slower_when_augmented"]))
    return (
        "The law is reproduced, on a system of our own: flows with and without redundant rows end "
        f"within {flows:.0e} of the same Bregman projection, while the redundant rows multiply the "
        f"time by {ratio:.2g}. The paper does not print its system, so "
        "the stopping times cannot be compared."
    )


PANELS = (
    Panel(
        key="exp5-residual",
        title="Decay of the residual",
        caption="Every scale of the start reaches the constraints, in the end at an exponential "
        "rate; a smaller start takes longer.",
        draw=_draw_residuals,
        describe=lambda m: (
            f"The residual passes the tolerance between $t = {m['base_stop'].min():.3g}$ and "
            f"$t = {m['base_stop'].max():.3g}$."
        ),
        label="fig:exp5-residual-decay",
    ),
    Panel(
        key="exp5-agreement",
        title="Flow limits and projections",
        caption="Two levels should be seen: projections agree to rounding, and flows to their "
        "stopping tolerance. Neither should depend on the scale of the start.",
        draw=_draw_agreement,
        describe=lambda m: (
            f"The levels are {m['projections_apart'].max():.0e} and "
            f"{max(m['base_to_projection'].max(), m['augmented_to_projection'].max()):.0e}."
        ),
        label="fig:exp5-projection-agreement",
    ),
    Panel(
        key="exp5-paths",
        title="Two paths to one point",
        caption="Redundant rows bend the path, but not its end (star): only the constraint set "
        "decides what is selected. Two coordinates at the smallest scale.",
        draw=_draw_paths,
        describe=lambda m: (
            f"At equal residual the paths are up to {m['paths_apart'].max():.2g} apart, their ends "
            f"{m['flows_apart'].max():.0e}."
        ),
        label="fig:exp5-redundant-paths",
    ),
)

TABLES = (
    ReportTable(
        key="exp5-selection",
        title="Flows and projections: Euclidean distances",
        header=(
            r"$\varepsilon$",
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
        header=(r"$\varepsilon$", "base", "augmented"),
        rows=rows_over("epsilon", base_stop=".4g", augmented_stop=".4g"),
    ),
)
