"""A primal-dual interior point method for least squares over positive semidefinite matrices.

`min ||A(Q) - y||^2 / 2` over `Q >= 0` has the dual `max -||v||^2 / 2 - <v, y>` over the vectors v
with `Y = A*(v) >= 0`. Both are solved together: the central path is `A(Q) - v = y`, `QY = mu I`,
and at mu = 0 the vector v is the residual. Every v on the way bounds the residuals of all
positive semidefinite matrices P from below, whether the path has been followed closely or not:
`||A(P) - y|| >= -<v, y> / ||v||`, because `<v, A(P)> = <Y, P> >= 0`.

The steps are those of Nesterov and Todd with Mehrotra's predictor and corrector (Todd, Toh and
Tutuncu, SIAM J. Optim. 8, 1998). A factor G with `Q = G diag(s) G'` and `Y = G^{-T} diag(s) G^{-1}`
brings both matrices to the same diagonal matrix. With `A_G(S) = A(GSG')`, a step solves
`dQ + A_G*(dv) = R`, `A_G(dQ) - dv = v - e`: n equations with the matrix `I + A_G A_G*`
in dual form, `d(d+1)/2` equations with `I + A_G*A_G` in primal form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posquad.core.linalg import symmetric_part
from posquad.core.ranges import tiny
from posquad.core.status import Status
from posquad.core.symmetric import (
    svec,
    symmetric_congruence,
    symmetric_matrix,
)
from posquad.dynamics.loop import Method, Rule, State, clock
from posquad.recovery.problem import Problem

# Samples per unknown from which fourth moments are cheaper than rows. Derived: with D unknowns,
# rows take n D^2 multiplications per step and moments 2 D^3; they also have to be summed once.
_MOMENTS = 3
# Factor on the residual or on the gap that counts as progress. A choice: steps on the path
# usually gain half a digit or more.
_IMPROVED = 0.9
# Share of the way to the boundary that a step takes, after short and after long predictors. Cited:
# Toh, Todd and Tutuncu, SDPT3, Optim. Methods Softw. 11, 1999: 0.9 + 0.09 times the predictor.
_SHORT = 0.9
_LONG = 0.99
# Power of the ratio of gaps, predicted to present, in the centering. Cited: Mehrotra, SIAM J.
# Optim. 2, 1992.
_CENTERING_POWER = 3
# Factor on the multiple of the identity that makes a dual vector feasible. A choice: A*(w) is the
# identity up to the rounding of the coordinates, which 1% covers.
_FEASIBLE = 1.01

Step = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class PathState(State):
    """A point near the central path, and the best matrix and the best bound so far."""

    G: Tensor  # [..., k, k]  Q = G diag(s) G'
    s: Tensor  # [..., k]  positive
    v: Tensor  # [..., n]  A*(v) = G^{-T} diag(s) G^{-1}
    e: Tensor  # [..., n]  A(Q) - y
    U: Tensor  # [..., k, k]  factor of the matrix of least residual
    residual: Tensor  # [...]  its ||A(UU') - y|| / ||y||
    dual: Tensor  # [..., n]  the v with the largest bound, made feasible
    bound: Tensor  # [...]  its -<v, y> / (||v|| ||y||), at least 0
    waited: Tensor  # [...]  steps since residual or bound made progress

    @property
    def gap(self) -> Tensor:
        """How much a positive semidefinite matrix may lower ||e||^2 yet, as a share of it."""
        return duality_gap(self.residual, self.bound)

    def park_ended(self) -> PathState:
        ended = ~self.running
        if not bool(ended.any()):
            return self
        return replace(self, s=torch.where(ended[..., None], 1.0, self.s))


def duality_gap(residual: Tensor, bound: Tensor) -> Tensor:
    """`1 - (bound / residual)^2`, in [0, 1]: a share of `||e||^2`; 0 for a zero residual."""
    share = bound / torch.where(residual > 0, residual, 1.0)
    return torch.where(residual > 0, (1 - share) * (1 + share), 0.0).clamp(0.0, 1.0)


class InteriorPoint(Method[PathState]):
    """Predictor-corrector steps for problems with `A*(w) = I` for a known w, and `||y|| = 1`."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        D = problem.d * (problem.d + 1) // 2
        self.dual = problem.n < D
        self.from_moments = problem.n > _MOMENTS * D

    def start(self) -> PathState:
        """Return the start `Q = (||w|| / k) I`, the size of the optimum, with `v = w / ||w||`.

        The trace of the optimum is `<w, A(Q)> <= ||w|| ||y||`, because `A*(w) = I`.
        """
        problem, y = self.problem, self.problem.y
        assert problem.unit is not None, "the path begins inside the dual cone"
        w, k = problem.unit.expand_as(y), problem.d
        batch = y.shape[:-1]
        eye = torch.eye(k, dtype=y.dtype, device=y.device)
        size = torch.linalg.vector_norm(w, dim=-1, keepdim=True)
        # Q = G diag(s) G' and A*(v) = I / ||w|| = G^{-T} diag(s) G^{-1}.
        G = (size / math.sqrt(k)).sqrt()[..., None] * eye.expand(*batch, k, k)
        s = y.new_full((*batch, k), math.sqrt(1 / k))
        first = clock(y.new_ones(batch))
        state = PathState(
            **first,
            G=G,
            s=s,
            v=w / size,
            e=y,
            U=torch.zeros_like(G),
            residual=y.new_ones(batch),  # of Q = 0
            dual=w / size,
            bound=y.new_zeros(batch),
            waited=first["steps"],
        )
        return self._at(state, G, s, state.v)

    def _at(self, state: PathState, G: Tensor, s: Tensor, v: Tensor) -> PathState:
        """Return the state at another point, with the best so far."""
        problem = self.problem
        U = G * s.sqrt()[..., None, :]
        e = problem.operator.apply_factor_kernel(U) - problem.y
        residual = problem.relative(e)
        dual = feasible(problem, v)  # rounding may have moved v out of the cone
        bound = residual_bound(problem, dual)
        lower, higher = residual < state.residual, bound > state.bound
        best_residual = torch.where(lower, residual, state.residual)
        best_bound = torch.where(higher, bound, state.bound)
        progress = best_residual <= _IMPROVED * state.residual
        gap = duality_gap(best_residual, best_bound)
        progress = progress | (gap <= _IMPROVED * state.gap)
        return replace(
            state,
            G=G,
            s=s,
            v=v,
            e=e,
            U=torch.where(lower[..., None, None], U, state.U),
            residual=best_residual,
            dual=torch.where(higher[..., None], dual, state.dual),
            bound=best_bound,
            waited=torch.where(progress, 0, state.waited + 1),
        )

    def advance(self, state: PathState) -> PathState:
        s, k = state.s, self.problem.d
        solve = self._system(state)
        diagonal = torch.diag_embed(s)
        mu = s.square().sum(-1) / k
        dQ, dY, _ = solve(-diagonal)
        far = _reach(s, dQ, dY).clamp_max(1.0)
        a = far[..., None, None]
        predicted = ((diagonal + a * dQ) * (diagonal + a * dY)).sum((-2, -1)) / k
        target = mu * (predicted / mu).clamp(0.0, 1.0) ** _CENTERING_POWER
        right = torch.diag_embed(target[..., None] - s.square()) - symmetric_part(dQ @ dY)
        dQ, dY, dv = solve(2 * right / (s[..., :, None] + s[..., None, :]))
        length = (_SHORT + (_LONG - _SHORT) * far) * _reach(s, dQ, dY)
        length = length.clamp_max(1.0)
        G, s, usable = _rescaled(state.G, diagonal, dQ, dY, length[..., None, None])
        v = state.v + length[..., None] * dv
        usable = usable & torch.isfinite(v).all(-1)
        mask = usable[..., None]
        return self._at(
            state.stepped(),
            torch.where(mask[..., None], G, state.G),
            torch.where(mask, s, state.s),
            torch.where(mask, v, state.v),
        )

    def _system(self, state: PathState) -> Callable[[Tensor], Step]:
        """Return the map from R to the step `dQ, dY, dv` in the coordinates of G."""
        turned, gap = self.problem.operator.transformed(state.G), state.v - state.e
        k = self.problem.d
        if self.dual:
            K = turned.inner_products()
        elif self.from_moments:
            C = symmetric_congruence(state.G)
            K = C.mT @ (self.problem.operator.fourth_moments @ C)
        else:
            A = turned.system
            K = A.mT @ A
        K.diagonal(dim1=-2, dim2=-1).add_(1.0)
        factor, _ = torch.linalg.cholesky_ex(K)  # a factor that broke down gives a useless step

        def dual(R: Tensor) -> Step:
            right = turned.apply_kernel(R) - gap
            dv = torch.cholesky_solve(right[..., None], factor)[..., 0]
            dY = turned.adjoint_kernel(dv)
            return R - dY, dY, dv

        def primal(R: Tensor) -> Step:
            right = svec(R + turned.adjoint_kernel(gap))
            dQ = symmetric_matrix(torch.cholesky_solve(right[..., None], factor)[..., 0], k)
            return dQ, R - dQ, turned.apply_kernel(dQ) - gap

        return dual if self.dual else primal


