"""All candidates for a solution of rank one: `x_i'u = s_i sqrt(y_i)` with signs `s_i`.

d independent rows and one sign for each of them determine u, so the solutions are among `2^(d-1)`
vectors up to the sign of u, and none of them is missed. The other rows tell which ones they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.problems.measurements import RankOne
from posquad.recovery.costs import at_once
from posquad.recovery.problem import Problem

# Largest d for which all 2^(d-1) candidates of a second solution of rank one are tried. Derived:
# n 2^(d-1) < 2^18 predictions, since n < d(d+1)/2.
SIGN_DIMENSION = 12
# Candidates of least residual that are kept. A choice: one that is a solution is enough.
_KEPT = 8
# Predictions of all candidates up to which they are tried as starts. Derived: they take about a
# second; d = 20 with 28 rows.
_PREDICTIONS = 2**24


def has_pattern_starts(problem: Problem, rank: int) -> bool:
    """Return whether all candidates are few enough to be starts.

    >>> few = Problem(RankOne(torch.eye(20)), torch.ones(20))
    >>> has_pattern_starts(few, 1), has_pattern_starts(few, 2)
    (True, False)
    """
    n, d = problem.n, problem.d
    rows = isinstance(problem.operator, RankOne) and not problem.operator.batch_shape
    return rows and rank == 1 and n >= d and n * 2 ** (d - 1) <= _PREDICTIONS


def pattern_starts(problem: Problem) -> Tensor:
    """Return the candidates `[k, d, 1]` of least residual of one problem."""
    eye = torch.eye(problem.d, dtype=problem.y.dtype, device=problem.y.device)
    X = problem.operator.project(eye)
    return _candidates(X[None], problem.y[None], None, None)[:, 0]


def sign_candidates(problem: Problem, U: Tensor, apart: Tensor) -> Tensor:
    """Return candidates `[k, ..., d, 1]` other than the solution `U[..., d, 1]`.

    They are those of least residual whose matrices are farther than `apart[...]` from UU', relative
    to it. The inputs must span the space.
    """
    d, count = problem.d, 2 ** (problem.d - 1)
    X = problem.operator.project(torch.eye(d, dtype=problem.y.dtype, device=problem.y.device))
    if X.ndim == 2:
        return _candidates(X[None], problem.y[None], U[None], apart[None])[:, 0]
    size = at_once(count * problem.n)
    parts = zip(*(t.split(size) for t in (X, problem.y, U, apart)), strict=True)
    return torch.cat([_candidates(*part) for part in parts], dim=1)


def _candidates(X: Tensor, y: Tensor, known: Tensor | None, apart: Tensor | None) -> Tensor:
    """Return the same for `X[B, n, d]`, `y[B, n]`, `known[B, d, 1]` and `apart[B]`."""
    (B, n, d), count = X.shape, 2 ** (X.shape[-1] - 1)
    order = torch.linalg.lu(X).P.mT  # pivoting puts well-conditioned rows first
    rows, roots = (order @ X)[:, :d], (order @ y.clamp_min(0).sqrt()[..., None])[:, :d]
    best, errors = X.new_empty(B, d, 0), X.new_empty(B, 0)
    step = at_once(B * n)
    for first in range(0, count, step):
        signs = _signs(d, first, min(first + step, count)).to(X)
        U = torch.linalg.solve(rows, roots * signs)  # [B, d, m]
        error = ((X @ U).square() - y[..., None]).square().sum(-2)
        error = torch.where(torch.isfinite(error), error, torch.inf)
        if known is not None and apart is not None:
            # A row with y_i = 0 has one value for both signs, so that the solution has many copies.
            size = known.square().sum(-2)
            away = U.square().sum(-2).square() + size**2 - 2 * (known.mT @ U)[:, 0].square()
            error = torch.where(away > (apart[:, None] * size).square(), error, torch.inf)
        errors, U = torch.cat([errors, error], -1), torch.cat([best, U], -1)
        errors, index = errors.topk(min(_KEPT, errors.shape[-1]), largest=False)
        best = U.gather(-1, index[:, None, :].expand(-1, d, -1))
    return best.permute(2, 0, 1)[..., None]


def _signs(d: int, first: int, last: int) -> Tensor:
    """Return these columns of signs `[d, m]`, of the `2^(d-1)` that begin with 1."""
    bits = torch.arange(first, last) >> torch.arange(d).flip(0)[:, None]
    return 1.0 - 2.0 * (bits & 1)
