"""Eigenvalues and eigenvectors of many 3 x 3 matrices at once, by Jacobi rotations.

LAPACK takes about a microsecond for one small matrix, most of it for calls. Jacobi's method is a
few hundred elementary operations without branches, and so runs over a whole batch. Its eigenvectors
are orthogonal to rounding also where eigenvalues agree.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["symmetric_eigen"]

_LEAST = 2048  # matrices from which rotations take less time than LAPACK
_SWEEPS = 12  # most sweeps; four or five are usual, because convergence is quadratic
_PAIRS = ((0, 1, 2), (0, 2, 1), (1, 2, 0))  # rows of a rotation, and the row that is left


def symmetric_eigen(S: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending eigenvalues `[..., d]` and eigenvectors `[..., d, d]`, as `torch.linalg.eigh`.

    >>> values, vectors = symmetric_eigen(torch.diag(torch.tensor([2.0, 1.0])))
    >>> values.tolist()
    [1.0, 2.0]
    """
    if S.shape[-1] != 3 or S.ndim != 3 or len(S) < _LEAST or S.dtype != torch.float64:
        return torch.linalg.eigh(S)
    return rotated_eigen(S)


def rotated_eigen(S: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of `S[B, 3, 3]` by cyclic Jacobi rotations.

    Matrices are divided by their largest entries, so that no square leaves the range of numbers.
    """
    A = S.reshape(-1, 9).T.contiguous()  # [9, B]: operations run over the batch
    size = A.abs().amax(0)
    size = torch.where(size > 0, size, 1.0)
    A = A / size
    diagonal = [A[0], A[4], A[8]]
    off = [A[5], A[2], A[1]]  # entry (p, q) is at the index of the row that is left
    V = list(torch.eye(3, dtype=S.dtype, device=S.device)[..., None].expand(3, 3, len(S)))
    rounding = torch.finfo(S.dtype).eps / 4
    for _ in range(_SWEEPS):
        largest = torch.maximum(torch.maximum(off[0].abs(), off[1].abs()), off[2].abs())
        if not bool((largest > rounding).any()):
            break
        for p, q, left in _PAIRS:
            _rotate(diagonal, off, V, p, q, left)
    values, columns = _sorted(diagonal, V)
    return (values * size).T.contiguous(), torch.stack(columns, -1).transpose(0, 1).contiguous()


def _rotate(
    diagonal: list[Tensor], off: list[Tensor], V: list[Tensor], p: int, q: int, left: int
) -> None:
    """Make the entries (p, q) zero by rotations of the rows and columns p and q.

    The tangent of the smaller of the two angles is `t = 2b / (g + sign(g) (g^2 + 4b^2)^(1/2))` for
    the entry b and the difference g of the diagonal entries.
    """
    b, gap = off[left], diagonal[q] - diagonal[p]
    twice = b + b
    root = torch.sqrt(torch.addcmul(gap * gap, twice, twice))
    base = gap + torch.copysign(root, gap)
    t = twice / torch.where(base == 0, 1.0, base)  # without a difference b is zero too
    c = torch.rsqrt(torch.addcmul(torch.ones_like(t), t, t))
    s, change = t * c, t * b
    diagonal[p], diagonal[q] = diagonal[p] - change, diagonal[q] + change
    off[left] = torch.zeros_like(b)
    # The entries (p, left) and (q, left) are at the indices q and p.
    off[q], off[p] = c * off[q] - s * off[p], torch.addcmul(c * off[p], s, off[q])
    V[p], V[q] = c * V[p] - s * V[q], torch.addcmul(c * V[q], s, V[p])


def _sorted(values: list[Tensor], columns: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Eigenvalues `[3, B]` in ascending order, and their vectors `[3, B]` each, by exchanges."""
    for p, q in ((0, 1), (1, 2), (0, 1)):
        wrong = values[p] > values[q]
        low, high = torch.minimum(values[p], values[q]), torch.maximum(values[p], values[q])
        values[p], values[q] = low, high
        first, second = columns[p], columns[q]
        columns[p] = torch.where(wrong, second, first)
        columns[q] = torch.where(wrong, first, second)
    return torch.stack(values), columns
