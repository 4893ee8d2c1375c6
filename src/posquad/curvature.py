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
from posquad._eigen import (
    Eigenpairs,
    accuracy_status,
    converged,
    extreme_eigenpairs,
    flatten_block,
    unflatten_block,
)
from posquad._frames import Frame, frame, require_full_rank
from posquad._horizontal import horizontal_part
from posquad._linalg import symmetric_part
from posquad._population import population_product, population_solve
from posquad._results import Result
from posquad.errors import DomainError
from posquad.geometry import dimension, horizontal_basis
from posquad.objectives import Objective, require_objective
from posquad.status import Status

__all__ = ["Spectrum", "effective_spectrum", "population_spectrum"]

_DENSE_LIMIT = 1000  # largest p that method="auto" treats densely
_DENSE_MOST = 15_000  # largest p for which all values are computed: the matrix has 1.8 GB
_CHUNK_ENTRIES = 2**24  # entries of a chunk of directions times measurements, roughly


@dataclass(frozen=True, eq=False, repr=False)
class Spectrum(Result):
    """Effective eigenvalues, ascending, with what is known about them.

    The kernel of the Hessian at an interpolating U consists of the tangent vectors that the
    measurements do not see (`eq:effective-hessian-kernel`): predictors in those directions are not
    identifiable. Kernel values are part of `values` and marked by `is_kernel`.
    """

    values: Any  # [..., m]  NaN where not converged
    vectors: Any  # [..., m, d, r]  horizontal, Frobenius-orthonormal
    residuals: Any  # [..., m]  ||Hess v - value v||_F
    status: Status  # CONVERGED, AT_ROUNDING or NOT_CONVERGED
    method: str  # "dense" or "matrix-free"
    gauge_dimension: int  # r(r-1)/2 fiber directions, removed
    is_kernel: Any  # [..., m]  value is zero to rounding
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
    require_objective(objective)
    (u,) = objective.admit(U=U)
    u = u.detach()
    basis = frame("U", u)
    d, r = u.shape[-2:]
    p = dimension(d, r)
    count = _request(k, which, p)
    chosen_method = _chosen_method(method, which, p)
    tolerance = positive_number("tolerance", tolerance)
    positive_integer("max_products", max_products)
    seed = positive_integer("seed", seed, zero=True)
    with torch.no_grad():
        hessian = _riemannian_hessian(objective, u, basis)
        if chosen_method == "dense":
            chosen = slice(p - count, p) if which == "largest" else slice(0, count)
            pairs = _dense(hessian, u, chosen)
        else:
            request = {"k": count, "largest": which == "largest", "tolerance": tolerance}
            pairs = _matrix_free(hessian, u, basis, seed, max_products=max_products, **request)
        values, residuals = pairs.values, pairs.residuals
        vectors = unflatten_block(pairs.vectors, (d, r)).movedim(0, -3)  # [..., m, d, r]
        good = converged(values, residuals, pairs.scale, tolerance)
        is_kernel = good & _unseen(values, vectors, u, pairs.scale)
    # Beyond the computed values there may be more kernel, unless they reach past it.
    above = (good & (values > 0) & ~is_kernel).any(-1).all()
    return Spectrum(
        values=like(U, torch.where(good, values, torch.nan)),
        vectors=like(U, vectors),
        residuals=like(U, residuals),
        status=accuracy_status(values, residuals, pairs.scale, tolerance),
        method=chosen_method,
        gauge_dimension=r * (r - 1) // 2,
        is_kernel=like(U, is_kernel),
        kernel_is_complete=count == p or (which == "smallest" and bool(above)),
        products=pairs.products,
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


def _riemannian_hessian(objective: Objective, u: Tensor, basis: Frame) -> Directions:
    euclidean = objective.linearize(u)

    def product(Delta: Tensor) -> Tensor:
        return horizontal_part(u, euclidean(Delta), basis)

    return product


def _dense(hessian: Directions, u: Tensor, chosen: slice) -> Eigenpairs:
    B = horizontal_basis(u)  # [..., p, d, r]
    p = B.shape[-3]
    flat = B.flatten(-2)  # [..., p, dr]
    M = torch.empty(*B.shape[:-2], p, dtype=u.dtype, device=u.device)  # [..., p, p]
    chunk = max(1, _CHUNK_ENTRIES // max(1, u.numel()))
    for begin in range(0, p, chunk):
        part = B[..., begin : begin + chunk, :, :].movedim(-3, 0)
        M[..., begin : begin + chunk] = flat @ flatten_block(hessian(part))
    values, Y = torch.linalg.eigh(symmetric_part(M))
    scale = values.abs().amax(-1)
    vectors = flat.mT @ Y[..., chosen]  # [..., dr, m]
    # eigh errs by the rounding of the largest value; a fresh product shows what the vectors have.
    products = flatten_block(hessian(unflatten_block(vectors, (u.shape[-2], u.shape[-1]))))
    quotients = (vectors * products).sum(-2)
    residuals = torch.linalg.vector_norm(products - vectors * quotients[..., None, :], dim=-2)
    return Eigenpairs(quotients, vectors, residuals, scale, p + quotients.shape[-1])


def _matrix_free(
    hessian: Directions,
    u: Tensor,
    basis: Frame,
    seed: int,
    *,
    k: int,
    largest: bool,
    tolerance: float,
    max_products: int,
) -> Eigenpairs:
    d, r = u.shape[-2:]
    p = dimension(d, r)

    def operator(block: Tensor) -> Tensor:
        return flatten_block(hessian(unflatten_block(block, (d, r))))

    def precondition(block: Tensor) -> Tensor:
        if largest:
            return block
        return flatten_block(population_solve(basis, unflatten_block(block, (d, r))))

    def project(block: Tensor) -> Tensor:
        return flatten_block(horizontal_part(u, unflatten_block(block, (d, r)), basis))

    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(min(k + 2, p), *u.shape, dtype=u.dtype, generator=generator).to(u.device)
    pairs = extreme_eigenpairs(
        operator,
        precondition,
        project,
        project(flatten_block(start)),
        k=k,
        largest=largest,
        dimension=p,
        tolerance=tolerance,
        max_products=max_products,
    )
    order = pairs.values.argsort(dim=-1)
    return pairs._replace(
        values=pairs.values.gather(-1, order),
        residuals=pairs.residuals.gather(-1, order),
        vectors=pairs.vectors.gather(-1, order[..., None, :].expand(pairs.vectors.shape)),
    )


def _unseen(values: Tensor, vectors: Tensor, u: Tensor, scale: Tensor) -> Tensor:
    """Directions whose curvature is rounding, beside the population's curvature in that direction.

    At interpolation the ratio of the two depends only on the range of U, so that a weak but seen
    direction of an ill-conditioned U is not taken for an unseen one.
    """
    p = dimension(*u.shape[-2:])
    S, here = (u.mT @ u)[..., None, :, :], u[..., None, :, :]
    population = (vectors * population_product(here, S, vectors)).sum((-2, -1))
    singular = torch.linalg.svdvals(u)
    top = 12 * singular[..., 0].square()  # of the order of the largest population curvature
    share = population / top[..., None]
    return values.abs() <= 10 * p * torch.finfo(u.dtype).eps * scale[..., None] * share


def _request(k: int | None, which: str, p: int) -> int:
    """How many values are asked for."""
    if which not in ("all", "smallest", "largest"):
        raise DomainError("which", expected="'all', 'smallest' or 'largest'", got=repr(which))
    if which == "all":
        if k is not None:
            raise DomainError("k", expected="None with which='all'", got=repr(k))
        if p > _DENSE_MOST:
            raise DomainError(
                "which",
                expected=f"'smallest' or 'largest' when p > {_DENSE_MOST}",
                got=f"'all' {p} values, which needs a dense p x p matrix",
            )
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
    if method == "dense" and p > _DENSE_MOST:
        got = f"p = {p}; use method='matrix-free'"
        raise DomainError("method", expected=f"'dense' for p <= {_DENSE_MOST} only", got=got)
    if method == "auto":
        return "dense" if which == "all" or p <= _DENSE_LIMIT else "matrix-free"
    return method
