"""Orthogonal alignment of two factors, and the Procrustes distance that remains.

The polar factor of V'U alone has an error of cond(V)^2 eps, because V'U multiplies the condition
numbers of the factors. One correction computed from the aligned difference, which is small and
known to full accuracy, reduces the error to cond(V) eps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from posquad.geometry.frames import Frame, pair_sums, polar_rotation


def alignment(u: Tensor, v: Tensor) -> Tensor:
    """An orthogonal R that minimises `||U - VR||_F`.

    The polar factor of V'U is followed by one Gauss-Newton step `R exp(K)`, K skew. With
    `D = U - VR` and the midpoint `M = VR + D/2`, K solves `M'M K + K M'M = M'D - D'M`. Since
    `M'M = R'V'U + D'D/4` is at least the Hessian, the step cannot overshoot. The singular value
    decomposition of M solves the equation without forming M'M, and the Cayley transform of K/2
    keeps R orthogonal.
    """
    R = polar_rotation(v.mT @ u)
    with torch.no_grad():
        D = u - v @ R
        finite = torch.isfinite(D).all(-1, keepdim=True).all(-2, keepdim=True)
        W, s, Pt = torch.linalg.svd(torch.where(finite, u - D / 2, 0.0), full_matrices=False)
        C = s[..., :, None] * (W.mT @ D @ Pt.mT)
        sums = pair_sums(s)
        K = Pt.mT @ torch.where(sums > 0, (C - C.mT) / sums, 0.0) @ Pt
        K = (K - K.mT) / 4  # K/2, exactly skew
        eye = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
        correction = R @ torch.linalg.solve(eye - K, eye + K) - R
    return R + correction


def smallest_cosine(a: Frame, b: Frame) -> float:
    """Smallest cosine of the principal angles of two ranges, over a batch; 1 if it is empty.

    The alignment is not unique where it is zero. It does not depend on how factors are scaled.
    """
    cosines = torch.linalg.svdvals(a.W.mT @ b.W)
    return float(cosines.min()) if cosines.numel() else 1.0


def cosine_rounding(U: Tensor) -> float:
    """Cosines of factors like U that are at most this are zero up to rounding."""
    return 10 * max(U.shape[-2:]) * torch.finfo(U.dtype).eps


def aligned_distance(u: Tensor, v: Tensor) -> Tensor:
    """`min_R ||U - VR||_F`, twice differentiable away from zero."""
    return _Distance.apply(u, v)  # pyright: ignore[reportReturnType]


class _Distance(Function):
    """The minimum is stationary in R, so its first derivative is that at fixed R."""

    @staticmethod
    def forward(u: Tensor, v: Tensor) -> Tensor:
        return torch.linalg.matrix_norm(u - v @ alignment(u, v))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        u, v = ctx.saved_tensors
        R = polar_rotation(v.mT @ u)  # differentiable, for the second derivative
        D = u - v @ R
        size = torch.linalg.matrix_norm(D)
        D = D * (grad_outputs[0] / torch.where(size > 0, size, 1.0))[..., None, None]
        return D.sum_to_size(u.shape), -(D @ R.mT).sum_to_size(v.shape)
