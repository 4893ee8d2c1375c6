"""Kernel log-det IRLS: iteratively reweighted least squares for low rank, in dual form.

From `D = I`, each iteration forms K with the entries `<A_i, D A_j D>`, which are the squares of
those of `X D X'` for rows, solves `a = K^{-1} y`, forms `Q = D A*(a) D = V diag(lambda) V'`, and
sets `D = V max(|lambda|, floor) V'`. Every iterate
interpolates; the first is the interpolant of least Frobenius norm. The floor is at most
|lambda|_{r+1} and falls at least by a fixed factor, so the iteration always ends, either at a
matrix of rank r or as STALLED.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from posquad.core.arrays import (
    A,
    Array,
    broadcast_shape,
    positive_integer,
    positive_number,
    require_symmetric,
    tensors,
)
from posquad.core.errors import DomainError
from posquad.core.linalg import leading_pairs, positive_factor
from posquad.core.progress import Progress
from posquad.core.ranges import KERNEL_INPUTS, tiny
from posquad.core.status import Status
from posquad.dynamics.loop import Method, Rule, State, clock
from posquad.problems.measurements import RankOne
from posquad.recovery.budget import Budget, History
from posquad.recovery.initializers import kernel_solve
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.fit import SolverResult, checked_data, run_to_result

__all__ = ["logdet_irls"]

# Factor by which every step lowers the floor at least. A choice: half and double do as well.
_DECAY = 0.85
# Eigenvalue beyond the rank, over the tolerance, up to which the rank is reached. A choice: the
# floor, which follows this eigenvalue, may be one step ahead of it.
_BEYOND = 10


def logdet_irls(
    X: A,
    y: A,
    rank: int,
    *,
    weight: Array | None = None,
    tolerance: float = 1e-7,
    max_steps: int = 200,
    time_limit: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> SolverResult:
    """Find an interpolant of low rank by reweighting; return the factor of its positive part.

    Use it for n up to a few thousand and at most `d(d+1)/2`. A step costs O(n^2 d + n^3), with
    about d/r passes over X, and memory is O(n^2). No start is needed; if there are several answers,
    different weights lead to different ones.

    Args:
        X, y, rank: `[..., n, d]`, `[..., n]` and the rank to reach.
        weight: the first D, `[..., d, d]`, positive definite; the identity by default. Dimensions
            in front of those of X are further starts.
        tolerance: end when the floor is at most this share of the largest eigenvalue. Conditioning
            limits it to about 1e-7; refine the answer with `levenberg_marquardt`.
        max_steps, time_limit: maximum number of steps and of seconds.
        progress: called with a `Progress` at every step.

    >>> X = np.random.default_rng(0).standard_normal((9, 4))
    >>> found = logdet_irls(X, (X @ [1.0, 2.0, 0.0, 1.0]) ** 2, 1)
    >>> np.allclose(found.U[:, 0] ** 2, [1, 4, 0, 1], atol=1e-5), found.status.name
    (True, 'LOSS_REACHED')
    """
    inputs, responses = tensors(X=X, y=y)
    problem = checked_data(inputs, responses)
    rank = positive_integer("rank", rank)
    if rank > problem.d:
        raise DomainError("rank", expected=f"at most d = {problem.d}", got=str(rank))
    positive_number("tolerance", tolerance)
    D = torch.eye(problem.d, dtype=inputs.dtype, device=inputs.device)
    if weight is not None:
        _, D = tensors(X=X, weight=weight)
        require_symmetric("weight", D)
    _require_range(problem)
    history = History(Budget(max_steps=max_steps, time_limit=time_limit), progress)
    return run_to_result(lambda: run_irls(problem, rank, D, tolerance, history), history, X)


def _require_range(problem: Problem) -> None:
    """Refuse inputs whose fourth powers, or their inverses, overflow or underflow."""
    least, most = KERNEL_INPUTS.of(problem.y.dtype)
    assert isinstance(problem.operator, RankOne), "made of checked inputs"
    size = float(problem.operator.largest_entry())
    if not least <= size <= most:
        expected = f"a largest entry from {least:.0e} to {most:.0e}: rescale the inputs"
        raise DomainError("X", expected=expected, got=f"{size:.3e}")


@dataclass(frozen=True)
class IRLSState(State):
    """Weights and interpolants of a batch of problems."""

    weight: Tensor  # [..., d, d]
    floor: Tensor  # [...]  relative to the largest eigenvalue
    beyond: Tensor  # [...]  |lambda|_{r+1} / |lambda|_1
    U: Tensor  # [..., d, r]  positive part of rank r of the last interpolant
    residual: Tensor  # [...]  of U
    passes: Tensor  # [...]


def run_irls(
    problem: Problem, rank: int, weight: Tensor, tolerance: float, history: History
) -> IRLSState:
    """Iterate from a weight `[S, ..., d, d]`, one for each start, to the end."""
    method = Reweighting(problem, rank)
    rules: list[Rule[IRLSState]] = [
        (Status.LOSS_REACHED, lambda s: (s.floor <= tolerance) & (s.beyond <= _BEYOND * tolerance)),
        (Status.STALLED, lambda s: s.floor <= tolerance),
    ]
    return history.run(method, method.start(weight), rules)


class Reweighting(Method[IRLSState]):
    """Weighted interpolation, followed by the choice of the next weight."""

    def __init__(self, problem: Problem, rank: int) -> None:
        self.problem, self.rank = problem, rank

    def start(self, weight: Tensor) -> IRLSState:
        batch = broadcast_shape(weight.shape[:-2], self.problem.y.shape[:-1])
        weight = weight.expand(*batch, *weight.shape[-2:])
        one = weight.new_ones(batch)
        fields = clock(one)
        U = weight.new_zeros(*batch, self.problem.d, self.rank)
        return IRLSState(
            **fields,
            weight=weight,
            floor=one,
            beyond=one,
            U=U,
            residual=one,
            passes=fields["steps"],
        )

    def advance(self, state: IRLSState) -> IRLSState:
        problem, r = self.problem, self.rank
        a = kernel_solve(problem.operator.inner_products(state.weight), problem.y)
        Q = state.weight @ problem.operator.adjoint_kernel(a) @ state.weight
        values, vectors = torch.linalg.eigh((Q + Q.mT) / 2)
        sizes = values.abs()
        top = sizes.amax(-1).clamp_min(tiny(sizes))
        sorted_sizes = sizes.sort(-1, descending=True).values
        beyond = sorted_sizes[..., r] / top if r < problem.d else torch.zeros_like(top)
        floor = torch.minimum(_DECAY * state.floor, beyond)
        floor = floor.clamp_min(torch.finfo(sizes.dtype).eps)
        weights = torch.maximum(sizes / top[..., None], floor[..., None])
        U = positive_factor(*leading_pairs((values, vectors), r))
        columns = -(-problem.d // r)
        return state.stepped(
            weight=(vectors * weights[..., None, :]) @ vectors.mT,
            floor=floor,
            beyond=beyond,
            U=U,
            residual=problem.relative_residual(U),
            passes=state.passes + 3 * columns + 1,
        )
