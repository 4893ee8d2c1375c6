"""Smooth objectives whose function does not depend on Q, or only linearly."""

from __future__ import annotations

import torch

from posquad import SmoothObjective


def test_a_loss_that_depends_on_a_learned_number_alone_has_no_slope():
    """The loss requires a gradient, but not by Q: its derivatives by U are zero."""
    weight = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    objective = SmoothObjective(lambda Q: weight * Q.new_ones(Q.shape[:-2]), 2)
    U = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    assert float(objective.loss(U).detach()) == 3
    torch.testing.assert_close(objective.gradient(U), torch.zeros_like(U))
    torch.testing.assert_close(objective.hessian_product(U, U), torch.zeros_like(U))


def test_a_slope_that_depends_on_a_learned_number_alone_has_no_curvature():
    """`ell(Q) = w tr Q` has the gradient `2 w U` and the Hessian `2 w Delta`."""
    weight = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    trace = lambda Q: weight * Q.diagonal(dim1=-2, dim2=-1).sum(-1)  # noqa: E731
    objective = SmoothObjective(trace, 2)
    U = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    Delta = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    torch.testing.assert_close(objective.gradient(U), 6 * U)
    torch.testing.assert_close(objective.hessian_product(U, Delta), 6 * Delta)
