"""The constants of section 3: printed numbers, independent derivations, theorems on instances."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from posquad import (
    LeastSquares,
    PopulationRisk,
    RankOne,
    effective_spectrum,
    gradient_descent,
    gradient_flow,
    theory,
)
from posquad.core.errors import DomainError, DtypeError, PosquadError
from posquad.theory import Signal

SIGNALS = [
    (1, (1.0,)),
    (8, (1.0, 1.0)),
    (10, (1.0, 0.5)),
    (6, (3.0, 0.2, 0.01)),
    (3, (2.0, 1.0, 0.5)),
    (100, (1e-3,)),
]


def signal(d: int, eigenvalues: tuple[float, ...]) -> Signal:
    return Signal.from_eigenvalues(d, eigenvalues)


def factor(rng: np.random.Generator, d: int, eigenvalues: tuple[float, ...]) -> np.ndarray:
    W = np.linalg.qr(rng.normal(size=(d, len(eigenvalues))))[0]
    return W * np.sqrt(eigenvalues)


def procrustes(U: np.ndarray, V: np.ndarray) -> tuple[float, np.ndarray]:
    """`d_P(U, V)` and the aligned difference, by the singular value decomposition of V'U."""
    A, _, Bt = np.linalg.svd(V.T @ U)
    Delta = U - V @ (A @ Bt)
    return float(np.linalg.norm(Delta)), Delta


def population(H: np.ndarray) -> np.ndarray:
    return 2 * H + np.trace(H) * np.eye(len(H))


def svec(H: np.ndarray) -> np.ndarray:
    """An isometry from symmetric matrices to vectors."""
    i, j = np.triu_indices(H.shape[-1])
    return H[..., i, j] * np.where(i == j, 1.0, np.sqrt(2))


