"""Panels and tables of experiment 7."""

from __future__ import annotations

import numpy as np

from posquad.experiments.exp7.candidates import CANDIDATES
from posquad.experiments.framework import Measured, ReportTable
from posquad.report.palette import REFERENCE, draw_band, legend_below, mark_values, series
from posquad.report.panel import Panel

__all__ = ["PANELS", "TABLES"]


def _draw(name: str, scale: str):
    def draw(axes, measured: Measured) -> None:
        for k, epsilon in enumerate(measured["epsilon"]):
            low, mean, high = (measured[f"{name}_{p}"][:, k] for p in ("low", "mean", "high"))
            label = rf"$\varepsilon={epsilon:g}$"
            draw_band(axes, measured["dial"], low, mean, high, series(k), label)
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
            rf"$\varepsilon = {measured['epsilon'][-1]:g}$."
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


def _measured_law(axes, measured: Measured) -> bool:
    """Whether the law was measured; if not, say so in the axes."""
    if "departure" in measured.quantities:
        return True
    axes.text(0.5, 0.5, "not measured", ha="center", va="center", transform=axes.transAxes)
    return False


def _draw_law(axes, measured: Measured) -> None:
    axes.set(xlabel="dial $s$", ylabel="distance of the flow's limit")
    if not _measured_law(axes, measured):
        return
    dials, k = measured["law dial"], int(np.argmin(measured["epsilon"]))
    names = (
        ("departure", "to the commuting limit"),
        ("von_neumann_gap", "to the von Neumann projection"),
        ("law_error", "to the first-order law"),
    )
    for position, (name, words) in enumerate(names):
        low, middle, high = np.quantile(measured[name][:, k], (0, 0.5, 1), axis=-1)
        draw_band(axes, dials, low, middle, high, series(position), words)
    first = int(np.argmin(dials))
    for name, power in (("departure", 1), ("law_error", 2)):
        anchor = np.median(measured[name][first, k])
        label = "slopes 1 and 2" if power == 1 else "_nolegend_"
        axes.plot(dials, anchor * (dials / dials[first]) ** power, **REFERENCE, label=label)
    axes.set(xscale="log", yscale="log")
    mark_values(axes.xaxis, dials)
    legend_below(axes, 2)


def _describe_law(measured: Measured) -> str:
    if "law_error_order" not in measured.quantities:
        return "The orders in the dial were not measured: they need two dials."
    smallest, order = np.argmin(measured["epsilon"]), "{:.2f} to {:.2f}"
    shown = [
        order.format(values.min(), values.max())
        for values in (
            measured[f"{name}_order"][smallest]
            for name in ("departure", "von_neumann_gap", "law_error")
        )
    ]
    return (
        rf"At $\varepsilon = {measured['epsilon'][smallest]:g}$ the orders between the two "
        f"smallest dials are {shown[0]} for the departure, {shown[1]} for the distance to the von "
        f"Neumann projection and {shown[2]} for the error of the law."
    )


def _draw_growth(axes, measured: Measured) -> None:
    axes.set(xlabel=r"start $\delta$ ($Q_0 = \delta I$)", ylabel=r"$\|R(\delta)\|_F$")
    if not _measured_law(axes, measured):
        return
    starts, norms = measured["start"], measured["R_norm"]
    last, bottom = int(np.argmin(starts)), np.inf
    for k, predicted in enumerate(measured["exponent_predicted"]):
        label = f"problem {k + 1}"
        if "exponent" in measured.quantities:
            label += f": fitted {measured['exponent'][k]:.3f}, predicted {predicted:.3f}"
        axes.plot(starts, norms[:, k], **series(k), label=label)
        dotted = norms[last, k] * (starts / starts[last]) ** -predicted
        axes.plot(starts, dotted, **REFERENCE)
        bottom = min(bottom, norms[:, k].min())
    if bottom > 0:
        axes.set(xscale="log", yscale="log", ylim=(bottom / 2, 2 * norms.max()))
        axes.invert_xaxis()
    legend_below(axes, 1)


def _describe_growth(measured: Measured) -> str:
    if "exponent_last" not in measured.quantities:
        return "The exponent was not measured: it needs two starts."
    gaps = measured["exponent_gap"]
    return (
        "Between the two smallest starts the exponents differ from those that the order of "
        f"awakening predicts by at most {gaps.max():.3f}."
    )


_SHOWN = -1.0  # shares below this are drawn at the lower edge


def _draw_shares(axes, measured: Measured) -> None:
    axes.set(xlabel="dial $s$", ylabel="share explained")
    if not _measured_law(axes, measured):
        return
    dials, k = measured["law dial"], int(np.argmin(measured["epsilon"]))
    for position, name in enumerate(CANDIDATES):
        values = measured["share"][position, :, k]
        if np.isfinite(values).any(-1).all():
            middle = np.nanmedian(values, -1).clip(_SHOWN)
            axes.plot(dials, middle, **series(position), label=name)
    axes.set(xscale="log", ylim=(_SHOWN - 0.05, 1.05))
    mark_values(axes.xaxis, dials)
    legend_below(axes, 1)


def _describe_shares(measured: Measured) -> str:
    if "share" not in measured.quantities:
        return "No shares were measured, because the law was not."
    k, first = int(np.argmin(measured["epsilon"])), int(np.argmin(measured["law dial"]))
    shares = measured["share"][:, first, k]
    shown = [f"{name} {_share(row)}" for name, row in zip(CANDIDATES, shares, strict=True)]
    return (
        rf"Medians at $s = {measured['law dial'][first]:g}$ and "
        rf"$\varepsilon = {measured['epsilon'][k]:g}$: {', '.join(shown)}."
    )


