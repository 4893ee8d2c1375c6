"""Least squares over all positive semidefinite matrices, a convex problem, with its proof.

The answer is an interpolant, or the optimum with a vector z that proves it. If `A*(z) >= 0`, then
`<z, A(P)> = <A*(z), P> >= 0` for every positive semidefinite P, so

    ||A(P) - y|| >= -<z, y> / ||z||.

At the optimum `z = e = A(Q) - y` has `A*(e) >= 0` and `<A*(e), Q> = 0`, so that the bound is ||e||
itself. A positive bound shows that no positive semidefinite matrix explains the responses: z is a
Farkas vector. `posquad.certificates.proves_infeasible` checks it with every rounding error bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posquad.core.linalg import positive_factor
from posquad.core.ranges import tiny
from posquad.core.status import Status
from posquad.problems.combination import positive_combination
from posquad.problems.measurements import RankOne
from posquad.recovery.budget import Budget, History
from posquad.recovery.costs import fits, solves
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.fit import SECOND_ORDER_STEPS, at_rounding, fitted, stagnated
from posquad.recovery.solvers.interior_point import (
    InteriorPoint,
    PathState,
    duality_gap,
    feasible,
    no_progress,
    optimal,
    residual_bound,
)
from posquad.recovery.solvers.levenberg import Levenberg
from posquad.recovery.solvers.projected import ProjectedGradient, ProjectedState, waited
from posquad.recovery.solvers.small import FinalFactors

# Relative residual at which responses count as interpolated, by default. A definition: a hundredth
# of the default tolerance of `recover`, so that the statuses do not depend on it.
INTERPOLATES = 1e-12
# Excess of the residual over its bound, as a share of the residual, up to which the optimum counts
# as found, which is what BEST_FIT asserts. A definition: the default tolerance of `recover`.
OPTIMAL = 1e-10
# The same as a share of ||y||. A definition: a residual of this size is one of `INTERPOLATES`, and
# its bound is rounding.
ROUNDING = 1e-12
# Residual at which the path ends. A choice: a tenth of `INTERPOLATES`.
_FITTED = 1e-13
# Duality gap at which the path ends, as a share of ||e||^2. Derived: half of it is the share of the
# residual, which is far below `OPTIMAL`.
_GAP = 1e-12
# Steps without progress after which the path is left. A choice: half and double do as well.
_PATIENCE = 5
# Steps without a halved residual after which the final descent is at rounding. A choice: two,
# because a dense step may be rejected.
_POLISH_PATIENCE = 2
# The final descent ends when so many steps leave this share of the residual. A choice: half and
# double do as well.
_STALLED = 10
_RATE = 0.99
# Most projected gradient steps. A choice: half and double do as well.
_PROJECTED = 5000
# Residual at which the projected steps end. A choice: a tenth of that of the path, because a step
# costs little.
_PROJECTED_FITTED = 1e-14
# Projected steps without progress after which they end. A choice: half and double do as well.
_PROJECTED_PATIENCE = 300
# The same if the matrix is already optimal. A choice: a tenth, because nothing depends on them.
_OPTIMAL_PATIENCE = 30
# Projections of a dual vector, because each reduces the rounding error. A choice: half and double
# do as well.
_PASSES = 3
# Eigenvalues of the correlation of the inputs, over the largest, up to which they are rounding.
# Derived: d eps at d = 500.
_SPAN = 1e-13
# Units beyond n of the rounding of `<z, y>` for unit vectors. Derived: n for the sum of n products,
# some more for the norms of both.
_PRODUCT_UNITS = 8


@dataclass(frozen=True, eq=False)
class PositiveFit:
    """The best positive semidefinite matrices `LL'` of one problem or a batch, with their proofs.

    `bound` is a lower bound on the relative residual of every positive semidefinite matrix, and
    `gap` says how much of `||e||^2` such a matrix could take away at most. For an interpolant there
    is no positive bound, and the gap says nothing.
    """

    factor: Tensor  # [..., d, d]  L
    residual: Tensor  # [...]  ||A(LL') - y|| / ||y||
    interpolates: Tensor  # [...]  whether the residual is at most the level asked for
    farkas: Tensor  # [..., n]  z with A*(z) >= 0, close to the residual vector at the optimum
    bound: Tensor  # [...]  no positive semidefinite matrix has a lower relative residual
    steps: Tensor  # [...]  steps of the interior point method

    @property
    def gap(self) -> Tensor:
        """`1 - (bound / residual)^2`, `[...]`, from 0 (optimal) to 1 (nothing is known)."""
        return duality_gap(self.residual, self.bound)

    @property
    def optimal(self) -> Tensor:
        """Whether no positive semidefinite matrix is better, up to `OPTIMAL`, `[...]`."""
        return is_optimal(self.residual, self.bound)

    @property
    def infeasible(self) -> Tensor:
        """Whether `farkas` shows that nothing interpolates, up to the rounding of `<z, y>`."""
        units = self.farkas.shape[-1] + _PRODUCT_UNITS
        return self.bound > units * torch.finfo(self.bound.dtype).eps

    def to(self, dtype: torch.dtype) -> PositiveFit:
        """Return the same fit in another precision."""
        return replace(
            self,
            factor=self.factor.to(dtype),
            residual=self.residual.to(dtype),
            farkas=self.farkas.to(dtype),
            bound=self.bound.to(dtype),
        )


def positive_fit(
    problem: Problem,
    budget: Budget,
    *,
    level: float = INTERPOLATES,
    history: History | None = None,
) -> PositiveFit:
    """Minimise `||A(Q) - y||` over positive semidefinite Q of any rank, for every n.

    An interior point method follows the central path of the problem in coordinates in which
    `X'X = I`; a step costs O(n^3 + n^2 d) for `n < D = d(d+1)/2` and O(n D^2 + D^3) otherwise, and
    15 to 25 steps are usual. Two answers need no path: Q = 0 where `A*(y) <= 0`, and the symmetric
    matrix of least residual where that is positive semidefinite. What the path leaves open, mostly
    interpolants on the boundary of the cone, is refined by Levenberg-Marquardt steps on a factor
    of the numerical rank, and then by projected gradient steps.

    If min(n, D) exceeds 1500, projected gradient steps of O(n d^2 + d^3) come first, and the path
    is followed only for what they leave open, up to min(n, D) = 4096.

    Inputs that span only a subspace leave Q open outside of it, and one such Q is returned. When
    the budget is spent, the best matrix and the best bound so far are returned. Steps are recorded
    in the `history`, if there is one, and so is the best matrix at Ctrl-C.
    """
    if problem.spread is not None:
        share = torch.linalg.vector_norm(problem.y, dim=-1) / problem.size
        own = replace(problem, spread=None)
        fit = positive_fit(own, budget, level=level, history=history)
        return replace(fit, residual=share * fit.residual, bound=share * fit.bound)
    if problem.y.dtype != torch.float64:
        wide = Problem(problem.operator.double(), problem.y.double())
        try:
            fit = positive_fit(wide, budget, level=level, history=history)
        except KeyboardInterrupt:
            if history is not None and isinstance(history.last, FinalFactors):
                history.last = FinalFactors(*(part.to(problem.y.dtype) for part in history.last))
            raise
        return fit.to(problem.y.dtype)
    work, transform = _normalized(problem)
    run = _Fit(_Best.zero(work), history or History(budget))
    unknowns = work.d * (work.d + 1) // 2
    size = min(work.n, unknowns)
    large = not solves(size)
    try:
        if large:
            run.project()
        elif work.n >= unknowns and not budget.spent:
            run.best = _with_least_squares(run.best)
        if fits(size**2):
            run.follow_path(refine=not large)
        if not large:
            run.project()
    except KeyboardInterrupt:
        found = _result(problem, run.interrupted(), transform, run.steps, level)
        run.history.last = FinalFactors(found.factor[None], found.residual[None])
        raise
    return _result(problem, run.best, transform, run.steps, level)


def bound_by_residual(problem: Problem, U: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bound `[...]` that the residual of `U[..., d, r]` proves, and its Farkas vector.

    No positive semidefinite matrix, of any rank, has a relative residual below the bound, which is
    that of UU' itself if UU' is the best of them.
    """
    own = replace(problem, spread=None)
    work, _ = _normalized(own)
    e = problem.residual(problem.operator.project(U)) / own.size[..., None]
    best = _Best.zero(work).with_dual(e)
    return best.bound * own.size / problem.size, best.dual * own.size[..., None]


