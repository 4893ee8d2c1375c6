"""The smallest or the largest eigenvalues of the Hessian, from its products with directions."""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.curvature.eigen import (
    Block,
    Eigenpairs,
    Preconditioner,
    converged,
    extreme_eigenpairs,
    flatten_block,
    no_preconditioner,
    unflatten_block,
)
from posquad.curvature.unseen import (
    Kernel,
    KernelMarks,
    Point,
    classify_curvatures,
    form_rounding,
    is_apart,
    kernel_from_candidates,
    remove_seen_parts,
)
from posquad.geometry.horizontal import horizontal_part
from posquad.geometry.population import population_lift, population_lift_transpose, population_space


class MatrixFree:
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

    def largest(self) -> tuple[Eigenpairs, KernelMarks]:
        none = no_preconditioner(self._horizontal)
        pairs = self._extreme_pairs(self._hessian, none, self._horizontal, self.k, largest=True)
        marked = (pairs.scale == 0)[..., None].expand(pairs.values.shape)
        return _ascending(pairs), KernelMarks(marked, torch.zeros_like(pairs.extreme))

    def smallest(self) -> tuple[Eigenpairs, KernelMarks]:
        population = Preconditioner(self._lift, self._lift_transpose, self._coordinates)
        pairs = self._extreme_pairs(self._hessian, population, self._horizontal, self.k)
        pairs = _ascending(pairs)
        apart = is_apart(pairs.values, pairs.scale, self.point.p)
        beyond = (pairs.values[..., -1] > 0) & converged(pairs, self.tolerance).all(-1)
        none = torch.zeros_like(pairs.values, dtype=torch.bool)
        if bool((~apart).any() & pairs.extreme.any()):
            kernel = self._kernel(pairs.scale)
            if bool((kernel.size > 0).any()):
                return self._insert_kernel(kernel, pairs)
            return pairs, KernelMarks(none, kernel.known)
        # No value lies below those found, so a zero would be among them.
        return pairs, KernelMarks(none, beyond)

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
        rounding = form_rounding(point, pairs.scale, norm)
        zero, uncertain = classify_curvatures(pairs.values, pairs.scale, rounding)
        good = converged(pairs, 1e-2)
        last = pairs.values[..., -1]
        reached = (self.k == point.p) | ((last > 0) & ~zero[..., -1])
        known = good.all(-1) & ~uncertain.any(-1) & reached
        vectors, values = pairs.vectors, pairs.values
        candidates = remove_seen_parts(point, vectors, vectors, values, zero)
        self.products += self.k
        return kernel_from_candidates(point, candidates, zero & good, known, pairs.scale, norm)

    def _insert_kernel(self, kernel: Kernel, first: Eigenpairs) -> tuple[Eigenpairs, KernelMarks]:
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
        return _ordered(pairs, order), KernelMarks(marked.gather(-1, order), kernel.known)

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


def _ascending(pairs: Eigenpairs) -> Eigenpairs:
    return _ordered(pairs, pairs.values.argsort(dim=-1))


def _ordered(pairs: Eigenpairs, order: Tensor) -> Eigenpairs:
    return pairs._replace(
        values=pairs.values.gather(-1, order),
        residuals=pairs.residuals.gather(-1, order),
        vectors=pairs.vectors.gather(-1, order[..., None, :].expand(pairs.vectors.shape)),
    )
