"""Finite steps: the recursion written out and on full matrices; every constant recomputed."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import scipy.optimize
import torch

import posquad
from posquad.core.errors import DomainError, InfeasibleError, NonFiniteError, ShapeError
from posquad.core.status import Status
from posquad.selection import (
    bregman_divergence,
    bregman_projection,
    commuting_family,
    descent_constants,
    descent_limit,
    descent_observables,
    descent_path,
    joint_spectral_reduction,
)
from selection_support import PAPER
from support import rotation

ONE = (np.array([[1.0]]), np.array([1.0]), np.array([1]))


def random_system(
    seed: int, n: int, m: int, *, redundant: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(B, y, d) and a feasible point p of moderate size."""
    rng = np.random.default_rng(seed)
    B = rng.normal(size=(n, m))
    if redundant:
        B = np.vstack([B, B[:1] - B[-1:], 2 * B[:1]])
    p = rng.uniform(0.5, 1.5, m)
    return B, B @ p, rng.integers(1, 4, m), p


def near(p: np.ndarray, seed: int, spread: float = 0.3) -> np.ndarray:
    """A start within some tens of percent of p, where the theorem's steps are not tiny."""
    return p * np.exp(spread * np.random.default_rng(seed).normal(size=p.shape))


def recursion(system, q, step: float, count: int) -> np.ndarray:
    """`eq:reduced-predictor-gradient-descent` in plain NumPy: all iterates, [count + 1, m]."""
    B, y, d = system
    path = [q]
    for _ in range(count):
        q = q * (1 - 2 * step / d * (B.T @ (B @ q - y)) / len(y)) ** 2
        path.append(q)
    return np.array(path)


CASES = {
    "paper": (PAPER, np.full(4, 0.04)),
    "generic": (random_system(1, 2, 5)[:3], near(random_system(1, 2, 5)[3], 1)),
    "redundant": (
        random_system(2, 2, 4, redundant=True)[:3],
        near(random_system(2, 2, 4, redundant=True)[3], 2),
    ),
    "scalar": ((np.array([[2.0]]), np.array([3.0]), np.array([4])), np.array([0.1])),
}


@pytest.mark.parametrize("name", CASES)
def test_limit_against_the_long_recursion(name):
    system, q0 = CASES[name]
    steps = np.array([0.2, 0.1, 0.01])
    limit = descent_limit(*system, q0, steps)  # vectorised over the steps
    assert limit.status == [Status.LOSS_REACHED] * 3
    assert limit.q.shape == (3, len(q0))
    for k, step in enumerate(steps):
        path = recursion(system, q0, step, 4 * int(limit.steps[k]) + 50)
        assert np.linalg.norm(path[-1] @ system[0].T - system[1]) < 1e-13 * len(q0)
        # Some thousand multiplications by factors near one, each with a rounding error or two.
        np.testing.assert_allclose(limit.q[k], path[-1], rtol=1e-11)
        single = descent_limit(*system, q0, step)
        np.testing.assert_allclose(single.q, limit.q[k], rtol=1e-13)
        assert int(single.steps) == int(limit.steps[k])


@pytest.mark.parametrize("redundant", [False, True])
def test_limit_against_descent_on_full_matrices(rng, redundant):
    B, y, d, p = random_system(3, 2, 4, redundant=redundant)
    q0 = near(p, 3)
    A = commuting_family(B, d, seed=5)
    reduction = joint_spectral_reduction(A)
    # The reduction orders the joint eigenspaces itself; columns of coefficients identify them.
    gaps = np.abs((B / d)[:, :, None] - reduction.coefficients[:, None, :]).max(0)
    order = gaps.argmin(0)
    assert sorted(order) == list(range(len(d)))
    root = torch.from_numpy(reduction.predictor(np.sqrt(q0[order])))
    starts = torch.stack([root, root @ rotation(rng, len(root), reflect=True)])
    objective = posquad.LeastSquares(posquad.Dense(torch.from_numpy(A)), torch.from_numpy(y))
    full = posquad.gradient_descent(
        objective, starts, step=0.05, max_steps=3000, record_every=3000, loss_tolerance=1e-29
    )
    Q = (full.U @ full.U.mT).numpy()
    limit = descent_limit(B, y, d, q0, 0.05)
    # A loss of 1e-29 is a residual of 1e-14, times the conditioning of the system.
    expected = np.broadcast_to(limit.q[order], (2, len(d)))
    np.testing.assert_allclose(reduction.coordinates(Q), expected, rtol=1e-10)


