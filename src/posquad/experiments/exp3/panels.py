"""Panels and tables of experiment 3."""

from __future__ import annotations

import numpy as np

from posquad.core.rates import wilson
from posquad.experiments.framework import Measured, ReportTable
from posquad.experiments.published import published_points
from posquad.report.palette import (
    REFERENCE,
    draw_band,
    draw_published,
    legend_below,
    mark_values,
    series,
)
from posquad.report.panel import Panel

__all__ = ["PANELS", "TABLES"]


def _rows(measured: Measured) -> list[list[str]]:
    trials = len(measured["trial"])
    rows = []
    for k, ratio in enumerate(measured["ratio"]):
        cells = [f"{ratio:g}", f"{measured['samples'][k]:g}"]
        for name in ("full_rank", "basin", "recovery_tabled"):
            cells.append(_rate(measured[name][k], trials))
        rows.append(cells)
    return rows


def _rate(rate: float, trials: int) -> str:
    low, high = wilson(rate * trials, trials)
    return f"{100 * rate:.4g}% [{100 * max(low, 0):.1f}, {100 * high:.1f}]"


def _draw_distance(axes, measured: Measured) -> None:
    ratios, values = measured["ratio"], measured["distance_over_radius"]
    low, middle, high = np.nanquantile(values, (0, 0.5, 1), axis=1)
    draw_band(axes, ratios, low, middle, high, series(0), "median", "all trials")
    axes.axhline(1, **REFERENCE, label="edge of the certified basin")
    axes.set(xscale="log", yscale="log", xlabel="$n/p$",
             ylabel=r"$d_P(U_0,U_*)\,/\,\rho_n$")  # fmt: skip
    mark_values(axes.xaxis, ratios)
    axes.legend()


def _draw_rates(axes, measured: Measured) -> None:
    ratios, trials = measured["ratio"], len(measured["trial"])
    names = (("full_rank", "full rank"), ("recovery_tabled", "recovered"), ("basin", "in basin"))
    for k, (name, words) in enumerate(names):
        rate = measured[name]
        low, high = wilson(rate * trials, trials)
        spread = abs(np.stack([rate - low, high - rate]))
        axes.errorbar(ratios, rate, spread, capsize=2, **series(k), label=words)
        marker = series(k)["marker"]
        label = "published (hollow)" if k == 0 else "_nolegend_"
        draw_published(axes, *published_points("exp3", name, "ratio"), marker, label)
    axes.set(xscale="log", xlabel="$n/p$", ylabel="rate (95% Wilson intervals)", ylim=(-0.05, 1.05))
    mark_values(axes.xaxis, ratios)
    axes.legend()


def _draw_budgets(axes, measured: Measured) -> None:
    budgets, trials = measured["budget"], len(measured["trial"])
    for k, ratio in enumerate(measured["ratio"]):
        rate = measured["recovery"][k]
        low, high = wilson(rate * trials, trials)
        draw_band(axes, budgets, low, rate, high, series(k), f"$n/p={ratio:g}$")
    places, rates = published_points("exp3", "recovery_tabled", "ratio")
    budget = np.full(len(places), int(measured["tabled_budget"]))
    draw_published(axes, budget, rates, label="published, at our budget")
    axes.set(xscale="log", xlabel="budget (steps of gradient descent)", ylabel="recovery rate",
             ylim=(-0.05, 1.05))  # fmt: skip
    legend_below(axes, 3)


def _draw_rotation(axes, measured: Measured) -> None:
    angles = measured["rotation"]
    known = np.isfinite(angles).any(1) & (np.nan_to_num(angles).max(1) > 0)
    axes.set(xlabel="$n/p$", ylabel="angle to the closest point (radians)")
    if not known.any():
        axes.text(0.5, 0.5, "none recovered", ha="center", va="center", transform=axes.transAxes)
        return
    ratios = measured["ratio"][known]
    low, middle, high = np.nanquantile(angles[known], (0, 0.5, 1), axis=1)
    draw_band(axes, ratios, low, middle, high, series(0), "median", "all recovered trials")
    axes.set(xscale="log", yscale="log")
    mark_values(axes.xaxis, ratios)
    axes.legend()