class _Fit:
    """The stages of a fit, and the best matrices and bounds so far."""

    def __init__(self, best: _Best, history: History) -> None:
        self.best, self.history = best, history
        self.steps = torch.zeros_like(best.residual, dtype=torch.int64)  # on the path
        self.working: Tensor | None = None  # indices of the problems in the current stage

    def _part(self) -> Problem | None:
        """Return the problems that are still open, if there are any and the budget allows more."""
        if not bool(self.best.open.any()) or self.history.budget.spent:
            return None
        part, self.working = self.best.problem.where(self.best.open)
        return part

    def follow_path(self, *, refine: bool) -> None:
        """Follow the central path of the open problems, and `refine` what it leaves open."""
        part = self._part()
        if part is None:
            return
        chosen = self.working
        if part.unit is None:
            if refine:
                self.best = _refined(self.best, torch.zeros_like(self.best.dual), self.history)
            return
        method = InteriorPoint(part)
        ends = [fitted(_FITTED), optimal(_GAP), no_progress(_PATIENCE)]
        state = self.history.run(method, method.start(), ends)
        self.best = self.best.offered(state.U, chosen).with_dual(state.dual, chosen)
        steps = self.steps.index_copy(0, chosen, state.steps) if chosen is not None else state.steps
        self.steps = steps
        if refine and bool(self.best.open.any()) and not self.history.budget.spent:
            v = state.v if chosen is None else self.best.dual.index_copy(0, chosen, state.v)
            self.best = _refined(self.best, v, self.history)

    def project(self) -> None:
        """Take projected gradient steps from the best matrices of the open problems."""
        part = self._part()
        if part is None:
            return
        chosen, method = self.working, ProjectedGradient(part)
        U = self.best.U if chosen is None else self.best.U[chosen]
        proved = (
            Status.BEST_FIT,
            lambda s: is_optimal(s.residual, s.bound) & (s.waited >= _OPTIMAL_PATIENCE),
        )
        ends = [fitted(_PROJECTED_FITTED), optimal(_GAP), proved, waited(_PROJECTED_PATIENCE)]
        state = self.history.run(method, method.start(U), ends, steps=_PROJECTED)
        self.best = self.best.offered(state.U, chosen).with_dual(state.dual, chosen)

    def interrupted(self) -> _Best:
        """Return the best so far, with the last matrices of an interrupted run."""
        state = self.history.last
        if not isinstance(state, PathState | ProjectedState):
            return self.best
        return self.best.offered(state.U, self.working)


