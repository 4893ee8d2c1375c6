"""How far an answer is from a stationary point, in units of its own residual.

The relative offset is `||P e|| / ||e||`, where P projects onto the tangent space, the range of the
Jacobian J of the predictions: a Gauss-Newton step would lower the squared error by the share of its
square (Bates and Watts, A relative offset orthogonality convergence criterion for nonlinear least
squares, Technometrics 23, 1981). Unlike the norm of a gradient it depends neither on units nor on
the sizes of the weights, so that few heavy samples cannot hide the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.geometry.horizontal import horizontal_part
from posquad.problems.held import HeldMeasurements
from posquad.problems.measurements import Measurements
from posquad.recovery.costs import at_once, is_quick
from posquad.recovery.solvers.conjugate_gradients import normal_equations
from posquad.recovery.solvers.fit import regularized_frame

# Multiple of the rounding of J up to which a singular value is rounding. A choice: the offset along
# directions above it is accurate to 1e-3, the largest offset that is accepted.
_ROUNDING = 1000
# Accuracy to which conjugate gradients solve for the step of a large problem. A choice: the offset
# is then known to a few percent, and five to ten products are usual.
_ACCURACY = 0.3


def relative_offset(operator: HeldMeasurements, U: Tensor, Z: Tensor, e: Tensor) -> Tensor:
    """Return `||P e|| / ||e||`, `[...]`, from 0 (stationary) to 1, for errors `e[..., n]`.

    J is the Jacobian of the predictions at U, for `Z = project(U)`. The operator may be in any
    coordinates; U is the factor in these. The offset is infinite where the rounding
    of heavy rows hides the light ones. In large problems it is that which conjugate gradients find,
    a lower bound. At U without columns, where the matrices are a cone, it is that along the best
    matrix vv' to first order.
    """
    n, m = e.shape[-1], U.shape[-2] * U.shape[-1]
    if not m:
        return _at_zero(operator, e)
    if not is_quick(4 * n * m**2):  # to decompose J, of m columns
        return _by_gradients(operator, U, Z, e)
    if e.ndim == 1:
        return _by_decomposition(operator, Z, e)
    parts = torch.arange(len(e), device=e.device).split(at_once(n * m))
    offsets = [_by_decomposition(operator.select(p), Z[p], e[p]) for p in parts]
    return torch.cat(offsets) if offsets else e.new_zeros(0)


def _at_zero(operator: Measurements, e: Tensor) -> Tensor:
    v = torch.linalg.eigh(operator.adjoint(-e)).eigenvectors[..., -1:]
    change = operator.apply_factor_kernel(v)
    size = torch.linalg.vector_norm(change, dim=-1)
    gain = -(change * e).sum(-1) / torch.where(size > 0, size, 1.0)
    return _share(gain.clamp_min(0.0), e)


def _by_decomposition(operator: Measurements, Z: Tensor, e: Tensor) -> Tensor:
    J = operator.jacobian(Z)
    # Heavy rows first: then light ones keep their digits (Cox and Higham, BIT 38, 1998).
    sizes, order = torch.linalg.vector_norm(J, dim=-1).sort(-1, descending=True)
    Q, R = torch.linalg.qr(J.gather(-2, order[..., None].expand(J.shape)))
    W, s, _ = torch.linalg.svd(R, full_matrices=False)
    # The gauge, and directions that the samples leave free, are rounding.
    least = _ROUNDING * max(J.shape[-2:]) * torch.finfo(s.dtype).eps * s[..., :1]
    along = (W.mT @ (Q.mT @ e.gather(-1, order)[..., None]))[..., 0]
    offset = _share(torch.linalg.vector_norm(torch.where(s > least, along, 0.0), dim=-1), e)
    # More of them than the gauge may be what light rows see.
    r = Z.shape[-1]
    free = (s <= least).sum(-1) > r * (r - 1) // 2
    light = ((sizes > 0) & (sizes <= least)).any(-1)
    return torch.where(free & light, torch.inf, offset)


def _by_gradients(operator: Measurements, U: Tensor, Z: Tensor, e: Tensor) -> Tensor:
    frame = regularized_frame(U)
    slope = operator.weighted_adjoint(e, Z)
    accuracy = torch.full(e.shape[:-1], _ACCURACY, dtype=e.dtype, device=e.device)
    system = normal_equations(operator, Z, frame)
    step, _ = system.solve(horizontal_part(U, -slope, frame), accuracy)
    change = 2 * operator.paired(Z, operator.project(step))
    # ||e||^2 - ||e + JD||^2, which is ||P e||^2 for the Gauss-Newton step D.
    gain = -(change * (2 * e + change)).sum(-1)
    return _share(gain.clamp_min(0.0).sqrt(), e)


def _share(size: Tensor, e: Tensor) -> Tensor:
    total = torch.linalg.vector_norm(e, dim=-1)
    return size / torch.where(total > 0, total, 1.0)