def residual_bound(problem: Problem, v: Tensor) -> Tensor:
    """`-<v, y> / (||v|| ||y||)`, at least 0: if `A*(v) >= 0`, no residual is lower."""
    size = torch.linalg.vector_norm(v, dim=-1) * problem.size
    return (-(v * problem.y).sum(-1) / torch.where(size > 0, size, 1.0)).clamp_min(0.0)


def feasible(problem: Problem, z: Tensor) -> Tensor:
    """Return the nearest `z + t w` with `A*(z + t w) = A*(z) + t I >= 0`; zero if there is no w.

    t also covers the rounding of `A*(z)`, which is at most `(n + 2) u sum_i |z_i| ||A_i||` in
    spectral norm, and that of its eigenvalues.
    """
    operator = problem.operator
    if problem.unit is None:
        return torch.zeros_like(z)
    lowest = torch.linalg.eigvalsh(operator.adjoint_kernel(z))[..., 0]
    size = (z.abs() * operator.norms).sum(-1)
    short = (operator.d + 2) * torch.finfo(z.dtype).eps * size - lowest
    return z + _FEASIBLE * short.clamp_min(0.0)[..., None] * problem.unit


def optimal(gap: float) -> Rule[Any]:
    """Rule that ends a path when the duality gap is at most this share of `||e||^2`."""
    return Status.BEST_FIT, lambda state: state.gap <= gap