def _normalized(problem: Problem) -> tuple[Problem, Tensor]:
    """Return the problem with `A*(w) = I` for a w, and `||y|| = 1`, and T with `A_new = T'AT`.

    For rows, `w = 1` and `X'X = I`. Columns are brought to length one first, so that their units do
    not matter. The columns of T are zero beyond the dimension of the span, which may differ in a
    batch.
    """
    operator, y = problem.operator, problem.y
    if not isinstance(operator, RankOne):
        return _with_unit(problem)
    C = operator.n * operator.second_moments
    lengths = C.diagonal(dim1=-2, dim2=-1).sqrt()
    scale = 1 / torch.where(lengths > 0, lengths, torch.inf)
    values, vectors = torch.linalg.eigh(scale[..., :, None] * C * scale[..., None, :])
    spanned = values > _SPAN * values[..., -1:]
    weights = torch.where(spanned, values, torch.inf).rsqrt()
    k = int(spanned.sum(-1).clamp_min(1).max()) if spanned.numel() else problem.d
    T = (scale[..., :, None] * vectors * weights[..., None, :])[..., -k:]
    T = T.expand(*y.shape[:-1], *T.shape[-2:])
    return Problem(operator.transformed(T), y / problem.size[..., None], torch.ones_like(y)), T


def _with_unit(problem: Problem) -> tuple[Problem, Tensor]:
    """Return the same for other measurements; without a w if none is found.

    If there is none, a positive semidefinite matrix has measurements zero, and the path has no
    start. In a batch, all problems must have one.
    """
    operator, y = problem.operator, problem.y
    eye = torch.eye(problem.d, dtype=y.dtype, device=y.device).expand(*y.shape[:-1], -1, -1)
    found = positive_combination(operator)
    if found is None:
        return Problem(operator, y / problem.size[..., None]), eye
    w, M = found
    values, vectors = torch.linalg.eigh(M)
    T = (vectors * values.rsqrt()[..., None, :]).expand_as(eye)
    return Problem(operator.transformed(T), y / problem.size[..., None], w.expand_as(y)), T


