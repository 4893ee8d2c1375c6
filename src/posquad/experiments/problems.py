"""Random problems and line fits that the experiments share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from posquad.dynamics import gradient_flow
from posquad.geometry import procrustes_distance
from posquad.problems import RankOne
from posquad.problems.objectives import Objective

__all__ = ["Decay", "flow_decay", "gaussian", "line_fit", "planted", "stacked"]


def gaussian(seed: int, what: str, *shape: int) -> Tensor:
    """Draw standard normal numbers that depend only on the seed and on the name of their use.

    >>> bool((gaussian(0, "inputs", 3) == gaussian(0, "inputs", 3)).all())
    True
    """
    digest = hashlib.sha256(f"{seed} {what}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def planted(
    seed: int, what: str, n: int, d: int, eigenvalues: Any, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw inputs `X[K, n, d]`, targets `U[K, d, r]` with these eigenvalues, responses `y[K, n]`.

    Trial k is the same for every number of trials.

    >>> X, U, y = planted(0, "example", 6, 3, [1.0, 0.5], 2)
    >>> X.shape, torch.linalg.eigvalsh(U.mT @ U)[0]
    (torch.Size([2, 6, 3]), tensor([0.5000, 1.0000], dtype=torch.float64))
    """
    spectrum = torch.as_tensor(np.asarray(eigenvalues, dtype=float))
    r = len(spectrum)
    draws = [gaussian(seed, f"{what} {k}", n + r, d) for k in range(count)]
    X = torch.stack([draw[:n] for draw in draws])
    frames = torch.linalg.qr(torch.stack([draw[n:].mT for draw in draws])).Q
    U = frames * spectrum.sqrt()
    return X, U, RankOne(X).apply_factor(U)


def line_fit(x: Any, y: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fit least-squares lines along the last axis; return slope, intercept and R^2.

    >>> [float(v) for v in line_fit([0.0, 1.0, 2.0], [1.0, 3.0, 5.0])]
    [2.0, 1.0, 1.0]
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    u, v = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    slope = (u * v).sum(-1) / (u * u).sum(-1)
    left = ((v - slope[..., None] * u) ** 2).sum(-1)
    return slope, y.mean(-1) - slope * x.mean(-1), 1 - left / (v * v).sum(-1)


class Decay(NamedTuple):
    """Distances of flows to their target, and the exponential rate fitted to them."""

    times: np.ndarray  # [..., T]
    error: np.ndarray  # [..., T]
    rate: np.ndarray  # [...]
    r2: np.ndarray  # [...]


def flow_decay(
    objective: Objective, start: Tensor, target: Tensor, *, end: float, records: int, step: float
) -> Decay:
    """Follow flows to the time `end`, by Runge-Kutta steps, and fit the rate of their approach.

    >>> from posquad.problems import PopulationRisk
    >>> U = torch.eye(2, 1, dtype=torch.float64)
    >>> decay = flow_decay(PopulationRisk(U), 1.001 * U, U, end=0.1, records=5, step=0.01)
    >>> round(float(decay.rate), 1)
    12.0
    """
    times = torch.linspace(0, end, records + 1, dtype=torch.float64)[1:]
    observables = {"error": lambda V: procrustes_distance(V, target)}
    flow = gradient_flow(
        objective, start, t_final=end, times=times, method="rk4", step=step, observables=observables
    )
    t, error = (x.movedim(0, -1).numpy() for x in (flow.times, flow.observables["error"]))
    slope, _, r2 = line_fit(t, np.log(error))
    return Decay(t, error, -slope, r2)


def stacked(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Stack the values of each name along a new first axis.

    >>> stacked([{"error": 3.0}, {"error": 1.0}])
    {'error': array([3., 1.])}
    """
    return {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}
