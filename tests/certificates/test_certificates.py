"""`certify`: each finding against an independent computation, and what must be refused."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import clarabel
import mpmath
import numpy as np
import pytest
import scipy
import torch

import posquad
from posquad import Dense, LeastSquares, PopulationRisk, RankOne, certify, effective_spectrum
from posquad.certificates import Certificate, Verdict, certifier, verify, words
from posquad.certificates.proofs.bounded_operator import BoundedDense, BoundedRankOne
from posquad.certificates.proofs.claims import Conclusions, proved_conclusions
from posquad.certificates.proofs.statements import TangentGram, proves_dual, proves_quartic
from posquad.certificates.search.curvature import quartic_below, quartic_guess
from posquad.certificates.search.trace import _with_excess, barrier_dual
from posquad.core.errors import DomainError, DtypeError, Interrupted, ShapeError
from posquad.geometry import dimension, procrustes_distance
from posquad.selection import minimum_trace_interpolant
from posquad.theory import Signal, alpha_star, oracle_step, rho_star


def planted(seed, n, d, r, smallest=0.5):
    rng = np.random.default_rng([seed, n, d, r])
    X = rng.standard_normal((n, d))
    W = np.linalg.qr(rng.standard_normal((d, r)))[0]
    U = W * np.sqrt(np.linspace(1.0, smallest, r)) @ np.linalg.qr(rng.standard_normal((r, r)))[0]
    return LeastSquares(RankOne(X), np.square(X @ U).sum(1)), U


def data(objective):
    return objective.measurements.X.numpy(), objective.y.numpy()


# What is said, from numbers made by hand.

CONCLUSIONS = Conclusions(
    residual=0.01,
    relative_residual=1e-9,
    lam=4.0,
    Lam=16.0,
    mu=1.0,
    radius=1.0,  # sqrt(4 / 1) / 2
    floor=0.02,  # 4 * 0.01 / 2
    constant=3.0,
    within=0.06,  # 2 * 3 * 0.01
    size=5.0,
    trace=7.0,
    trace_gap=1e-9,
)
SEEN = {"n": 20, "p": 10, "lam_estimate": 1e-3, "kernel_dimension": 0, "condition": 2.0}
DUAL = {"n": 20, "p": 10, "smallest": None, "exhausted": False}


def without(*names, **others):
    return replace(CONCLUSIONS, **dict.fromkeys(names), **others)


@pytest.mark.parametrize(
    ("find", "verdict", "value", "words"),
    [
        (
            lambda: words.interpolation(without(relative_residual=1e-3), 1e-8, {}),
            "REFUSED", 1e-3, "||A(UU') - y|| / ||y|| <= 1.000e-03 > tolerance 1.0e-08",
        ),
        (
            lambda: words.interpolation(
                without(residual=math.inf, relative_residual=math.inf), 1e-8, {}
            ),
            "REFUSED", math.inf, "no upper bound on the residual could be proved",
        ),
        (
            lambda: words.interpolation(without(relative_residual=math.inf), 1e-8, {}),
            "REFUSED", math.inf, "the relative residual is undefined: y is zero",
        ),
        (lambda: words.identifiability(without("lam"), None), "REFUSED", None, "the data, the"),
        (
            lambda: words.identifiability(
                without("lam"), {**SEEN, "n": 9, "kernel_dimension": 1}
            ),
            "REFUSED", 0.0, "n = 9 < p = 10: at least 1 directions are not measured",
        ),
        (
            lambda: words.identifiability(
                without("lam"), {**SEEN, "n": 10, "kernel_dimension": 1}
            ),
            "REFUSED", 0.0, "lambda_min^eff = 0 up to rounding: a kernel of dimension 1",
        ),
        (
            lambda: words.identifiability(without("lam"), {**SEEN, "condition": math.inf}),
            "REFUSED", None, "U does not have full column rank",
        ),
        (
            lambda: words.identifiability(without("lam"), {**SEEN, "kernel_dimension": None}),
            "REFUSED", 1e-3, "no positive lower bound on lambda_min^eff (computed 1.000e-03)",
        ),
        (
            lambda: words.identifiability(without("lam"), {**SEEN, "lam_estimate": 0.0}),
            "REFUSED", 0.0, "no positive lower bound",
        ),
        (
            lambda: words.identifiability(without("lam"), SEEN),
            "NUMERICAL", 1e-3, "computed lambda_min^eff = 1.000e-03 is too close",
        ),
        (
            lambda: words.local_uniqueness(without("lam", "mu"), {}),
            "REFUSED", None, "identifiability is not proved",
        ),
        (
            lambda: words.local_uniqueness(without("mu"), {}),
            "REFUSED", None, "no upper bound on mu could be proved",
        ),
        (
            lambda: words.local_uniqueness(without("floor"), {}),
            "REFUSED", None, "no upper bound on the residual could be proved",
        ),
        (
            lambda: words.local_uniqueness(without(floor=0.5), {}),
            "REFUSED", 1.0,
            "4 residual / sqrt(lam) = 5.000e-01 >= sqrt(lam/mu)/4 = 5.000e-01: the residual",
        ),
        (
            lambda: words.global_uniqueness(without("lam", "mu", "constant"), None, DUAL),
            "REFUSED", None, "identifiability is not proved",
        ),
        (
            lambda: words.global_uniqueness(without("mu", "constant"), None, DUAL),
            "REFUSED", None, "no upper bound on mu could be proved",
        ),
        (
            lambda: words.global_uniqueness(without("within"), 0.5, DUAL),
            "REFUSED", None, "no upper bound on the residual could be proved",
        ),
        (
            lambda: words.global_uniqueness(without("constant"), None, None),
            "REFUSED", None, "the data, the claims and the witnesses do not prove it",
        ),
        (
            lambda: words.global_uniqueness(without("constant"), None, {**DUAL, "n": 10}),
            "REFUSED", None, "n = 10 <= p = 10: A*(z)U = 0 only for z = 0",
        ),
        (
            lambda: words.global_uniqueness(
                without("constant"), None, {**DUAL, "smallest": 1e-12}
            ),
            "NUMERICAL", None, "a dual matrix was found, but too close to singular",
        ),
        (
            lambda: words.global_uniqueness(
                without("constant"), None, {**DUAL, "exhausted": True}
            ),
            "REFUSED", None, "numerically no z has A*(z)U = 0",
        ),
        (
            lambda: words.global_uniqueness(without("constant"), None, DUAL),
            "REFUSED", None, "no z with A*(z)U = 0 and V'A*(z)V > 0 was found, which proves",
        ),
        (
            lambda: words.minimum_trace(without("trace_gap"), 1e-6, {}),
            "REFUSED", 7.0, "no dual vector that bounds the trace",
        ),
        (
            lambda: words.minimum_trace(without(trace_gap=1e-3), 1e-6, {}),
            "REFUSED", 7.0, "tr UU' = 7.000000e+00 is at most 1 + 1.0e-03 times the least",
        ),
    ],
)  # fmt: skip
def test_every_refusal_says_its_reason(find, verdict, value, words):
    finding = find()
    assert finding.verdict is Verdict[verdict]
    assert finding.value == value
    assert finding.reason.startswith(words)


def test_margins_and_numbers_of_what_is_proved():
    """Each margin is worked out by hand from the numbers above: lam = 4, mu = 1, Lam = 16."""
    found = CONCLUSIONS
    told = words.interpolation(found, 1e-8, {})
    assert (told.verdict, told.margin) == (Verdict.PROVED, pytest.approx(9e-9, rel=1e-12))
    edge = words.interpolation(without(relative_residual=1e-8), 1e-8, {})
    assert (edge.verdict, edge.margin) == (Verdict.PROVED, 0.0)
    assert words.identifiability(found, SEEN).margin == 4 / 16
    local = words.local_uniqueness(found, {})
    assert local.verdict is Verdict.PROVED
    assert local.margin == pytest.approx(math.sqrt(4 / 1) / 4 - 4 * 0.01 / math.sqrt(4), rel=1e-15)
    # Theorem B at theta = 1/4: (1 - 1/2) / (1 - 1/4) / (4 + 2/4 * 2)^2, and 1/Lam.
    assert local.details["secant"] == pytest.approx(0.75 * 0.5 * 4, rel=1e-12)
    assert local.details["step"] == pytest.approx(2 / 3 / 25, rel=1e-12)
    assert local.details["step_limit"] == pytest.approx(1 / 16, rel=1e-12)
    assert "within d_P < 1.000e+00" in local.reason
    assert "for y, all critical points within 5.000e-01 lie within 2.0e-02" in local.reason
    assert words.global_uniqueness(found, 0.25, DUAL).margin == 0.25
    assert words.minimum_trace(found, 1e-6, {}).margin == pytest.approx(1e-6 - 1e-9, rel=1e-12)
    edge = words.minimum_trace(without(trace_gap=1e-6), 1e-6, {})
    assert (edge.verdict, edge.margin) == (Verdict.PROVED, 0.0)


@pytest.mark.parametrize(
    ("find", "words"),
    [
        (
            lambda: words.interpolation(CONCLUSIONS, 1e-8, {}),
            "||A(UU') - y|| / ||y|| <= 1.000e-09 <= tolerance 1.0e-08",
        ),
        (lambda: words.identifiability(CONCLUSIONS, SEEN), "lambda_min^eff >= 4.000000e+00 > 0"),
        (
            lambda: words.global_uniqueness(CONCLUSIONS, 0.25, DUAL),
            "UU' is the only PSD matrix of any rank with its measurements; any other with rms "
            "misfit eps to y lies within 3.000e+00 (eps + 1.0e-02)",
        ),
        (
            lambda: words.minimum_trace(CONCLUSIONS, 1e-6, {}),
            "tr UU' = 7.000000e+00 is at most 1 + 1.0e-09 times the least trace of PSD "
            "matrices that fit as well (1.0e-09 <= tolerance 1e-06)",
        ),
    ],
)
def test_what_is_proved_is_said_in_its_numbers(find, words):
    finding = find()
    assert finding.verdict is Verdict.PROVED
    assert finding.reason == words


@pytest.mark.parametrize(
    ("told", "above", "below"),
    [
        (lambda g: words.interpolation(CONCLUSIONS, 1e-8, {}, g), ("residual",), ()),
        (lambda g: words.identifiability(CONCLUSIONS, SEEN, g), ("Lam",), ()),
        (
            lambda g: words.local_uniqueness(CONCLUSIONS, {}, g),
            ("Lam", "mu", "critical_points_within"),
            ("lam", "radius", "rate", "secant", "step", "step_limit"),
        ),
        (
            lambda g: words.global_uniqueness(CONCLUSIONS, 0.25, DUAL, g),
            ("residual", "within"),
            ("beta", "size"),
        ),
        (lambda g: words.minimum_trace(CONCLUSIONS, 1e-6, {}, g), ("gap",), ()),
    ],
)
def test_numbers_are_rounded_away_from_what_is_proved(told, above, below):
    """Upper bounds move up and lower bounds down by the outward margin; the rest is unchanged."""
    plain, given = told(0.0).details, told(2.0**-10).details
    for key, number in plain.items():
        factor = 1 + 2.0**-10 * ((key in above) - (key in below))
        expected = number * factor if factor != 1 else number
        assert given[key] == (pytest.approx(expected, rel=1e-15) if factor != 1 else number)


def test_excess_of_a_trace_dual_by_hand():
    """x = 3 in one dimension: A*(z) = 9 z, of size 9 |z|, with room for a hundred roundings."""
    operator = BoundedRankOne(np.full((1, 1), 3.0))
    for z, top in ((0.5, 3.5), (0.1, 0.0), (-1.0, 0.0)):
        found = _with_excess(operator, np.array([z]), "least squares")
        assert found.excess == pytest.approx(top + 1e-13 * (1 + 9 * abs(z)), rel=1e-15, abs=1e-16)
        assert found.method == "least squares"


# Everything together.


@pytest.mark.parametrize(
    ("d", "r", "n"), [(1, 1, 2), (2, 1, 8), (3, 3, 12), (10, 2, 57), (10, 2, 152)]
)
def test_planted_answers_are_proved(d, r, n):
    for seed in range(4):
        objective, U = planted(seed, n, d, r)
        certificate = certify(objective, U)
        assert certificate.proved
        for name in posquad.certificates.FINDINGS:
            assert getattr(certificate, name).verdict is Verdict.PROVED
            margin = getattr(certificate, name).margin
            assert margin is None if (r == d and name == "global_uniqueness") else margin > 0
        assert verify(objective, certificate).valid
        assert str(certificate).startswith("proved to be the only answer")


def test_most_planted_answers_are_proved_at_two_measurements_per_degree_of_freedom():
    proved = [certify(*planted(seed, 38, 10, 2), compare=False).proved for seed in range(24)]
    # 95% of them is what is asked; a Wilson interval around 23 of 24 reaches down to 80%.
    assert sum(proved) >= 23


def test_numbers_do_not_depend_on_array_kind_or_precision_of_storage():
    objective, U = planted(0, 40, 6, 2)
    X, y = data(objective)
    reference = certify(objective, U)
    as_torch = certify(LeastSquares(RankOne(torch.tensor(X)), torch.tensor(y)), torch.tensor(U))
    assert as_torch.global_uniqueness.value == reference.global_uniqueness.value
    single = [a.astype(np.float32) for a in (X, U)]
    y32 = np.square(single[0].astype(float) @ single[1].astype(float)).sum(1).astype(np.float32)
    rough = certify(LeastSquares(RankOne(single[0]), y32), single[1])
    assert rough.interpolation.verdict is Verdict.REFUSED  # the responses are rounded to 6e-8
    assert rough.interpolation.value < 1e-6
    assert rough.global_uniqueness.proved


def test_rank_one_and_dense_operators_agree():
    objective, U = planted(1, 40, 5, 2)
    X, y = data(objective)
    one = certify(objective, U)
    two = certify(LeastSquares(Dense(X[:, :, None] * X[:, None, :]), y), U)
    for name in ("identifiability", "local_uniqueness", "global_uniqueness", "minimum_trace"):
        assert getattr(two, name).value == pytest.approx(getattr(one, name).value, rel=1e-3)
    assert two.proved


# Interpolation.


def test_residual_bound_is_above_the_residual_and_close():
    for seed in range(5):
        objective, U = planted(seed, 30, 5, 2)
        X, y = data(objective)
        y = y + 1e-5 * np.random.default_rng(seed).standard_normal(len(y))
        certificate = certify(LeastSquares(RankOne(X), y), U)
        true = np.linalg.norm(np.square(X @ U).sum(1) - y) / np.linalg.norm(y)
        assert true <= certificate.interpolation.value <= (1 + 1e-7) * true
        details = certificate.interpolation.details
        assert details["computed"] <= details["residual"]
        assert details["residual"] <= (1 + 1e-11) * details["computed"] + 3 * details["rounding"]
        assert certificate.interpolation.verdict is Verdict.REFUSED
        assert ">" in certificate.interpolation.reason
        assert certify(LeastSquares(RankOne(X), y), U, tolerance=1e-3).interpolation.proved


# Identifiability.


def test_curvature_is_bounded_on_both_sides():
    for seed in range(6):
        d, r = [(4, 1), (5, 2), (3, 3)][seed % 3]
        objective, U = planted(seed, 4 * dimension(d, r), d, r)
        values = effective_spectrum(objective, U).values
        details = certify(objective, U).local_uniqueness.details
        assert 0.99 * values[0] <= details["lam"] <= values[0]
        assert values[-1] <= details["Lam"] <= 1.01 * values[-1]


def test_gauge_weight_does_not_matter_as_long_as_it_is_large():
    objective, U = planted(0, 40, 5, 3)
    X, _ = data(objective)
    gram = TangentGram(BoundedRankOne(X), U)
    low = float(effective_spectrum(objective, U).values[0])
    for weight in (50.0, 500.0, 5000.0):
        assert gram.proves_smallest(0.999 * low, weight)
        assert not gram.proves_smallest(1.001 * low, weight)
    assert not gram.proves_smallest(0.999 * low, 0.0)  # the gauge directions are in the kernel


@pytest.mark.parametrize("n", [1, 10, 18])
def test_too_few_measurements_are_counted(n):
    objective, U = planted(0, n, 10, 2)
    finding = certify(objective, U).identifiability
    assert finding.verdict is Verdict.REFUSED
    assert finding.details["kernel_dimension"] == 19 - n


def test_kernel_of_repeated_measurements_is_counted():
    objective, U = planted(0, 12, 5, 2)
    X, y = data(objective)
    again = np.arange(30) % 6
    finding = certify(LeastSquares(RankOne(X[again]), y[again]), U).identifiability
    assert finding.verdict is Verdict.REFUSED
    assert finding.details["kernel_dimension"] == dimension(5, 2) - 6


def test_curvature_near_rounding_is_called_numerical_or_refused():
    objective, U = planted(0, 60, 5, 2, smallest=1e-15)
    finding = certify(objective, U).identifiability
    assert finding.verdict is not Verdict.PROVED


# mu.


def test_mu_bounds_against_brute_force_on_the_circle_and_the_sphere():
    for seed in range(6):
        rng = np.random.default_rng(seed)
        d, n = 2 + seed % 2, int(rng.integers(3, 30))
        angles = np.linspace(0, math.pi, 401)
        v = np.stack([np.cos(angles), np.sin(angles)])
        if d == 3:
            tilt = np.linspace(0, math.pi, 201)
            v = np.concatenate(
                [np.sin(tilt)[None, :, None] * v[:, None, :],
                 np.broadcast_to(np.cos(tilt)[None, :, None], (1, 201, 401))]
            ).reshape(3, -1)  # fmt: skip
        X = rng.standard_normal((n, d))
        A = rng.standard_normal((n, d, d))
        A = A + A.transpose(0, 2, 1)
        for operator, values in (
            (BoundedRankOne(X), (X @ v) ** 2),
            (BoundedDense(A), np.einsum("ak,iab,bk->ik", v, A, v)),
        ):
            brute = float(np.square(values).mean(0).max())
            guess = quartic_guess(operator)
            assert proves_quartic(operator, guess.value * 1.001, guess.route, guess.parameter)
            assert guess.value >= brute * (1 - 1e-12)
            assert guess.value <= 1.5 * brute  # the relaxation is tight in few dimensions
            below, _ = quartic_below(operator)
            assert below <= guess.value
            # The grid may miss the top by its squared spacing.
            assert 0.99 * brute <= below <= brute * 1.001


@pytest.mark.parametrize("n", [4, 40])
def test_the_routes_to_mu_prove_their_own_values_only(n):
    rng = np.random.default_rng(n)
    operator = BoundedRankOne(rng.standard_normal((n, 4)))
    guess = quartic_guess(operator)
    assert guess.route == ("gram" if n <= 10 else "monomials")
    below, _ = quartic_below(operator)
    for route, parameter in (("gram", 0.0), ("gram", 0.1), ("monomials", 0.5), ("moment", 0.0)):
        assert not proves_quartic(operator, 0.999 * below, route, parameter)  # type: ignore[arg-type]
        assert proves_quartic(operator, 100 * below, route, parameter)  # type: ignore[arg-type]
    assert not proves_quartic(operator, 100 * below, "gram", 0.25)  # 1 - kd = 0
    assert not proves_quartic(operator, 100 * below, "gram", -0.1)
    assert not proves_quartic(operator, 100 * below, "other", 0.1)  # type: ignore[arg-type]


def test_mu_of_the_population_is_three():
    rng = np.random.default_rng(0)
    operator = BoundedRankOne(rng.standard_normal((200_000, 3)))
    assert quartic_guess(operator).value == pytest.approx(3, rel=0.05)


# Local uniqueness.


def test_the_constants_of_the_paper_are_reported_too():
    objective, U = planted(0, 200, 4, 2)
    details = certify(objective, U).local_uniqueness.details
    X, _ = data(objective)
    rows = (X[:, :, None] * X[:, None, :])[:, *np.triu_indices(4)]
    rows = rows * np.where(np.equal(*np.triu_indices(4)), 1.0, math.sqrt(2))
    values = np.linalg.eigvalsh(rows.T @ rows / len(X))
    signal = Signal.from_factor(U)
    paper = details["paper"]
    assert paper["m"] == pytest.approx(values[0], rel=1e-6)
    assert paper["M"] == pytest.approx(values[-1], rel=1e-6)
    assert paper["radius"] == pytest.approx(rho_star(signal, values[0], values[-1]), rel=1e-6)
    assert paper["rate"] == pytest.approx(alpha_star(signal, values[0]), rel=1e-6)
    assert paper["step"] == pytest.approx(oracle_step(signal, values[0], values[-1]), rel=1e-6)
    assert details["radius"] > 5 * paper["radius"]
    assert details["step"] > 5 * paper["step"]
    assert certify(*planted(0, 9, 4, 2)).local_uniqueness.details["paper"] is None
    assert "paper" not in certify(objective, U, compare=False).local_uniqueness.details


def test_descent_from_inside_the_certified_ball_returns():
    objective, U = planted(3, 60, 5, 2)
    certificate = certify(objective, U)
    details = certificate.local_uniqueness.details
    rng = np.random.default_rng(0)
    for _ in range(5):
        off = rng.standard_normal(U.shape)
        start = U + 0.5 * details["radius"] * off / np.linalg.norm(off)
        run = posquad.gradient_descent(
            objective, start, step=details["step"], max_steps=20_000, loss_tolerance=1e-26
        )
        assert float(procrustes_distance(run.U, U)) < 1e-10
    envelope = certificate.flow_envelope(0.5 * details["radius"], np.array([0.0, 1.0]))
    assert envelope[0] == pytest.approx(0.5 * details["radius"])
    assert envelope[1] < envelope[0]


def test_noise_that_fills_the_basin_is_refused_with_the_inequality():
    objective, U = planted(0, 60, 5, 2)
    X, y = data(objective)
    noisy = y + 3.0 * np.random.default_rng(0).standard_normal(len(y))
    certificate = certify(LeastSquares(RankOne(X), noisy), U)
    assert certificate.local_uniqueness.verdict is Verdict.REFUSED
    assert ">=" in certificate.local_uniqueness.reason
    with pytest.raises(DomainError, match="local uniqueness"):
        certificate.flow_envelope(1e-3, 1.0)


# Global uniqueness.


def test_error_bound_covers_random_matrices_and_noise():
    rng = np.random.default_rng(5)
    for seed in range(4):
        d, r = [(4, 1), (5, 2)][seed % 2]
        objective, U = planted(seed, 4 * dimension(d, r), d, r)
        X, y = data(objective)
        noisy = y + 1e-3 * rng.standard_normal(len(y))
        certificate = certify(LeastSquares(RankOne(X), noisy), U)
        assert certificate.global_uniqueness.proved
        assert not certificate.proved  # it does not interpolate
        for _ in range(200):
            F = np.hstack([U, rng.uniform(0, 0.3) * rng.standard_normal((d, 2))])
            F = F + rng.uniform(0, 0.1) * rng.standard_normal(F.shape)
            misfit = np.linalg.norm(np.square(X @ F).sum(1) - noisy) / math.sqrt(len(y))
            distance = np.linalg.norm(F @ F.T - U @ U.T)
            assert distance <= certificate.error_bound(misfit) * (1 + 1e-12)


def test_two_interpolants_are_never_called_unique():
    """Inputs on the quadric `x'(Q - Q')x = 0`: both matrices have the same responses."""
    rng = np.random.default_rng(8)
    for _ in range(10):
        d = int(rng.integers(2, 6))
        U, F = 9 * rng.standard_normal((d, 1)), rng.standard_normal((d, d))
        values, vectors = np.linalg.eigh(U @ U.T - F @ F.T)
        assert values[0] < 0 < values[-1]
        rows = rng.standard_normal((200, d))
        up, down = rows @ vectors[:, -1:], rows @ vectors[:, :-1]
        # Scale the one positive coordinate so that the form vanishes.
        need = np.sqrt(-(np.square(down) @ values[:-1, None]) / values[-1])
        X = down @ vectors[:, :-1].T + np.sign(up) * need @ vectors[:, -1:].T
        y = np.square(X @ U).sum(1)
        assert np.allclose(np.square(X @ F).sum(1), y)
        certificate = certify(LeastSquares(RankOne(X), y), U)
        assert not certificate.global_uniqueness.proved
        assert not certificate.proved
        assert math.isinf(certificate.error_bound())


def test_search_finds_a_dual_matrix_whenever_clarabel_does():
    rng = np.random.default_rng(0)
    agreed = []
    for seed in range(12):
        objective, U = planted(seed, int(rng.integers(12, 22)), 6, 2)
        X, _ = data(objective)
        best = best_smallest_eigenvalue(clarabel, X, U)
        finding = certify(objective, U, compare=False).global_uniqueness
        if best > 1e-3 or best < 1e-6:  # at the threshold itself either answer is right
            assert finding.proved == (best > 1e-3)
            agreed.append(best > 1e-3)
        if finding.proved:
            assert 0.9 * best <= finding.details["beta"] <= best * (1 + 1e-6)
    assert {True, False} <= set(agreed)


@pytest.mark.parametrize(("inputs", "factor"), [(1e4, 1.0), (1e-4, 1.0), (1.0, 1e3), (1e-3, 1e-3)])
def test_searches_do_not_depend_on_units(inputs, factor):
    """x -> c x and U -> t U: beta grows by c^2, lam by c^4 t^2, mu by c^4; gaps stay."""
    for seed in range(4):
        objective, U = planted(seed, 17, 6, 2)
        X, y = data(objective)
        scaled = LeastSquares(RankOne(inputs * X), (inputs * factor) ** 2 * y)
        plain, other = (
            certify(objective, U, compare=False),
            certify(scaled, factor * U, compare=False),
        )
        assert plain.global_uniqueness.verdict is other.global_uniqueness.verdict
        for name, value, power in (
            ("identifiability", "value", inputs**4 * factor**2),
            ("local_uniqueness", "mu", inputs**4),
            ("local_uniqueness", "value", factor),
            ("minimum_trace", "value", factor**2),
        ):
            one, two = getattr(plain, name), getattr(other, name)
            told = [f.value if value == "value" else f.details[value] for f in (one, two)]
            assert told[1] == pytest.approx(told[0] * power, rel=1e-2)
        if plain.global_uniqueness.proved:
            beta = plain.global_uniqueness.details["beta"]
            # The search stops within a twentieth of the best.
            assert other.global_uniqueness.details["beta"] == pytest.approx(
                beta * inputs**2, rel=0.06
            )


def best_smallest_eigenvalue(clarabel, X, U) -> float:
    """max s with `V'A*(z)V >= s I`, `A*(z)U = 0`, `||z|| <= 1`, by Clarabel."""
    n = len(X)
    V = scipy.linalg.null_space(U.T)
    K = (X[:, :, None] * (X @ U)[:, None, :]).reshape(n, -1)
    N = scipy.linalg.null_space(K.T)
    k, m = N.shape[1], V.shape[1]
    if k == 0:
        return 0.0
    i, j = np.triu_indices(m)
    order = np.lexsort((i, j))
    i, j = i[order], j[order]
    scale = np.where(i == j, 1.0, math.sqrt(2))
    inside = X @ V
    rows = (N.T @ (inside[:, i] * inside[:, j] * scale)).T  # [m(m+1)/2, k]
    eye = ((i == j) * 1.0)[:, None]
    psd = np.hstack([-rows, eye])
    ball = np.vstack([np.zeros((1, k + 1)), np.hstack([-np.eye(k), np.zeros((k, 1))])])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    solver = clarabel.DefaultSolver(
        scipy.sparse.csc_matrix((k + 1, k + 1)),
        np.append(np.zeros(k), -1.0),
        scipy.sparse.csc_matrix(np.vstack([psd, ball])),
        np.concatenate([np.zeros(len(i)), [1.0], np.zeros(k)]),
        [clarabel.PSDTriangleConeT(m), clarabel.SecondOrderConeT(k + 1)],
        settings,
    )
    return float(solver.solve().x[-1])


def test_dual_proof_against_hand_made_wrong_vectors():
    objective, U = planted(0, 40, 5, 1)
    X, _ = data(objective)
    certificate = certify(objective, U)
    operator, z = BoundedRankOne(X), certificate.witness.z
    beta = certificate.claims.beta
    lam, mu = certificate.claims.lam, certificate.claims.mu
    assert proves_dual(operator, U, z, beta, lam, mu)
    assert not proves_dual(operator, U, z, beta * 1.01, lam, mu)
    assert not proves_dual(operator, U, -z, beta, lam, mu)
    assert not proves_dual(operator, U, np.ones(40) / math.sqrt(40), beta, lam, mu)  # A*(z)U != 0
    # Its own matrix X'X is far above 1; the one of its projection, which counts, is not.
    assert np.linalg.eigvalsh(X.T @ X)[0] > 10
    assert not proves_dual(operator, U, np.ones(40), 1.0, lam, mu)
    assert not proves_dual(operator, U, 0 * z, beta, lam, mu)
    assert not proves_dual(operator, U, z, beta, 0.0, mu)
    assert not proves_dual(operator, U, z * 1e-300, beta, lam, mu)
    # A little off: true still, with a slightly smaller beta, and proved so.
    off = z + 1e-4 * np.random.default_rng(0).standard_normal(40) / math.sqrt(40)
    assert not proves_dual(operator, U, off, beta, lam, mu)
    assert proves_dual(operator, U, off, 0.99 * beta, lam, mu)


def test_full_rank_needs_no_dual_matrix():
    objective, U = planted(0, 30, 3, 3)
    certificate = certify(objective, U)
    assert certificate.proved
    assert certificate.witness.z is None


def test_larger_problems_take_the_other_routes(monkeypatch):
    """The branches for large problems, at a size at which they can be compared."""
    objective, U = planted(0, 120, 10, 2)
    reference = certify(objective, U, compare=False)
    from posquad.certificates.search import curvature, dual

    monkeypatch.setattr(dual, "_NEWTON_LIMIT", 10)
    monkeypatch.setattr(curvature, "_GRAM_LIMIT", 10)
    monkeypatch.setattr(curvature, "_DENSE", 5)
    large = certify(objective, U, compare=False)
    assert large.proved
    assert large.claims.route == "moment"
    assert large.claims.lam == pytest.approx(reference.claims.lam, rel=1e-2)
    assert large.global_uniqueness.value >= reference.global_uniqueness.value * 0.99
    assert verify(objective, large).valid
    few = [certify(*planted(seed, 38, 10, 2), compare=False) for seed in range(12)]
    alternated = [c for c in few if c.global_uniqueness.details["method"].startswith("alternating")]
    assert any(c.proved for c in alternated)


# Minimum trace.


def test_trace_dual_agrees_with_clarabel():
    for seed in range(8):
        rng = np.random.default_rng(seed)
        d, n = [(4, 5), (6, 9), (10, 20)][seed % 3]
        X = rng.standard_normal((n, d))
        F = rng.standard_normal((d, 2))
        y = np.square(X @ F).sum(1)
        dual = barrier_dual(BoundedRankOne(X), y, float(np.square(F).sum()))
        reference = minimum_trace_interpolant(X[:, :, None] * X[:, None, :], y)
        assert float(y @ dual) == pytest.approx(reference.value, rel=1e-6)


def test_minimum_trace_is_proved_where_the_answer_is_not_unique():
    """Diagonal measurements of experiment 6: many interpolants, a segment of least trace."""
    weights = np.array([1, 1, 2, 3])
    blocks = np.repeat(np.eye(4), weights, axis=0)  # [7, 4]
    B = np.array([[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    A = np.stack([np.diag(blocks @ (row / weights)) for row in B])
    objective = LeastSquares(Dense(A), np.array([1.0, 0.3]))
    best = np.diag(np.sqrt(blocks @ np.array([0.35, 0.35, 0.3, 0.0])))[:, :4]
    certificate = certify(objective, best)
    assert certificate.minimum_trace.verdict is Verdict.PROVED
    assert certificate.minimum_trace.value == pytest.approx(1.3)
    assert certificate.identifiability.verdict is Verdict.REFUSED
    assert verify(objective, certificate).valid
    worse = np.diag(np.sqrt(blocks @ np.array([0.4, 0.4, 0.2, 0.1])))
    finding = certify(objective, worse).minimum_trace
    assert finding.verdict is Verdict.REFUSED
    assert finding.details["gap"] == pytest.approx(1.5 / 1.3 - 1, rel=1e-6)


def test_trace_gap_of_an_answer_that_is_not_the_least_one():
    objective, U = planted(0, 9, 6, 2)
    X, y = data(objective)
    finding = certify(objective, U).minimum_trace
    least = minimum_trace_interpolant(X[:, :, None] * X[:, None, :], y).value
    assert finding.verdict is Verdict.REFUSED
    assert finding.details["gap"] == pytest.approx(1.5 / least - 1, rel=1e-4)


# Bad input.


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda o, U: (PopulationRisk(U), U), DtypeError),
        (lambda o, U: ("objective", U), DtypeError),
        (lambda o, U: (o, np.stack([U, U])), DomainError),
        (lambda o, U: (o, U[:3]), ShapeError),
        (lambda o, U: (o, np.hstack([U, U, U])), ShapeError),
        (lambda o, U: (o, U * math.nan), ValueError),
        (lambda o, U: (LeastSquares(RankOne(o.measurements.X[None]), o.y[None]), U), DomainError),
        (lambda o, U: (LeastSquares(posquad.GaussianPopulation(5), np.ones(16)), U), DtypeError),
    ],
)
def test_bad_input_is_refused_before_any_work(change, error):
    objective, U = planted(0, 30, 5, 2)
    with pytest.raises(error):
        certify(*change(objective, U))


def test_bad_settings_are_refused():
    objective, U = planted(0, 30, 5, 2)
    for settings in ({"tolerance": 0.0}, {"trace_tolerance": -1.0}, {"seed": -1}):
        with pytest.raises(DomainError):
            certify(objective, U, **settings)
    with pytest.raises(DomainError, match="misfit"):
        certify(objective, U).error_bound(-1.0)


def test_zero_responses_and_extreme_scales_prove_nothing_false():
    objective, U = planted(0, 30, 4, 1)
    X, _ = data(objective)
    zero = certify(LeastSquares(RankOne(X), np.zeros(30)), U)
    assert not zero.interpolation.proved
    huge = certify(LeastSquares(RankOne(X * 1e30), np.square(X * 1e30 @ U).sum(1)), U)
    assert not huge.proved
    assert isinstance(huge, Certificate)


@pytest.mark.parametrize(
    ("x", "u", "y"), [(1e-21, 1.0, 1.0), (1e80, 1.0, 1.0), (1e150, 1.0, 1.0), (1.0, 1e-30, 1.0),
                      (1.0, 0.0, 1.0), (1.0, 1.0, 1e170), (1.0, 1.0, 1e300)]
)  # fmt: skip
def test_scales_without_rounding_bounds_are_named(x, u, y):
    objective, U = planted(0, 30, 4, 1)
    X, values = data(objective)
    certificate = certify(LeastSquares(RankOne(X * x), values * y), U * u)
    for name in posquad.certificates.FINDINGS:
        finding = getattr(certificate, name)
        assert finding.verdict is Verdict.REFUSED
        assert finding.reason.startswith("outside the range in which the rounding bounds hold")
    assert posquad.certificates.proved_constants(objective, U) is not None
    if y == 1.0:
        scaled = LeastSquares(RankOne(X * x), values)
        assert posquad.certificates.proved_constants(scaled, U * u) is None


def test_a_factor_without_full_rank_is_refused_in_words():
    objective, U = planted(0, 30, 5, 2)
    certificate = certify(objective, np.hstack([U, U[:, :1] - U[:, 1:]]))
    assert "full column rank" in certificate.identifiability.reason
    assert not any(
        getattr(certificate, name).proved
        for name in ("identifiability", "local_uniqueness", "global_uniqueness")
    )
    twice = certify(objective, np.hstack([U, U]) / math.sqrt(2))  # the answer itself, as a matrix
    assert twice.interpolation.proved
    assert not twice.proved


def test_what_measures_something_else_is_not_read():
    """A subclass may override what `certify` reads from the arrays."""

    class Other(RankOne):
        def apply(self, Q):
            return 2 * super().apply(Q)

    objective, U = planted(0, 30, 5, 2)
    X, y = data(objective)
    with pytest.raises(DtypeError):
        certify(LeastSquares(Other(X), y), U)


def light_cone(off):
    """Integer points with `c^2 = a^2 + b^2`, moved by `off`: e3 and [e1, e2] measure alike."""
    side = range(-40, 41)
    points = [(a, b, math.isqrt(a * a + b * b)) for a in side for b in side if a or b]
    X = np.array([(a, b, c) for a, b, c in points if c * c == a * a + b * b], float)
    assert len(X) == 312
    X = X + off * np.random.default_rng(0).standard_normal(X.shape)
    U, F = np.eye(3)[:, 2:], np.eye(3)[:, :2]
    return LeastSquares(RankOne(X), np.square(X @ U).sum(1)), U, F


@pytest.mark.parametrize("off", [1e-10, 1e-9, 1e-8])
def test_of_two_matrices_that_fit_to_the_tolerance_neither_is_called_the_answer(off):
    objective, U, F = light_cone(off)
    one, two = certify(objective, U, compare=False), certify(objective, F, compare=False)
    assert one.interpolation.proved
    assert not two.proved
    distance = math.sqrt(3)
    for certificate in (one, two):
        if certificate.global_uniqueness.proved:
            assert not verify(objective, certificate).proved
            assert certificate.error_bound(certificate.global_uniqueness.details["residual"]) > 0
    if one.proved and two.proved:
        stated = [c.global_uniqueness.details["within"] for c in (one, two)]
        assert distance <= sum(stated)
    assert two.global_uniqueness.proved or off < 1e-9  # the example is one
    if two.global_uniqueness.proved:
        within = two.global_uniqueness.details["within"]
        assert within >= distance
        assert f"lies within {within:.1e} of it, more than" in str(two)


def test_the_headline_states_its_bound():
    objective, U = planted(0, 40, 5, 2)
    certificate = certify(objective, U)
    details = certificate.global_uniqueness.details
    assert details["within"] == pytest.approx(2 * certificate.error_bound(0.0), rel=1e-9)
    assert details["size"] <= np.linalg.norm(U @ U.T) <= math.sqrt(2) * details["size"]
    head = str(certificate).splitlines()[0]
    assert head.endswith(f"fits as well lies within {details['within']:.1e} of it")


def test_local_numbers_are_rounded_outward():
    objective, U = planted(0, 40, 5, 2)
    certificate = certify(objective, U)
    claims, details = certificate.claims, certificate.local_uniqueness.details
    lam, Lam, mu = (Fraction(x) for x in (claims.lam, claims.Lam, claims.mu))
    with mpmath.workdps(40):
        root = mpmath.sqrt(mpmath.mpf(claims.lam) / claims.mu)
        assert details["radius"] <= root / 2
        exact = mpmath.sqrt(claims.Lam) + mpmath.sqrt(claims.lam) / 2
        assert details["step"] <= 1 / exact**2 * 2 / 3
        for part in (0.0, 1e-9, 0.3, 0.9, 1 - 1e-9):
            distance = part * details["radius"]
            for t in (0.0, 1e-3, 1.0, 50.0, 1e6):
                delta = mpmath.mpf(distance) / root
                g = delta * (1 - delta) / (1 - 2 * delta) ** 2
                h = 4 * g * mpmath.exp(-mpmath.mpf(claims.lam) * t)
                small = h / (2 * mpmath.sqrt(1 + h) * (1 + mpmath.sqrt(1 + h))) * root
                above = float(certificate.flow_envelope(distance, t))
                assert small <= above
                assert above <= small * (1 + 1e-4) + 1e-280
    assert Fraction(details["secant"]) <= lam * Fraction(3, 8)
    assert Fraction(details["rate"]) <= lam
    assert Fraction(details["step_limit"]) <= 1 / Lam
    assert Fraction(details["mu"]) >= mu
    assert details["theta"] == 0.25  # the sentence of a refusal has it worked in


def test_a_residual_that_cannot_be_bounded_proves_nothing():
    objective, U = planted(0, 40, 5, 2)
    X, y = data(objective)
    certificate = certify(objective, U)
    claims = replace(certificate.claims, residual=math.inf)
    found = proved_conclusions(BoundedRankOne(X), y, certificate.witness, claims)
    assert found.constant is not None
    for finding in (
        words.interpolation(found, math.inf, {}),
        words.local_uniqueness(found, {}),
        words.global_uniqueness(found, claims.beta, None),
    ):
        assert finding.verdict is Verdict.REFUSED
        assert finding.reason == "no upper bound on the residual could be proved"


def test_ctrl_c_carries_a_certificate_that_proves_nothing(monkeypatch):
    X = np.random.default_rng(0).standard_normal((30, 4))
    u = np.array([[1.0], [2.0], [0.0], [-1.0]])
    objective = LeastSquares(RankOne(X), (X @ u)[:, 0] ** 2)

    def press(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(certifier, "_search", press)
    with pytest.raises(Interrupted) as stop:
        certify(objective, u)
    assert not stop.value.result.proved
    assert "interrupted" in stop.value.result.interpolation.reason
