"""Effective curvature: the spectrum of the Hessian on the quotient (paper, sections 3.1-3.2).

The quotient metric is the Frobenius inner product of horizontal lifts, so generalized eigenvalues
of the Hessian form relative to it are ordinary eigenvalues on the horizontal space. The projection
`U -> UU'` is a Riemannian submersion of a flat space, so at every U, critical or not, the
Riemannian Hessian lifts to the horizontal part of the Euclidean Hessian of L. Directions along the
fiber never enter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

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
from posquad.core.linalg import norm, symmetric_part
from posquad.core.results import Result
from posquad.core.status import Status
from posquad.curvature.eigen import (
    Block,
    Eigenpairs,
    Preconditioner,
    accuracy_status,
    converged,
    extreme_eigenpairs,
    flatten_block,
    no_preconditioner,
    unflatten_block,
)
from posquad.curvature.unseen import (
    Directions,
    Kernel,
    Point,
    classify_curvatures,
    kernel_from_candidates,
    rounding_bounds,
    working_point,
)
from posquad.geometry import dimension
from posquad.geometry.frames import frame, require_full_rank
from posquad.geometry.horizontal import horizontal_part, orthonormal_basis
from posquad.geometry.population import (
    population_coordinates,
    population_lift,
    population_lift_transpose,
    population_space,
)
from posquad.problems.objectives import LeastSquares, Objective, require_objective

__all__ = ["Spectrum", "effective_spectrum", "population_spectrum"]

_DENSE_LIMIT = 1000  # largest p that method="auto" treats densely
_DENSE_MOST = 15_000  # largest p for which all values are computed: the matrix takes 1.8 GB
_CHUNK_ENTRIES = 2**24  # approximate number of entries of a chunk of directions


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

    At an interpolating U they are the effective eigenvalues of `thm:effective-hessian`,
    `<xi, T(xi)> / g_Q(xi, xi)`; the smallest is the rate of the slowest mode of the gradient flow.

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
        max_products: largest number of Hessian products.
        seed: seed of the random starts of the matrix-free method.

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
            pairs, kernel = _dense(point, chosen)
        else:
            run = _MatrixFree(point, seed, count, tolerance, max_products)
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


class _KernelMarks(NamedTuple):
    marked: Tensor  # [..., m]  whether a computed value belongs to the kernel
    known: Tensor  # [...]  whether the kernel has no other directions


def _dense(point: Point, chosen: slice) -> tuple[Eigenpairs, _KernelMarks]:
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
        # Beside a weak column the gradient makes M large, and its rounding would pass into H.
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
    # eigh errs by the rounding of the largest value; new products give the actual residuals.
    products = flatten_block(
        horizontal_part(u, point.hessian(unflatten_block(vectors, shape)), basis)
    )
    quotients = (vectors * products).sum(-2)
    residuals = torch.linalg.vector_norm(products - vectors * quotients[..., None, :], dim=-2)
    extreme = torch.ones_like(scale, dtype=torch.bool)
    products_spent = spent + quotients.shape[-1]
    pairs = Eigenpairs(quotients, vectors, residuals, scale, extreme, products_spent)
    known = kernel.known | _apart(values, scale, p).all(-1)
    return pairs, _KernelMarks(marked, known & (marked.sum(-1) == kernel.size))


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
    rounding = rounding_bounds(point, scale, size)
    zero, uncertain = classify_curvatures(values, scale, rounding)
    known = ~uncertain.any(-1)
    if not bool(zero.any()):
        return Kernel.empty(point, known)
    values, Y = torch.linalg.eigh(M)  # several times as expensive as the values alone
    zero, _ = classify_curvatures(values, scale, rounding)
    most = int(zero.sum(-1).max())
    order = values.abs().argsort(dim=-1)[..., :most]
    candidates = coordinates.mT @ Y.gather(-1, order[..., None, :].expand(*Y.shape[:-1], most))
    candidates = _remove_seen_parts(point, candidates, coordinates.mT @ Y, values, zero)
    return kernel_from_candidates(
        point, candidates, zero.gather(-1, order), known, rounding.measurement, size
    )


def _remove_seen_parts(
    point: Point, candidates: Tensor, vectors: Tensor, values: Tensor, zero: Tensor
) -> Tensor:
    """Remove from kernel candidates `[..., dr, c]` their components along seen eigenvectors.

    An eigensolver leaves components of size rounding times the largest curvature over the seen one.
    A new product with the Hessian shows them.
    """
    shape = (point.u.shape[-2], point.u.shape[-1])
    fresh = flatten_block(point.population_hessian(unflatten_block(candidates, shape)))
    inverse = torch.where(zero, 0.0, 1 / torch.where(zero, 1.0, values))
    return candidates - vectors @ (inverse[..., :, None] * (vectors.mT @ fresh))


def _kernel_then_eigenpairs(
    kernel: Kernel, H: Tensor, F: Tensor, positive: Tensor
) -> tuple[Tensor, Tensor]:
    """All eigenvalues `[..., p]` and vectors `[..., dr, p]`, those of the kernel first.

    The kernel is shifted beyond the largest eigenvalue, so that other vectors do not mix with it.
    """
    if kernel.vectors.shape[-1]:
        top = torch.linalg.eigvalsh(H).abs().amax(-1)
        K = F @ kernel.vectors  # [..., p, c]
        # No farther than necessary, because eigh errs by the rounding of the largest value.
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


class _MatrixFree:
    """Smallest or largest part of the spectrum, from Hessian products alone."""

    def __init__(
        self, point: Point, seed: int, k: int, tolerance: float, max_products: int
    ) -> None:
        self.point, self.k, self.tolerance, self.max_products = point, k, tolerance, max_products
        self.shape = (point.u.shape[-2], point.u.shape[-1])
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)
        self.products = 0
        self.floor = torch.where(point.interpolating, 0.0, -torch.inf).to(point.u.dtype)

    def largest(self) -> tuple[Eigenpairs, _KernelMarks]:
        none = no_preconditioner(self._horizontal)
        pairs = self._extreme_pairs(self._hessian, none, self._horizontal, self.k, largest=True)
        marked = (pairs.scale == 0)[..., None].expand(pairs.values.shape)
        return _ascending(pairs), _KernelMarks(marked, torch.zeros_like(pairs.extreme))

    def smallest(self) -> tuple[Eigenpairs, _KernelMarks]:
        population = Preconditioner(self._lift, self._lift_transpose, self._coordinates)
        pairs = self._extreme_pairs(self._hessian, population, self._horizontal, self.k)
        pairs = _ascending(pairs)
        apart = _apart(pairs.values, pairs.scale, self.point.p)
        beyond = (pairs.values[..., -1] > 0) & converged(pairs, self.tolerance).all(-1)
        none = torch.zeros_like(pairs.values, dtype=torch.bool)
        if bool((~apart).any() & pairs.extreme.any()):
            kernel = self._kernel(pairs.scale)
            if bool((kernel.size > 0).any()):
                return self._insert_kernel(kernel, pairs)
            return pairs, _KernelMarks(none, kernel.known)
        # No value lies below those found, so a zero would be among them.
        return pairs, _KernelMarks(none, beyond)

    def _kernel(self, norm: Tensor) -> Kernel:
        """Kernel with up to k directions, found in population coordinates."""
        point = self.point

        def population_hessian(block: Tensor) -> Tensor:
            Y = point.population_hessian(unflatten_block(block, self.shape))
            return flatten_block(population_space(point.basis, Y))

        none = no_preconditioner(self._coordinates)
        pairs = _ascending(
            self._extreme_pairs(population_hessian, none, self._coordinates, self.k, tolerance=1e-2)
        )
        rounding = rounding_bounds(point, pairs.scale, norm)
        zero, uncertain = classify_curvatures(pairs.values, pairs.scale, rounding)
        good = converged(pairs, 1e-2)
        last = pairs.values[..., -1]
        reached = (self.k == point.p) | ((last > 0) & ~zero[..., -1])
        known = good.all(-1) & ~uncertain.any(-1) & reached
        # A residual of rounding allows a component of that size, divided by the curvature, along
        # the seen direction of least curvature.
        mixed = 1 + (pairs.scale / torch.where(known, last.abs(), pairs.scale)).sqrt()
        unseen = rounding.measurement * torch.where(last.abs() > 0, mixed, 1.0)
        vectors, values = pairs.vectors, pairs.values
        candidates = _remove_seen_parts(point, vectors, vectors, values, zero)
        self.products += self.k
        return kernel_from_candidates(point, candidates, zero & good, known, unseen, norm)

    def _insert_kernel(self, kernel: Kernel, first: Eigenpairs) -> tuple[Eigenpairs, _KernelMarks]:
        """Kernel and smallest other values; the pairs `first` where there is no kernel."""
        pairs = first
        for size in kernel.size.unique().tolist():
            here = kernel.size == size
            if size:
                found = self._kernel_then_smallest(kernel.vectors[..., :size], here)
                pairs = Eigenpairs(
                    values=torch.where(here[..., None], found.values, pairs.values),
                    vectors=torch.where(here[..., None, None], found.vectors, pairs.vectors),
                    residuals=torch.where(here[..., None], found.residuals, pairs.residuals),
                    scale=torch.maximum(found.scale, pairs.scale),
                    extreme=torch.where(here, found.extreme, pairs.extreme),
                    products=self.products,
                )
        marked = torch.arange(self.k, device=kernel.size.device) < kernel.size[..., None]
        order = torch.where(marked, 0.0, pairs.values).argsort(dim=-1, stable=True)
        return _ordered(pairs, order), _KernelMarks(marked.gather(-1, order), kernel.known)

    def _kernel_then_smallest(self, K: Tensor, here: Tensor) -> Eigenpairs:
        """The kernel `K[..., dr, c]`, then the k - c smallest values orthogonal to it.

        Computed where `here[...]` holds; elsewhere the operator is replaced by the identity, which
        converges at once.
        """
        inside = here[..., None, None]
        K = torch.where(inside, K, 0.0)
        deflated = torch.where(inside, torch.linalg.qr(self._lift_transpose(K)).Q, 0.0)

        def project(block: Tensor) -> Tensor:
            block = self._horizontal(block)
            return block - K @ (K.mT @ block)

        def coordinates(block: Tensor) -> Tensor:
            block = self._coordinates(block)
            return block - deflated @ (deflated.mT @ block)

        def deflated_hessian(block: Tensor) -> Tensor:
            return torch.where(inside, project(self._hessian(block)), block)

        def lift(block: Tensor) -> Tensor:
            return torch.where(inside, self._lift(block), block)

        def lift_transpose(block: Tensor) -> Tensor:
            return torch.where(inside, self._lift_transpose(block), block)

        products = self._hessian(K)
        self.products += K.shape[-1]
        values = (K * products).sum(-2)
        residuals = torch.linalg.vector_norm(products - K * values[..., None, :], dim=-2)
        wanted = self.k - K.shape[-1]
        if wanted == 0:
            nothing = torch.zeros_like(values[..., 0])
            return Eigenpairs(values, K, residuals, nothing, here, self.products)
        root = Preconditioner(lift, lift_transpose, coordinates)
        rest = _ascending(
            self._extreme_pairs(deflated_hessian, root, project, wanted, removed=K.shape[-1])
        )
        return rest._replace(
            values=torch.cat([values, rest.values], dim=-1),
            residuals=torch.cat([residuals, rest.residuals], dim=-1),
            vectors=torch.cat([K, rest.vectors], dim=-1),
            scale=torch.where(here, rest.scale, 0.0),
        )

    def _extreme_pairs(
        self,
        operator: Block,
        preconditioner: Preconditioner,
        project: Block,
        k: int,
        *,
        largest: bool = False,
        tolerance: float | None = None,
        removed: int = 0,
    ) -> Eigenpairs:
        dimension = self.point.p - removed
        u = self.point.u
        start = torch.randn(
            min(k + 2, dimension), *u.shape, dtype=u.dtype, generator=self.generator
        )
        pairs = extreme_eigenpairs(
            operator,
            preconditioner,
            project,
            project(flatten_block(start.to(u.device))),
            k=k,
            largest=largest,
            dimension=dimension,
            tolerance=tolerance or self.tolerance,
            max_products=self.max_products - self.products,
            floor=None if largest else self.floor,
            seed=self.seed,
        )
        self.products += pairs.products
        return pairs._replace(products=self.products)

    def _product(self, V: Tensor) -> Tensor:
        return horizontal_part(self.point.u, self.point.hessian(V), self.point.basis)

    def _hessian(self, block: Tensor) -> Tensor:
        return flatten_block(self._product(unflatten_block(block, self.shape)))

    def _horizontal(self, block: Tensor) -> Tensor:
        V = unflatten_block(block, self.shape)
        return flatten_block(horizontal_part(self.point.u, V, self.point.basis))

    def _coordinates(self, block: Tensor) -> Tensor:
        Y = unflatten_block(block, self.shape)
        return flatten_block(population_space(self.point.basis, Y))

    def _lift(self, block: Tensor) -> Tensor:
        return flatten_block(population_lift(self.point.basis, unflatten_block(block, self.shape)))

    def _lift_transpose(self, block: Tensor) -> Tensor:
        return flatten_block(
            population_lift_transpose(self.point.basis, unflatten_block(block, self.shape))
        )


def _apart(values: Tensor, scale: Tensor, p: int) -> Tensor:
    """Which values are far from the rounding of the largest one, so that they are not zero."""
    return values.abs() > 1000 * p * torch.finfo(values.dtype).eps * scale[..., None]


def _ascending(pairs: Eigenpairs) -> Eigenpairs:
    return _ordered(pairs, pairs.values.argsort(dim=-1))


def _ordered(pairs: Eigenpairs, order: Tensor) -> Eigenpairs:
    return pairs._replace(
        values=pairs.values.gather(-1, order),
        residuals=pairs.residuals.gather(-1, order),
        vectors=pairs.vectors.gather(-1, order[..., None, :].expand(pairs.vectors.shape)),
    )


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
