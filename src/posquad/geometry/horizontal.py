"""Horizontal and vertical parts, lifts and segments, on checked tensors with a known frame.

Values are computed in the frame `U = W diag(s) P'`, where nothing cancels, however ill-conditioned
U is. When a gradient is recorded, the formula in terms of `S = U'U` supplies the derivative.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.core.linalg import norm, symmetric_part
from posquad.core.ranges import tiny
from posquad.geometry.frames import Frame, divide_right, pair_sums, solve_sylvester


def vertical_part(u: Tensor, z: Tensor, basis: Frame) -> Tensor:
    """Part of Z along the fiber, `U Omega` (Proposition 2.2, `prop:horizontal-projection`)."""
    W, s, P = basis
    with torch.no_grad():
        C = s[..., :, None] * (W.mT @ z @ P)  # P'U'Z P
        value = W @ (s[..., :, None] * (C - C.mT) / pair_sums(s)) @ P.mT
    if not records_gradient(u, z):
        return value
    C = u.mT @ z
    return _with_derivative(value, u @ solve_sylvester(u.mT @ u, C - C.mT, basis))


def horizontal_part(u: Tensor, z: Tensor, basis: Frame) -> Tensor:
    """Part of Z orthogonal to the fiber."""
    return z - vertical_part(u, z, basis)


def orthonormal_basis(basis: Frame) -> Tensor:
    """A Frobenius-orthonormal basis of the horizontal space, `[..., p, d, r]`."""
    W, s, P = basis
    r = s.shape[-1]
    # The trailing d - r columns of a complete QR factorisation complete W to a basis.
    outside = torch.linalg.qr(W, mode="complete").Q[..., r:]  # [..., d, d-r]
    across = torch.einsum("...ai,...bj->...ijab", outside, P)  # [..., d-r, r, d, r]
    i, j = torch.triu_indices(r, r, device=s.device)
    along = torch.einsum("...ak,...bk->...kab", s[..., None, j] * W[..., i], P[..., j])
    along = along + torch.einsum("...ak,...bk->...kab", s[..., None, i] * W[..., j], P[..., i])
    along = along / norm(along)[..., None, None]  # [..., r(r+1)/2, d, r]
    return torch.cat([across.flatten(-4, -3), along], dim=-3)


def lift(u: Tensor, xi: Tensor, basis: Frame) -> Tensor:
    """The horizontal Delta with `Delta U' + U Delta' = xi`, for a tangent xi."""
    W, s, P = basis
    with torch.no_grad():
        xw = xi @ W
        X = W.mT @ xw
        inner = X * s[..., None, :] / pair_sums(s)  # W'Delta P
        value = (W @ inner + (xw - W @ X) / s[..., None, :]) @ P.mT
    if not records_gradient(u, xi):
        return value
    # xi U = Delta S + U B with B = U'Delta symmetric, and U'xi U = B S + S B.
    S, xu = u.mT @ u, xi @ u
    return _with_derivative(
        value, divide_right(xu - u @ solve_sylvester(S, u.mT @ xu, basis), S, basis)
    )


def distance_from_tangent_space(xi: Tensor, basis: Frame) -> Tensor:
    """`||(I - WW') xi (I - WW')||_F / ||xi||_F`, `[...]`."""
    W = basis.W
    rest = xi - W @ (W.mT @ xi)
    return norm(rest - (rest @ W) @ W.mT) / norm(xi).clamp_min(tiny(xi))


def rank_loss(u: Tensor, delta: Tensor, basis: Frame) -> Tensor:
    """First t in (0, 1] at which `U + t Delta` loses rank, or infinity if it does not.

    A null vector v of `U + t Delta` satisfies `S v + t B v = 0` with `B = U'Delta` symmetric, so t
    is -1/mu for an eigenvalue mu <= -1 of `S^{-1/2} B S^{-1/2}`. At most r candidates have to be
    tested; those just beyond 1 are tested at 1.
    """
    W, s, P = basis
    B = (W.mT @ delta @ P) / s[..., None, :]  # = diag(s)^{-1} P'BP diag(s)^{-1}
    mu = torch.linalg.eigvalsh(symmetric_part(B))  # [..., r]
    near = mu <= -1 + torch.finfo(u.dtype).eps ** 0.5
    t = torch.where(near, (-1 / mu).clamp_max(1), torch.zeros_like(mu))
    points = u[..., None, :, :] + t[..., None, None] * delta[..., None, :, :]
    smallest = torch.linalg.svdvals(points)[..., -1]  # [..., r]
    scale = s[..., :1] + norm(delta)[..., None]
    lost = near & (smallest <= 10 * u.shape[-2] * torch.finfo(u.dtype).eps * scale)
    return torch.where(lost, t, torch.inf).amin(-1)


def records_gradient(*arguments: Tensor) -> bool:
    """Whether autograd records operations on one of these tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in arguments)


def _with_derivative(value: Tensor, formula: Tensor) -> Tensor:
    """The value, with the derivative of the formula."""
    return formula + (value - formula).detach()
