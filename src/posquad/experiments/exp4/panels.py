"""Panels and tables of experiment 4."""

from __future__ import annotations

import numpy as np

from posquad.experiments.framework import Measured, ReportTable
from posquad.experiments.words import listed, rows_over
from posquad.report.palette import (
    COLOURS,
    REFERENCE,
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
    axes.set_xticks(columns, [f"{k:g}" for k in measured["kappa"]])
    axes.set_yticks(rows, [f"{m:g}" for m in measured["multiplier"]])
    axes.set(xlabel=r"$\kappa(Q_*)$", ylabel=r"$\eta\,/\,\eta_{\mathrm{oracle}}$",
             xlim=(-0.5, len(columns) - 0.5), ylim=(-0.7, len(rows) - 0.3))  # fmt: skip
    legend_below(axes, 3)


def _describe_map(measured: Measured) -> str:
    words = []
    for k, kappa in enumerate(measured["kappa"]):
        stable = measured["multiplier"][measured["outcome"][:, k] < 2]
        largest = f"up to {stable.max():g} times" if len(stable) else "at no multiple of"
        words.append(f"{largest} the oracle step at kappa = {kappa:g}")
    return f"Of the tested steps, descent contracts {'; '.join(words)}."


PANELS = (
    Panel(
        key="exp4-flow",
        title="Decay of the flow",
        caption="Distance to the solution along the flow that starts on the slow mode.",
        draw=_draw_flows,
        describe=lambda m: f"The fitted rates are {listed('{:.4f}', m['rate'])}.",
        label="fig:exp4-conditioning-flow",
    ),
    Panel(
        key="exp4-rates",
        title="Effective, measured and guaranteed rates",
        caption="The measured rate equals the effective curvature; the guaranteed rate is smaller.",
        draw=_draw_rates,
        describe=lambda m: (
            f"Measured over effective rate: {m['ratio'].min():.6f} to {m['ratio'].max():.6f}; "
            f"effective over guaranteed rate: {m['secant_factor'].min():.2f} to "
            f"{m['secant_factor'].max():.2f}."
        ),
        label="fig:exp4-rate-comparison",
    ),
    Panel(
        key="exp4-stability",
        title="Stability of descent",
        caption="Outcome of descent for multiples of the oracle step: converged (the distance "
        "fell by the factor exp4.map_accuracy within exp4.map_steps steps), contracts (it fell), "
        "oscillates (it did not fall), diverged. The dotted line is the local stability limit.",
        draw=_draw_map,
        describe=_describe_map,
        label="fig:exp4-stability-map",
    ),
)

TABLES = (
    ReportTable(
        key="exp4-rates",
        title="Conditioning, effective curvature and measured rate",
        header=("κ(Q*)", "λ_r(Q*)", "λ_min^eff", "λ̂_flow", "ratio"),
        rows=rows_over("kappa", lambda_r="g", effective=".6g", rate=".5f", ratio=".6f"),
        label="tab:conditioning-flow-rates",
    ),
    ReportTable(
        key="exp4-steps",
        title="Oracle steps, guaranteed rates and local stability limits",
        header=("κ(Q*)", "η_oracle", "guaranteed rate", "2/λ_max^eff over η_oracle"),
        rows=rows_over("kappa", oracle_step=".3e", secant_rate="g", stability_limit=".0f"),
    ),
)
