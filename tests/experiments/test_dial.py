"""The commutativity dial: small runs of the experiment, its words and its picture."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad.core.errors import DomainError, ShapeError
from posquad.experiments.exp7.run import Dial, log_interval, run
from posquad.selection import (
    commutator_size,
    dialed_family,
    distance_to_minimum_trace,
    minimum_trace_interpolant,
)
from support import normal

LITTLE_LAW = {"law_problems": 1, "law_dials": (0.03,), "law_starts": (0.1,)}
SMALL = Dial(dials=(0.0, 0.5, 1.0), epsilons=(0.5, 0.2), seeds=3, n=2, d=3, **LITTLE_LAW)


def test_at_dial_zero_the_law_holds(measured):
    """There the paper's theorem says what must come out, to the flow's residual tolerance."""
    assert measured["converged"].all()
    assert measured["to_bregman"].shape == (2, 3)
    assert measured["to_bregman"].max() < 1e-5
    assert measured["to_von_neumann"][0].max() < 1e-5


def test_away_from_zero_it_is_measured_not_assumed(measured):
    assert measured["to_von_neumann"].shape == (3, 2, 3)
    assert (measured["to_von_neumann"][1:].max(axis=(1, 2)) > 1e-4).all()
    # No interpolant has less trace than the minimum, and a smaller start has a smaller gap.
    assert (measured["trace_gaps"] > -1e-6).all()
    assert (measured["trace_gaps"][:, 1] < measured["trace_gaps"][:, 0]).all()


def test_commutators_are_those_of_the_families(measured):
    expected = [float(commutator_size(dialed_family(2, 3, 1.0, seed=k))) for k in range(3)]
    np.testing.assert_allclose(measured["commutators"][-1], expected, rtol=1e-12)
    assert measured["commutators"][0].max() < 1e-15


def test_the_run_is_reproducible_and_reports_progress():
    calls = []
    few = Dial(**{**vars(SMALL), "max_steps": 60})
    again, once = run(few, lambda fraction: None), run(few, calls.append)
    assert calls == sorted(calls)
    assert calls[-1] == 1
    np.testing.assert_array_equal(again["to_von_neumann"], once["to_von_neumann"])


def test_interval_is_the_t_interval_of_the_logarithms():
    mean, low, high = log_interval(np.array([1e-1, 1e-2, 1e-3]))
    # Three values at -1, -2, -3: standard error 1/sqrt(3), t_{0.975, 2} = 4.302653.
    assert mean == pytest.approx(-2)
    assert high - mean == pytest.approx(4.302653 / np.sqrt(3), rel=1e-6)
    assert mean - low == pytest.approx(high - mean)


def test_the_statement_is_made_from_the_numbers(measured):
    statement = measured.remarks[0]
    assert f"{measured['to_bregman'].max():.1e}" in statement
    assert "all 6 runs" in statement


def test_the_statement_hides_nothing():
    few = {"epsilons": (0.3,), "seeds": 2, "n": 2, "d": 3, **LITTLE_LAW}
    without_zero, *_ = run(Dial(dials=(0.5, 1.0), **few), lambda fraction: None).remarks
    assert "dial 0 " not in without_zero
    assert "nan" not in without_zero
    cut_short = run(Dial(max_steps=5, dials=(0.0, 1.0), **few), lambda fraction: None).remarks
    assert "4 of 4 flows did not reach" in cut_short[0]
    assert "1 of 1 flows near dial 0 did not reach" in cut_short[1]
    assert "Greedy low-rank learning did not end in 1 of 1" in cut_short[2]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"seeds": 1}, "exp7.seeds"),
        ({"seeds": 0}, "exp7.seeds"),
        ({"n": 0}, "n"),
        ({"d": 2.5}, "d"),
        ({"epsilons": (0.0,)}, "epsilons"),
        ({"dials": (1.5,)}, "dial"),
        ({"residual_tolerance": -1.0}, "residual_tolerance"),
        ({"law_dials": (0.0,)}, "exp7.law_dials"),
    ],
)
def test_bad_input(arguments, named):
    with pytest.raises(DomainError, match=rf"^{named}: expected"):
        run(Dial(**arguments), lambda fraction: None)


def test_distance_to_the_minimum_trace_set(rng):
    """If the trace is all that is measured, every density matrix is a minimiser."""
    G = normal(rng, 4, 4)
    Q = (G + G.mT).numpy()
    values, vectors = np.linalg.eigh(Q)
    ordered = np.sort(values)[::-1]  # projection onto the simplex, by its formula
    cumulated = (np.cumsum(ordered) - 1) / np.arange(1, 5)
    shift = cumulated[np.flatnonzero(ordered > cumulated)[-1]]
    nearest = (vectors * np.maximum(values - shift, 0)) @ vectors.T
    measured = distance_to_minimum_trace(np.eye(4)[None], np.array([1.0]), Q)
    assert measured == pytest.approx(np.linalg.norm(Q - nearest), abs=1e-6)  # solver tolerance


def test_distance_to_a_unique_minimiser(rng):
    A = dialed_family(5, 3, 1.0, seed=4)
    y = torch.einsum("nij,ij->n", A, torch.eye(3, dtype=torch.float64))
    least = minimum_trace_interpolant(A, y)
    assert distance_to_minimum_trace(A, y, least.Q) < 1e-4  # root of the trace slack
    with pytest.raises(ShapeError, match=r"^Q"):
        distance_to_minimum_trace(A, y, torch.eye(4, dtype=torch.float64))
