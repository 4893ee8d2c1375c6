"""Beyond commuting measurements: the von Neumann analogue and the dial between the two.

The paper proves its selection law for commuting measurements. Here is what the law would say
without that assumption (projection in the von Neumann divergence), the minimum-trace interpolant
over all positive semidefinite matrices, and families of measurements with a commutativity dial,
so that the question can be asked numerically. No theorem is claimed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from posquad.core.arrays import (
    A,
    Array,
    like,
    positive_integer,
    require_batch,
    require_shape,
    require_symmetric,
    tensors,
)
from posquad.core.errors import DomainError, ShapeError
from posquad.core.extras import optional
from posquad.core.linalg import symmetric_part
from posquad.core.results import Result
from posquad.core.status import Status
from posquad.problems.measurements import Dense
from posquad.selection._dual import Family, project
from posquad.selection.projection import Projection
from posquad.selection.system import independent_rows, scattered
from posquad.selection.trace import TraceCheck, check_trace_bound

__all__ = [
    "MinimumTraceInterpolant",
    "commutator_size",
    "dialed_family",
    "distance_to_minimum_trace",
    "minimum_trace_interpolant",
    "von_neumann_divergence",
    "von_neumann_projection",
]


def von_neumann_projection(A: A, y: A, Q0: A, *, max_steps: int = 500) -> Projection:
    """`argmin tr(Q log Q - Q log Q0 - Q + Q0)` over Q >= 0 with `<A_i, Q> = y_i`.

    The noncommuting analogue of `bregman_projection`, equal to it when everything commutes. By
    Newton's method on the dual, `Q = exp(log Q0 + sum_i dual_i A_i)`, with the exact derivative of
    the matrix exponential.

    Args:
        A: symmetric `[n, d, d]`; `y[..., n]`; `Q0[..., d, d]` positive definite; leading
            dimensions are batches.
        max_steps: most Newton steps.

    Returns:
        `Projection` with `q` and `log_q` matrices `[..., d, d]`, `underflow` of the eigenvalues of
        q, `[..., d]`, and `error` an estimate of `||q - exact||_F / ||q||_F` to first order, the
        rounding of the measurements included. CONVERGED asserts that it is at most `eps^(1/2)`,
        1.5e-8 in double precision: eigenvalues below that are not known to any digit. If no
        positive semidefinite Q has these measurements the status is NOT_CONVERGED; if only
        singular ones do, q is one to rounding.

    >>> projection = von_neumann_projection(np.eye(2)[None], np.array([4.0]), np.diag([1.0, 3.0]))
    >>> projection.q.round(12)
    array([[1., 0.],
           [0., 3.]])
    """
    a, v, start = tensors(A=A, y=y, Q0=Q0)
    operator = Dense(a)
    if operator.batch_shape:
        raise DomainError("A", expected="one family (n, d, d)", got=f"shape {tuple(a.shape)}")
    require_shape("y", v, (operator.n,), "(..., n), one entry a matrix")
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
        dual = scattered(solution.lam, family.rows, family.scale, operator.n)
        kkt = (solution.L - L0 - family.step(solution.lam)).abs().amax((-2, -1))
        misfit = (operator.apply_kernel(Q) - responses).abs().amax(-1)
        size = torch.linalg.matrix_norm(Q) * torch.linalg.matrix_norm(a).amax()
        size = size.clamp_min(torch.finfo(Q.dtype).tiny)  # of nothing measured
        error = family.error(solution.L)
        converged = solution.converged & (error <= torch.finfo(Q.dtype).eps ** 0.5)
        spectrum = torch.linalg.eigvalsh(_finite(solution.L))
    return Projection(
        q=like(A, Q.reshape(*batch, d, d)),
        log_q=like(A, solution.L.reshape(*batch, d, d)),
        underflow=like(A, (spectrum.exp() < torch.finfo(Q.dtype).tiny).reshape(*batch, d)),
        error=like(A, error.reshape(batch)),
        dual=like(A, dual.reshape(*batch, n)),
        residual=like(A, (misfit / size).reshape(batch)),
        kkt=like(A, kkt.reshape(batch)),
        status=Status.CONVERGED if bool(converged.all()) else Status.NOT_CONVERGED,
        steps=solution.steps,
    )


def von_neumann_divergence(P: A, Q: A) -> A:
    """`tr(P log P - P log Q - P + Q)` for P >= 0, Q > 0, `[...]`; four times D_h when they commute.

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
    floor = -10 * p.shape[-1] * torch.finfo(p.dtype).eps * values_p.abs().amax(-1, keepdim=True)
    if bool((values_p < floor).any()):
        got = f"a smallest eigenvalue of {float(values_p.min()):.3e}"
        raise DomainError("P", expected="a positive semidefinite matrix", got=got)
    if bool((values_q <= 0).any()):
        got = f"a smallest eigenvalue of {float(values_q.min()):.3e}"
        raise DomainError("Q", expected="a positive definite matrix", got=got)
    positive = values_p.clamp_min(0)  # what is below is rounding, or was refused
    entropy = torch.special.xlogy(positive, positive).sum(-1)
    cross = (p * _from_spectrum(vectors_q, values_q.log())).sum((-2, -1))
    return like(P, entropy - cross - values_p.sum(-1) + values_q.sum(-1))


