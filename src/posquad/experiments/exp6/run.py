"""Experiment 6: minimum trace, entropic tie-breaking and finite steps (section 5.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from posquad.core.errors import MissingExtraError
from posquad.core.status import Status
from posquad.experiments.exp6.panels import PANELS, TABLES, describe_finding
from posquad.experiments.framework import (
    Experiment,
    Measured,
    Parameters,
    ProgressCallback,
    own_parameter,
    paper_parameter,
)
from posquad.experiments.problems import gaussian, line_fit
from posquad.selection import (
    bregman_projection,
    check_trace_bound,
    commuting_family,
    descent_limit,
    joint_spectral_reduction,
    minimum_trace,
    minimum_trace_interpolant,
    trace_gap_bound,
)

__all__ = ["EXPERIMENT", "MinimumTraceBias", "run"]


@dataclass(frozen=True)
class MinimumTraceBias(Parameters):
    """The system from the paper; the scales and the windows of the fits are our choice."""

    B: tuple[tuple[float, ...], ...] = paper_parameter(
        ((1.0, 1.0, 1.0, 0.0), (0.0, 0.0, 1.0, 1.0)), "reduced measurements, one row each"
    )
    y: tuple[float, ...] = paper_parameter((1.0, 0.3), "responses")
    multiplicities: tuple[int, ...] = paper_parameter((1, 1, 2, 3), "block sizes $d_a$")
    epsilons: tuple[float, ...] = own_parameter(
        (0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03, 0.02, 0.01, 0.005),
        "scales of the start (the paper uses twelve between 0.7 and 0.005)",
    )
    tie_window: int = own_parameter(
        7, "number of smallest scales in the fit of the distance to the entropic point"
    )
    step_epsilon: float = paper_parameter(0.2, "scale of the start of the finite-step runs")
    etas: tuple[float, ...] = paper_parameter(
        tuple(2.0**-k for k in range(1, 9)), "step sizes of the descent"
    )
    step_window: int = own_parameter(
        6, "number of smallest steps in the fit of the finite-step error"
    )
    samples: int = own_parameter(400, "number of random positive semidefinite interpolants")
    sample_spread: float = own_parameter(
        2.0, "standard deviation of the log-normal points whose projections give the block traces"
    )


def run(parameters: MinimumTraceBias, progress: ProgressCallback) -> Measured:
    """Measure projections over scales, limits over steps, the dual proof and sampled interpolants.

    >>> run(MinimumTraceBias(samples=2), lambda fraction: None)["entropic"].round(12).tolist()
    [0.35, 0.35, 0.3, 0.0]
    """
    q = parameters
    B, y, d = np.array(q.B), np.array(q.y), np.array(q.multiplicities)
    measured = Measured()
    measured.set_coordinates("epsilon", q.epsilons)
    measured.set_coordinates("eta", q.etas)
    measured.set_coordinates("block", np.arange(1, len(d) + 1))
    measured.set_coordinates("row", np.arange(1, len(y) + 1))
    measured.set_coordinates("sample", np.arange(q.samples))
    _certify(measured, B, y, d)
    progress(0.1)
    _shrink_start(measured, B, y, d, q)
    progress(0.3)
    _shrink_step(measured, B, y, d, q)
    progress(0.6)
    _sample_interpolants(measured, B, y, d, q)
    _remark(measured, B, d, q)
    return measured


def _certify(measured: Measured, B: np.ndarray, y: np.ndarray, d: np.ndarray) -> None:
    """Compute the minimum trace over the polytope, its dual proof, and the semidefinite optimum."""
    least = minimum_trace(B, y, d)
    measured.add("columns", B / d, "row", "block")  # joint eigenvalues of the measurements
    measured.add("minimum_trace", least.value)
    measured.add("entropic", least.q, "block")
    measured.add("face_sum", least.q[0] + least.q[1])
    measured.add("dual", least.dual, "row")
    measured.add("slack", least.slack, "block")
    measured.add("dual_value", y @ least.dual)
    measured.add("duality_gap", least.gap)
    measured.add("constant", least.constant)
    measured.add("face_dimension", least.face.dimension)
    measured.add("vanishing", np.isin(np.arange(len(d)), least.face.vanishing), "block")
    measured.add("dual_eigenvalues", B.T @ least.dual / d, "block")
    A = commuting_family(B, d)
    reduction = joint_spectral_reduction(A)
    inner = minimum_trace(reduction.B, y, reduction.multiplicities).q
    full = check_trace_bound(A, y, reduction.predictor(inner), least.dual)
    measured.add("dual_matrix_slack", full.slack)
    try:
        measured.add("semidefinite_value", minimum_trace_interpolant(A, y).value)
    except MissingExtraError as missing:
        measured.remarks.append(f"The semidefinite program was not solved: {missing}")


def _shrink_start(
    measured: Measured, B: np.ndarray, y: np.ndarray, d: np.ndarray, q: MinimumTraceBias
) -> None:
    """Let `epsilon -> 0`; measure the trace gap and the distance to the entropic point."""
    epsilons = np.array(q.epsilons)
    projection = bregman_projection(B, y, d, epsilons[:, None] ** 2 * np.ones(len(d)))
    points = projection.q  # [E, m]
    gap = points @ d - measured["minimum_trace"]
    distance = np.linalg.norm(points - measured["entropic"], axis=-1)
    envelope = np.array([trace_gap_bound(float(measured["constant"]), e) for e in epsilons])
    measured.add("selected", points, "epsilon", "block")
    measured.add("trace_gap", gap, "epsilon")
    measured.add("envelope", envelope, "epsilon")
    measured.add("scaled_gap_max", (-2 * np.log(epsilons) * gap).max())
    measured.add("below_envelope", bool((gap <= envelope).all()))
    # On the feasible set the trace is the dual value plus the slack times the coordinates.
    formula = measured["dual_value"] + points @ measured["slack"]
    measured.add("trace_formula_gap", abs(points @ d - formula).max())
    measured.add("infeasibility_max", abs(points @ B.T - y).max())
    measured.add("entropy_distance", distance, "epsilon")
    measured.add("distance_falls", bool((np.diff(distance[np.argsort(-epsilons)]) < 0).all()))
    _fit_powers(measured, "tie", epsilons, distance, q.tie_window)


def _shrink_step(
    measured: Measured, B: np.ndarray, y: np.ndarray, d: np.ndarray, q: MinimumTraceBias
) -> None:
    """Let `eta -> 0` at a fixed start; measure the distance from the limit of the flow."""
    etas, start = np.array(q.etas), q.step_epsilon**2 * np.ones(len(d))
    limit = descent_limit(B, y, d, np.broadcast_to(start, (len(etas), len(d))), etas)
    flow = bregman_projection(B, y, d, start).q
    error = np.linalg.norm(limit.q - flow, axis=-1)
    measured.add("step_error", error, "eta")
    interpolates = all(status is Status.LOSS_REACHED for status in cast(list, limit.status))
    measured.add("limits_positive", bool(interpolates and (limit.q > 0).all()))
    measured.add("limits_count", int(interpolates) * len(etas))
    _fit_powers(measured, "step", etas, error, q.step_window)


def _fit_powers(measured: Measured, name: str, x: np.ndarray, y: np.ndarray, window: int) -> None:
    """Fit lines in logarithms over the smallest values of x, and over all of them."""
    small = np.argsort(x)
    for key, used in ((name, small[:window]), (f"{name}_all", small)):
        slope, intercept, r2 = line_fit(np.log(x[used]), np.log(y[used]))
        measured.add(f"{key}_slope", slope)
        measured.add(f"{key}_r2", r2)
        measured.add(f"{key}_intercept", intercept)


def _sample_interpolants(
    measured: Measured, B: np.ndarray, y: np.ndarray, d: np.ndarray, q: MinimumTraceBias
) -> None:
    """Draw random positive semidefinite interpolants with entries between the blocks.

    The blocks of a Wishart matrix are scaled to the traces of a random feasible point. Scaling
    from both sides keeps it positive, and the measurements depend only on the block traces.
    """
    A = commuting_family(B, d)
    reduction = joint_spectral_reduction(A)
    blocks, sizes = reduction.projectors, reduction.multiplicities
    draws = np.stack([gaussian(q.seed, f"point {k}", len(sizes)).numpy() for k in range(q.samples)])
    points = bregman_projection(reduction.B, y, sizes, np.exp(q.sample_spread * draws)).q
    traces, residuals, smallest, coupling = [], [], [], []
    for k in range(q.samples):
        G = gaussian(q.seed, f"interpolant {k}", A.shape[-1], A.shape[-1]).numpy()
        W = G @ G.T
        have = np.einsum("aij,ij->a", blocks, W)
        S = np.einsum("a,aij->ij", np.sqrt(sizes * points[k] / have), blocks)
        Q = S @ W @ S
        check = check_trace_bound(A, y, (Q + Q.T) / 2, measured["dual"])
        inside = sum(P @ Q @ P for P in blocks)
        traces.append(check.trace)
        residuals.append(check.residual)
        smallest.append(check.smallest_eigenvalue)
        coupling.append(np.linalg.norm(Q - inside) / np.linalg.norm(Q))
    measured.add("sampled_trace", traces, "sample")
    measured.add("sampled_residual_max", max(residuals))
    measured.add("sampled_smallest", min(smallest))
    rounding = 1e-12 * max(traces)
    measured.add("sampled_valid", max(residuals) <= rounding and min(smallest) >= -rounding)
    measured.add("sampled_coupling", coupling, "sample")
    measured.add("sampled_margin", min(traces) - measured["minimum_trace"])
    measured.add("blocks_after_reduction", len(sizes))


def _remark(measured: Measured, B: np.ndarray, d: np.ndarray, q: MinimumTraceBias) -> None:
    fits = (
        ("finite-step error", "step", q.step_window, len(q.etas), "steps"),
        ("tie-breaking distance", "tie", q.tie_window, len(q.epsilons), "scales"),
    )
    for words, name, window, every, unit in fits:
        measured.remarks.append(
            f"The fit of the {words} depends on its window, which the paper does not state: the "
            f"{window} smallest {unit} give slope {measured[f'{name}_slope']:.5f} and $R^2$ "
            f"{measured[f'{name}_r2']:.6f}, all {every} give {measured[f'{name}_all_slope']:.5f} "
            f"and {measured[f'{name}_all_r2']:.6f}."
        )
    found = int(measured["blocks_after_reduction"])
    if found < len(d):
        ratios = B / d
        equal = [
            f"{a + 1} and {b + 1}"
            for a in range(len(d))
            for b in range(a + 1, len(d))
            if np.array_equal(ratios[:, a], ratios[:, b])
        ]
        measured.remarks.append(
            f"Blocks {', '.join(equal)} have equal coefficients, so the {len(d)} blocks are not "
            f"maximal joint eigenspaces: intrinsically there are {found}. A tie between these "
            "blocks lies inside one eigenspace; all numbers are in the finer coordinates."
        )


EXPERIMENT = Experiment(
    key="exp6",
    title="Minimum trace, entropic tie-breaking and finite steps",
    question=(
        "What is selected when the start shrinks to zero? According to the theory, it is a "
        "minimum-trace interpolant, and among several the one of least weighted entropy; a finite "
        "step size adds an error of first order in the step."
    ),
    section="subsec:experiment-minimum-trace-entropy",
    labels=(
        "thm:minimum-trace-limit",
        "thm:entropic-tie-breaking",
        "prop:global-psd-trace-equivalence",
        "thm:first-order-discrete-selection-error",
    ),
    parameters=MinimumTraceBias,
    quick={"samples": 100},
    run=run,
    seconds=1.5,
    quick_seconds=1.2,
    panels=PANELS,
    finding=describe_finding,
    tables=TABLES,
)