def operators(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """T_n and T as matrices on svec coordinates."""
    d = X.shape[-1]
    V = svec(X[..., :, None] * X[..., None, :])
    identity = svec(np.eye(d))
    return V.mT @ V / X.shape[-2], 2 * np.eye(len(identity)) + np.outer(identity, identity)


# Numbers.


@pytest.mark.parametrize(
    ("kappa", "printed"), [(1, "5.40e-04"), (2, "2.81e-04"), (4, "1.45e-04"), (8, "7.41e-05")]
)
def test_oracle_steps_of_experiment_4(kappa: int, printed: str) -> None:
    target = signal(8, (1.0, 1 / kappa))
    assert f"{theory.oracle_step(target, m=2, M=10):.2e}" == printed
    assert theory.alpha_star(target, m=2) == target.lambda_r  # the secant rate


def test_sample_size_and_radius_of_experiment_3() -> None:
    target = signal(10, (1.0, 0.5))
    assert f"{theory.N_star(target, delta=0.05):.2e}" == "2.01e+16"
    assert f"{theory.rho_n(target):.4f}" == "0.0136"


def derived(d: int, eigenvalues: tuple[float, ...], m: float, M: float) -> dict[str, mpmath.mpf]:
    """Section 3, typed again from the paper in fifty digits."""
    mp = mpmath.mpf
    top, low = mp(max(eigenvalues)), mp(min(eigenvalues))
    r, m, M, delta, n, eps = len(eigenvalues), mp(m), mp(M), mp("0.05"), mp(1000), mp("0.3")
    norm = mpmath.sqrt(sum(mp(v) ** 2 for v in eigenvalues))
    kappa = mp(d) * (d + 2) * (d + 4) * (d + 6)
    sigma, beta = mpmath.sqrt(low), mpmath.sqrt(top)
    rho, rho_n = m * sigma / (4 * M), sigma / (4 * (d + 3))
    alpha = m * sigma**2 / 2
    L = 2 * M * (2 * beta + rho) * (beta + rho)
    ratio = 256 * r * (d + 3) ** 2 * norm / low
    L_n = 2 * (d + 3) * (2 * beta + rho_n) * (beta + rho_n)
    step = (low / 2) / L_n**2 / 2
    return {
        "kappa_d": kappa,
        "deviation_probability": kappa / (n * eps**2),
        "deviation_sample_size": kappa / (delta * eps**2),
        "sigma_star": sigma,
        "beta_star": beta,
        "rho_star": rho,
        "rho_n": rho_n,
        "alpha_star": alpha,
        "L_star": L,
        "oracle_step": alpha / L**2,
        "curvature low": 2 * (2 - eps) * low,
        "curvature high": 4 * (d + 2 + eps) * top,
        "comparison low": sigma,
        "comparison high": 2 * beta + rho,
        "loss low": m / 2,
        "loss high": M / 2,
        "response_mean_probability": 2 / (n * eps**2),
        "truncation operator": 2 * low / 3,
        "truncation factor": 2 * mpmath.sqrt(r * low / 3),
        "gamma_star": low / (256 * r * (d + 3) ** 2),
        "epsilon_star": 1 / ratio,
        "N_star": (kappa + 2) / delta * ratio**2,
        "sample_scale": mp(r) ** 2 * mp(d) ** 8 / delta * (norm / low) ** 2,
        "initialization_radius": rho_n / 2,
        "C_star": (2 * beta + rho_n) / sigma,
        "C_star abstract": (2 * beta + rho) / sigma,
        "flow_envelope": mp("1e-9") * mpmath.exp(-low * 3 / 2),
        "flow_envelope abstract": mp("1e-9") * mpmath.exp(-alpha * 3),
        "descent_envelope": mp("1e-9") * (1 - step * low / 4) ** 17,
    }


def computed(d: int, eigenvalues: tuple[float, ...], m: float, M: float) -> dict[str, float]:
    s, delta, n, eps = signal(d, eigenvalues), 0.05, 1000, 0.3
    curvature = theory.effective_curvature_bounds(s, eps)
    comparison, losses = theory.factor_predictor_bounds(s, m, M), theory.loss_bounds(m, M)
    truncation = theory.truncation_bounds(s, s.lambda_r / 3)
    return {
        "kappa_d": theory.kappa_d(d),
        "deviation_probability": theory.deviation_probability(n, d, eps),
        "deviation_sample_size": theory.deviation_sample_size(d, eps, delta),
        "sigma_star": theory.sigma_star(s),
        "beta_star": theory.beta_star(s),
        "rho_star": theory.rho_star(s, m, M),
        "rho_n": theory.rho_n(s),
        "alpha_star": theory.alpha_star(s, m),
        "L_star": theory.L_star(s, m, M),
        "oracle_step": theory.oracle_step(s, m, M),
        "curvature low": curvature[0],
        "curvature high": curvature[1],
        "comparison low": comparison[0],
        "comparison high": comparison[1],
        "loss low": losses[0],
        "loss high": losses[1],
        "response_mean_probability": theory.response_mean_probability(n, eps),
        "truncation operator": truncation[0],
        "truncation factor": truncation[1],
        "gamma_star": theory.gamma_star(s),
        "epsilon_star": theory.epsilon_star(s),
        "N_star": theory.N_star(s, delta),
        "sample_scale": theory.sample_scale(s, delta),
        "initialization_radius": theory.initialization_radius(s),
        "C_star": theory.C_star(s),
        "C_star abstract": theory.C_star(s, m, M),
        "flow_envelope": theory.flow_envelope(s, 1e-9, 3),
        "flow_envelope abstract": theory.flow_envelope(s, 1e-9, 3, m=m, M=M),
        "descent_envelope": theory.descent_envelope(
            s, 1e-9, 17, step=theory.oracle_step(s, 1, d + 3) / 2
        ),
    }


@pytest.mark.parametrize(("d", "eigenvalues"), SIGNALS)
@pytest.mark.parametrize(("m", "excess"), [(2, 0), (1, 1), (0.5, 100)])
def test_against_a_second_derivation(
    d: int, eigenvalues: tuple[float, ...], m: float, excess: float
) -> None:
    M = d + 2 + excess
    with mpmath.workdps(50):
        expected = {name: float(v) for name, v in derived(d, eigenvalues, m, M).items()}
    values = computed(d, eigenvalues, m, M)
    assert values.keys() == expected.keys()
    for name, value in values.items():
        # A dozen operations, and inputs such as 0.3 that fifty digits hold differently.
        assert value == pytest.approx(expected[name], rel=1e-14), name


@given(
    d=st.integers(1, 50),
    eigenvalues=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5),
    m=st.floats(1e-3, 1e3),
    spread=st.floats(1, 1e3),
)
def test_relations_of_the_paper(d: int, eigenvalues: list[float], m: float, spread: float) -> None:
    d, M = max(d, len(eigenvalues)), m * spread
    s = Signal.from_eigenvalues(d, eigenvalues)
    close = {"rel": 1e-13}
    assert theory.rho_star(s, m, M) <= theory.sigma_star(s) / 4 * (1 + 1e-15)
    assert theory.gamma_star(s) == pytest.approx(theory.rho_n(s) ** 2 / (16 * s.r), **close)
    assert 0 < theory.epsilon_star(s) < 1
    assert theory.L_star(s, m, M) >= 8 * theory.alpha_star(s, m)
    assert 0 < theory.oracle_step(s, m, M) * theory.alpha_star(s, m) <= 1 / 64
    assert theory.secant_bounds(s, m, M) == (theory.alpha_star(s, m), theory.L_star(s, m, M))
    # thm:initialization-enters-basin: gamma_star is what truncation may spend.
    assert theory.gamma_star(s) < s.lambda_r / 2
    _, reach = theory.truncation_bounds(s, theory.gamma_star(s))
    assert reach == pytest.approx(theory.initialization_radius(s), **close)
    # cor:explicit-high-probability-initialization: a union bound over the two events.
    n = theory.N_star(s, 0.1)
    eps = theory.epsilon_star(s)
    both = theory.kappa_d(d) / (n * eps**2) + 2 / (n * eps**2)
    assert both == pytest.approx(0.1, **close)


