"""Effective curvature: the Hessian of ell on the quotient, free of gauge (paper, section 3.1-3.2).

Generalized eigenvalues of the Hessian form against the quotient metric are ordinary eigenvalues on
the horizontal space, because the metric is the Frobenius inner product of lifts. The projection is
a Riemannian submersion of a flat space, so at every U, critical or not, the Riemannian Hessian
lifts to the horizontal part of the Euclidean Hessian of L. Gauge directions never enter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from posquad._arrays import (
    A,
    Array,
    like,
    positive_integer,
    positive_number,
    require_factor,
    tensors,
)
from posquad._eigen import extreme_eigenpairs
from posquad._frames import Frame, frame, require_full_rank
from posquad._population import population_solve
from posquad.errors import DomainError, DtypeError
from posquad.geometry import dimension, horizontal_basis, vertical_part
from posquad.objectives import Objective
from posquad.status import Status

__all__ = ["Spectrum", "effective_spectrum", "population_spectrum"]

_DENSE_LIMIT = 1000  # largest p that method="auto" treats densely
_CHUNK_ENTRIES = 2**24  # entries of a chunk of directions times measurements, roughly


@dataclass(frozen=True)
class Spectrum:
    """Effective eigenvalues, ascending, with what is known about them.

    The kernel of the Hessian at an interpolating U consists of the tangent vectors that the
    measurements do not see (`eq:effective-hessian-kernel`): predictors in those directions are not
    identifiable. Kernel values are part of `values` and marked by `is_kernel`.
    """

    values: Any  # [..., m]  NaN where not converged
    vectors: Any  # [..., m, d, r]  horizontal, Frobenius-orthonormal
    residuals: Any  # [..., m]  ||Hess v - value v||_F
    status: Status  # CONVERGED or NOT_CONVERGED
    method: str  # "dense" or "matrix-free"
    gauge_dimension: int  # r(r-1)/2 fiber directions, removed
    is_kernel: Any  # [..., m]  value is zero to rounding of the largest one
    kernel_is_complete: bool  # False if kernel directions may exist beyond those computed
    products: int  # Hessian products spent

    @property
    def kernel_dimension(self) -> Any:
        """Number of non-identifiable directions found, an integer or `[...]` for a batch."""
        count = self.is_kernel.sum(-1)
        return int(count) if count.ndim == 0 else count

    @property
    def kernel_vectors(self) -> Any:
        """Non-identifiable directions `[kernel_dimension, d, r]`; a list of them for a batch."""
        if self.is_kernel.ndim == 1:
            return self.vectors[self.is_kernel]
        masks = self.is_kernel.reshape(-1, self.is_kernel.shape[-1])
        flat = self.vectors.reshape(*masks.shape, *self.vectors.shape[-2:])
        return [vectors[mask] for vectors, mask in zip(flat, masks, strict=True)]


def effective_spectrum(
    objective: Objective,
    U: Array,
    *,
    k: int | None = None,
    which: Literal["all", "smallest", "largest"] = "all",
    method: Literal["auto", "dense", "matrix-free"] = "auto",
    tolerance: float = 1e-9,
    max_products: int = 5000,
    seed: int = 0,
) -> Spectrum:
    """Eigenvalues of the Riemannian Hessian at `Q = UU'` in the quotient metric.

    At an interpolating U they are the effective eigenvalues of `thm:effective-hessian`,
    `<xi, T(xi)> / g_Q(xi, xi)`; the smallest is the rate of the slowest mode of the gradient flow.

    Args:
        objective: any objective; `U[..., d, r]` full-rank factors.
        k, which: "all" p = dr - r(r-1)/2 values (dense), or the k "smallest" or "largest"
            (k = 1 if not given).
        method: "dense" builds the p x p matrix; "matrix-free" needs only Hessian products (for
            `RankOne` one pass over X each block) and O(dr) vectors, preconditioned by the
            population curvature at the small end; "auto" is dense up to p = 1000.
        tolerance: a matrix-free value has converged when its residual is at most
            tolerance * |value|, or rounding of the largest value. Others come back as NaN.
        max_products: most Hessian products.
        seed: of the random start of the matrix-free method.

    >>> from posquad import PopulationRisk, effective_spectrum
    >>> U = np.diag([1.0, 0.5])[:, :1] @ np.eye(1)
    >>> effective_spectrum(PopulationRisk(U), U).values
    array([ 4., 12.])
    """
    if not isinstance(objective, Objective):
        raise DtypeError("objective", expected="an Objective", got=type(objective).__name__)
    (u,) = objective.admit(U=U)
    u = u.detach()
    basis = frame("U", u)
    p = dimension(*u.shape[-2:])
    count = _request(k, which, p)
    chosen_method = _chosen_method(method, which, p)
    tolerance = positive_number("tolerance", tolerance)
    positive_integer("max_products", max_products)
    with torch.no_grad():
        hessian = _riemannian_hessian(objective, u, basis)
        if chosen_method == "dense":
            result = _dense(hessian, u, p)
        else:
            result = _matrix_free(
                hessian, u, basis, p, count, which == "largest", tolerance, max_products, seed
            )
    values, vectors, residuals, scale, products = result
    if chosen_method == "dense":
        chosen = slice(p - count, p) if which == "largest" else slice(0, count)
        values, residuals = values[..., chosen], residuals[..., chosen]
        vectors = vectors[..., chosen, :, :]
    rounding = 10 * p * torch.finfo(u.dtype).eps * scale[..., None]
    converged = residuals <= torch.maximum(tolerance * values.abs(), rounding)
    is_kernel = converged & (values.abs() <= rounding)
    above = (values > rounding).any(-1).all()  # the computed values reach past the kernel
    complete = count == p or (which == "smallest" and bool(above))
    return Spectrum(
        values=like(U, torch.where(converged, values, torch.nan)),
        vectors=like(U, vectors),
        residuals=like(U, residuals),
        status=Status.CONVERGED if bool(converged.all()) else Status.NOT_CONVERGED,
        method=chosen_method,
        gauge_dimension=u.shape[-1] * (u.shape[-1] - 1) // 2,
        is_kernel=like(U, is_kernel),
        kernel_is_complete=complete,
        products=products,
    )


def population_spectrum(U: A) -> A:
    """The exact Gaussian population spectrum at `Q = UU'`, `[..., p]` ascending.

    With eigenvalues `l_1 >= ... >= l_r` of Q: `4 l_j`, d - r times each; `4 (l_i + l_j)` for i <
    j; and the r eigenvalues of `8 diag(l) + 4 sqrt(l) sqrt(l)'` (from
    `eq:population-quadratic-form` in a horizontal basis). So the smallest is `4 l_r` when r < d,
    as the bound `eq:population-effective-lower` has it, and at least `8 l_r` when r = d.

    >>> population_spectrum(np.eye(3, 1))
    array([ 4.,  4., 12.])
    """
    (u,) = tensors(U=U)
    require_factor("U", u)
    require_full_rank("U", u)
    d, r = u.shape[-2:]
    s = torch.linalg.svdvals(u)
    l = s.square()  # [..., r]
    i, j = torch.triu_indices(r, r, 1, device=u.device)
    outside = (4 * l).repeat_interleave(d - r, dim=-1)
    pairs = 4 * (l[..., i] + l[..., j])
    scaling = torch.linalg.eigvalsh(8 * torch.diag_embed(l) + 4 * s[..., :, None] * s[..., None, :])
    return like(U, torch.cat([outside, pairs, scaling], dim=-1).sort(dim=-1).values)


Directions = Callable[[Tensor], Tensor]  # [m, ..., d, r] -> [m, ..., d, r]
_Result = tuple[Tensor, Tensor, Tensor, Tensor, int]


def _riemannian_hessian(objective: Objective, u: Tensor, basis: Frame) -> Directions:
    euclidean = objective.linearize(u)

    def product(Delta: Tensor) -> Tensor:
        H = euclidean(Delta)
        return H - vertical_part(u, H, basis)

    return product


def _dense(hessian: Directions, u: Tensor, p: int) -> _Result:
    B = horizontal_basis(u)  # [..., p, d, r]
    flat = B.flatten(-2)  # [..., p, dr]
    M = torch.empty(*B.shape[:-2], p, dtype=u.dtype, device=u.device)  # [..., p, p]
    chunk = max(1, _CHUNK_ENTRIES // max(1, u.numel()))
    for begin in range(0, p, chunk):
        part = B[..., begin : begin + chunk, :, :].movedim(-3, 0)
        M[..., begin : begin + chunk] = flat @ hessian(part).flatten(-2).movedim(0, -1)
    M = (M + M.mT) / 2  # symmetric in exact arithmetic
    values, Y = torch.linalg.eigh(M)
    residuals = torch.linalg.vector_norm(M @ Y - Y * values[..., None, :], dim=-2)
    vectors = (Y.mT @ flat).unflatten(-1, u.shape[-2:])
    return values, vectors, residuals, values.abs().amax(-1), p


def _matrix_free(
    hessian: Directions,
    u: Tensor,
    basis: Frame,
    p: int,
    k: int,
    largest: bool,
    tolerance: float,
    max_products: int,
    seed: int,
) -> _Result:
    def directions(block: Tensor) -> Tensor:  # [..., dr, m] -> [m, ..., d, r]
        return block.movedim(-1, 0).unflatten(-1, u.shape[-2:])

    def columns(Delta: Tensor) -> Tensor:  # [m, ..., d, r] -> [..., dr, m]
        return Delta.flatten(-2).movedim(0, -1)

    def operator(block: Tensor) -> Tensor:
        return columns(hessian(directions(block)))

    def precondition(block: Tensor) -> Tensor:
        return block if largest else columns(population_solve(basis, directions(block)))

    def project(block: Tensor) -> Tensor:
        R = directions(block)
        return columns(R - vertical_part(u, R, basis))

    width = min(k + 2, p)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(width, *u.shape, dtype=u.dtype, generator=generator).to(u.device)
    pairs = extreme_eigenpairs(
        operator,
        precondition,
        project,
        project(columns(start)),
        k=k,
        largest=largest,
        dimension=p,
        tolerance=tolerance,
        max_products=max_products,
    )
    order = pairs.values.argsort(dim=-1)
    vectors = directions(pairs.vectors).movedim(0, -3)  # [..., k, d, r]
    ordered = vectors.gather(-3, order[..., None, None].expand(vectors.shape))
    return (
        pairs.values.gather(-1, order),
        ordered,
        pairs.residuals.gather(-1, order),
        pairs.scale,
        pairs.products,
    )


def _request(k: int | None, which: str, p: int) -> int:
    """How many values are asked for."""
    if which not in ("all", "smallest", "largest"):
        raise DomainError("which", expected="'all', 'smallest' or 'largest'", got=repr(which))
    if which == "all":
        if k is not None:
            raise DomainError("k", expected="None with which='all'", got=repr(k))
        return p
    k = positive_integer("k", 1 if k is None else k)
    if k > p:
        raise DomainError("k", expected=f"at most p = {p} values", got=str(k))
    return k


def _chosen_method(method: str, which: str, p: int) -> str:
    if method not in ("auto", "dense", "matrix-free"):
        raise DomainError("method", expected="'auto', 'dense' or 'matrix-free'", got=repr(method))
    if method == "matrix-free" and which == "all":
        raise DomainError(
            "which", expected="'smallest' or 'largest' with method='matrix-free'", got="'all'"
        )
    if method == "auto":
        return "dense" if which == "all" or p <= _DENSE_LIMIT else "matrix-free"
    return method
