"""The Gaussian population curvature in factor coordinates: products, square root and inverse.

On horizontal V at U, `P(V) = 2 T(VU' + UV') U = 4 [V S + U V'U + tr(U'V) U]` with `S = U'U` and T
of Lemma 3.1 (`lem:gaussian-population-operator`). Every function costs O(d r^2) and forms no d x d
matrix. Relative to P, the curvature of Gaussian measurements does not depend on the conditioning of
Q.

Population coordinates represent a tangent matrix xi at Q by `Y[..., d, r]` with W'Y symmetric, such
that `||Y||_F^2 = 2 ||xi||_F^2 + tr(xi)^2`. They depend on range(U) alone, so the size of what a
measurement sees of Y does not depend on the conditioning of U.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posquad.core.linalg import symmetric_part
from posquad.geometry.frames import Frame, pair_sums


def population_product(U: Tensor, S: Tensor, V: Tensor) -> Tensor:
    """Population curvature `P(V)`, with `S = U'U`."""
    trace = (U * V).sum((-2, -1))[..., None, None]
    return 4 * (V @ S + U @ (V.mT @ U) + trace * U)


def population_root(C: Tensor) -> Tensor:
    """`T^{-1/2} C` for symmetric C; the result F has `2 ||F||^2 + tr(F)^2 = ||C||^2`."""
    return _scale_trace(C, math.sqrt(2 / (2 + C.shape[-1]))) / math.sqrt(2)


def population_lift(basis: Frame, Y: Tensor) -> Tensor:
    """`L Y`: the horizontal direction whose tangent matrix has population coordinates Y.

    `L L' = P^{-1}` on horizontal directions. The part of Y outside range(U) has column j divided by
    `2 s_j`; the part inside lifts `W C W'` with `2 ||C||^2 + tr(C)^2 = ||W'Y||^2`.
    """
    W, s, P = basis
    inside = W.mT @ Y
    outside = (Y - W @ inside) / (2 * s[..., None, :])
    C = population_root(symmetric_part(inside))
    return (outside + W @ (C * s[..., None, :] / pair_sums(s))) @ P.mT


def population_lift_transpose(basis: Frame, R: Tensor) -> Tensor:
    """`L'R`, the transpose of `population_lift`: `<L'R, Y> = <R, L Y>`."""
    W, s, P = basis
    R = R @ P
    inside = W.mT @ R
    outside = (R - W @ inside) / (2 * s[..., None, :])
    C = population_root(symmetric_part(inside * s[..., None, :] / pair_sums(s)))
    return outside - W @ (W.mT @ outside) + W @ C


def population_coordinates(basis: Frame, V: Tensor) -> Tensor:
    """Population coordinates Y of a horizontal V, with `L Y = V`."""
    W, s, P = basis
    V = V @ P
    inside = W.mT @ V
    C = inside * s[..., None, :]  # W'xi W = C + C'
    outside = 2 * s[..., None, :] * (V - W @ inside)
    return outside - W @ (W.mT @ outside) + W @ _stretch_trace(C + C.mT)


def population_solve(basis: Frame, R: Tensor) -> Tensor:
    """The horizontal V with `P(V) = R`, for horizontal R at the factor of this frame."""
    return population_lift(basis, population_lift_transpose(basis, R))


def population_space(basis: Frame, Y: Tensor) -> Tensor:
    """Orthogonal projection onto population coordinates, which makes W'Y symmetric."""
    inside = basis.W.mT @ Y
    return Y + basis.W @ ((inside.mT - inside) / 2)


def _stretch_trace(C: Tensor) -> Tensor:
    """`T^{1/2} C`."""
    return _scale_trace(C, math.sqrt((2 + C.shape[-1]) / 2)) * math.sqrt(2)


def _scale_trace(C: Tensor, factor: float) -> Tensor:
    r = C.shape[-1]
    trace = C.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return C + (factor - 1) / r * trace * torch.eye(r, dtype=C.dtype, device=C.device)
