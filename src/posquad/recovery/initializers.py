"""The moment-based spectral initializer of section 3.5."""

from __future__ import annotations

from typing import Literal

import torch

from posquad._arrays import (
    A,
    like,
    positive_integer,
    require_batch,
    require_shape,
    require_symmetric,
    tensors,
)
from posquad.errors import DomainError, RankDeficientError
from posquad.measurements import RankOne

__all__ = ["moment_matrix", "positive_truncation", "spectral_initializer"]


def moment_matrix(X: A, y: A) -> A:
    """`M_n = (1/2n) sum_i y_i (x_i x_i' - I)`, with mean Q* for Gaussian inputs.

    `eq:moment-matrix`; `X[..., n, d]` and `y[..., n]` give `[..., d, d]`.

    >>> moment_matrix(np.array([[2.0, 0.0]]), np.array([4.0]))
    array([[ 6.,  0.],
           [ 0., -2.]])
    """
    operator = RankOne(X)
    (z,) = operator.admit(y=y)
    require_shape("y", z, (operator.n,), "(..., n), one response a row of X")
    require_batch(X=operator.batch_shape, y=z.shape[:-1])
    eye = torch.eye(operator.d, dtype=z.dtype, device=z.device)
    mean = z.mean(-1)[..., None, None]
    return like(X, operator._adjoint(z) / (2 * operator.n) - mean * eye / 2)


def positive_truncation(M: A, rank: int) -> tuple[A, A]:
    """Factor of `P_{r,+}(M)`, the part of M on its `rank` largest positive eigenvalues.

    `eq:spectral-initial-predictor`. Returns `U[..., d, rank]` with orthogonal columns in descending
    order, and `found[...]`, how many of those eigenvalues are positive; the columns beyond are
    zero, so U has full rank exactly when found equals rank.

    >>> U, found = positive_truncation(np.diag([4.0, -3.0, 1.0]), 1)
    >>> (U @ U.T)[0, 0], int(found)
    (np.float64(4.0), 1)
    """
    (m,) = tensors(M=M)
    require_symmetric("M", m)
    rank = positive_integer("rank", rank)
    if rank > m.shape[-1]:
        raise DomainError("rank", expected=f"at most d = {m.shape[-1]}", got=str(rank))
    values, vectors = torch.linalg.eigh(m)
    values, vectors = values[..., -rank:].flip(-1), vectors[..., -rank:].flip(-1)
    return (
        like(M, vectors * values.clamp_min(0).sqrt()[..., None, :]),
        like(M, (values > 0).sum(-1)),
    )


def spectral_initializer(X: A, y: A, rank: int, *, kind: Literal["moment"] = "moment") -> A:
    """Initial factor `U_0[..., d, rank]` with `U_0 U_0' = P_{r,+}(M_n)`.

    `eq:spectral-initial-factor`. If the moment matrix has fewer than `rank` positive eigenvalues
    there is no such factor of full rank: `RankDeficientError` says how many there are.
    (`positive_truncation` of `moment_matrix` returns what there is, with the count.)

    >>> spectral_initializer(np.array([[2.0, 0.0]]), np.array([6.0]), 1) ** 2
    array([[9.],
           [0.]])
    """
    if kind != "moment":
        raise DomainError("kind", expected="'moment'", got=repr(kind))
    U, found = positive_truncation(moment_matrix(X, y), rank)
    short = torch.as_tensor(found) < rank
    if bool(short.any()):
        worst = int(torch.as_tensor(found).min())
        sizes = torch.linalg.vector_norm(torch.as_tensor(U), dim=-2)
        raise RankDeficientError(
            "y",
            expected=f"a moment matrix with at least {rank} positive eigenvalues",
            got=f"{worst} in the worst of {short.numel()} problems ({int(short.sum())} fall short)",
            singular_values=sizes,
        )
    return U
