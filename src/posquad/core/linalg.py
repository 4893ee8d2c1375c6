"""Small linear algebra that every subpackage uses."""

from __future__ import annotations

import torch
from torch import Tensor


def norm(M: Tensor) -> Tensor:
    """Frobenius norm over the last two dimensions, without overflow or underflow of the squares.

    Scaling M by a power of two scales its norm exactly.
    """
    if M.numel() == 0:
        return torch.linalg.matrix_norm(M)
    largest = M.detach().abs().amax((-2, -1), keepdim=True)
    unit = torch.where((largest > 0) & torch.isfinite(largest), largest, 1.0)
    return unit[..., 0, 0] * torch.linalg.matrix_norm(M / unit)


def symmetric_part(M: Tensor) -> Tensor:
    """`(M + M')/2`, the projection onto symmetric matrices."""
    return (M + M.mT) / 2


def per_element(values: Tensor, model: Tensor) -> Tensor:
    """Batch values `[...]` in a shape that broadcasts against `model[..., a, b, ...]`."""
    return values.reshape(values.shape + (1,) * (model.ndim - values.ndim))
