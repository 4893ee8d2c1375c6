"""Searches for dual vectors: a step of the interior-point search, and which one runs, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from posquad.certificates.proofs.bounded_operator import BoundedRankOne
from posquad.certificates.proofs.statements import TangentGram
from posquad.certificates.search import trace
from posquad.certificates.search.dual import DualSearch

X = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, -1.0], [0.0, 1.0]])


@pytest.mark.parametrize(
    ("dz", "ds", "step"),
    [
        (0.3, -1.0, 1.0),  # inside: the whole step
        (0.8, -1.0, 0.5),  # 0.5 + 0.8 leaves the ball, 0.5 + 0.4 does not
        (0.0, 1.0, 0.45),  # `V'A*(z)V - s` falls from 0.5 to -0.5: nine tenths of half the way
    ],
)
def test_a_step_stays_in_the_ball_and_in_the_cone(dz, ds, step):
    """U = e1, so that `V'A*(z)V = z_2 + z_3 + z_4`, and z = (0, 0, 0, 1/2), s = 0."""
    operator, U, e = BoundedRankOne(X), np.eye(2)[:, :1], np.eye(4)[3]
    factor = np.linalg.cholesky(TangentGram(operator, U).with_gauge(1.0)[0])
    search = DualSearch(operator, U, factor)
    z, s = search._damped_step(0.5 * e, 0.0, dz * e, ds)
    np.testing.assert_allclose(z, (0.5 + step * dz) * e, rtol=1e-14)
    assert s == pytest.approx(step * ds, rel=1e-14)


def test_the_barrier_method_runs_only_if_least_squares_leaves_a_gap(monkeypatch):
    """Q = diag(1, 0) and inputs e_1, e_2: z = (1, 0) has `A*(z) = Q <= I` and `<z, y> = tr Q`."""

    def refused(*_):
        raise AssertionError("the barrier method was run")

    monkeypatch.setattr(trace, "barrier_dual", refused)
    found = trace.trace_dual(
        BoundedRankOne(np.eye(2)), np.array([1.0, 0.0]), np.array([[1.0], [0.0]])
    )
    assert found is not None
    assert found.method == "least squares"
    assert found.dual == pytest.approx([1.0, 0.0], abs=1e-14)