@pytest.mark.parametrize("c", [1e-170, 1e-30, 1e30, 1e170])
def test_units(c: float) -> None:
    # Q* -> c Q*: radii scale with sqrt(c), rates with c, steps with 1/c, sample sizes not at all.
    one, scaled = signal(4, (1.0, 0.5)), signal(4, (c, 0.5 * c))
    close = {"rel": 1e-13}
    assert theory.rho_n(scaled) == pytest.approx(c**0.5 * theory.rho_n(one), **close)
    assert theory.L_star(scaled, 1, 7) == pytest.approx(c * theory.L_star(one, 1, 7), **close)
    assert theory.C_star(scaled) == pytest.approx(theory.C_star(one), **close)
    assert theory.N_star(scaled, 0.1) == pytest.approx(theory.N_star(one, 0.1), **close)
    assert theory.oracle_step(scaled, 1, 7) == pytest.approx(
        theory.oracle_step(one, 1, 7) / c, **close
    )


def test_sample_scale_is_the_leading_order() -> None:
    ratios = [
        theory.N_star(s, 0.1) / 256**2 / theory.sample_scale(s, 0.1)
        for s in (signal(d, (1.0, 0.5)) for d in (10, 100, 1000, 10_000))
    ]
    # (1 + 3/d)^4 (1 + 12/d + ...) = 1 + 24/d + ...
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] == pytest.approx(1 + 24e-4, abs=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda tiny: theory.deviation_probability(1, 1, tiny),
        lambda tiny: theory.deviation_sample_size(1, tiny, 0.5),
        lambda tiny: theory.response_mean_probability(1, tiny),
        lambda tiny: theory.N_star(signal(3, (1.0, tiny)), 0.5),
    ],
    ids=["probability", "sample size", "response mean", "N_star"],
)
def test_bounds_beyond_the_range_of_floats_are_infinite(call: Callable) -> None:
    assert call(1e-200) == np.inf


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, torch.Tensor.float])
def test_signal_from_factor(kind: Callable) -> None:
    eigenvalues = (3.0, 1.0, 0.25)
    U = factor(np.random.default_rng(0), 5, eigenvalues)
    s = Signal.from_factor(kind(torch.from_numpy(U) if kind is torch.Tensor.float else U))
    eps = 1e-6 if kind is torch.Tensor.float else 1e-14
    assert (s.d, s.r) == (5, 3)
    np.testing.assert_allclose(s.eigenvalues, eigenvalues, rtol=eps)
    np.testing.assert_allclose(s.frobenius, np.linalg.norm(U @ U.T), rtol=eps)
    assert Signal.from_eigenvalues(5, np.array([0.25, 3.0, 1.0])) == signal(5, eigenvalues)
    assert (s.lambda_1, s.lambda_r) == (s.eigenvalues[0], s.eigenvalues[2])


