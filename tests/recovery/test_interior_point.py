"""One step of the interior point method against its equations, and its rules by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from posquad import RankOne
from posquad.core.status import Status
from posquad.recovery.problem import Problem
from posquad.recovery.solvers import interior_point
from posquad.recovery.solvers.interior_point import (
    InteriorPoint,
    duality_gap,
    feasible,
    no_progress,
    optimal,
    residual_bound,
)
from support import normal, vector


def problem_of(n, k=3, seed=0):
    """Inputs with `X'X = I` and responses of length one, of both signs."""
    rng = torch.Generator().manual_seed(seed)
    X = torch.linalg.qr(normal(rng, n, k)).Q
    y = normal(rng, n)
    return Problem(RankOne(X), y / y.norm(), torch.ones_like(y))


# At k = 3 there are 6 symmetric matrices: dual below 6 samples, from moments above 18.
KINDS = {4: (True, False), 5: (True, False), 6: (False, False), 18: (False, False)}
KINDS |= {19: (False, True), 30: (False, True)}


@pytest.mark.parametrize("n", KINDS)
def test_a_step_solves_its_equations(n):
    """`dQ + A_G*(dv) = R` and `A_G(dQ) - dv = v - e`, in each form."""
    method = InteriorPoint(problem_of(n))
    assert (method.dual, method.from_moments) == KINDS[n]
    state = method.start()
    state = method.advance(method.advance(state))  # away from the symmetric start
    rng = torch.Generator().manual_seed(1)
    R = normal(rng, 3, 3)
    R = R + R.mT
    dQ, dY, dv = method._system(state)(R)
    Z = method.problem.operator.X @ state.G
    adjoint = torch.einsum("n,ni,nj->ij", dv, Z, Z)
    applied = torch.einsum("ni,ij,nj->n", Z, dQ, Z)
    torch.testing.assert_close(dY, adjoint, rtol=0, atol=1e-11)
    torch.testing.assert_close(dQ + dY, R, rtol=0, atol=1e-11)
    torch.testing.assert_close(applied - dv, state.v - state.e, rtol=0, atol=1e-11)


@pytest.mark.parametrize("n", [5, 12, 30])
def test_points_stay_in_their_coordinates(n):
    """`Q = G diag(s) G'` has the residual e, and `A*(v) = G^-T diag(s) G^-1`, at every step."""
    method = InteriorPoint(problem_of(n))
    state, X = method.start(), method.problem.operator.X
    for _ in range(4):
        inverse = torch.linalg.inv(state.G)
        Y = torch.einsum("n,ni,nj->ij", state.v, X, X)
        torch.testing.assert_close(inverse.mT * state.s @ inverse, Y, rtol=0, atol=1e-10)
        Q = state.G * state.s @ state.G.mT
        e = torch.einsum("ni,ij,nj->n", X, Q, X) - method.problem.y
        torch.testing.assert_close(state.e, e, rtol=0, atol=1e-12)
        state = method.advance(state)


def test_the_start_is_a_multiple_of_the_identity_of_the_size_of_the_optimum():
    n, k = 8, 3
    state = InteriorPoint(problem_of(n)).start()
    Q = state.G * state.s @ state.G.mT
    torch.testing.assert_close(Q, np.sqrt(n) / k * torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(state.v, torch.full((n,), n**-0.5, dtype=torch.float64))
    assert float(state.residual) <= 1
    assert int(state.steps) == 0


def reach(S, *moves):
    """The largest step that keeps `S + step M` semidefinite, by NumPy."""
    root = np.linalg.inv(np.sqrt(S))
    lowest = min(np.linalg.eigvalsh(root @ M @ root)[0] for M in moves)
    return -1 / lowest if lowest < 0 else np.inf


@pytest.mark.parametrize("n", [5, 12])
def test_a_step_is_mehrotras_predictor_and_corrector(n):
    method = InteriorPoint(problem_of(n))
    state = method.advance(method.start())
    solve = method._system(state)
    s = state.s.numpy()
    S, mu, k = np.diag(s), (s**2).sum() / 3, 3
    dQ, dY, _ = (t.numpy() for t in solve(torch.as_tensor(-S)))
    far = min(1.0, reach(S, dQ, dY))
    predicted = np.trace((S + far * dQ) @ (S + far * dY)) / k
    target = mu * (predicted / mu) ** 3
    mixed = (dQ @ dY + dY @ dQ) / 2
    right = 2 * (np.diag(target - s**2) - mixed) / (s[:, None] + s)
    dQ, dY, dv = (t.numpy() for t in solve(torch.as_tensor(right)))
    length = min(1.0, (0.9 + 0.09 * far) * reach(S, dQ, dY))
    G = state.G.numpy()
    new = method.advance(state)
    Q = (new.G * new.s @ new.G.mT).numpy()
    np.testing.assert_allclose(Q, G @ (S + length * dQ) @ G.T, atol=1e-12)
    np.testing.assert_allclose(new.v, state.v.numpy() + length * dv, atol=1e-13)
    assert (int(new.steps), int(new.attempts)) == (2, 2)


def test_reach_by_hand():
    """`1 - 2t`, and `4 - t`: the boundary is at 1/2; directions into the cone have no end."""
    s, zero = vector(1.0, 4.0), torch.zeros(2, 2, dtype=torch.float64)
    down = torch.diag(vector(-2.0, -1.0))
    assert float(interior_point._reach(s, down, zero)) == 0.5
    assert float(interior_point._reach(s, zero, down)) == 0.5
    assert float(interior_point._reach(s, torch.diag(vector(0.0, -1.0)), zero)) == 4
    assert float(interior_point._reach(s, -down, zero)) == np.inf
    assert float(interior_point._reach(s, zero, zero)) == np.inf
    assert float(interior_point._reach(s, down * torch.nan, down)) == 0.5


def test_gap_by_hand():
    residual, bound = vector(2.0, 1.0, 1.0, 0.0, 0.5), vector(1.0, 1.0, 0.0, 0.0, 0.6)
    assert duality_gap(residual, bound).tolist() == [0.75, 0.0, 1.0, 0.0, 0.0]


def test_bound_by_hand():
    problem = Problem(RankOne(torch.eye(2, dtype=torch.float64)), vector(-3.0, 4.0))
    assert float(residual_bound(problem, vector(1.0, 0.0))) == pytest.approx(3 / 5)
    assert float(residual_bound(problem, vector(0.0, 1.0))) == 0
    assert float(residual_bound(problem, vector(0.0, 0.0))) == 0


def test_a_vector_is_lifted_into_the_cone_and_little_more():
    """With X = I, `A*(z)` is diagonal: the lowest entry -1/2 becomes 1/200 by the factor 1.01."""
    one = vector(1.0, 1.0, 1.0)
    problem = Problem(RankOne(torch.eye(3, dtype=torch.float64)), one, one)
    lifted = feasible(problem, vector(1.0, 2.0, -0.5))
    np.testing.assert_allclose(lifted, np.array([1.0, 2.0, -0.5]) + 1.01 * 0.5, atol=1e-14)
    assert feasible(problem, vector(1.0, 2.0, 0.5)).tolist() == [1.0, 2.0, 0.5]
    # At the boundary, t covers the rounding of (d + 2) eps sum |z_i| ||x_i||^2.
    assert not bool(feasible(replace(problem, unit=None), vector(1.0, 2.0, 0.5)).any())
    extra = feasible(problem, vector(1.0, 2.0, 0.0))[2]
    assert float(extra) == pytest.approx(1.01 * 5 * 2**-52 * 3, rel=1e-12)


def test_progress_is_a_tenth_of_the_residual_or_of_the_gap():
    method = InteriorPoint(problem_of(8))
    state = method.start()
    here = float(method.problem.relative(state.e))
    far = replace(state, residual=vector(2 * here)[0], waited=torch.tensor(4))
    assert int(method._at(far, state.G, state.s, state.v).waited) == 0
    near = replace(state, residual=vector(1.05 * here)[0], waited=torch.tensor(4))
    told = method._at(near, state.G, state.s, state.v)
    assert float(told.residual) == pytest.approx(here)
    assert int(told.waited) == 5
    # A worse point keeps the best matrix.
    best = replace(state, residual=vector(0.5 * here)[0], U=7 * state.G, waited=torch.tensor(0))
    told = method._at(best, state.G, state.s, state.v)
    assert float(told.residual) == 0.5 * here
    assert int(told.waited) == 1
    torch.testing.assert_close(told.U, 7 * state.G)


@pytest.mark.parametrize(
    ("waited", "steps", "apart", "ended"),
    [
        (4, 9, 0.5, False),
        (5, 9, 0.5, True),
        (0, 9, 1.5, True),
        (0, 5, 1.5, True),
        (0, 4, 1.5, False),
    ],
)
def test_a_path_ends_without_progress_or_astray(waited, steps, apart, ended):
    """Astray is `||v - e||^2 > sum s^2`, after as many steps as its patience."""
    state = InteriorPoint(problem_of(8)).start()
    total = float(state.s.square().sum())
    v = torch.zeros_like(state.v)
    v[0] = (apart * total) ** 0.5
    state = replace(
        state, v=v, e=torch.zeros_like(v), waited=torch.tensor(waited), steps=torch.tensor(steps)
    )
    status, met = no_progress(5)
    assert status is Status.STALLED
    assert bool(met(state)) is ended


def test_a_path_is_optimal_at_its_gap():
    state = InteriorPoint(problem_of(8)).start()
    state = replace(state, residual=vector(2.0)[0], bound=vector(1.0)[0])
    for gap, ended in ((0.75, True), (0.74, False)):
        status, met = optimal(gap)
        assert status is Status.BEST_FIT
        assert bool(met(state)) is ended


def test_ended_paths_are_parked():
    state = InteriorPoint(problem_of(8)).start()
    assert state.park_ended() is state
    ended = replace(state, outcome=torch.tensor(Status.STALLED.code), s=0 * state.s)
    assert ended.park_ended().s.tolist() == [1.0, 1.0, 1.0]