def _describe_rotation(measured: Measured) -> str:
    known = measured["rotation"][np.isfinite(measured["rotation"])]
    if not len(known):
        return "No trial was recovered, so no end was compared."
    beyond = int((known > 3.14).sum())
    return (
        f"The median angle of {len(known)} recovered trials is {np.median(known):.2g} radians; "
        f"{beyond} end in the other component of their fiber."
    )


def describe_finding(measured: Measured) -> str:
    """Say what experiment 3 found, for the summary of the report."""
    few, most = int(np.argmin(measured["ratio"])), int(np.argmax(measured["budget"]))
    tabled, largest = int(measured["tabled_budget"]), int(measured["budget"][most])
    later = f" and {measured['recovery'][few, most]:.0%} after {largest}"
    return (
        f"Recovery at $n/p = {measured['ratio'][few]}$ is a matter of the iteration budget: "
        f"{measured['recovery_tabled'][few]:.0%} of the trials after {tabled} steps"
        f"{later if largest > tabled else ''}. The theory's basin does not explain it: the "
        f"nearest start lies {measured['nearest']:.2g} radii away, and the theorem asks for "
        f"{measured['N_star']:.2g} samples."
    )


PANELS = (
    Panel(
        key="exp3-basin",
        title="Distance of the start in units of the basin radius",
        caption="Below the dotted line the theorem would apply. Every start is far above it, and "
        "more samples bring it down only slowly.",
        draw=_draw_distance,
        describe=lambda m: f"The nearest of all starts is {m['nearest']:.3g} radii away.",
        label="fig:exp3-basin-ratio",
    ),
    Panel(
        key="exp3-rates",
        title="Full-rank, basin and recovery rates",
        caption="Recovery rises from rare to certain while no start enters the basin. Hollow: "
        "the paper's rates over 16 trials; they should lie where 16 of our trials could. Bars: "
        "95% Wilson intervals.",
        draw=_draw_rates,
        describe=lambda m: (
            f"At the fewest samples {m['recovery_tabled'][np.argmin(m['ratio'])]:.0%} are "
            f"recovered, at the most {m['recovery_tabled'][np.argmax(m['ratio'])]:.0%}; at most "
            f"{m['basin'].max():.0%} of the starts lie in the basin."
        ),
        label="fig:exp3-recovery-rates",
    ),
    Panel(
        key="exp3-budgets",
        title="Recovery against the iteration budget",
        caption="Not in the paper. With few samples the rate keeps rising with the number of "
        "steps, so a published rate says as much about the budget as about the data. Hollow: the "
        "published rates, at the budget at which we compare them.",
        draw=_draw_budgets,
        describe=lambda m: (
            f"At the fewest samples the rate rises from "
            f"{m['recovery'][np.argmin(m['ratio'])].min():.0%} to "
            f"{m['recovery'][np.argmin(m['ratio'])].max():.0%}."
        ),
    ),
    Panel(
        key="exp3-rotation",
        title="Training does not end at the closest point of its fiber",
        caption="Not in the paper. The angle of the rotation that takes the end of a descent to "
        "the point of its fiber closest to the start, a holonomy (docs/holonomy.md). More samples "
        "bring the start nearer to the target, and the end nearer to the closest point.",
        draw=_draw_rotation,
        describe=_describe_rotation,
    ),
)

TABLES = (
    ReportTable(
        key="exp3-recovery",
        title="Spectral initialization and recovery, with 95% Wilson intervals (recovery after "
        "`exp3.tabled_budget` steps)",
        header=("$n/p$", "$n$", "full-rank start", "in basin", "recovered"),
        rows=_rows,
        label="tab:spectral-initialization-recovery",
    ),
)