@dataclass(frozen=True, eq=False, repr=False)
class MinimumTraceInterpolant(Result):
    """A minimum-trace positive semidefinite interpolant with the proof that was checked."""

    value: float  # tr Q
    Q: Any  # [d, d]
    dual: Any  # [n]
    check: TraceCheck  # weak duality on the full matrices, computed by us
    status: Status


def minimum_trace_interpolant(A: Array, y: Array) -> MinimumTraceInterpolant:
    """`min tr Q` over Q >= 0 with `<A_i, Q> = y_i`, by the semidefinite solver Clarabel.

    For measurements `A[n, d, d]` that need not commute; `y[n]`. The solver's answer is not taken at
    its word: `check` holds the duality gap, the dual slack and the residuals of what it returned,
    and the status is CONVERGED only if all of them are within a relative 1e-6.
    Needs the extra `posquad[sdp]`.

    >>> result = minimum_trace_interpolant(np.diag([1.0, 2.0])[None], np.array([2.0]))
    >>> round(result.value, 6)
    1.0
    """
    a, v = _one_family(A, y)
    Q, dual, solved = _solve_psd(a, v, np.eye(a.shape[1]))
    check = check_trace_bound(a, v, Q, dual)
    size = 1e-6 * max(abs(check.trace), abs(check.bound), 1e-300)
    measured = 1e-6 * np.linalg.norm(a, axis=(1, 2)).max() * np.linalg.norm(Q)
    solved = (
        solved
        and abs(check.gap) <= size
        and check.slack >= -1e-6
        and check.smallest_eigenvalue >= -size
        and check.residual <= measured + size
    )
    return MinimumTraceInterpolant(
        value=check.trace,
        Q=like(A, _beside(A, Q)),
        dual=like(A, _beside(A, dual)),
        check=check,
        status=Status.CONVERGED if solved else Status.NOT_CONVERGED,
    )


def distance_to_minimum_trace(A: Array, y: Array, Q: Array) -> float:
    """Frobenius distance from Q to the set of minimum-trace positive semidefinite interpolants.

    The set may hold more than one matrix, so its nearest point is found by a second, quadratic,
    semidefinite program with the trace fixed at the minimum (to a relative 1e-9). NaN when the
    solver does not finish. Needs the extra `posquad[sdp]`.

    >>> round(distance_to_minimum_trace(np.eye(2)[None], np.array([2.0]), np.diag([2.0, 1.0])), 6)
    0.707107
    """
    a, v = _one_family(A, y)
    (target,) = tensors(Q=Q)
    if target.shape != a.shape[1:]:
        expected = f"one matrix of shape {a.shape[1:]}"
        raise ShapeError("Q", expected=expected, got=f"shape {tuple(target.shape)}")
    require_symmetric("Q", target)
    M = target.cpu().numpy().astype(float)
    least = minimum_trace_interpolant(a, v)
    if least.status is not Status.CONVERGED:
        return math.nan
    # The trace becomes one more constraint, at most tau (1 + 1e-9).
    both = np.concatenate([a, np.eye(len(M))[None]])
    right = np.append(v, least.value * (1 + 1e-9))
    nearest, _, solved = _solve_psd(both, right, -M, weight=1.0, inequalities=1)
    return float(np.linalg.norm(nearest - M)) if solved else math.nan


