"""Experiment 7 against SciPy: the matrix flow, the von Neumann projection, linear programming."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
import scipy
import torch

from posquad.experiments.exp7 import law
from posquad.experiments.exp7.run import EXPERIMENT, Dial, log_interval, run
from posquad.report.figures import picture
from posquad.selection import dialed_family, interpolant, minimum_trace_interpolant

LAW = {"law_problems": 1, "law_dials": (0.02, 0.01), "law_starts": (1e-2, 1e-4, 1e-5, 1e-6)}
SMALL = Dial(dials=(0.0, 1.0), epsilons=(0.5,), seeds=2, n=2, d=3, residual_tolerance=1e-6, **LAW)
CASES = [(dial, k) for dial in SMALL.dials for k in range(2)]


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


def test_a_seed_does_not_depend_on_the_number_of_seeds(measured):
    more = run(Dial(**{**vars(SMALL), "seeds": 3, "dials": (1.0,)}), lambda fraction: None)
    # Flows of a batch share their steps, so they agree to the tolerance of the integration.
    np.testing.assert_allclose(
        more["to_von_neumann"][0, :, :2], measured["to_von_neumann"][1], atol=1e-5
    )
    np.testing.assert_allclose(more["commutators"][0, :2], measured["commutators"][1], rtol=1e-12)


CHEAP = {"dials": (1.0,), "epsilons": (0.5,), "n": 2, "d": 2, "t_final": 1e-3, "law_problems": 1}
CHEAP |= {"law_dials": (0.1,), "law_starts": (0.5,)}


def test_other_seeds_share_no_problem():
    """Seed 1 of two problems each: the third and the fourth."""
    two, four = (
        run(Dial(seed=seed, seeds=seeds, **CHEAP), lambda fraction: None)
        for seed, seeds in ((1, 2), (0, 4))
    )
    np.testing.assert_allclose(two["commutators"], four["commutators"][:, 2:], rtol=1e-13)
    np.testing.assert_allclose(two["to_von_neumann"], four["to_von_neumann"][..., 2:], rtol=1e-10)
    assert (two["commutators"] != four["commutators"][:, :2]).all()


def test_a_flow_that_ends_too_early_is_reported(measured):
    early = run(Dial(seeds=2, **CHEAP), lambda fraction: None)
    assert not early["converged"].any()
    assert "2 of 2 flows did not reach their residual tolerance" in early.remarks[0]
    assert measured["converged"].all()


def test_an_interval_needs_two_values_that_are_known():
    """Of 1e-2 and 1e-4: mean -3, deviation sqrt(2), t_{0.975, 1} = 12.706205."""
    nan = np.nan
    values = np.array([[1e-2, 1e-4, nan], [1e-2, nan, nan], [nan, nan, nan]])
    mean, low, high = log_interval(values)
    assert (mean[0], low[0], high[0]) == pytest.approx((-3, -15.706205, 9.706205), abs=1e-6)
    for end in (mean, low, high):
        assert np.isnan(end[1:]).all()


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
    (panel,) = [p for p in EXPERIMENT.panels if "minimum" in p.title.lower()]
    words = re.sub(r"(dial|epsilon =) [\d.]+\d|dial \d", "", panel.describe(without))
    assert not any(character.isdigit() for character in words), words


def test_without_a_semidefinite_solver_its_share_is_unknown(without):
    shares = next(t for t in EXPERIMENT.tables if t.key == "exp7-shares").rows(without)
    assert all(row[-1] == "unknown" for row in shares)
    assert all("%" in row[3] for row in shares)


def test_the_minimum_trace_is_solved_once_per_problem(monkeypatch):
    """Two dials of two problems with two starts, and the law's dial of one problem: five."""
    solved = []

    def counted(A, y):
        solved.append(A)
        return minimum_trace_interpolant(A, y)

    monkeypatch.setattr(law, "minimum_trace_interpolant", counted)
    monkeypatch.setattr(interpolant, "minimum_trace_interpolant", counted)
    few = {**CHEAP, "dials": (0.5, 1.0), "epsilons": (0.5, 0.4), "law_dials": (0.1,)}
    run(Dial(seeds=2, **few), lambda fraction: None)
    assert len(solved) == 5


def test_without_a_semidefinite_solver_it_draws(without):
    for panel in EXPERIMENT.panels:
        picture(panel, without).draw_without_rendering()
