"""Panels and tables of experiment 2."""

from __future__ import annotations

import numpy as np

from posquad.experiments.framework import Measured, ReportTable
from posquad.experiments.published import published_points
from posquad.report.palette import (
    COLOURS,
    MARKERS,
    REFERENCE,
    draw_published,
    legend_below,
    mark_values,
    series,
)
from posquad.report.panel import Panel

__all__ = ["PANELS", "TABLES"]

_TRAJECTORIES = 4  # drawn for each smallest eigenvalue


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
    """Draw rate against curvature, and below it their ratio, which the diagonal hides."""
    top, bottom = axes
    _, curvatures = published_points("exp2", "effective", "lambda_r")
    _, rates = published_points("exp2", "rate", "lambda_r")
    for k, weakest in enumerate(measured["lambda_r"]):
        style = {"ls": "", "marker": MARKERS[k % 6], "ms": 3, "color": COLOURS[k % 6], "alpha": 0.6}
        effective, rate = measured["effective"][k], measured["rate"][k]
        top.plot(effective, rate, **style, label=rf"$\lambda_r={weakest:g}$")
        bottom.plot(effective, rate / effective - 1, **style)
    draw_published(top, curvatures, rates)
    draw_published(bottom, curvatures, rates / curvatures - 1)
    ends = np.array([measured["effective"].min() * 0.9, measured["effective"].max() * 1.1])
    top.plot(ends, ends, **REFERENCE, label="equal")
    bottom.axhline(0, **REFERENCE)
    top.set(xscale="log", yscale="log", ylabel=r"rate $\hat\lambda_{\mathrm{flow}}$")
    bottom.set(xlabel=r"$\lambda_{\min}^{\mathrm{eff}}$", ylabel="ratio $-$ 1")
    bottom.ticklabel_format(axis="y", scilimits=(0, 0))
    for axis in (bottom.xaxis, top.yaxis):
        marks = np.array([0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 50])
        mark_values(axis, marks[(marks > ends[0]) & (marks < ends[1])])
    top.legend(fontsize=7)


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
    draw_published(axes, *published_points("exp2", "effective", "lambda_r"))
    floor = np.full(len(measured["lambda_r"]), measured["factor_max"])
    axes.plot(measured["lambda_r"], floor, **series(3), label="factor Hessian")
    axes.set(xlabel=r"$\lambda_r(Q_*)$", ylabel="smallest curvature")
    mark_values(axes.xaxis, measured["lambda_r"])
    axes.legend()


def _draw_collapse(axes, measured: Measured) -> None:
    """Draw the deviation from exp(-s): the trajectories themselves would all coincide."""
    for k, weakest in enumerate(measured["lambda_r"]):
        style = series(k, marked=False) | {"linewidth": 0.9}
        for j in range(min(_TRAJECTORIES, len(measured["seed"]))):
            s = measured["scaled_time"][k, j]
            axes.plot(s, measured["scaled_error"][k, j] * np.exp(s) - 1, **style,
                      label=rf"$\lambda_r={weakest:g}$" if j == 0 else None)  # fmt: skip
    axes.axhline(0, **REFERENCE, label=r"$e^{-s}$")
    axes.set(xlabel=r"rescaled time $s=\lambda_{\min}^{\mathrm{eff}}t$",
             ylabel=r"$e^{s}\,d_P(U(t),U_*)\,/\,d_P(U(0),U_*)-1$")  # fmt: skip
    axes.ticklabel_format(axis="y", scilimits=(0, 0))
    legend_below(axes, 3)


def describe_finding(measured: Measured) -> str:
    """Say what experiment 2 found, for the summary of the report."""
    share = np.median(measured["frobenius"] / measured["rate"], 1)
    return (
        "The smallest effective eigenvalue, computed before any training, is the rate of the flow: "
        f"on {measured['rate'].size} data sets their ratio differs from 1 by at most "
        f"{abs(measured['ratio'] - 1).max():.1e}. The ambient Frobenius metric does not give it; "
        f"its curvature is {share.min():.2f} to {share.max():.2f} times the rate."
    )


PANELS = (
    Panel(
        key="exp2-rate",
        title="Measured rate and effective curvature",
        caption="Top: the theory puts every point on the diagonal. Bottom: the ratio shows what "
        "the diagonal hides. Hollow: the paper's five data sets.",
        draw=_draw_rates,
        describe=lambda m: (
            f"The {m['rate'].size} ratios differ from 1 by at most {abs(m['ratio'] - 1).max():.1e}."
        ),
        heights=(2.2, 1.0),
        label="fig:exp2-rate-vs-curvature",
    ),
    Panel(
        key="exp2-metrics",
        title="Curvature in different metrics",
        caption="Only the quotient metric should follow the measured rate. The Frobenius metric "
        "crosses it, and the factor Hessian is zero along rotations of $U$, so neither predicts "
        "a rate. Bars: central 90% of the data sets.",
        draw=_draw_metrics,
        describe=lambda m: (
            "In the median the quotient metric gives "
            f"{np.median(m['effective'] / m['rate']):.4f} of the rate."
        ),
        label="fig:exp2-metric-comparison",
    ),
    Panel(
        key="exp2-collapse",
        title="Deviation from one exponential",
        caption="In time rescaled by the effective curvature every trajectory should be $e^{-s}$. "
        "The picture shows the relative deviation; a straight line through zero is an error of "
        "the rate, and a bend is what the linearization leaves out.",
        draw=_draw_collapse,
        describe=lambda m: f"The deviations stay within {m['collapse']:.1e}.",
        label="fig:exp2-scaled-trajectories",
    ),
)

TABLES = (
    ReportTable(
        key="exp2-rates",
        title="Effective curvature and measured rate: median over seeds, central 90%",
        header=(
            r"$\lambda_r(Q_*)$",
            r"$\lambda_{\min}^{\mathrm{eff}}$",
            r"$\hat\lambda_{\mathrm{flow}}$",
            "ratio",
        ),
        rows=_rows,
        label="tab:effective-curvature-rates",
    ),
)
