"""First-order selection for measurements that nearly commute.

The proof is in `docs/noncommuting.md`. The mirror flow is integrated once, together with the path
integrals from which the first-order change of its limit follows for every perturbation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posquad.core.arrays import (
    A,
    Array,
    like,
    positive_integer,
    require_batch,
    require_exactly,
    require_shape,
    require_symmetric,
    tensors,
)
from posquad.core.errors import DomainError, ShapeError
from posquad.core.linalg import symmetric_part
from posquad.core.results import Result
from posquad.core.status import Status
from posquad.dynamics.loop import Rule, iterate, steps_exhausted
from posquad.selection.flow import Extrapolation, MirrorState, Units
from posquad.selection.projection import Projection, bregman_projection
from posquad.selection.system import System, independent_rows, require_positive
from posquad.selection.von_neumann import divided_differences

__all__ = ["FirstOrderSelection", "first_order_selection"]

_TOLERANCE = 1e-10  # local error per step; from 1e-13 on, rounding stops the integration
_TAIL = 1e-6  # distance of log q from its limit at which the rest of the path is a trapezoid
_ACCEPTED = 1e-9  # largest relative error of the integrals that CONVERGED asserts


@dataclass(frozen=True, eq=False, repr=False)
class FirstOrderSelection(Result):
    """First-order change of the limit of the flow, and of the von Neumann projection.

    CONVERGED asserts that every flow reached its limit and that `error <= 1e-9`. The error is not a
    bound: it is measured on an identity that the integrals of any path satisfy.
    """

    q: Any  # [..., d]  limit of the commuting flow, a Bregman projection
    dual: Any  # [..., n]  mu at infinity: log q = log q0 + D'mu
    integrals: Any  # [..., n, d, d]  sqrt(q_a q_b) int cosh(Delta_ab / 2) dmu_i
    R: Any  # [..., d, d]  the limit of the flow is diag(q) + s R + O(s^2)
    V: Any  # [..., d, d]  the von Neumann projection is diag(q) + s V + O(s^2)
    gap: Any  # [..., d, d]  R - V, zero on the diagonal
    error: Any  # [...]  relative error of the integrals, measured on exact identities
    status: Status  # CONVERGED or NOT_CONVERGED
    steps: Any  # [...]


def first_order_selection(
    D: A, B: A, y: A, q0: A, *, max_steps: int = 10_000
) -> FirstOrderSelection:
    """First-order change of the selected interpolant when commuting measurements are perturbed.

    The factor flow for `A_i(s) = diag(D_i) + s B_i + O(s^2)` from `Q0 = diag(q0)` tends to
    `diag(q) + s R + O(s^2)`. With the path `log q(t) = log q0 + D'mu(t)` of the mirror flow at
    s = 0 (Proposition 4.1, `prop:exact-weighted-mirror-flow`), its limit q (Theorem 4.3,
    `thm:global-convergence-bregman-projection`) and `Delta_ab(t) = log q_a(t) - log q_b(t)`,

        R_ab = sqrt(q_a q_b) int_0^inf cosh(Delta_ab(t) / 2) sum_i (B_i)_ab dmu_i(t),  a != b,

    and R_aa is the derivative of the Bregman projection for the diagonals of A(s). The von Neumann
    projection is `diag(q) + s V + O(s^2)` with the same diagonal and, at the limit,
    `V_ab = (q_a - q_b) / Delta_ab sum_i (B_i)_ab mu_i`. The theorem and its proof are in
    `docs/noncommuting.md`; the paper has no such statement.

    Args:
        D: `[n, d]`, row i is the diagonal of A_i(0) in the joint eigenbasis. Its columns may repeat
            (repeated joint eigenvalues); its rows must be linearly independent.
        B: `[n, d, d]`, the derivatives of A_i(s) at s = 0 in the same basis, symmetric.
        y: `[..., n]`, such that `Dq = y` has a solution q > 0.
        q0: `[..., d]`, positive; leading dimensions of y and q0 are batches.
        max_steps: maximum number of steps, including rejected ones.

    The integrals do not depend on B: for another one, `R_ab` is the sum over i of
    `integrals[i, a, b] (B_i)_ab`. All computations are in double precision.

    Raises:
        DomainError: if the rows of D are linearly dependent. Then Q(s) has no limit law of first
            order: a perturbation, however small, makes the rows independent and the responses
            inconsistent or the conditions stricter.
        InfeasibleError: if no q > 0 solves `Dq = y`.

    One measurement that turns by the angle s, from the identity: the limit turns with it, and so
    does the von Neumann projection.

    >>> D, B = np.array([[0.0, 1.0]]), np.array([[[0.0, 1.0], [1.0, 0.0]]])
    >>> law = first_order_selection(D, B, np.array([3.0]), np.ones(2))
    >>> law.q.round(9), law.R.round(9)
    (array([1., 3.]), array([[0., 2.],
           [2., 0.]]))
    >>> bool(abs(law.gap).max() < 1e-9)
    True
    """
    system, b, start = _prepare(D, B, y, q0)
    positive_integer("max_steps", max_steps)
    with torch.no_grad():
        dtype = b.dtype
        system, b, start = system.double(), symmetric_part(b.double()), start.double()
        batch = require_batch(y=system.y.shape[:-1], q0=start.shape[:-1])
        limit = bregman_projection(system.B, system.y, system.d, start)  # raises if there is none
        units = Units(system, start, batch)
        method = _PathIntegrals(units, limit)
        rounding = 4 * torch.finfo(torch.float64).eps
        rules: list[Rule[MirrorState]] = [
            (Status.CONVERGED, method.arrived),
            (Status.STEP_UNDERFLOW, lambda s: s.step_size <= rounding * s.time),
            steps_exhausted(max_steps),
        ]
        state = iterate(method, method.start(), rules)
        W = units.q[..., None, None, None] * method.finish(state) / units.B
        error = _identity_defect(system, start.log(), limit.log_q, W)
        off = 1 - torch.eye(b.shape[-1], dtype=b.dtype, device=b.device)
        change = torch.einsum("...i,iab->...ab", limit.dual, b)  # of log Q, up to the dual's
        diagonal = torch.diag_embed(_diagonal_change(system, b, limit.q, change))
        R = off * torch.einsum("...iab,iab->...ab", W, b) + diagonal
        V = off * divided_differences(limit.log_q) * change + diagonal
        reached = (state.outcome == Status.CONVERGED.code) & (error <= _ACCEPTED)
        good = bool(reached.all()) and limit.status is Status.CONVERGED
    return FirstOrderSelection(
        q=like(D, limit.q.to(dtype)),
        dual=like(D, limit.dual.to(dtype)),
        integrals=like(D, W.to(dtype)),
        R=like(D, R.to(dtype)),
        V=like(D, V.to(dtype)),
        gap=like(D, (R - V).to(dtype)),
        error=like(D, error.to(dtype)),
        status=Status.CONVERGED if good else Status.NOT_CONVERGED,
        steps=like(D, state.steps),
    )


def _prepare(D: Array, B: Array, y: Array, q0: Array) -> tuple[System, Tensor, Tensor]:
    """Check the arguments; return the system of the diagonals, B and q0."""
    rows, b, v, start = (t.detach() for t in tensors(D=D, B=B, y=y, q0=q0))
    if rows.ndim != 2 or 0 in rows.shape:
        got = f"shape {tuple(rows.shape)}"
        raise ShapeError("D", expected="shape (n, d) with n, d >= 1", got=got)
    n, d = rows.shape
    require_exactly("B", b, (n, d, d), "one symmetric matrix per row of D")
    require_symmetric("B", b)
    require_shape("y", v, (n,), "(..., n), one entry per row of D")
    require_shape("q0", start, (d,), "(..., d), one entry per column of D")
    require_positive("q0", start)
    require_batch(y=v.shape[:-1], q0=start.shape[:-1])
    kept, scale = independent_rows(rows, v, "D")
    if len(kept) < n:
        spare = sorted(set(range(n)) - set(kept.tolist()))
        raise DomainError(
            "D",
            expected=f"{n} linearly independent rows: redundant measurements that are perturbed "
            "one by one stop being redundant, and the limit need not be continuous there",
            got=f"rank {len(kept)}; row {spare[0]} is a combination of others",
        )
    return System(rows, v, torch.ones_like(rows[0]), kept, scale), b, start


class _PathIntegrals(Extrapolation):
    """The mirror flow with the integrals of `sqrt(q_a q_b) cosh(Delta_ab / 2) (Dq - y)_i / n`.

    The q under the root is the limit. With `p_a = sqrt(q_a q_a(t))` and `r_a = sqrt(q_a / q_a(t))`
    the factor of the residual is `(p_a r_b + r_a p_b) / 2`, which needs no hyperbolic function and
    neither overflows nor underflows before its value does. Only pairs a < b are integrated.
    """

    def __init__(self, units: Units, limit: Projection) -> None:
        forever = torch.full_like(units.time, torch.inf)
        super().__init__(units.system, units.log_start, forever, _TOLERANCE)
        self.log_limit = limit.log_q - units.q.log()[..., None]
        self.dual = limit.dual * units.B
        d = self.B.shape[1]
        self._a, self._b = torch.triu_indices(d, d, 1, device=self.B.device)
        self._size = 4 * self.B.abs().amax(-1)[:, None]  # turns a dual into a change of log q
        # Starts near the limit have a short path and small integrals; below 1e-4 rounding shows.
        self.length = (self.log_limit - self.log_start).abs().amax(-1).clamp(1e-4, 1.0)
        self.near = torch.maximum(_TAIL * self.length, 4 * limit.error)

    def _kernel(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """`p_a r_b / 2` and `r_a p_b / 2` for the pairs a < b, `[..., pairs]` each."""
        L = self.log_point(w)
        p, r = ((self.log_limit + L) / 2).exp(), ((self.log_limit - L) / 2).exp()
        return p[..., self._a] * r[..., self._b] / 2, r[..., self._a] * p[..., self._b] / 2

    def integrands(self, w: Tensor, residual: Tensor) -> Tensor:
        up, down = self._kernel(w)
        return (residual[..., :, None] * (up + down)[..., None, :]).flatten(-2) / self.n

    def integrands_derivative(self, state: MirrorState, J: Tensor) -> Callable[[Tensor], Tensor]:
        up, down = self._kernel(state.w)
        e, both, difference = state.residual[..., :, None], up + down, up - down

        def derivative(delta: Tensor) -> Tensor:
            e_change = self.n * (J @ delta[..., None])  # [..., n, 1]
            L_change = -4 * (delta @ self.B)
            turn = difference * (L_change[..., self._a] - L_change[..., self._b]) / 2
            change = e_change * both[..., None, :] + e * turn[..., None, :]
            return change.flatten(-2) / self.n

        return derivative

    def distance(self, state: MirrorState, w: Tensor, integrals: Tensor) -> Tensor:
        in_flow = super().distance(state, w, integrals) / self.length
        if not len(self._a):
            return in_flow
        up, down = self._kernel(state.w)
        so_far, error = (
            (self._size * z.unflatten(-1, (self.n, -1))).abs().amax(-2)
            for z in (state.integrals, integrals)
        )
        relative = error / (so_far + self.length[..., None] * (up + down))
        return torch.maximum(in_flow, relative.amax(-1))

    def arrived(self, state: MirrorState) -> Tensor:
        """Whether log q is so near its limit that a trapezoid serves for the rest of the path."""
        return (self.log_limit - self.log_point(state.w)).abs().amax(-1) <= self.near

    def finish(self, state: MirrorState) -> Tensor:
        """The integrals over the whole path with respect to mu = -4w, `[..., n, d, d]`."""
        q = self.log_limit.exp()
        up, down = self._kernel(state.w)
        mean = (up + down) / 2 + (q[..., self._a] + q[..., self._b]) / 4
        rest = self.dual + 4 * state.w
        pairs = -4 * state.integrals.unflatten(-1, (self.n, -1))
        pairs = pairs + rest[..., :, None] * mean[..., None, :]
        W = torch.diag_embed(self.dual[..., :, None] * q[..., None, :])
        W[..., self._a, self._b] = pairs
        W[..., self._b, self._a] = pairs
        return W


def _diagonal_change(system: System, b: Tensor, q: Tensor, change: Tensor) -> Tensor:
    """Derivative of the Bregman projection for the diagonals `D + s diag(B)`, `[..., d]`.

    `log q` moves by `D'nu + beta`, `beta_a = sum_i mu_i (B_i)_aa`, with the nu for which
    `D (q (D'nu + beta)) + sum_a (B_i)_aa q_a = 0`. A QR of `diag(q)^1/2 D'` gives it without
    squaring the condition number.
    """
    root = q.sqrt()
    beta = change.diagonal(dim1=-2, dim2=-1)
    moved = q @ b.diagonal(dim1=-2, dim2=-1).mT  # [..., n]
    S = root[..., :, None] * system.B.mT  # [..., d, n]
    norms = torch.linalg.vector_norm(S, dim=-2)
    basis, triangle = torch.linalg.qr(S / norms[..., None, :])
    right = (moved / norms)[..., None]
    force = torch.linalg.solve_triangular(triangle.mT, right, upper=False)
    weighted = (root * beta)[..., None]
    inside = basis @ (force + basis.mT @ weighted)
    return root * (weighted - inside)[..., 0]


def _identity_defect(system: System, start: Tensor, limit: Tensor, W: Tensor) -> Tensor:
    """Largest relative defect over pairs of an identity that holds for any path, `[...]`.

    As `dDelta_ab = sum_i (D_ia - D_ib) dmu_i`, the integrals with these weights are
    `sqrt(q_a q_b)` times the change of `2 sinh(Delta_ab / 2)`.
    """
    columns = system.B[:, :, None] - system.B[:, None, :]  # [n, d, d]
    p, r = ((limit + start) / 2).exp(), ((limit - start) / 2).exp()
    q = limit.exp()
    first = p[..., :, None] * r[..., None, :]
    change = q[..., :, None] - q[..., None, :] - (first - first.mT)
    found = torch.einsum("iab,...iab->...ab", columns, W)
    # Columns that differ by rounding alone must not count, so compare with their sizes.
    sizes = system.B.abs()[:, :, None] + system.B.abs()[:, None, :]
    size = torch.einsum("iab,...iab->...ab", sizes, W.abs())
    worst = ((found - change).abs() / torch.where(size > 0, size, 1.0)).flatten(-2)
    return worst.amax(-1)
