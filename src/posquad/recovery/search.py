"""Search for a factor that reproduces the responses: which solver, from which starts.

The first attempt uses the cheapest solver for the shape of the problem. Problems that are not
solved by it are tried from other starts, in rounds: perturbed copies of the first start, and the
limits of log-det IRLS from random weights, which often differ where perturbed starts all agree. If
the responses cannot be reproduced, the search ends when enough starts reach the least residual.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from posquad.dynamics.loop import iterate
from posquad.geometry import dimension
from posquad.problems.measurements import RankOne
from posquad.recovery.budget import History
from posquad.recovery.initializers import lifted_start
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.cone import positive_fit
from posquad.recovery.solvers.fit import (
    FitState,
    at_rounding,
    fitted,
    index_state,
    stagnated,
    stationary,
)
from posquad.recovery.solvers.gauss_newton import GaussNewton
from posquad.recovery.solvers.irls import run_irls
from posquad.recovery.solvers.lbfgs import PopulationLBFGS
from posquad.recovery.solvers.levenberg import Levenberg, screening_rules

_DENSE_MOST = 1500  # samples up to which n x n systems are solved
_DIRECT_MOST = 2**22  # entries up to which the direct system is formed
_TINY = 60  # unknowns up to which the arithmetic of a dense step costs less than its overhead
_MODERATE = 250  # unknowns up to which a dense step costs less than reweighting
_AMPLE = 1.7  # samples per unknown from which a first-order run is the cheaper first attempt
_PLENTY = 20  # samples per unknown from which different starts hardly ever disagree
_COMPANIONS = 8  # further starts tried with the first one, near the information limit
_QUOTA = 600  # first-order steps before Gauss-Newton takes over
_PATIENCE, _RATE = 10, 0.5  # settings of `stagnated` when starts are screened
_SAME = 1e-3  # starts agree if their residuals differ by at most this share
_OTHERS = 48  # starts of each kind that look for a second solution
_DEFINITE = 1e-7  # a matrix is positive definite if lambda_min exceeds this share of lambda_max
_SPREAD = 1.0  # size of a perturbation, relative to the start


@dataclass
class Search:
    """The best factors found so far for a batch of problems, and how they were found."""

    problem: Problem
    rank: int
    tolerance: float  # relative residual at which responses count as reproduced
    history: History
    generator: torch.Generator
    max_starts: int

    def __post_init__(self) -> None:
        batch = self.problem.y.shape[:-1]
        y = self.problem.y
        self.budget = self.history.budget
        self.U = y.new_zeros(*batch, self.problem.d, self.rank)
        self.residual = y.new_ones(batch)  # of Q = 0
        self.starts = torch.zeros(batch, dtype=torch.int64, device=y.device)
        self.agreeing = torch.zeros_like(self.starts)
        self.p = dimension(self.problem.d, self.rank)
        self.first = self.U
        self.exact = torch.zeros_like(self.starts, dtype=torch.bool)  # U is known to be optimal
        self.working: Tensor | None = None  # indices of the problems in the current run
        D = self.problem.d * (self.problem.d + 1) // 2
        self.kernel = self.problem.n <= min(D, _DENSE_MOST)  # an n x n kernel is affordable

    @property
    def settled(self) -> Tensor:
        """Whether the least residual is known, or was reached by enough starts, `[...]`."""
        # Near the information limit, spurious minima are common and found repeatedly.
        excess = max(self.problem.n / self.p - 1, 0.05)
        least = min(math.ceil(12 / excess**2), math.ceil(0.75 * self.max_starts))
        return self.exact | (self.agreeing >= max(2, least))

    @property
    def open(self) -> Tensor:
        """Whether a problem is neither reproduced nor settled, and has starts left, `[...]`."""
        undecided = (self.residual > self.tolerance) & ~self.settled
        return undecided & (self.starts < self.max_starts)

    def adopt(self, U: Tensor) -> None:
        """Refine a given factor instead of searching."""
        self.U = U
        self._guarded(self._polish)

    def run(self) -> None:
        """Run the first attempt, rounds of restarts, and the final refinement."""
        self._guarded(self._search)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do the work until Ctrl-C; keep the last state of an interrupted run."""
        self.history.last = None
        try:
            work()
        except KeyboardInterrupt:
            self.budget.interrupted = True
            state = self.history.last
            if state is not None and state.U.ndim == self.U.ndim + 1:
                self._keep(state, self.working, count=False)

    def _search(self) -> None:
        self._first_attempt()
        rounds = 0
        while bool(self.open.any()) and not self.budget.spent:
            self._restart(rounds)
            rounds += 1
        self._polish()

    def _first_attempt(self) -> None:
        """Make one attempt with the cheapest solver for the shape of the problem."""
        problem, r = self.problem, self.rank
        n, d = problem.n, problem.d
        D = d * (d + 1) // 2
        operator = problem.operator
        if n >= D and problem.y.numel() * D <= _DIRECT_MOST * max(1, self.residual.numel()):
            Q, complete = operator.symmetric_fit(problem.y)
            U = _positive_part(Q, r)
            bounded = lifted_start(operator, problem.y, r, "bounded")
            U = torch.where(complete[..., None, None], U, bounded)
            self._without_descent(U, Q, complete)
        elif self.kernel:
            U = lifted_start(operator, problem.y, r, "interpolant")
        else:
            U = lifted_start(operator, problem.y, r, "bounded")
        self.first = U
        if bool(self.exact.all()):
            return
        problem, chosen = self._chosen(~self.exact)
        self.working = chosen
        tries = U[None] if chosen is None else U[None, chosen]
        if n < _AMPLE * self.p and self.p <= _TINY and U.ndim == 2:
            companions = min(_COMPANIONS, self.max_starts - 1)  # at almost no cost
            tries = torch.cat([tries, self._perturbed(None, companions)])
        elif n < _AMPLE * self.p and self.p > _TINY and self.kernel:
            tries = self._reweighted(problem, 1, plain=True)
        self._keep(self._descend(problem, tries), chosen)

    def _without_descent(self, U: Tensor, Q: Tensor, complete: Tensor) -> None:
        """Keep a spectral factor, and the optimum of problems that are convex.

        A problem is convex if the rank is not limited. Q has the least residual of all symmetric
        matrices. If it is positive definite, it is the answer `UU'`, with the accuracy of a QR
        factorization, which iterations would lose. Otherwise the optimum is on the boundary of the
        cone.
        """
        problem = self.problem
        spectral = _better_than_zero(problem, self.rank)
        self._keep(FitState.begin(problem, spectral[None]), count=False)
        if self.rank < problem.d or self.p > _MODERATE:
            return
        values = torch.linalg.eigvalsh(Q)
        noisy = complete & (problem.relative_residual(U) > self.tolerance)
        inside = noisy & (values[..., 0] > _DEFINITE * values[..., -1])
        self._accept_optimal(U, inside)
        outside = noisy & ~inside
        if bool(outside.any()):
            part, chosen = self._chosen(outside)
            V, proved = positive_fit(part, self.budget)
            if chosen is None:
                self._accept_optimal(V, proved)
            else:
                U, outside = U.index_copy(0, chosen, V), outside.index_copy(0, chosen, proved)
                self._accept_optimal(U, outside)

    def _accept_optimal(self, U: Tensor, optimal: Tensor) -> None:
        """Take the factors U that are known to be optimal, unless the current ones are better."""
        problem = self.problem
        residual = problem.relative_residual(U)
        better = optimal & (residual < self.residual)
        self.U = torch.where(better[..., None, None], U, self.U)
        self.residual = torch.where(better, residual, self.residual)
        self.exact = self.exact | optimal
        self.starts = self.starts + optimal

    def _descend(self, problem: Problem, U: Tensor) -> FitState:
        """Run the solver for the shape of the problem from the starts `U[S, ..., d, r]`."""
        n = problem.n
        if self.p <= _TINY or (n <= _DENSE_MOST and n < _AMPLE * self.p):
            method = Levenberg(problem, self.rank)
            rules = screening_rules(self.tolerance, _PATIENCE, _RATE)
            rules = [*rules, self.budget.rule()]
            return iterate(method, method.start(U), rules, record=self.history)
        first = PopulationLBFGS(problem)
        rounding = 20 * torch.finfo(U.dtype).eps
        ends = [fitted(rounding), stationary(1e-8), at_rounding(8), self.budget.rule()]
        quota = self.budget.quota(_QUOTA)
        state = iterate(first, first.start(U), [*ends, quota], record=self.history)
        if bool((state.residual <= self.tolerance).any(0).all()) or self.budget.spent:
            return state
        if bool((state.cosine <= 1e-8).all()):
            return state
        second = GaussNewton(problem)
        ends = [fitted(0.0), stationary(1e-8), at_rounding(), self.budget.rule()]
        ends.append(self.budget.quota(60))
        return iterate(second, second.start(state.U), ends, record=self.history)

    def _restart(self, rounds: int) -> None:
        """Try the open problems from a round of new starts."""
        problem, chosen = self._chosen(self.open)
        self.history.last, self.working = None, chosen
        if self.p <= _TINY:
            first = 2 if problem.n >= _PLENTY * self.p else 8
            reweighted, count = rounds % 4 == 1, first if rounds == 0 else 24
        elif self.p <= _MODERATE and problem.n <= _DENSE_MOST:
            reweighted, count = rounds % 2 == 0, 4 if rounds % 2 == 0 else 16
        else:
            reweighted, count = rounds % 6 != 5, 4 if problem.n <= _DENSE_MOST else 1
        if problem.y.ndim > 1:
            count = max(2, min(count, 20_000 // problem.y.numel()))
        reweighted = reweighted and self.kernel
        if reweighted:
            count = max(1, count // 2)
        used = self.starts if chosen is None else self.starts[chosen]
        count = min(count, self.max_starts - int(used.max()))
        if reweighted:
            U = self._reweighted(problem, count, plain=rounds == 1)
        else:
            U = self._perturbed(chosen, count)
        self._keep(self._descend(problem, U), chosen)

    def _chosen(self, mask: Tensor) -> tuple[Problem, Tensor | None]:
        """Return the problems where the mask holds and their indices, None for one problem."""
        if mask.ndim == 0:
            return self.problem, None
        chosen = mask.nonzero()[:, 0]
        return self.problem.select(chosen), chosen

    def _perturbed(self, chosen: Tensor | None, count: int) -> Tensor:
        """Return perturbed copies `[count, ..., d, r]` of the first start."""
        U = self.first if chosen is None else self.first[chosen]
        noise = self.normal(count, *U.shape)
        size = torch.linalg.matrix_norm(U) / math.sqrt(U.shape[-1] * U.shape[-2])
        return U + _SPREAD * size[..., None, None] * noise

    def _reweighted(self, problem: Problem, count: int, *, plain: bool) -> Tensor:
        """Return limits `[count, ..., d, r]` of IRLS from random weights.

        With `plain`, the first weight is the identity.
        """
        d = problem.d
        batch = problem.y.shape[:-1]
        N = self.normal(count, *batch, d, 2 * d)
        weight = N @ N.mT / (2 * d)
        if plain:
            weight[0] = torch.eye(d, dtype=N.dtype, device=N.device)
        state = run_irls(problem, self.rank, weight, 1e-3, self.history)
        size = torch.linalg.matrix_norm(state.U)[..., None, None]
        # Columns that are zero in the positive part start at small random values.
        filler = self.normal(*state.U.shape) * (size.clamp_min(1e-3) * 0.03)
        empty = torch.linalg.vector_norm(state.U, dim=-2, keepdim=True) <= 1e-3 * size
        return torch.where(empty, filler, state.U)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers of this shape."""
        y = self.problem.y
        return torch.randn(*shape, generator=self.generator, dtype=y.dtype).to(y.device)

    def _keep(self, state: FitState, chosen: Tensor | None = None, *, count: bool = True) -> None:
        """Keep the best of the starts `[S, ...]` of a run, and count those that agree with it."""
        residuals = torch.where(torch.isfinite(state.residual), state.residual, torch.inf)
        best, which = residuals.min(0)
        index = which[None, ..., None, None].expand(1, *state.U.shape[1:])
        U = state.U.gather(0, index)[0]
        where = ... if chosen is None else chosen
        old, seen = self.residual[where], self.agreeing[where]
        better = best < old
        level = torch.minimum(best, old)
        agree = (residuals <= level * (1 + _SAME)).sum(0)
        still = torch.where(old <= level * (1 + _SAME), seen, 0)
        self.U[where] = torch.where(better[..., None, None], U, self.U[where])
        self.residual[where] = level
        if count:
            self.agreeing[where] = still + agree
            self.starts[where] = self.starts[where] + residuals.shape[0]

    def _polish(self) -> None:
        """Refine the factors, to rounding if they reproduce, else to a stationary point."""
        # With many unknowns this costs more than the search, so the last digit is not worth it.
        units = 10 if self.p <= 200 else 50
        rough = self.residual > units * torch.finfo(self.residual.dtype).eps
        rough = rough & ~self.exact
        if not bool(rough.any()):
            return
        problem, chosen = self._chosen(rough)
        U = self.U if chosen is None else self.U[chosen]
        small = problem.n * problem.d * self.rank <= 2**23 and self.p <= 1000
        if not small and bool((self.residual <= self.tolerance).all()):
            return  # the first-order run already went to rounding
        method = Levenberg(problem, self.rank, "primal") if small else PopulationLBFGS(problem)
        ends = [stationary(), at_rounding(2 if small else 8), self.budget.rule()]
        state: FitState = iterate(
            method,  # pyright: ignore[reportArgumentType]
            method.start(U),
            [*ends, self.budget.quota(60 if small else 400)],
            record=self.history,
        )
        self._keep(index_state(state, None), chosen, count=False)


def find_second_solution(search: Search, transform: Tensor, apart: float) -> bool:
    """Return whether some start leads to a different matrix that reproduces the responses.

    Inputs with structure (zeros, signs, few distinct values) have symmetries, which can give
    separate solutions that the curvature does not reveal. `transform` leads back to the coordinates
    in which the inputs have the structure. A result of False proves nothing.
    """
    problem, U = search.problem, search.U
    d, r = problem.d, search.rank
    many = _OTHERS if search.p <= _MODERATE else _OTHERS // 8
    V = transform @ U
    coins = search.normal(many, len(V), 1).sign()
    orders = search.normal(many, len(V)).argsort(-1)
    turned = [
        _blocks(problem.operator.transformed(torch.linalg.pinv(transform))) * V,
        coins * V,
        V[orders],
    ]
    size = torch.linalg.matrix_norm(U) / math.sqrt(d * r)
    random = size * search.normal(many, d, r)
    starts = torch.cat([torch.linalg.pinv(transform) @ torch.cat(turned), random])
    dense = search.p <= _TINY or problem.n <= _DENSE_MOST
    method = Levenberg(problem, r) if dense else PopulationLBFGS(problem)
    Q = U @ U.mT
    for part in starts.split(max(1, 2**23 // max(problem.n * d * r, min(problem.n, d * r) ** 2))):
        if search.budget.spent:
            return False
        ends = [at_rounding(), stationary(), stagnated(20, 0.9), search.budget.rule()]
        state: FitState = iterate(
            method,  # pyright: ignore[reportArgumentType]
            method.start(part),
            [*ends, search.budget.quota(100 if dense else 300)],
            record=search.history,
        )
        fits = state.U[state.residual <= search.tolerance]
        away = torch.linalg.matrix_norm(fits @ fits.mT - Q)
        if bool((away > apart * torch.linalg.matrix_norm(Q)).any()):
            return True
    return False


def _blocks(operator: RankOne) -> Tensor:
    """Return signs `[B, d, 1]` that flip one block of coordinates each.

    No row of X has entries both inside and outside a block.
    """
    shared = operator.absolute_moments()
    joined = shared > 1e-12 * operator.largest_entry() ** 2
    for _ in range(max(1, math.ceil(math.log2(operator.d + 1)))):
        joined = (joined.to(shared) @ joined.to(shared)) > 0
    blocks = joined.unique(dim=0)
    return 1 - 2 * blocks.to(shared)[..., None]


def _positive_part(Q: Tensor, rank: int) -> Tensor:
    """Return a factor of the top `rank` eigenvalues of Q, each raised to at least a tiny one."""
    values, vectors = torch.linalg.eigh(Q)
    values, vectors = values[..., -rank:].flip(-1), vectors[..., -rank:].flip(-1)
    least = 1e-8 * values[..., :1].clamp_min(1e-300)
    return vectors * torch.maximum(values, least).sqrt()[..., None, :]


def _better_than_zero(problem: Problem, rank: int) -> Tensor:
    """Return a factor whose residual is less than that of Q = 0, or zero if Q = 0 is the best fit.

    It is that of tP, where P is the positive part of `W = X' diag(y) X` of this rank and
    `t = <A(P), y> / ||A(P)||^2`, which is positive because `<A(P), y> = <P, W> = ||P||^2`. If W has
    no positive part, `<A(S), y> <= 0` for every positive semidefinite S.
    """
    values, vectors = torch.linalg.eigh(problem.operator.adjoint_kernel(problem.y))
    U = (vectors * values.clamp_min(0).sqrt()[..., None, :])[..., -rank:].flip(-1)
    predicted = problem.operator.project(U).square().sum(-1)
    scale = (predicted * problem.y).sum(-1) / predicted.square().sum(-1).clamp_min(1e-300)
    return U * scale.clamp_min(0).sqrt()[..., None, None]
