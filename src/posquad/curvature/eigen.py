"""Extreme eigenpairs of a symmetric operator by the preconditioned block Davidson method.

The subspace grows by preconditioned residuals of the wanted Ritz pairs and is restarted from its
best vectors. It converges like the optimal preconditioned Krylov method, but does not depend on a
three-term recurrence, which rounding would spoil. Elements of a batch are solved jointly. Residuals
are recomputed from the operator at the end, so the reported ones hold for the returned vectors.

A small residual shows that some eigenvalue is near, not that it is the extreme one. So the
complement of the pairs found is searched from an independent random start, by the Lanczos method,
until a probabilistic bound excludes a more extreme value (Hochstenbach, SIAM J. Sci. Comput. 35,
2013).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from posquad.core.linalg import eigenvalue_rounding, symmetric_part
from posquad.core.ranges import tiny
from posquad.core.status import Status
from posquad.curvature.lanczos import Block, Lanczos

_STRICTER = 10  # pairs are computed to the tolerance divided by this
_LOOSEST = 1e-2  # largest relative residual with which a search for more extreme values starts
_MARGIN = 0.1  # relative distance at which the search looks for a more extreme value
_ZERO_MARGIN = 1e-3  # the same for a value that is rounding, relative to the operator norm
FAILURE = 1e-4  # probability that the search misses a value
_ATTEMPTS = 3  # number of searches that may contradict the pairs without changing them


class Preconditioner(NamedTuple):
    """A positive definite preconditioner `L L'` for the small end of the spectrum.

    In the coordinates y with v = Ly, the operator should be close to a multiple of the identity.
    """

    lift: Block  # y -> Ly
    lift_transpose: Block  # v -> L'v
    project: Block  # orthogonal projection onto the space of the coordinates y


def no_preconditioner(project: Block) -> Preconditioner:
    """The identity on the space that `project` projects onto."""
    return Preconditioner(lambda block: block, lambda block: block, project)


class Eigenpairs(NamedTuple):
    """Eigenpairs with their residuals and their cost."""

    values: Tensor  # [..., k]
    vectors: Tensor  # [..., N, k]
    residuals: Tensor  # [..., k]  ||A v - value v||
    scale: Tensor  # [...]  largest |Ritz value| seen, a lower bound on the operator norm
    extreme: Tensor  # [...]  whether an independent search found no more extreme value
    products: int  # operator products per batch element


def converged(pairs: Eigenpairs, tolerance: float) -> Tensor:
    """Which values `[..., k]` are accurate, with evidence that they are the extreme ones.

    Accurate means that the residual is within the tolerance relative to the value, or within the
    rounding of the operator norm.
    """
    return pairs.extreme[..., None] & _accurate(
        pairs.values, pairs.residuals, pairs.scale, tolerance
    )


def accuracy_status(pairs: Eigenpairs, good: Tensor, tolerance: float) -> Status:
    """Status of all values together, given which are `good`.

    CONVERGED to the tolerance, AT_ROUNDING of the largest value, or NOT_CONVERGED.
    """
    if not bool(good.all()):
        return Status.NOT_CONVERGED
    sharp = bool((pairs.residuals <= tolerance * pairs.values.abs()).all())
    return Status.CONVERGED if sharp else Status.AT_ROUNDING


def flatten_block(M: Tensor) -> Tensor:
    """Reshape matrices `[m, ..., a, b]` to columns `[..., ab, m]`."""
    return M.flatten(-2).movedim(0, -1)


def unflatten_block(block: Tensor, shape: tuple[int, int]) -> Tensor:
    """Reshape columns `[..., ab, m]` to matrices `[m, ..., a, b]`."""
    return block.movedim(-1, 0).unflatten(-1, shape)


def extreme_eigenpairs(
    operator: Block,
    preconditioner: Preconditioner,
    project: Block,
    start: Tensor,
    *,
    k: int,
    largest: bool,
    dimension: int,
    tolerance: float,
    max_products: int,
    floor: Tensor | float | None = None,
    seed: int = 0,
) -> Eigenpairs:
    """The k smallest (or largest) eigenpairs on a space of the given dimension.

    The space is a subspace of R^N onto which `project` projects orthogonally and which the operator
    maps into itself; `start[..., N, b]`, b >= k, lies in it and spans the first basis. A pair is
    accurate when `||Av - av|| <= tolerance |a|`, or when the residual is within the rounding of the
    operator norm. The pairs are `extreme` if two conditions hold: a search of the complement from
    an independent random start excludes, with a failure probability of 1e-4, a value more extreme
    than the last one by a relative margin of the tolerance or 0.1, whichever is larger; and adding
    the directions found by the search to the subspace moves no value by more than the tolerance.
    Values within rounding of `floor`, a lower bound on the operator, need no search.
    """
    generator = torch.Generator().manual_seed(seed + 1)
    space = Subspace(operator, preconditioner, project, start, k, dimension, largest=largest)
    # Structured starts may be orthogonal to the wanted vectors; a random vector is not.
    space.append(_random_like(start, generator), max_products)
    search = _Search(space, preconditioner, tolerance, generator)
    strict = min(tolerance / _STRICTER, _LOOSEST)
    extreme = excluded = torch.zeros_like(space.scale, dtype=torch.bool)
    searched = torch.full_like(space.theta[..., :k], torch.inf)  # the values at the last search
    contradictions = 0
    while space.expand_until_accurate(strict, max_products):
        if space.exhausted:
            extreme = torch.ones_like(extreme)
            break
        # The search has enlarged the subspace; search again beyond values that this moved.
        slack = tolerance * searched.abs() + _rounding(space)[..., None]
        extreme = excluded & (searched - space.theta[..., :k] <= slack).all(-1)
        extreme = extreme | _at_floor(space, floor) | (space.scale == 0)
        if bool(extreme.all()) or contradictions == _ATTEMPTS:
            break
        searched = space.theta[..., :k]
        excluded, directions = search.beyond(extreme, max_products - space.products - k)
        if directions is None:
            break
        space.append(directions, max_products)
        gained = bool((searched > space.theta[..., :k]).any())
        contradictions += 0 if gained or bool(excluded.all()) else 1
    return space.pairs(extreme)


class Subspace:
    """The Davidson iteration for the small end of an operator, or of its negative."""

    def __init__(
        self,
        operator: Block,
        preconditioner: Preconditioner,
        project: Block,
        start: Tensor,
        k: int,
        dimension: int,
        *,
        largest: bool,
    ) -> None:
        self.preconditioner, self.project = preconditioner, project
        self.k, self.dimension, self.width = k, dimension, start.shape[-1]
        self.limit = min(dimension, max(12 * self.width, 48))
        self.V = torch.linalg.qr(start).Q  # [..., N, m]
        AV = operator(self.V)
        # Scale the operator: squares in norms may otherwise overflow or underflow.
        unit = AV.abs().amax((-2, -1), keepdim=True)
        self.unit = torch.where(unit > 0, unit, 1.0) * (-1 if largest else 1)  # [..., 1, 1]
        self.operator = lambda block: operator(block) / self.unit
        self.AV = AV / self.unit
        self.products, self.scale = self.width, torch.zeros_like(start[..., 0, 0])
        self.previous: Tensor | None = None
        self._rayleigh_ritz()

    @property
    def exhausted(self) -> bool:
        return self.V.shape[-1] == self.dimension

    def expand_until_accurate(self, tolerance: float, max_products: int) -> bool:
        """Grow the subspace by preconditioned residuals; False if the products are used up."""
        while True:
            norms = torch.linalg.vector_norm(self.R, dim=-2)[..., : self.k]
            if self.exhausted or bool(
                _accurate(self.theta[..., : self.k], norms, self.scale, tolerance).all()
            ):
                return True
            if self.products + min(self.width, self.dimension - self.V.shape[-1]) > max_products:
                return False
            size = torch.linalg.vector_norm(self.R, dim=-2, keepdim=True)
            R = self.R / size.clamp_min(tiny(size))
            self.append(
                self.preconditioner.lift(self.preconditioner.lift_transpose(R)), max_products
            )

    def append(self, block: Tensor, max_products: int) -> None:
        """Add as many of the directions as fit, and solve in the larger subspace."""
        if self.V.shape[-1] + block.shape[-1] > self.limit < self.dimension:
            self._restart()
        room = min(self.dimension - self.V.shape[-1], max_products - self.products)
        if room <= 0:
            return
        self.previous = self.X
        new = _orthonormal_against(self.V, block[..., :room], self.project)
        self.V = torch.cat([self.V, new], dim=-1)
        self.AV = torch.cat([self.AV, self.operator(new)], dim=-1)
        self.products += new.shape[-1]
        self._rayleigh_ritz()

    def pairs(self, extreme: Tensor) -> Eigenpairs:
        """The wanted pairs, with residuals computed from new products."""
        X = self.X[..., : self.k]
        AX = self.operator(X)
        values = (X * AX).sum(-2) / X.square().sum(-2)
        residuals = torch.linalg.vector_norm(AX - X * values[..., None, :], dim=-2)
        unit = self.unit[..., 0, :]  # [..., 1]
        size, scale = unit.abs(), self.scale * unit[..., 0].abs()
        products = self.products + self.k
        return Eigenpairs(values * unit, X, residuals * size, scale, extreme, products)

    def _rayleigh_ritz(self) -> None:
        self.theta, Y = torch.linalg.eigh(symmetric_part(self.V.mT @ self.AV))
        self.scale = torch.maximum(self.scale, self.theta.abs().amax(-1))
        self.Y, wanted = Y, Y[..., : self.width]
        self.X, AX = self.V @ wanted, self.AV @ wanted
        self.R = AX - self.X * self.theta[..., None, : self.width]

    def _restart(self) -> None:
        # Keep twice as many Ritz vectors as the block has, and the previous block: its difference
        # from the present one is the search direction of conjugate gradients.
        kept = self.Y[..., : 2 * self.width]
        if self.previous is not None:
            kept = torch.cat([kept, self.V.mT @ self.previous], dim=-1)
        kept = torch.linalg.qr(kept).Q
        self.V, self.AV = self.V @ kept, self.AV @ kept


class _Search:
    """Search for a value below the k found ones, in the complement of their vectors.

    By the Courant-Fischer theorem there is none below t if `K = L'(A - tI)L` is positive on the y
    orthogonal to the `L'x_i`. After m steps of the Lanczos method for K from y_1, the next vector
    is p_m(K) y_1, of norm one, with `|p_m(0)| = det(T_m) / (b_1 ... b_m)`. If T_m is positive
    definite, |p_m| is even larger at a negative eigenvalue of K, so y_1 has a component of at most
    `1 / |p_m(0)|` along its eigenvector. Once that is small, it is improbable for a random y_1.
    """

    def __init__(
        self,
        space: Subspace,
        preconditioner: Preconditioner,
        tolerance: float,
        generator: torch.Generator,
    ) -> None:
        self.space, self.preconditioner, self.tolerance = space, preconditioner, tolerance
        self.generator = generator
        # A component of a random unit vector in R^N is below c with probability < c (2N/pi)^(1/2).
        self.enough = math.log(math.sqrt(2 * space.dimension / math.pi) / FAILURE)

    def beyond(self, sure: Tensor, products: int) -> tuple[Tensor, Tensor | None]:
        """Where a value below the target is excluded, `[...]`, and the lowest directions found.

        Elements that are `sure` are skipped. The directions are None if the products were used up.
        """
        space = self.space
        last = space.theta[..., space.k - 1]
        zero = _ZERO_MARGIN * space.scale * (last.abs() <= _rounding(space))
        target = last - torch.maximum(max(self.tolerance, _MARGIN) * last.abs(), zero)
        found = torch.linalg.qr(self._lift_transpose(space.X[..., : space.k])).Q

        def deflate(y: Tensor) -> Tensor:
            y = self.preconditioner.project(y)
            return y - found @ (found.mT @ y)

        def shifted(y: Tensor) -> Tensor:
            v = self.preconditioner.lift(y)
            return deflate(self._lift_transpose(space.operator(v) - target[..., None, None] * v))

        y = _random_like(space.V[..., :1], self.generator)
        chain = Lanczos(shifted, deflate, y)
        excluded = sure
        for _ in range(products):
            chain.step()
            space.products += 1
            excluded = excluded | (chain.growth >= self.enough)
            contradicted = bool((~excluded & (chain.pivot <= 0)).any())
            if contradicted or bool(excluded.all()):
                return excluded, self._directions(chain)
        return excluded, None

    def _lift_transpose(self, block: Tensor) -> Tensor:
        return self.preconditioner.lift_transpose(block)

    def _directions(self, chain: Lanczos) -> Tensor:
        v = self.preconditioner.lift(chain.lowest(self.space.width))
        return v / torch.linalg.vector_norm(v, dim=-2, keepdim=True)


def _random_like(block: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(block.shape, generator=generator, dtype=block.dtype).to(block.device)


def _accurate(values: Tensor, residuals: Tensor, scale: Tensor, tolerance: float) -> Tensor:
    rounding = 10 * torch.finfo(values.dtype).eps * scale[..., None]
    return residuals <= torch.maximum(tolerance * values.abs(), rounding)


def _rounding(space: Subspace) -> Tensor:
    """Rounding error of an eigenvalue computed in this space."""
    return eigenvalue_rounding(space.dimension, space.scale.dtype) * space.scale


def _at_floor(space: Subspace, floor: Tensor | float | None) -> Tensor:
    """Where the last value is within rounding of a lower bound on the operator."""
    last = space.theta[..., space.k - 1]
    if floor is None:
        return torch.zeros_like(last, dtype=torch.bool)
    return last - floor / space.unit[..., 0, 0] <= _rounding(space)


def _orthonormal_against(V: Tensor, block: Tensor, project: Block) -> Tensor:
    """An orthonormal block in the space, orthogonal to V.

    Directions that carry no information (residuals of converged or multiple eigenvalues) consist of
    rounding, which the first normalisation turns into arbitrary unit vectors. The second round
    brings them back into the space, and the third makes that accurate.
    """
    for _ in range(3):
        block = project(block)
        block = torch.linalg.qr(block - V @ (V.mT @ block)).Q
    return block
