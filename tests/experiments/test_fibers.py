"""Ends of training in their fibers: a rotation by hand, a commuting flow, SciPy's flow."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
import torch

from posquad.experiments.fibers import fiber_defect, flow_defect
from posquad.problems import Dense, LeastSquares


def test_a_rotation_by_hand():
    """The end is U0 turned by 0.3: the closest point of its fiber is U0 itself up to scale."""
    start = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
    c, s = np.cos(0.3), np.sin(0.3)
    end = 2 * start @ torch.tensor([[c, -s], [s, c]])
    angle, excess = fiber_defect(start, end)
    assert float(angle) == pytest.approx(0.3, rel=1e-13)
    moved = float(torch.linalg.matrix_norm(end - start))
    assert float(excess) == pytest.approx(moved / np.sqrt(5) - 1, rel=1e-12)
    same = fiber_defect(start, start)
    assert float(same.angle) == float(same.excess) == 0


def flow(matrices):
    A = torch.from_numpy(np.array(matrices))
    objective = LeastSquares(Dense(A), torch.tensor([1.0, 0.5], dtype=torch.float64))
    start = 0.3 * torch.eye(2, dtype=torch.float64)
    return flow_defect(objective, start[None], t_final=500.0, loss_tolerance=1e-22)


def test_commuting_measurements_end_at_the_closest_point():
    """The factor stays diagonal and positive."""
    found = flow([np.diag([1.0, 0.0]), np.diag([0.0, 1.0])])
    assert found.ended.all()
    assert float(found.angle.max()) < 1e-14


def test_other_measurements_do_not_and_scipy_agrees():
    """From a multiple of the identity the closest point is the root of Q."""
    A = np.array([np.diag([1.0, 0.0]), [[0.5, 0.5], [0.5, 0.5]]])
    found = flow(A)

    def field(_, u):
        U = u.reshape(2, 2)
        G = np.tensordot(np.einsum("nij,ij->n", A, U @ U.T) - [1.0, 0.5], A, 1)
        return -(G @ U).ravel()

    path = scipy.integrate.solve_ivp(
        field, (0, 500), 0.3 * np.eye(2).ravel(), "DOP853", rtol=1e-12, atol=1e-14
    )
    R, _ = scipy.linalg.polar(path.y[:, -1].reshape(2, 2))
    assert found.ended.all()
    assert float(found.error.max()) < 1e-10
    assert float(found.angle[0]) == pytest.approx(abs(np.arctan2(R[1, 0], R[0, 0])), abs=1e-9)
    assert float(found.angle[0]) > 0.01
    assert float(found.excess[0]) > 1e-5
