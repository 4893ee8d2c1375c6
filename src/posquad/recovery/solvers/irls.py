"""Kernel log-det IRLS: iteratively reweighted least squares towards low rank, in dual form.

`D <- I`; repeat `K = (X D X')` squared entrywise, `a = K^{-1} y`, `Q = D X' diag(a) X D`,
eigendecompose, `D <- V max(|lambda|, floor) V'`. Every iterate interpolates; the first is the
interpolant of least Frobenius norm. The floor falls with |lambda|_{r+1} and by a fixed factor, so
the iteration always ends: at a matrix of rank r, or not (STALLED).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

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
from posquad.core.progress import Progress
from posquad.core.status import Status
from posquad.dynamics.loop import Method, Rule, State, clock, iterate
from posquad.recovery.initializers import kernel_solve
from posquad.recovery.solvers.fit import Quadratic, Solution, Watch, enter_data, package

__all__ = ["logdet_irls"]

_DECAY = 0.85  # of the floor a step, at least


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
) -> Solution:
    """The interpolant of low rank that reweighting finds, and its positive part of rank `rank`.

    For problems with n up to a few thousand and at most `d(d+1)/2`: cost a step O(n^2 d + n^3) and
    memory n^2, about d/r passes over X. Needs no start; other `weight[..., d, d]` (positive
    definite, default the identity) lead to other answers where several exist.

    Args:
        X, y, rank: `[..., n, d]`, `[..., n]` and the rank to reach.
        weight: the first D; dimensions in front of those of X are further starts.
        tolerance: end when the floor is at most this share of the largest eigenvalue. Conditioning
            limits it to about 1e-7; polish with `levenberg_marquardt`.

    >>> X = np.random.default_rng(0).standard_normal((9, 4))
    >>> found = logdet_irls(X, (X @ [1.0, 2.0, 0.0, 1.0]) ** 2, 1)
    >>> np.allclose(found.U[:, 0] ** 2, [1, 4, 0, 1], atol=1e-5), found.status.name
    (True, 'LOSS_REACHED')
    """
    inputs, responses = tensors(X=X, y=y)
    problem = enter_data(inputs, responses)
    rank = positive_integer("rank", rank)
    if rank > problem.d:
        raise DomainError("rank", expected=f"at most d = {problem.d}", got=str(rank))
    positive_number("tolerance", tolerance)
    D = torch.eye(problem.d, dtype=inputs.dtype, device=inputs.device)
    if weight is not None:
        _, D = tensors(X=X, weight=weight)
        require_symmetric("weight", D)
    _require_range(problem)
    watch = Watch(max_steps=max_steps, time_limit=time_limit, progress=progress)
    with torch.no_grad():
        state = run(problem, rank, D, tolerance, watch)
    return package(watch, state, X)


def _require_range(problem: Quadratic) -> None:
    """Refuse inputs whose fourth powers, summed and inverted, leave the dtype."""
    least, most = (2.0**k for k in (-60, 60)) if problem.X.dtype == torch.float64 else (2e-4, 5e3)
    size = float(problem.X.abs().amax()) if problem.X.numel() else 1.0
    if not least <= size <= most:
        expected = f"a largest entry from {least:.0e} to {most:.0e}: rescale the inputs"
        raise DomainError("X", expected=expected, got=f"{size:.3e}")


@dataclass(frozen=True)
class IRLSState(State):
    weight: Tensor  # [..., d, d]
    floor: Tensor  # [...]  relative to the largest eigenvalue
    beyond: Tensor  # [...]  |lambda|_{r+1} / |lambda|_1
    U: Tensor  # [..., d, r]  positive part of rank r of the last interpolant
    residual: Tensor  # [...]  of U
    passes: Tensor  # [...]


def run(problem: Quadratic, rank: int, weight: Tensor, tolerance: float, watch: Watch) -> IRLSState:
    """From a weight (with starts in front) to the end."""
    method = Reweighting(problem, rank)
    rules: list[Rule[IRLSState]] = [
        (Status.LOSS_REACHED, lambda s: (s.floor <= tolerance) & (s.beyond <= 10 * tolerance)),
        (Status.STALLED, lambda s: s.floor <= tolerance),
        watch.rule(),
    ]
    return iterate(method, method.start(weight), rules, record=watch)


class Reweighting(Method[IRLSState]):
    """One weighted interpolation and the next weight."""

    def __init__(self, problem: Quadratic, rank: int) -> None:
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
        XD = problem.X @ state.weight  # [..., n, d]
        a = kernel_solve((XD @ problem.X.mT).square(), problem.y)
        Q = XD.mT @ (a[..., None] * XD)
        values, vectors = torch.linalg.eigh((Q + Q.mT) / 2)
        sizes = values.abs()
        top = sizes.amax(-1).clamp_min(torch.finfo(sizes.dtype).tiny)
        sorted_sizes = sizes.sort(-1, descending=True).values
        beyond = sorted_sizes[..., r] / top if r < problem.d else torch.zeros_like(top)
        floor = torch.minimum(_DECAY * state.floor, beyond)
        floor = floor.clamp_min(torch.finfo(sizes.dtype).eps)
        weights = torch.maximum(sizes / top[..., None], floor[..., None])
        kept, along = values[..., -r:].flip(-1), vectors[..., -r:].flip(-1)
        U = along * kept.clamp_min(0).sqrt()[..., None, :]
        residual = problem.relative(problem.residual(problem.forward(U)))
        columns = -(-problem.d // r)
        return replace(
            state,
            weight=(vectors * weights[..., None, :]) @ vectors.mT,
            floor=floor,
            beyond=beyond,
            U=U,
            residual=residual,
            steps=state.steps + 1,
            attempts=state.attempts + 1,
            passes=state.passes + 3 * columns + 1,
        )

    def record_due(self, state: IRLSState) -> bool:
        return True
