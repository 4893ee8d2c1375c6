"""Spectral initializers: the moment estimator of section 3.5, and two that need fewer samples."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import (
    A,
    broadcast_shape,
    host,
    like,
    positive_integer,
    require_batch,
    require_shape,
    require_symmetric,
    tensors,
)
from posquad.core.errors import DomainError, PosquadError, RankDeficientError, ShapeError
from posquad.core.linalg import (
    largest_eigenpairs,
    leading_pairs,
    positive_factor,
    solve_by_eigenvalues,
)
from posquad.core.ranges import tiny
from posquad.curvature.eigen import extreme_eigenpairs, no_preconditioner
from posquad.problems.held import HeldMeasurements
from posquad.problems.measurements import Measurements, RankOne
from posquad.problems.rows.operator import RankOneRows
from posquad.problems.rows.source import Rows

__all__ = ["moment_matrix", "positive_truncation", "spectral_initializer"]

# Largest d for which a d x d estimate is formed. Derived: 8 MB, and d^3 operations for its
# eigenvalues take about a second.
_DENSE_MOST = 1000
# Largest n for which an n x n kernel is formed. Derived: 200 MB.
_KERNEL_MOST = 5000
# The c of the preprocessing (t - 1) / (t + c), which then lies between -3.3 and 1. The form with
# sqrt(n / d) - 1 in its place is cited: Mondelli and Montanari, Found. Comput. Math. 19, 2019. A
# choice: half and double do as well.
_BOUND = 0.3
# Share of the largest eigenvalue to which others are raised in a start. A choice: half and double
# do as well.
_RAISED = 0.05
# Least pivot of a Cholesky factor over the largest, below which a kernel counts as singular.
# Derived: its square, the ratio of eigenvalues that it shows, is 1e-14, about 50 eps.
_PIVOT = 1e-7
# Medians at which the size of a response is clipped. A choice: 3% of the responses of Gaussian
# inputs at rank one exceed them, and fewer at higher ranks, while heavy tails do not decide the
# mean.
_CLIPPED = 10
# Columns beyond the rank of a block of eigenvectors. A choice: they make its convergence depend on
# the gap to an eigenvalue three places further on.
_GUARDS = 3
# Relative accuracy of the eigenpairs of a large estimate. A choice: enough for a start, because the
# sampling error sqrt(d / n) is larger.
_PAIR_ACCURACY = 1e-3
# Most products per column of a block of eigenvectors. A choice: a start with less accurate ones
# still serves.
_PAIR_PRODUCTS = 60


def moment_matrix(X: A, y: A) -> A:
    """Return `M_n = (1/2n) sum_i y_i (x_i x_i' - I)`, whose mean is Q* for Gaussian inputs.

    `eq:moment-matrix`. `X` has shape `[..., n, d]`, y `[..., n]` and the result `[..., d, d]`. X
    may be a source of rows, also of several processes; y then has those of the rows held here.

    >>> moment_matrix(np.array([[2.0, 0.0]]), np.array([4.0]))
    array([[ 6.,  0.],
           [ 0., -2.]])
    """
    operator, z = _admitted(X, y)
    eye = torch.eye(operator.d, dtype=z.dtype, device=z.device)
    mean = _mean(operator, z)[..., None]
    return like(X, operator.adjoint_kernel(z) / (2 * operator.n) - mean * eye / 2)


def positive_truncation(M: A, rank: int) -> tuple[A, A]:
    """Return a factor of `P_{r,+}(M)`, the part of M on its `rank` largest positive eigenvalues.

    `eq:spectral-initial-predictor`. Returns `U[..., d, rank]` with orthogonal columns of descending
    norm, and `found[...]`, the number of positive eigenvalues among the largest `rank`. The other
    columns are zero, so U has full rank exactly if `found` equals `rank`.

    >>> U, found = positive_truncation(np.diag([4.0, -3.0, 1.0]), 1)
    >>> (U @ U.T)[0, 0], int(found)
    (np.float64(4.0), 1)
    """
    (m,) = tensors(M=M)
    require_symmetric("M", m)
    rank = positive_integer("rank", rank)
    if rank > m.shape[-1]:
        raise DomainError("rank", expected=f"at most d = {m.shape[-1]}", got=str(rank))
    values, vectors = leading_pairs(torch.linalg.eigh(m), rank)
    return like(M, positive_factor(values, vectors)), like(M, (values > 0).sum(-1))


def spectral_initializer(
    X: A, y: A, rank: int, *, kind: Literal["moment", "bounded", "interpolant"] = "moment"
) -> A:
    """Return an initial factor `U_0[..., d, rank]` from the top eigenvectors of an estimate of Q.

    Args:
        X, y, rank: `[..., n, d]`, `[..., n]` and the number of columns.
        kind: "moment" is that of the paper, `U_0 U_0' = P_{r,+}(M_n)`
            (`eq:spectral-initial-factor`). "bounded" takes the eigenvectors of
            `sum_i f(y_i/m) x_i x_i'`, where `f(t) = (t-1) / (t+0.3)` and m is a robust mean, so
            that no large response dominates; it then fits the r x r matrix on their span by least
            squares. "interpolant" truncates the interpolant of least Frobenius norm
            `X' diag(a) X`, `a = ((XX') o (XX'))^{-1} y`. It forms an n x n matrix, and is the best
            start if n is at most a few thousand and at most d(d+1)/2.

    X may be a source of rows; if several processes share them (`posquad.problems.rows.sharded`), y
    has the responses of the rows held here, and all return the same factor.

    "moment" and "bounded" form a d x d matrix up to d = 1000 (d/r passes over X); above, they only
    need products of X with a few columns. If the estimate has fewer than `rank` positive
    eigenvalues, no such factor of full rank exists, and `RankDeficientError` says how many there
    are. (`positive_truncation` of `moment_matrix` returns the positive part with that count.)

    >>> spectral_initializer(np.array([[2.0, 0.0]]), np.array([6.0]), 1) ** 2
    array([[9.],
           [0.]])
    """
    operator, z = _admitted(X, y, f"kind {kind!r}, rank {rank!r}")
    if kind not in _KINDS:
        raise DomainError("kind", expected=" or ".join(map(repr, _KINDS)), got=repr(kind))
    rank = positive_integer("rank", rank)
    if rank > operator.d:
        raise DomainError("rank", expected=f"at most d = {operator.d}", got=str(rank))
    with torch.no_grad(), X.together() if isinstance(X, Rows) else nullcontext():
        values, vectors = _KINDS[kind](operator, z, rank)
    found = (values > 0).sum(-1)
    short = found < rank
    if bool(short.any()):
        worst = int(found.min())
        estimate = "moment matrix" if kind == "moment" else f"{kind} estimate"
        raise RankDeficientError(
            "y",
            expected=f"a {estimate} with at least {rank} positive eigenvalues",
            got=f"{worst} in the worst problem; {int(short.sum())} of {short.numel()} have too few",
            singular_values=values.clamp_min(0).sqrt(),
        )
    return like(X, vectors * values.sqrt()[..., None, :])


def _admitted(X: A, y: A, fact: str = "") -> tuple[RankOne, Tensor]:
    """Return the operator and checked responses; all who hold rows must state the same fact."""
    operator = RankOne(X)
    try:
        given = X.admit_values("y", y) if isinstance(X, Rows) else y  # names the row of a NaN
        (z,) = operator.admit(y=given)
        require_shape("y", z, (operator.held,), "(..., n), one response per row of X")
        require_batch(X=operator.batch_shape, y=z.shape[:-1])
        if isinstance(X, Rows) and X.is_shared and z.ndim > 1:
            expected = "one problem for rows of several processes"
            raise ShapeError("y", expected=expected, got=f"shape {tuple(z.shape)}")
    except PosquadError as problem:
        if isinstance(X, Rows):
            X.check_same(problem, fact)
        raise
    if isinstance(X, Rows):
        X.check_same(fact=fact)
    return operator, z


def raised_factor(values: np.ndarray, vectors: np.ndarray, y: Tensor) -> Tensor:
    """Return a factor of full rank from eigenpairs, descending, of an estimate of Q.

    Eigenvalues below a twentieth of the largest are raised to it. This is meant for solvers, which
    correct it; `spectral_initializer` raises an error instead.
    """
    size = abs(host(y)).mean(-1)[..., None] / vectors.shape[-2]
    top = np.where(values[..., :1] > 0, values[..., :1], np.maximum(size, tiny(size)))
    raised = np.sqrt(np.maximum(values, _RAISED * top))
    return torch.from_numpy(vectors * raised[..., None, :]).to(y.device)


def kernel_solve(K: Tensor, y: Tensor) -> Tensor:
    """Return `K^+ y` for a positive semidefinite K, by Cholesky, or by eigenvalues if singular."""
    L, info = torch.linalg.cholesky_ex(K)
    pivots = host(L.diagonal(dim1=-2, dim2=-1))
    sound = (host(info) == 0) & (pivots.min(-1) > _PIVOT * pivots.max(-1))
    if sound.all():
        return torch.cholesky_solve(y[..., None].expand(*K.shape[:-1], 1), L)[..., 0]
    return solve_by_eigenvalues(K, y)


def _moment(operator: RankOne, y: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    weights = y / (2 * operator.n)
    values, vectors = top_eigenpairs(operator, weights, rank)
    return values - _mean(operator, y) / 2, vectors


def bounded_directions(operator: Measurements, y: Tensor, most: int) -> Tensor:
    """Return the top `most` eigenvectors `[..., d, most]` of the kind "bounded", descending.

    Weights of the responses say most where the A_i are positive semidefinite, and are bounded
    there. Other measurements are weighted by the responses themselves.
    """
    if not isinstance(operator, RankOne):
        return top_eigenpairs(operator, y / operator.n, most)[1]
    size = _typical(operator, y)
    t = (y / torch.where(size > 0, size, 1.0)).clamp_min(0)
    weights = (t - 1) / (t + _BOUND) / operator.n
    return top_eigenpairs(operator, weights, most)[1]


def fit_on(operator: HeldMeasurements, y: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenpairs, descending, of the least-squares fit `W S W'` for `W[..., d, r]`."""
    rank = W.shape[-1]
    if operator.n < rank * (rank + 1) // 2:
        got = f"{operator.n}"
        raise DomainError("X", expected=f"at least r(r+1)/2 samples, r = {rank}", got=got)
    S, _ = operator.transformed(W).symmetric_fit(y)
    values, V = torch.linalg.eigh(S)
    return values.flip(-1), W @ V.flip(-1)


