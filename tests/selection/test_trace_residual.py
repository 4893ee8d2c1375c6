"""The relative residual that a minimum-trace solution reports, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad.selection import trace
from posquad.selection.system import prepare


@pytest.mark.parametrize("row", [0, 1])
def test_the_residual_is_that_of_the_worst_row(row):
    """`|q - 1| / (q + 1)` of one row is half of its change; the other one is exact."""
    eye, ones = torch.eye(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    system, _ = prepare(eye, ones, ones)
    order, scale = system.rows.numpy(), system.scale.numpy()
    q, eps = np.ones(2), np.finfo(float).eps
    q[row] += 4 * eps
    found = trace._require_proof(
        system, q, np.ones(2)[order] / scale, trace.Face((0, 1), (), 0), eps
    )
    assert found == pytest.approx(2 * eps, rel=1e-6)
