"""Panels and tables of experiment 7."""

from __future__ import annotations

from posquad.experiments.framework import Measured, ReportTable
from posquad.report.palette import draw_band, series
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


def describe_finding(measured: Measured) -> str:
    """Say what experiment 7 found, for the summary of the report."""
    typical = measured["to_von_neumann_mean"]
    return (
        "Ours, beyond the paper. The selection law holds where the measurements commute and not "
        f"beyond: the typical distance to the von Neumann projection grows from "
        f"{typical[0].max():.0e} at dial {measured['dial'][0]:g} to {typical[-1].max():.0e} at "
        f"dial {measured['dial'][-1]:g}."
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
)
