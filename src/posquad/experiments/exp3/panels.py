"""Panels and tables of experiment 3."""

from __future__ import annotations

import numpy as np

from posquad.experiments.exp3.published import PUBLISHED_RATE, PUBLISHED_RATIO
from posquad.experiments.framework import Measured, ReportTable
from posquad.experiments.problems import wilson
from posquad.experiments.words import listed
from posquad.report.palette import REFERENCE, draw_band, legend_below, mark_values, series
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
    axes.set(xscale="log", xlabel="$n/p$", ylabel="rate (95% Wilson intervals)", ylim=(-0.05, 1.05))
    mark_values(axes.xaxis, ratios)
    axes.legend()


def _draw_budgets(axes, measured: Measured) -> None:
    budgets, trials = measured["budget"], len(measured["trial"])
    for k, ratio in enumerate(measured["ratio"]):
        rate = measured["recovery"][k]
        low, high = wilson(rate * trials, trials)
        draw_band(axes, budgets, low, rate, high, series(k), f"$n/p={ratio:g}$")
    if PUBLISHED_RATIO in measured["ratio"]:
        label = f"published at $n/p={PUBLISHED_RATIO}$"
        axes.axhline(PUBLISHED_RATE, **REFERENCE, label=label)
    axes.set(xscale="log", xlabel="budget (steps of gradient descent)", ylabel="recovery rate",
             ylim=(-0.05, 1.05))  # fmt: skip
    legend_below(axes, 3)


def _describe_rates(measured: Measured) -> str:
    rates = listed("{:.0%} at n/p = {:g}", measured["recovery_tabled"], measured["ratio"])
    return (
        f"The start has full rank in at least {100 * measured['full_rank'].min():.1f}% of trials. "
        f"It lies inside the certified basin in at most {100 * measured['basin'].max():.1f}%. "
        f"Recovery rates after {measured['tabled_budget']} steps: {rates}."
    )


PANELS = (
    Panel(
        key="exp3-basin",
        title="Distance of the start in units of the basin radius",
        caption="Procrustes distance of the moment initializer from the target, divided by the "
        "certified radius; below 1 the theorem would apply.",
        draw=_draw_distance,
        describe=lambda m: (
            "Median distances in radii: "
            + listed("{:.3g}", np.nanmedian(m["distance_over_radius"], 1))
            + f"; the nearest of all trials is {m['nearest']:.3g} radii away."
        ),
        label="fig:exp3-basin-ratio",
    ),
    Panel(
        key="exp3-rates",
        title="Full-rank, basin and recovery rates",
        caption="Rates over trials with 95% Wilson intervals.",
        draw=_draw_rates,
        describe=_describe_rates,
        label="fig:exp3-recovery-rates",
    ),
    Panel(
        key="exp3-budgets",
        title="Recovery against the iteration budget",
        caption="The same trials after different numbers of steps (not in the paper).",
        draw=_draw_budgets,
        describe=lambda m: (
            f"Recovery rates at the largest budget, {m['budget'].max()} steps: "
            + listed("{:.0%} at n/p = {:g}", m["recovery"][:, np.argmax(m["budget"])], m["ratio"])
            + "."
        ),
    ),
)

TABLES = (
    ReportTable(
        key="exp3-recovery",
        title="Spectral initialization and recovery, with 95% Wilson intervals (recovery after "
        "exp3.tabled_budget steps)",
        header=("n/p", "n", "full-rank start", "in basin", "recovered"),
        rows=_rows,
        label="tab:spectral-initialization-recovery",
    ),
)
