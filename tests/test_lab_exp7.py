"""Experiment 7 against SciPy: the matrix flow, the von Neumann projection, linear programming."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import scipy
import torch

from posquad.lab.exp7_dial import EXPERIMENT, Dial, run
from posquad.lab.figures import picture
from posquad.selection import dialed_family

SMALL = Dial(dials=(0.0, 1.0), epsilons=(0.5,), seeds=2, n=2, d=3, residual_tolerance=1e-6)
CASES = [(dial, k) for dial in SMALL.dials for k in range(2)]


@pytest.fixture(scope="module")
def measured():
    return run(SMALL, lambda fraction: None)


@pytest.fixture(scope="module")
def without():
    """The same without the semidefinite solver."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "clarabel", None)
        return run(SMALL, lambda fraction: None)


def problem(dial, k):
    """The family is the library's; responses are of the target of seed k, scaled to length one."""
    A = dialed_family(SMALL.n, SMALL.d, dial, seed=k).numpy()
    rng = torch.Generator().manual_seed(10_000 + k)
    G = torch.randn(SMALL.d, SMALL.d, generator=rng, dtype=torch.float64).numpy()
    y = np.array([np.trace(M @ G @ G.T) for M in A])
    return A, y / np.linalg.norm(y)


def flow_limit(A, y):
    """`Q' = -2 (GQ + QG)`, `G = (1/n) sum (tr(A_i Q) - y_i) A_i`, to the same residual."""

    def residual(q):
        return np.einsum("nij,ij->n", A, q.reshape(3, 3)) - y

    def field(t, q):
        G = np.einsum("n,nij->ij", residual(q), A) / len(y)
        Q = q.reshape(3, 3)
        return -2 * (G @ Q + Q @ G).ravel()

    def ends(t, q):
        return np.linalg.norm(residual(q)) - SMALL.residual_tolerance

    ends.terminal = True
    flow = scipy.integrate.solve_ivp(
        field, (0, 1e5), 0.25 * np.eye(3).ravel(), method="LSODA", rtol=1e-10, atol=1e-13,
        events=ends,
    )  # fmt: skip
    return flow.y[:, -1].reshape(3, 3)


def von_neumann(A, y):
    """Minimise the smooth dual `tr exp(log Q0 + sum l_i A_i) - l'y`."""

    def point(dual):
        return scipy.linalg.expm(np.log(0.25) * np.eye(3) + np.einsum("n,nij->ij", dual, A))

    found = scipy.optimize.root(
        lambda dual: np.einsum("nij,ij->n", A, point(dual)) - y, np.zeros(len(y)), tol=1e-13
    )
    assert found.success
    return point(found.x)


@pytest.mark.parametrize(("dial", "k"), CASES)
def test_distances_are_scipys(measured, dial, k):
    A, y = problem(dial, k)
    Q = flow_limit(A, y)
    expected = np.linalg.norm(Q - von_neumann(A, y)) / np.linalg.norm(Q)
    got = measured.at("to_von_neumann", {"dial": dial, "epsilon": 0.5})[k]
    # Flows are stopped at a residual of 1e-6; the slow directions amplify it a hundredfold.
    assert got == pytest.approx(expected, abs=1e-4)
    if dial == 0:
        assert max(got, expected) < 1e-4
        assert measured["to_bregman"][0, k] < 1e-4


@pytest.mark.parametrize("k", range(2))
def test_the_trace_gap_at_dial_zero_by_linear_programming(measured, k):
    """Commuting measurements: the least trace is a linear program in the joint eigenvalues."""
    A, y = problem(0.0, k)
    basis = np.linalg.eigh(np.einsum("n,nij->ij", [1.0, 0.37], A))[1]
    values = np.stack([np.diag(basis.T @ M @ basis) for M in A])
    least = scipy.optimize.linprog(np.ones(3), A_eq=values, b_eq=y).fun
    expected = np.trace(flow_limit(A, y)) / least - 1
    assert measured["trace_gaps"][0, 0, k] == pytest.approx(expected, abs=1e-4)


def test_commutators(measured):
    assert measured["commutators"][0].max() < 1e-14
    assert measured["commutators"][1].min() > 1e-3
    for k in range(2):
        A, _ = problem(1.0, k)
        assert np.linalg.norm(A[0] @ A[1] - A[1] @ A[0]) > 1e-3


def test_means_are_geometric(measured):
    for name in ("to_von_neumann", "to_minimum_trace"):
        expected = np.exp(np.log(measured[name]).mean(-1))
        np.testing.assert_allclose(measured[f"{name}_mean"], expected, rtol=1e-12)
        assert (measured[f"{name}_low"] <= measured[f"{name}_mean"]).all()
        assert (measured[f"{name}_mean"] <= measured[f"{name}_high"]).all()


def test_every_seed_is_its_own_whatever_their_number(measured):
    more = run(Dial(**{**vars(SMALL), "seeds": 3, "dials": (1.0,)}), lambda fraction: None)
    # Flows of a batch share their steps, so they agree to the tolerance of the integration.
    np.testing.assert_allclose(
        more["to_von_neumann"][0, :, :2], measured["to_von_neumann"][1], atol=1e-5
    )
    np.testing.assert_allclose(more["commutators"][0, :2], measured["commutators"][1], rtol=1e-12)


def test_without_a_semidefinite_solver_it_runs_and_says_so(measured, without):
    assert "no semidefinite solver is installed" in without.remarks[0]
    np.testing.assert_array_equal(without["to_von_neumann"], measured["to_von_neumann"])
    assert np.isnan(without["to_minimum_trace"]).all()


def test_without_a_semidefinite_solver_no_distance_is_made_up(without):
    """Neither the means nor the table nor the words may show a number that was not computed."""
    known = without.quantities.get("to_minimum_trace_mean")
    assert known is None or np.isnan(known.values).all()
    for row in EXPERIMENT.tables[0].rows(without):
        assert not any(character.isdigit() for character in row[-1])
    assert not any(c.isdigit() for c in EXPERIMENT.panels[1].describe(without).split("epsilon")[0])


def test_without_a_semidefinite_solver_it_draws(without):
    for panel in EXPERIMENT.panels:
        picture(panel, without).draw_without_rendering()
