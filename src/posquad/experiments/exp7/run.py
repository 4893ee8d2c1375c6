"""Experiment 7, beyond the paper: the selection law as measurements stop commuting.

The paper proves that, for commuting measurements, the factor flow from a multiple of the identity
selects the Bregman projection, and the minimum trace as the multiple shrinks. This experiment
rotates the eigenbases of the measurements against each other, and measures how far the limit of the
full matrix flow is from the prediction of the law: an observation, not a theorem. Near dial 0 there
is a theorem of our own, the first-order law (`docs/noncommuting.md`), which is measured as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
import torch
from torch import Tensor

from posquad.core.arrays import positive_number
from posquad.core.errors import DomainError
from posquad.experiments.exp7.candidates import CANDIDATES
from posquad.experiments.exp7.flows import flow_limits
from posquad.experiments.exp7.law import (
    ACCURACY,
    System,
    add_departures,
    add_growth,
    draw_batch,
    draw_system,
    law_families,
    select,
    to_minimum_trace,
)
from posquad.experiments.exp7.panels import PANELS, TABLES, describe_finding
from posquad.experiments.exp7.words import law_remarks
from posquad.experiments.framework import (
    Experiment,
    Measured,
    Parameters,
    ProgressCallback,
    own_parameter,
)
from posquad.experiments.problems import stacked
from posquad.selection import (
    bregman_projection,
    commutator_size,
    dialed_family,
    joint_spectral_reduction,
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
    law_dials: tuple[float, ...] = own_parameter(
        (0.003, 0.01, 0.03, 0.1), "small dials at which the first-order law is tested"
    )
    law_starts: tuple[float, ...] = own_parameter(
        (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8),
        r"sizes $\delta$ of the starts $\delta I$ for which $\|R\|$ is computed",
    )
    law_problems: int = own_parameter(
        4, "number of problems on which the law is tested, at most `exp7.seeds` of them"
    )


def run(parameters: Dial, progress: ProgressCallback) -> Measured:
    """Run the full matrix factor flow over dials, scales and seeds, and measure where it ends.

    Each problem has n measurements (`dialed_family`) of a random positive definite matrix, scaled
    so that ||y|| = 1. The same problems are used at every dial; different seeds of the experiment
    share none. The first-order law is compared with further flows at small dials.

    >>> small = Dial(dials=(0.0, 1.0), epsilons=(0.1,), seeds=2, n=1, d=2, law_problems=1)
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
    problems = [_problems(q, dial) for dial in q.dials]
    A, y = (torch.stack(parts) for parts in zip(*problems, strict=True))  # [S, K, n, d, d]
    systems = _law_systems(q)
    main = draw_batch(A, y, scales)
    near = draw_batch(*law_families(systems, q.law_dials), scales) if systems else main
    both = [main, near] if systems else [main]
    U, reached = flow_limits(
        *(torch.cat(parts) for parts in zip(*(batch[:3] for batch in both), strict=True)),
        rtol=ACCURACY,
        residual=tolerance,
        t_final=q.t_final,
        max_steps=q.max_steps,
        progress=lambda part: progress(0.7 * part),
    )
    Q = (U @ U.mT)[: len(main.U)].view(*main.sizes, q.d, q.d)
    converged = reached[: len(main.U)].view(main.sizes)
    rows = [_distances(A[i], y[i], Q[i], scales) for i in range(len(q.dials))]
    for name, values in stacked(rows).items():
        measured.add(name, values, "dial", "epsilon", "seed")
    measured.add("converged", converged, "dial", "epsilon", "seed")
    commutators = commutator_size(A).numpy() if q.n > 1 else np.zeros(A.shape[:2])
    measured.add("commutators", commutators, "dial", "seed")
    if 0 in q.dials:
        i = q.dials.index(0)
        bregman = [_to_bregman(A[i, k], y[i, k], Q[i, :, k], scales) for k in range(q.seeds)]
        measured.add("to_bregman", np.stack(bregman, -1), "epsilon", "seed")
        measured.add("to_bregman_max", np.max(bregman))
    for name in ("to_von_neumann", "to_minimum_trace"):
        for part, end in zip(("mean", "low", "high"), log_interval(measured[name]), strict=True):
            measured.add(f"{name}_{part}", 10**end, "dial", "epsilon")
    # Whether the distance intervals at all dials lie above the one at dial 0.
    low, high = measured["to_von_neumann_low"], measured["to_von_neumann_high"]
    measured.add("leaves_the_law", bool((low[1:] > high[:1]).all()))
    measured.remarks.append(_statement(measured))
    progress(0.75)
    if systems:
        _add_law(q, measured, systems, scales, U[len(main.U) :], progress)
    else:
        measured.remarks.append(
            "The first-order law is not measured: it needs d >= 2 and at most d measurements."
        )
    progress(1.0)
    return measured


