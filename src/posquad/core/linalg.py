"""Small linear algebra that every subpackage uses."""

from __future__ import annotations

import math

import scipy.linalg
import torch
from torch import Tensor

from posquad.core.ranges import PLAIN_NORMS, tiny

_DECOMPOSED = 512  # side of a matrix up to which its singular values are computed
_POWER_STEPS = 20
_PARTIAL_LEAST = 200  # side of a matrix from which a few eigenpairs are computed alone


def norm(M: Tensor, dim: tuple[int, ...] = (-2, -1)) -> Tensor:
    """Frobenius norm over some dimensions, without overflow or underflow of the squares.

    Scaling M by a power of two scales its norm exactly.
    """
    plain = torch.linalg.vector_norm(M, dim=dim)
    if M.numel() == 0:
        return plain
    least, most = (float(end) for end in torch.aminmax(plain.detach()))
    if PLAIN_NORMS.of(M.dtype).low < least and most < math.inf:
        return plain
    _, exponent = torch.frexp(M.detach().abs().amax(dim, keepdim=True))
    unit = torch.ldexp(torch.ones_like(exponent, dtype=M.dtype), exponent - 1)
    return unit.squeeze(dim) * torch.linalg.vector_norm(M / unit, dim=dim)


def spectral_norm(M: Tensor) -> Tensor:
    """Largest singular value of `M[..., a, b]`.

    Of a large matrix it is computed by block power iteration, in memory for a few columns, from
    below: the error is within a few per cent at worst, and at rounding level for a multiple of an
    orthogonal matrix.
    """
    if min(M.shape[-2:]) <= _DECOMPOSED:
        return torch.linalg.matrix_norm(M, 2)
    generator = torch.Generator().manual_seed(0)
    V = torch.randn(M.shape[-1], 16, generator=generator, dtype=torch.float64).to(M)
    for _ in range(_POWER_STEPS):
        V = torch.linalg.qr(M.mT @ (M @ V)).Q
    return torch.linalg.matrix_norm(M @ V, 2)


def symmetric_part(M: Tensor) -> Tensor:
    """`(M + M')/2`, the projection onto symmetric matrices."""
    return (M + M.mT) / 2


def leading_pairs(pairs: tuple[Tensor, Tensor], count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of ascending eigenpairs, as `eigh` returns them, in descending order."""
    values, vectors = pairs
    return values[..., -count:].flip(-1), vectors[..., -count:].flip(-1)


def largest_eigenpairs(M: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest eigenpairs, descending, of symmetric `M[..., d, d]`.

    A few pairs of one large matrix on a CPU take a third of the time of all.
    """
    d = M.shape[-1]
    few = 4 * count <= d and d >= _PARTIAL_LEAST
    if M.ndim > 2 or M.device.type != "cpu" or M.requires_grad or not few:
        return leading_pairs(torch.linalg.eigh(M), count)
    pairs = scipy.linalg.eigh(M.numpy(), subset_by_index=(d - count, d - 1), check_finite=False)
    return leading_pairs((torch.from_numpy(pairs[0]), torch.from_numpy(pairs[1])), count)


def positive_factor(values: Tensor, vectors: Tensor) -> Tensor:
    """A factor `[..., d, k]` of the positive part of the matrix with these eigenpairs."""
    return vectors * values.clamp_min(0).sqrt()[..., None, :]


def per_element(values: Tensor, model: Tensor) -> Tensor:
    """Batch values `[...]` in a shape that broadcasts against `model[..., a, b, ...]`."""
    return values.reshape(values.shape + (1,) * (model.ndim - values.ndim))


def eigenvalue_rounding(size: int, dtype: torch.dtype = torch.float64) -> float:
    """Bound on the error of an eigenvalue of a size x size matrix, relative to the largest one."""
    return 10 * size * torch.finfo(dtype).eps


def solve_semidefinite(M: Tensor, right: Tensor) -> Tensor:
    """Solve `M x = right` for positive semidefinite `M[..., n, n]`, scaled to unit diagonal.

    No part of the solution lies in directions that M maps to zero up to rounding.
    """
    scale = M.diagonal(dim1=-2, dim2=-1).clamp_min(tiny(M)).rsqrt()
    scaled = scale[..., :, None] * M * scale[..., None, :]
    factor, info = torch.linalg.cholesky_ex(scaled)
    if not bool((info != 0).any()):
        return scale * torch.cholesky_solve((scale * right)[..., None], factor)[..., 0]
    finite = torch.isfinite(scaled).all(-1, keepdim=True).all(-2, keepdim=True)
    return scale * solve_by_eigenvalues(torch.where(finite, scaled, 0.0), scale * right)


def solve_by_eigenvalues(M: Tensor, right: Tensor) -> Tensor:
    """Return `M^+ right` for positive semidefinite `M[..., n, n]`; rounding counts as zero."""
    values, vectors = torch.linalg.eigh(M)
    cutoff = values[..., -1:] * values.shape[-1] * torch.finfo(M.dtype).eps
    inverse = torch.where(values > cutoff, 1 / values, 0.0)
    along = (vectors.mT @ right[..., None])[..., 0]
    return (vectors @ (inverse * along)[..., None])[..., 0]
