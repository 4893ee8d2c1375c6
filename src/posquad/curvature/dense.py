"""All eigenvalues of the Hessian, from its p x p matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.core.linalg import norm, symmetric_part
from posquad.curvature.eigen import Eigenpairs, flatten_block, unflatten_block
from posquad.curvature.unseen import (
    Directions,
    Kernel,
    KernelMarks,
    Point,
    classify_curvatures,
    form_rounding,
    is_apart,
    kernel_from_candidates,
    remove_seen_parts,
)
from posquad.geometry.horizontal import horizontal_part, orthonormal_basis
from posquad.geometry.population import population_coordinates

_CHUNK_ENTRIES = 2**24  # approximate number of entries of a chunk of directions


def dense_eigenpairs(point: Point, chosen: slice) -> tuple[Eigenpairs, KernelMarks]:
    """The selected part of the ascending eigenpairs; the kernel is found separately."""
    u, basis, p = point.u, point.basis, point.p
    shape = (u.shape[-2], u.shape[-1])
    flat_basis = basis._replace(s=torch.ones_like(basis.s))
    E = orthonormal_basis(flat_basis)  # [..., p, d, r], of the population coordinates
    coordinates = E.flatten(-2)  # [..., p, dr]
    M = _matrix(point.population_hessian, E)
    factor_basis = orthonormal_basis(basis)
    F = factor_basis.flatten(-2)
    G = coordinates @ flatten_block(population_coordinates(basis, factor_basis.movedim(-3, 0)))
    H = symmetric_part(G.mT @ M @ G)  # the Hessian in the orthonormal basis F
    spent = p
    if not bool(point.interpolating.all()):
        # If a column of U is small, the gradient makes M large, and its rounding would enter H.
        direct = _matrix(point.hessian, factor_basis)
        H = torch.where(point.interpolating[..., None, None], H, direct)
        spent = 2 * p
    kernel = _dense_kernel(point, M, coordinates, norm(H))
    values, vectors = _kernel_then_eigenpairs(kernel, H, F, point.interpolating)
    scale = values.abs().amax(-1)
    position = torch.arange(p, device=u.device)
    order = values.argsort(dim=-1, stable=True)[..., chosen]
    marked = (position < kernel.size[..., None]).gather(-1, order)
    vectors = vectors.gather(-1, order[..., None, :].expand(*vectors.shape[:-1], order.shape[-1]))
    # eigh has errors of the size of rounding in the largest value; new products give the residuals.
    products = flatten_block(
        horizontal_part(u, point.hessian(unflatten_block(vectors, shape)), basis)
    )
    quotients = (vectors * products).sum(-2)
    residuals = torch.linalg.vector_norm(products - vectors * quotients[..., None, :], dim=-2)
    extreme = torch.ones_like(scale, dtype=torch.bool)
    products_spent = spent + quotients.shape[-1]
    pairs = Eigenpairs(quotients, vectors, residuals, scale, extreme, products_spent)
    known = kernel.known | (is_apart(values, scale, p).all(-1) & ~kernel.suspected)
    return pairs, KernelMarks(marked, known & (marked.sum(-1) == kernel.size))


def _matrix(operator: Directions, basis: Tensor) -> Tensor:
    """The matrix `[..., p, p]` of a symmetric operator in the basis `[..., p, d, r]`."""
    p = basis.shape[-3]
    flat = basis.flatten(-2)  # [..., p, dr]
    M = torch.empty(*flat.shape[:-1], p, dtype=flat.dtype, device=flat.device)
    chunk = max(1, _CHUNK_ENTRIES * p // max(1, basis.numel()))
    for begin in range(0, p, chunk):
        part = basis[..., begin : begin + chunk, :, :].movedim(-3, 0)
        M[..., begin : begin + chunk] = flat @ flatten_block(operator(part))
    return symmetric_part(M)


def _dense_kernel(point: Point, M: Tensor, coordinates: Tensor, size: Tensor) -> Kernel:
    """Kernel from the Hessian M in population coordinates; `size` is its norm in factor ones."""
    values = torch.linalg.eigvalsh(M)
    scale = values.abs().amax(-1)
    rounding = form_rounding(point, scale, size)
    zero, uncertain = classify_curvatures(values, scale, rounding)
    known = ~uncertain.any(-1)
    if not bool(zero.any()):
        return Kernel.empty(point, known)
    values, Y = torch.linalg.eigh(M)  # several times as expensive as the values alone
    zero, _ = classify_curvatures(values, scale, rounding)
    most = int(zero.sum(-1).max())
    order = values.abs().argsort(dim=-1)[..., :most]
    candidates = coordinates.mT @ Y.gather(-1, order[..., None, :].expand(*Y.shape[:-1], most))
    candidates = remove_seen_parts(point, candidates, coordinates.mT @ Y, values, zero)
    return kernel_from_candidates(point, candidates, zero.gather(-1, order), known, scale, size)


def _kernel_then_eigenpairs(
    kernel: Kernel, H: Tensor, F: Tensor, positive: Tensor
) -> tuple[Tensor, Tensor]:
    """All eigenvalues `[..., p]` and vectors `[..., dr, p]`, those of the kernel first.

    The kernel is shifted beyond the largest eigenvalue, so that other vectors do not mix with it.
    """
    if kernel.vectors.shape[-1]:
        top = torch.linalg.eigvalsh(H).abs().amax(-1)
        K = F @ kernel.vectors  # [..., p, c]
        # No farther than necessary, because the errors of eigh are relative to the largest value.
        far = torch.where(top > 0, 1.5 * top, 1.0)
        H = H + far[..., None, None] * (K @ K.mT)
    values, Y = torch.linalg.eigh(H)
    vectors = F.mT @ Y
    values = torch.where(positive[..., None], values.clamp_min(0), values)
    p = values.shape[-1]
    # Rotate [seen ascending, kernel] to [kernel, seen ascending], element by element.
    position = torch.arange(p, device=H.device)
    count = kernel.size[..., None]
    turned = (position - count) % p
    values, vectors = (
        values.gather(-1, turned),
        vectors.gather(-1, turned[..., None, :].expand(vectors.shape)),
    )
    inside = position < count
    padded = torch.nn.functional.pad(kernel.vectors, (0, p - kernel.vectors.shape[-1]))
    return torch.where(inside, 0.0, values), torch.where(inside[..., None, :], padded, vectors)
