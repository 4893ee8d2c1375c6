"""Panels and tables of experiment 2."""

from __future__ import annotations

import numpy as np

from posquad.experiments.exp2.ratios import frobenius_ratios
from posquad.experiments.framework import Measured, ReportTable
from posquad.report.palette import COLOURS, MARKERS, REFERENCE, mark_values, series
from posquad.report.panel import Panel

__all__ = ["PANELS", "TABLES"]


def _rows(measured: Measured) -> list[list[str]]:
    rows = []
    for k, weakest in enumerate(measured["lambda_r"]):
        cells = [f"{weakest:g}"]
        for name, digits in (("effective", 4), ("rate", 4), ("ratio", 6)):
            low, middle, high = np.quantile(measured[name][k], (0.05, 0.5, 0.95))
            cells.append(f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]")
        rows.append(cells)
    return rows


def _draw_rates(axes, measured: Measured) -> None:
    for k, weakest in enumerate(measured["lambda_r"]):
        axes.plot(measured["effective"][k], measured["rate"][k], ls="", marker=MARKERS[k % 6],
                  ms=4, color=COLOURS[k % 6], alpha=0.6,
                  label=rf"$\lambda_r={weakest:g}$")  # fmt: skip
    ends = np.array([measured["effective"].min() * 0.9, measured["effective"].max() * 1.1])
    axes.plot(ends, ends, **REFERENCE, label="equal")
    axes.set(xscale="log", yscale="log", xlabel=r"$\lambda_{\min}^{\mathrm{eff}}$",
             ylabel=r"measured rate $\hat\lambda_{\mathrm{flow}}$")  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        marks = np.array([0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 50])
        mark_values(axis, marks[(marks > ends[0]) & (marks < ends[1])])
    axes.legend()


def _draw_metrics(axes, measured: Measured) -> None:
    names = (
        ("rate", "measured rate"),
        ("effective", "quotient metric"),
        ("frobenius", "ambient Frobenius metric"),
    )
    for k, (name, words) in enumerate(names):
        values = measured[name]
        low, middle, high = (np.quantile(values, p, axis=1) for p in (0.05, 0.5, 0.95))
        spread = abs(np.stack([middle - low, high - middle]))
        axes.errorbar(measured["lambda_r"] + 0.008 * (k - 1), middle, spread, capsize=2,
                      **series(k), label=words)  # fmt: skip
    floor = np.full(len(measured["lambda_r"]), measured["factor_max"])
    axes.plot(measured["lambda_r"], floor, **series(3), label="factor Hessian")
    axes.set(xlabel=r"$\lambda_r(Q_*)$", ylabel="smallest curvature")
    mark_values(axes.xaxis, measured["lambda_r"])
    axes.legend()


def _draw_collapse(axes, measured: Measured) -> None:
    for k, weakest in enumerate(measured["lambda_r"]):
        width = 7 * 0.7**k  # thinner lines on top, so that coinciding lines remain visible
        for j in range(min(4, len(measured["seed"]))):
            axes.plot(measured["scaled_time"][k, j], measured["scaled_error"][k, j], lw=width,
                      color=COLOURS[k % 6], solid_capstyle="butt",
                      label=rf"$\lambda_r={weakest:g}$" if j == 0 else None)  # fmt: skip
    s = np.linspace(0, measured["scaled_time"].max(), 50)
    axes.plot(s, np.exp(-s), **REFERENCE, label=r"$e^{-s}$")
    axes.set(yscale="log", xlabel=r"rescaled time $s=\lambda_{\min}^{\mathrm{eff}}t$",
             ylabel=r"$d_P(U(t),U_*)\,/\,d_P(U(0),U_*)$")  # fmt: skip
    axes.legend()


PANELS = (
    Panel(
        key="exp2-rate",
        title="Measured rate and effective curvature",
        caption="One point for each data set: the fitted rate against the smallest effective "
        "eigenvalue, computed before any training.",
        draw=_draw_rates,
        describe=lambda m: (
            f"{m['rate'].size} points near the diagonal; rate over curvature ranges from "
            f"{m['ratio'].min():.6f} to {m['ratio'].max():.6f}."
        ),
        label="fig:exp2-rate-vs-curvature",
    ),
    Panel(
        key="exp2-metrics",
        title="Curvature in different metrics",
        caption="Smallest curvature in three metrics, and the measured rate (median and "
        "central 90% over data sets).",
        draw=_draw_metrics,
        describe=lambda m: (
            f"The quotient metric gives {np.median(m['effective'] / m['rate']):.4f} of the "
            f"rate in the median; the ambient Frobenius metric {frobenius_ratios(m)}; the "
            f"smallest eigenvalue of the factor Hessian is at most {m['factor_max']:.0e}."
        ),
        label="fig:exp2-metric-comparison",
    ),
    Panel(
        key="exp2-collapse",
        title="Trajectories in rescaled time",
        caption="Distance to the solution against time multiplied by the effective curvature.",
        draw=_draw_collapse,
        describe=lambda m: (
            "The logarithms of the trajectories differ from the line -s by at most "
            f"{m['collapse']:.1e}."
        ),
        label="fig:exp2-scaled-trajectories",
    ),
)

TABLES = (
    ReportTable(
        key="exp2-rates",
        title="Effective curvature and measured rate: median over seeds, central 90%",
        header=("λ_r(Q*)", "λ_min^eff", "λ̂_flow", "ratio"),
        rows=_rows,
        label="tab:effective-curvature-rates",
    ),
)
