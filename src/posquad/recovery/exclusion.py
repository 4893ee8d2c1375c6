"""Exclude a second solution by a dual matrix, which is cheaper than to search for one.

Let `M = A*(z)` with `MU = 0`, and let it be positive definite on the complement of the range of U.
If a positive semidefinite Q has the responses of UU', then `<M, Q> = <z, A(Q)> = <M, UU'> = 0`, so
the range of Q lies in that of U, where the effective curvature shows that Q = UU'. Here this is
checked in floating point; `posquad.certify` bounds every rounding error.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import host
from posquad.geometry import dimension
from posquad.recovery.costs import is_quick
from posquad.recovery.problem_cache import ProblemCache

# Steps of the search for a dual matrix, and share of their mean to which each raises its
# eigenvalues. A choice: half and double do as well.
_STEPS, _FLOOR = 8, 0.6
# Ratio of the smallest to the largest eigenvalue of the dual matrix at which the search ends. A
# choice: rounding is far below, and no more is asserted than `Acceptance.dual`.
_MARGIN = 1e-2


@np.errstate(all="ignore")
def excludes_others(shared: ProblemCache, U: Tensor) -> np.ndarray:
    """Return where `[...]` a dual matrix excludes every solution but UU', for `U[..., d, r]`.

    The vectors z with `A*(z)U = 0` are a linear space of dimension n - p. Alternating projections
    look for one whose matrix is positive definite on the complement: between the matrices of that
    space and those with eigenvalues of at least a share of the mean. Finding none says nothing.
    """
    operator = shared.problem.operator
    n, (d, r) = operator.n, U.shape[-2:]
    p = dimension(d, r)
    free = dimension(d, d) - p  # the dimension of the symmetric matrices of order d - r
    found = np.zeros(U.shape[:-2], dtype=bool)
    if not 0 < n - p <= free or not is_quick(4 * n * n * (p + free)):  # four products
        return found
    frame = np.linalg.qr(host(U), mode="complete").Q
    B = host(operator.transformed(torch.from_numpy(frame).to(U.device)).matrices)
    # Columns that span the derivatives of the responses along tangent directions, [..., n, p].
    seen = np.concatenate([B[..., a, a:] for a in range(r)], axis=-1)
    space = np.linalg.qr(seen, mode="complete").Q[..., p:]  # an orthonormal basis of the z
    products = B[..., r:, r:].reshape(*B.shape[:-2], -1)  # [..., n, (d - r)^2]
    basis, R = np.linalg.qr(products.swapaxes(-1, -2) @ space)  # of the matrices
    back, target = basis.swapaxes(-1, -2), np.eye(d - r, dtype=B.dtype)
    c = back @ target.reshape(-1, 1)
    for _ in range(_STEPS):
        values, vectors = np.linalg.eigh((basis @ c).reshape(*found.shape, d - r, d - r))
        found = values[..., 0] > _MARGIN * values[..., -1]
        if found.all():
            break
        raised = np.maximum(values, _FLOOR * values.mean(-1, keepdims=True))
        target = (vectors * raised[..., None, :]) @ vectors.swapaxes(-1, -2)
        projected = back @ target.reshape(*found.shape, -1, 1)
        c = np.where(found[..., None, None], c, projected)
    # R is singular if samples are not independent.
    sound = (np.diagonal(R, axis1=-2, axis2=-1) != 0).all(-1)
    R = R if sound.all() else np.where(sound[..., None, None], R, np.eye(n - p))
    z = space @ np.linalg.solve(R, c)
    found = found & sound & np.isfinite(z).all((-2, -1))
    z = np.where(found[..., None], z[..., 0], 0.0)
    return found & _is_dual(B, z, r, shared.acceptance.dual)


def _is_dual(B: np.ndarray, z: np.ndarray, r: int, margin: float) -> np.ndarray:
    """Whether `M = sum_i z_i B_i` is zero on the first r coordinates, else positive definite.

    Both are relative to `sum_i |z_i| ||B_i||`, which bounds the rounding errors of M. The first is
    also relative to the norm of z, times the root mean square of the norms: errors of the responses
    count by it, and short matrices, of sums over samples, must not make them count less.
    """
    d = B.shape[-1]
    M = (z[..., None, :] @ B.reshape(*B.shape[:-2], d * d)).reshape(*z.shape[:-1], d, d)
    norms = np.linalg.norm(B, axis=(-2, -1))
    size = (abs(z) * norms).sum(-1)
    least = np.linalg.norm(z, axis=-1) * np.sqrt((norms**2).mean(-1))
    smallest = np.linalg.eigvalsh(M[..., r:, r:])[..., 0]
    largest = abs(M[..., :, :r]).max((-2, -1))
    rounding = B.shape[-3] * np.finfo(B.dtype).eps
    return (smallest > margin * np.maximum(size, least)) & (
        largest <= rounding * size
    )  # False for NaN
