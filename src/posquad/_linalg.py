"""Two words of linear algebra that every room uses."""

from __future__ import annotations

import torch
from torch import Tensor


def norm(M: Tensor) -> Tensor:
    """Frobenius norm of the last two dimensions."""
    return torch.linalg.matrix_norm(M)


def symmetric_part(M: Tensor) -> Tensor:
    """`(M + M')/2`: the projection onto symmetric matrices, or the rounding of one made exact."""
    return (M + M.mT) / 2
