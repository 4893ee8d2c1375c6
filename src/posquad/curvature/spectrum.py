"""Effective curvature: the spectrum of the Hessian on the quotient (paper, sections 3.1-3.2).

The quotient metric is the Frobenius inner product of horizontal lifts, so generalized eigenvalues
of the Hessian form relative to it are ordinary eigenvalues on the horizontal space. The projection
`U -> UU'` is a Riemannian submersion of a flat space, so at every U, critical or not, the
Riemannian Hessian lifts to the horizontal part of the Euclidean Hessian of L. Directions along the
fiber never enter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from posquad.core.arrays import (
    A,
    Array,
    like,
    positive_integer,
    positive_number,
    require_factor,
    tensors,
)
from posquad.core.errors import DomainError
from posquad.core.results import Result
from posquad.core.status import Status
from posquad.curvature.dense import dense_eigenpairs
from posquad.curvature.eigen import accuracy_status, converged, unflatten_block
from posquad.curvature.matrix_free import MatrixFree
from posquad.curvature.unseen import working_point
from posquad.geometry import dimension
from posquad.geometry.frames import frame, require_full_rank
from posquad.problems.objectives import LeastSquares, Objective, require_objective

__all__ = ["Spectrum", "effective_spectrum", "population_spectrum"]

_DENSE_LIMIT = 1000  # largest p that method="auto" treats densely
_DENSE_MOST = 15_000  # largest p for which all values are computed: the matrix takes 1.8 GB


@dataclass(frozen=True, eq=False, repr=False)
class Spectrum(Result):
    """Effective eigenvalues in ascending order, with their vectors and residuals.

    The kernel of the Hessian at an interpolating U consists of the tangent vectors that the
    measurements do not see (`eq:effective-hessian-kernel`): predictors in those directions are not
    identifiable. Kernel values are part of `values` and marked by `is_kernel`. A direction is
    marked only if its curvature is zero up to rounding relative to that of the Gaussian population
    in the same direction, a ratio that depends neither on the conditioning of U nor on the choice
    of U in its fiber. If rounding hides whether the kernel is larger, `kernel_is_complete` is False
    and its dimension is not known.
    """

    values: Any  # [..., m]  NaN where not converged
    vectors: Any  # [..., m, d, r]  horizontal, Frobenius-orthonormal
    residuals: Any  # [..., m]  ||Hess v - value v||_F
    status: Status  # CONVERGED, AT_ROUNDING or NOT_CONVERGED
    method: str  # "dense" or "matrix-free"
    gauge_dimension: int  # number r(r-1)/2 of directions along the fiber, which are left out
    is_kernel: Any  # [..., m]  whether the value is zero up to rounding
    kernel_is_known: Any  # [...]  whether every kernel direction is among the vectors and marked
    kernel_is_complete: bool  # whether kernel_is_known holds for the whole batch
    products: int  # number of Hessian products

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

    At an interpolating U they are the effective eigenvalues of Theorem 3.1
    (`thm:effective-hessian`), `<xi, T(xi)> / g_Q(xi, xi)`; the smallest is the rate of the slowest
    mode of the gradient flow.

    Args:
        objective: any objective; `U[..., d, r]` full-rank factors.
        k, which: "all" p = dr - r(r-1)/2 values (dense), or the k "smallest" or "largest"
            (k = 1 if not given).
        method: "dense" builds the p x p matrix; "matrix-free" needs only Hessian products (for
            `RankOne` one pass over X per block) and vectors of size dr, preconditioned by the
            population curvature at the small end; "auto" is dense up to p = 1000.
        tolerance: a matrix-free value has converged when its residual is at most
            tolerance * |value|, or within the rounding of the largest value, and a search from an
            independent random start found no value more extreme by more than tolerance * |value|.
            With a failure probability of 1e-4, that search excludes values that are more extreme
            by the larger of this and |value| / 10. Values that have not converged are NaN.
        max_products: maximum number of Hessian products.
        seed: seed of the random starts of the matrix-free method.

    The kernel is known if cond(U) is at most 1e6 and every direction that the measurements see has
    at least 1e-9 (dense) or 1e-6 (matrix-free) of the largest curvature, relative to that of the
    population. Beyond that it may not be known, and `kernel_is_complete` is then False.

    Where U interpolates up to rounding, the residual is left out of the Hessian: in the direction
    of a small column of U its rounding would look like curvature.

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
    count = _requested_count(k, which, p)
    chosen_method = _chosen_method(method, which, p)
    tolerance = positive_number("tolerance", tolerance)
    positive_integer("max_products", max_products)
    seed = positive_integer("seed", seed, zero=True)
    dtype, eps = u.dtype, torch.finfo(u.dtype).eps
    if chosen_method == "dense" and type(objective) is LeastSquares:
        # In single precision ten units of rounding for each of p unknowns would hide the kernel.
        objective, u = objective.double(), u.double()
        basis = frame("U", u)
    with torch.no_grad():
        point = working_point(objective, u, basis, eps)
        if chosen_method == "dense":
            chosen = slice(p - count, p) if which == "largest" else slice(0, count)
            pairs, kernel = dense_eigenpairs(point, chosen)
        else:
            run = MatrixFree(point, seed, count, tolerance, max_products)
            pairs, kernel = run.largest() if which == "largest" else run.smallest()
        # The working point is UP; transform the vectors back to U.
        vectors = (
            unflatten_block(pairs.vectors, (d, r)).movedim(0, -3) @ basis.P.mT[..., None, :, :]
        )
    good = converged(pairs, tolerance) | kernel.marked  # kernel values are zero
    return Spectrum(
        values=like(U, torch.where(good, pairs.values, torch.nan).to(dtype)),
        vectors=like(U, vectors.to(dtype)),
        residuals=like(U, pairs.residuals.to(dtype)),
        status=accuracy_status(pairs, good, tolerance),
        method=chosen_method,
        gauge_dimension=r * (r - 1) // 2,
        is_kernel=like(U, kernel.marked),
        kernel_is_known=like(U, kernel.known),
        kernel_is_complete=bool(kernel.known.all()),
        products=pairs.products,
    )


def population_spectrum(U: A) -> A:
    """Exact Gaussian population spectrum at `Q = UU'`, `[..., p]`, ascending.

    With the eigenvalues `l_1 >= ... >= l_r` of Q, the spectrum consists of `4 l_j`, d - r times
    each; `4 (l_i + l_j)` for i < j; and the r eigenvalues of `8 diag(l) + 4 sqrt(l) sqrt(l)'` (from
    `eq:population-quadratic-form` in a horizontal basis). So the smallest is `4 l_r` when r < d,
    which is the bound `eq:population-effective-lower`, and at least `8 l_r` when r = d.

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


def _requested_count(k: int | None, which: str, p: int) -> int:
    """Number of values requested."""
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
