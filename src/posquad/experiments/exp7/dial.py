"""The commutativity dial: how the selection law fails when measurements stop commuting.

The paper proves that, for commuting measurements, the factor flow from a multiple of the identity
selects the Bregman projection, and the minimum trace as the multiple shrinks. This experiment
rotates the eigenbases of the measurements against each other, and measures how far the limit of the
full matrix flow is from the prediction of the law. It reports observations and claims no theorem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import scipy
import torch
from torch import Tensor

from posquad.core.arrays import positive_integer, positive_number
from posquad.core.errors import DomainError, MissingExtraError
from posquad.core.results import Result
from posquad.core.status import Status
from posquad.dynamics import gradient_flow
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

__all__ = ["DialResult", "dial_experiment"]


@dataclass(frozen=True, eq=False, repr=False)
class DialResult(Result):
    """Measurements over dials (D), scales (E) and seeds (K); distances relative to ||Q||_F."""

    dials: np.ndarray  # [D]
    epsilons: np.ndarray  # [E]  the flow starts at epsilon^2 I
    commutators: np.ndarray  # [D, K]  normalised size, see `commutator_size`
    to_von_neumann: np.ndarray  # [D, E, K]  distance to the von Neumann projection
    to_minimum_trace: np.ndarray  # [D, E, K]  distance to the minimum-trace set
    trace_gaps: np.ndarray  # [D, E, K]  tr Q / tau* - 1
    to_bregman: np.ndarray  # [E, K]  at dial 0: distance to the Bregman projection
    converged: np.ndarray  # [D, E, K]  the flow reached its residual tolerance
    parameters: dict[str, Any]

    def interval(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the mean over seeds of log10 of the values, and the ends of its 95% t-interval."""
        logs = np.log10(np.maximum(values, 1e-17))
        known = np.isfinite(logs)  # leave out distances that could not be computed
        count = known.sum(-1)
        count = np.where(count < 2, np.nan, count)  # too few for a mean with its interval
        logs = np.where(known, logs, 0.0)
        mean = logs.sum(-1) / count
        spread = np.where(known, (logs - mean[..., None]) ** 2, 0.0).sum(-1) / (count - 1)
        half = scipy.stats.t.ppf(0.975, count - 1) * np.sqrt(spread / count)
        return mean, mean - half, mean + half

    def statement(self) -> str:
        """Describe the result in words."""
        typical = 10 ** self.interval(self.to_von_neumann)[0]  # [D, E]
        gap = 10 ** self.interval(self.to_minimum_trace)[0]
        first, last = self.epsilons[0], self.epsilons[-1]
        lines = []
        if np.isfinite(self.to_bregman).all():
            lines.append(
                f"At dial 0 the limit of the flow is within {self.to_bregman.max():.1e} of the "
                f"Bregman projection (relative distance) in all {self.to_bregman.size} runs."
            )
        if not self.converged.all():
            lines.append(
                f"{int((~self.converged).sum())} of {self.converged.size} flows did not reach "
                "their residual tolerance; their last points are used."
            )
        lines += [
            f"At dial {self.dials[-1]:g} its typical distance from the von Neumann projection is "
            f"{typical[-1, 0]:.1e} at epsilon = {first:g} and {typical[-1, -1]:.1e} at {last:g}.",
        ]
        if np.isnan(self.to_minimum_trace).all():
            lines.append("Minimum traces are unknown: no semidefinite solver is installed.")
            return " ".join(lines)
        lines += [
            f"Its typical distance to the minimum-trace set there goes from {gap[-1, 0]:.1e} to "
            f"{gap[-1, -1]:.1e}; at dial {self.dials[0]:g} from {gap[0, 0]:.1e} to "
            f"{gap[0, -1]:.1e}.",
        ]
        return " ".join(lines)


