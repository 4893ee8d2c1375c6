"""Panels and tables of experiment 6."""

from __future__ import annotations

import numpy as np

from posquad.experiments.framework import Measured, ReportTable
from posquad.experiments.published import published_points, published_value
from posquad.experiments.words import listed, rows_over
from posquad.report.palette import COLOURS, INK, REFERENCE, draw_published, series
from posquad.report.panel import Panel

__all__ = ["PANELS", "TABLES"]


def _draw_gap(axes, measured: Measured) -> None:
    axes.plot(measured["epsilon"], measured["envelope"], **series(1, marked=False),
              label=r"bound $C/\log(1/\varepsilon^2)$")  # fmt: skip
    axes.plot(measured["epsilon"], measured["trace_gap"], **series(0), label="measured gap")
    draw_published(axes, *published_points("exp6", "trace_gap", "epsilon"))
    axes.set(xscale="log", yscale="log", xlabel=r"$\varepsilon$",
             ylabel=r"$\tau(q_\varepsilon)-\tau_*$")  # fmt: skip
    axes.legend()


def _draw_entropy(axes, measured: Measured) -> None:
    epsilon, distance = measured["epsilon"], measured["entropy_distance"]
    axes.plot(epsilon, distance, **series(0), label="distance to the entropic point")
    draw_published(axes, *published_points("exp6", "entropy_distance", "epsilon"))
    slope = float(measured["tie_slope"])
    smallest = int(np.argmin(epsilon))
    power = distance[smallest] * (epsilon / epsilon[smallest]) ** slope
    axes.plot(epsilon, power, **REFERENCE, label=f"slope {slope:.3f}")
    axes.set(xscale="log", yscale="log", xlabel=r"$\varepsilon$",
             ylabel=r"$\|q_\varepsilon-q_{\mathrm{ent}}\|_2$")  # fmt: skip
    axes.legend()


def _draw_steps(axes, measured: Measured) -> None:
    eta = measured["eta"]
    axes.plot(eta, measured["step_error"], **series(0), label="measured")
    for k, (name, words) in enumerate((("step", "smallest steps"), ("step_all", "all steps"))):
        slope = float(measured[f"{name}_slope"])
        axes.plot(eta, np.exp(float(measured[f"{name}_intercept"])) * eta**slope,
                  **series(k + 1, marked=False),
                  label=f"fit, {words}: slope {slope:.4f}")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel=r"step $\eta$",
             ylabel=r"$\|q_{\varepsilon,\eta}-q_\varepsilon\|_2$")  # fmt: skip
    axes.legend()


def _draw_face(axes, measured: Measured) -> None:
    """Draw the plane of the first two coordinates."""
    end, path = measured["entropic"], measured["selected"]
    if _is_segment(measured):
        total = end[0] + end[1]
        axes.plot([0, total], [total, 0], color=COLOURS[1], lw=4, alpha=0.5,
                  solid_capstyle="round", label="minimum-trace face")  # fmt: skip
    axes.plot(
        path[:, 0], path[:, 1], **series(0), label=r"$q_\varepsilon$, from large $\varepsilon$"
    )
    axes.plot(end[0], end[1], marker="*", ms=13, color=INK, ls="", label="entropic point")
    draw_published(axes, *published_value("exp6.entropic")[:2], label="published point")
    axes.set(xlabel="$q_1$", ylabel="$q_2$", aspect="equal")
    axes.legend()


def _is_segment(measured: Measured) -> bool:
    """Return whether the face is a segment in the plane of the first two coordinates.

    That is the case if these have the same column of B, as in the paper's system.
    """
    same = abs(measured["columns"][:, 0] - measured["columns"][:, 1]).max() == 0
    return bool(same and measured["face_dimension"] == 1 and not measured["vanishing"][:2].any())


def _draw_samples(axes, measured: Measured) -> None:
    traces = np.sort(measured["sampled_trace"])
    axes.plot(np.arange(1, len(traces) + 1), traces, ls="", marker="o", ms=2.5, color=COLOURS[0],
              label="sampled interpolants, sorted")  # fmt: skip
    axes.axhline(float(measured["minimum_trace"]), color=COLOURS[1], lw=1.6, ls="--",
                 label=rf"certified optimum $\tau_*={measured['minimum_trace']:.4g}$")  # fmt: skip
    draw_published(axes, 1, published_value("exp6.minimum-trace"), label="published optimum")
    axes.set(xlabel="sample", ylabel="trace")
    axes.legend()


