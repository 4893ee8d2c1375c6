"""Weighted least squares for the tensors of many voxels, without the constraint.

The normal equations of a voxel are sums of the products of two columns of the design, with the
weights of the voxel: one matrix product for all voxels. The constant `k = log S0` is eliminated,
which leaves a quadratic form in the six entries of the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posquad.dipy.design import COLUMNS, TensorDesign

_DETERMINED = 1e-9  # least pivot of a voxel's normal equations, relative to the largest


@dataclass(frozen=True, eq=False)
class WeightedFit:
    """Least squares tensors of B voxels, and the quadratic forms around them.

    The weighted sum of squares at e is its least value plus `(e - c)'H(e - c)`.
    """

    H: Tensor  # [B, 6, 6], or [6, 6] for equal weights
    c: Tensor  # [B, 6]
    means: Tensor  # [B, 6] or [6]  weighted means of the columns of A
    level: Tensor  # [B]  weighted mean of log S, so that k = level + means'e
    total: Tensor  # [B]  sum of the weights
    determined: Tensor  # [B]  whether the voxel has enough signals

    def constant(self, e: Tensor) -> Tensor:
        """`k = log S0` that belongs to the tensors e, `[B]`."""
        return self.level + (self.means * e).sum(-1)

    def predicted(self, design: TensorDesign, e: Tensor) -> Tensor:
        """Predicted log S, `[B, g]`."""
        return self.constant(e)[:, None] - e @ design.A.mT


def fit_equal(design: TensorDesign, logs: Tensor) -> WeightedFit:
    """Fit voxels `logs[B, g]` with equal weights: the design is factorized once."""
    means = design.A.mean(0)
    centred = design.A - means
    level = logs.mean(-1)
    c = (level[:, None] - logs) @ torch.linalg.pinv(centred).mT
    total = torch.full_like(level, design.size)
    determined = torch.ones_like(level, dtype=torch.bool)
    return WeightedFit(centred.mT @ centred, c, means, level, total, determined)


def fit_weighted(design: TensorDesign, logs: Tensor, weights: Tensor) -> WeightedFit:
    """Fit voxels `logs[B, g]` with `weights[B, g]`; a weight of zero leaves a signal out."""
    total = weights.sum(-1)
    safe = torch.where(total > 0, total, 1.0)
    share = weights / safe[:, None]
    moments = share @ design.products  # [B, 28]
    i, j = torch.triu_indices(COLUMNS, COLUMNS)
    N = moments.new_empty(len(moments), COLUMNS, COLUMNS)
    N[:, i, j] = moments
    N[:, j, i] = moments
    means = N[:, -1, :-1]
    H = N[:, :-1, :-1] - means[:, :, None] * means[:, None, :]
    level = (share * logs).sum(-1)
    right = (share * (level[:, None] - logs)) @ design.A  # level - logs has weighted mean zero
    factor, info = torch.linalg.cholesky_ex(H)
    pivots = factor.diagonal(dim1=-2, dim2=-1)
    largest = N.diagonal(dim1=-2, dim2=-1)[:, :-1].amax(-1)
    determined = (info == 0) & (pivots.amin(-1).square() > _DETERMINED * largest) & (total > 0)
    eye = torch.eye(COLUMNS - 1, dtype=H.dtype)
    factor = torch.where(determined[:, None, None], factor, eye)
    H = torch.where(determined[:, None, None], H, eye)
    c = torch.cholesky_solve(right[..., None], factor)[..., 0]
    c = torch.where(determined[:, None], c, 0.0)
    return WeightedFit(H * safe[:, None, None], c, means, level, total, determined)


def leverages(design: TensorDesign, fit: WeightedFit, weights: Tensor) -> Tensor:
    """Leverages `[B, g]` of weighted fits: the diagonal of the hat matrix, `w_i x_i'(X'WX)^-1 x_i`.

    Once the constant is eliminated they are `w_i / sum w + w_i a_i'H^{-1}a_i` with centred rows a.
    """
    inverse = torch.linalg.inv(fit.H)
    means = fit.means[..., None]
    turned = inverse @ means  # [B, 6, 1]
    square = inverse.new_empty(len(inverse), COLUMNS, COLUMNS)
    square[:, :-1, :-1], square[:, :-1, -1:] = inverse, -turned
    square[:, -1:, -1:] = means.mT @ turned + 1 / fit.total[:, None, None]
    i, j = torch.triu_indices(COLUMNS, COLUMNS)
    packed = square[:, i, j] * torch.where(i == j, 1.0, 2.0).to(square)
    return weights * (packed @ design.products.mT)
