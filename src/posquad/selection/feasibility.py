"""Proofs that a system `Bq = y` has no strictly positive solution.

Two linear programs in z (as many unknowns as B has rows) find them. A z with `B'z >= 0` and
`y'z < 0` shows that no q >= 0 solves the system; one with `B'z >= 0`, `y'z = 0` and `B'z != 0`
shows which coordinates vanish in every solution. The vector that a program returns is refined to
rounding and then checked; nothing is raised for a vector that does not pass the check.
"""

from __future__ import annotations

import numpy as np
import scipy
import torch
from torch import Tensor

from posquad.core.arrays import doubles
from posquad.core.errors import InfeasibleError
from posquad.core.ranges import tiny

_ACTIVE = 1e-8  # a constraint of a linear program with at most this slack counts as active


def require_strictly_feasible(B: Tensor, y: Tensor) -> None:
    """Raise `InfeasibleError` if a proof is found that no q > 0 has `Bq = y`, for one `y[n]`."""
    rows = doubles(B)
    largest = np.abs(rows).max(axis=1)
    largest = np.where(largest > 0, largest, 1.0)  # a zero row stays zero
    norms = np.linalg.norm(rows / largest[:, None], axis=1)
    scale = 1 / np.where(norms > 0, norms, 1.0) / largest
    b, v = rows * scale[:, None], doubles(y) * scale
    v = v / max(np.abs(v).max(), tiny())
    for candidate in (_farkas_vector(b, v), _forcing_vector(b, v)):
        if candidate is None:
            continue
        verdict = _checked(b, v, candidate)
        if verdict is None:
            continue
        z, forced = verdict
        proof = torch.as_tensor(z * scale, dtype=B.dtype, device=B.device)
        if forced:
            raise InfeasibleError(
                "y",
                expected="a system Bq = y with a solution that is positive in every coordinate",
                got=f"coordinates {list(forced)[:20]} that vanish in every solution q >= 0 "
                "(the attribute farkas holds the proof)",
                farkas=proof,
                forced_zero=forced,
            )
        raise InfeasibleError(
            "y",
            expected="a system Bq = y with a solution q >= 0",
            got="a proof that there is none: the attribute farkas is a z with B'z >= 0 and y'z < 0",
            farkas=proof,
        )


def _farkas_vector(b: np.ndarray, v: np.ndarray) -> np.ndarray | None:
    """Minimiser of y'z over B'z >= 0 in a box; y'z < 0 exactly when no q >= 0 solves the system."""
    bounds = (-1, 1)
    program = scipy.optimize.linprog(
        v, A_ub=-b.T, b_ub=np.zeros(b.shape[1]), bounds=bounds, method="highs"
    )
    return program.x if program.status == 0 and program.fun < 0 else None


def _forcing_vector(b: np.ndarray, v: np.ndarray) -> np.ndarray | None:
    """A z in the cone {B'z >= 0, y'z <= 0} whose B'z has the largest support.

    The unknowns `t_a <= (B'z)_a` in [0, 1] reach 1 where `(B'z)_a` can be positive.
    """
    n, m = b.shape
    above = scipy.sparse.hstack([scipy.sparse.csr_matrix(-b.T), scipy.sparse.eye(m)])  # t <= B'z
    below = scipy.sparse.csr_matrix(np.concatenate([v, np.zeros(m)])[None])  # y'z <= 0
    program = scipy.optimize.linprog(
        np.concatenate([np.zeros(n), -np.ones(m)]),
        A_ub=scipy.sparse.vstack([above, below], format="csr"),
        b_ub=np.zeros(m + 1),
        bounds=[(None, None)] * n + [(0, 1)] * m,
        method="highs",
    )
    return program.x[:n] if program.status == 0 else None


def _checked(
    b: np.ndarray, v: np.ndarray, z: np.ndarray
) -> tuple[np.ndarray, tuple[int, ...]] | None:
    """Refined vector and the coordinates that it forces to zero, or None if it proves nothing.

    Without such coordinates the vector proves that no q >= 0 solves the system.
    """
    size = np.abs(z).max()
    if not size > 0:
        return None
    z = z / size
    tight = np.abs(b.T @ z) <= _ACTIVE
    if tight.any():
        columns = b[:, tight]
        z = z - columns @ np.linalg.lstsq(columns, z, rcond=1e-12)[0]
    eps = np.finfo(float).eps
    products, right = b.T @ z, float(v @ z)
    # z is known to the rounding of its norm, and so are its products with the columns.
    unit = 20 * len(z) * eps * np.linalg.norm(z)
    rounding = unit * np.linalg.norm(b, axis=0)
    if (products < -rounding).any():
        return None
    doubt = unit * float(np.linalg.norm(v))
    if right < -doubt:
        return z, ()
    forced = tuple(int(a) for a in np.flatnonzero(products > np.maximum(_ACTIVE, rounding)))
    return (z, forced) if forced and right <= doubt else None