def dialed_family(n: int, d: int, dial: float, *, seed: int = 0) -> Tensor:
    """Measurement matrices `A_i = V_i D_i V_i'` with `V_i = exp(s K_i) V`, `[n, d, d]`.

    The dial s in [0, 1] turns the shared eigenbasis V apart: at s = 0 all matrices commute, at
    s = 1 each basis is turned in its own direction and by its own angle, up to a right one. D_i is
    diagonal with normal entries of mean and variance one; V is a random rotation, K_i a random skew
    matrix of spectral norm uniform in [0, pi/2].

    >>> family = dialed_family(3, 4, 0.0)
    >>> float(commutator_size(family)) < 1e-14
    True
    """
    n, d = positive_integer("n", n), positive_integer("d", d)
    if not (isinstance(dial, int | float) and 0 <= dial <= 1):
        raise DomainError("dial", expected="a number in [0, 1]", got=repr(dial))
    rng = torch.Generator().manual_seed(seed)
    V = torch.linalg.qr(torch.randn(d, d, generator=rng, dtype=torch.float64)).Q
    spectra = 1 + torch.randn(n, d, generator=rng, dtype=torch.float64)
    K = torch.randn(n, d, d, generator=rng, dtype=torch.float64)
    K = K - K.mT
    size = torch.linalg.matrix_norm(K, 2).clamp_min(1e-300)  # zero when d = 1
    angles = math.pi / 2 * torch.rand(n, generator=rng, dtype=torch.float64)
    bases = torch.linalg.matrix_exp((dial * angles / size)[:, None, None] * K) @ V
    M = (bases * spectra[:, None, :]) @ bases.mT
    return symmetric_part(M)


def commutator_size(A: A) -> A:
    """Root mean square over pairs of `||A_i A_j - A_j A_i||_F / (sqrt(2) ||A_i||_F ||A_j||_F)`.

    Between 0 (commuting) and 1, by the inequality of Boettcher and Wenzel; `A[..., n, d, d]` gives
    `[...]`.

    >>> X, Z = np.array([[0.0, 1.0], [1.0, 0.0]]), np.diag([1.0, -1.0])
    >>> float(commutator_size(np.array([X, Z])).round(12))
    1.0
    """
    (a,) = tensors(A=A)
    n = Dense(a).n
    if n < 2:
        raise DomainError("A", expected="at least two matrices", got=f"{n}")
    products = a[..., :, None, :, :] @ a[..., None, :, :, :]  # [..., n, n, d, d]
    norms = torch.linalg.matrix_norm(a)
    scale = norms[..., :, None] * norms[..., None, :]
    ratios = torch.linalg.matrix_norm(products - products.mT) / scale.clamp_min(
        torch.finfo(a.dtype).tiny
    )
    i, j = torch.triu_indices(n, n, 1, device=a.device)
    return like(A, (ratios[..., i, j].square().mean(-1) / 2).sqrt())


def _beside(model: Array, values: np.ndarray) -> Tensor:
    """Computed values as a tensor on the device of the caller's array."""
    return torch.from_numpy(values).to(model.device if isinstance(model, Tensor) else "cpu")