def test_eigenvalues_of_a_signal_are_a_tuple() -> None:
    with pytest.raises(DtypeError, match=r"^eigenvalues: expected a tuple.*; got list"):
        Signal(3, [1.0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("d", "eigenvalues"), [(3, (1.0, 2.0)), (1, (2.0, 1.0)), (3, ()), (3, (1.0, -2.0)), (0, (1.0,))]
)
def test_a_signal_cannot_be_inconsistent(d: int, eigenvalues: tuple[float, ...]) -> None:
    # lambda_1 and lambda_r are read off the ends of the tuple, so every bound relies on it.
    try:
        s = Signal(d, eigenvalues)
    except PosquadError:
        return
    assert s.d >= s.r >= 1
    assert s.lambda_1 == max(eigenvalues)
    assert s.lambda_r == min(eigenvalues) > 0


# Theorems on instances.


@pytest.mark.parametrize(("d", "eigenvalues"), [(1, (1.0,)), (4, (1.0, 0.3)), (3, (2.0, 1.0, 0.5))])
def test_local_regularity_of_the_population_risk(d: int, eigenvalues: tuple[float, ...]) -> None:
    # lem:factor-predictor-local-comparison and thm:local-secant-regularity.
    rng = np.random.default_rng(0)
    s = signal(d, eigenvalues)
    m, M = theory.population_coercivity(d)
    rho = theory.rho_star(s, m, M)
    low, high = theory.factor_predictor_bounds(s, m, M)
    rate, lipschitz = theory.secant_bounds(s, m, M)
    loss_low, loss_high = theory.loss_bounds(m, M)
    slack = 1 + 1e-9  # rounding in differences of size rho / 100
    for trial in range(200):
        U_star = factor(rng, d, eigenvalues)
        nudge = rng.normal(size=U_star.shape)
        U = U_star + rho * (1.0 if trial % 2 else rng.random()) * nudge / np.linalg.norm(nudge)
        distance, Delta = procrustes(U, U_star)
        E = U @ U.T - U_star @ U_star.T
        size = np.linalg.norm(E)
        gradient = 2 * population(E) @ U
        assert distance <= rho * slack
        assert low * distance <= size * slack
        assert size <= high * distance * slack
        inner = (gradient * Delta).sum()
        assert m / 2 * size**2 <= inner * slack
        assert rate * distance**2 <= inner * slack
        assert np.linalg.norm(gradient) <= lipschitz * distance * slack
        loss = (E * population(E)).sum() / 2
        assert loss_low * size**2 <= loss * slack
        assert loss <= loss_high * size**2 * slack


@pytest.mark.parametrize(("d", "eigenvalues"), [(1, (1.0,)), (5, (1.0, 0.4)), (3, (2.0, 1.0, 0.5))])
@pytest.mark.parametrize("fraction", [0.01, 0.5, 0.99])
def test_truncation_lemma(d: int, eigenvalues: tuple[float, ...], fraction: float) -> None:
    rng = np.random.default_rng(1)
    s = signal(d, eigenvalues)
    gamma = fraction * s.lambda_r / 2
    operator, reach = theory.truncation_bounds(s, gamma)
    for _ in range(50):
        U_star = factor(rng, d, eigenvalues)
        noise = rng.normal(size=(d, d))
        noise = noise + noise.T
        M = U_star @ U_star.T + gamma * noise / np.linalg.norm(noise, 2)
        values, vectors = np.linalg.eigh(M)
        assert values[-s.r] > 0
        U0 = vectors[:, -s.r :] * np.sqrt(values[-s.r :])
        assert np.linalg.norm(U0 @ U0.T - U_star @ U_star.T, 2) <= operator * (1 + 1e-12)
        assert procrustes(U0, U_star)[0] <= reach


def test_moment_error_of_gamma_star_enters_the_basin() -> None:
    rng = np.random.default_rng(2)
    s = signal(4, (1.0, 0.5))
    U_star = factor(rng, 4, s.eigenvalues)
    for _ in range(20):
        noise = rng.normal(size=(4, 4))
        noise = noise + noise.T
        M = U_star @ U_star.T + theory.gamma_star(s) * noise / np.linalg.norm(noise, 2)
        values, vectors = np.linalg.eigh(M)
        U0 = vectors[:, -2:] * np.sqrt(values[-2:])
        assert procrustes(U0, U_star)[0] <= theory.initialization_radius(s)


@pytest.mark.parametrize("d", [1, 2, 3, 7, 40])
def test_kappa_is_the_eighth_moment_of_the_radius(d: int) -> None:
    # ||x||^2 is chi-square with d degrees of freedom; its fourth moment.
    assert theory.kappa_d(d) == pytest.approx(float(stats.chi2(d).moment(4)), rel=1e-10)


@pytest.mark.parametrize(("d", "n"), [(1, 10), (2, 5), (3, 20)])
def test_operator_deviation_in_mean_square(d: int, n: int) -> None:
    # eq:hs-variance-bound: E||T_n - T||_HS^2 = (kappa_d - ||T||_HS^2)/n, at most kappa_d/n.
    trials = 40_000
    X = np.random.default_rng(3).normal(size=(trials, n, d))
    T_n, T = operators(X)
    squared = ((T_n - T) ** 2).sum((-2, -1))
    expected = (theory.kappa_d(d) - (T**2).sum()) / n
    error = squared.std() / np.sqrt(trials)
    assert abs(squared.mean() - expected) < 4 * error  # four standard errors
    assert expected <= theory.kappa_d(d) / n
    # Markov's inequality, where its bound is one half.
    epsilon = np.sqrt(2 * theory.kappa_d(d) / n)
    assert theory.deviation_probability(n, d, epsilon) == pytest.approx(0.5)
    norms = np.linalg.norm(T_n - T, ord=2, axis=(-2, -1))
    assert (norms > epsilon).mean() <= 0.5
    assert theory.deviation_sample_size(d, epsilon, 0.5) == pytest.approx(n)


@pytest.mark.parametrize("n", [1, 5, 100])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_response_mean_tail_in_rank_one(n: int, epsilon: float) -> None:
    # With Q* = lambda ww' the mean of y is lambda chi2_n / n, so the probability is exact.
    law = stats.chi2(n)
    exact = law.sf(n * (1 + epsilon)) + law.cdf(n * (1 - epsilon))
    assert exact <= theory.response_mean_probability(n, epsilon)
    # Chebyshev's inequality with Var(x'Qx) = 2||Q||_F^2, here in units of lambda.
    assert theory.response_mean_probability(n, epsilon) * epsilon**2 == pytest.approx(
        law.var() / n**2
    )


def test_response_variance_in_any_rank() -> None:
    # x'Qx is a sum of lambda_i chi2_1, so its variance is 2||Q||_F^2.
    s = signal(5, (2.0, 1.0, 0.5))
    variance = sum(v**2 * stats.chi2(1).var() for v in s.eigenvalues)
    bound = theory.response_mean_probability(50, 0.4)
    assert bound == pytest.approx(variance / (50 * (0.4 * s.frobenius) ** 2))


@pytest.mark.parametrize(("d", "eigenvalues"), SIGNALS[:-1])
def test_population_curvature_bounds(d: int, eigenvalues: tuple[float, ...]) -> None:
    U = factor(np.random.default_rng(4), d, eigenvalues)
    low, high = theory.effective_curvature_bounds(signal(d, eigenvalues))
    values = effective_spectrum(PopulationRisk(U), U).values
    assert low * (1 - 1e-12) <= values[0]
    assert values[-1] <= high * (1 + 1e-12)
    if len(eigenvalues) < d:  # attained off the range of U
        assert values[0] == pytest.approx(4 * min(eigenvalues), rel=1e-10)
    if d == 1:
        assert values[0] == pytest.approx(high)


@pytest.mark.parametrize(("d", "n"), [(1, 30), (2, 200), (4, 2000)])
def test_empirical_coercivity_and_curvature_bounds(d: int, n: int) -> None:
    # cor:global-empirical-coercivity with the deviation that these samples have.
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, d))
    T_n, T = operators(X)
    epsilon = np.linalg.norm(T_n - T, 2)
    low, high = theory.empirical_coercivity(d, epsilon)
    values = np.linalg.eigvalsh(T_n)
    assert low <= values[0] * (1 + 1e-12)
    assert values[-1] <= high * (1 + 1e-12)
    eigenvalues = (1.0, 0.5)[: max(1, d - 1)]
    U = factor(rng, d, eigenvalues)
    spectrum = effective_spectrum(LeastSquares(RankOne(X), ((X @ U) ** 2).sum(-1)), U).values
    low, high = theory.effective_curvature_bounds(signal(d, eigenvalues), epsilon)
    assert low <= spectrum[0]
    assert spectrum[-1] <= high
    assert theory.empirical_coercivity(d, 0) == theory.population_coercivity(d) == (2, d + 2)


