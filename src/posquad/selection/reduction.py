"""Reduction of commuting measurement matrices to their joint spectrum (section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posquad.core.arrays import (
    A,
    Array,
    like,
    positive_integer,
    positive_number,
    require_shape,
    require_symmetric,
    tensors,
)
from posquad.core.errors import DomainError, ShapeError
from posquad.core.linalg import symmetric_part
from posquad.core.ranges import tiny
from posquad.core.results import Result

__all__ = ["CommutationError", "Reduction", "commuting_family", "joint_spectral_reduction"]

_SWEEPS = 60  # maximum number of Jacobi sweeps; convergence is quadratic, so far fewer are used


class CommutationError(DomainError):
    """Two matrices do not commute.

    `pair` holds the indices of the worst pair, `size` its relative commutator norm.
    """

    def __init__(
        self, argument: str, *, expected: str, got: str, pair: tuple[int, int], size: float
    ) -> None:
        super().__init__(argument, expected=expected, got=got)
        self.pair = pair
        self.size = size


@dataclass(frozen=True, eq=False, repr=False)
class Reduction(Result):
    """Joint eigenspaces of commuting matrices: `A_i = sum_a c_ia P_a` and `B_ia = d_a c_ia`."""

    projectors: Any  # [m, d, d]  orthogonal projectors P_a that sum to I
    multiplicities: Any  # [m]  d_a = rank(P_a)
    coefficients: Any  # [n, m]  c_ia
    B: Any  # [n, m]
    residual: float  # max_i ||A_i - sum_a c_ia P_a||_F over the largest entry of all A_i

    def predictor(self, q: A) -> A:
        """`Q(q) = sum_a q_a P_a` (`eq:joint-spectral-predictor-map`), shape `[..., d, d]`."""
        w, P = tensors(q=q, projectors=self.projectors)
        require_shape("q", w, (P.shape[0],), "(..., m), one entry per joint eigenspace")
        return like(q, torch.einsum("...a,aij->...ij", w, P))

    def coordinates(self, Q: A) -> A:
        """Block averages `q_a = tr(P_a Q) / d_a` (`eq:block-average-eigenvalue`), `[..., m]`.

        This inverts `predictor`. For any symmetric Q, `predictor(coordinates(Q))` has the same
        measurements and trace as Q.
        """
        M, P = tensors(Q=Q, projectors=self.projectors)
        d = torch.as_tensor(self.multiplicities).to(M)
        require_shape("Q", M, tuple(P.shape[1:]), "(..., d, d)")
        require_symmetric("Q", M)
        return like(Q, torch.einsum("aij,...ij->...a", P, M) / d)


def joint_spectral_reduction(A: Array, *, tolerance: float | None = None) -> Reduction:
    """Maximal joint eigenspaces of commuting symmetric matrices `A[n, d, d]`.

    `eq:measurement-joint-spectral-form`, `eq:reduced-measurement-matrix`. The result does not
    depend on a basis inside an eigenspace. A joint diagonalisation by Jacobi rotations handles
    repeated and clustered eigenvalues alike. Directions whose n eigenvalues agree to `tolerance`
    (relative to the largest matrix) form one eigenspace.

    Raises:
        CommutationError: if some `||A_i A_j - A_j A_i||_F > tolerance ||A_i||_F ||A_j||_F`, with
            the worst pair.

    >>> reduction = joint_spectral_reduction(np.array([np.diag([1.0, 1.0, 3.0])]))
    >>> reduction.multiplicities, reduction.B
    (array([1, 2]), array([[3., 2.]]))
    """
    (a,) = tensors(A=A)
    if a.ndim != 3 or 0 in a.shape:
        raise ShapeError("A", expected="shape (n, d, d)", got=f"shape {tuple(a.shape)}")
    require_symmetric("A", a)
    default = torch.finfo(a.dtype).eps ** 0.64  # 1e-10 in double precision
    tolerance = positive_number("tolerance", default if tolerance is None else tolerance)
    with torch.no_grad():
        _require_commuting(a, tolerance)
        scale = a.abs().amax().clamp_min(tiny(a))
        V, spectra = _joint_diagonalization(a / scale)  # spectra [n, d]
        labels = _groups(spectra, tolerance)
        projectors, coefficients = [], []
        for label in labels.unique():
            block = V[:, labels == label]
            projectors.append(block @ block.mT)
            coefficients.append(spectra[:, labels == label].mean(-1) * scale)
        c = torch.stack(coefficients, dim=-1)  # [n, m]
        P = torch.stack(projectors)  # [m, d, d]
        order = _lexicographic(c / scale)
        c, P = c[:, order], P[order]
        d = P.diagonal(dim1=-2, dim2=-1).sum(-1).round().to(torch.int64)
        rest = a / scale - torch.einsum("na,aij->nij", c / scale, P)
        residual = torch.linalg.matrix_norm(rest).amax()
    return Reduction(
        projectors=like(A, P),
        multiplicities=like(A, d),
        coefficients=like(A, c),
        B=like(A, c * d),
        residual=float(residual),
    )


def commuting_family(B: A, multiplicities: Array, *, seed: int = 0) -> A:
    """Commuting matrices `A_i = sum_a (B_ia / d_a) P_a` in a random orthogonal basis.

    The converse of `joint_spectral_reduction`, for tests and examples: `B[n, m]` and integer
    multiplicities `[m]` give `[n, d, d]`, where d is their sum. Columns of B with equal ratios
    B_ia/d_a share one joint eigenspace, so that a reduction merges them.

    >>> commuting_family(np.array([[1.0, 4.0]]), np.array([1, 2])).shape
    (1, 3, 3)
    """
    b, d = tensors(B=B, multiplicities=multiplicities)
    if b.ndim != 2 or 0 in b.shape or tuple(d.shape) != (b.shape[1],):
        expected = "B of shape (n, m) with m multiplicities"
        got = f"shapes {tuple(b.shape)}, {tuple(d.shape)}"
        raise ShapeError("B, multiplicities", expected=expected, got=got)
    ranks = [positive_integer("multiplicities", int(r) if r == int(r) else r) for r in d.tolist()]
    generator = torch.Generator().manual_seed(seed)
    size = sum(ranks)
    V = torch.linalg.qr(torch.randn(size, size, dtype=b.dtype, generator=generator)).Q.to(b.device)
    spectra = (b / d).repeat_interleave(torch.tensor(ranks, device=b.device), dim=-1)  # [n, d]
    M = (V * spectra[:, None, :]) @ V.mT
    return like(B, symmetric_part(M))


def _require_commuting(a: Tensor, tolerance: float) -> None:
    pair, size = _worst_commutator(a)
    if size > tolerance:
        raise CommutationError(
            "A",
            expected=f"commuting matrices, to a relative {tolerance:.0e}",
            got=f"A[{pair[0]}] and A[{pair[1]}] with a relative commutator norm of {size:.3e}",
            pair=pair,
            size=size,
        )


def _worst_commutator(a: Tensor) -> tuple[tuple[int, int], float]:
    sizes = a.abs().amax((-2, -1), keepdim=True)
    a = a / torch.where(sizes > 0, sizes, 1.0)
    norms = torch.linalg.matrix_norm(a)
    worst, pair = -1.0, (0, 0)
    for i in range(len(a) - 1):
        products = a[i] @ a[i + 1 :]
        sizes = torch.linalg.matrix_norm(products - products.mT) / (norms[i] * norms[i + 1 :])
        j = int(sizes.nan_to_num(0.0).argmax())
        if float(sizes[j]) > worst:
            worst, pair = float(sizes[j]), (i, i + 1 + j)
    return pair, worst


def _joint_diagonalization(a: Tensor) -> tuple[Tensor, Tensor]:
    """Orthogonal V that diagonalises all matrices, and their diagonals `[n, d]`.

    The eigenvectors of one random combination are improved by Jacobi rotations that minimise the
    sum of all squared off-diagonal entries. These separate eigenspaces that the combination mixed.
    """
    weights = torch.randn(len(a), dtype=a.dtype, generator=torch.Generator().manual_seed(0)).to(
        a.device
    )
    V = torch.linalg.eigh(torch.einsum("n,nij->ij", weights, a)).eigenvectors
    M = V.mT @ a @ V
    eps = torch.finfo(a.dtype).eps
    for _ in range(_SWEEPS):
        off = M - torch.diag_embed(M.diagonal(dim1=-2, dim2=-1))
        entries = torch.linalg.vector_norm(off, dim=0)  # [d, d]
        pairs = (entries.triu(1) > 10 * eps).nonzero().tolist()
        if not pairs:
            break
        rotated = False
        for p, q in pairs:
            h = torch.stack([M[:, p, p] - M[:, q, q], 2 * M[:, p, q]])  # [2, n]
            G = h @ h.mT
            on, cross = G[0, 0] - G[1, 1], 2 * G[0, 1]
            theta = 0.5 * torch.atan2(cross, on + torch.hypot(on, cross))
            if float(theta.abs()) < eps:
                continue
            rotated = True
            c, s = theta.cos(), theta.sin()
            R = torch.stack([torch.stack([c, -s]), torch.stack([s, c])])
            index = torch.tensor([p, q], device=a.device)
            M[:, :, index] = M[:, :, index] @ R
            M[:, index, :] = R.mT @ M[:, index, :]
            V[:, index] = V[:, index] @ R
        if not rotated:
            break
    return V, M.diagonal(dim1=-2, dim2=-1)


def _groups(spectra: Tensor, tolerance: float) -> Tensor:
    """Labels `[d]` that are equal for directions linked by distances of at most the tolerance."""
    # cdist by matrix products would lose half the digits.
    mode = "donot_use_mm_for_euclid_dist"
    distance = torch.cdist(spectra.mT, spectra.mT, compute_mode=mode)
    linked = distance <= tolerance
    labels = torch.arange(len(linked), device=spectra.device)
    while True:
        smallest = torch.where(linked, labels, len(labels)).amin(-1)
        if bool((smallest == labels).all()):
            return labels
        labels = smallest


def _lexicographic(c: Tensor) -> Tensor:
    """Descending order of the columns of c by the first row, with ties broken by later rows."""
    keys = (c * 1e9).round().mT.tolist()
    order = sorted(range(len(keys)), key=lambda a: keys[a], reverse=True)
    return torch.tensor(order, device=c.device)
