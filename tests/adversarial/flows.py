"""Attempts to make a flow or a descent report a status that is not true.

Flows are equivariant: for `L(U) = ||A(UU') - y||^2 / 2n`, the factor cU with responses c^2 y moves
as U does, in the time t / c^2; inputs bX with responses b^2 y in the time t / b^4. Powers of two
scale without rounding, so a scaled run must repeat the unscaled one, bit for bit except for square
roots of odd powers, or be refused before it begins. The unscaled runs are compared with SciPy, with
closed forms, and with the recursion written out.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy.integrate

from adversarial import Family, Outcome
from posquad import LeastSquares, RankOne, gradient_descent, gradient_flow
from posquad.core.errors import DomainError
from posquad.selection import mirror_flow

Rng = np.random.Generator
BATCH = 12
# Where a call may be refused: terms of the loss, or of the gradient, beyond these powers of ten.
SURELY_INSIDE = (-270.0, 285.0)


@dataclass
class Problems:
    """A batch of small problems, all of ordinary size."""

    X: np.ndarray  # [b, n, d]
    y: np.ndarray  # [b, n]
    U: np.ndarray  # [b, d, r]

    @property
    def objective(self) -> LeastSquares:
        return LeastSquares(RankOne(self.X), self.y)

    def scaled(self, c: float, b: float) -> Problems:
        return Problems(b * self.X, (b * c) ** 2 * self.y, c * self.U)


def problems(rng: Rng, count: int = BATCH) -> Problems:
    d = int(rng.integers(1, 5))
    r = int(rng.integers(1, min(d, 2) + 1))
    n = int(rng.integers(1, 9))
    X = rng.standard_normal((count, n, d)) / math.sqrt(d)
    star = rng.standard_normal((count, d, r))
    y = np.square(X @ star).sum(-1) + 0.1 * rng.standard_normal((count, n))
    return Problems(X, y, rng.standard_normal((count, d, r)))


def slope(p: Problems, k: int, U: np.ndarray) -> np.ndarray:
    """The gradient of one problem, written out."""
    X = p.X[k]
    e = np.square(X @ U).sum(-1) - p.y[k]
    return 2 / len(e) * X.T @ (e[:, None] * (X @ U))


def differs(found: np.ndarray, expected: np.ndarray, rtol: float) -> np.ndarray:
    """Elements of a batch that are further apart than rtol times their norm."""
    axes = tuple(range(1, expected.ndim))
    gap = np.sqrt(np.square(found - expected).sum(axes))
    return ~(gap <= rtol * np.sqrt(np.square(expected).sum(axes)))


def powers(rng: Rng) -> tuple[int, int]:
    """Exponents of the scales of U and of X: one of them, or both."""
    u, x = int(rng.integers(-530, 500)), int(rng.integers(-530, 500))
    return [(u, 0), (0, x), (u // 2, x // 2), (u // 4, x // 4)][int(rng.integers(4))]


def fits(kU: int, kX: int) -> bool:
    """Whether loss and gradient are surely representable at these scales."""
    sizes = (4 * kU + 4 * kX, 3 * kU + 4 * kX)
    return all(SURELY_INSIDE[0] < k * math.log10(2) < SURELY_INSIDE[1] for k in sizes)


def run_scaled(rng: Rng, method: str) -> Outcome:
    """One batch at its ordinary scale and at another."""
    p = problems(rng)
    kU, kX = powers(rng)
    while abs(2 * kU + 4 * kX) > 1000 or abs(2 * (kU + kX)) > 1000:  # times and responses exist
        kU, kX = powers(rng)
    first, second = (_run(p, kU, kX, method, scaled=scaled) for scaled in (False, True))
    outcome = Outcome(tried=BATCH)
    if second is None:
        outcome.said["refused"] += BATCH
        if fits(kU, kX):
            outcome.broken.append(f"refused at U * 2^{kU}, X * 2^{kX}")
        return outcome
    outcome.said.update(status.name for status in second.status)
    where = f"{method} at U * 2^{kU}, X * 2^{kX}"
    if [s.name for s in second.status] != [s.name for s in first.status]:
        outcome.broken.append(f"{where}: {second.status} instead of {first.status}")
    kept = [s.name != "DIVERGED" for s in first.status]  # what diverges may overflow
    wrong = differs(second.U[kept] * 2.0**-kU, first.U[kept], 1e-11)
    if wrong.any():
        outcome.broken.append(f"{where}: U differs at {np.flatnonzero(wrong)}")
    size = 2.0 ** (-2 * (kU + kX))
    loss = second.loss[:, kept] * size * size
    if not np.allclose(loss, first.loss[:, kept], rtol=1e-9, atol=1e-16):
        outcome.broken.append(f"{where}: the loss differs")
    return outcome


def _run(p: Problems, kU: int, kX: int, method: str, *, scaled: bool):
    c, b = (2.0**kU, 2.0**kX) if scaled else (1.0, 1.0)
    q = p.scaled(c, b) if scaled else p
    time = 2.0 ** (-2 * kU - 4 * kX) if scaled else 1.0
    try:
        if method == "descent":
            return gradient_descent(q.objective, q.U, step=0.02 * time, max_steps=12)
        options = {"rtol": 1e-6} if method == "adaptive" else {"method": "rk4", "step": time / 32}
        return gradient_flow(q.objective, q.U, t_final=0.25 * time, times=[], **options)
    except DomainError:
        if not scaled:
            raise
        return None


def scales(method: str, seed: int) -> Outcome:
    return run_scaled(np.random.default_rng([seed, len(method)]), method)


def ordinary_flows(seed: int) -> Outcome:
    """SciPy at 1e-12, the energy identity, and another representative UR of the start."""
    rng = np.random.default_rng([seed, 1])
    p = problems(rng, 6)
    flow = gradient_flow(p.objective, p.U, t_final=0.5, times=[], rtol=1e-9)
    outcome = Outcome(said=Counter(s.name for s in flow.status), tried=6)
    shape = p.U.shape[1:]
    expected = np.stack(
        [
            scipy.integrate.solve_ivp(
                lambda t, u, k=k: -slope(p, k, u.reshape(shape)).ravel(),
                (0, 0.5),
                p.U[k].ravel(),
                method="DOP853",
                rtol=1e-12,
                atol=1e-14,
            )
            .y[:, -1]
            .reshape(shape)
            for k in range(6)
        ]
    )
    # Local errors of 1e-9 add up over some tens of steps, and grow with the flow.
    if differs(flow.U, expected, 1e-6).any():
        outcome.broken.append("the flow is not that of SciPy")
    if not (np.abs(flow.energy_defect) <= 1e-6 * flow.loss[0]).all():
        outcome.broken.append("the energy identity fails")
    R = np.linalg.qr(rng.standard_normal((shape[1], shape[1])))[0]
    turned = gradient_flow(p.objective, p.U @ R, t_final=0.5, times=[], rtol=1e-9)
    if differs(turned.U, flow.U @ R, 1e-9).any():
        outcome.broken.append("the flow depends on the representative")
    return outcome


def ordinary_descents(seed: int) -> Outcome:
    """The recursion written out, step by step."""
    rng = np.random.default_rng([seed, 2])
    p = problems(rng, 6)
    eta = 10.0 ** rng.uniform(-4, -1.5, 6)
    found = gradient_descent(p.objective, p.U, step=eta, max_steps=25)
    outcome = Outcome(said=Counter(s.name for s in found.status), tried=6)
    for k in range(6):
        U = p.U[k]
        for _ in range(25):
            U = U - eta[k] * slope(p, k, U)
        if found.status[k].name == "STEPS_EXHAUSTED" and not np.allclose(found.U[k], U, rtol=1e-9):
            outcome.broken.append(f"descent {k} is not the recursion")
    return outcome


def decays(seed: int) -> Outcome:
    """`u' = -2 u^3`: u(t) = u0 / sqrt(1 + 4 u0^2 t), on until the gradient underflows."""
    rng = np.random.default_rng([seed, 3])
    u0 = 10.0 ** rng.uniform(-68, 50, BATCH)
    last = 10.0 ** rng.uniform(-2, 90) / float(np.median(u0)) ** 2
    flow = gradient_flow(
        LeastSquares(RankOne(np.ones((1, 1))), np.zeros(1)),
        u0[:, None, None],
        t_final=last,
        times=[],
        rtol=1e-4,
        max_steps=1500,
    )
    outcome = Outcome(said=Counter(s.name for s in flow.status), tried=BATCH)
    for k, status in enumerate(flow.status):
        u, t = float(flow.U[k, 0, 0]), float(flow.times[-1, k])
        exact = u0[k] / math.sqrt(1 + 4 * (u0[k] * math.sqrt(t)) ** 2)
        if not abs(u / exact - 1) < 0.05:  # local errors of 1e-4 of up to 1,500 steps, damped
            outcome.broken.append(f"{status.name} with u = {u:.3e}, exact {exact:.3e}")
        if status.name == "TIME_REACHED" and t != last:
            outcome.broken.append("TIME_REACHED before the time")
    return outcome


def losing_rank(seed: int) -> Outcome:
    """A step that takes a column of U to zero exactly, at every scale."""
    rng = np.random.default_rng([seed, 4])
    k = int(rng.integers(-200, 200))
    a, b = float(rng.integers(2, 9)), float(rng.integers(1, 9))
    # X = I, n = 2: the gradient of the first entry is (a^2 - y_1) a; y_1 = a^2 - 1 and step 1.
    U = 2.0**k * np.diag([a, b])
    y = 4.0**k * np.array([a * a - 1, b * b])
    found = gradient_descent(LeastSquares(RankOne(np.eye(2)), y), U, step=4.0**-k, max_steps=3)
    outcome = Outcome(said=Counter([found.status.name]))
    if found.status.name != "RANK_LOST" or int(found.steps) != 1:
        outcome.broken.append(f"{found.status.name} after {int(found.steps)} steps at 2^{k}")
    return outcome


def mirror_scales(seed: int) -> Outcome:
    """B, y and q0 in other units: the same path, in a time scaled by 1 / (b^2 u)."""
    rng = np.random.default_rng([seed, 5])
    m = int(rng.integers(2, 6))
    n = int(rng.integers(1, m))
    B, d = rng.standard_normal((n, m)), rng.integers(1, 4, m).astype(float)
    q0 = rng.uniform(0.2, 2, (6, m))
    y = rng.uniform(0.2, 2, (6, m)) @ B.T
    kB, kq = int(rng.integers(-400, 400)), int(rng.integers(-900, 900))
    if abs(kB + kq) > 900 or abs(2 * kB + kq) > 900:
        return Outcome(tried=0)
    b, u, time = 2.0**kB, 2.0**kq, 2.0 ** -(2 * kB + kq)
    # Without a residual at which to end: 1e-12 would be below the error of the integration.
    options = {"tolerance": 1e-7, "residual_tolerance": 0.0}
    plain = mirror_flow(B, y, d, q0, t_final=0.5, **options)
    other = mirror_flow(b * B, b * u * y, d, u * q0, t_final=0.5 * time, **options)
    outcome = Outcome(said=Counter(s.name for s in other.status), tried=6)
    where = f"B * 2^{kB}, q * 2^{kq}"
    if [s.name for s in other.status] != [s.name for s in plain.status]:
        outcome.broken.append(f"{where}: {other.status} instead of {plain.status}")
    # Logarithms round differently, and the choice of steps with them: the local error remains.
    if differs(other.q / u, plain.q, 1e-6).any():
        outcome.broken.append(f"{where}: q differs")
    return outcome


def ordinary_mirror_flows(seed: int) -> Outcome:
    """SciPy on the logarithms of q."""
    rng = np.random.default_rng([seed, 6])
    m = int(rng.integers(2, 6))
    n = int(rng.integers(1, m))
    B, d = rng.standard_normal((n, m)), rng.integers(1, 4, m).astype(float)
    q0, y = rng.uniform(0.2, 2, m), B @ rng.uniform(0.2, 2, m)
    flow = mirror_flow(B, y, d, q0, t_final=0.5, residual_tolerance=0.0)
    expected = scipy.integrate.solve_ivp(
        lambda t, L: -4 / d * (B.T @ (B @ np.exp(L) - y)) / n,
        (0, 0.5),
        np.log(q0),
        method="DOP853",
        rtol=1e-12,
        atol=1e-13,
    )
    outcome = Outcome(said=Counter([flow.status.name]))
    if not np.allclose(flow.q, np.exp(expected.y[:, -1]), rtol=1e-7):
        outcome.broken.append("the mirror flow is not that of SciPy")
    return outcome


FAMILIES = {
    "scales_adaptive": Family(partial(scales, "adaptive"), 24, 1000),
    "scales_rk4": Family(partial(scales, "rk4"), 40, 1000),
    "scales_descent": Family(partial(scales, "descent"), 40, 1000),
    "ordinary_flows": Family(ordinary_flows, 8, 300),
    "ordinary_descents": Family(ordinary_descents, 15, 300),
    "decays": Family(decays, 1, 60),
    "losing_rank": Family(losing_rank, 60, 1000),
    "mirror_scales": Family(mirror_scales, 15, 500),
    "ordinary_mirror_flows": Family(ordinary_mirror_flows, 20, 300),
}
