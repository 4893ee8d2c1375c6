"""Symmetric matrices as vectors of k(k+1)/2 entries, and linear least squares in them.

`svec` stacks the upper triangle row by row, off-diagonal entries times sqrt(2), so that it is an
isometry from symmetric matrices with the Frobenius norm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ENTRIES = 2**21  # maximum number of entries of a block of rows


def symmetric_fit(Z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """`argmin_S ||z_i'S z_i - y_i||` for `Z[..., n, k]`, `n >= k(k+1)/2`, by a QR decomposition.

    Returns `S[..., k, k]`, and `[...]`, whether the system determines it.
    """
    R, right = reduced_system(symmetric_system(Z), y[..., None])
    return solve_reduced(R, right[..., 0], Z.shape[-1])


def reduced_system(system: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """R and `B'right` for `system = BR`: the same least squares problem in fewer equations.

    `system[..., n, D]` and `right[..., n, m]` give at most D equations.
    """
    basis, R = torch.linalg.qr(system)
    return R, basis.mT @ right


def solve_reduced(R: Tensor, right: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Solution `S[..., k, k]` of a reduced system, and `[...]`, whether the system determines it.

    `R[..., D, D]` with `D = k(k+1)/2` is triangular, and `right` has shape `[..., D]`.
    """
    pivots = R.diagonal(dim1=-2, dim2=-1).abs()
    complete = pivots.amin(-1) > 1e-12 * pivots.amax(-1)
    R = torch.where(complete[..., None, None], R, torch.eye(R.shape[-1]).to(R))
    entries = torch.linalg.solve_triangular(R, right[..., None], upper=True)[..., 0]
    return symmetric_matrix(entries, k), complete


def symmetric_system(Z: Tensor) -> Tensor:
    """Rows `svec(z_i z_i')`, `[..., n, k(k+1)/2]`, of the system `<S, z_i z_i'> = y_i`."""
    i, j, weight = _triangle(Z, Z.shape[-1])
    return Z[..., i] * Z[..., j] * weight


def symmetric_gram(Z: Tensor) -> Tensor:
    """Fourth moments `sum_i svec(z_i z_i') svec(z_i z_i')'`, accumulated over blocks of rows."""
    D = Z.shape[-1] * (Z.shape[-1] + 1) // 2
    rows = max(1, _ENTRIES // (D * max(1, Z[..., 0, 0].numel())))
    gram = Z.new_zeros(*Z.shape[:-2], D, D)
    i, j, weight = _triangle(Z, Z.shape[-1])
    for part in Z.split(rows, dim=-2):
        columns = part.mT.contiguous()  # to select entries of rows of Z takes much longer
        system = columns[..., i, :] * columns[..., j, :] * weight[:, None]
        gram += system @ system.mT
    return gram


def symmetric_jacobian(U: Tensor) -> Tensor:
    """Derivative of `svec(UU')` by the entries of `U[..., d, r]`, `[..., d(d+1)/2, dr]`."""
    i, j, weight = _triangle(U, U.shape[-2])
    eye = torch.eye(U.shape[-2], dtype=U.dtype, device=U.device)[..., None]  # [d, d, 1]
    both = eye[i] * U[..., j, None, :] + eye[j] * U[..., i, None, :]  # [..., D, d, r]
    return (weight[:, None, None] * both).flatten(-2)


def symmetric_congruence(G: Tensor) -> Tensor:
    """Matrix of `svec(S) -> svec(GSG')` for `G[..., m, k]`, `[..., m(m+1)/2, k(k+1)/2]`."""
    i, j, weight = _triangle(G, G.shape[-2])
    a, b, columns_weight = _triangle(G, G.shape[-1])
    left, right = G[..., i, :], G[..., j, :]
    both = left[..., a] * right[..., b] + left[..., b] * right[..., a]
    return weight[:, None] * both * (columns_weight / 2)


def svec(S: Tensor) -> Tensor:
    """Vector `[..., k(k+1)/2]` of a symmetric matrix `S[..., k, k]`."""
    i, j, weight = _triangle(S, S.shape[-1])
    return S[..., i, j] * weight


def symmetric_matrix(entries: Tensor, k: int) -> Tensor:
    """Symmetric matrix `[..., k, k]` from its svec `[..., k(k+1)/2]`."""
    i, j, weight = _triangle(entries, k)
    entries = entries / weight
    S = torch.zeros(*entries.shape[:-1], k, k, dtype=entries.dtype, device=entries.device)
    S[..., i, j] = entries
    S[..., j, i] = entries
    return S


def svec_weights(k: int) -> Tensor:
    """Factors of the entries in `svec` of a k x k matrix: 1 on the diagonal, sqrt(2) off it."""
    return _triangle(torch.empty(0, dtype=torch.float64), k)[2]


def _triangle(like: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    i, j = torch.triu_indices(k, k, device=like.device)
    return i, j, torch.where(i == j, 1.0, like.new_tensor(math.sqrt(2)))
