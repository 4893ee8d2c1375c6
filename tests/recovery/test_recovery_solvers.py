"""The solvers of recovery against dense linear algebra, SciPy and brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import torch

from posquad import LeastSquares, RankOne, Status, geometry
from posquad.core.errors import DomainError, DtypeError, ShapeError
from posquad.geometry.population import population_product
from posquad.recovery import (
    budget,
    data_driven_descent,
    data_driven_step,
    direct_least_squares,
    gauss_newton,
    levenberg_marquardt,
    logdet_irls,
    population_lbfgs,
    scaled_descent,
)
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.conjugate_gradients import normal_equations
from posquad.recovery.solvers.fit import population_metric, regularized_frame
from posquad.recovery.solvers.lbfgs import PopulationLBFGS
from posquad.recovery.solvers.levenberg import Levenberg
from posquad.recovery.solvers.quartic import _cubic_roots, exact_step
from recovery_support import relative_error
from support import gaussian_problem, normal

ROWS = RankOne(torch.ones(1, 1))  # for products of what is kept of factors
FACTOR_SOLVERS = [population_lbfgs, gauss_newton, levenberg_marquardt, scaled_descent]


def error(U, U_star):
    return relative_error(U @ U.mT, U_star)


def nearby(rng, U, size=0.2):
    return U + size * normal(rng, *U.shape) / U.numel() ** 0.5


def jacobian(X, U):
    """Rows `2 vec(x_i x_i'U)`, entry by entry."""
    return np.stack([2 * np.outer(x, x @ U).ravel() for x in X])


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_exact_step_is_the_global_minimum_along_the_ray(rng, scale):
    """NumPy's roots of the derivative and a grid, on quartics with one and with two minima."""
    for _ in range(50):
        e, Z, W = normal(rng, 7), normal(rng, 7, 2), scale * normal(rng, 7, 2)
        t = float(exact_step(ROWS, e, Z, W))
        a, b = 2 * (Z * W).sum(-1).numpy(), W.square().sum(-1).numpy()

        f = e.numpy()

        def loss(s, f=f, a=a, b=b):
            return ((f + a * s + b * s**2) ** 2).sum()

        coefficients = [b @ b, 2 * (a @ b), a @ a + 2 * (f @ b), 2 * (f @ a), 0]
        roots = np.roots(np.polyder(coefficients))
        candidates = [0.0, *roots.real[(abs(roots.imag) < 1e-9 * abs(roots)) & (roots.real > 0)]]
        assert loss(t) <= min(map(loss, candidates)) * (1 + 1e-12)
        grid = np.linspace(0, 10 / scale, 400)
        assert loss(t) <= min(map(loss, grid)) * (1 + 1e-12)


@pytest.mark.parametrize("scale", [1e-60, 1e-8, 1.0, 1e8, 1e60])
@pytest.mark.parametrize(
    ("roots", "real"),
    [
        ((1, 2, 4), (1, 2, 4)),
        ((-3, 1, 2), (-3, 1, 2)),
        ((-5, -2, -1), (-5, -2, -1)),
        ((-7, -1, 6), (-7, -1, 6)),
        ((2, 1j, -1j), (2,)),
        ((-2, 1 + 1j, 1 - 1j), (-2,)),
        ((3, 5 + 2j, 5 - 2j), (3,)),
        ((3, -5 + 2j, -5 - 2j), (3,)),
    ],
)
def test_cubic_roots_are_those_it_was_made_of(roots, real, scale):
    """Three real roots of either sign, or one; the leading coefficient is any positive number."""
    coefficients = 3.0 * np.poly(np.array(roots) * scale).real[::-1]
    found = _cubic_roots(*(torch.tensor(c, dtype=torch.float64) for c in coefficients))
    expected = sorted(np.array(real) * scale) if len(real) == 3 else [real[0] * scale] * 3
    np.testing.assert_allclose(sorted(found.tolist()), expected, rtol=1e-13)


