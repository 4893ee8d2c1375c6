"""Experiment 5: the Bregman projection that the flow selects (section 5.5).

The paper prints neither its measurement system nor how it was augmented. This one is ours, printed
in the report; what is reproduced is the law, not the stopping times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from posquad.experiments.framework import (
    Experiment,
    Measured,
    Parameters,
    ReportTable,
    Tell,
    chosen,
    stated,
)
from posquad.report.palette import INK, legend_below, mark_values, series
from posquad.report.panel import Panel
from posquad.selection import bregman_projection, mirror_flow

__all__ = ["EXPERIMENT", "Selection", "run"]


@dataclass(frozen=True)
class Selection(Parameters):
    """Scales from the paper; the system, its augmentation and the stopping rule are ours."""

    epsilons: tuple[float, ...] = stated((0.5, 0.25, 0.1, 0.05), "the flow starts at epsilon^2")
    B: tuple[tuple[float, ...], ...] = chosen(
        (
            (1.0, 0.5, 0.0, 1.0, 0.2, 0.0),
            (0.0, 1.0, 1.0, 0.0, 0.3, 0.5),
            (0.5, 0.0, 1.0, 0.4, 0.0, 1.0),
        ),
        "reduced measurements, one row each",
    )
    y: tuple[float, ...] = chosen((1.2, 1.0, 1.1), "responses")
    multiplicities: tuple[float, ...] = chosen((1.0, 1.0, 2.0, 1.0, 3.0, 2.0), "block sizes d_a")
    combinations: tuple[tuple[float, ...], ...] = chosen(
        ((0.5, 0.5, 0.0), (0.0, 0.3, -0.3)), "redundant rows, as combinations of the rows of B"
    )
    residual_tolerance: float = chosen(1e-10, "a flow ends where ||Bq - y|| is this times ||y||")
    tolerance: float = chosen(
        1e-11, "local error, relative in q, of the integrator (linearly implicit extrapolation)"
    )
    max_steps: int = chosen(20_000, "most steps of the integrator")


def run(parameters: Selection, tell: Tell) -> Measured:
    """Flows and projections of a system and of the same system with redundant rows.

    >>> measured = run(Selection(epsilons=(0.5,)), lambda fraction: None)
    >>> bool(measured["base_to_projection"].max() < 1e-9)
    True
    """
    q = parameters
    base, y, d = np.array(q.B), np.array(q.y), np.array(q.multiplicities)
    combinations = np.array(q.combinations)
    wide, wide_y = np.vstack([base, combinations @ base]), np.append(y, combinations @ y)
    q0 = np.array(q.epsilons)[:, None] ** 2 * np.ones(len(d))
    measured = Measured()
    measured.along("epsilon", q.epsilons)
    measured.along("block", np.arange(1, len(d) + 1))

    projection = bregman_projection(base, y, d, q0).q  # [E, m]
    widened = bregman_projection(wide, wide_y, d, q0).q
    oracle = np.stack([_scipy_projection(base, y, d, start) for start in q0])
    measured.add("projection", projection, "epsilon", "block")
    measured.add("projections_apart", _apart(projection, widened), "epsilon")
    measured.add("scipy_apart", _apart(projection, oracle), "epsilon")
    tell(0.2)

    limits = {}
    for name, B, v in (("base", base, y), ("augmented", wide, wide_y)):
        flow = mirror_flow(
            B, v, d, q0, residual_tolerance=q.residual_tolerance, tolerance=q.tolerance,
            max_steps=q.max_steps,
        )  # fmt: skip
        measured.along(f"{name}_record", np.arange(len(flow.times)))
        dims = (f"{name}_record", "epsilon")
        measured.add(f"{name}_time", flow.times, *dims)
        measured.add(f"{name}_residual", flow.residual / np.linalg.norm(v), *dims)
        measured.add(f"{name}_path", flow.path, *dims, "block")
        stops = _crossing(measured, name, q.residual_tolerance)
        ends = [_stopped(B, v, d, *pair, q) for pair in zip(q0, stops, strict=True)]
        limits[name] = np.stack(ends)
        measured.add(f"{name}_stop", stops, "epsilon")
        measured.add(f"{name}_to_projection", _apart(limits[name], projection), "epsilon")
        defect = abs(flow.lyapunov_defect(projection)).max(0)
        measured.add(f"{name}_lyapunov", defect, "epsilon")
        tell(0.6 if name == "base" else 1.0)
    measured.add("flows_apart", _apart(limits["base"], limits["augmented"]), "epsilon")
    measured.add("paths_apart", _largest_path_gap(measured), "epsilon")
    measured.add("paths_differ", bool((measured["paths_apart"] > 1e-3).all()))
    measured.add(
        "lyapunov_max", max(measured["base_lyapunov"].max(), measured["augmented_lyapunov"].max())
    )
    ratio = measured["augmented_stop"] / measured["base_stop"]
    if np.isfinite(ratio).all():
        measured.add("stop_changes", bool((abs(np.log(ratio)) > 0.05).all()))
    measured.add("slower_when_augmented", ratio, "epsilon")
    ranks = [
        np.linalg.matrix_rank(matrix) for matrix in (base, wide, np.column_stack([wide, wide_y]))
    ]
    measured.add("same_feasible_set", len(set(ranks)) == 1)
    rows = "; ".join("(" + ", ".join(f"{v:g}" for v in row) + ")" for row in wide)
    measured.remarks.append(
        f"The system: multiplicities ({', '.join(f'{v:g}' for v in d)}); rows of B {rows}, of "
        f"which the last {len(combinations)} are the redundant ones; y = ("
        f"{', '.join(f'{v:g}' for v in wide_y)})."
    )
    return measured


def _scipy_projection(B: np.ndarray, y: np.ndarray, d: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The projection by SciPy, from the smooth convex dual: none of our solvers takes part."""

    def point(dual: np.ndarray) -> np.ndarray:
        return start * np.exp(B.T @ dual / d)

    solution = scipy.optimize.minimize(
        lambda dual: d @ point(dual) - y @ dual,
        np.zeros(len(y)),
        jac=lambda dual: B @ point(dual) - y,
        hess=lambda dual: (B * (point(dual) / d)) @ B.T,
        method="trust-exact",
        options={"gtol": 1e-10},
    )
    polished = scipy.optimize.root(
        lambda dual: B @ point(dual) - y,
        solution.x,
        jac=lambda dual: (B * (point(dual) / d)) @ B.T,
        tol=1e-15,
    )
    return point(polished.x)


