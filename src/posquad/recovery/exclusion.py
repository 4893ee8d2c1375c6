"""Exclude a second solution by a dual matrix, which is cheaper than to search for one.

Let `M = A*(z)` with `MU = 0`, and let it be positive definite on the complement of the range of U.
If a positive semidefinite Q has the responses of UU', then `<M, Q> = <z, A(Q)> = <M, UU'> = 0`, so
the range of Q lies in that of U, where the effective curvature shows that Q = UU'. Here this is
checked in floating point; `posquad.certify` bounds every rounding error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.core.symmetric import symmetric_system
from posquad.geometry import dimension
from posquad.recovery.shared import Shared


def excludes_others(shared: Shared, U: Tensor) -> Tensor:
    """Return where `[...]` a dual matrix excludes every solution but UU', for `U[..., d, r]`.

    The vectors z with `A*(z)U = 0` are a linear space of dimension n - p. Alternating projections
    look for one whose matrix is positive definite on the complement: between the matrices of that
    space and those with eigenvalues of at least a share of the mean. Finding none says nothing.
    """
    schedule, operator = shared.tuning.schedule, shared.problem.operator
    n, (d, r) = operator.n, U.shape[-2:]
    p = dimension(d, r)
    free = dimension(d, d) - p  # the dimension of the symmetric matrices of order d - r
    none = torch.zeros(U.shape[:-2], dtype=torch.bool, device=U.device)
    if not 0 < n - p <= free or n * n * (p + free) > shared.tuning.sizes.exclusion_operations:
        return none
    frame = torch.linalg.qr(U, mode="complete").Q
    Y = operator.project(frame)
    inside, outside = Y[..., :r], Y[..., r:]
    mixed = (inside[..., :, None] * outside[..., None, :]).flatten(-2)
    seen = torch.cat([symmetric_system(inside), mixed], dim=-1)  # tangent directions, [..., n, p]
    space = torch.linalg.qr(seen, mode="complete").Q[..., p:]  # an orthonormal basis of the z
    products = (outside[..., :, None] * outside[..., None, :]).flatten(-2)
    basis, R = torch.linalg.qr(products.mT @ space)  # of the matrices, [..., (d - r)^2, n - p]
    target = torch.eye(d - r, dtype=U.dtype, device=U.device).expand(*U.shape[:-2], -1, -1)
    found, c = none, basis.mT @ target.flatten(-2)[..., None]
    for _ in range(schedule.exclusion_steps):
        values, vectors = torch.linalg.eigh((basis @ c).reshape(target.shape))
        found = values[..., 0] > schedule.exclusion_margin * values[..., -1]
        if bool(found.all()):
            break
        raised = torch.maximum(values, schedule.exclusion_floor * values.mean(-1, keepdim=True))
        target = (vectors * raised[..., None, :]) @ vectors.mT
        c = torch.where(found[..., None, None], c, basis.mT @ target.flatten(-2)[..., None])
    z = (space @ torch.linalg.solve_triangular(R, c, upper=True))[..., 0]
    found = found & torch.isfinite(z).all(-1)  # R is singular if samples are not independent
    z = torch.where(found[..., None], z, 0.0)
    return found & _is_dual(Y, z, r, shared.tuning.acceptance.dual)


def _is_dual(Y: Tensor, z: Tensor, r: int, margin: float) -> Tensor:
    """Whether `M = sum_i z_i y_i y_i'` is zero on the first r coordinates, else positive definite.

    Both are relative to `sum_i |z_i| ||y_i||^2`, which bounds the rounding errors of M.
    """
    M = Y.mT @ (z[..., None] * Y)
    size = (z.abs() * Y.square().sum(-1)).sum(-1)
    smallest = torch.linalg.eigvalsh(M[..., r:, r:])[..., 0]
    largest = M[..., :, :r].abs().amax((-2, -1))
    rounding = Y.shape[-2] * torch.finfo(Y.dtype).eps
    return (smallest > margin * size) & (largest <= rounding * size)  # False for NaN