# Envelopes above trajectories.


def basin(kind: str, seed: int) -> tuple[object, np.ndarray, np.ndarray, Signal, float, float]:
    """Objective, U*, starts on the boundary of the basin, signal, m, M."""
    rng = np.random.default_rng(seed)
    d, eigenvalues = 2, (1.0, 0.6)
    s = signal(d, eigenvalues)
    U_star = factor(rng, d, eigenvalues)
    if kind == "population":
        objective, (m, M) = PopulationRisk(U_star), theory.population_coercivity(d)
    else:
        X = rng.normal(size=(4000, d))
        T_n, T = operators(X)
        assert np.linalg.norm(T_n - T, 2) <= 1  # the event of eq:unit-operator-event
        objective, m, M = LeastSquares(RankOne(X), ((X @ U_star) ** 2).sum(-1)), 1.0, d + 3.0
    nudges = rng.normal(size=(8, *U_star.shape))
    nudges /= np.linalg.norm(nudges, axis=(-2, -1), keepdims=True)
    return objective, U_star, U_star + theory.rho_star(s, m, M) * nudges, s, m, M


@pytest.mark.parametrize("kind", ["population", "samples"])
def test_flow_stays_below_its_envelope(kind: str) -> None:
    objective, U_star, U0, s, m, M = basin(kind, 6)
    flow = gradient_flow(objective, U0, t_final=2.0, times=np.arange(1, 20) / 10, save_factors=True)
    distances = np.array([[procrustes(U, U_star)[0] for U in row] for row in flow.factors])
    errors = np.linalg.norm(
        flow.factors @ flow.factors.swapaxes(-1, -2) - U_star @ U_star.T, axis=(-2, -1)
    )
    envelope = theory.flow_envelope(s, distances[0], flow.times, m, M)
    assert envelope.shape == distances.shape
    assert (distances <= envelope * (1 + 1e-9) + 1e-8).all()  # the integrator's own error
    bound = theory.flow_predictor_envelope(s, errors[0], flow.times, m, M)
    assert (errors <= bound + 1e-8).all()
    if kind == "samples":
        np.testing.assert_array_equal(envelope, theory.flow_envelope(s, distances[0], flow.times))