@dataclass(frozen=True, eq=False)
class _Best:
    """The best matrices and the best bounds so far of a normalized problem."""

    problem: Problem
    U: Tensor  # [..., k, k]
    residual: Tensor  # [...]
    dual: Tensor  # [..., n]
    bound: Tensor  # [...]

    @classmethod
    def zero(cls, problem: Problem) -> _Best:
        """Begin with Q = 0, which is optimal if `A*(y) <= 0`."""
        y = problem.y
        one = torch.linalg.vector_norm(y, dim=-1)  # 0 if y = 0
        U = y.new_zeros(*y.shape[:-1], problem.d, problem.d)
        begin = cls(problem, U, one, torch.zeros_like(y), torch.zeros_like(one))
        return begin.with_dual(-y)

    @property
    def open(self) -> Tensor:
        """Whether neither an interpolant nor the optimum is found, `[...]`."""
        return ~is_optimal(self.residual, self.bound)

    def offered(self, U: Tensor, index: Tensor | None = None) -> _Best:
        """Take the factors U where they are better, and their residuals where they prove more."""
        if index is not None:
            U = self.U.index_copy(0, index, U)
        e = self.problem.residual(self.problem.operator.project(U))
        residual = self.problem.relative(e)
        better = residual < self.residual
        taken = replace(
            self,
            U=torch.where(better[..., None, None], U, self.U),
            residual=torch.where(better, residual, self.residual),
        )
        return taken.with_dual(e)

    def with_dual(self, z: Tensor, index: Tensor | None = None) -> _Best:
        """Take the vectors z, made feasible, where they give a larger bound."""
        if index is not None:
            z = self.dual.index_copy(0, index, z)
        z = feasible(self.problem, z)
        bound = residual_bound(self.problem, z)
        better = bound > self.bound
        return replace(
            self,
            dual=torch.where(better[..., None], z, self.dual),
            bound=torch.where(better, bound, self.bound),
        )


def _with_least_squares(best: _Best) -> _Best:
    """Offer the positive part of the symmetric matrix of least residual, where it is determined."""
    S, complete = best.problem.operator.symmetric_fit(best.problem.y)
    values, vectors = torch.linalg.eigh(S)
    U = positive_factor(values, vectors)
    best = best.offered(torch.where(complete[..., None, None], U, 0.0))
    inside = complete & (values[..., 0] >= 0) & best.open
    if bool(inside.any()):
        part, chosen = best.problem.where(inside)
        V = best.U if chosen is None else best.U[chosen]
        best = best.with_dual(_stationary_dual(part, V), chosen)
    return best


