"""The Gaussian population curvature in factor coordinates, and its closed-form inverse.

On horizontal V at U, `P(V) = 2 T(VU' + UV') U = 4 [V S + U V'U + tr(U'V) U]` with `S = U'U` and T
of `lem:gaussian-population-operator`. Both directions cost O(d r^2) and form nothing d x d.
Relative to P the curvature of Gaussian measurements does not depend on the conditioning of Q.
"""

from __future__ import annotations

from torch import Tensor

from posquad._frames import Frame


def population_product(U: Tensor, S: Tensor, V: Tensor) -> Tensor:
    """`P(V)`, with `S = U'U`."""
    trace = (U * V).sum((-2, -1))[..., None, None]
    return 4 * (V @ S + U @ (V.mT @ U) + trace * U)


def population_solve(basis: Frame, R: Tensor) -> Tensor:
    """The horizontal V with `P(V) = R`, for horizontal R at the factor of this frame.

    Outside range(U), `V = R S^{-1} / 4`. Along it, `B = U'V` solves `BS + SB + tr(B) S = U'R/4`:
    divide by `s_i^2 + s_j^2` in the eigenbasis of S, then subtract `(t/2) I` with `t = tr(B_1) /
    (1 + r/2)`.
    """
    W, s, P = basis
    inside = W.mT @ R  # [..., r, r]
    outside = (R - W @ inside) @ P / s.square()[..., None, :]
    C = s[..., :, None] * (inside @ P)  # P'U'R P, symmetric
    B = C / (s.square()[..., :, None] + s.square()[..., None, :])
    trace = B.diagonal(dim1=-2, dim2=-1).sum(-1) / (1 + s.shape[-1] / 2)
    B = B - (trace / 2)[..., None, None] * B.new_ones(s.shape[-1]).diag()
    return (outside + W @ (B / s[..., :, None])) @ P.mT / 4