def no_progress(patience: int) -> Rule[Any]:
    """Rule that ends a path after so many steps that improved neither residual nor gap.

    It also ends a path that rounding has led astray. The duality gap is the sum of
    `||v - e||^2 / 2` and of `<Y, Q> = sum s^2`; steps that reduce only the second lead to the
    boundary of the cone instead of the optimum.
    """

    def met(state: PathState) -> Tensor:
        astray = (state.v - state.e).square().sum(-1) > state.s.square().sum(-1)
        return (state.waited >= patience) | (astray & (state.steps >= patience))

    return Status.STALLED, met


def _reach(s: Tensor, dQ: Tensor, dY: Tensor) -> Tensor:
    """The largest step that keeps `diag(s) + step dQ` and `diag(s) + step dY` semidefinite."""
    root = s.rsqrt()
    both = root[..., :, None] * torch.stack([dQ, dY]) * root[..., None, :]
    usable = torch.isfinite(both).all(-1).all(-1)
    both = torch.where(usable[..., None, None], both, 0.0)
    lowest = torch.linalg.eigvalsh(both)[..., 0].amin(0)
    return torch.where(lowest < 0, -1 / lowest, torch.inf)


def _rescaled(
    G: Tensor, diagonal: Tensor, dQ: Tensor, dY: Tensor, length: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Bring Q and Y after a step to one diagonal matrix again; say whether that was possible."""
    usable = (torch.isfinite(dQ) & torch.isfinite(dY)).all(-1).all(-1)
    mask = usable[..., None, None]
    Q = torch.where(mask, diagonal + length * dQ, diagonal)
    Y = torch.where(mask, diagonal + length * dY, diagonal)
    C, info = torch.linalg.cholesky_ex(Q)
    squares, V = torch.linalg.eigh(symmetric_part(C.mT @ Y @ C))
    usable = usable & (info == 0) & (squares[..., 0] > 0)
    s = squares.clamp_min(tiny(squares)).sqrt()
    return G @ (C @ V) * s.rsqrt()[..., None, :], s, usable
