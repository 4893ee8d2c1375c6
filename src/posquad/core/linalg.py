"""Two words of linear algebra that every room uses."""

from __future__ import annotations

import torch
from torch import Tensor


def norm(M: Tensor) -> Tensor:
    """Frobenius norm of the last two dimensions, also where squares of the entries leave the range.

    Scaling M by a power of two scales its norm exactly.
    """
    if M.numel() == 0:
        return torch.linalg.matrix_norm(M)
    largest = M.detach().abs().amax((-2, -1), keepdim=True)
    unit = torch.where((largest > 0) & torch.isfinite(largest), largest, 1.0)
    return unit[..., 0, 0] * torch.linalg.matrix_norm(M / unit)


def symmetric_part(M: Tensor) -> Tensor:
    """`(M + M')/2`: the projection onto symmetric matrices, or the rounding of one made exact."""
    return (M + M.mT) / 2
