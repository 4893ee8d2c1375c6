"""Dynamics of the predictor `Q = UU'` under flow and descent of the factor (sections 2.5-2.6).

The functions take symmetric matrices `Q[..., d, d]` and `G = grad ell(Q)`, and the step, a number
or an array over the batch. All implement exact identities of the paper, not approximations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.core.arrays import (
    A,
    Array,
    like,
    positive_numbers,
    require_batch,
    require_factor,
    require_shape,
    require_symmetric,
    tensors,
)
from posquad.core.linalg import symmetric_part
from posquad.geometry.frames import require_full_rank

__all__ = [
    "correction_bound",
    "discretization_correction",
    "exact_rank_margin",
    "flow_field",
    "predictor_step",
    "riemannian_gradient",
    "sufficient_rank_margin",
]


def predictor_step(Q: A, G: A, step: float | Array) -> A:
    """Predictor after one step of descent: `(I - 2 eta G) Q (I - 2 eta G)`.

    The congruence recursion of Proposition 2.6 (`prop:exact-discrete-predictor-dynamics`);
    `[..., d, d]`.

    >>> predictor_step(np.eye(1), np.array([[0.25]]), 1.0)
    array([[0.25]])
    """
    q, g, eta = _checked(Q, G, step)
    MQ = q - 2 * eta * (g @ q)
    return like(Q, symmetric_part(MQ - 2 * eta * (MQ @ g)))


def riemannian_gradient(Q: A, G: A) -> A:
    """Gradient of ell in the quotient metric, `2 (GQ + QG)`.

    Theorem 2.3 (`thm:exact-quotient-gradient-flow`).

    >>> riemannian_gradient(np.eye(1), np.array([[0.25]]))
    array([[1.]])
    """
    q, g = _pair(Q, G)
    return like(Q, _quotient_gradient(q, g))


def flow_field(Q: A, G: A) -> A:
    """`dQ/dt = -2 (GQ + QG)` along the factor flow (`eq:predictor-gradient-flow`).

    >>> flow_field(np.eye(1), np.array([[0.25]]))
    array([[-1.]])
    """
    q, g = _pair(Q, G)
    return like(Q, -_quotient_gradient(q, g))


def discretization_correction(Q: A, G: A, step: float | Array) -> A:
    """Difference `4 eta G Q G` between `(Q_{k+1} - Q_k)/eta` and the flow field.

    `eq:discrete-gradient-plus-correction`; exact, `[..., d, d]`. Because of this term, descent of
    the factor is not Riemannian descent (Remark 2.4, `rem:continuous-discrete-quotient`).

    >>> discretization_correction(np.eye(1), np.array([[0.25]]), 1.0)
    array([[0.25]])
    """
    q, g, eta = _checked(Q, G, step)
    return like(Q, 4 * eta * symmetric_part(g @ q @ g))


def correction_bound(Q: A, G: A, step: float | Array) -> A:
    """Bound `4 eta ||G||_op^2 ||Q||_F` on the Frobenius norm of `discretization_correction`.

    `eq:discrete-correction-bound`; `[...]`.

    >>> float(correction_bound(np.eye(1), np.array([[0.25]]), 1.0))
    0.25
    """
    q, g, eta = _checked(Q, G, step)
    operator = torch.linalg.eigvalsh(g).abs().amax(-1)
    return like(Q, 4 * eta[..., 0, 0] * operator.square() * torch.linalg.matrix_norm(q))


def sufficient_rank_margin(G: A, step: float | Array) -> A:
    """Margin `1 - 2 eta ||G||_op`; if it is positive, the step keeps the rank.

    `eq:sufficient-rank-preservation`.

    >>> float(sufficient_rank_margin(np.array([[0.25]]), 1.0))
    0.5
    """
    (g,) = tensors(G=G)
    require_symmetric("G", g)
    eta = _step(step, G=g)
    return like(G, 1 - 2 * eta[..., 0, 0] * torch.linalg.eigvalsh(g).abs().amax(-1))


def exact_rank_margin(U: A, G: A, step: float | Array) -> A:
    """Smallest singular value of `(I - 2 eta G) W`, W an orthonormal basis of range(U).

    It is positive exactly when the step keeps the rank: `I - 2 eta G` has no kernel on range(Q)
    (`eq:exact-rank-preservation-condition`). `U[..., d, r]`, `G[..., d, d]` give `[...]`.

    >>> float(exact_rank_margin(np.array([[1.0], [0.0]]), np.diag([0.0, 0.5]), 1.0))
    1.0
    """
    u, g = tensors(U=U, G=G)
    require_factor("U", u)
    require_symmetric("G", g)
    require_shape("G", g, (u.shape[-2], u.shape[-2]), "(..., d, d)")
    eta = _step(step, U=u, G=g)
    require_full_rank("U", u)
    W = torch.linalg.qr(u).Q  # unlike the frame, differentiable
    return like(U, torch.linalg.svdvals(W - 2 * eta * (g @ W))[..., -1])


def _quotient_gradient(q: Tensor, g: Tensor) -> Tensor:
    product = g @ q
    return 2 * (product + product.mT)


def _checked(Q: Array, G: Array, step: float | Array) -> tuple[Tensor, Tensor, Tensor]:
    q, g = _pair(Q, G)
    return q, g, _step(step, Q=q, G=g)


def _pair(Q: Array, G: Array) -> tuple[Tensor, Tensor]:
    q, g = tensors(Q=Q, G=G)
    require_symmetric("G", g)
    require_symmetric("Q", q)
    require_shape("G", g, q.shape[-2:], "(..., d, d) as for Q")
    require_batch(Q=q.shape[:-2], G=g.shape[:-2])
    return q, g


def _step(step: float | Array, **matrices: Tensor) -> Tensor:
    """Checked step `[..., 1, 1]`, with a dtype and batch that fit the matrices."""
    eta = positive_numbers("step", step, next(iter(matrices.values())))
    require_batch(**{name: M.shape[:-2] for name, M in matrices.items()}, step=eta.shape)
    return eta[..., None, None]
