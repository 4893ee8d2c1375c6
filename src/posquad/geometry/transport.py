"""Parallel transport of factors along a path of predictors, and its holonomy.

The horizontal lifts of a path of predictors are the connection of the bundle `U -> UU'` (paper,
section 2.4). The statements are proved in `docs/holonomy.md`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.core.arrays import A, Array, like, require_factor, tensors
from posquad.core.errors import DomainError, ShapeError
from posquad.geometry.alignment import alignment, cosine_rounding, smallest_cosine
from posquad.geometry.frames import Frame, frame

__all__ = ["holonomy", "parallel_transport", "rotation_angle"]


def parallel_transport(path: A) -> A:
    """Horizontal lift, from `path[0]`, of the predictors of a path of factors `[T, ..., d, r]`.

    The result `L[T, ..., d, r]` has the predictors of the path, `L_k L_k' = U_k U_k'`, and begins
    at `L_0 = U_0`. Each `L_{k+1}` is the point of its fiber closest to `L_k`, so that `L_k'L_{k+1}`
    is symmetric positive definite and the segment between them is horizontal. This is the exact
    horizontal lift of the path that joins consecutive predictors by geodesics (Proposition 2.3,
    `prop:quotient-metric-well-defined`); for points of a smooth path its error is of order two in
    their distance. The lift depends on the predictors and on `U_0` alone, not on the other factors.

    Raises:
        DomainError: if two consecutive points have more than one closest pair (`U_k'U_{k+1}` is
            singular).

    A path of gradient descent with small steps is its own lift; a rotated copy is not.

    >>> path = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 3.0], [2.0, 0.0]]])
    >>> parallel_transport(path)[1]
    array([[3., 0.],
           [0., 2.]])
    """
    u, basis = _points(path)
    steps = _alignments(u[:-1], u[1:], _part(basis, slice(None, -1)), _part(basis, slice(1, None)))
    rotations = [torch.eye(u.shape[-1], dtype=u.dtype, device=u.device).expand_as(u[0].mT @ u[0])]
    for step in steps:  # U_k C and U_{k+1} R C are aligned if U_k and U_{k+1} R are
        rotations.append(step @ rotations[-1])
    return like(path, torch.cat([u[:1], u[1:] @ torch.stack(rotations)[1:]]))


def holonomy(path: A) -> A:
    """Rotation H with which the horizontal lift returns around a loop, `[..., r, r]`.

    `path[T, ..., d, r]` holds factors along the loop. It is closed by the geodesic from its last
    predictor to its first, so `path[0]` need not be repeated. The lift that begins at `path[0]`
    ends at `path[0] H`.

    For a path that is its own lift, such as a gradient flow, the point of the last fiber that is
    closest to `path[0]` is `path[-1] H'`: the flow ends at the closest point exactly if H = I.

    >>> path = np.array([[[1.0], [0.0]], [[0.0], [1.0]], [[-1.0], [1.0]]])
    >>> path[1] += path[0] / 10
    >>> holonomy(path)  # half a turn in the plane takes U to -U
    array([[-1.]])
    """
    u, basis = _points(path)
    (lifted,) = tensors(path=parallel_transport(u))
    # The range of a fiber is that of any of its points.
    back = _alignments(lifted[-1], u[0], _part(basis, -1), _part(basis, 0))
    return like(path, back)


def rotation_angle(R: A) -> A:
    """Largest angle by which orthogonal matrices `R[..., r, r]` turn a vector, in [0, pi]; `[...]`.

    The angle t of an eigenvalue exp(it) has `|exp(it) - 1| = 2 sin(t/2)` and
    `|exp(it) + 1| = 2 cos(t/2)`; their quotient is accurate near 0 and near pi. A reflection has
    the angle pi.

    >>> float(rotation_angle(np.array([[0.0, -1.0], [1.0, 0.0]])).round(12))
    1.570796326795
    """
    (r,) = tensors(R=R)
    if r.ndim < 2 or r.shape[-1] != r.shape[-2] or r.shape[-1] == 0:
        raise ShapeError("R", expected="shape (..., r, r)", got=f"shape {tuple(r.shape)}")
    eye = torch.eye(r.shape[-1], dtype=r.dtype, device=r.device)
    defect = torch.linalg.matrix_norm(r.mT @ r - eye)
    if bool((defect > torch.finfo(r.dtype).eps ** 0.5).any()):
        got = f"||R'R - I|| = {float(defect.max()):.1e}"
        raise DomainError("R", expected="orthogonal matrices", got=got)
    sine = torch.linalg.svdvals(r - eye)[..., 0]
    cosine = torch.linalg.svdvals(r + eye)[..., -1]
    return like(R, 2 * torch.atan2(sine, cosine))


def _points(path: Array) -> tuple[Tensor, Frame]:
    """Check a path; return its tensor and its frames."""
    (u,) = tensors(path=path)
    require_factor("path", u)
    if u.ndim < 3 or len(u) == 0:
        expected = "shape (T, ..., d, r) with T >= 1 factors"
        raise ShapeError("path", expected=expected, got=f"shape {tuple(u.shape)}")
    return u, frame("path", u)


def _part(basis: Frame, index: int | slice) -> Frame:
    return Frame(*(tensor[index] for tensor in basis))


def _alignments(u: Tensor, v: Tensor, basis_u: Frame, basis_v: Frame) -> Tensor:
    """Rotations of V that bring it closest to U; refused where there are several."""
    smallest = smallest_cosine(basis_u, basis_v)
    if smallest <= cosine_rounding(u):
        raise DomainError(
            "path",
            expected="consecutive points with one closest pair (U_k'U_{k+1} nonsingular)",
            got=f"smallest principal cosine {smallest:.3e}: take more points",
        )
    return alignment(u, v)
