"""Panels and tables of experiment 8."""

from __future__ import annotations

import numpy as np

from posquad.experiments.framework import Measured, ReportTable
from posquad.report.palette import REFERENCE, draw_series, legend_below, mark_values, series
from posquad.report.panel import Panel

__all__ = ["PANELS", "TABLES"]

MOMENT, BOUNDED = 0, 1


def _name(measured: Measured, k: int) -> str:
    return f"d={measured['d'][k]}, r={measured['r'][k]}"


def _draw_radii(axes, measured: Measured) -> None:
    for k in range(len(measured["size"])):
        style = series(k)
        radius = measured["radius_median"][k]
        axes.plot(measured["ratio"], radius, **style, label=f"proved, {_name(measured, k)}")
        axes.axhline(float(measured["paper_radius"][k]), color=style["color"], lw=1, ls=":",
                     label=f"paper's, {_name(measured, k)}")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="$n/p$", ylabel="basin radius")
    mark_values(axes.xaxis, measured["ratio"])
    legend_below(axes, 2)


def _starts(measured: Measured) -> list[tuple[str, int, int]]:
    """List the starts to draw: description, kind, and index among the iterations."""
    first = int(measured["iteration"][1])
    return [
        ("moment initializer", MOMENT, 0),
        ("bounded initializer", BOUNDED, 0),
        (f"moment, {first} steps later", MOMENT, 1),
        (f"bounded, {first} steps later", BOUNDED, 1),
    ]


def _draw_shares(axes, measured: Measured) -> None:
    inside, paper = measured["inside"][0], measured["inside_paper"][0, :, MOMENT, 0]
    shares = {words: inside[:, kind, place] for words, kind, place in _starts(measured)}
    draw_series(axes, measured["ratio"], shares)
    axes.plot(measured["ratio"], paper, **REFERENCE, label="moment, in the paper's basin")
    axes.set(xscale="log", xlabel="$n/p$", ylabel=f"share inside ({_name(measured, 0)})")
    mark_values(axes.xaxis, measured["ratio"])
    legend_below(axes, 2)


def _draw_ratios(axes, measured: Measured) -> None:
    rate = measured["rate_ratio"][0]
    proved, step = (_known_means(measured[name][0]) for name in ("rate", "step_limit"))
    lines = {
        "rate: observed / proved": rate,
        "rate: observed / paper's": rate * proved / measured["paper_rate"][0],
        "step: stability limit / proved": measured["step_ratio"][0],
        "step: stability limit / paper's": step / measured["paper_step"][0],
    }
    draw_series(axes, measured["ratio"], lines)
    axes.axhline(1.0, **REFERENCE)
    axes.set(xscale="log", yscale="log", xlabel="$n/p$",
             ylabel=f"observed / guaranteed ({_name(measured, 0)})")  # fmt: skip
    mark_values(axes.xaxis, measured["ratio"])
    legend_below(axes, 2)


def _draw_growth(axes, measured: Measured) -> None:
    p = measured["size"]
    for k, (words, kind, place) in enumerate(_starts(measured)):
        found = measured["crossing_n"][:, kind, place]
        if not np.isfinite(found).any():
            continue
        style = series(k)
        exponent = float(measured["growth_exponent"][kind, place])
        fitted = np.isfinite(exponent)
        label = f"{words}: $p^{{{exponent:.2f}}}$" if fitted else words
        axes.plot(p, found, ls="", marker=style["marker"], ms=5, color=style["color"], label=label)
        if fitted:
            line = float(measured["growth_constant"][kind, place]) * p**exponent
            axes.plot(p, line, color=style["color"], lw=1, ls=style["linestyle"])
    axes.set(xscale="log", xlabel="$p$", ylabel="$n$ with 95% inside")
    if axes.lines:
        axes.set_yscale("log")
        legend_below(axes, 2)
    mark_values(axes.xaxis, p)
    smallest, largest = measured["N_star"].min(), measured["N_star"].max()
    axes.set_title(rf"paper's $N_*$: {smallest:.0e} to {largest:.0e}", fontsize="small")


def _describe_growth(measured: Measured) -> str:
    found, bound = measured["certified_n"][0, :, 0], measured["N_star"][0]
    words = [
        f"from $n = {n:.0f}$ for the {kind} initializer"
        for kind, n in zip(("moment", "bounded"), found, strict=True)
        if np.isfinite(n)
    ]
    seen = " and ".join(words) or "at no tested n"
    return (
        f"With 95% probability in the trials a start lies inside the proved basin {seen}; the "
        f"paper's sufficient sample size is {bound:.2e}."
    )


def _known_means(values: np.ndarray) -> np.ndarray:
    """Return the means of the rows, ignoring NaN; NaN for a row of NaN."""
    return np.array([np.nanmean(row) if np.isfinite(row).any() else np.nan for row in values])


def _last(values: np.ndarray) -> float:
    """Return the last finite value; 0 if there is none."""
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else 0.0


def _cell(value: float, form: str) -> str:
    return format(float(value), form) if np.isfinite(value) else "—"


