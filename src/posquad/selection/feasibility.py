"""Why a system `Bq = y` has no strictly positive solution, with a vector that proves it.

Two small linear programs in z (as many unknowns as B has rows): a z with `B'z >= 0` and `y'z < 0`
shows that no q >= 0 solves the system; one with `B'z >= 0`, `y'z = 0` and `B'z != 0` shows which
coordinates vanish in every solution.
"""

from __future__ import annotations

import numpy as np
import scipy
import torch
from torch import Tensor

from posquad.errors import InfeasibleError

_TOLERANCE = 1e-7  # of the linear programs


def require_strictly_feasible(B: Tensor, y: Tensor) -> None:
    """Raise `InfeasibleError` with its proof unless some q > 0 has `Bq = y`; one y `[n]`."""
    scale = 1 / np.maximum(np.linalg.norm(B.cpu().numpy(), axis=1), 1e-300)
    b = B.cpu().numpy() * scale[:, None]
    v = y.cpu().numpy() * scale
    v = v / max(np.abs(v).max(), 1e-300)
    n, m = b.shape
    # min y'z over B'z >= 0 in a box: negative exactly when no q >= 0 solves the system.
    first = scipy.optimize.linprog(v, A_ub=-b.T, b_ub=np.zeros(m), bounds=(-1, 1), method="highs")
    if first.status == 0 and first.fun < -_TOLERANCE:
        raise InfeasibleError(
            "y",
            expected="a system Bq = y with a solution q >= 0",
            got="a proof that there is none: z (attached as farkas) has B'z >= 0 and y'z < 0",
            farkas=_vector(first.x * scale, B),
        )
    # Largest support of B'z on the cone {B'z >= 0, y'z <= 0}: t_a = 1 where it can be positive.
    cost = np.concatenate([np.zeros(n), -np.ones(m)])
    above = np.hstack([-b.T, np.eye(m)])  # t <= B'z
    below = np.concatenate([v, np.zeros(m)])[None]  # y'z <= 0
    second = scipy.optimize.linprog(
        cost,
        A_ub=np.vstack([above, below]),
        b_ub=np.zeros(m + 1),
        bounds=[(None, None)] * n + [(0, 1)] * m,
        method="highs",
    )
    if second.status == 0 and second.x[n:].max() > 0.5:
        forced = tuple(int(a) for a in np.flatnonzero(second.x[n:] > 0.5))
        raise InfeasibleError(
            "y",
            expected="a system Bq = y with a solution that is positive in every coordinate",
            got=f"coordinates {list(forced)[:20]} that vanish in every solution q >= 0 "
            "(z, attached as farkas, proves it)",
            farkas=_vector(second.x[:n] * scale, B),
            forced_zero=forced,
        )


def _vector(z: np.ndarray, model: Tensor) -> Tensor:
    return torch.as_tensor(z, dtype=model.dtype, device=model.device)