def _share(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    if not len(known):
        return "unknown"
    middle = float(np.median(known))
    return f"{100 * middle:.2f}%" if middle >= _SHOWN else "none"


def _share_rows(measured: Measured) -> list[list[str]]:
    if "share" not in measured.quantities:
        return [["not measured", *["unknown"] * (1 + len(CANDIDATES))]]
    return [
        [f"{dial:g}", f"{epsilon:g}"]
        + [_share(measured["share"][c, i, k]) for c in range(len(CANDIDATES))]
        for k, epsilon in enumerate(measured["epsilon"])
        for i, dial in enumerate(measured["law dial"])
    ]


def _growth_rows(measured: Measured) -> list[list[str]]:
    if "exponent" not in measured.quantities:
        return [["not measured", *["unknown"] * 4]]
    ends = [int(np.argmax(measured["start"])), int(np.argmin(measured["start"]))]
    return [
        [
            f"{k + 1}",
            " to ".join(f"{measured['R_norm'][end, k]:.3g}" for end in ends),
            f"{measured['exponent'][k]:.3f} [{measured['exponent_low'][k]:.3f}, "
            f"{measured['exponent_high'][k]:.3f}]",
            f"{measured['exponent_last'][k]:.3f}",
            f"{predicted:.3f}",
        ]
        for k, predicted in enumerate(measured["exponent_predicted"])
    ]


def describe_finding(measured: Measured) -> str:
    """Say what experiment 7 found, for the summary of the report."""
    typical = measured["to_von_neumann_mean"]
    return (
        "Ours, beyond the paper. The selection law holds where the measurements commute and not "
        f"beyond: the typical distance to the von Neumann projection grows from "
        f"{typical[0].max():.0e} at dial {measured['dial'][0]:g} to {typical[-1].max():.0e} at "
        f"dial {measured['dial'][-1]:g}." + _law_finding(measured)
    )


def _law_finding(measured: Measured) -> str:
    if "share" not in measured.quantities:
        return ""
    k, first = int(np.argmin(measured["epsilon"])), int(np.argmin(measured["law dial"]))
    law, projection = (
        _share(measured["share"][CANDIDATES.index(name), first, k])
        for name in ("first-order law", "von Neumann projection")
    )
    return (
        " Near dial 0 the first-order law gives the departure: at the smallest dial and start it "
        f"explains {law} of it, the projection {projection}."
    )


PANELS = (
    Panel(
        key="exp7-von-neumann",
        title="Distance to the von Neumann projection",
        caption="Not in the paper. Zero up to accuracy on the left, where the theorem applies, and "
        "nowhere else: the law ends as soon as the measurements stop commuting. Geometric mean "
        "over problems with its 95% band.",
        draw=_draw("to_von_neumann", "log"),
        describe=_describe("to_von_neumann", "the von Neumann projection"),
    ),
    Panel(
        key="exp7-minimum-trace",
        title="Distance to the minimum-trace set",
        caption="Not in the paper. If small starts still selected a minimum-trace interpolant, the "
        r"curves would fall with $\varepsilon$ at every dial, as they do on the left.",
        draw=_draw("to_minimum_trace", "linear"),
        describe=_describe("to_minimum_trace", "the minimum-trace set"),
    ),
    Panel(
        key="exp7-law",
        title="Departure from the commuting limit, and the first-order law",
        caption="Not in the paper. By the theorem of docs/noncommuting.md the departure and the "
        "distance to the von Neumann projection fall with slope 1, and the error of the law with "
        "slope 2 (dotted). Median and range over problems at the smallest start.",
        draw=_draw_law,
        describe=_describe_law,
    ),
    Panel(
        key="exp7-growth",
        title="The first-order change grows as the start shrinks",
        caption="Not in the paper. A straight line is a power of the start. Dotted: the slope that "
        "the order of awakening predicts for vanishing starts, through the last point.",
        draw=_draw_growth,
        describe=_describe_growth,
    ),
    Panel(
        key="exp7-shares",
        title="What explains the departure",
        caption="Not in the paper. The share of a candidate $C$ is "
        r"$1 - \|Q - C\|^2/\|Q - Q(0)\|^2$ with the limit $Q$ of the flow and the commuting limit "
        "$Q(0)$: 1 if $C$ is the limit, 0 if $C$ is no better than $Q(0)$. Medians over problems "
        "at the smallest start; shares below -1 are drawn at the lower edge. The corrected "
        "projection is the von Neumann projection plus $s(R - V)$.",
        draw=_draw_shares,
        describe=_describe_shares,
    ),
)

TABLES = (
    ReportTable(
        key="exp7-dial",
        title="Typical relative distances of the flow's limit",
        header=(
            "dial",
            "commutator",
            r"$\varepsilon$",
            "to von Neumann projection",
            "to minimum trace",
        ),
        rows=_rows,
    ),
    ReportTable(
        key="exp7-shares",
        title="Share of the departure that each candidate explains, medians over problems (none: "
        "farther from the limit than 1.4 times the departure)",
        header=("dial $s$", r"$\varepsilon$", *CANDIDATES),
        rows=_share_rows,
    ),
    ReportTable(
        key="exp7-growth",
        title=r"Growth of $\|R\|$ as the start shrinks: exponents of $1/\delta$",
        header=(
            "problem",
            r"$\|R\|$, largest to smallest start",
            "fitted, with 95% interval",
            "at the two smallest starts",
            "predicted",
        ),
        rows=_growth_rows,
    ),
)
