"""The first-order selection law against full matrix flows near dial 0 (`docs/noncommuting.md`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

from posquad.core.errors import MissingExtraError
from posquad.experiments.exp7.candidates import CANDIDATES
from posquad.experiments.exp7.flows import flow_limits, greedy_limits
from posquad.experiments.framework import Measured, ProgressCallback
from posquad.experiments.problems import line_fit
from posquad.selection import (
    awakening_path,
    dialed_expansion,
    dialed_family,
    distance_to_minimum_trace,
    first_order_selection,
    minimum_trace_interpolant,
    von_neumann_projection,
)
from posquad.selection.families import DialExpansion
from posquad.selection.first_order import FirstOrderSelection

__all__ = [
    "ACCURACY",
    "Batch",
    "System",
    "add_departures",
    "add_growth",
    "draw_batch",
    "draw_system",
    "law_families",
    "select",
    "slope_interval",
    "to_minimum_trace",
]

ACCURACY = 1e-9  # local error and residual of the flows; the law's error is far above it
_GREEDY = 1e-2  # relative residual at which greedy learning ends; it ends far from the limits
_FITTED = 1e-4  # starts up to this size are used to fit the exponent


class System(NamedTuple):
    """A commuting family with its derivative, and responses of a positive definite matrix."""

    seed: int
    expansion: DialExpansion
    y: Tensor  # [n], ||y|| = 1, the same at every dial


def draw_system(n: int, d: int, seed: int) -> System:
    """Draw the family of a seed and the responses at dial 0 of the experiment's target.

    >>> system = draw_system(2, 3, 0)
    >>> float(system.y.norm().round(decimals=12))
    1.0
    """
    expansion = dialed_expansion(n, d, seed=seed)
    rng = torch.Generator().manual_seed(10_000 + seed)
    G = torch.randn(d, d, generator=rng, dtype=torch.float64)
    y = expansion.D @ (expansion.V.mT @ G).square().sum(-1)
    return System(seed, expansion, y / y.norm())


class Batch(NamedTuple):
    """Flows of several dials S, scales E and problems K, in one batch of S E K."""

    A: Tensor  # [S E K, n, d, d]
    y: Tensor  # [S E K, n]
    U: Tensor  # [S E K, d, d]  the starts
    sizes: tuple[int, int, int]  # S, E, K


def draw_batch(A: Tensor, y: Tensor, scales: Tensor) -> Batch:
    """Start every problem `A[S, K, n, d, d]`, `y[S, K, n]` at every scale times the identity.

    >>> batch = draw_batch(torch.zeros(2, 3, 1, 4, 4), torch.zeros(2, 3, 1), torch.ones(5))
    >>> batch.U.shape, batch.sizes
    (torch.Size([30, 4, 4]), (2, 5, 3))
    """
    count, problems, n, d, _ = A.shape
    sizes = (count, len(scales), problems)
    start = scales[:, None, None, None] * torch.eye(d, dtype=A.dtype)
    return Batch(
        A[:, None].expand(*sizes, n, d, d).flatten(0, 2),
        y[:, None].expand(*sizes, n).flatten(0, 2),
        start.expand(*sizes, d, d).flatten(0, 2),
        sizes,
    )


def law_families(systems: list[System], dials: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """The families of all systems at these dials, `[S, K, n, d, d]`, and responses `[S, K, n]`.

    >>> A, y = law_families([draw_system(2, 3, 0)], (0.1, 0.2))
    >>> A.shape, bool((y[0] == y[1]).all())
    (torch.Size([2, 1, 2, 3, 3]), True)
    """
    n, d = systems[0].expansion.D.shape
    families = [torch.stack([dialed_family(n, d, s, seed=k.seed) for k in systems]) for s in dials]
    return torch.stack(families), torch.stack([k.y for k in systems]).expand(len(dials), -1, -1)


def select(
    systems: list[System], starts: Tensor, progress: ProgressCallback
) -> list[FirstOrderSelection]:
    """The first-order law of every system for all starts `size * I`, `starts[E]`.

    >>> (law,) = select([draw_system(1, 2, 0)], torch.ones(3), lambda fraction: None)
    >>> law.R.shape
    torch.Size([3, 2, 2])
    """
    found = []
    for k, (_, (_, D, B), y) in enumerate(systems):
        q0 = starts.to(D)[:, None] * torch.ones_like(D[0])
        found.append(first_order_selection(D, B, y, q0))
        progress((k + 1) / len(systems))
    return found


def add_departures(
    measured: Measured,
    systems: list[System],
    dials: tuple[float, ...],
    scales: Tensor,
    laws: list[FirstOrderSelection],
    U: Tensor,
    *,
    t_final: float,
    max_steps: int,
    progress: ProgressCallback,
) -> None:
    """Measure how the limit departs from the commuting one, and what explains it.

    `U[S E K, d, d]` are points on the flows of `law_families` near their limits. The laws are those
    of the systems, whose first E starts are the squares of the scales. The dimensions "law dial",
    "epsilon", "problem" and "candidate" of `measured` must be set.

    >>> from posquad.experiments.exp7.run import Dial, run
    >>> little = {"seeds": 2, "n": 1, "d": 2, "law_problems": 1, "law_starts": (0.1,)}
    >>> measured = run(Dial(dials=(0.0,), epsilons=(0.5,), **little), lambda fraction: None)
    >>> bool((measured["law_error"] < measured["departure"]).all())
    True
    """
    A, y = law_families(systems, dials)
    d = A.shape[-1]
    batch = draw_batch(A, y, scales)
    sizes, start = batch.sizes, batch.U.view(*batch.sizes, d, d)
    U, done = flow_limits(
        batch.A,
        batch.y,
        U,
        rtol=ACCURACY,
        residual=ACCURACY,
        t_final=t_final,
        max_steps=max_steps,
        progress=lambda part: progress(0.7 * part),
    )
    Q = (U @ U.mT).view(*sizes, d, d)
    greedy, ranks = greedy_limits(
        A.flatten(0, 1), y.flatten(0, 1), rtol=_GREEDY / 1000, residual=_GREEDY, t_final=t_final,
        max_steps=max_steps,
    )  # fmt: skip
    progress(0.9)
    greedy = greedy.view(len(dials), len(systems), d, d)
    far = {name: np.full(sizes, np.nan) for name in ("nothing", *CANDIDATES)}
    predicted = {name: np.full(sizes, np.nan) for name in ("departure", "gap")}
    for k, system in enumerate(systems):
        V, law, few = system.expansion.V, laws[k], len(scales)
        matrices = (torch.diag_embed(law.q), law.R, law.gap)
        base, R, gap = (V @ M[:few] @ V.mT for M in matrices)
        for i, s in enumerate(dials):
            projections = von_neumann_projection(A[i, k], system.y, start[i, :, k].square()).q
            points = {
                "nothing": base,
                "von Neumann projection": projections,
                "first-order law": base + s * R,
                "corrected projection": projections + s * gap,
                "greedy low-rank learning": greedy[i, k],
            }
            for name, C in points.items():
                far[name][i, :, k] = torch.linalg.matrix_norm(Q[i, :, k] - C)
            far["minimum trace"][i, :, k] = to_minimum_trace(A[i, k], system.y, Q[i, :, k])[0]
            predicted["departure"][i, :, k] = s * torch.linalg.matrix_norm(R)
            predicted["gap"][i, :, k] = s * torch.linalg.matrix_norm(gap)
    dims = ("law dial", "epsilon", "problem")
    named = {
        "departure": far["nothing"],
        "law_error": far["first-order law"],
        "von_neumann_gap": far["von Neumann projection"],
    }
    for name, values in named.items():
        measured.add(name, values, *dims)
        if len(dials) > 1:
            measured.add(f"{name}_order", _order(dials, values), "epsilon", "problem")
    for name, values in predicted.items():
        measured.add(f"predicted_{name}", values, *dims)
    shares = [1 - np.square(far[name] / far["nothing"]) for name in CANDIDATES]
    measured.add("share", np.stack(shares), "candidate", *dims)
    measured.add("greedy_rank", ranks.view(len(dials), -1), "law dial", "problem")
    measured.add("law_flows_converged", done.view(*sizes), *dims)
    progress(1.0)


def add_growth(
    measured: Measured,
    systems: list[System],
    sizes: tuple[float, ...],
    laws: list[FirstOrderSelection],
) -> None:
    """Measure `||R||_F` from the starts `size * I`, and how fast it grows as they shrink.

    The laws are those of the systems; the sizes are their last starts. The dimensions "start" and
    "problem" of `measured` must be set.

    >>> measured = Measured()
    >>> measured.set_coordinates("start", [0.1])
    >>> measured.set_coordinates("problem", [0])
    >>> systems = [draw_system(1, 2, 0)]
    >>> laws = select(systems, torch.tensor([0.1]), lambda fraction: None)
    >>> add_growth(measured, systems, (0.1,), laws)
    >>> measured["exponent_predicted"]
    array([0.])
    """
    R = np.stack([torch.linalg.matrix_norm(law.R[-len(sizes) :]) for law in laws], -1)
    paths = [awakening_path(system.expansion.D, system.y) for system in systems]
    predicted = [max(0.0, float(path.exponents.max())) for path in paths]
    measured.add("R_norm", R, "start", "problem")
    measured.add("exponent_predicted", predicted, "problem")
    by_size = np.argsort(sizes)  # the smallest start first
    if len(sizes) > 1:
        last = by_size[:2]
        local = -np.diff(np.log(R[last]), axis=0)[0] / np.diff(np.log(np.array(sizes)[last]))[0]
        measured.add("exponent_last", local, "problem")
        measured.add("exponent_gap", np.abs(local - predicted), "problem")
    fitted = np.array(sizes) <= _FITTED
    if fitted.sum() > 2:
        x = -np.log(np.array(sizes)[fitted])
        for part, values in zip(
            ("", "_low", "_high"), slope_interval(x, np.log(R[fitted]).T), strict=True
        ):
            measured.add(f"exponent{part}", values, "problem")


def to_minimum_trace(A: Tensor, y: Tensor, Q: Tensor) -> tuple[np.ndarray, float]:
    """Distances from `Q[E, d, d]` to the minimum-trace set, and the minimum trace.

    NaN if no semidefinite solver is installed. The minimum is computed once for all Q.

    >>> Q = torch.diag_embed(torch.tensor([[2.0, 1.0]], dtype=torch.float64))
    >>> far, value = to_minimum_trace(torch.eye(2)[None].double(), 2 * torch.ones(1).double(), Q)
    >>> far.round(6), round(value, 6)
    (array([0.707107]), 2.0)
    """
    try:
        least = minimum_trace_interpolant(A, y)
    except MissingExtraError:
        return np.full(len(Q), np.nan), float("nan")
    far = [distance_to_minimum_trace(A, y, P, least=least) for P in Q]
    return np.array(far), least.value


def slope_interval(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fit lines along the last axis; return their slopes and the ends of the 95% t-intervals.

    >>> [round(float(v), 3) for v in slope_interval(np.arange(3.0), np.array([0.0, 1.0, 4.0]))]
    [2.0, -5.336, 9.336]
    """
    slope, intercept, _ = line_fit(x, y)
    left = y - intercept[..., None] - slope[..., None] * x
    free, spread = len(x) - 2, np.square(x - x.mean()).sum()
    half = np.sqrt(np.square(left).sum(-1) / free / spread) * scipy.stats.t.ppf(0.975, free)
    return slope, slope - half, slope + half


def _order(dials: tuple[float, ...], values: np.ndarray) -> np.ndarray:
    """The order in the dial between the two smallest dials, along the first axis."""
    first, second = np.argsort(dials)[:2]
    return np.log(values[second] / values[first]) / np.log(dials[second] / dials[first])
