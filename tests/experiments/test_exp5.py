"""Experiment 5 against SciPy's integrator and the optimality conditions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from posquad.experiments.exp5.run import EXPERIMENT, Selection, run

SMALL = Selection(epsilons=(0.5, 0.05))  # the largest and the smallest of the paper; it takes long
BASE, Y, D = np.array(SMALL.B), np.array(SMALL.y), np.array(SMALL.multiplicities)
C = np.array(SMALL.combinations)
SYSTEMS = {"base": (BASE, Y), "augmented": (np.vstack([BASE, C @ BASE]), np.append(Y, C @ Y))}
CASES = [(name, k) for name in SYSTEMS for k in range(2)]


@pytest.fixture(scope="module")
def flows():
    """SciPy's flows in logarithmic coordinates, with the dissipated energy as one more unknown."""
    found = {}
    for name, k in CASES:
        B, y = SYSTEMS[name]

        def field(t, z, B=B, y=y):
            residual = B @ np.exp(z[:-1]) - y
            return np.append(-4 / D * (B.T @ residual) / len(y), residual @ residual / len(y))

        def ends(t, z, B=B, y=y):
            return np.linalg.norm(B @ np.exp(z[:-1]) - y) / np.linalg.norm(y) - 1e-10

        ends.terminal = True
        start = np.append(np.full(len(D), 2 * np.log(SMALL.epsilons[k])), 0.0)
        found[name, k] = scipy.integrate.solve_ivp(
            field, (0, 1e4), start, method="DOP853", rtol=1e-13, atol=1e-16,
            events=ends, dense_output=True,
        )  # fmt: skip
    return found


@pytest.mark.parametrize(("name", "k"), CASES)
def test_flow_limits_are_scipys(measured, flows, name, k):
    limit = np.exp(flows[name, k].y[:-1, -1])
    gap = np.linalg.norm(limit - measured["projection"][k])
    # Both end where the relative residual is 1e-10, so the distance is that of this very time, not
    # zero; steps of 1e-11, relative in q, and a stopping time between records leave a few per cent.
    assert measured[f"{name}_to_projection"][k] == pytest.approx(gap, rel=0.05)
    assert 1e-10 < gap < 1e-9
    last = measured[f"{name}_path"][-1, k]
    np.testing.assert_allclose(last, limit, atol=1e-9)  # the integrator may end a step later


@pytest.mark.parametrize(("name", "k"), CASES)
def test_stopping_times_are_scipys(measured, flows, name, k):
    """Four digits are printed; a per mille is the least that this asks for."""
    stop = flows[name, k].t_events[0][0]
    assert measured[f"{name}_stop"][k] == pytest.approx(stop, rel=1e-3)


@pytest.mark.parametrize(("name", "k"), CASES)
def test_paths_are_scipys(measured, flows, name, k):
    times = measured[f"{name}_time"][:, k]
    inside = times <= flows[name, k].t[-1]
    expected = np.exp(flows[name, k].sol(times[inside])[:-1]).T
    np.testing.assert_allclose(measured[f"{name}_path"][inside, k], expected, rtol=1e-6, atol=1e-9)
    B, y = SYSTEMS[name]
    residual = np.linalg.norm(measured[f"{name}_path"][:, k] @ B.T - y, axis=-1)
    np.testing.assert_allclose(
        measured[f"{name}_residual"][:, k], residual / np.linalg.norm(y), rtol=1e-4, atol=1e-14
    )


@pytest.mark.parametrize("k", range(2))
def test_projections_satisfy_their_optimality_conditions(measured, k):
    """Feasible, positive, and `d log(q / q0)` in the range of B': by least squares."""
    q = measured["projection"][k]
    assert abs(BASE @ q - Y).max() < 1e-14
    assert (q > 0).all()
    slope = D * np.log(q / SMALL.epsilons[k] ** 2)
    dual = np.linalg.lstsq(BASE.T, slope, rcond=None)[0]
    assert abs(BASE.T @ dual - slope).max() < 1e-12
    assert measured["projections_apart"][k] < 1e-14
    assert measured["scipy_apart"][k] < 1e-12


def divergence(p, q):
    """D_h of the weighted entropy `h = (1/4) sum d_a q_a log q_a`, whose mirror flow this is."""
    return (D * (p * np.log(p / q) - p + q)).sum(-1) / 4


@pytest.mark.parametrize(("name", "k"), CASES)
def test_the_lyapunov_identity(measured, flows, name, k):
    """In SciPy's flow, which carries the integral along, and in the measured one."""
    p, flow = measured["projection"][k], flows[name, k]
    begin, end = (divergence(p, np.exp(flow.y[:-1, j])) for j in (0, -1))
    assert begin - end == pytest.approx(flow.y[-1, -1], abs=1e-9)
    assert begin > 0.01  # so that the identity is about something
    assert measured[f"{name}_lyapunov"][k] < 1e-6  # the paper's figure
    assert measured["lyapunov_max"] >= measured[f"{name}_lyapunov"][k]


def test_redundant_rows_change_the_path_but_not_the_limit(measured, flows):
    for k in range(2):
        ends = [np.exp(flows[name, k].y[:-1, -1]) for name in SYSTEMS]
        assert np.linalg.norm(ends[0] - ends[1]) < 1e-8
    assert measured["flows_apart"].max() < 1e-8
    assert (measured["paths_apart"] > 1e-3).all()
    assert measured["paths_differ"]
    assert measured["same_feasible_set"]
    both = np.vstack([np.column_stack(system) for system in SYSTEMS.values()])
    assert np.linalg.matrix_rank(both) == np.linalg.matrix_rank(BASE) == 3  # one solution set
    ratio = measured["augmented_stop"] / measured["base_stop"]
    np.testing.assert_allclose(measured["slower_when_augmented"], ratio, rtol=1e-13)


def test_the_system_is_printed(measured):
    assert "(1, 0.5, 0, 1, 0.2, 0)" in measured.remarks[0]
    assert "(1, 1, 2, 1, 3, 2)" in measured.remarks[0]


@pytest.mark.parametrize(("rows", "differ"), [(((2.0, 0.0, 0.0),), True), ((), False)])
def test_paths_that_coincide_are_not_called_different(rows, differ):
    """Without redundant rows there is one flow, which is no two paths."""
    combinations = rows or ((0.0, 0.0, 0.0),)  # a row of zeros changes the speed, not the path
    q = Selection(epsilons=(0.5,), tolerance=1e-9, combinations=combinations)
    measured = run(q, lambda fraction: None)
    assert measured["paths_differ"] == differ
    assert measured["same_feasible_set"]


def test_nothing_is_random():
    one, other = (
        run(Selection(seed=seed, epsilons=(0.5,), tolerance=1e-9), lambda fraction: None)
        for seed in (0, 5)
    )
    for name in one.quantities:
        np.testing.assert_array_equal(other[name], one[name])


def test_it_is_the_papers_experiment():
    q = EXPERIMENT.parameters()
    assert q.epsilons == (0.5, 0.25, 0.1, 0.05)
    assert q.tolerance == 1e-11


def test_a_flow_that_does_not_converge_does_not_raise():
    """A flow that ends early has neither a stopping time nor a limit: they are unknown."""
    measured = run(Selection(max_steps=5), lambda fraction: None)
    for name in SYSTEMS:
        assert (measured[f"{name}_residual"][-1] > SMALL.residual_tolerance).all()
        assert np.isnan(measured[f"{name}_stop"]).all()
        assert np.isnan(measured[f"{name}_to_projection"]).all()
    assert np.isnan(measured["flows_apart"]).all()
    assert np.isfinite(measured["projection"]).all()
