"""Least squares over positive semidefinite matrices for a batch of small problems.

Where the samples determine every symmetric matrix, least squares leaves a quadratic form in the
entries of Q, and `minimise_positive` finds its minimum over the cone. If the problems share their
inputs, the form is the same for all, and its factorization is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posquad.recovery.problem import Problem
from posquad.recovery.solvers.cone import INTERPOLATES, is_optimal
from posquad.recovery.solvers.cone_newton import minimise_positive

# Least pivot of the linear system, over the largest, of samples that determine every symmetric
# matrix. Derived: the form squares it, to 1e-12, which leaves four digits of sixteen.
_DETERMINED = 1e-6
# Largest d(d+1)/2 for which problems are solved together. Derived: d = 16, where the matrices of
# one problem fill a cache of 256 kB.
_MOST = 136


@dataclass(frozen=True, eq=False)
class BatchFit:
    """The best positive semidefinite matrices `UU'` of a batch, with bounds that prove it."""

    factor: Tensor  # [B, d, d]  columns of descending norm
    residual: Tensor  # [B]  ||A(UU') - y|| / ||y||
    bound: Tensor  # [B]  no positive semidefinite matrix has a lower relative residual
    optimal: Tensor  # [B]  whether both agree, or the responses are interpolated


def fit_positive_batch(problem: Problem) -> BatchFit | None:
    """Minimise `||A(Q) - y||` over positive semidefinite Q for a batch `y[B, n]`.

    A problem costs O(nD) operations with D = d(d+1)/2 if all share their inputs, O(nD^2) if not,
    and O(D^3) more for each Newton step where least squares is not positive. Returns None for one
    problem, in single precision, for D above 136, and if the inputs of no problem determine all
    symmetric matrices well enough. Problems whose inputs do not are not `optimal`.
    """
    y, d = problem.y, problem.d
    D = d * (d + 1) // 2
    if y.ndim != 2 or y.dtype != torch.float64 or min(problem.n, _MOST) < D:
        return None
    one = problem.operator.shared
    A = (one or problem.operator).system  # [n, D] or [B, n, D]
    basis, R = torch.linalg.qr(A)
    pivots = R.diagonal(dim1=-2, dim2=-1).abs()
    determined = pivots.amin(-1) > _DETERMINED * pivots.amax(-1)  # [] or [B]
    if not bool(determined.any()):
        return None
    if not bool(determined.all()):
        R = torch.where(determined[..., None, None], R, torch.eye(D, dtype=R.dtype).to(R))
    if one is not None:  # the responses are the columns of one right-hand side
        c = torch.linalg.solve_triangular(R, (y @ basis).mT, upper=True).mT.contiguous()
    else:
        c = torch.linalg.solve_triangular(R, basis.mT @ y[..., None], upper=True)[..., 0]
    found = minimise_positive(R.mT @ R, c)
    fitted = found.entries @ A.mT if one is not None else (A @ found.entries[..., None])[..., 0]
    residual = problem.relative(fitted.sub_(y))
    # ||A(P) - y||^2 is twice the quadratic form plus a constant, whatever P is.
    bound = (residual.square() - 2 * found.gap / problem.size.square()).clamp_min(0.0).sqrt()
    optimal = determined & found.solved & (is_optimal(residual, bound) | (residual <= INTERPOLATES))
    factor = (found.vectors * found.values.clamp_min(0.0).sqrt()[..., None, :]).flip(-1)
    return BatchFit(factor.reshape(-1, d, d), residual, bound, optimal)
