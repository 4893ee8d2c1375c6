"""Extreme eigenpairs of a symmetric operator by the preconditioned block Davidson method.

The subspace grows by preconditioned residuals of the wanted Ritz pairs and is restarted with
the best of it, so convergence is that of the optimal preconditioned Krylov method without its
three-term fragility. Batches run side by side. Residuals are recomputed from the operator at the
end: what is reported is what the returned vectors satisfy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from posquad._linalg import symmetric_part
from posquad.status import Status

Block = Callable[[Tensor], Tensor]  # [..., N, b] -> [..., N, b]


class Eigenpairs(NamedTuple):
    values: Tensor  # [..., k]
    vectors: Tensor  # [..., N, k]
    residuals: Tensor  # [..., k]  ||A v - value v||
    scale: Tensor  # [...]  largest |Ritz value| seen, a lower bound on the operator norm
    products: int  # operator products, per batch element


def converged(values: Tensor, residuals: Tensor, scale: Tensor, tolerance: float) -> Tensor:
    """Residual within the tolerance of the value, or within rounding of the operator norm."""
    rounding = 10 * torch.finfo(values.dtype).eps * scale[..., None]
    return residuals <= torch.maximum(tolerance * values.abs(), rounding)


def accuracy_status(values: Tensor, residuals: Tensor, scale: Tensor, tolerance: float) -> Status:
    """One word for all the values: converged, only to rounding of the largest one, or not."""
    if bool((residuals <= tolerance * values.abs()).all()):
        return Status.CONVERGED
    good = bool(converged(values, residuals, scale, tolerance).all())
    return Status.AT_ROUNDING if good else Status.NOT_CONVERGED


def flatten_block(M: Tensor) -> Tensor:
    """Matrices `[m, ..., a, b]` as columns `[..., ab, m]`."""
    return M.flatten(-2).movedim(0, -1)


def unflatten_block(block: Tensor, shape: tuple[int, int]) -> Tensor:
    """Columns `[..., ab, m]` as matrices `[m, ..., a, b]`."""
    return block.movedim(-1, 0).unflatten(-1, shape)


def extreme_eigenpairs(
    operator: Block,
    precondition: Block,
    project: Block,
    start: Tensor,
    *,
    k: int,
    largest: bool,
    dimension: int,
    tolerance: float,
    max_products: int,
) -> Eigenpairs:
    """The k smallest (or largest) eigenpairs on a space of the given dimension.

    The space is a subspace of R^N onto which `project` projects orthogonally and which the operator
    maps into itself; `start[..., N, b]`, b >= k, lies in it and spans the first basis. A pair has
    converged when `||Av - av|| <= tolerance |a|`, or when the residual is rounding of the operator
    norm.
    """
    width = start.shape[-1]
    limit = min(dimension, max(12 * width, 48))
    V = torch.linalg.qr(start).Q  # [..., N, m]
    AV = operator(V)
    # Norms are squares: at the edges of the floating-point range only a scaled operator has them.
    unit = AV.abs().amax((-2, -1), keepdim=True)
    unit = torch.where(unit > 0, unit, 1.0)  # [..., 1, 1]
    AV = AV / unit
    products, scale = V.shape[-1], torch.zeros_like(start[..., 0, 0])
    previous: Tensor | None = None
    while True:
        T = V.mT @ AV
        theta, Y = torch.linalg.eigh(symmetric_part(T))
        if largest:
            theta, Y = theta.flip(-1), Y.flip(-1)
        scale = torch.maximum(scale, theta.abs().amax(-1))
        wanted = Y[..., :width]
        X, AX = V @ wanted, AV @ wanted
        R = AX - X * theta[..., None, :width]
        norms = torch.linalg.vector_norm(R, dim=-2)[..., :k]
        room = min(width, dimension - V.shape[-1])
        if (
            bool(converged(theta[..., :k], norms, scale, tolerance).all())
            or room == 0
            or products + room > max_products
        ):
            break
        if V.shape[-1] + room > limit:
            # Keep twice the block of Ritz vectors, and the previous block's directions (their
            # difference to the new one is what conjugate gradients would have remembered).
            kept = Y[..., : 2 * width]
            if previous is not None:
                kept = torch.cat([kept, V.mT @ previous], dim=-1)
            kept = torch.linalg.qr(kept).Q
            V, AV = V @ kept, AV @ kept
        previous = X
        size = torch.linalg.vector_norm(R, dim=-2, keepdim=True).clamp_min(
            torch.finfo(R.dtype).tiny
        )
        room = min(width, dimension - V.shape[-1])
        new = _orthonormal_against(V, precondition(R / size)[..., :room], project)
        V, AV = torch.cat([V, new], dim=-1), torch.cat([AV, operator(new) / unit], dim=-1)
        products += room
    X = X[..., :k]
    AX = operator(X) / unit
    values = (X * AX).sum(-2) / X.square().sum(-2)
    residuals = torch.linalg.vector_norm(AX - X * values[..., None, :], dim=-2)
    size = unit[..., 0, :]  # [..., 1]
    return Eigenpairs(values * size, X, residuals * size, scale * size[..., 0], products + k)


def _orthonormal_against(V: Tensor, block: Tensor, project: Block) -> Tensor:
    """An orthonormal block in the space and orthogonal to V.

    Directions that carry no information (residuals of converged or multiple eigenvalues) are
    rounding, which the first normalisation blows up to unit vectors that point anywhere. The second
    round brings them back into the space, the third makes that accurate.
    """
    for _ in range(3):
        block = project(block)
        block = torch.linalg.qr(block - V @ (V.mT @ block)).Q
    return block