def dial_experiment(
    dials: Sequence[float] = (0.0, 0.1, 0.3, 0.6, 1.0),
    epsilons: Sequence[float] = (0.3, 0.1, 0.03),
    *,
    seeds: int = 20,
    n: int = 4,
    d: int = 5,
    seed: int = 0,
    residual_tolerance: float = 1e-7,
    t_final: float = 1e5,
    max_steps: int = 50_000,
    progress: Callable[[int, int], None] | None = None,
) -> DialResult:
    """Run the full matrix factor flow over dials, scales and seeds, and measure where it ends.

    Each problem has n measurements (`dialed_family`) of a random positive definite matrix, scaled
    so that ||y|| = 1; the flow starts at `U = epsilon I` with r = d and runs until
    `||A(Q) - y|| <= residual_tolerance`. All scales and seeds of a dial are one batched flow.
    `progress` is called with (finished dials, all dials). The seed of problem k is `seed + k`, at
    every dial.

    >>> result = dial_experiment((0.0, 1.0), (0.1,), seeds=2, n=2, d=3)
    >>> result.to_von_neumann.shape, bool(result.to_bregman.max() < 1e-4)
    ((2, 1, 2), True)
    """
    seeds, n, d = (positive_integer(k, v) for k, v in (("seeds", seeds), ("n", n), ("d", d)))
    if seeds < 2:
        raise DomainError("seeds", expected="at least 2, for intervals", got=str(seeds))
    tolerance = positive_number("residual_tolerance", residual_tolerance)
    scales = torch.tensor([positive_number("epsilons", e) for e in epsilons], dtype=torch.float64)
    rows, bregman = [], np.full((len(scales), seeds), np.nan)
    for position, dial in enumerate(dials):
        A, y = _problems(n, d, dial, range(seed, seed + seeds))
        flow = gradient_flow(
            LeastSquares(Dense(A), y),
            scales[:, None, None, None] * torch.eye(d, dtype=torch.float64),
            t_final=t_final,
            times=torch.tensor([t_final], dtype=torch.float64),
            rtol=1e-7,
            loss_tolerance=tolerance**2 / (2 * n),
            max_steps=max_steps,
        )
        Q, outcomes = flow.U @ flow.U.mT, cast(list, flow.status)  # [E, K, d, d], [E][K]
        row = {name: np.empty((len(scales), seeds)) for name in _MEASURED}
        for k in range(seeds):
            least = _or_unknown(_least_trace, A[k], y[k])
            start = scales[:, None, None].square() * torch.eye(d, dtype=torch.float64)
            projected = von_neumann_projection(A[k], y[k], start).q
            row["to_von_neumann"][:, k] = _relative(Q[:, k], projected)
            row["trace_gaps"][:, k] = Q[:, k].diagonal(dim1=-2, dim2=-1).sum(-1) / least - 1
            for e in range(len(scales)):
                distance = _or_unknown(distance_to_minimum_trace, A[k], y[k], Q[e, k])
                row["to_minimum_trace"][e, k] = distance / float(torch.linalg.norm(Q[e, k]))
                row["converged"][e, k] = outcomes[e][k] is Status.LOSS_REACHED
            if dial == 0:
                reduction = joint_spectral_reduction(A[k])
                q0 = scales[:, None].square() * torch.ones(len(reduction.multiplicities)).double()
                q = bregman_projection(reduction.B, y[k], reduction.multiplicities, q0).q
                bregman[:, k] = _relative(Q[:, k], reduction.predictor(q))
        row["commutators"] = commutator_size(A).numpy() if n > 1 else np.zeros(seeds)
        rows.append(row)
        if progress is not None:
            progress(position + 1, len(dials))
    measured: dict[str, Any] = stacked(rows)
    measured["converged"] = measured["converged"].astype(bool)
    return DialResult(
        **measured,
        dials=np.array(dials, dtype=float),
        epsilons=scales.numpy(),
        to_bregman=bregman,
        parameters={"seeds": seeds, "n": n, "d": d, "seed": seed, "t_final": t_final,
                    "residual_tolerance": tolerance, "max_steps": max_steps},
    )  # fmt: skip


_MEASURED = ("to_von_neumann", "to_minimum_trace", "trace_gaps", "converged")


def _problems(n: int, d: int, dial: float, seeds: range) -> tuple[Tensor, Tensor]:
    """Draw families `[K, n, d, d]` and unit responses `[K, n]`, with the same targets."""
    families, responses = [], []
    for seed in seeds:
        A = dialed_family(n, d, dial, seed=seed)
        rng = torch.Generator().manual_seed(10_000 + seed)
        G = torch.randn(d, d, generator=rng, dtype=torch.float64)
        y = torch.einsum("nij,ij->n", A, G @ G.mT)
        families.append(A)
        responses.append(y / y.norm())
    return torch.stack(families), torch.stack(responses)


def _least_trace(A: Tensor, y: Tensor) -> float:
    return minimum_trace_interpolant(A, y).value


def _or_unknown(function: Callable[..., float], *arguments: Tensor) -> float:
    """Call a function that needs the semidefinite solver; NaN if none is installed."""
    try:
        return function(*arguments)
    except MissingExtraError:
        return float("nan")


def _relative(Q: Tensor, other: Tensor) -> np.ndarray:
    return (torch.linalg.matrix_norm(Q - other) / torch.linalg.matrix_norm(Q)).numpy()