@pytest.mark.parametrize("roots", [(1.0, 1.01, 3.0), (-2.0, 1.0, 1.01), (0.5, 0.505, 0.7)])
def test_cubic_roots_that_are_close(roots):
    """Newton's steps start on the right side of each; a gap of 0.005 costs four digits."""
    coefficients = np.poly(roots)[::-1].copy()
    found = _cubic_roots(*torch.from_numpy(coefficients))
    np.testing.assert_allclose(sorted(found.tolist()), roots, rtol=1e-11)


def test_exact_step_takes_the_lower_of_two_minima():
    """Rows (1 - t)(a - t) and a small slope: minima near 1 and a, the slope says which is lower."""
    for a, slope in ((3.0, 0.1), (3.0, -0.1), (2.5, 0.05), (2.5, -0.05)):
        # With W = (1, 0) and Z = (-(1 + a)/2, 0): e + 2t Z.W + t^2 = (1 - t)(a - t).
        e = torch.tensor([a, 0.5], dtype=torch.float64)
        Z = torch.tensor([[-(1 + a) / 2], [slope / 0.02]], dtype=torch.float64)
        W = torch.tensor([[1.0], [0.01]], dtype=torch.float64)

        def loss(t, a=a, slope=slope):
            return ((1 - t) * (a - t)) ** 2 + (0.5 + slope * t + 1e-4 * t**2) ** 2

        ends = [
            scipy.optimize.minimize_scalar(
                loss, bounds=b, method="bounded", options={"xatol": 1e-9}
            )
            for b in ((0, (1 + a) / 2), ((1 + a) / 2, 2 * a))
        ]
        best = min(ends, key=lambda found: found.fun)
        assert ends[0].x < 1.1 < ends[1].x  # both wells are there
        assert float(exact_step(ROWS, e, Z, W)) == pytest.approx(best.x, abs=1e-6)


def test_exact_step_is_accurate_where_the_loss_is_rounding(rng):
    """Near a solution the loss is 1e-24; the step must still be the one of the linear problem."""
    X, U, y = gaussian_problem(rng, 30, 4, 2, smallest=0.5)
    problem = Problem(RankOne(X), y)
    D = normal(rng, 4, 2)
    V = U + 1e-12 * D
    Z, W = problem.operator.project(V), problem.operator.project(-D)
    t = float(exact_step(problem.operator, problem.residual(Z), Z, W))
    assert abs(t - 1e-12) < 1e-15


def test_exact_step_of_a_zero_direction_is_zero(rng):
    Z = normal(rng, 5, 2)
    assert float(exact_step(ROWS, normal(rng, 5), Z, torch.zeros_like(Z))) == 0.0


