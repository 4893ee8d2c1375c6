"""Experiment 5: the Bregman projection that the flow selects (section 5.5).

The paper does not print its measurement system or the redundant rows. We use our own system, which
the report prints; so the law is reproduced, but not the stopping times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from posquad.experiments.exp5.panels import PANELS, TABLES, describe_finding
from posquad.experiments.framework import (
    Experiment,
    Measured,
    Parameters,
    ProgressCallback,
    own_parameter,
    paper_parameter,
)
from posquad.experiments.words import listed
from posquad.selection import bregman_projection, mirror_flow

__all__ = ["EXPERIMENT", "Selection", "run"]


@dataclass(frozen=True)
class Selection(Parameters):
    """Scales from the paper; the system, redundant rows and stopping rule are our choice."""

    epsilons: tuple[float, ...] = paper_parameter(
        (0.5, 0.25, 0.1, 0.05), r"the flow starts at $\varepsilon^2$"
    )
    B: tuple[tuple[float, ...], ...] = own_parameter(
        (
            (1.0, 0.5, 0.0, 1.0, 0.2, 0.0),
            (0.0, 1.0, 1.0, 0.0, 0.3, 0.5),
            (0.5, 0.0, 1.0, 0.4, 0.0, 1.0),
        ),
        "reduced measurements, one row each",
    )
    y: tuple[float, ...] = own_parameter((1.2, 1.0, 1.1), "responses")
    multiplicities: tuple[float, ...] = own_parameter(
        (1.0, 1.0, 2.0, 1.0, 3.0, 2.0), "block sizes $d_a$"
    )
    combinations: tuple[tuple[float, ...], ...] = own_parameter(
        ((0.5, 0.5, 0.0), (0.0, 0.3, -0.3)), "redundant rows, as combinations of the rows of $B$"
    )
    residual_tolerance: float = own_parameter(
        1e-10, r"a flow ends when $\|Bq - y\|$ is this times $\|y\|$"
    )
    tolerance: float = own_parameter(
        1e-11, "relative local error of the integrator (linearly implicit extrapolation)"
    )
    max_steps: int = own_parameter(20_000, "maximum number of integrator steps")


def run(parameters: Selection, progress: ProgressCallback) -> Measured:
    """Compute flows and projections of a system, with and without redundant rows.

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
    measured.set_coordinates("epsilon", q.epsilons)
    measured.set_coordinates("block", np.arange(1, len(d) + 1))

    projection = bregman_projection(base, y, d, q0).q  # [E, m]
    widened = bregman_projection(wide, wide_y, d, q0).q
    oracle = np.stack([_scipy_projection(base, y, d, start) for start in q0])
    measured.add("projection", projection, "epsilon", "block")
    measured.add("projections_apart", _apart(projection, widened), "epsilon")
    measured.add("scipy_apart", _apart(projection, oracle), "epsilon")
    progress(0.2)

    limits = {}
    for name, B, v in (("base", base, y), ("augmented", wide, wide_y)):
        flow = mirror_flow(
            B, v, d, q0, residual_tolerance=q.residual_tolerance, tolerance=q.tolerance,
            max_steps=q.max_steps,
        )  # fmt: skip
        measured.set_coordinates(f"{name}_record", np.arange(len(flow.times)))
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
        progress(0.6 if name == "base" else 1.0)
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
    rows = "; ".join(f"({listed('{:g}', row)})" for row in wide)
    measured.remarks.append(
        f"The system has multiplicities ({listed('{:g}', d)}); rows of $B$ {rows}, of "
        f"which the last {len(combinations)} are redundant; and $y$ = ({listed('{:g}', wide_y)})."
    )
    return measured


def _scipy_projection(B: np.ndarray, y: np.ndarray, d: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Compute the projection with SciPy from the smooth convex dual, without our solvers."""

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
    """Return when the residual passes the level, interpolated between records; `[E]`.

    The residual decays exponentially between records. NaN if a flow never reaches the level.
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
    """Return the flow at its stopping time; the last step of the integrator may end far later."""
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
    """Return the largest distance between the two paths at equal residuals; `[E]`."""
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


EXPERIMENT = Experiment(
    key="exp5",
    title="Bregman selection under commuting measurements",
    question=(
        "Which of the many interpolants does the flow select? According to the theory, it is the "
        "Bregman projection of the start, whichever rows represent the constraints. Flows of a "
        "system, with and without redundant rows, are compared with independent projections."
    ),
    section="subsec:experiment-bregman-selection",
    labels=("thm:global-convergence-bregman-projection", "lem:bregman-lyapunov-identity"),
    parameters=Selection,
    quick={},
    run=run,
    seconds=5,
    quick_seconds=5,
    panels=PANELS,
    finding=describe_finding,
    tables=TABLES,
)