def _crossing(measured: Measured, name: str, level: float) -> np.ndarray:
    """When the residual passes the level, between records, where it decays exponentially; `[E]`.

    NaN for a flow that never comes there.
    """
    times, residuals = measured[f"{name}_time"].T, measured[f"{name}_residual"].T
    found = []
    for t, residual in zip(times, residuals, strict=True):
        after = int(np.argmax(residual <= level))
        pair = slice(max(after - 1, 0), after + 1)
        reached = residual[after] <= level
        log = -np.log(residual[pair])
        found.append(np.interp(-np.log(level), log, t[pair]) if reached else np.nan)
    return np.array(found)


def _stopped(
    B: np.ndarray, y: np.ndarray, d: np.ndarray, start: np.ndarray, stop: float, q: Selection
) -> np.ndarray:
    """The flow at its stopping time; the integrator's own last step may lie far beyond it."""
    if not stop > 0:
        return start if stop == 0 else np.full_like(start, np.nan)
    flow = mirror_flow(
        B, y, d, start, t_final=stop, residual_tolerance=0.0, tolerance=q.tolerance,
        max_steps=q.max_steps,
    )  # fmt: skip
    return flow.q


def _apart(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return np.linalg.norm(p - q, axis=-1)


def _largest_path_gap(measured: Measured) -> np.ndarray:
    """How far the two paths to the same end are apart, compared at equal residuals; `[E]`."""
    gaps = []
    for k in range(len(measured["epsilon"])):
        levels = np.linspace(-0.1, -6, 60)  # log10 of the relative residual
        points = []
        for name in ("base", "augmented"):
            log = np.log10(measured[f"{name}_residual"][:, k])
            path = measured[f"{name}_path"][:, k]
            order = np.argsort(log)
            points.append(
                np.stack([np.interp(levels, log[order], column[order]) for column in path.T], -1)
            )
        gaps.append(np.linalg.norm(points[0] - points[1], axis=-1).max())
    return np.array(gaps)


def _rows(measured: Measured) -> list[list[str]]:
    names = ("projections_apart", "base_to_projection", "augmented_to_projection", "flows_apart")
    return [
        [f"{epsilon:g}"] + [f"{measured[name][k]:.2e}" for name in names]
        for k, epsilon in enumerate(measured["epsilon"])
    ]


def _times(measured: Measured) -> list[list[str]]:
    return [
        [f"{epsilon:g}", f"{measured['base_stop'][k]:.4g}", f"{measured['augmented_stop'][k]:.4g}"]
        for k, epsilon in enumerate(measured["epsilon"])
    ]


def _draw_residuals(axes, measured: Measured) -> None:
    for k, epsilon in enumerate(measured["epsilon"]):
        axes.plot(measured["base_time"][:, k], measured["base_residual"][:, k],
                  **series(k, marked=False), label=rf"$\varepsilon={epsilon:g}$")  # fmt: skip
    axes.set(yscale="log", xlabel="time $t$", ylabel=r"$\|Bq(t)-y\|\,/\,\|y\|$")
    axes.legend()


def _draw_agreement(axes, measured: Measured) -> None:
    names = (
        ("base_to_projection", "base flow to projection"),
        ("augmented_to_projection", "augmented flow to projection"),
        ("flows_apart", "between the two flows"),
        ("projections_apart", "between the two projections"),
        ("scipy_apart", "projection: ours and SciPy's"),
    )
    for k, (name, words) in enumerate(names):
        axes.plot(measured["epsilon"], np.maximum(measured[name], 1e-17), **series(k), label=words)
    axes.set(xscale="log", yscale="log", xlabel=r"$\varepsilon$", ylabel="Euclidean distance")
    axes.set_ylim(1e-17, 1e-8)
    mark_values(axes.xaxis, measured["epsilon"])
    legend_below(axes, 2)


def _draw_paths(axes, measured: Measured) -> None:
    k = int(np.argmin(measured["epsilon"]))
    shown = np.argsort(-abs(measured["projection"][k]))[:2]
    for j, name in enumerate(("base", "augmented")):
        path = measured[f"{name}_path"][:, k]
        axes.plot(path[:, shown[0]], path[:, shown[1]], **series(j, marked=False), label=name)
    end = measured["projection"][k]
    axes.plot(*end[shown], marker="*", ms=13, color=INK, ls="", label="Bregman projection")
    axes.set(xlabel=f"$q_{shown[0] + 1}$", ylabel=f"$q_{shown[1] + 1}$")
    axes.legend()


EXPERIMENT = Experiment(
    key="exp5",
    title="Bregman selection under commuting measurements",
    question=(
        "Of the many interpolants, which one does the flow select? The theory says: the Bregman "
        "projection of the start, whatever rows represent the constraints. Flows of a system and "
        "of the same system with redundant rows are compared with projections solved independently."
    ),
    section="subsec:experiment-bregman-selection",
    labels=("thm:global-convergence-bregman-projection", "lem:bregman-lyapunov-identity"),
    parameters=Selection,
    quick={},
    run=run,
    seconds=5,
    quick_seconds=5,
    panels=(
        Panel(
            key="exp5-residual",
            title="Decay of the residual",
            caption="Relative residual along the flow of the base system, for several scales.",
            draw=_draw_residuals,
            describe=lambda m: (
                "The residual passes the tolerance at times "
                + ", ".join(
                    f"{v:.1f} (epsilon = {e:g})"
                    for v, e in zip(m["base_stop"], m["epsilon"], strict=True)
                )
                + "."
            ),
            label="fig:exp5-residual-decay",
        ),
        Panel(
            key="exp5-agreement",
            title="Flow limits and projections",
            caption="Distances between limits of flows and independently solved projections.",
            draw=_draw_agreement,
            describe=lambda m: (
                f"Flows end within {m['base_to_projection'].max():.1e} (base) and "
                f"{m['augmented_to_projection'].max():.1e} (augmented) of the projection; the two "
                f"projections agree to {m['projections_apart'].max():.1e}."
            ),
            label="fig:exp5-projection-agreement",
        ),
        Panel(
            key="exp5-paths",
            title="Two paths to one point",
            caption="Two coordinates of the flow at the smallest scale, with and without redundant "
            "rows.",
            draw=_draw_paths,
            describe=lambda m: (
                "At equal residual the paths are up to "
                f"{m['paths_apart'].max():.2g} apart; their ends {m['flows_apart'].max():.1e}."
            ),
            label="fig:exp5-redundant-paths",
        ),
    ),
    tables=(
        ReportTable(
            key="exp5-selection",
            title="Flows and projections: Euclidean distances",
            header=("ε", "between projections", "base flow to projection",
                    "augmented flow to projection", "between flow limits"),
            rows=_rows,
            label="tab:bregman-selection-results",
        ),
        ReportTable(
            key="exp5-times",
            title="Stopping times",
            header=("ε", "base", "augmented"),
            rows=_times,
        ),
    ),
)  # fmt: skip
