"""Von Neumann projections: a candidate selection law for measurements that do not commute.

The paper proves its selection law, a Bregman projection, for commuting measurements. Without that
assumption the natural candidate is the projection in the von Neumann divergence, computed here so
that the two can be compared numerically. Near commuting measurements they differ to first order, in
general; `first_order_selection` computes by how much.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.core.arrays import (
    A,
    like,
    positive_integer,
    require_batch,
    require_shape,
    require_symmetric,
    tensors,
)
from posquad.core.errors import DomainError
from posquad.core.linalg import eigenvalue_rounding, symmetric_part
from posquad.core.ranges import tiny
from posquad.core.status import Status
from posquad.selection._dual import ExponentialFamily, project
from posquad.selection.families import one_family
from posquad.selection.projection import Projection
from posquad.selection.system import expand_multipliers, independent_rows

__all__ = ["von_neumann_divergence", "von_neumann_projection"]


def von_neumann_projection(A: A, y: A, Q0: A, *, max_steps: int = 500) -> Projection:
    """`argmin tr(Q log Q - Q log Q0 - Q + Q0)` over Q >= 0 with `<A_i, Q> = y_i`.

    The noncommuting analogue of `bregman_projection`, equal to it when all matrices commute. It is
    computed by Newton's method on the dual, `Q = exp(log Q0 + sum_i dual_i A_i)`, with the exact
    derivative of the matrix exponential.

    Args:
        A: symmetric `[n, d, d]`; `y[..., n]`; `Q0[..., d, d]` positive definite; leading
            dimensions are batches.
        max_steps: maximum number of Newton steps.

    Returns:
        `Projection`, where `q` and `log_q` are matrices `[..., d, d]`, `underflow` refers to the
        eigenvalues of q, `[..., d]`, and `error` is a first-order estimate of
        `||q - exact||_F / ||q||_F`, including the rounding of the measurements. CONVERGED asserts
        that it is at most `eps^(1/2)`, 1.5e-8 in double precision; eigenvalues below that have no
        accurate digits. If no positive semidefinite Q has these measurements, the status is
        NOT_CONVERGED; if only singular ones do, q is one of them up to rounding.

    >>> projection = von_neumann_projection(np.eye(2)[None], np.array([4.0]), np.diag([1.0, 3.0]))
    >>> projection.q.round(12)
    array([[1., 0.],
           [0., 3.]])
    """
    a, v, start = tensors(A=A, y=y, Q0=Q0)
    operator = one_family(a)
    require_shape("y", v, (operator.n,), "(..., n), one entry per matrix")
    require_shape("Q0", start, (operator.d, operator.d), "(..., d, d)")
    require_symmetric("Q0", start)
    batch = require_batch(y=v.shape[:-1], Q0=start.shape[:-2])
    positive_integer("max_steps", max_steps)
    with torch.no_grad():
        values, vectors = torch.linalg.eigh(start)
        if not bool((values > 0).all()):
            smallest = float(values.min())
            got = f"a smallest eigenvalue of {smallest:.3e}"
            raise DomainError("Q0", expected="a positive definite matrix", got=got)
        L0 = _from_spectrum(vectors, values.log())
        d, n, count = operator.d, operator.n, batch.numel()
        L0 = L0.expand(*batch, d, d).reshape(count, d, d)
        responses = v.expand(*batch, n).reshape(count, n)
        family = _MatrixFamily(a, responses)
        solution = project(family, L0, max_steps=max_steps)
        Q = family.exponential(solution.L)
        dual = expand_multipliers(solution.lam, family.rows, family.scale, operator.n)
        kkt = (solution.L - L0 - family.step(solution.lam)).abs().amax((-2, -1))
        misfit = (operator.apply_kernel(Q) - responses).abs().amax(-1)
        size = torch.linalg.matrix_norm(Q) * torch.linalg.matrix_norm(a).amax()
        size = size.clamp_min(tiny(Q))  # zero if all matrices are zero
        error = family.error(solution.L)
        converged = solution.converged & (error <= torch.finfo(Q.dtype).eps ** 0.5)
        spectrum = torch.linalg.eigvalsh(_finite(solution.L))
    return Projection(
        q=like(A, Q.reshape(*batch, d, d)),
        log_q=like(A, solution.L.reshape(*batch, d, d)),
        underflow=like(A, (spectrum.exp() < tiny(Q)).reshape(*batch, d)),
        error=like(A, error.reshape(batch)),
        dual=like(A, dual.reshape(*batch, n)),
        residual=like(A, (misfit / size).reshape(batch)),
        kkt=like(A, kkt.reshape(batch)),
        status=Status.CONVERGED if bool(converged.all()) else Status.NOT_CONVERGED,
        steps=solution.steps,
    )


def von_neumann_divergence(P: A, Q: A) -> A:
    """Von Neumann divergence `tr(P log P - P log Q - P + Q)` for P >= 0, Q > 0, `[...]`.

    It is four times the Bregman divergence D_h when P and Q commute.

    >>> float(von_neumann_divergence(np.diag([1.0, 0.0]), np.diag([1.0, 2.0])))
    2.0
    """
    p, q = tensors(P=P, Q=Q)
    require_symmetric("P", p)
    require_symmetric("Q", q)
    require_shape("Q", q, p.shape[-2:], "(..., d, d) as for P")
    require_batch(P=p.shape[:-2], Q=q.shape[:-2])
    values_p = torch.linalg.eigvalsh(p)
    values_q, vectors_q = torch.linalg.eigh(q)
    rounding = eigenvalue_rounding(p.shape[-1], p.dtype) * values_p.abs().amax(-1, keepdim=True)
    if bool((values_p < -rounding).any()):
        got = f"a smallest eigenvalue of {float(values_p.min()):.3e}"
        raise DomainError("P", expected="a positive semidefinite matrix", got=got)
    if bool((values_q <= 0).any()):
        got = f"a smallest eigenvalue of {float(values_q.min()):.3e}"
        raise DomainError("Q", expected="a positive definite matrix", got=got)
    positive = values_p.clamp_min(0)  # negative values that remain are rounding
    entropy = torch.special.xlogy(positive, positive).sum(-1)
    cross = (p * _from_spectrum(vectors_q, values_q.log())).sum((-2, -1))
    return like(P, entropy - cross - values_p.sum(-1) + values_q.sum(-1))


class _MatrixFamily(ExponentialFamily):
    """`Q = exp(L)` on symmetric matrices, with the independent constraints of `<A_i, Q> = y_i`."""

    def __init__(self, a: Tensor, y: Tensor) -> None:
        self.rows, self.scale = independent_rows(a.flatten(1), y, "A")
        self.a = self.scale[:, None, None] * a[self.rows]
        self.y = self.scale * y[:, self.rows]
        self._norms = torch.linalg.matrix_norm(self.a)

    def exponential(self, L: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(_finite(L))
        return _from_spectrum(vectors, values.exp())

    def values(self, L: Tensor) -> Tensor:
        return torch.einsum("iab,kab->ki", self.a, self.exponential(L))

    def values_and_gram(self, L: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(_finite(L))
        inside = vectors.mT[:, None] @ self.a @ vectors[:, None]  # [b, n, d, d]
        q = values.exp()
        divided = divided_differences(values)
        gram = torch.einsum("kiab,kab,kjab->kij", inside, divided, inside)
        return torch.einsum("kiaa,ka->ki", inside, q), gram

    def step(self, lam: Tensor) -> Tensor:
        return torch.einsum("ki,iab->kab", lam, self.a)

    def tangent(self, L: Tensor, direction: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(_finite(L))
        moved = divided_differences(values) * (vectors.mT @ direction @ vectors)
        return torch.einsum("iab,kab->ki", self.a, vectors @ moved @ vectors.mT)

    def rounding(self, L: Tensor) -> Tensor:
        eps = torch.finfo(L.dtype).eps
        # Products with the eigenvectors have the rounding of d additions.
        return eps * L.shape[-1] * (self.magnitude(self.exponential(L)) + self.y.abs())

    def magnitude(self, Q: Tensor) -> Tensor:
        """Size of the sums that give the measurements, `[b, n]`."""
        return torch.linalg.matrix_norm(Q)[:, None] * self._norms

    def error(self, L: Tensor) -> Tensor:
        """First-order bound on `||Q - exact||_F / ||Q||_F`, `[b]`; infinite where it is unknown.

        A residual e moves log Q by `sum_i delta_i A_i`, `delta = G^-1 e` with the matrix G of
        `values_and_gram`, and Q by no more than `(||Q||_2 e'G^-1 e)^1/2` in Frobenius norm. The
        rounding of e counts as part of it.
        """
        if self.y.numel() == 0:
            return L.new_zeros(len(L))
        values, gram = self.values_and_gram(L)
        doubt = (self.y - values).abs() + self.rounding(L)
        scale = gram.diagonal(dim1=-2, dim2=-1).rsqrt()  # [b, n]
        scaled = scale[:, :, None] * gram * scale[:, None, :]
        usable = torch.isfinite(scaled).all(-1).all(-1)
        unit = torch.linalg.eigvalsh(torch.where(usable[:, None, None], scaled, 0.0))
        smallest = unit[:, 0]
        trusted = usable & (smallest > eigenvalue_rounding(unit.shape[-1], L.dtype))
        length = torch.linalg.vector_norm(scale * doubt, dim=-1)
        Q = self.exponential(L)
        largest = torch.linalg.matrix_norm(Q, 2).sqrt() / torch.linalg.matrix_norm(Q)
        bound = largest * length / torch.where(trusted, smallest, 1.0).sqrt()
        # The exponential itself: an eigenvalue t of L is known to eps |t|, eigenvectors to d eps.
        size = L.shape[-1] + torch.linalg.matrix_norm(_finite(L), 2)
        bound = bound + torch.finfo(L.dtype).eps * size
        return torch.where(trusted & torch.isfinite(bound), bound, torch.inf)

    def scale_start(self, L0: Tensor) -> Tensor:
        size = self.y.abs().sum(-1) / self._norms.sum()
        level = torch.where(size > 0, size.log(), L0.diagonal(dim1=-2, dim2=-1).mean(-1))
        return level[:, None, None] * torch.eye(L0.shape[-1], dtype=L0.dtype, device=L0.device)


def divided_differences(values: Tensor) -> Tensor:
    """`(e^a - e^b) / (a - b)` for all pairs of eigenvalues, `[b, d, d]`, without cancellation."""
    a, b = values[..., :, None], values[..., None, :]
    half = (a - b) / 2
    # e^{(a+b)/2} sinh(h)/h with h = (a-b)/2; for large h the sinh overflows, the ratio does not.
    small = half.abs() < 1e-3
    series = 1 + half.square() / 6 * (1 + half.square() / 20)
    high, low = torch.maximum(a, b), torch.minimum(a, b)
    gap = torch.where(small, 1.0, high - low)
    far = high.exp() * -torch.expm1(low - high) / gap
    return torch.where(small, ((a + b) / 2).exp() * series, far)


def _from_spectrum(vectors: Tensor, values: Tensor) -> Tensor:
    M = (vectors * values[..., None, :]) @ vectors.mT
    return symmetric_part(M)


def _finite(L: Tensor) -> Tensor:
    """Replace what is not finite by large numbers, because LAPACK raises on NaN.

    The exponential of the result overflows to infinity, as it should.
    """
    return torch.nan_to_num(L, nan=1e3, posinf=1e3, neginf=-1e3)