@pytest.mark.parametrize(("form", "n"), [("dual", 9), ("primal", 9), ("primal", 90)])
def test_levenberg_step_is_damped_least_squares(rng, form, n):
    X, U, y = gaussian_problem(rng, n, 4, 2, smallest=0.5)
    V = nearby(rng, U)
    problem = Problem(RankOne(X), y)
    e = problem.residual(problem.operator.project(V))
    damping = torch.tensor(0.3, dtype=X.dtype)
    method = Levenberg(problem, 2, form)
    assert method.from_moments == (n == 90)  # d(d+1)/2 = 10 takes the place of n
    D, slope = method._step(method.start(V), damping)
    J = jacobian(X.numpy(), V.numpy())
    stacked = np.vstack([J, np.sqrt(0.3) * np.eye(8)])
    expected = np.linalg.lstsq(stacked, np.concatenate([-e.numpy(), np.zeros(8)]), rcond=None)[0]
    np.testing.assert_allclose(D.numpy().ravel(), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(2 * slope.numpy().ravel(), J.T @ e.numpy(), rtol=1e-12, atol=1e-12)


def test_damping_follows_nielsen(rng):
    """Steps from near and far starts, in NumPy: ratio of actual to predicted gain, then damping."""
    X, U, y = gaussian_problem(rng, 20, 3, 2, smallest=0.5)
    problem = Problem(RankOne(X), y)
    method = Levenberg(problem, 2, "primal")
    outcomes = []
    for size in (0.02, 0.2, 1.0, 3.0, 10.0, 30.0):
        V = nearby(rng, U, size)
        for damping in (1e-3, 1.0, 1e3):
            state = method.start(V)
            state = replace(state, damping=torch.tensor(damping, dtype=X.dtype))
            new = method.advance(state)
            J, e = (
                jacobian(X.numpy(), V.numpy()),
                problem.residual(problem.operator.project(V)).numpy(),
            )
            K = J.T @ J + damping * np.eye(6)
            D = -np.linalg.solve(K, J.T @ e)
            moved = ((X.numpy() @ (V.numpy() + D.reshape(3, 2))) ** 2).sum(1) - y.numpy()
            gain = (e @ e - moved @ moved) / (e @ e - np.square(e + J @ D).sum())
            accepted = gain > 0
            outcomes.append(accepted)
            gain = min(max(gain, 0.0), 1.0)
            factor = min(max(1 - (2 * gain - 1) ** 3, 0.1), 2.0) if accepted else 2.0
            assert float(new.damping) == pytest.approx(damping * factor, rel=1e-9)
            assert float(new.growth) == (2.0 if accepted else 4.0)
            assert (int(new.steps), int(new.attempts)) == (int(accepted), 1)
            expected = V.numpy() + D.reshape(3, 2) if accepted else V.numpy()
            rounding = 1e-15 * np.linalg.cond(K) * np.abs(expected).max()
            np.testing.assert_allclose(new.U.numpy(), expected, rtol=0, atol=rounding)
            again = method.advance(new) if not accepted else None
            assert again is None or float(again.growth) in (2.0, 8.0)
    assert {bool(o) for o in outcomes} == {True, False}


def test_first_damping_is_a_hundredth_of_the_mean_curvature(rng):
    """The mean of the nonzero eigenvalues of J'J, times the residual where that is below one."""
    for n in (4, 30):
        X, U, y = gaussian_problem(rng, n, 3, 2, smallest=0.5)
        for V in (nearby(rng, U), 10 * U):
            J = jacobian(X.numpy(), V.numpy())
            e = ((X @ V).square().sum(-1) - y).numpy()
            residual = min(1.0, np.linalg.norm(e) / np.linalg.norm(y))
            expected = 0.01 * np.square(J).sum() / min(n, 6) * residual
            state = Levenberg(Problem(RankOne(X), y), 2).start(V)
            assert float(state.damping) == pytest.approx(expected, rel=1e-12)


def test_two_loop_recursion_is_the_bfgs_formula(rng):
    """Dense: H <- (I - s y'/y's) H (I - y s'/y's) + s s'/y's over the pairs, oldest first."""
    X, U, y = gaussian_problem(rng, 40, 3, 2, smallest=0.5)
    method = PopulationLBFGS(Problem(RankOne(X), y))
    state = method.start(nearby(rng, U))
    for _ in range(4):  # two more than the memory holds
        state = method.advance(state)
    metric = population_metric(state.U)
    eye = torch.eye(6, dtype=X.dtype).reshape(6, 3, 2)
    plain = state.secants._replace(curvature=torch.zeros_like(state.curvature))
    H = torch.stack([plain.solve(b, metric).flatten() for b in eye], dim=1).numpy()
    P = torch.stack([population_product(state.U, state.U.mT @ state.U, b).flatten() for b in eye])
    np.testing.assert_allclose(H, np.linalg.pinv(P.numpy(), rcond=1e-10), rtol=1e-8, atol=1e-10)
    assert state.moves.shape == (2, 3, 2)
    for k in (1, 0):
        s, t = state.moves[k].flatten().numpy(), state.turns[k].flatten().numpy()
        assert float(state.curvature[k]) == pytest.approx(1 / (s @ t), rel=1e-12)
        turn = np.eye(6) - np.outer(s, t) / (s @ t)
        H = turn @ H @ turn.T + np.outer(s, s) / (s @ t)
    g = normal(rng, 3, 2)
    g = geometry.horizontal_projection(state.U, g)
    expected = (H @ g.flatten().numpy()).reshape(3, 2)
    np.testing.assert_allclose(state.secants.solve(g, metric).numpy(), expected, rtol=1e-8)


def test_memory_holds_the_last_moves_and_turns_of_the_gradient(rng):
    X, U, y = gaussian_problem(rng, 40, 3, 2, smallest=0.5)
    objective = LeastSquares(RankOne(X), y)
    method = PopulationLBFGS(Problem(RankOne(X), y))
    states = [method.start(nearby(rng, U))]
    for _ in range(3):
        states.append(method.advance(states[-1]))
    for k in range(2):
        old, new = states[2 - k], states[3 - k]
        torch.testing.assert_close(states[-1].moves[k], new.U - old.U, rtol=1e-9, atol=1e-12)
        turn = objective.gradient(new.U) - objective.gradient(old.U)
        torch.testing.assert_close(states[-1].turns[k], turn, rtol=1e-9, atol=1e-12)
    assert not bool(states[1].curvature[1:].any())
    against = torch.ones(3, 2, dtype=X.dtype)
    assert float(states[-1].secants.with_pair(against, -against).curvature[0]) == 0  # bent upwards


def test_a_memory_that_points_uphill_is_forgotten(rng):
    """After a pair of negative curvature, the step is that without memory, where it matters."""
    X, U, y = gaussian_problem(rng, 40, 3, 2, smallest=0.5)
    method = PopulationLBFGS(Problem(RankOne(X), y))
    state = method.start(torch.stack([nearby(rng, U), nearby(rng, U)]))
    pair = state.gradient[:, None].expand_as(state.moves)
    size = state.gradient.square().sum((-2, -1))[:, None]
    wrong = torch.tensor([[-1e3, 0], [0, 0]], dtype=X.dtype) / size
    spoiled = replace(state, moves=pair, curvature=wrong)  # turns are zero: -1e3 <g, g> is left
    D = -spoiled.secants.solve(state.gradient, population_metric(state.U))
    assert float((D[0] * state.gradient[0]).sum()) > 0 > float((D[1] * state.gradient[1]).sum())
    expected = method.advance(state)
    torch.testing.assert_close(method.advance(spoiled).U, expected.U, rtol=1e-12, atol=0)


@pytest.mark.parametrize("solver", [population_lbfgs, gauss_newton, scaled_descent])
def test_passes_are_the_products_that_were_made(rng, solver, monkeypatch):
    """They go through `project`, `weighted_adjoint`, or `gauss_newton_product`, which makes two."""
    made = []
    both = RankOne.gauss_newton_product

    def counted(self, Z):
        product = both(self, Z)
        return lambda D: made.extend([0, 0]) or product(D)

    monkeypatch.setattr(RankOne, "gauss_newton_product", counted)
    for name in ("project", "weighted_adjoint"):
        product = getattr(RankOne, name)
        monkeypatch.setattr(
            RankOne, name, lambda *args, product=product: made.append(0) or product(*args)
        )
    X, U, y = gaussian_problem(rng, 60, 5, 2, smallest=0.5)
    found = solver(X, y, nearby(rng, U), max_steps=25)
    assert int(found.passes) == len(made)
    assert int(found.steps) > 5


def test_levenberg_counts_three_passes_an_attempt(rng):
    """The step, its prediction and the gradient; a rejected step is an attempt too."""
    X, U, y = gaussian_problem(rng, 20, 3, 2, smallest=0.5)
    found = levenberg_marquardt(X, y, nearby(rng, U), max_steps=4)
    assert (int(found.steps), int(found.passes)) == (4, 1 + 3 * 4)


def test_normal_equations_agree_with_dense_least_squares(rng):
    """The minimum-norm least squares step is horizontal: NumPy's lstsq on the full Jacobian."""
    X, U, y = gaussian_problem(rng, 40, 5, 2, smallest=0.1)
    V = nearby(rng, U)
    problem = Problem(RankOne(X), y)
    Z = problem.operator.project(V)
    e = problem.residual(Z)
    system = normal_equations(problem.operator, Z, regularized_frame(V))
    right = geometry.horizontal_projection(V, -problem.operator.weighted_adjoint(e, Z))
    D, products = system.solve(right, torch.tensor(1e-12, dtype=X.dtype))
    expected = np.linalg.lstsq(jacobian(X.numpy(), V.numpy()), -e.numpy(), rcond=None)[0]
    np.testing.assert_allclose(D.numpy().ravel(), expected, rtol=1e-8, atol=1e-10)
    assert int(products) <= 20


def test_relative_condition_number_does_not_depend_on_kappa(rng):
    """Dense generalized eigenvalues of the empirical against the population curvature (SciPy)."""
    X = normal(rng, 120, 8)
    W = torch.linalg.qr(normal(rng, 8, 2)).Q
    spectra = []
    for kappa in (1.0, 1e2, 1e4):
        U = W * torch.tensor([1.0, kappa**-1], dtype=X.dtype).sqrt()
        objective = LeastSquares(RankOne(X), (X @ U).square().sum(-1))
        basis = geometry.horizontal_basis(U)
        H = torch.stack([objective.hessian_product(U, B) for B in basis])
        P = torch.stack([population_product(U, U.mT @ U, B) for B in basis])
        dense = [torch.einsum("iab,jab->ij", basis, M).numpy() for M in (H, P)]
        spectra.append(scipy.linalg.eigh(*[(M + M.T) / 2 for M in dense], eigvals_only=True))
    # Rounding of the dense matrices is relative to the largest entry, kappa times the smallest.
    np.testing.assert_allclose(spectra[1], spectra[0], rtol=1e-11)
    np.testing.assert_allclose(spectra[2], spectra[0], rtol=1e-9)


def test_passes_of_lbfgs_hardly_grow_with_kappa():
    counts = []
    for kappa in (1.0, 1e4):
        rng = torch.Generator().manual_seed(5)
        X, U, y = gaussian_problem(rng, 4 * 294, 100, 3, smallest=1 / kappa)
        found = population_lbfgs(X, y, nearby(rng, U, 0.0) * 1.3, tolerance=1e-10)
        assert found.status is Status.LOSS_REACHED
        counts.append(int(found.passes))
    assert counts[1] <= 1.5 * counts[0]


@pytest.mark.parametrize("solver", FACTOR_SOLVERS)
@pytest.mark.parametrize(("n", "d", "r"), [(60, 6, 2), (200, 1, 1), (60, 3, 3)])
def test_solvers_reach_rounding(rng, solver, n, d, r):
    X, U, y = gaussian_problem(rng, n, d, r, smallest=0.5)
    found = solver(X, y, nearby(rng, U))
    assert found.status is Status.LOSS_REACHED
    assert error(found.U, U) < 1e-13
    assert float(found.residual) < 1e-14
    assert int(found.steps) < len(found.history)
    assert float(found.history[-1]) == float(found.residual)
    assert int(found.passes) >= int(found.steps)


@pytest.mark.parametrize("solver", [population_lbfgs, gauss_newton, levenberg_marquardt])
def test_noisy_minimum_is_that_of_scipy(rng, solver):
    X, U, y = gaussian_problem(rng, 80, 5, 2, smallest=0.5)
    y = y * (1 + 0.1 * normal(rng, 80))
    options = {"form": "primal"} if solver is levenberg_marquardt else {}
    found = solver(X, y, U, **options)
    assert found.status is Status.GRADIENT_REACHED
    inputs, responses = X.numpy(), y.numpy()
    reference = scipy.optimize.least_squares(
        lambda u: ((inputs @ u.reshape(5, 2)) ** 2).sum(1) - responses,
        U.numpy().ravel(),
        xtol=1e-15, ftol=1e-15, gtol=1e-14,
    )  # fmt: skip
    V = torch.from_numpy(reference.x.reshape(5, 2))
    assert error(found.U, V) < 1e-7  # least_squares itself has about that
    assert float(found.residual) <= np.linalg.norm(reference.fun) / np.linalg.norm(y) * (1 + 1e-12)


@pytest.mark.parametrize("solver", FACTOR_SOLVERS)
def test_starts_in_front_are_independent_runs(rng, solver):
    X, U, y = gaussian_problem(rng, 60, 5, 2, smallest=0.5)
    starts = torch.stack([nearby(rng, U, s) for s in (0.1, 0.3, 0.5)])
    together = solver(X, y, starts, max_steps=5)
    assert together.U.shape == (3, 5, 2)
    for k in range(3):
        alone = solver(X, y, starts[k], max_steps=5)
        torch.testing.assert_close(together.U[k], alone.U, rtol=1e-9, atol=1e-11)
    assert together.status == [Status.INTERRUPTED] * 3


def test_scaled_descent_step_is_its_formula(rng):
    X, U, y = gaussian_problem(rng, 30, 4, 2, smallest=0.5)
    V = nearby(rng, U)
    found = scaled_descent(X, y, V, step=0.1, max_steps=1)
    gradient = LeastSquares(RankOne(X), y).gradient(V)
    expected = V - 0.1 / (1 + 2 / 2) * gradient @ torch.linalg.inv(V.mT @ V)
    torch.testing.assert_close(found.U, expected, rtol=1e-12, atol=1e-13)
    assert scaled_descent(X, y, V, step=100.0).status is Status.DIVERGED


def test_data_driven_step_is_the_inverse_of_the_largest_curvature(rng):
    X, U, y = gaussian_problem(rng, 40, 4, 2, smallest=0.5)
    hessian = torch.autograd.functional.hessian(
        lambda V: ((X @ V).square().sum(-1) - y).square().sum() / (2 * 40), U
    )
    largest = torch.linalg.eigvalsh(hessian.reshape(8, 8))[-1]
    assert float(data_driven_step(X, y, U) * largest) == pytest.approx(1, rel=1e-3)
    path = data_driven_descent(X, y, nearby(rng, U))
    assert path.status is Status.LOSS_REACHED
    assert error(path.U, U) < 1e-10


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
def test_data_driven_descent_ends_at_its_tolerance(rng, tolerance):
    """At the first step whose relative residual is within it, and not one later."""
    X, U, y = gaussian_problem(rng, 60, 4, 2, smallest=0.5)
    U0 = nearby(rng, U, 0.5)
    step = float(data_driven_step(X, y, U0)) / 20  # so small that a step gains a few per cent
    path = data_driven_descent(X, y, U0, step=step, tolerance=tolerance)
    assert path.status is Status.LOSS_REACHED
    before = data_driven_descent(X, y, U0, step=step, max_steps=int(path.steps) - 1, tolerance=0.0)
    relative = [
        float(torch.linalg.vector_norm((X @ V).square().sum(-1) - y) / torch.linalg.vector_norm(y))
        for V in (path.U, before.U)
    ]
    assert relative[0] <= tolerance < relative[1] < 1.1 * tolerance
    forever = data_driven_descent(X, y, U0, tolerance=0.0, max_steps=3)
    assert forever.status is Status.STEPS_EXHAUSTED


def test_direct_least_squares_is_numpys(rng):
    """Against lstsq on the plain d^2 monomials, with noise, for the untruncated rank d."""
    X, U, y = gaussian_problem(rng, 40, 3, 3, smallest=0.5)
    y = y * (1 + 0.01 * normal(rng, 40))
    found = direct_least_squares(X, y, 3)
    monomials = np.einsum("ia,ib->iab", X, X).reshape(40, 9)
    expected = np.linalg.lstsq(monomials, y.numpy(), rcond=None)[0].reshape(3, 3)
    np.testing.assert_allclose((found.U @ found.U.mT).numpy(), expected, rtol=1e-11, atol=1e-12)
    assert found.status is Status.BEST_FIT
    truncated = direct_least_squares(X, y, 2)
    assert truncated.status is Status.STALLED
    assert (int(found.passes), int(truncated.passes)) == (1, 2)  # columns of XQ, r at a time
    exact = direct_least_squares(X, (X @ U).square().sum(-1), 3)
    assert exact.status is Status.LOSS_REACHED


def test_irls_starts_with_the_interpolant_of_least_norm(rng):
    X, _, y = gaussian_problem(rng, 8, 5, 2, smallest=0.5)
    first = logdet_irls(X, y, 5, max_steps=1)
    monomials = np.einsum("ia,ib->iab", X, X).reshape(8, 25)
    least = np.linalg.lstsq(monomials, y.numpy(), rcond=None)[0].reshape(5, 5)
    values, vectors = np.linalg.eigh(least)
    positive = (vectors * values.clip(0)) @ vectors.T
    np.testing.assert_allclose((first.U @ first.U.mT).numpy(), positive, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("d", "r", "columns", "steps"), [(10, 3, 4, 2), (10, 5, 2, 2), (4, 4, 1, 1)]
)
def test_irls_counts_its_passes(rng, d, r, columns, steps):
    """A step multiplies X by d columns three times (D, K, Q) and once by r: d/r passes, rounded up.

    X D, (X D) X' and (X D)'(a X D) cost 2 n d r operations per r columns of width.
    """
    X, _, y = gaussian_problem(rng, 8, d, r, smallest=0.5)
    found = logdet_irls(X, y, r, max_steps=2)
    assert int(found.steps) == steps
    assert int(found.passes) == steps * (3 * columns + 1)


@pytest.mark.parametrize(
    ("dtype", "least", "most"),
    [(torch.float64, 2.0**-60, 2.0**60), (torch.float32, 2e-4, 5e3)],
)
def test_irls_refuses_inputs_whose_fourth_powers_leave_the_dtype(rng, dtype, least, most):
    X, _, y = gaussian_problem(rng, 6, 3, 1)
    unit = X / X.abs().max()
    for size, fits in (
        (1.01 * least, True),
        (0.99 * most, True),
        (0.99 * least, False),
        (1.01 * most, False),
    ):
        scaled = (unit * size).to(dtype)
        if fits:
            assert torch.isfinite(logdet_irls(scaled, y.to(dtype), 1, max_steps=2).U).all()
        else:
            with pytest.raises(DomainError, match=r"^X: expected a largest entry from"):
                logdet_irls(scaled, y.to(dtype), 1, max_steps=2)


def test_irls_recovers_and_says_when_not(rng):
    X, U, y = gaussian_problem(rng, 40, 10, 2, smallest=0.5)
    found = logdet_irls(X, y, 2)
    assert found.status is Status.LOSS_REACHED
    assert error(found.U, U) < 1e-5
    noisy = logdet_irls(X, y + normal(rng, 40), 2)
    assert noisy.status is Status.STALLED
    weight = torch.eye(10, dtype=X.dtype).expand(3, 10, 10)
    assert logdet_irls(X, y, 2, weight=weight).U.shape == (3, 10, 2)


def test_repeated_samples_have_a_kernel_matrix_that_is_singular(rng):
    X, _, y = gaussian_problem(rng, 10, 6, 1)
    found = logdet_irls(X.repeat(2, 1), y.repeat(2), 1)
    assert torch.isfinite(found.U).all()


def test_levenberg_gives_up_where_nothing_fits(rng):
    X, U, y = gaussian_problem(rng, 40, 4, 1)
    found = levenberg_marquardt(X, -y, U, patience=5, rate=0.9)
    assert found.status in (Status.STALLED, Status.GRADIENT_REACHED)


def test_budget_and_progress(rng):
    X, U, y = gaussian_problem(rng, 60, 6, 2, smallest=0.5)
    seen = []
    found = population_lbfgs(X, y, nearby(rng, U), max_steps=3, progress=seen.append)
    assert found.status is Status.INTERRUPTED
    assert int(found.steps) == 3
    assert [p.time for p in seen] == [0.0, 1.0, 2.0, 3.0]
    late = population_lbfgs(X, y, nearby(rng, U), time_limit=1e-9)
    assert late.status is Status.INTERRUPTED


@pytest.mark.parametrize("solver", [*FACTOR_SOLVERS, logdet_irls])
def test_interruption_returns_the_last_state(rng, solver):
    n = 20 if solver is logdet_irls else 60  # d(d+1)/2 = 21
    X, U, y = gaussian_problem(rng, n, 6, 2, smallest=0.5)

    def interrupt(progress):
        if progress.time >= 2:
            raise KeyboardInterrupt

    found = solver(X, y, 2 if solver is logdet_irls else nearby(rng, U), progress=interrupt)
    assert found.status is Status.INTERRUPTED
    assert int(found.steps) == 2
    assert float(found.residual) < 1
    assert len(found.history) == 3


@pytest.mark.parametrize("solver", FACTOR_SOLVERS)
def test_interruption_before_the_first_record_returns_the_start(rng, solver, monkeypatch):
    X, U, y = gaussian_problem(rng, 60, 6, 2, smallest=0.5)
    start = nearby(rng, U)

    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(budget, "iterate", interrupt)
    found = solver(X, y, start)
    assert found.status is Status.INTERRUPTED
    torch.testing.assert_close(found.U, start, rtol=0, atol=0)
    assert len(found.history) == 1


@pytest.mark.parametrize(
    ("call", "named", "kind"),
    [
        (lambda X, y, U: population_lbfgs(X, y[:-1], U), "y", ShapeError),
        (lambda X, y, U: population_lbfgs(X[0], y, U), "X", ShapeError),
        (lambda X, y, U: logdet_irls(X.expand(3, -1, -1), y.expand(2, -1), 1), "X, y", ShapeError),
        (
            lambda X, y, U: gauss_newton(X.expand(3, -1, -1), y, U.expand(2, -1, -1)),
            "X, U0",
            ShapeError,
        ),
        (lambda X, y, U: gauss_newton(X, y, U[:-1]), "U0", ShapeError),
        (lambda X, y, U: levenberg_marquardt(X, y, U, form="other"), "form", DomainError),
        (lambda X, y, U: levenberg_marquardt(X, y, U, max_steps=0), "max_steps", DomainError),
        (lambda X, y, U: scaled_descent(X, y, U, step=0.0), "step", DomainError),
        (lambda X, y, U: scaled_descent(X, y, U, progress=3), "progress", DtypeError),
        (lambda X, y, U: logdet_irls(X, y, 9), "rank", DomainError),
        (lambda X, y, U: logdet_irls(X, y, 2, weight=torch.ones(3)), "weight", ShapeError),
        (lambda X, y, U: direct_least_squares(X[:5], y[:5], 1), "X", DomainError),
        (lambda X, y, U: direct_least_squares(0 * X, y, 1), "X", DomainError),
    ],
)
def test_bad_input(rng, call, named, kind):
    X, U, y = gaussian_problem(rng, 40, 4, 2)
    with pytest.raises(kind, match=rf"^{named}: expected .*; got "):
        call(X, y, U)
