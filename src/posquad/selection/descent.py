"""Gradient descent with finite steps: limit and constants of its error bound (sections 4.6-4.7)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posquad.core.arrays import (
    A,
    Array,
    like,
    positive_integer,
    positive_number,
    positive_numbers,
    require_batch,
    require_shape,
    tensors,
)
from posquad.core.errors import DomainError, ShapeError
from posquad.core.results import Result
from posquad.core.status import Status, from_codes
from posquad.dynamics.loop import Method, Rule, State, clock, iterate, steps_exhausted
from posquad.selection.levels import forward_log_ratio, largest_linear, reverse_log_ratios
from posquad.selection.projection import bregman_projection, divergence
from posquad.selection.system import System, prepare, require_rows

__all__ = [
    "DescentConstants",
    "DescentLimit",
    "DescentObservables",
    "descent_constants",
    "descent_limit",
    "descent_observables",
    "descent_path",
]

_BLOCK = 16  # steps between two checks of the rules
_NEAR = 1e-9  # relative residual at which the Bregman projection replaces the remaining steps


@dataclass(frozen=True, eq=False, repr=False)
class DescentLimit(Result):
    """Limit of the multiplicative recursion."""

    q: Any  # [..., m]
    status: Status | list  # LOSS_REACHED, or why not
    steps: Any  # [...]  steps of the recursion, in blocks of 16
    residual: Any  # [...]  ||Bq - y||_2 of the point returned


def descent_limit(
    B: A,
    y: A,
    multiplicities: A,
    q0: A,
    step: float | A,
    *,
    max_steps: int = 1_000_000,
    progress: Callable[[int, float], None] | None = None,
) -> DescentLimit:
    """Limit of `q_a <- q_a (1 - (2 eta / d_a) g_a(q))^2`, factor descent on the joint spectrum.

    `eq:reduced-predictor-gradient-descent`; for `0 < eta <= eta_0` the limit exists and
    interpolates (Theorem 4.7, `thm:finite-step-gradient-descent-convergence`). The recursion is run
    until the relative residual is 1e-9. From there its limit differs from the Bregman projection of
    the current point by eta times the squared residual in order of magnitude (Theorem 4.8,
    `thm:first-order-discrete-selection-error`), which is less than rounding, so the projection is
    returned. If the step is too large to be stable there, no limit exists and the status is
    DIVERGED.

    Args:
        B, y, multiplicities, q0: as in `bregman_projection`; leading dimensions are batches.
        step: eta, a number or an array over the batch, so that one call can compare many steps.
        max_steps: maximum number of steps of the recursion.
        progress: called with (step, largest relative residual) about every thousand steps.

    >>> limit = descent_limit(np.array([[1.0, 1.0]]), np.array([3.0]), np.array([1, 1]),
    ...                       np.array([1.0, 1.0]), 0.01)
    >>> limit.q.round(12), limit.status.name
    (array([1.5, 1.5]), 'LOSS_REACHED')
    """
    system, points = prepare(B, y, multiplicities, q0=q0)
    start = points["q0"]
    eta = positive_numbers("step", step, start)
    positive_integer("max_steps", max_steps)
    batch = require_batch(y=system.y.shape[:-1], q0=start.shape[:-1], step=eta.shape)
    with torch.no_grad():
        bregman_projection(system.B, system.y, system.d, start)  # raises if there is no limit
        method = _Recursion(system, system.size(start), max_steps, progress)
        state = method.start(start.expand(*batch, start.shape[-1]), eta.expand(batch))
        most = 1e6 * state.residual.clamp_min(1)
        rules: list[Rule[_RecursionState]] = [
            (Status.DIVERGED, lambda s: ~torch.isfinite(s.residual) | (s.residual > most)),
            (Status.RANK_LOST, lambda s: ~(s.q > 0).all(-1)),
            (Status.LOSS_REACHED, lambda s: s.residual <= _NEAR),
            steps_exhausted(max_steps),
        ]
        state = iterate(method, state, rules)
        # Where the recursion is unstable it has no limit, however small the residual became.
        unstable = eta * _largest_rate(system, state.q) >= 2
        reached = state.outcome == Status.LOSS_REACHED.code
        outcome = torch.where(reached & unstable, Status.DIVERGED.code, state.outcome)
        near = (outcome == Status.LOSS_REACHED.code)[..., None]
        finish = torch.where(near, state.q, 1.0)
        ending = bregman_projection(system.B, system.y, system.d, finish).q
        q = torch.where(near, ending, state.q)
        residual = torch.linalg.vector_norm(q @ system.B.mT - system.y, dim=-1)
    return DescentLimit(
        q=like(B, q),
        status=from_codes(outcome),
        steps=like(B, state.steps),
        residual=like(B, residual),
    )


def descent_path(B: A, y: A, multiplicities: A, q0: A, step: float | A, *, steps: int) -> A:
    """First iterates of the recursion `eq:reduced-predictor-gradient-descent`.

    Returns `[steps + 1, ..., m]`; `descent_observables` evaluates such a path.

    >>> one = np.ones(1)
    >>> descent_path(one[None], one, one, 2 * one, 0.1, steps=1)
    array([[2.  ],
           [1.28]])
    """
    system, points = prepare(B, y, multiplicities, q0=q0)
    eta = positive_numbers("step", step, points["q0"])
    batch = require_batch(y=system.y.shape[:-1], q0=points["q0"].shape[:-1], step=eta.shape)
    q = points["q0"].expand(*batch, points["q0"].shape[-1])
    path = [q]
    for _ in range(positive_integer("steps", steps, zero=True)):
        q = _descend(system, q, eta)
        path.append(q)
    return like(B, torch.stack(path))


@dataclass(frozen=True, eq=False, repr=False)
class DescentObservables(Result):
    """Quantities of the convergence theorem, measured along a path.

    Theorem 4.7 (`thm:finite-step-gradient-descent-convergence`).
    """

    smallest: Any  # [K+1, ...]  min_a q_a, positive
    divergence: Any  # [K+1, ...]  D_h(p, q_k), at most its first value
    descent_margin: Any  # [K, ...]  D_k - D_{k+1} - (eta/2n) ||Bq_k - y||^2, nonnegative
    loss: Any  # [K+1, ...]  f(q_k)
    contraction: Any  # [K, ...]  f(q_{k+1}) / f(q_k)


def descent_observables(
    B: A, y: A, multiplicities: A, path: A, step: float | A, reference: A
) -> DescentObservables:
    """Positivity, Bregman descent and loss contraction along `path[K+1, ..., m]`.

    `reference` is a feasible point p > 0, the theorem's `q_dagger`.

    >>> path = descent_path(np.array([[1.0]]), np.array([1.0]), np.array([1]), np.array([2.0]), 0.1,
    ...                     steps=5)
    >>> seen = descent_observables(np.array([[1.0]]), np.array([1.0]), np.array([1]), path, 0.1,
    ...                            np.array([1.0]))
    >>> bool((seen.descent_margin > 0).all())
    True
    """
    system, _ = prepare(B, y, multiplicities)
    (q,) = tensors(path=path)
    p = _reference(system, q, reference)
    require_shape("path", q, (system.B.shape[1],), "(K+1, ..., m)")
    if q.ndim < 2:
        raise ShapeError("path", expected="shape (K+1, ..., m)", got=f"shape {tuple(q.shape)}")
    eta = positive_numbers("step", step, q)
    require_batch(y=system.y.shape[:-1], path=q.shape[1:-1], step=eta.shape)
    loss = system.loss(q)
    divergences = divergence(p, q, system.d)
    drop = divergences[:-1] - divergences[1:]
    return DescentObservables(
        smallest=like(B, q.amin(-1)),
        divergence=like(B, divergences),
        descent_margin=like(B, drop - eta * loss[:-1]),  # (eta/2n) ||r||^2 = eta f
        loss=like(B, loss),
        contraction=like(B, loss[1:] / loss[:-1]),
    )


@dataclass(frozen=True)
class DescentConstants:
    """Constants of the finite-step theorems for one q0 and one reference point, as floats."""

    lower: float  # underline q_0: smallest coordinate on the reverse level set (may underflow)
    upper: float  # overline q_0: largest coordinate on it
    q_hat: float  # largest coordinate on both level sets (`eq:unified-coordinate-upper-bound`)
    G_0: float  # largest |g_a| on the reverse level set (`eq:discrete-gradient-bound`)
    C_0: float  # `eq:discrete-bregman-remainder-constant`
    thresholds: tuple[float, ...]  # the four terms of `eq:fixed-epsilon-step-size-threshold`
    eta_0: float  # their minimum (always the third): largest step of the theorem
    residual_rate: float  # rate of ||Bq - y|| along the flow (`eq:continuous-residual-rate`)
    loss: float  # f(q0)
    error_slope: float  # error bound per unit of step

    @property
    def contraction_slope(self) -> float:
        """Lower bound on `(1 - f(q_{k+1})/f(q_k)) / step`; it equals the rate of the flow."""
        return self.residual_rate

    def error_bound(self, step: float) -> float:
        """Bound on `||q_eta - Pi_h(q0)||_2`.

        Theorem 4.8 (`thm:first-order-discrete-selection-error`).
        """
        step = positive_number("step", step)
        if step > self.eta_0:
            expected = f"at most eta_0 = {self.eta_0:.6e}, where the theorem holds"
            raise DomainError("step", expected=expected, got=f"{step:.6e}")
        return self.error_slope * step


def descent_constants(
    B: Array, y: Array, multiplicities: Array, q0: Array, *, reference: Array | None = None
) -> DescentConstants:
    """Compute every constant of sections 4.6 and 4.7.

    None is an estimate: the coordinate bounds of the level sets are exact (Lambert W), and `G_0` is
    the exact maximum of linear functions over a convex set. `reference` is any strictly feasible
    point (the paper's `q_dagger`), by default the Bregman projection of q0.

    >>> constants = descent_constants(np.array([[1.0, 1.0]]), np.array([3.0]), np.array([1, 1]),
    ...                               np.array([1.0, 1.0]))
    >>> constants.lower < 1.0 < 1.5 < constants.upper
    True
    """
    system, points = prepare(B, y, multiplicities, q0=q0)
    start, d = points["q0"], system.d
    for name, vector in (("q0", start), ("y", system.y)):
        if vector.ndim != 1:
            raise ShapeError(name, expected="one vector", got=f"shape {tuple(vector.shape)}")
    require_rows(system)
    p = _reference(system, start, reference)
    level = divergence(p, start, d)
    low, high = reverse_log_ratios(4 * level / (d * p))
    lower, upper = float((p.log() + low).exp().min()), float((p.log() + high).exp().max())
    forward = forward_log_ratio(4 * level / (d * start))
    q_hat = max(upper, float((start.log() + forward).exp().max()))

    n = system.B.shape[0]
    M = system.B.mT @ system.B / n  # g(q) = M (q - p), because Bp = y
    G_0 = float(largest_linear(torch.cat([M, -M]), p, d, level).max())
    C_0 = float(((2 * p + upper) / d).max())
    d_min, d_max = float(d.min()), float(d.max())
    norm = float(torch.linalg.matrix_norm(system.B, 2))
    rate = 4 * lower * float(system.smallest_singular_value) ** 2 / (n * d_max)
    thresholds = (
        d_min / (4 * G_0) if G_0 > 0 else math.inf,
        n / (2 * C_0 * norm**2),
        2 * n * lower * d_min**2 / (25 * upper**2 * d_max * norm**2),
        1 / rate if rate > 0 else math.inf,
    )
    loss = float(system.loss(start))
    return DescentConstants(
        lower=lower,
        upper=upper,
        q_hat=q_hat,
        G_0=G_0,
        C_0=C_0,
        thresholds=thresholds,
        eta_0=min(thresholds),
        residual_rate=rate,
        loss=loss,
        error_slope=4 * q_hat * d_max * loss / d_min**2 / lower if lower > 0 else math.inf,
    )


def _reference(system: System, start: Tensor, reference: Array | None) -> Tensor:
    if reference is None:
        return bregman_projection(system.B, system.y, system.d, start).q
    _, points = prepare(system.B, system.y, system.d, reference=reference)
    p = points["reference"].to(start)
    if p.ndim != 1:
        raise ShapeError("reference", expected="one point (m,)", got=f"shape {tuple(p.shape)}")
    size = p @ system.B.abs().mT + system.y.abs()
    gap = (p @ system.B.mT - system.y).abs()
    if bool((gap > 1e-9 * size).any()):
        worst = float((gap / size).max())
        got = f"relative misfit {worst:.3e}"
        raise DomainError("reference", expected="a point with Bp = y", got=got)
    return p


def _largest_rate(system: System, q: Tensor) -> Tensor:
    """Largest eigenvalue of the linearised flow at q, `(4/n) B diag(q/d) B'`; `[...]`."""
    finite = torch.where(torch.isfinite(q), q, 0.0)
    gram = (system.B * (finite / system.d)[..., None, :]) @ system.B.mT
    return 4 / system.B.shape[0] * torch.linalg.eigvalsh(gram)[..., -1]


def _descend(system: System, q: Tensor, eta: Tensor) -> Tensor:
    return q * (1 - 2 * eta[..., None] * system.gradient(q) / system.d).square()


@dataclass(frozen=True)
class _RecursionState(State):
    q: Tensor  # [..., m]
    residual: Tensor  # [...]  relative


class _Recursion(Method[_RecursionState]):
    """The recursion in blocks of steps; a limit, a zero or an overflow persists once reached."""

    def __init__(
        self,
        system: System,
        size: Tensor,
        max_steps: int,
        progress: Callable[[int, float], None] | None,
    ) -> None:
        self.system, self.size, self.progress = system, size, progress
        self._left, self._next = max_steps, 1000

    def start(self, q: Tensor, eta: Tensor) -> _RecursionState:
        return _RecursionState(**clock(eta), q=q, residual=self._residual(q))

    def _residual(self, q: Tensor) -> Tensor:
        misfit = q @ self.system.B.mT - self.system.y
        return torch.linalg.vector_norm(misfit, dim=-1) / self.size

    def advance(self, state: _RecursionState) -> _RecursionState:
        block = min(_BLOCK, self._left)
        self._left -= block
        q = state.q
        for _ in range(block):
            q = _descend(self.system, q, state.step_size)
        residual = self._residual(q)
        steps = state.steps + block
        if self.progress is not None and int(steps.max()) >= self._next:
            self._next += 1000
            self.progress(int(steps.max()), float(residual.max()))
        return replace(state, q=q, residual=residual, steps=steps, attempts=steps)
