"""How far training ends from the point of its fiber that is closest to the start."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor

from posquad.core.status import Status
from posquad.dynamics import gradient_flow
from posquad.geometry import procrustes_alignment, procrustes_distance, rotation_angle
from posquad.problems.objectives import Objective

__all__ = ["Defect", "FlowDefect", "fiber_defect", "flow_defect"]

_RTOL = (1e-10, 1e-11)  # local errors of the two flows whose difference is the error


class Defect(NamedTuple):
    """The rotation between an end and the closest point of its fiber, and what it costs."""

    angle: Tensor  # [...]  in [0, pi]
    excess: Tensor  # [...]  ||end - start|| / min_R ||end R - start|| - 1


def fiber_defect(start: Tensor, end: Tensor) -> Defect:
    """Compare ends `[..., d, r]` with the points of their fibers closest to the starts.

    For a horizontal path from start to end the rotation is the inverse of the holonomy of the loop
    that returns along the geodesic (`posquad.geometry.holonomy`).

    >>> start = torch.eye(2, dtype=torch.float64)
    >>> angle, excess = fiber_defect(start, torch.tensor([[0.0, -1.0], [1.0, 0.0]]).double() * 2)
    >>> round(float(angle), 6), round(float(excess), 6)
    (1.570796, 1.236068)
    """
    angle = rotation_angle(procrustes_alignment(start, end))
    moved = torch.linalg.matrix_norm(end - start)
    nearest = procrustes_distance(start, end)
    apart = nearest > 0
    return Defect(angle, torch.where(apart, moved / torch.where(apart, nearest, 1.0) - 1, 0.0))


class FlowDefect(NamedTuple):
    """The defect of gradient flows `[...]`, and the change of the angle with the accuracy."""

    angle: Tensor
    excess: Tensor
    error: Tensor  # difference of the angles of two flows with different local errors
    ended: Tensor  # whether both flows ended as they should


def flow_defect(
    objective: Objective,
    start: Tensor,
    *,
    t_final: float,
    loss_tolerance: float | None = None,
    max_steps: int = 100_000,
) -> FlowDefect:
    """Follow gradient flows to the time `t_final`, or to a loss, and measure their defects.

    A gradient flow is horizontal, so its rotation defect is exact up to the integration, whose
    error is measured by repeating it with a tenth of the local error.

    >>> from posquad.problems import PopulationRisk
    >>> risk = PopulationRisk(torch.eye(3, 2, dtype=torch.float64))
    >>> flow = flow_defect(risk, 0.5 * torch.eye(3, 2, dtype=torch.float64), t_final=1.0)
    >>> bool(flow.ended), bool(flow.angle < 1e-12)
    (True, True)
    """
    expected = Status.TIME_REACHED if loss_tolerance is None else Status.LOSS_REACHED
    defects, ended = [], torch.ones(start.shape[:-2], dtype=torch.bool)
    for rtol in _RTOL:
        flow = gradient_flow(
            objective,
            start,
            t_final=t_final,
            times=torch.tensor([t_final], dtype=start.dtype),
            rtol=rtol,
            loss_tolerance=loss_tolerance,
            max_steps=max_steps,
        )
        status = [flow.status] if isinstance(flow.status, Status) else cast(list, flow.status)
        ended = ended & torch.tensor([s is expected for s in status]).view(ended.shape)
        defects.append(fiber_defect(start, flow.U))
        if not bool(ended.any()):
            break  # nothing is known, however accurate
    coarse, fine = defects[0], defects[-1]
    return FlowDefect(fine.angle, fine.excess, (fine.angle - coarse.angle).abs(), ended)
