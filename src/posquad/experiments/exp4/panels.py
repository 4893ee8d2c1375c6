"""Panels and tables of experiment 4."""

from __future__ import annotations

import numpy as np

from posquad.experiments.framework import Measured, ReportTable
from posquad.experiments.published import published_points
from posquad.experiments.words import rows_over
from posquad.report.palette import (
    COLOURS,
    REFERENCE,
    draw_published,
    draw_series,
    legend_below,
    mark_values,
    series,
)
from posquad.report.panel import Panel

__all__ = ["PANELS", "TABLES"]

_OUTCOMES = ("converged", "contracts", "oscillates", "diverged")


def _draw_flows(axes, measured: Measured) -> None:
    for k, kappa in enumerate(measured["kappa"]):
        error = measured["error"][k]
        axes.plot(measured["time"][k], error / error[0], **series(k, marked=False),
                  label=rf"$\kappa={kappa:g}$")  # fmt: skip
    axes.set(yscale="log", xlabel="time $t$", ylabel=r"$d_P(U(t),U_*)\,/\,d_P(U(0),U_*)$")
    axes.legend()


def _draw_rates(axes, measured: Measured) -> None:
    names = {"effective curvature": "effective", "measured": "rate", "guaranteed": "secant_rate"}
    draw_series(axes, measured["kappa"], {words: measured[name] for words, name in names.items()})
    axes.lines[1].set_linestyle("")  # the measured rates lie on the first line
    for k, name in enumerate(("rate", "secant_rate")):
        label = "published (hollow)" if k == 0 else "_nolegend_"
        draw_published(axes, *published_points("exp4", name, "kappa"), label=label)
    axes.set(xscale="log", yscale="log", xlabel=r"$\kappa(Q_*)$", ylabel="rate")
    mark_values(axes.xaxis, measured["kappa"])
    mark_values(axes.yaxis, sorted({*measured["effective"], *measured["secant_rate"]}))
    axes.legend()


def _draw_map(axes, measured: Measured) -> None:
    marks = (("o", COLOURS[2]), ("^", COLOURS[0]), ("D", COLOURS[4]), ("X", COLOURS[1]))
    columns, rows = np.arange(len(measured["kappa"])), np.arange(len(measured["multiplier"]))
    for code, (marker, colour) in enumerate(marks):
        y, x = np.nonzero(measured["outcome"] == code)
        if len(x):
            axes.plot(x, y, ls="", marker=marker, ms=9, color=colour, label=_OUTCOMES[code])
    # Interpolated between the rows, in logarithms; limits outside the rows are not drawn.
    limits = np.interp(
        np.log(measured["stability_limit"]), np.log(measured["multiplier"]), rows, np.nan, np.nan
    )
    axes.plot(columns, limits, **REFERENCE, label=r"$2/\lambda_{\max}^{\mathrm{eff}}$")
    # The one cell whose outcome the paper prints.
    at = np.flatnonzero(measured["kappa"] == 8), np.flatnonzero(measured["multiplier"] == 10_000)
    if len(at[0]) == len(at[1]) == 1:
        draw_published(axes, *at, "s", "published: diverges")
    axes.set_xticks(columns, [f"{k:g}" for k in measured["kappa"]])
    axes.set_yticks(rows, [f"{m:g}" for m in measured["multiplier"]])
    axes.set(xlabel=r"$\kappa(Q_*)$", ylabel=r"$\eta\,/\,\eta_{\mathrm{oracle}}$",
             xlim=(-0.5, len(columns) - 0.5), ylim=(-0.7, len(rows) - 0.3))  # fmt: skip
    legend_below(axes, 3)


def _describe_map(measured: Measured) -> str:
    diverged = int(measured["diverged"].sum())
    return (
        f"{diverged} of the {measured['diverged'].size} cells diverge, and the limit is "
        f"{measured['stability_limit'].min():.0f} to {measured['stability_limit'].max():.0f} times "
        "the oracle step."
    )


def describe_finding(measured: Measured) -> str:
    """Say what experiment 4 found, for the summary of the report."""
    order = np.argsort(measured["kappa"])
    limits = measured["stability_limit"][order]
    words = (
        "The flow has the rate $4\\lambda_r$, four times the guaranteed one, and no randomness; "
        "its fitted digits depend on the start and the window. "
    )
    if len(limits) > 1 and (np.diff(limits) > 0).all():
        words += (
            "Divergence is not special to the worst conditioning: in multiples of the oracle step "
            "better conditioned targets diverge earlier, "
        )
    else:
        words += "Descent is stable far above the oracle step, "
    return words + (
        f"as $2/\\lambda_{{\\max}}^{{\\mathrm{{eff}}}}$ predicts ({limits[0]:.0f} times it at "
        f"$\\kappa = {measured['kappa'][order[0]]:g}$, {limits[-1]:.0f} times at "
        f"$\\kappa = {measured['kappa'][order[-1]]:g}$)."
    )


PANELS = (
    Panel(
        key="exp4-flow",
        title="Decay of the flow",
        caption="Straight lines on the logarithmic axis are exponential decay. The worse the "
        "conditioning, the flatter the line.",
        draw=_draw_flows,
        describe=lambda m: (
            f"The fitted rates fall from {m['rate'].max():.4g} to {m['rate'].min():.4g}."
        ),
        label="fig:exp4-conditioning-flow",
    ),
    Panel(
        key="exp4-rates",
        title="Effective, measured and guaranteed rates",
        caption="The measured rates should lie on the effective curvature; the distance down to "
        "the guaranteed rate is what the secant argument gives away. Hollow: published.",
        draw=_draw_rates,
        describe=lambda m: (
            f"The measured rates are within {abs(m['ratio'] - 1).max():.0e} of the curvature, "
            f"which is {m['secant_factor'].min():.2g} times the guaranteed rate."
        ),
        label="fig:exp4-rate-comparison",
    ),
    Panel(
        key="exp4-stability",
        title="Stability of descent",
        caption="The oracle step is the bottom row. Descent should stay stable up to the dotted "
        "line, the local limit, and it does so far above the oracle step. The hollow square is "
        "the one cell whose outcome the paper prints.",
        draw=_draw_map,
        describe=_describe_map,
        label="fig:exp4-stability-map",
    ),
)

TABLES = (
    ReportTable(
        key="exp4-rates",
        title="Conditioning, effective curvature and measured rate",
        header=(
            r"$\kappa(Q_*)$",
            r"$\lambda_r(Q_*)$",
            r"$\lambda_{\min}^{\mathrm{eff}}$",
            r"$\hat\lambda_{\mathrm{flow}}$",
            "ratio",
        ),
        rows=rows_over("kappa", lambda_r="g", effective=".6g", rate=".5f", ratio=".6f"),
        label="tab:conditioning-flow-rates",
    ),
    ReportTable(
        key="exp4-steps",
        title="Oracle steps, guaranteed rates and local stability limits",
        header=(
            r"$\kappa(Q_*)$",
            r"$\eta_{\mathrm{oracle}}$",
            "guaranteed rate",
            r"$2/\lambda_{\max}^{\mathrm{eff}}$ over $\eta_{\mathrm{oracle}}$",
        ),
        rows=rows_over("kappa", oracle_step=".3e", secant_rate="g", stability_limit=".0f"),
    ),
)