def test_experiment_6_first_order_error():
    """q0 = 0.2^2 and steps 1/2 .. 1/256: both fits of the notes on the paper's numbers."""
    q0, steps = np.full(4, 0.2**2), 0.5 ** np.arange(1.0, 9.0)
    limit = descent_limit(*PAPER, q0, steps)
    assert limit.status == [Status.LOSS_REACHED] * 8
    assert (limit.q > 0).all()
    errors = np.linalg.norm(limit.q - bregman_projection(*PAPER, q0).q, axis=-1)
    for window, slope, r2 in ((slice(2, 8), 0.99094, 0.999981), (slice(0, 8), 0.97478, 0.99973)):
        x, z = np.log(steps[window]), np.log(errors[window])
        fitted, correlation = np.polyfit(x, z, 1)[0], np.corrcoef(x, z)[0, 1]
        assert fitted == pytest.approx(slope, abs=5e-6)
        assert correlation**2 == pytest.approx(r2, abs=1e-5)


def test_error_is_first_order_in_the_step():
    B, y, d, p = random_system(4, 3, 7)
    q0, steps = near(p, 4), 0.02 * 0.5 ** np.arange(5)
    errors = descent_limit(B, y, d, q0, steps).q - bregman_projection(B, y, d, q0).q
    orders = np.log2(np.linalg.norm(errors[:-1], axis=-1) / np.linalg.norm(errors[1:], axis=-1))
    # The next term is of relative order eta, so each halving halves the distance of the order to 1.
    np.testing.assert_allclose(orders, 1.0, atol=0.07)
    assert abs(orders[-1] - 1) < abs(orders[0] - 1)


