"""The best factor with a given range, found without a product with X.

Where a direction of the solution is weaker than the error of the current factor, the factor has a
column in an arbitrary direction instead, and a common step length for all columns removes it
slowly. The least-squares fit over the range of U gives every column its best size at once, and with
it the next step turns the weak columns faster.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.core.ranges import tiny
from posquad.core.symmetric import svec, symmetric_gram, symmetric_matrix
from posquad.problems.measurements import RankOne
from posquad.problems.products import adjoint_product, tall_product
from posquad.recovery.problem import Problem

# Smallest eigenvalue of Q, over the error of Q, up to which a refit is worth its cost. A choice:
# half and double do as well.
_WEAK = 4.0
# Residual, relative to that of the step before, up to which it is not noise. A choice: half and
# double do as well.
_FALLING = 0.97
# Least factor on the eigenvalues of Q, so that U keeps its rank. A choice: half and double do as
# well.
_FLOOR = 0.1
# Least eigenvalue of U'U, over the largest, that is told from rounding. Derived: about 50 eps.
_RANGE = 1e-14


def refit_in_range(problem: Problem, U: Tensor, Z: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Return `UC` and `XUC` with `CC'` close to the S that minimises `||A(USU') - y||`.

    `U[..., d, r]` is returned as it is where `Z = XU` says that all its columns are stronger than
    the error of `UU'`, where the relative residual has hardly fallen from the one `before[...]`,
    so that it may be noise, and where the fit does not lower it. The cost is O(n r^4), without a
    pass over X. The rows of X should have a covariance near the identity. Other measurements, whose
    products with U are not products of rows, are not refitted.
    """
    n, r = problem.n, U.shape[-1]
    if not isinstance(problem.operator, RankOne) or not _is_cheap(problem.d, r):
        return U, Z
    e = problem.residual(Z)
    falling = problem.relative(e) < _FALLING * before
    if not bool(falling.any()):
        return U, Z
    values, P = torch.linalg.eigh(adjoint_product(Z, Z) / n)  # of U'U, for isotropic rows
    away = torch.linalg.vector_norm(e, dim=-1) / (2 * n) ** 0.5  # ||UU' - Q||, for Gaussian rows
    due = falling & (values[..., 0] <= _WEAK * away)
    if not bool(due.any()):
        return U, Z
    # In the coordinates of Y the system is well conditioned however different the columns are.
    T = P / values.clamp_min(tiny(Z)).sqrt()[..., None, :]
    Y = tall_product(Z, T)
    L, failed = torch.linalg.cholesky_ex(symmetric_gram(Y))
    right = -svec(adjoint_product(Y, e[..., None] * Y))[..., None]
    change = T @ symmetric_matrix(torch.cholesky_solve(right, L)[..., 0], r) @ T.mT  # S - I
    sound = due & (failed == 0) & (values[..., 0] > _RANGE * values[..., -1])
    sound = sound & torch.isfinite(change).all(-1).all(-1)
    w, V = torch.linalg.eigh(torch.where(sound[..., None, None], change, 0.0))
    C = (V * (1 + w).clamp_min(_FLOOR).sqrt()[..., None, :]) @ V.mT
    ZC = tall_product(Z, C)
    old, new = (v.square().sum(-1) for v in (e, problem.residual(ZC)))
    better = (sound & (new < old))[..., None, None]
    return torch.where(better, U @ C, U), torch.where(better, ZC, Z)


def _is_cheap(d: int, r: int) -> bool:
    """Whether the Gram matrix of r(r+1)/2 columns costs less than a product with X."""
    return (r * (r + 1) // 2) ** 2 <= 2 * d * r