@pytest.mark.parametrize("kind", ["population", "samples"])
def test_descent_stays_below_its_envelope(kind: str) -> None:
    objective, U_star, U0, s, m, M = basin(kind, 7)
    step = theory.oracle_step(s, m, M)
    path = gradient_descent(
        objective, U0, step=step, max_steps=400, record_every=40, save_factors=True
    )
    distances = np.array([[procrustes(U, U_star)[0] for U in row] for row in path.factors])
    errors = np.linalg.norm(
        path.factors @ path.factors.swapaxes(-1, -2) - U_star @ U_star.T, axis=(-2, -1)
    )
    k = np.arange(0, 401, 40)[:, None]
    envelope = theory.descent_envelope(s, distances[0], k, step, m, M)
    assert (distances <= envelope * (1 + 1e-12)).all()
    bound = theory.descent_predictor_envelope(s, errors[0], k, step, m, M)
    assert (errors <= bound * (1 + 1e-12)).all()
    # The theorem is about the square: its rate is (1 - eta alpha)^(k/2), a little smaller.
    rate = (1 - step * theory.alpha_star(s, m)) ** (k / 2)
    assert (distances <= rate * distances[0] * (1 + 1e-12)).all()
    if kind == "samples":
        default = theory.descent_envelope(s, distances[0], k, step)
        np.testing.assert_array_equal(envelope, default)


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_envelopes_of_arrays_are_double_precision(convert: Callable, dtype: type) -> None:
    s = signal(4, (1.0, 0.5))
    t = np.arange(5).astype(dtype)
    step = theory.oracle_step(s, 1, 7)
    for array, number in (
        (theory.flow_envelope(s, 0.01, convert(t)), lambda v: theory.flow_envelope(s, 0.01, v)),
        (
            theory.descent_envelope(s, 0.01, convert(t), step),
            lambda v: theory.descent_envelope(s, 0.01, v, step),
        ),
    ):
        assert type(array) is type(convert(t))
        np.testing.assert_allclose(np.asarray(array), [number(float(v)) for v in t], rtol=1e-14)


