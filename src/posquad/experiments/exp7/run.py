"""Experiment 7, beyond the paper: the selection law as measurements stop commuting.

The paper proves that, for commuting measurements, the factor flow from a multiple of the identity
selects the Bregman projection, and the minimum trace as the multiple shrinks. This experiment
rotates the eigenbases of the measurements against each other, and measures how far the limit of the
full matrix flow is from the prediction of the law. It reports observations and claims no theorem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import scipy
import torch
from torch import Tensor

from posquad.core.arrays import positive_number
from posquad.core.errors import DomainError, MissingExtraError
from posquad.core.status import Status
from posquad.dynamics import gradient_flow
from posquad.experiments.exp7.panels import PANELS, TABLES, describe_finding
from posquad.experiments.framework import (
    Experiment,
    Measured,
    Parameters,
    ProgressCallback,
    own_parameter,
)
from posquad.experiments.problems import stacked
from posquad.problems import Dense, LeastSquares
from posquad.selection import (
    bregman_projection,
    commutator_size,
    dialed_family,
    distance_to_minimum_trace,
    joint_spectral_reduction,
    minimum_trace_interpolant,
    von_neumann_projection,
)

__all__ = ["EXPERIMENT", "Dial", "log_interval", "run"]


@dataclass(frozen=True)
class Dial(Parameters):
    """All parameters are our choice; the paper has no such experiment."""

    dials: tuple[float, ...] = own_parameter(
        (0.0, 0.1, 0.3, 0.6, 1.0), "0: commuting measurements, 1: generic eigenbases"
    )
    epsilons: tuple[float, ...] = own_parameter(
        (0.3, 0.1, 0.03), r"the flow starts at $\varepsilon^2 I$"
    )
    seeds: int = own_parameter(20, "number of independent problems")
    n: int = own_parameter(4, "number of measurements")
    d: int = own_parameter(5, "dimension; the factor is square")
    residual_tolerance: float = own_parameter(
        1e-7, r"a flow ends when $\|A(Q) - y\|$ is below this, with $\|y\| = 1$"
    )
    t_final: float = own_parameter(1e5, "largest time of a flow")
    max_steps: int = own_parameter(50_000, "maximum number of integrator steps")


def run(parameters: Dial, progress: ProgressCallback) -> Measured:
    """Run the full matrix factor flow over dials, scales and seeds, and measure where it ends.

    Each problem has n measurements (`dialed_family`) of a random positive definite matrix, scaled
    so that ||y|| = 1. All scales and seeds of a dial are one batched flow. The same problems are
    used at every dial; different seeds of the experiment share none.

    >>> small = Dial(dials=(0.0, 1.0), epsilons=(0.1,), seeds=2, n=2, d=3)
    >>> bool(run(small, lambda fraction: None)["to_bregman_max"] < 1e-4)
    True
    """
    q = parameters
    if q.seeds < 2:
        raise DomainError("exp7.seeds", expected="at least 2, for intervals", got=str(q.seeds))
    tolerance = positive_number("residual_tolerance", q.residual_tolerance)
    scales = torch.tensor([positive_number("epsilons", e) for e in q.epsilons], dtype=torch.float64)
    measured = Measured()
    measured.set_coordinates("dial", q.dials)
    measured.set_coordinates("epsilon", scales)
    measured.set_coordinates("seed", np.arange(q.seeds))
    rows, commutators = [], []
    for position, dial in enumerate(q.dials):
        A, y = _problems(q, dial)
        eye = torch.eye(q.d, dtype=torch.float64)
        flow = gradient_flow(
            LeastSquares(Dense(A), y),
            scales[:, None, None, None] * eye,
            t_final=q.t_final,
            times=torch.tensor([q.t_final], dtype=torch.float64),
            rtol=1e-7,
            loss_tolerance=tolerance**2 / (2 * q.n),
            max_steps=q.max_steps,
        )
        Q = flow.U @ flow.U.mT  # [E, K, d, d]
        start = scales[:, None, None].square() * eye
        distances = [_distances(A[k], y[k], Q[:, k], start) for k in range(q.seeds)]
        rows.append({name: values.T for name, values in stacked(distances).items()})
        rows[-1]["converged"] = np.array(
            [[s is Status.LOSS_REACHED for s in row] for row in cast(list, flow.status)]
        )
        commutators.append(commutator_size(A).numpy() if q.n > 1 else np.zeros(q.seeds))
        if dial == 0:
            bregman = np.stack([_to_bregman(A[k], y[k], Q[:, k], scales) for k in range(q.seeds)])
            measured.add("to_bregman", bregman.T, "epsilon", "seed")
            measured.add("to_bregman_max", bregman.max())
        progress((position + 1) / len(q.dials))
    for name, values in stacked(rows).items():
        measured.add(name, values, "dial", "epsilon", "seed")
    measured.add("commutators", np.stack(commutators), "dial", "seed")
    for name in ("to_von_neumann", "to_minimum_trace"):
        for part, end in zip(("mean", "low", "high"), log_interval(measured[name]), strict=True):
            measured.add(f"{name}_{part}", 10**end, "dial", "epsilon")
    # Whether the distance intervals at all dials lie above the one at dial 0.
    low, high = measured["to_von_neumann_low"], measured["to_von_neumann_high"]
    measured.add("leaves_the_law", bool((low[1:] > high[:1]).all()))
    measured.remarks.append(_statement(measured))
    return measured


def _problems(q: Dial, dial: float) -> tuple[Tensor, Tensor]:
    """Draw families `[K, n, d, d]` and unit responses `[K, n]`, with the same targets."""
    families, responses = [], []
    for seed in range(q.seed * q.seeds, (q.seed + 1) * q.seeds):
        A = dialed_family(q.n, q.d, dial, seed=seed)
        rng = torch.Generator().manual_seed(10_000 + seed)
        G = torch.randn(q.d, q.d, generator=rng, dtype=torch.float64)
        y = torch.einsum("nij,ij->n", A, G @ G.mT)
        families.append(A)
        responses.append(y / y.norm())
    return torch.stack(families), torch.stack(responses)


def _distances(A: Tensor, y: Tensor, Q: Tensor, start: Tensor) -> dict[str, np.ndarray]:
    """Measure how far the limits `Q[E, d, d]` of the flows of one problem are from the law."""
    least = _or_unknown(lambda: minimum_trace_interpolant(A, y).value)
    far = [_or_unknown(lambda P=P: distance_to_minimum_trace(A, y, P)) for P in Q]
    trace = Q.diagonal(dim1=-2, dim2=-1).sum(-1)
    return {
        "to_von_neumann": _relative(Q, von_neumann_projection(A, y, start).q),
        "to_minimum_trace": np.array(far) / torch.linalg.matrix_norm(Q).numpy(),
        "trace_gaps": (trace / least - 1).numpy(),
    }


def _to_bregman(A: Tensor, y: Tensor, Q: Tensor, scales: Tensor) -> np.ndarray:
    """Return the distances to the Bregman projections, for commuting measurements; `[E]`."""
    reduction = joint_spectral_reduction(A)
    q0 = scales[:, None].square() * torch.ones(len(reduction.multiplicities)).double()
    q = bregman_projection(reduction.B, y, reduction.multiplicities, q0).q
    return _relative(Q, reduction.predictor(q))


def _or_unknown(function: Callable[[], float]) -> float:
    """Call a function that needs the semidefinite solver; NaN if none is installed."""
    try:
        return function()
    except MissingExtraError:
        return float("nan")


def _relative(Q: Tensor, other: Tensor) -> np.ndarray:
    return (torch.linalg.matrix_norm(Q - other) / torch.linalg.matrix_norm(Q)).numpy()


def log_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean over seeds of log10 of the values, and the ends of its 95% t-interval.

    >>> [round(float(end), 2) for end in log_interval(np.array([0.1, 0.01, 0.001]))]
    [-2.0, -4.48, 0.48]
    """
    logs = np.log10(np.maximum(values, 1e-17))
    known = np.isfinite(logs)  # leave out distances that could not be computed
    count = known.sum(-1)
    count = np.where(count < 2, np.nan, count)  # too few for a mean with its interval
    logs = np.where(known, logs, 0.0)
    mean = logs.sum(-1) / count
    spread = np.where(known, (logs - mean[..., None]) ** 2, 0.0).sum(-1) / (count - 1)
    half = scipy.stats.t.ppf(0.975, count - 1) * np.sqrt(spread / count)
    return mean, mean - half, mean + half


