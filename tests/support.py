"""What several test modules need: random problems and the LAPACK-style error ratio."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SIZES = [(1, 1), (2, 1), (2, 2), (5, 1), (5, 3), (6, 6), (30, 4)]
"""(d, r), with d = 1, r = 1 and r = d among them."""


def normal(rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=dtype)


def double(values: float | Sequence) -> Tensor:
    """A number or nested lists of numbers in double precision."""
    return torch.tensor(values, dtype=torch.float64)


def vector(*values: float) -> Tensor:
    return double(values)


def rotation(rng: torch.Generator, r: int, *, reflect: bool = False) -> Tensor:
    """An orthogonal matrix with determinant +1, or -1 if `reflect`."""
    Q, R = torch.linalg.qr(normal(rng, r, r))
    Q = Q * R.diagonal().sign()
    if (torch.linalg.det(Q) < 0) != reflect:
        Q[:, 0] *= -1
    return Q


def ratio(error: Tensor, scale: Tensor | float, size: int) -> float:
    """`||error|| / (scale * size * eps)`, of order one for a backward-stable computation."""
    eps = torch.finfo(error.dtype).eps
    return float(torch.linalg.vector_norm(error) / (scale * size * eps))


def gaussian_problem(
    rng: torch.Generator, n: int, d: int, r: int, *, smallest: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """X `[n, d]`, U_star `[d, r]` with eigenvalues of Q from 1 to `smallest`, and y `[n]`."""
    X = normal(rng, n, d)
    W = torch.linalg.qr(normal(rng, d, r)).Q
    U = W * torch.linspace(1.0, smallest, r, dtype=X.dtype).sqrt()
    return X, U, (X @ U).square().sum(-1)
