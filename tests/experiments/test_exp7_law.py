"""The first-order law in experiment 7: flows by SciPy, candidates by hand, fits by SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
import torch

from posquad.dynamics import gradient_flow
from posquad.experiments.claims import Agreement, claims, compare_claim
from posquad.experiments.exp7.candidates import CANDIDATES
from posquad.experiments.exp7.flows import flow_limits, greedy_limits
from posquad.experiments.exp7.law import draw_system, slope_interval
from posquad.experiments.exp7.run import EXPERIMENT, Dial, run
from posquad.problems import Dense, LeastSquares
from posquad.selection import dialed_family

PARAMETERS = Dial(
    dials=(0.0,), epsilons=(0.5,), seeds=2, n=2, d=3, law_problems=1, law_dials=(0.02, 0.01),
    law_starts=(1.0, 1e-4, 1e-5, 1e-6),
)  # fmt: skip


@pytest.fixture(scope="module")
def measured():
    return run(PARAMETERS, lambda fraction: None)


def limit(dial: float) -> np.ndarray:
    """Limit of the flow of the first problem by SciPy; the responses are those of dial 0."""
    A = dialed_family(2, 3, dial, seed=0).numpy()
    y = draw_system(2, 3, 0).y.numpy()

    def field(_, q):
        Q = q.reshape(3, 3)
        G = np.tensordot(np.einsum("nij,ij->n", A, Q) - y, A, 1)
        return -(G @ Q + Q @ G).ravel()

    flow = scipy.integrate.solve_ivp(
        field, (0, 2000), 0.25 * np.eye(3).ravel(), "LSODA", rtol=1e-11, atol=1e-13
    )
    Q = flow.y[:, -1].reshape(3, 3)
    assert np.abs(np.einsum("nij,ij->n", A, Q) - y).max() < 1e-9
    return Q


def test_departures_are_scipys(measured):
    base = limit(0.0)
    for k, dial in enumerate(PARAMETERS.law_dials):
        departure = np.linalg.norm(limit(dial) - base)
        assert measured["departure"][k, 0, 0] == pytest.approx(departure, rel=1e-5)
    errors = measured["law_error"][:, 0, 0]
    assert measured["law_error_order"] == pytest.approx(np.log2(errors[0] / errors[1]))
    assert measured["law_error_order"] == pytest.approx(2, abs=0.1)
    law = CANDIDATES.index("first-order law")
    expected = 1 - (errors / measured["departure"][:, 0, 0]) ** 2
    np.testing.assert_allclose(measured["share"][law, :, 0, 0], expected)
    np.testing.assert_allclose(measured["predicted_departure"], measured["departure"], rtol=0.1)


def test_verdicts_follow_the_numbers(measured):
    ours = [c for c in claims() if c.id in ("exp7.law-order", "exp7.growth")]
    assert len(ours) == 2
    for claim in ours:
        assert compare_claim(claim, measured).verdict is Agreement.HOLDS
    other = run(Dial(dials=(0.0,), epsilons=(0.5,), seeds=2, n=3, d=2), lambda fraction: None)
    for claim in ours:
        assert compare_claim(claim, other).verdict is Agreement.NOT_COMPARABLE
    assert "at most d measurements" in other.remarks[-1]
    for panel in EXPERIMENT.panels:
        assert panel.describe(other)
    for table in EXPERIMENT.tables:
        assert all(len(row) == len(table.header) for row in table.rows(other))


def test_slopes_and_intervals_are_those_of_linear_regression():
    rng = np.random.default_rng(0)
    x, y = np.arange(5.0), rng.normal(size=(2, 5))
    slope, low, high = slope_interval(x, y)
    for k in range(2):
        fit = scipy.stats.linregress(x, y[k])
        half = scipy.stats.t.ppf(0.975, 3) * fit.stderr
        expected = (fit.slope, fit.slope - half, fit.slope + half)
        assert (slope[k], low[k], high[k]) == pytest.approx(expected, rel=1e-12)


def test_taking_ended_flows_out_of_the_batch_changes_no_limit():
    """One flow ends long before the other, which needs more than the first 256 steps."""
    A = torch.diag_embed(torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.13]]]))
    A, y = A.double(), torch.tensor([[1.0, 0.5], [1.0, 0.13]], dtype=torch.float64)
    start = 0.1 * torch.eye(2, dtype=torch.float64).expand(2, 2, 2)
    limits = {"rtol": 1e-9, "t_final": 1e5, "max_steps": 20_000}
    U, done = flow_limits(A, y, start, residual=1e-9, **limits)
    assert done.all()
    expected = torch.diag_embed(torch.tensor([[1.0, 0.5], [1.0, 1.0]]).double())
    assert (U @ U.mT - expected).abs().max() < 1e-7
    whole = gradient_flow(LeastSquares(Dense(A), y), start, loss_tolerance=1e-18 / 4, **limits)
    assert int(whole.steps.max()) > 256 > int(whole.steps.min())
    assert (whole.U - U).abs().max() < 1e-7
    _, short = flow_limits(A, y, start, residual=1e-9, rtol=1e-9, t_final=40.0, max_steps=20_000)
    assert short.tolist() == [True, False]


def test_greedy_learning_by_hand():
    """Traces y_1 of a 2 x 2 block and y_2 of a coordinate: a rank one matrix in each of them.

    The first direction is the one of the larger response; the second problem is fitted by it.
    """
    first, second = np.diag([1.0, 1.0, 0.0]), np.diag([0.0, 0.0, 1.0])
    A = torch.from_numpy(np.array([[first, second], [first, second]]))
    y = torch.tensor([[0.3, 1.0], [0.0, 1.0]], dtype=torch.float64)
    Q, rank = greedy_limits(A, y, rtol=1e-8, residual=1e-6, t_final=1e4, max_steps=10_000)
    assert rank.tolist() == [2, 1]
    np.testing.assert_allclose(torch.linalg.eigvalsh(Q[0]), [0, 0.3, 1], atol=1e-4)
    np.testing.assert_allclose(Q[1], np.diag([0, 0, 1.0]), atol=1e-4)
    lost, none = greedy_limits(A, y, rtol=1e-8, residual=1e-6, t_final=1e4, max_steps=3)
    assert none.tolist() == [0, 0]
    assert torch.isnan(lost).all()