def _statement(measured: Measured) -> str:
    """Describe the result in words."""
    typical, gap = measured["to_von_neumann_mean"], measured["to_minimum_trace_mean"]
    dials, scales, converged = measured["dial"], measured["epsilon"], measured["converged"]
    lines = []
    if "to_bregman" in measured.quantities:
        lines.append(
            f"At dial 0 the limit of the flow is within {measured['to_bregman_max']:.1e} of the "
            f"Bregman projection (relative distance) in all {measured['to_bregman'].size} runs."
        )
    if not converged.all():
        lines.append(
            f"{int((~converged).sum())} of {converged.size} flows did not reach "
            "their residual tolerance; their last points are used."
        )
    lines.append(
        f"At dial {dials[-1]:g} its typical distance from the von Neumann projection is "
        rf"{typical[-1, 0]:.1e} at $\varepsilon = {scales[0]:g}$ and {typical[-1, -1]:.1e} at "
        f"{scales[-1]:g}."
    )
    if np.isnan(measured["to_minimum_trace"]).all():
        lines.append("Minimum traces are unknown: no semidefinite solver is installed.")
    else:
        lines.append(
            f"Its typical distance to the minimum-trace set there goes from {gap[-1, 0]:.1e} to "
            f"{gap[-1, -1]:.1e}; at dial {dials[0]:g} from {gap[0, 0]:.1e} to {gap[0, -1]:.1e}."
        )
    return " ".join(lines)


EXPERIMENT = Experiment(
    key="exp7",
    title="Beyond the paper: the commutativity dial",
    question=(
        "The selection law is proved for commuting measurements. How much of it remains when their "
        "eigenbases differ? Full matrix flows are compared with the von Neumann projection, the "
        "natural analogue, and with the minimum-trace set. This is a measurement, not a theorem."
    ),
    section="",
    labels=("thm:global-convergence-bregman-projection",),
    parameters=Dial,
    quick={"seeds": 4, "dials": (0.0, 1.0), "epsilons": (0.3, 0.1)},
    run=run,
    seconds=55,
    quick_seconds=6,
    panels=PANELS,
    finding=describe_finding,
    tables=TABLES,
)