def _step_rows(measured: Measured) -> list[list[str]]:
    return [
        [f"1/{1 / eta:g}", f"{error:.5e}"]
        for eta, error in zip(measured["eta"], measured["step_error"], strict=True)
    ]


def describe_finding(measured: Measured) -> str:
    """Say what experiment 6 found, for the summary of the report."""
    words = (
        "The published fits are those of a window: the finite-step error has slope "
        f"{measured['step_slope']:.5f} over the smallest steps and "
        f"{measured['step_all_slope']:.5f} over all of them, and the distance to the entropic "
        f"point {measured['tie_slope']:.3f} and {measured['tie_all_slope']:.3f}."
    )
    blocks, found = len(measured["block"]), int(measured["blocks_after_reduction"])
    if found < blocks:
        words += (
            f" The {blocks} blocks are not all maximal: some have equal coefficients, so that "
            f"intrinsically there are {found}."
        )
    return words


PANELS = (
    Panel(
        key="exp6-trace-gap",
        title="Trace gap and its bound",
        caption="The gap should stay below the bound, and it falls much faster: the logarithm in "
        "the bound is not tight here.",
        draw=_draw_gap,
        describe=lambda m: (
            "The bound is at least "
            f"{(m['envelope'] / m['trace_gap']).min():.1f} times the gap, and "
            f"{(m['envelope'] / m['trace_gap']).max():.0f} times at most."
        ),
        label="fig:exp6-trace-gap",
    ),
    Panel(
        key="exp6-entropy",
        title="Convergence to the entropic point",
        caption="The selected point approaches the entropic point of the face, not just any "
        "point of it. The dotted power is fitted to the smallest scales and bends off at large "
        "ones.",
        draw=_draw_entropy,
        describe=lambda m: f"The fitted power is {m['tie_slope']:.3f}.",
        label="fig:exp6-entropy",
    ),
    Panel(
        key="exp6-finite-step",
        title="Finite-step selection error",
        caption="First order is slope 1. The two fits differ by the largest steps, where the "
        "error is not yet of first order.",
        draw=_draw_steps,
        describe=lambda m: (
            f"Without the largest steps the slope is {m['step_slope']:.4f}, with them "
            f"{m['step_all_slope']:.4f}."
        ),
        label="fig:exp6-finite-step",
    ),
    Panel(
        key="exp6-face",
        title="The minimum-trace face",
        caption="Every point of the thick segment has minimum trace. As the start shrinks, the "
        "selected points move to one of them, the entropic point.",
        draw=_draw_face,
        describe=lambda m: f"The entropic point is ({listed('{:.4g}', m['entropic'])}).",
        label="fig:exp6-minimum-trace-face",
    ),
    Panel(
        key="exp6-sampled",
        title="Sampled interpolants and the optimum",
        caption="No random positive semidefinite interpolant should lie below the dashed line, "
        "which is proved by a dual vector and not by the samples.",
        draw=_draw_samples,
        describe=lambda m: (
            f"The least of {len(m['sample'])} traces is {m['sampled_trace'].min():.4f}, above the "
            f"certified {m['minimum_trace']:.4g}."
            if m["sampled_margin"] >= 0
            else f"The least of {len(m['sample'])} traces is {m['sampled_trace'].min():.4f}; the "
            f"certified optimum is {m['minimum_trace']:.4g}."
        ),
        label="fig:exp6-full-psd",
    ),
)

TABLES = (
    ReportTable(
        key="exp6-scales",
        title="Selected interpolants over the scale of the start",
        header=(r"$\varepsilon$", "trace gap", "bound on it", "distance to entropic point"),
        rows=rows_over("epsilon", trace_gap=".4e", envelope=".4f", entropy_distance=".4e"),
    ),
    ReportTable(
        key="exp6-steps",
        title="Finite-step selection error",
        header=(r"$\eta$", "distance to the limit of the flow"),
        rows=_step_rows,
    ),
)