def test_envelopes_broadcast_distances_against_times() -> None:
    s = signal(4, (1.0, 0.5))
    distance, t = np.array([0.01, 0.02]), np.array([[0.0], [1.0], [2.0]])
    envelope = theory.flow_envelope(s, distance, t)
    assert envelope.shape == (3, 2)
    np.testing.assert_array_equal(envelope[0], distance)
    np.testing.assert_allclose(envelope[:, 1], 2 * envelope[:, 0])


def test_envelopes_end_at_the_basin() -> None:
    s = signal(4, (1.0, 0.5))
    outside = 1.01 * theory.rho_n(s)
    with pytest.raises(DomainError, match=r"^distance: expected at most rho"):
        theory.flow_envelope(s, outside, 1.0)
    with pytest.raises(DomainError, match=r"^distance: expected at most rho"):
        theory.descent_envelope(s, np.array([0.0, outside]), 1, theory.oracle_step(s, 1, 7))


def test_bounds_hold_up_to_their_ends_and_not_beyond() -> None:
    """The basin and the step are closed, the truncation and the probability open; m = M is fine."""
    s = signal(5, (1.0, 0.25))
    edge = theory.rho_star(s, 1, 8)
    assert theory.flow_envelope(s, edge, 0.0) == edge
    step = theory.oracle_step(s, 1, 8)
    # alpha* = 1/8 and (1 - step/16)^3, from the formulas of the docstring.
    assert theory.descent_envelope(s, edge, 3, step) == pytest.approx(
        edge * (1 - step / 16) ** 3, rel=1e-14
    )
    above = step * (1 + 1e-12)
    for call in (theory.descent_envelope, theory.descent_predictor_envelope):
        with pytest.raises(DomainError, match=r"^step: expected at most the oracle step"):
            call(s, edge, 3, above)
    assert theory.rho_star(s, 2, 2) == 0.5 / 4
    with pytest.raises(DomainError, match=r"^m: expected m <= M"):
        theory.rho_star(s, 2, 2 - 1e-12)
    assert theory.truncation_bounds(s, 0.125 - 2**-10)[0] == 0.25 - 2**-9
    with pytest.raises(DomainError, match=r"^gamma: expected gamma < lambda_r/2"):
        theory.truncation_bounds(s, 0.125)
    for delta in (0.0, 1.0, 1.5):
        with pytest.raises(DomainError, match=r"^delta"):
            theory.deviation_sample_size(1, 1.0, delta)
    # kappa_2 = 2 * 4 * 6 * 8 = 384, over n eps^2 = 6 * 4.
    assert theory.deviation_probability(6, 2, 2.0) == 16
    assert theory.deviation_sample_size(2, 2.0, 0.5) == 192
