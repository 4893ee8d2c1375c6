"""Theorems A to D on random instances: every inequality holds, and how nearly it is attained."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy

import posquad
from posquad import Dense, LeastSquares, RankOne, effective_spectrum, theory
from posquad.core.errors import DomainError, PosquadError
from posquad.geometry import horizontal_projection, procrustes_alignment, procrustes_distance
from posquad.theory import effective

SHAPES = [(1, 1, 4), (2, 1, 8), (3, 2, 20), (3, 3, 30), (5, 2, 40), (6, 1, 25)]


class Instance:
    """A problem with its constants: lam and Lam from the dense spectrum, mu from a convex bound."""

    def __init__(self, seed: int, d: int, r: int, n: int, dense: bool = False) -> None:
        self.rng = np.random.default_rng([seed, d, r, n, dense])
        self.n, self.d, self.r = n, d, r
        X = self.rng.standard_normal((n, d))
        A = X[:, :, None] * X[:, None, :]
        if dense:
            A = self.rng.standard_normal((n, d, d))
            A = (A + A.transpose(0, 2, 1)) / 2
        self.A = A
        self.U = self.rng.standard_normal((d, r))
        self.Q = self.U @ self.U.T
        y = self.apply(self.Q)
        self.objective = LeastSquares(Dense(A) if dense else RankOne(X), y)
        values = effective_spectrum(self.objective, self.U).values
        self.lam, self.Lam = float(values[0]), float(values[-1])
        self.mu = mu_above(A)

    def apply(self, H):
        return np.einsum("iab,...ab->...i", self.A, H)

    def near(self, delta: float) -> np.ndarray:
        """A factor at this delta in a random direction, in random gauge."""
        Delta = horizontal_projection(self.U, self.rng.standard_normal(self.U.shape))
        moved = self.U + delta * math.sqrt(self.lam / self.mu) * Delta / np.linalg.norm(Delta)
        return moved @ np.linalg.qr(self.rng.standard_normal((self.r, self.r)))[0]

    def delta(self, U) -> float:
        return float(procrustes_distance(U, self.U)) * math.sqrt(self.mu / self.lam)


def mu_above(A: np.ndarray) -> float:
    """min over c of the largest eigenvalue of `T + c (Id - I (x) I)`, in an orthonormal basis."""
    n, d = A.shape[:2]
    a, b = np.triu_indices(d)
    rows = A[:, a, b] * np.where(a == b, 1.0, math.sqrt(2))
    T, eye = rows.T @ rows / n, (a == b) * 1.0

    def bound(c):
        return np.linalg.eigvalsh(T + c * (np.eye(len(a)) - np.outer(eye, eye)))[-1]

    c = scipy.optimize.minimize_scalar(bound, bounds=(0, bound(0) + 1e-9), method="bounded").x
    return min(bound(0), bound(c)) * (1 + 1e-10)


@pytest.fixture(params=SHAPES, ids=str)
def instances(request):
    return [Instance(seed, *request.param, dense=seed % 3 == 2) for seed in range(12)]


def test_mu_controls_products_of_any_measurements(instances):
    """Statement 1, for indefinite measurements too; (a) is nearly attained."""
    worst = 0.0
    for problem in instances:
        root = math.sqrt(problem.mu * problem.n)
        for _ in range(20):
            k = int(problem.rng.integers(1, 4))
            D, Z = problem.rng.standard_normal((2, problem.d, k))
            size = np.linalg.norm(problem.apply(D @ D.T)) / (root * np.linalg.norm(D) ** 2)
            mixed = np.linalg.norm(problem.apply(D @ Z.T + Z @ D.T)) / (
                2 * root * np.linalg.norm(D) * np.linalg.norm(Z)
            )
            z = problem.rng.standard_normal(problem.n)
            adjoint = np.linalg.norm(np.einsum("i,iab->ab", z, problem.A), 2)
            assert max(size, mixed, adjoint / (root * np.linalg.norm(z))) <= 1 + 1e-9
            worst = max(worst, size)
    assert worst > 0.3


def test_theorem_a_secant_inequality(instances):
    nearest = math.inf
    for problem in instances:
        for _ in range(25):
            U = problem.near(problem.rng.uniform(0, 0.499))
            target = problem.U @ procrustes_alignment(U, problem.U)
            Delta = U - target
            size = float(np.linalg.norm(Delta))
            if problem.delta(U) >= 0.5 or size == 0:
                continue
            bound = effective.effective_secant_bound(size, problem.lam, problem.mu)
            actual = float((problem.objective.gradient(U) * Delta).sum()) / size**2
            assert actual >= bound * (1 - 1e-9)
            nearest = min(nearest, actual / bound)
    assert nearest < 20  # not vacuous


def test_theorem_a_is_asymptotically_exact():
    """Along the weakest direction, as delta falls, the ratio tends to one."""
    problem = Instance(0, 5, 2, 40)
    weakest = effective_spectrum(problem.objective, problem.U).vectors[0]
    ratios = []
    for size in (1e-2, 1e-3, 1e-4):
        bound = effective.effective_secant_bound(size, problem.lam, problem.mu)
        gradient = problem.objective.gradient(problem.U + size * weakest)
        ratios.append(float((gradient * weakest).sum()) / size / bound)
    assert all(ratio >= 1 for ratio in ratios)
    assert ratios[-1] < 1.01


def test_theorem_a_interpolants_up_to_delta_one(instances):
    for problem in instances:
        for _ in range(20):
            U = problem.near(problem.rng.uniform(0, 0.999))
            if problem.delta(U) >= 1:
                continue
            Delta = U - problem.U @ procrustes_alignment(U, problem.U)
            low = (1 - problem.delta(U)) * math.sqrt(problem.lam) * np.linalg.norm(Delta)
            seen = np.linalg.norm(problem.apply(U @ U.T - problem.Q)) / math.sqrt(problem.n)
            assert seen >= low * (1 - 1e-9)


@pytest.mark.parametrize("start", [0.1, 0.3, 0.45, 0.49])
def test_theorem_a_envelope_along_the_flow(start):
    for seed in range(4):
        problem = Instance(seed, 5, 2, 60)
        U0 = problem.near(start)
        distance = float(procrustes_distance(U0, problem.U))
        flow = posquad.gradient_flow(
            problem.objective, U0, t_final=8 / problem.lam, save_factors=True, rtol=1e-10
        )
        distances = [float(procrustes_distance(U, problem.U)) for U in flow.factors]
        envelope = effective.effective_flow_envelope(
            distance, np.asarray(flow.times), problem.lam, problem.mu
        )
        assert np.all(np.array(distances) <= envelope * (1 + 1e-7) + 1e-9)
        assert np.all(np.diff(envelope) <= 0)


def test_flow_envelope_solves_its_differential_equation():
    lam, mu, start = 0.7, 3.0, 0.2
    root = math.sqrt(lam / mu)
    t = np.linspace(0, 10, 41)
    solution = scipy.integrate.solve_ivp(
        lambda _, s: -lam * s * (1 - s) * (1 - 2 * s), (0, 10), [start / root],
        t_eval=t, rtol=1e-12, atol=1e-14,
    )  # fmt: skip
    envelope = effective.effective_flow_envelope(start, t, lam, mu)
    assert np.abs(envelope / root - solution.y[0]).max() < 1e-11


@pytest.mark.parametrize("theta", [0.05, 0.25, 0.45])
def test_theorem_b_along_gradient_descent(theta):
    for seed in range(4):
        problem = Instance(seed, 4, 2, 50, dense=seed % 2 == 1)
        U0 = problem.near(theta)
        distance = float(procrustes_distance(U0, problem.U))
        if problem.delta(U0) >= 0.5:
            continue
        step = effective.effective_step(problem.delta(U0), problem.lam, problem.Lam) * (1 - 1e-9)
        run = posquad.gradient_descent(
            problem.objective, U0, step=step, max_steps=200, save_factors=True
        )
        distances = [float(procrustes_distance(U, problem.U)) for U in run.factors]
        envelope = effective.effective_descent_envelope(
            distance, np.arange(len(distances)), step, problem.lam, problem.Lam, problem.mu
        )
        assert np.all(np.array(distances) <= envelope * (1 + 1e-9) + 1e-12)
    assert effective.effective_step(1e-9, 1.0, 4.0) == pytest.approx(0.25, rel=1e-6)


def test_the_formulas_by_hand():
    """lam = 4, mu = 1, Lam = 16 at distance 1/2, that is delta = theta = 1/4."""
    assert effective.effective_secant_bound(0.5, 4.0, 1.0) == 0.75 * 0.5 * 4
    assert effective.effective_step(0.25, 4.0, 16.0) == pytest.approx(2 / 3 / 5**2, rel=1e-15)
    # 1 - (1/64) (3/4) (1/2) 4 = 125/128; the second power is reached after four steps.
    envelope = effective.effective_descent_envelope
    assert envelope(0.5, np.array([0, 2, 4]), 1 / 64, 4.0, 16.0, 1.0) == pytest.approx(
        [0.5, 0.5 * 125 / 128, 0.5 * (125 / 128) ** 2], rel=1e-15
    )
    # theta belongs to the largest of several distances.
    several = envelope(np.array([0.25, 0.5]), 2, 1 / 64, 4.0, 16.0, 1.0)
    assert several == pytest.approx([0.25 * 125 / 128, 0.5 * 125 / 128], rel=1e-15)
    # g = (3/16) / (1/4) = 3/4; with e^{-4t} = 5/12 the root is that of 9/4, and delta(t) = 1/6.
    t = math.log(12 / 5) / 4
    assert effective.effective_flow_envelope(0.5, t, 4.0, 1.0) == pytest.approx(1 / 3, rel=1e-14)
    assert effective.curvature_interval(9.0, 4.0, 0.5) == (1.0, 25.0)
    assert effective.curvature_interval(1.0, 4.0, 0.5)[0] == 0.0
    assert effective.residual_radius(0.5, 0.25, 16.0) == 0.5 * 1.5 / (0.75 * 0.5 * 4)
    # s = sqrt(9) 2 / 3 = 2: C^2 = 4 + 4 (8/2) (1 + 2 * 2)^2.
    constant = effective.stability_constant(9, 8.0, 2.0, 4.0, 2.0, 3.0)
    assert constant == pytest.approx(math.sqrt(4 + 16 * 25), rel=1e-15)


@pytest.mark.parametrize("theta", [0.5, 0.6])
def test_nothing_is_said_from_half_of_the_radius_on(theta):
    with pytest.raises(DomainError, match="theta"):
        effective.effective_step(theta, 1.0, 4.0)
    with pytest.raises(DomainError, match="distance"):
        effective.effective_secant_bound(theta, 4.0, 4.0)


def test_the_largest_step_is_allowed_and_equal_curvatures_too():
    limit = effective.effective_step(0.25, 4.0, 16.0)
    assert effective.effective_descent_envelope(0.5, 0, limit, 4.0, 16.0, 1.0) == 0.5
    with pytest.raises(DomainError, match="step"):
        effective.effective_descent_envelope(0.5, 0, limit * (1 + 1e-12), 4.0, 16.0, 1.0)
    assert effective.effective_step(0.0, 4.0, 4.0) == 0.25


def test_theorem_c_for_both_ends_and_any_measurements(instances):
    nearest = 0.0
    for problem in instances:
        for _ in range(5):
            U = problem.near(problem.rng.uniform(0, 2))
            distance = float(procrustes_distance(U, problem.U))
            # The effective spectrum at U of the measurements, not of the loss: data A(UU').
            here = LeastSquares(problem.objective.measurements, problem.apply(U @ U.T))
            values = effective_spectrum(here, U).values
            for at_U, at_target in ((values[0], problem.lam), (values[-1], problem.Lam)):
                low, high = effective.curvature_interval(max(float(at_U), 0), problem.mu, distance)
                assert low * (1 - 1e-9) - 1e-12 <= at_target <= high * (1 + 1e-9)
                moved = abs(math.sqrt(max(at_U, 0)) - math.sqrt(at_target))
                nearest = max(nearest, moved / (2 * math.sqrt(problem.mu) * distance))
    assert nearest > 0.05


def test_theorem_d_on_random_alternatives():
    """Hundreds of PSD matrices of every rank and distance; the dual vector by brute force."""
    nearest = 0.0
    for seed in range(20):
        d, r, n = [(3, 1, 14), (4, 2, 28), (2, 2, 9)][seed % 3]
        problem = Instance(seed, d, r, n)
        V = scipy.linalg.null_space(problem.U.T)
        if r < d:
            K = np.einsum("iab,bj->iaj", problem.A, problem.U).reshape(n, -1)
            free = scipy.linalg.null_space(K.T)
            inside = np.einsum("ap,iab,bq->ipq", V, problem.A, V)
            target = np.eye(d - r).ravel()
            z = free @ np.linalg.lstsq((free.T @ inside.reshape(n, -1)).T, target, rcond=None)[0]
            beta = float(np.linalg.eigvalsh(np.einsum("i,ipq->pq", z, inside))[0])
            norm = float(np.linalg.norm(z))
            if beta <= 0:
                continue
        else:
            beta, norm = math.inf, 0.0
        top = float(np.linalg.norm(problem.U, 2)) ** 2
        C = effective.stability_constant(n, top, problem.lam, problem.mu, norm, beta)
        for _ in range(60):
            k = int(problem.rng.integers(1, d + 1))
            F = problem.rng.standard_normal((d, k)) * problem.rng.choice([0.01, 0.3, 1.0])
            if problem.rng.random() < 0.5:
                F = np.hstack([problem.U, F])
            H = F @ F.T - problem.Q
            misfit = np.linalg.norm(problem.apply(H)) / math.sqrt(n)
            assert np.linalg.norm(H) <= C * misfit * (1 + 1e-9)
            nearest = max(nearest, np.linalg.norm(H) / (C * misfit))
    assert nearest > 0.02


def test_residual_radius_holds_the_critical_points_of_noisy_data():
    for seed in range(6):
        problem = Instance(seed, 4, 1, 60)
        noise = 1e-3 * problem.rng.standard_normal(problem.n)
        data = problem.apply(problem.Q) + noise
        loss = LeastSquares(problem.objective.measurements, data)
        run = posquad.gradient_descent(
            loss, problem.U, step=1 / (2 * problem.Lam), max_steps=5000, gradient_tolerance=1e-11
        )
        residual = float(np.linalg.norm(noise)) / math.sqrt(problem.n)
        radius = effective.residual_radius(residual, 0.25, problem.lam)
        assert radius * math.sqrt(problem.mu / problem.lam) < 0.25
        assert float(procrustes_distance(run.U, problem.U)) <= radius * (1 + 1e-6)


def test_worked_values_and_reexport():
    assert effective.effective_radius(1.0, 4.0) == 0.25
    assert effective.residual_radius(1.0, 0.25, 1.0) == 4.0
    assert effective.curvature_interval(1.0, 1.0, 1.0) == (0.0, 9.0)
    assert effective.stability_constant(4, 1.0, 1.0, 0.25, 1.0, 2.0) == pytest.approx(
        math.hypot(1.0, 3.0)
    )
    assert effective.stability_constant(4, 4.0, 1.0, 1.0, 0.0, math.inf) == 4.0
    for name in effective.__all__:
        assert getattr(theory, name) is getattr(effective, name)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: effective.effective_secant_bound(0.5, 1.0, 1.0), "distance"),
        (lambda: effective.effective_flow_envelope(0.6, 1.0, 1.0, 1.0), "distance"),
        (lambda: effective.effective_step(0.5, 1.0, 2.0), "theta"),
        (lambda: effective.effective_step(0.1, 2.0, 1.0), "lam"),
        (lambda: effective.effective_descent_envelope(0.1, 1, 9.0, 1.0, 2.0, 1.0), "step"),
        (lambda: effective.interpolant_radius(0.0, 1.0), "lam"),
        (lambda: effective.stability_constant(1, 1.0, 1.0, 1.0, 1.0, 0.0), "beta"),
        (lambda: effective.stability_constant(0, 1.0, 1.0, 1.0, 1.0, 1.0), "n"),
    ],
)
def test_outside_the_theorems_is_refused(call, argument):
    with pytest.raises(DomainError) as error:
        call()
    assert error.value.argument == argument


GOOD = {
    "curvature_interval": (1.0, 1.0, 0.1),
    "effective_descent_envelope": (0.1, 3, 0.01, 1.0, 2.0, 1.0),
    "effective_flow_envelope": (0.1, 1.0, 1.0, 1.0),
    "effective_radius": (1.0, 1.0),
    "effective_secant_bound": (0.1, 1.0, 1.0),
    "effective_step": (0.1, 1.0, 2.0),
    "interpolant_radius": (1.0, 1.0),
    "residual_radius": (0.1, 0.1, 1.0),
    "stability_constant": (5, 1.0, 1.0, 1.0, 1.0, 1.0),
}


def test_every_function_is_tried_here():
    assert set(GOOD) == set(effective.__all__)


@pytest.mark.parametrize("name", GOOD)
def test_arguments_that_are_not_numbers_or_negative_are_refused(name):
    for bad in (-1.0, math.nan, "2"):
        function, good = getattr(effective, name), GOOD[name]
        function(*good)
        for position in range(len(good)):
            with pytest.raises(PosquadError):
                function(*good[:position], bad, *good[position + 1 :])


def test_arrays_of_either_kind():
    import torch

    t = torch.linspace(0, 1, 3, dtype=torch.float64)
    envelope = effective.effective_flow_envelope(torch.tensor(0.1), t, 1.0, 1.0)
    assert isinstance(envelope, torch.Tensor)
    assert envelope.shape == (3,)
    empty = effective.effective_secant_bound(np.zeros(0), 1.0, 1.0)
    assert empty.shape == (0,)