def _law_systems(q: Dial) -> list[System]:
    """The problems on which the first-order law is tested; none where it does not apply."""
    if not all(0 < dial <= 1 for dial in q.law_dials):
        expected = "numbers in (0, 1]"
        raise DomainError("exp7.law_dials", expected=expected, got=repr(q.law_dials))
    if q.n > q.d or q.d < 2:
        return []
    first = q.seed * q.seeds
    problems = range(first, first + min(q.law_problems, q.seeds))
    return [draw_system(q.n, q.d, seed) for seed in problems]


def _add_law(
    q: Dial,
    measured: Measured,
    systems: list[System],
    scales: Tensor,
    U: Tensor,
    progress: ProgressCallback,
) -> None:
    """Compare the flows near dial 0 with the first-order law."""
    measured.set_coordinates("law dial", q.law_dials)
    measured.set_coordinates("start", [positive_number("law_starts", e) for e in q.law_starts])
    measured.set_coordinates("problem", np.arange(len(systems)))
    measured.set_coordinates("candidate", np.arange(len(CANDIDATES)))
    starts = torch.cat([scales.square(), torch.tensor(q.law_starts, dtype=torch.float64)])
    laws = select(systems, starts, lambda part: progress(0.75 + 0.15 * part))
    add_departures(
        measured, systems, q.law_dials, scales, laws, U, t_final=q.t_final, max_steps=q.max_steps,
        progress=lambda part: progress(0.9 + 0.1 * part),
    )  # fmt: skip
    add_growth(measured, systems, q.law_starts, laws)
    measured.remarks.extend(law_remarks(measured))


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


def _distances(A: Tensor, y: Tensor, Q: Tensor, scales: Tensor) -> dict[str, np.ndarray]:
    """Measure how far the limits `Q[E, K, d, d]` of one dial are from the law, `[E, K]` each."""
    start = scales.square()[:, None, None] * torch.eye(Q.shape[-1], dtype=torch.float64)
    rows = []
    for k in range(len(A)):
        limits = Q[:, k]
        far, least = to_minimum_trace(A[k], y[k], limits)
        rows.append(
            {
                "to_von_neumann": _relative(limits, von_neumann_projection(A[k], y[k], start).q),
                "to_minimum_trace": far / torch.linalg.matrix_norm(limits).numpy(),
                "trace_gaps": (limits.diagonal(dim1=-2, dim2=-1).sum(-1) / least - 1).numpy(),
            }
        )
    return {name: values.T for name, values in stacked(rows).items()}


def _to_bregman(A: Tensor, y: Tensor, Q: Tensor, scales: Tensor) -> np.ndarray:
    """Return the distances to the Bregman projections, for commuting measurements; `[E]`."""
    reduction = joint_spectral_reduction(A)
    q0 = scales[:, None].square() * torch.ones(len(reduction.multiplicities)).double()
    q = bregman_projection(reduction.B, y, reduction.multiplicities, q0).q
    return _relative(Q, reduction.predictor(q))


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
        "natural analogue, and with the minimum-trace set: a measurement, not a theorem. Near "
        "dial 0 a theorem of our own gives the departure to first order; further flows test it."
    ),
    section="",
    labels=("thm:global-convergence-bregman-projection",),
    parameters=Dial,
    quick={"seeds": 4, "dials": (0.0, 1.0), "epsilons": (0.3, 0.1), "law_problems": 1},
    run=run,
    seconds=42,
    quick_seconds=10,
    panels=PANELS,
    finding=describe_finding,
    tables=TABLES,
)