def _problem_rows(measured: Measured) -> list[list[str]]:
    rows = []
    for k, p in enumerate(measured["size"]):
        for i, ratio in enumerate(measured["ratio"]):
            inside = measured["inside"][k, i]
            if not np.isfinite(inside).any():
                continue  # larger than the largest n of this size
            shares = [inside[kind, place] for kind in (MOMENT, BOUNDED) for place in (0, 1)]
            rows.append(
                [f"{measured['d'][k]}, {measured['r'][k]}", f"{ratio}", f"{ratio * p}",
                 _cell(measured["radius_median"][k, i], ".4f"),
                 f"{measured['paper_radius'][k]:.4f}",
                 *(_cell(share, ".0%") for share in shares),
                 _cell(measured["rate_ratio"][k, i], ".2f"),
                 _cell(measured["step_ratio"][k, i], ".2f")]
            )  # fmt: skip
    return rows


def _size_rows(measured: Measured) -> list[list[str]]:
    rows = []
    for k, p in enumerate(measured["size"]):
        found = measured["certified_n"][k]
        cells = [_cell(found[kind, place], ".0f") for _, kind, place in _starts(measured)]
        rows.append([_name(measured, k), f"{p}", *cells, f"{measured['N_star'][k]:.2e}"])
    exponents = [
        _cell(measured["growth_exponent"][kind, place], ".2f")
        for _, kind, place in _starts(measured)
    ]
    return [*rows, ["exponent of $p$", "—", *exponents, "—"]]


def describe_finding(measured: Measured) -> str:
    """Say what experiment 8 found, for the summary of the report."""
    gain = measured["radius_median"][0] / measured["paper_radius"][0]
    return (
        f"Ours, beyond the paper. At {_name(measured, 0)} the basin proved at each solution is "
        f"{np.nanmin(gain):.0f} to {np.nanmax(gain):.0f} times as wide as the paper's. "
        f"{_describe_growth(measured)} Near the solution the observed rate is "
        f"{_last(measured['rate_ratio'][0]):.2f} times the proved one, and the largest stable step "
        f"{_last(measured['step_ratio'][0]):.1f} times."
    )


PANELS = (
    Panel(
        key="exp8-radius",
        title="Basin radii: proved, and from the paper",
        caption="Theorem: inside the radius the only critical point is the answer. With more "
        "samples the proved radius grows away from the dotted one of the paper, which does not "
        r"depend on $n$. Lines: the effective radius $\sqrt{\lambda/\mu}/2$, median over problems.",
        draw=_draw_radii,
        describe=lambda m: (
            f"At {_name(m, 0)} and the largest n it is "
            f"{_last(m['radius_median'][0]) / m['paper_radius'][0]:.0f} times the paper's."
        ),
    ),
    Panel(
        key="exp8-inside",
        title="Initializers inside the basins",
        caption="Measurement: the samples needed until most starts lie inside the proved basin. "
        "The bounded initializer needs fewer than the moment initializer, and a few steps of "
        "descent help both. Dotted: inside the paper's basin.",
        draw=_draw_shares,
        describe=lambda m: (
            f"At the largest n {_last(m['inside'][0, :, MOMENT, 0]):.0%} of the moment and "
            f"{_last(m['inside'][0, :, BOUNDED, 0]):.0%} of the bounded initializers lie inside, "
            f"and {m['moment_in_paper_basin']:.0%} of the moment initializers in the paper's basin."
        ),
    ),
    Panel(
        key="exp8-ratios",
        title="Observed over guaranteed rates and steps",
        caption="A ratio of 1 (dotted) would be a sharp guarantee. The proved rate is nearly "
        "sharp, the proved step within a small factor, and the paper's constants are far off; "
        r"they are stated for at least $N_\star$ samples.",
        draw=_draw_ratios,
        describe=lambda m: (
            f"At the largest n the observed rate is {_last(m['rate_ratio'][0]):.2f} times the "
            f"proved one, and the largest stable step {_last(m['step_ratio'][0]):.2f} times."
        ),
    ),
    Panel(
        key="exp8-growth",
        title="Certified sample size against p",
        caption="Measurement: the $n$ at which 95% of the starts lie inside the proved basin. A "
        "fitted power near 1 means samples in proportion to the unknowns. The paper's "
        r"$N_\star$, a theorem for random data, is far above the axis.",
        draw=_draw_growth,
        describe=_describe_growth,
    ),
)

TABLES = (
    ReportTable(
        key="exp8-problems",
        title="Proved basins, and the shares inside at the start and after the first steps",
        header=("$d$, $r$", "$n/p$", "$n$", "proved radius", "paper's", "moment", "moment, later",
                "bounded", "bounded, later", "rate observed/proved", "step limit/proved"),
        rows=_problem_rows,
    ),
    ReportTable(
        key="exp8-sizes",
        title="Smallest tested n from which on 95% lie inside the proved basin",
        header=("size", "$p$", "moment", "bounded", "moment, later", "bounded, later",
                r"paper's $N_\star$"),
        rows=_size_rows,
    ),
)  # fmt: skip