def _refined(best: _Best, v: Tensor, history: History) -> _Best:
    """Continue where the path ended: descend on factors of the numerical rank, and of full rank."""
    part, chosen = best.problem.where(best.open)
    U, v = (best.U, v) if chosen is None else (best.U[chosen], v[chosen])
    size = torch.linalg.vector_norm(v, dim=-1, keepdim=True).clamp_min(tiny(v))
    # The first separates zeros of Q if nothing interpolates, the second if something does.
    starts = torch.stack([_truncated(part, U, v), _truncated(part, U, part.n**0.5 / size * v), U])
    for V in starts[:2]:
        best = best.with_dual(_stationary_dual(part, V), chosen)
    if not bool(best.open.any()):
        return best
    method = Levenberg(part, part.d)
    ends = [fitted(0.0), at_rounding(_POLISH_PATIENCE), stagnated(_STALLED, _RATE)]
    state = History(history.budget).run(
        method, method.start(starts), ends, steps=SECOND_ORDER_STEPS
    )
    for V, e in zip(state.U, state.e, strict=True):
        best = best.offered(V, chosen)
        best = best.with_dual(_stationary_dual(part, _truncated(part, V, e)), chosen)
    return best


def _truncated(problem: Problem, U: Tensor, v: Tensor) -> Tensor:
    """Return U without the directions in which `UU'` is smaller than `A*(v)`.

    At the optimum one of the two matrices is zero along each eigenvector of the other.
    """
    W, s, _ = torch.linalg.svd(U)
    slack = (W * (problem.operator.adjoint_kernel(v) @ W)).sum(-2)
    return W * torch.where(s.square() > slack, s, 0.0)[..., None, :]


def _stationary_dual(problem: Problem, U: Tensor) -> Tensor:
    """Return the projection of the residual of U onto the vectors z with `A*(z) U = 0`.

    Near the optimum the residual has this property up to the rounding of y, its projection up to
    that of the residual itself, which may be much smaller.
    """
    Z = problem.operator.project(U)
    z = problem.residual(Z)
    K, _ = problem.operator.normal_equations(Z, z)
    ridge = torch.finfo(K.dtype).eps * K.shape[-1] * K.diagonal(dim1=-2, dim2=-1).amax(-1)
    K.diagonal(dim1=-2, dim2=-1).add_(torch.where(ridge > 0, ridge, 1.0)[..., None])
    factor, _ = torch.linalg.cholesky_ex(K)
    for _ in range(_PASSES):
        slope = 2 * problem.operator.weighted_adjoint(z, Z).flatten(-2)
        solved = torch.cholesky_solve(slope[..., None], factor)[..., 0].unflatten(-1, U.shape[-2:])
        z = z - 2 * problem.operator.paired(Z, problem.operator.project(solved))
    return torch.where(torch.isfinite(z).all(-1, keepdim=True), z, 0.0)


def _result(
    problem: Problem, best: _Best, transform: Tensor, steps: Tensor, level: float
) -> PositiveFit:
    """Return the answer in the coordinates of the given problem."""
    factor = transform @ best.U * problem.size.sqrt()[..., None, None]
    missing = problem.d - factor.shape[-1]
    factor = torch.nn.functional.pad(factor, (0, missing))
    residual = problem.relative_residual(factor)
    return PositiveFit(
        factor=factor,
        residual=residual,
        interpolates=residual <= level,
        farkas=best.dual * problem.size[..., None],
        bound=best.bound,
        steps=steps,
    )


def is_optimal(residual: Tensor, bound: Tensor) -> Tensor:
    """Whether a relative residual exceeds its lower bound by rounding only, `[...]`."""
    return residual - bound <= OPTIMAL * residual + ROUNDING
