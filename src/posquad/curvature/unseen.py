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
Anything between is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from posquad.curvature.eigen import flatten_block, unflatten_block
from posquad.geometry import dimension
from posquad.geometry.frames import Frame
from posquad.geometry.population import (
    population_lift,
    population_lift_transpose,
    population_product,
)
from posquad.problems.objectives import LeastSquares, Objective, PopulationRisk

Directions = Callable[[Tensor], Tensor]  # [m, ..., d, r] -> [m, ..., d, r]

_SEEN = 100  # a curvature of more than this many times its rounding is seen
_COARSE = 1e-6  # rounding above this share of the largest curvature: nothing can be told
_CHUNK_ENTRIES = 2**24  # approximate entries of a chunk of directions times measurements


class Point(NamedTuple):
    """The factor `UP = W diag(s)` of the same predictor as U, with the Hessian there."""

    basis: Frame  # frame of u, in which P is the identity
    u: Tensor  # [..., d, r]  UP = W diag(s)
    hessian: Directions  # the Euclidean Hessian
    interpolating: Tensor  # [...]  whether the residual is rounding, and was left out
    measure: Directions | None  # [m, ..., d, r] -> [m, ..., n], least squares only

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

    @classmethod
    def empty(cls, point: Point, known: Tensor) -> Kernel:
        none = point.u.flatten(-2)[..., None][..., :0]
        return cls(none, torch.zeros_like(known, dtype=torch.int64), known)


class Rounding(NamedTuple):
    """Rounding errors of curvatures in population coordinates and of measurements, `[...]`."""

    form: Tensor
    measurement: Tensor


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
    if type(objective) is LeastSquares:
        operator, y = objective.measurements, objective.y.to(u.dtype)
        fitted = operator.apply_factor_kernel(u)
        interpolating = _is_rounding(fitted, y, u, eps)
        objective = LeastSquares(operator, torch.where(interpolating[..., None], fitted, y))

        def apply(D: Tensor) -> Tensor:
            return operator.apply_tangent(u, D) / operator.n**0.5

        measure = apply

    hessian = objective.linearize(u)
    if type(objective) is PopulationRisk:
        interpolating = _is_target(objective, u)
        hessian = _without_gradient(hessian, u, interpolating)
    return Point(Frame(W, s, eye), u, hessian, interpolating, measure)


def rounding_bounds(point: Point, scale: Tensor, norm: Tensor) -> Rounding:
    """Rounding, given the largest curvature in population (`scale`) and factor coordinates."""
    s, p = point.basis.s, point.p
    unit = 10 * p * torch.finfo(s.dtype).eps
    # U itself is known to eps ||U||, which rotates its smallest direction by eps cond(U).
    measurement = unit * (s[..., 0] / s[..., -1]) * scale.sqrt()
    # A gradient that does not vanish errs by eps times the largest curvature in every direction.
    gradient = unit * norm / (4 * s[..., -1].square())
    squared = measurement.square()
    form = unit * scale + torch.where(point.interpolating, squared, gradient)
    return Rounding(form, measurement)


def classify_curvatures(values: Tensor, scale: Tensor, rounding: Rounding) -> tuple[Tensor, Tensor]:
    """Which curvatures `[..., m]` are zero, and which of them are uncertain."""
    limit = rounding.form[..., None]
    coarse = limit > _COARSE * scale[..., None]
    zero = (values.abs() <= limit) & ~coarse
    seen = values.abs() > _SEEN * limit
    return zero, ~zero & ~(seen & ~coarse)


def kernel_from_candidates(
    point: Point, Y: Tensor, zero: Tensor, known: Tensor, unseen: Tensor, norm: Tensor
) -> Kernel:
    """Kernel from candidates `Y[..., dr, c]` in population coordinates.

    Candidates marked `zero[..., c]` are accepted if, at interpolation, the norm of their
    measurements is at most `unseen[...]`, and if the Hessian maps the unit vectors made of them to
    zero up to the rounding of its norm. If one is rejected, the kernel is not known.
    """
    shape = (point.u.shape[-2], point.u.shape[-1])
    order = (~zero).to(torch.int8).argsort(dim=-1, stable=True)
    zero, Y = zero.gather(-1, order), Y.gather(-1, order[..., None, :].expand(Y.shape))
    most = int(zero.sum(-1).max()) if zero.numel() else 0
    zero, Y = zero[..., :most], Y[..., :most]
    if most == 0:
        return Kernel.empty(point, known)
    D = population_lift(point.basis, unflatten_block(Y, shape))  # [c, ..., d, r]
    if point.measure is not None:
        measured = _measurement_norms(point.measure, D).movedim(0, -1)  # [..., c]
        sound = (measured <= unseen[..., None]) | ~point.interpolating[..., None]
        known = known & (sound | ~zero).all(-1)
        zero = zero & sound
    unit = point.basis.s[..., -1:, None]  # keeps squares from overflowing
    vectors = orthonormal_combinations(flatten_block(D) * unit * zero[..., None, :])
    present = vectors.abs().amax(-2) > 0
    images = flatten_block(point.hessian(unflatten_block(vectors, shape)))
    far = images.abs().amax(-2, keepdim=True)  # its square may overflow or underflow
    sizes = far[..., 0, :] * torch.linalg.vector_norm(
        images / torch.where(far > 0, far, 1.0), dim=-2
    )
    flat = sizes <= 10 * point.p * torch.finfo(norm.dtype).eps * norm[..., None]
    known = known & (flat | ~present).all(-1)
    present = present & flat
    order = (~present).to(torch.int8).argsort(dim=-1, stable=True)
    vectors = (vectors * present[..., None, :]).gather(
        -1, order[..., None, :].expand(vectors.shape)
    )
    return Kernel(vectors, present.sum(-1), known)


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


def _is_rounding(fitted: Tensor, y: Tensor, u: Tensor, eps: float) -> Tensor:
    """Whether the responses agree with the fitted ones up to rounding, `[...]`."""
    size = torch.maximum(fitted.abs().amax(-1), y.abs().amax(-1))[..., None]
    size = torch.where(size > 0, size, 1.0)
    a, b = fitted / size, y / size
    e = torch.linalg.vector_norm(a - b, dim=-1)
    norms = torch.linalg.vector_norm(a, dim=-1) + torch.linalg.vector_norm(b, dim=-1)
    return e <= 10 * u.shape[-2] * eps * norms


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
    chunk = max(1, _CHUNK_ENTRIES // max(1, measure(D[:1]).numel()))
    parts = [
        torch.linalg.vector_norm(measure(D[begin : begin + chunk]), dim=-1)
        for begin in range(0, len(D), chunk)
    ]
    return torch.cat(parts)