def _bounded(operator: RankOne, y: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    return fit_on(operator, y, bounded_directions(operator, y, rank))


def _mean(operator: RankOne, y: Tensor) -> Tensor:
    """Return the mean of y over the rows of everyone, `[..., 1]`."""
    return operator.total(y.sum(-1, keepdim=True)) / operator.n


def _typical(operator: RankOne, y: Tensor) -> Tensor:
    """Return the mean of |y|, each clipped at ten medians, `[..., 1]`."""
    sizes = y.abs()
    median = operator.lower_median(sizes)[..., None]
    most = torch.where(median > 0, _CLIPPED * median, torch.inf)
    return _mean(operator, torch.minimum(sizes, most))


def least_interpolant(operator: Measurements, y: Tensor) -> Tensor:
    """Return the symmetric interpolant of least Frobenius norm, or the best symmetric fit."""
    n, d = operator.n, operator.d
    if n > d * (d + 1) // 2:
        return operator.symmetric_fit(y)[0]
    if n > _KERNEL_MOST:
        expected = f"at most {_KERNEL_MOST} samples for kind='interpolant', which forms n x n"
        raise DomainError("X", expected=expected, got=f"{n}; use kind='bounded'")
    if isinstance(operator, RankOneRows) and operator.source.is_shared:  # the rows are few
        rows, y = operator.source, operator.source.collect(y)
        operator = RankOne(rows.collect(rows.read_all()))
    return operator.adjoint_kernel(kernel_solve(operator.inner_products(), y))


def _interpolant(operator: RankOne, y: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    return leading_pairs(torch.linalg.eigh(least_interpolant(operator, y)), rank)


_KINDS = {"moment": _moment, "bounded": _bounded, "interpolant": _interpolant}


def top_eigenpairs(operator: Measurements, weights: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the `rank` largest eigenpairs, descending, of `A*(w) = sum_i w_i A_i`.

    Up to d = 1000 the d x d matrix is formed; above, the pairs are accurate to 1e-3.
    """
    d = operator.d
    if d <= _DENSE_MOST:
        return largest_eigenpairs(operator.adjoint_kernel(weights), rank)
    width = min(rank + _GUARDS, d)
    batch = broadcast_shape(operator.batch_shape, weights.shape[:-1])
    generator = torch.Generator().manual_seed(d)
    start = torch.randn(d, width, generator=generator, dtype=weights.dtype).to(weights.device)
    pairs = extreme_eigenpairs(
        lambda block: operator.adjoint_factor_kernel(weights, block),
        no_preconditioner(lambda block: block),
        lambda block: block,
        start.expand(*batch, d, width),
        k=rank,
        largest=True,
        dimension=d,
        tolerance=_PAIR_ACCURACY,
        max_products=_PAIR_PRODUCTS * width,
    )
    return pairs.values, pairs.vectors
