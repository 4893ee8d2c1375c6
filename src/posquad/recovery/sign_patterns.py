"""All candidates for a solution of rank one: `x_i'u = s_i sqrt(y_i)` with signs `s_i`.

d independent rows and one sign for each of them determine u, so the solutions are among `2^(d-1)`
vectors up to the sign of u, and none of them is missed. The other rows tell which ones they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.recovery.problem import Problem

# Entries of the predictions that are formed together. Derived: 32 MB.
_ENTRIES = 2**22
# Candidates of least residual that are kept. A choice: one that is a solution is enough.
_KEPT = 8


def sign_candidates(problem: Problem, U: Tensor, apart: Tensor) -> Tensor:
    """Return candidates `[k, ..., d, 1]` other than the solution `U[..., d, 1]`.

    They are those of least residual whose matrices are farther than `apart[...]` from UU', relative
    to it. The inputs must span the space.
    """
    d, count = problem.d, 2 ** (problem.d - 1)
    X = problem.operator.project(torch.eye(d, dtype=problem.y.dtype, device=problem.y.device))
    if X.ndim == 2:
        return _candidates(X[None], problem.y[None], U[None], apart[None])[:, 0]
    size = max(1, _ENTRIES // (count * problem.n))
    parts = zip(*(t.split(size) for t in (X, problem.y, U, apart)), strict=True)
    return torch.cat([_candidates(*part) for part in parts], dim=1)


def _candidates(X: Tensor, y: Tensor, known: Tensor, apart: Tensor) -> Tensor:
    """Return the same for `X[B, n, d]`, `y[B, n]`, `known[B, d, 1]` and `apart[B]`."""
    d = X.shape[-1]
    order = torch.linalg.lu(X).P.mT  # pivoting puts well-conditioned rows first
    rows, roots = (order @ X)[:, :d], (order @ y.clamp_min(0).sqrt()[..., None])[:, :d]
    U = torch.linalg.solve(rows, roots * _signs(d).to(X))  # [B, d, 2^(d-1)]
    error = ((X @ U).square() - y[..., None]).square().sum(-2)
    # A row with y_i = 0 has one value for both signs, so that the solution has many copies.
    size = known.square().sum(-2)
    away = U.square().sum(-2).square() + size**2 - 2 * (known.mT @ U)[:, 0].square()
    other = torch.isfinite(error) & (away > (apart[:, None] * size).square())
    error = torch.where(other, error, torch.inf)
    best = error.topk(min(_KEPT, error.shape[-1]), largest=False).indices
    return U.gather(-1, best[:, None, :].expand(-1, d, -1)).permute(2, 0, 1)[..., None]


def _signs(d: int) -> Tensor:
    """Return all columns of signs `[d, 2^(d-1)]` that begin with 1."""
    bits = torch.arange(2 ** (d - 1)) >> torch.arange(d).flip(0)[:, None]
    return 1.0 - 2.0 * (bits & 1)