class _MatrixFamily(Family):
    """`Q = exp(L)` on symmetric matrices, with the independent ones of `<A_i, Q> = y_i`."""

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
        divided = _divided_differences(values)
        gram = torch.einsum("kiab,kab,kjab->kij", inside, divided, inside)
        return torch.einsum("kiaa,ka->ki", inside, q), gram

    def step(self, lam: Tensor) -> Tensor:
        return torch.einsum("ki,iab->kab", lam, self.a)

    def tangent(self, L: Tensor, direction: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(_finite(L))
        moved = _divided_differences(values) * (vectors.mT @ direction @ vectors)
        return torch.einsum("iab,kab->ki", self.a, vectors @ moved @ vectors.mT)

    def rounding(self, L: Tensor) -> Tensor:
        eps = torch.finfo(L.dtype).eps
        # Products with the eigenvectors round like d additions.
        return eps * L.shape[-1] * (self.magnitude(self.exponential(L)) + self.y.abs())

    def magnitude(self, Q: Tensor) -> Tensor:
        """Size of the sums that make the measurements, `[b, n]`."""
        return torch.linalg.matrix_norm(Q)[:, None] * self._norms

    def error(self, L: Tensor) -> Tensor:
        """`||Q - exact||_F / ||Q||_F` to first order, `[b]`; infinite where it cannot be told.

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
        trusted = usable & (smallest > 10 * unit.shape[-1] * torch.finfo(L.dtype).eps)
        length = torch.linalg.vector_norm(scale * doubt, dim=-1)
        Q = self.exponential(L)
        largest = torch.linalg.matrix_norm(Q, 2).sqrt() / torch.linalg.matrix_norm(Q)
        bound = largest * length / torch.where(trusted, smallest, 1.0).sqrt()
        return torch.where(trusted & torch.isfinite(bound), bound, torch.inf)

    def near(self, L0: Tensor) -> Tensor:
        size = self.y.abs().sum(-1) / self._norms.sum()
        level = torch.where(size > 0, size.log(), L0.diagonal(dim1=-2, dim2=-1).mean(-1))
        return level[:, None, None] * torch.eye(L0.shape[-1], dtype=L0.dtype, device=L0.device)


def _one_family(A: Array, y: Array) -> tuple[np.ndarray, np.ndarray]:
    a, v = tensors(A=A, y=y)
    operator = Dense(a)
    if operator.batch_shape:
        raise DomainError("A", expected="one family (n, d, d)", got=f"shape {tuple(a.shape)}")
    if tuple(v.shape) != (operator.n,):
        expected = f"shape ({operator.n},), one entry a matrix"
        raise ShapeError("y", expected=expected, got=f"shape {tuple(v.shape)}")
    return a.cpu().numpy().astype(float), v.cpu().numpy().astype(float)


def _solve_psd(
    a: np.ndarray, v: np.ndarray, C: np.ndarray, *, weight: float = 0.0, inequalities: int = 0
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Minimise `weight ||Q||_F^2 / 2 + <C, Q>` over Q >= 0 with `<a_i, Q> = v_i`.

    The last `inequalities` constraints are `<=`. Returns Q, the multipliers of the constraints and
    whether the solver says that it solved the problem.
    """
    clarabel = optional("clarabel", "sdp")
    d = a.shape[1]
    i, j = np.triu_indices(d)
    order = np.lexsort((i, j))  # Clarabel stacks the upper triangle column by column
    i, j = i[order], j[order]
    scale = np.where(i == j, 1.0, math.sqrt(2))  # makes the stacking an isometry
    size, equalities = len(i), len(v) - inequalities
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    cones = [clarabel.ZeroConeT(equalities)]
    cones += [clarabel.NonnegativeConeT(inequalities)] if inequalities else []
    # Unit norms and a right-hand side of unit size: the solver's tolerances are absolute.
    rows = 1 / np.maximum(np.linalg.norm(a, axis=(1, 2)), 1e-300)
    unit = float(np.abs(v * rows).max()) or 1.0
    cost = C / unit if weight else C
    solver = clarabel.DefaultSolver(
        scipy.sparse.csc_matrix(weight * np.eye(size)),
        cost[i, j] * scale,
        scipy.sparse.csc_matrix(np.vstack([a[:, i, j] * scale * rows[:, None], -np.eye(size)])),
        np.concatenate([v * rows / unit, np.zeros(size)]),
        [*cones, clarabel.PSDTriangleConeT(d)],
        settings,
    )
    solution = solver.solve()
    Q = np.zeros((d, d))
    Q[i, j] = Q[j, i] = unit * np.array(solution.x) / scale
    solved = str(solution.status) in ("Solved", "AlmostSolved")
    return Q, -np.array(solution.z[: len(v)]) * rows, solved


def _divided_differences(values: Tensor) -> Tensor:
    """`(e^a - e^b) / (a - b)` for all pairs of eigenvalues, `[b, d, d]`, without cancellation."""
    a, b = values[..., :, None], values[..., None, :]
    half = (a - b) / 2
    # e^{(a+b)/2} sinh(h)/h with h = (a-b)/2; far apart the sinh would overflow, the ratio not.
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
    """LAPACK raises on NaN; a huge finite matrix overflows to infinity instead, as it should."""
    return torch.nan_to_num(L, nan=1e3, posinf=1e3, neginf=-1e3)
