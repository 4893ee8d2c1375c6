"""The kernel of the Hessian: directions without curvature, identified in population coordinates.

At an interpolating U the kernel consists of the directions that the measurements do not see
(`eq:effective-hessian-kernel`). In population coordinates (`geometry/population.py`) the curvature
of a seen direction does not depend on the conditioning of U, so there, and only there, a small
curvature can be told from rounding. The work is done at `UP = W diag(s)`, where each column keeps
its own relative accuracy.

A curvature counts as zero if it is at most `10 p eps` times the largest one, which bounds the error
of an eigenvalue of a p x p matrix, and if, at interpolation, the measurements of the direction
itself are zero up to rounding: the form is then a square, and a direction whose measurements are
1e-9 has a form of 1e-18. A curvature counts as seen if it exceeds a hundred times that bound.
Values in between are undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from posquad.core.linalg import eigenvalue_rounding, norm
from posquad.curvature.eigen import flatten_block, unflatten_block
from posquad.geometry import dimension
from posquad.geometry.frames import Frame
from posquad.geometry.population import (
    population_coordinates,
    population_lift,
    population_lift_transpose,
    population_product,
)
from posquad.problems.objectives import LeastSquares, Objective, PopulationRisk

Directions = Callable[[Tensor], Tensor]  # [m, ..., d, r] -> [m, ..., d, r]

_SEEN = 100  # a curvature of more than this many times its rounding is seen
_COARSE = 1e-6  # rounding above this share of the largest curvature hides the kernel
_PROBES = 4  # random directions that estimate how much the rounding of U changes the responses
_CHUNK_ENTRIES = 2**24  # approximate entries of a chunk of directions times measurements


class Point(NamedTuple):
    """The factor `UP = W diag(s)` of the same predictor as U, with the Hessian there."""

    basis: Frame  # frame of u, in which P is the identity
    u: Tensor  # [..., d, r]  UP = W diag(s)
    hessian: Directions  # the Euclidean Hessian
    interpolating: Tensor  # [...]  whether the residual is rounding, and was left out
    measure: Directions | None  # [m, ..., d, r] -> [m, ..., n], least squares only
    measure_change: Directions | None  # its change per unit of relative change of the rows of U

    @property
    def p(self) -> int:
        return dimension(*self.u.shape[-2:])

    def population_hessian(self, Y: Tensor) -> Tensor:
        """The Hessian in population coordinates."""
        return population_lift_transpose(self.basis, self.hessian(population_lift(self.basis, Y)))


class Kernel(NamedTuple):
    """Directions without curvature."""

    vectors: Tensor  # [..., dr, c]  Frobenius-orthonormal; zero columns after the first `size`
    size: Tensor  # [...]  dimension
    known: Tensor  # [...]  whether there are no other directions
    suspected: Tensor  # [...]  whether a candidate direction was rejected

    @classmethod
    def empty(cls, point: Point, known: Tensor) -> Kernel:
        none = point.u.flatten(-2)[..., None][..., :0]
        return cls(none, torch.zeros_like(known, dtype=torch.int64), known, torch.zeros_like(known))


class KernelMarks(NamedTuple):
    """Which of the computed eigenvalues belong to the kernel."""

    marked: Tensor  # [..., m]  whether a computed value belongs to the kernel
    known: Tensor  # [...]  whether the kernel has no other directions


def working_point(objective: Objective, U: Tensor, basis: Frame, eps: float) -> Point:
    """The factor `UP = W diag(s)` and the Hessian there; `eps` is the rounding of the data.

    A residual that is rounding is left out: in the direction of a small column of U it would look
    like curvature.
    """
    W, s, P = basis
    u = U @ P  # equals W diag(s), but keeps the accuracy of each row of U
    eye = torch.eye(s.shape[-1], dtype=s.dtype, device=s.device).expand(P.shape)
    interpolating = torch.zeros(s.shape[:-1], dtype=torch.bool, device=s.device)
    measure: Directions | None = None
    measure_change: Directions | None = None
    if type(objective) is LeastSquares:
        operator, y = objective.measurements, objective.y.to(u.dtype)
        fitted = operator.apply_factor_kernel(u)
        moves = _row_moves(u)
        moved = operator.apply_tangent(u, moves).abs().amax(0)
        interpolating = _is_rounding(fitted, y, moved, eps * u.shape[-2])
        objective = LeastSquares(operator, torch.where(interpolating[..., None], fitted, y))

        def apply(D: Tensor) -> Tensor:
            return operator.apply_tangent(u, D) / operator.n**0.5

        def apply_change(D: Tensor) -> Tensor:
            changes = [operator.apply_tangent(move, D).abs() for move in moves]
            return torch.stack(changes).amax(0) / operator.n**0.5

        measure, measure_change = apply, apply_change

    hessian = objective.linearize(u)
    if type(objective) is PopulationRisk:
        interpolating = _is_target(objective, u)
        hessian = _without_gradient(hessian, u, interpolating)
    return Point(Frame(W, s, eye), u, hessian, interpolating, measure, measure_change)


def form_rounding(point: Point, scale: Tensor, top: Tensor) -> Tensor:
    """Rounding error `[...]` of a curvature in population coordinates.

    `scale` is the largest curvature in population coordinates, `top` that in factor coordinates.
    """
    s, unit = point.basis.s, _unit(point)
    # U itself is known to eps ||U||, which rotates its smallest direction by eps cond(U).
    squared = (unit * (s[..., 0] / s[..., -1])).square() * scale
    # A nonzero gradient has an error of eps times the largest curvature in every direction.
    gradient = unit * top / (4 * s[..., -1].square())
    return unit * scale + torch.where(point.interpolating, squared, gradient)


def classify_curvatures(values: Tensor, scale: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor]:
    """Which curvatures `[..., m]` are zero, and which of them are uncertain."""
    limit = rounding[..., None]
    coarse = limit > _COARSE * scale[..., None]
    zero = (values.abs() <= limit) & ~coarse
    seen = values.abs() > _SEEN * limit
    return zero, ~zero & ~(seen & ~coarse)


def kernel_from_candidates(
    point: Point, Y: Tensor, zero: Tensor, known: Tensor, scale: Tensor, top: Tensor
) -> Kernel:
    """Kernel from candidates `Y[..., dr, c]` in population coordinates, where `zero[..., c]`.

    They are replaced by orthonormal combinations in factor coordinates. At interpolation, one is
    accepted if its measurements are zero up to rounding; elsewhere, if the Hessian maps it to zero
    up to rounding. If one is rejected, the kernel is not known. `scale` and `top` are the largest
    curvatures in population and in factor coordinates.
    """
    shape = (point.u.shape[-2], point.u.shape[-1])
    order = (~zero).to(torch.int8).argsort(dim=-1, stable=True)
    zero, Y = zero.gather(-1, order), Y.gather(-1, order[..., None, :].expand(Y.shape))
    proposed = zero.sum(-1)
    most = int(proposed.max()) if zero.numel() else 0
    zero, Y = zero[..., :most], Y[..., :most]
    if most == 0:
        return Kernel.empty(point, known)
    D = population_lift(point.basis, unflatten_block(Y, shape))  # [c, ..., d, r]
    size = point.basis.s[..., -1:, None]  # keeps squares from overflowing
    vectors = orthonormal_combinations(flatten_block(D) * size * zero[..., None, :])
    present = vectors.abs().amax(-2) > 0
    V = unflatten_block(vectors, shape)
    flat = norm(flatten_block(point.hessian(V)), (-2,)) <= _unit(point) * top[..., None]
    if point.measure is not None:
        flat = torch.where(point.interpolating[..., None], _is_unseen(point, V, scale), flat)
    known = known & (flat | ~present).all(-1)
    present = present & flat
    order = (~present).to(torch.int8).argsort(dim=-1, stable=True)
    vectors = (vectors * present[..., None, :]).gather(
        -1, order[..., None, :].expand(vectors.shape)
    )
    count = present.sum(-1)
    return Kernel(vectors, count, known, suspected=count < proposed)


def _is_unseen(point: Point, V: Tensor, scale: Tensor) -> Tensor:
    """Whether the measurements of directions `V[c, ..., d, r]` are zero up to rounding, `[..., c]`.

    A direction of length one in population coordinates has measurements of at most sqrt(scale).
    Their error is eps times that, plus the change that the rounding of U causes. The latter is
    large only for directions that change the small columns of U.
    """
    assert point.measure is not None
    assert point.measure_change is not None
    length = norm(flatten_block(population_coordinates(point.basis, V)), (-2,))
    measured = _measurement_norms(point.measure, V).movedim(0, -1)
    change = _measurement_norms(point.measure_change, V).movedim(0, -1)
    return measured <= _unit(point) * (scale.sqrt()[..., None] * length + change)


def _unit(point: Point) -> float:
    """Bound on the relative error of an eigenvalue of a p x p matrix."""
    return eigenvalue_rounding(point.p, point.u.dtype)


def remove_seen_parts(
    point: Point, candidates: Tensor, vectors: Tensor, values: Tensor, zero: Tensor
) -> Tensor:
    """Remove from kernel candidates `[..., dr, c]` their components along seen eigenvectors.

    An eigensolver leaves components of size rounding times the largest curvature over the seen one.
    New products reveal them; at interpolation, products with the measurements, which are not
    squared.
    """
    shape = (point.u.shape[-2], point.u.shape[-1])
    Y = unflatten_block(candidates, shape)
    overlap = vectors.mT @ flatten_block(point.population_hessian(Y))  # [..., m, c]
    if point.measure is not None:
        unseen = point.measure(population_lift(point.basis, Y)).movedim(0, -1)  # [..., n, c]
        V = population_lift(point.basis, unflatten_block(vectors, shape))
        parts = [seen.movedim(0, -2) @ unseen for seen in _chunks(point.measure, V)]
        overlap = torch.where(
            point.interpolating[..., None, None], torch.cat(parts, dim=-2), overlap
        )
    inverse = torch.where(zero, 0.0, 1 / torch.where(zero, 1.0, values))
    return candidates - vectors @ (inverse[..., :, None] * overlap)


def is_apart(values: Tensor, scale: Tensor, p: int) -> Tensor:
    """Which values are far from the rounding of the largest one, so that they are not zero."""
    return values.abs() > 100 * eigenvalue_rounding(p, values.dtype) * scale[..., None]


def orthonormal_combinations(D: Tensor) -> Tensor:
    """Orthonormal basis of the span of the nonzero columns of `D[..., N, c]`, followed by zeros.

    Directions at an ill-conditioned U have rows of very different size. Eliminating the longest
    column first keeps small rows accurate relative to their own size.
    """
    count = D.shape[-1]
    # A zero column must stay zero, in spite of rounding.
    alive = D.abs().amax(-2) > 0
    done = torch.zeros_like(D)
    for step in range(count):
        size = torch.where(alive, torch.linalg.vector_norm(D, dim=-2), -1.0)
        pivot = size.argmax(-1)  # [...]
        chosen = torch.nn.functional.one_hot(pivot, count).to(torch.bool)
        use = alive.gather(-1, pivot[..., None])
        q = D.gather(-1, pivot[..., None, None].expand(*D.shape[:-1], 1))
        q = q - done @ (done.mT @ q)
        length = torch.linalg.vector_norm(q, dim=-2, keepdim=True)
        q = torch.where(use[..., None, :] & (length > 0), q / length, 0.0)
        done[..., step] = q[..., 0]
        alive = alive & ~chosen
        D = torch.where(alive[..., None, :], D - q @ (q.mT @ D), 0.0)
    return done


def _row_moves(u: Tensor) -> Tensor:
    """Directions `[m, ..., d, r]` with random signs and rows as long as those of u.

    A row of U is known to eps times its length. Where x is nearly orthogonal to U, this changes
    `x'UU'x` by far more than eps times its size. The responses to these moves estimate by how much.
    """
    generator = torch.Generator().manual_seed(0)
    coins = torch.randint(0, 2, (_PROBES, *u.shape), generator=generator).to(u)
    return (2 * coins - 1) * u.abs().amax(-1, keepdim=True)


def _is_rounding(fitted: Tensor, y: Tensor, moved: Tensor, eps: float) -> Tensor:
    """Whether the responses agree with the fitted ones up to rounding, `[...]`.

    `moved[..., n]` is the change of the responses per unit of relative change of the factor.
    """
    size = torch.maximum(torch.maximum(fitted.abs(), y.abs()), moved).amax(-1, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    a, b, c = (torch.linalg.vector_norm(part / size, dim=-1) for part in (fitted, y, moved))
    e = torch.linalg.vector_norm(fitted / size - y / size, dim=-1)
    return e <= 10 * eps * (a + b + c)


def _is_target(objective: PopulationRisk, u: Tensor) -> Tensor:
    """Whether the factor is that of the target to rounding, `[...]`."""
    difference = objective.difference(u)[0].abs().amax((-2, -1))
    unit = 10 * u.shape[-2] * torch.finfo(u.dtype).eps
    return difference <= unit * u.abs().amax((-2, -1))


def _without_gradient(hessian: Directions, u: Tensor, where: Tensor) -> Directions:
    """The population Hessian, with its gradient left out `where[...]` that is rounding."""
    S = u.mT @ u

    def product(Delta: Tensor) -> Tensor:
        exact = population_product(u, S, Delta)
        return torch.where(where[..., None, None], exact, hessian(Delta))

    return product


def _measurement_norms(measure: Directions, D: Tensor) -> Tensor:
    """Norms `[m, ...]` of the measurements of directions `[m, ..., d, r]`."""
    return torch.cat([torch.linalg.vector_norm(part, dim=-1) for part in _chunks(measure, D)])


def _chunks(measure: Directions, D: Tensor) -> Iterator[Tensor]:
    """Measurements `[m', ..., n]` of directions `[m, ..., d, r]`, a part of them at a time."""
    chunk = max(1, _CHUNK_ENTRIES // max(1, measure(D[:1]).numel()))
    return (measure(D[begin : begin + chunk]) for begin in range(0, len(D), chunk))