@pytest.mark.parametrize("name", CASES)
def test_path_and_observables(name):
    system, q0 = CASES[name]
    B, y, d = system
    steps, count = np.array([0.05, 0.1]), 12
    path = descent_path(*system, q0, steps, steps=count)
    assert path.shape == (count + 1, 2, len(q0))
    expected = np.stack([recursion(system, q0, step, count) for step in steps], axis=1)
    np.testing.assert_allclose(path, expected, rtol=1e-12)
    p = bregman_projection(*system, q0).q
    seen = descent_observables(*system, path, steps, p)
    residual = expected @ B.T - y
    divergences = (d * (p * np.log(p / expected) - p + expected)).sum(-1) / 4
    loss = (residual**2).sum(-1) / (2 * len(y))
    drop = divergences[:-1] - divergences[1:]
    margin = drop - steps / (2 * len(y)) * (residual[:-1] ** 2).sum(-1)
    np.testing.assert_allclose(seen.smallest, expected.min(-1), rtol=1e-12)
    np.testing.assert_allclose(seen.divergence, divergences, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(seen.loss, loss, rtol=1e-9, atol=1e-28)
    np.testing.assert_allclose(seen.descent_margin, margin, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(seen.contraction, seen.loss[1:] / seen.loss[:-1], rtol=1e-14)
    np.testing.assert_array_equal(descent_path(*system, q0, 0.1, steps=0), q0[None])


def exact_constants(system, q0, p) -> tuple[float, float, float]:
    """(lower, upper, q_hat) of the two level sets by Lambert W at 60 digits."""
    _, _, d = system
    with mpmath.workdps(60):
        P, D, Q = ([mpmath.mpf(float(v)) for v in vector] for vector in (p, d, q0))
        level = sum(a * (b * mpmath.log(b / c) - b + c) for a, b, c in zip(D, P, Q, strict=True))
        args = [-mpmath.exp(-1 - level / (a * b)) for a, b in zip(D, P, strict=True)]
        lower = min(-b * mpmath.lambertw(x).real for b, x in zip(P, args, strict=True))
        upper = max(-b * mpmath.lambertw(x, -1).real for b, x in zip(P, args, strict=True))
        forward = max(
            c * mpmath.exp(1 + mpmath.lambertw((level / (a * c) - 1) / mpmath.e).real)
            for a, c in zip(D, Q, strict=True)
        )
        return float(lower), float(upper), float(max(upper, forward))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("default", [True, False])
def test_constants_recomputed(name, default):
    system, q0 = CASES[name]
    B, y, d = system
    p = bregman_projection(*system, q0 if default else np.ones_like(q0)).q
    constants = descent_constants(*system, q0, reference=None if default else p)
    lower, upper, q_hat = exact_constants(system, q0, p)
    # The level is a sum of m terms; its relative rounding error times 4 level / (d p) <= 1e3 is the
    # relative error of the smallest coordinate.
    assert constants.lower == pytest.approx(lower, rel=1e-10)
    assert constants.upper == pytest.approx(upper, rel=1e-12)
    assert constants.q_hat == pytest.approx(q_hat, rel=1e-12)
    n, sigma = len(y), np.linalg.svd(B, compute_uv=False)
    smallest = sigma[np.linalg.matrix_rank(B) - 1]
    remainder = ((2 * p + upper) / d).max()
    rate = 4 * lower * smallest**2 / (n * d.max())
    loss = ((B @ q0 - y) ** 2).sum() / (2 * n)
    assert abs(constants.C_0 - remainder) < 1e-12 * remainder
    assert constants.residual_rate == pytest.approx(rate, rel=1e-9)
    assert constants.contraction_slope == pytest.approx(rate, rel=1e-9)
    assert constants.loss == pytest.approx(loss, rel=1e-12)
    thresholds = (
        d.min() / (4 * constants.G_0),
        n / (2 * remainder * sigma[0] ** 2),
        2 * n * lower * d.min() ** 2 / (25 * upper**2 * d.max() * sigma[0] ** 2),
        1 / rate,
    )
    assert constants.thresholds == pytest.approx(thresholds, rel=1e-9)
    # |q - p|^2 <= 2 upper^2 on the level set, so that the third term is below all others.
    assert constants.eta_0 == constants.thresholds[2] == min(constants.thresholds)
    slope = 4 * q_hat * d.max() / (d.min() ** 2 * lower) * loss
    assert constants.error_slope == pytest.approx(slope, rel=1e-9)
    assert constants.error_bound(constants.eta_0) == pytest.approx(slope * constants.eta_0)


@pytest.mark.parametrize("name", CASES)
def test_gradient_bound_is_the_maximum(name):
    """G_0 against SLSQP in the convex variables q / p, over every coordinate and both signs."""
    system, q0 = CASES[name]
    B, y, d = system
    p = bregman_projection(*system, q0).q
    G_0 = descent_constants(*system, q0).G_0
    level = float(bregman_divergence(p, q0, d))
    M = B.T @ B / len(y)
    best = 0.0
    for row in np.concatenate([M, -M]):
        found = scipy.optimize.minimize(
            lambda x, c=row * p: -c @ x,
            np.zeros(len(p)),
            jac=lambda x, c=row * p: -c,
            method="SLSQP",
            bounds=[(-0.9999, None)] * len(p),
            constraints={
                "type": "ineq",
                "fun": lambda x: 1 - (d * p) @ (x - np.log1p(x)) / (4 * level),
                "jac": lambda x: -(d * p) * x / (1 + x) / (4 * level),
            },
            options={"ftol": 1e-13, "maxiter": 1000},
        )
        best = max(best, -found.fun)
    assert best == pytest.approx(G_0, rel=1e-5)
    # No point of the level set exceeds it: random directions, in log q, to the boundary.
    for v in np.random.default_rng(0).normal(size=(300, len(p))):

        def spent(t: float, v=v) -> float:
            return float((d * p) @ (np.expm1(t * v) - t * v) / 4 - level)

        high = 1.0
        while spent(high) < 0:
            high *= 2
        t = scipy.optimize.brentq(spent, 0.0, high)
        assert np.abs(M @ (p * np.expm1(t * v))).max() <= G_0 * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [1.0, 0.2])
def test_the_theorems_hold_below_the_threshold(seed, share):
    B, y, d, p = random_system(20 + seed, 2, 5, redundant=seed % 2 == 1)
    q0 = near(p, seed, 0.1)
    constants = descent_constants(B, y, d, q0, reference=p)
    step = share * constants.eta_0
    path = descent_path(B, y, d, q0, step, steps=200)
    seen = descent_observables(B, y, d, path, step, p)
    assert (seen.smallest >= constants.lower).all()
    assert path.max() <= constants.upper
    assert (seen.divergence <= seen.divergence[0]).all()
    rounding = 1e-15 * float((d * p).sum())
    assert (seen.descent_margin >= -rounding).all()
    assert (seen.contraction <= 1 - constants.contraction_slope * step + 1e-12).all()


@pytest.mark.parametrize("seed", range(4))
def test_the_selection_error_is_below_its_bound(seed):
    B, y, d, p = random_system(20 + seed, 2, 5, redundant=seed % 2 == 1)
    q0 = near(p, seed, 0.1)
    constants = descent_constants(B, y, d, q0)
    limit = descent_limit(B, y, d, q0, constants.eta_0)
    assert limit.status is Status.LOSS_REACHED
    assert (limit.q > 0).all()
    error = np.linalg.norm(limit.q - bregman_projection(B, y, d, q0).q)
    assert 0 < error <= constants.error_bound(constants.eta_0)
    np.testing.assert_allclose(B @ limit.q, y, atol=1e-13)


def test_constants_at_the_solution():
    """At q0 = p every level is zero: nothing moves and the first threshold is infinite."""
    B, y, d, p = random_system(1, 2, 5)
    constants = descent_constants(B, y, d, p, reference=p)
    assert constants.lower == p.min()
    assert constants.upper == constants.q_hat == p.max()
    assert constants.G_0 < 1e-15
    assert constants.error_slope < 1e-25
    # n = d = p = |B| = 1 and lower = upper = p: C_0 = 3, and the rate is 4.
    still = descent_constants(*ONE, np.ones(1))
    assert still.thresholds[0] > 1e50
    assert still.thresholds[1:] == pytest.approx((1 / 6, 2 / 25, 1 / 4), rel=1e-14)


def test_constants_of_a_small_start_are_returned():
    """From eps = 1e-6 the lower bound is below every float: steps of the theorem are zero."""
    constants = descent_constants(*PAPER, np.full(4, 1e-12))
    assert constants.lower < 1e-300
    assert constants.eta_0 < 1e-300
    assert constants.upper > 0.3


def test_ends_that_are_not_limits():
    # 1 - 2 eta (q - 1) vanishes at q = 2, eta = 1/2: the factor is lost.
    lost = descent_limit(*ONE, np.array([2.0]), 0.5)
    assert lost.status is Status.RANK_LOST
    assert lost.q[0] == 0.0
    diverged = descent_limit(*ONE, np.array([2.0]), 5.0)
    assert diverged.status is Status.DIVERGED
    # |1 - 4 eta| > 1 at the solution: the iteration cycles.
    cycling = descent_limit(*ONE, np.array([2.0]), 0.6, max_steps=200)
    assert cycling.status is Status.STEPS_EXHAUSTED
    assert int(cycling.steps) == 200
    assert float(cycling.residual) == pytest.approx(abs(float(cycling.q[0]) - 1))
    # In one batch with a convergent one, each ends for its own reason.
    mixed = descent_limit(*ONE, np.array([2.0]), np.array([0.5, 5.0, 0.1]))
    assert mixed.status == [Status.RANK_LOST, Status.DIVERGED, Status.LOSS_REACHED]
    assert mixed.q[2, 0] == pytest.approx(1.0, rel=1e-14)


def test_a_coordinate_lost_at_an_interpolant_is_lost():
    """(1, 4) -> (0, 1) in one exact step of 1/8: it interpolates, and is no interior limit."""
    limit = descent_limit(
        np.array([[1.0, 1.0]]), np.ones(1), np.array([1, 2]), np.array([1.0, 4.0]), 1 / 8
    )
    assert limit.status is Status.RANK_LOST
    np.testing.assert_array_equal(limit.q, [0.0, 1.0])


@pytest.mark.parametrize(
    ("B", "y", "q0", "step", "count", "status"),
    [
        # Far above y: the loss only falls, but slowly at a step that is small enough there.
        ([[1.0, 1.0]], [1.0], [1e7, 1e7], 1e-8, 10, Status.STEPS_EXHAUSTED),
        # y = 0 has no relative residual of its own.
        ([[1.0, -1.0]], [0.0], [1.0, 1.2], 0.1, 3000, Status.LOSS_REACHED),
    ],
    ids=["far", "zero"],
)
def test_descent_that_converges_is_not_called_divergent(B, y, q0, step, count, status):
    system = (np.array(B), np.array(y), np.ones(2))
    path = recursion(system, np.array(q0), step, count)
    losses = ((path @ system[0].T - system[1]) ** 2).sum(-1)
    assert (np.diff(losses) <= 0).all()
    limit = descent_limit(*system, np.array(q0), step, max_steps=count)
    assert limit.status is status
    np.testing.assert_allclose(limit.q, path[-1], rtol=1e-11)


def test_batches_progress_and_kinds():
    B, y, d = PAPER
    q0 = np.full((3, 1, 4), 0.04) * np.array([1.0, 2.0, 3.0])[:, None, None]
    calls = []
    limit = descent_limit(B, y, d, q0, np.array([0.1, 0.03]), progress=lambda *a: calls.append(a))
    assert limit.q.shape == (3, 2, 4)
    assert limit.residual.shape == limit.steps.shape == (3, 2)
    np.testing.assert_allclose(limit.q[2, 1], descent_limit(B, y, d, q0[2, 0], 0.03).q, rtol=1e-13)
    # At the first look past every thousand steps.
    assert [step // 1000 for step, _ in calls] == list(range(1, int(limit.steps.max()) // 1000 + 1))
    assert calls
    assert all(0 < residual < 1 for _, residual in calls)
    tensor = descent_limit(*(torch.as_tensor(v) for v in (B, y, d, q0[0, 0])), 0.1)
    assert isinstance(tensor.q, torch.Tensor)
    np.testing.assert_allclose(tensor.q.numpy(), limit.q[0, 0], rtol=1e-13)
    path = descent_path(*(torch.as_tensor(v) for v in (B, y, d, q0[0, 0])), 0.1, steps=2)
    assert isinstance(path, torch.Tensor)


def test_empty_batch():
    assert descent_path(*PAPER, np.ones((0, 4)), 0.1, steps=2).shape == (3, 0, 4)
    assert descent_limit(*PAPER, np.ones((0, 4)), 0.1).q.shape == (0, 4)


BAD_SYSTEM = [
    ({"q0": np.array([1.0, 0.0, 1.0, 1.0])}, DomainError, "q0"),
    ({"q0": np.ones(3)}, ShapeError, "q0"),
    ({"q0": np.full(4, np.nan)}, NonFiniteError, "q0"),
    ({"y": np.ones(3)}, ShapeError, "y"),
    ({"B": np.ones((2, 4))}, InfeasibleError, "y"),
    ({"multiplicities": np.array([1, 1, 0, 1])}, DomainError, "multiplicities"),
]
BAD_STEP = [
    ({"step": 0.0}, DomainError, "step"),
    ({"step": np.array([0.1, -0.1])}, DomainError, "step"),
    ({"step": float("inf")}, NonFiniteError, "step"),
    ({"step": np.ones(3), "q0": np.ones((2, 4))}, ShapeError, "q0, step"),
]


@pytest.mark.parametrize(
    ("function", "changed", "error", "named"),
    [
        *((descent_limit, *case) for case in [*BAD_SYSTEM, *BAD_STEP]),
        *((descent_path, *case) for case in [*BAD_SYSTEM, *BAD_STEP]),
        *((descent_constants, *case) for case in BAD_SYSTEM),
        (descent_limit, {"max_steps": 0}, DomainError, "max_steps"),
        (descent_path, {"steps": -1}, DomainError, "steps"),
        (descent_path, {"steps": 1.5}, DomainError, "steps"),
        (descent_constants, {"q0": np.ones((2, 4))}, ShapeError, "q0"),
        (descent_constants, {"y": np.array([[1.0, 0.3]])}, ShapeError, "y"),
        (descent_constants, {"reference": np.ones(4)}, DomainError, "reference"),
        (descent_constants, {"reference": np.ones(3)}, ShapeError, "reference"),
        (descent_constants, {"reference": np.array([0.7, 0, 0.3, 0])}, DomainError, "reference"),
        (
            descent_constants,
            {"reference": np.array([[0.4, 0.4, 0.2, 0.1], [0.3, 0.5, 0.2, 0.1]])},
            ShapeError,
            "reference",
        ),
    ],
)
def test_bad_input_is_refused(function, changed, error, named):
    B, y, d = PAPER
    arguments = {"B": B, "y": y, "multiplicities": d, "q0": np.full(4, 0.1)}
    if function is not descent_constants:
        arguments["step"] = 0.1
    if function is descent_path:
        arguments["steps"] = 3
    with pytest.raises(error, match=rf"^{named}: expected .*; got"):
        function(**arguments | changed)


@pytest.mark.parametrize(
    ("changed", "error", "named"),
    [
        ({"path": np.ones(4)}, ShapeError, "path"),
        ({"path": np.ones((3, 5))}, ShapeError, "path"),
        ({"path": np.full((3, 4), np.nan)}, NonFiniteError, "path"),
        ({"step": -0.1}, DomainError, "step"),
        ({"step": np.ones(7)}, ShapeError, "path, step"),
        ({"reference": np.zeros(4)}, DomainError, "reference"),
        ({"reference": np.ones(4)}, DomainError, "reference"),  # Bp != y
    ],
)
def test_bad_observables_are_refused(changed, error, named):
    reference = np.array([0.4, 0.4, 0.2, 0.1])
    arguments = {"path": np.ones((3, 2, 4)), "step": 0.1, "reference": reference}
    with pytest.raises(error, match=rf"^{named}"):
        descent_observables(*PAPER, **arguments | changed)


def test_error_bound_is_refused_above_the_threshold():
    constants = descent_constants(*PAPER, np.array([0.4, 0.3, 0.2, 0.1]))
    for step in (1.01 * constants.eta_0, 0.0, -1.0, float("nan")):
        with pytest.raises(DomainError, match=r"^step: expected .*; got"):
            constants.error_bound(step)


def test_an_unstable_interpolant_is_no_limit():
    """From q = 1 + 1e-10 with step 2 the recursion runs away from the solution it starts at."""
    one = np.ones(1)
    limit = descent_limit(one[None], one, one, one + 1e-10, 2.0)
    assert limit.status is Status.DIVERGED
    path = descent_path(one[None], one, one, one + 1e-10, 2.0, steps=20)
    assert abs(path[-1, 0] - 1) > 1e-3
    stable = descent_limit(one[None], one, one, one + 1e-10, 0.4)  # 4 eta < 2
    assert stable.status is Status.LOSS_REACHED


def test_a_reference_that_misses_says_by_how_much():
    """Bp - y = 1/2 of |B|p + |y| = 5/2."""
    with pytest.raises(DomainError, match=r"relative misfit 2\.000e-01"):
        descent_constants(*ONE, np.ones(1), reference=np.array([1.5]))
    # A billionth of |B|p + |y| = 2 is forgiven.
    descent_constants(*ONE, np.ones(1), reference=np.array([1 + 1.9e-9]))
    with pytest.raises(DomainError, match="reference"):
        descent_constants(*ONE, np.ones(1), reference=np.array([1 + 2.1e-9]))
