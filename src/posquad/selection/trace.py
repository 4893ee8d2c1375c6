"""Minimum trace and the entropy that breaks its ties (paper, section 4.4-4.5)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from posquad._arrays import (
    A,
    Array,
    like,
    positive_number,
    require_symmetric,
    tensors,
)
from posquad._results import Result
from posquad.errors import DomainError, InfeasibleError, ShapeError
from posquad.measurements import Dense
from posquad.selection.feasibility import require_strictly_feasible
from posquad.selection.projection import bregman_projection
from posquad.selection.system import System, prepare, require_rows

__all__ = [
    "Face",
    "MinimumTrace",
    "TraceCheck",
    "check_trace_bound",
    "entropic_minimizer",
    "minimum_trace",
    "trace_gap_bound",
]

_ZERO = 1e-9  # of the linear programs, relative to their own scale
_TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


@dataclass(frozen=True)
class Face:
    """The optimal face `S_tr`: coordinates that are positive somewhere on it, and its dimension."""

    support: tuple[int, ...]
    vanishing: tuple[int, ...]  # zero at every minimum-trace solution
    dimension: int


@dataclass(frozen=True, eq=False, repr=False)
class MinimumTrace(Result):
    """`min sum_a d_a q_a` over `q >= 0`, `Bq = y`, with the proof of optimality."""

    value: float  # tau*
    q: Any  # [m]  the entropic minimizer, inside the face
    dual: Any  # [n]  B'dual <= d, y'dual = value
    slack: Any  # [m]  d - B'dual, zero to rounding on the support of the face
    face: Face
    constant: float  # C = psi(q) + d of the trace gap bound
    gap: float  # d'q - y'dual, the duality gap that was reached


def minimum_trace(B: A, y: A, multiplicities: A) -> MinimumTrace:
    """Solve the linear program `eq:minimum-reduced-trace`, its dual, and find its optimal face.

    `B[n, m]`, `y[n]`, multiplicities `[m]`. The point returned is the entropic minimizer of the
    face and the dual vector has the largest smallest slack off the face (it is strictly
    complementary). By `prop:global-psd-trace-equivalence` the value is that of all positive
    semidefinite interpolants; small starts approach it (`cor:global-minimum-trace-bias`).

    >>> result = minimum_trace(np.array([[1.0, 1.0, 3.0]]), np.array([3.0]), np.array([1, 1, 1]))
    >>> round(result.value, 12), result.face.vanishing
    (1.0, (0, 1))
    """
    system, _ = prepare(B, y, multiplicities)
    if system.y.ndim != 1:
        got = f"shape {tuple(system.y.shape)}"
        raise DomainError("y", expected="one right-hand side (n,)", got=got)
    require_rows(system)
    b, v, d = (t.cpu().numpy().astype(float) for t in (*system.independent, system.d))
    unit = float(np.abs(v).max()) or 1.0  # the tolerances of linear programs are absolute
    support = _face_support(b, v / unit, d, system)
    q = _entropy_on_support(system, support)
    lam = _complementary_dual(b, d, support)
    value = float(v @ lam)
    dual = system.full_dual(torch.as_tensor(lam).to(q))
    slack = d - b.T @ lam
    rounding = 1e-13 * (d + np.abs(b).T @ np.abs(lam))
    slack = np.where(np.abs(slack) <= rounding, 0.0, slack)
    rank = int(np.linalg.matrix_rank(b[:, support])) if support.size else 0
    psi = float((system.d * (torch.special.xlogy(q, q) - q)).sum())
    off = np.setdiff1d(np.arange(len(d)), support)
    return MinimumTrace(
        value=value,
        q=like(B, q),
        dual=like(B, dual),
        slack=like(B, torch.as_tensor(slack).to(q)),
        face=Face(tuple(support.tolist()), tuple(off.tolist()), len(support) - rank),
        constant=psi + float(system.d.sum()),
        gap=float(system.d @ q) - value,
    )


def entropic_minimizer(B: A, y: A, multiplicities: A) -> A:
    """The point of least `sum_a d_a q_a log q_a` among those of minimum trace, `[m]`.

    The limit of the selected interpolants as the initialization shrinks
    (`thm:entropic-tie-breaking`), of gradient descent too when its step shrinks first
    (`cor:sequential-discrete-implicit-bias`). On the face the trace is constant, so this is the
    Bregman projection of the vector of ones onto it.

    >>> entropic_minimizer(np.array([[1.0, 1.0, 1.0]]), np.array([3.0]), np.array([1, 1, 1]))
    array([1., 1., 1.])
    """
    return minimum_trace(B, y, multiplicities).q


def trace_gap_bound(constant: float, epsilon: float) -> float:
    """`C / log(1/eps^2)`, above `tau(q_eps) - tau*` for 0 < eps < 1 (`thm:minimum-trace-limit`).

    `constant` is `MinimumTrace.constant`, the best one: psi is least at the entropic minimizer.

    >>> round(trace_gap_bound(2.0, 0.1), 6)
    0.434294
    """
    epsilon = positive_number("epsilon", epsilon)
    if epsilon >= 1:
        raise DomainError("epsilon", expected="0 < epsilon < 1", got=f"{epsilon}")
    return constant / (-2 * math.log(epsilon))


@dataclass(frozen=True)
class TraceCheck:
    """Weak duality on full matrices: what it proves of one positive semidefinite interpolant."""

    trace: float  # tr Q
    bound: float  # y'dual, a lower bound on the trace of every interpolant if slack >= 0
    gap: float  # trace - bound
    slack: float  # smallest eigenvalue of I - sum_i dual_i A_i
    smallest_eigenvalue: float  # of Q
    residual: float  # max_i |<A_i, Q> - y_i|


def check_trace_bound(A: Array, y: Array, Q: Array, dual: Array) -> TraceCheck:
    """Check `tr Q >= y'dual` through `sum_i dual_i A_i <= I`, on the full matrices.

    `prop:global-psd-trace-equivalence` as a check of any positive semidefinite interpolant;
    `A[n, d, d]` need not commute. If slack >= 0 then for every feasible Q,
    `tr Q - y'dual = <I - sum_i dual_i A_i, Q> >= 0`.

    >>> check = check_trace_bound(np.eye(2)[None], np.array([2.0]), np.eye(2), np.array([1.0]))
    >>> check.gap, check.slack
    (0.0, 0.0)
    """
    a, v, M, lam = tensors(A=A, y=y, Q=Q, dual=dual)
    operator = Dense(a)
    n, d = operator.n, operator.d
    for name, array, shape in (
        ("A", a, (n, d, d)),
        ("y", v, (n,)),
        ("Q", M, (d, d)),
        ("dual", lam, (n,)),
    ):
        if tuple(array.shape) != shape:
            raise ShapeError(name, expected=f"shape {shape}", got=f"shape {tuple(array.shape)}")
    require_symmetric("Q", M)
    eye = torch.eye(d, dtype=M.dtype, device=M.device)
    trace, bound = float(M.trace()), float(v @ lam)
    return TraceCheck(
        trace=trace,
        bound=bound,
        gap=trace - bound,
        slack=float(torch.linalg.eigvalsh(eye - operator._adjoint(lam))[0]),
        smallest_eigenvalue=float(torch.linalg.eigvalsh(M)[0]),
        residual=float((operator._apply(M) - v).abs().max()),
    )


def _face_support(b: np.ndarray, v: np.ndarray, d: np.ndarray, system: System) -> np.ndarray:
    """Coordinates that are positive at some minimum-trace solution.

    First the value; then, on the cone over the face, as many coordinates as possible reach 1.
    """
    m = len(d)
    program = scipy.optimize.linprog(
        d, A_eq=b, b_eq=v, bounds=(0, None), method="highs", options=_TIGHT
    )
    if program.status != 0:
        require_strictly_feasible(system.B, system.y)
        expected = "a linear program that the solver can finish"
        raise DomainError("B", expected=expected, got=program.message)
    tau = program.fun
    # Unknowns q, t, v: maximise sum v with Bq = y t, d'q = tau t, q >= v, t >= 1, 0 <= v <= 1.
    cost = np.concatenate([np.zeros(m + 1), -np.ones(m)])
    blank = scipy.sparse.csr_matrix((len(v), m))
    equality = scipy.sparse.hstack([b, -v[:, None], blank], format="csr")
    trace = scipy.sparse.csr_matrix(np.concatenate([d, [-tau], np.zeros(m)])[None])
    slack = _ZERO * max(abs(tau), 1.0)
    eye = scipy.sparse.eye(m, format="csr")
    above = scipy.sparse.hstack([-eye, scipy.sparse.csr_matrix((m, 1)), eye], format="csr")
    widest = scipy.optimize.linprog(
        cost,
        A_eq=equality,
        b_eq=np.zeros(len(v)),
        A_ub=scipy.sparse.vstack([above, trace]),
        b_ub=np.concatenate([np.zeros(m), [slack]]),
        bounds=[(0, None)] * m + [(1, None)] + [(0, 1)] * m,
        method="highs",
        options=_TIGHT,
    )
    if widest.status != 0:
        return np.flatnonzero(program.x > _ZERO * max(program.x.max(), 1e-300))
    return np.flatnonzero(widest.x[m + 1 :] > 0.5)


def _entropy_on_support(system: System, support: np.ndarray) -> Tensor:
    q = torch.zeros_like(system.d)
    if support.size:
        index = torch.as_tensor(support, device=q.device)
        ones = torch.ones_like(system.d[index])
        try:
            face = bregman_projection(system.B[:, index], system.y, system.d[index], ones)
        except InfeasibleError:
            raise DomainError(
                "y",
                expected="optimal coordinates within nine orders of magnitude of each other",
                got="some below the tolerance of the linear programs; rescale the columns of B",
            ) from None
        q[index] = face.q
    return q


def _complementary_dual(b: np.ndarray, d: np.ndarray, support: np.ndarray) -> np.ndarray:
    """A dual vector tight on the support, with the largest smallest slack elsewhere."""
    off = np.setdiff1d(np.arange(b.shape[1]), support)
    tight = np.linalg.lstsq(b[:, support].T, d[support], rcond=None)[0]
    if off.size:
        # Directions that keep the support tight are free; spend them on the smallest slack.
        _, s, vh = np.linalg.svd(b[:, support].T, full_matrices=True)
        free = vh[int((s > 1e-12 * max(s.max(initial=0.0), 1e-300)).sum()) :].T  # [n, k]
        if free.shape[1]:
            # max t with d - b'(tight + free z) >= t d off the support
            rows = np.hstack([b[:, off].T @ free, d[off][:, None]])
            right = d[off] - b[:, off].T @ tight
            cost = np.zeros(free.shape[1] + 1)
            cost[-1] = -1
            bounds = [(None, None)] * free.shape[1] + [(None, 1)]
            best = scipy.optimize.linprog(
                cost, A_ub=rows, b_ub=right, bounds=bounds, method="highs"
            )
            if best.status == 0:
                tight = tight + free @ best.x[:-1]
    return tight
