"""The design of a diffusion experiment: what depends on the gradient table alone.

A gradient of strength and direction B (a 3 x 3 matrix, b g g' for a plain gradient) leaves the
signal `S = S0 exp(-<B, D>)`, so that `log S = log S0 - <B, D>` is linear in the tensor and in the
constant. Tensors are written in working coordinates `D = T E T'`, in which the gradients are
isotropic, and as `svec(E)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posquad.core.arrays import converted_tensor
from posquad.core.errors import DomainError, ShapeError
from posquad.core.ranges import tiny
from posquad.core.symmetric import symmetric_congruence, symmetric_matrix

__all__ = ["TensorDesign"]

COLUMNS = 7  # of DIPY's design matrix: six entries of the tensor, and the constant
_ORDER = [0, 1, 3, 2, 4, 5]  # DIPY: xx xy yy xz yz zz; svec: xx xy xz yy yz zz
_SCALE = torch.tensor([1, 2, 2, 1, 2, 1], dtype=torch.float64).sqrt()
TO_DIPY = torch.diag(1 / _SCALE)[_ORDER]
"""Matrix that takes `svec(D)` to Dxx, Dxy, Dyy, Dxz, Dyz, Dzz."""

_ISOTROPIC = 4.0  # ratio of the eigenvalues of the mean gradient up to which T is a multiple of I
_DETERMINED = 1e-10  # least singular value of the design, relative to the largest


@dataclass(frozen=True, eq=False)
class TensorDesign:
    """A design matrix in working coordinates; `log S = -A e + k` with `e = svec(E)`."""

    A: Tensor  # [g, 6]
    products: Tensor  # [g, 28]  products of two columns of (A, 1), upper triangle by rows
    congruence: Tensor  # [6, 6]  svec(D) = congruence svec(E)
    transform: Tensor  # [3, 3]  T
    isotropic: bool  # whether T is a multiple of the identity

    @classmethod
    def of(cls, design_matrix: Any) -> TensorDesign:
        """Check DIPY's design matrix `[g, 7]` and bring it to working coordinates.

        >>> import numpy as np
        >>> g = np.random.default_rng(0).standard_normal((12, 3))
        >>> x, y, z = 30 * g.T
        >>> B = np.stack([x * x, 2 * x * y, y * y, 2 * x * z, 2 * y * z, z * z, np.ones(12)], 1)
        >>> TensorDesign.of(-B).A.shape
        torch.Size([12, 6])
        """
        matrix = converted_tensor("design_matrix", design_matrix).double()
        if matrix.ndim != 2 or matrix.shape[1] != COLUMNS:
            got = f"shape {tuple(matrix.shape)}"
            raise ShapeError("design_matrix", expected="shape (g, 7), as DIPY makes it", got=got)
        if not bool((matrix[:, -1] == -1).all()):
            expected = "a last column of -1, the constant"
            raise DomainError("design_matrix", expected=expected, got="another one")
        A = -matrix[:, :-1] @ TO_DIPY
        size = torch.linalg.vector_norm(A, dim=0).clamp_min(tiny(A))
        columns = torch.cat([A / size, torch.ones_like(A[:, :1]) / len(A) ** 0.5], dim=1)
        s = torch.linalg.svdvals(columns)
        rank = int((s > _DETERMINED * s[0]).sum()) if len(A) >= COLUMNS else len(A)
        if rank < COLUMNS:
            raise DomainError(
                "design_matrix",
                expected="gradients that determine a tensor and S0 (two b-values or more, and six "
                "directions or more in general position)",
                got=f"{len(A)} gradients of rank {rank}, which is less than 7",
            )
        values, vectors = torch.linalg.eigh(symmetric_matrix(A.mean(0), 3))
        isotropic = bool(values[0] * _ISOTROPIC > values[-1])
        if isotropic:
            values, vectors = values.mean().expand(3), torch.eye(3, dtype=A.dtype)
        T = vectors * values.rsqrt() @ vectors.mT
        K = symmetric_congruence(T)
        A = A @ K
        i, j = torch.triu_indices(COLUMNS, COLUMNS)
        full = torch.cat([A, torch.ones_like(A[:, :1])], dim=1)
        return cls(A, full[:, i] * full[:, j], K, T, isotropic)

    @property
    def size(self) -> int:
        """Number of gradients g."""
        return len(self.A)
