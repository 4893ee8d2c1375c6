"""Minimum trace, and the entropy that selects among its solutions (paper, sections 4.4-4.5)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch

from posquad.core.arrays import (
    A,
    Array,
    doubles,
    like,
    positive_number,
    require_exactly,
    require_symmetric,
    tensors,
)
from posquad.core.errors import DomainError, InfeasibleError
from posquad.core.ranges import tiny
from posquad.core.results import Result
from posquad.core.status import Status
from posquad.problems.measurements import Dense
from posquad.selection._face import complementary_dual, face_support, rank
from posquad.selection._vertex import optimal_vertex, scaled_program
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

_CHECKED = 50.0  # rounding units, times the square root of the number of terms, that checks allow


@dataclass(frozen=True)
class Face:
    """The optimal face `S_tr`: its dimension, and the coordinates positive on part of it."""

    support: tuple[int, ...]
    vanishing: tuple[int, ...]  # zero at every minimum-trace solution
    dimension: int


@dataclass(frozen=True, eq=False, repr=False)
class MinimumTrace(Result):
    """Solution of `min sum_a d_a q_a` over `q >= 0`, `Bq = y`, with the proof of optimality.

    The pair (q, dual) is the proof: q is feasible and positive on the support, and the slack is
    zero there and positive elsewhere, so no solution of the same trace is positive off the support.
    """

    value: float  # tau*
    q: Any  # [m]  the entropic minimizer, inside the face
    dual: Any  # [n]  B'dual <= d, y'dual = value
    slack: Any  # [m]  d - B'dual, zero on the support of the face, positive elsewhere
    face: Face
    constant: float  # C = psi(q) + d of the trace gap bound
    gap: float  # d'q - y'dual, the duality gap that was reached
    residual: float  # max_i |Bq - y|_i / (|B|q + |y|)_i, redundant rows included
    resolution: float  # coordinates below this fraction of the largest count as zero


def minimum_trace(B: A, y: A, multiplicities: A) -> MinimumTrace:
    """Solve the linear program `eq:minimum-reduced-trace` and its dual, and find the optimal face.

    `B[n, m]`, `y[n]`, multiplicities `[m]`. The point returned is the entropic minimizer of the
    face, and the dual vector is strictly complementary: it maximises the smallest slack off the
    face. By Proposition 4.2 (`prop:global-psd-trace-equivalence`) the value is the minimum over all
    positive semidefinite interpolants; small starts approach it (Corollary 4.1,
    `cor:global-minimum-trace-bias`).

    Coordinates and slacks are distinguished from zero down to the rounding of the data
    (`resolution` says where that is for the coordinates). The answer is checked: `Bq = y` in each
    independent row, the slack of each coordinate of the support, and the duality gap are zero to
    `50 sqrt(m + n)` rounding units of their terms; off the support every slack is positive beyond
    rounding.

    Raises:
        InfeasibleError: if no q >= 0 solves the system, with a Farkas vector.
        DomainError: if the answer does not pass the checks; the message names the failed check.

    >>> result = minimum_trace(np.array([[1.0, 1.0, 3.0]]), np.array([3.0]), np.array([1, 1, 1]))
    >>> round(result.value, 12), result.face.vanishing
    (1.0, (0, 1))
    """
    system, _ = prepare(B, y, multiplicities)
    if system.y.ndim != 1:
        got = f"shape {tuple(system.y.shape)}"
        raise DomainError("y", expected="one right-hand side (n,)", got=got)
    require_rows(system)
    b, v, d = map(doubles, (*system.independent, system.d))
    program, units = scaled_program(b, v, d, torch.finfo(system.d.dtype).eps)
    vertex = optimal_vertex(program)
    if isinstance(vertex, str):
        _refuse(system, vertex)
    support = face_support(program, vertex)
    face = Face(
        tuple(support.tolist()),
        tuple(np.setdiff1d(np.arange(len(d)), support).tolist()),
        len(support) - rank(program.b[:, support]),
    )
    if face.dimension == 0:
        q = units.point(vertex.on_positive(program))
    else:
        q = _entropy_on_face(system, face)
    lam = complementary_dual(program, vertex, support)
    slack = units.slack(program.c - program.b.T @ lam)
    slack[support] = 0.0
    dual = units.dual(lam)
    residual = _require_proof(system, q, dual, face, program.eps)
    value = float(v @ dual)
    point = torch.as_tensor(q).to(system.d)
    psi = float((system.d * (torch.special.xlogy(point, point) - point)).sum())
    return MinimumTrace(
        value=value,
        q=like(B, point),
        dual=like(B, system.full_dual(torch.as_tensor(dual).to(point))),
        slack=like(B, torch.as_tensor(slack).to(point)),
        face=face,
        constant=psi + float(system.d.sum()),
        gap=float(d @ q) - value,
        residual=residual,
        resolution=float(vertex.rounding.max() / max(vertex.x.max(), tiny())),
    )


def entropic_minimizer(B: A, y: A, multiplicities: A) -> A:
    """Point of least `sum_a d_a q_a log q_a` among those of minimum trace, `[m]`.

    The interpolants that the flow selects tend to it as the initialization shrinks
    (Theorem 4.5, `thm:entropic-tie-breaking`), and so do those of gradient descent if its step
    shrinks first (Corollary 4.2, `cor:sequential-discrete-implicit-bias`). On the face the trace is
    constant, so this is the Bregman projection of the vector of ones onto the face.

    >>> entropic_minimizer(np.array([[1.0, 1.0, 1.0]]), np.array([3.0]), np.array([1, 1, 1]))
    array([1., 1., 1.])
    """
    return minimum_trace(B, y, multiplicities).q


def trace_gap_bound(constant: float, epsilon: float) -> float:
    """Bound `C / log(1/eps^2)` on `tau(q_eps) - tau*` for 0 < eps < 1.

    Theorem 4.4 (`thm:minimum-trace-limit`). `constant` is `MinimumTrace.constant`, the smallest
    possible one, because psi is smallest at the entropic minimizer.

    >>> round(trace_gap_bound(2.0, 0.1), 6)
    0.434294
    """
    epsilon = positive_number("epsilon", epsilon)
    if epsilon >= 1:
        raise DomainError("epsilon", expected="0 < epsilon < 1", got=f"{epsilon}")
    return constant / (-2 * math.log(epsilon))


@dataclass(frozen=True)
class TraceCheck:
    """Weak duality on full matrices, for one positive semidefinite interpolant."""

    trace: float  # tr Q
    bound: float  # y'dual, a lower bound on the trace of every interpolant if slack >= 0
    gap: float  # trace - bound
    slack: float  # smallest eigenvalue of I - sum_i dual_i A_i
    smallest_eigenvalue: float  # of Q
    residual: float  # max_i |<A_i, Q> - y_i|


def check_trace_bound(A: Array, y: Array, Q: Array, dual: Array) -> TraceCheck:
    """Check `tr Q >= y'dual` through `sum_i dual_i A_i <= I`, on the full matrices.

    This applies Proposition 4.2 (`prop:global-psd-trace-equivalence`) to any positive semidefinite
    interpolant; the matrices `A[n, d, d]` need not commute. If slack >= 0, every feasible Q has
    `tr Q - y'dual = <I - sum_i dual_i A_i, Q> >= 0`.

    >>> check = check_trace_bound(np.eye(2)[None], np.array([2.0]), np.eye(2), np.array([1.0]))
    >>> check.gap, check.slack
    (0.0, 0.0)
    """
    a, v, M, lam = tensors(A=A, y=y, Q=Q, dual=dual)
    operator = Dense(a)
    n, d = operator.n, operator.d
    shapes = (("A", a, (n, d, d)), ("y", v, (n,)), ("Q", M, (d, d)), ("dual", lam, (n,)))
    for name, array, shape in shapes:
        require_exactly(name, array, shape)
    require_symmetric("Q", M)
    eye = torch.eye(d, dtype=M.dtype, device=M.device)
    trace, bound = float(M.trace()), float(v @ lam)
    return TraceCheck(
        trace=trace,
        bound=bound,
        gap=trace - bound,
        slack=float(torch.linalg.eigvalsh(eye - operator.adjoint_kernel(lam))[0]),
        smallest_eigenvalue=float(torch.linalg.eigvalsh(M)[0]),
        residual=float((operator.apply_kernel(M) - v).abs().max()),
    )


def _refuse(system: System, reason: str) -> NoReturn:
    """Raise `InfeasibleError` with a proof if one is found, else `DomainError` with the reason."""
    try:
        require_strictly_feasible(system.B, system.y)
    except InfeasibleError as error:
        if not error.forced_zero:  # coordinates that must vanish are allowed here
            raise
    raise DomainError("B, y", expected="a linear program that can be solved", got=reason)


def _entropy_on_face(system: System, face: Face) -> np.ndarray:
    """The Bregman projection of the vector of ones onto a face of positive dimension."""
    index = torch.as_tensor(face.support, device=system.d.device)
    ones = torch.ones_like(system.d[index])
    try:
        inside = bregman_projection(system.B[:, index], system.y, system.d[index], ones)
    except InfeasibleError:
        raise DomainError(
            "y",
            expected="an optimal face whose coordinates can be distinguished from zero",
            got="coordinates below the rounding of the others; rescale the columns of B",
        ) from None
    if inside.status is not Status.CONVERGED:
        raise DomainError(
            "y",
            expected="an optimal face onto which the vector of ones can be projected",
            got=f"no convergence (relative residual {float(inside.residual):.1e})",
        )
    q = np.zeros(len(system.d))
    q[list(face.support)] = inside.q.cpu().numpy()
    return q


def _require_proof(
    system: System, q: np.ndarray, dual: np.ndarray, face: Face, eps: float
) -> float:
    """Refuse a pair (q, dual) that does not prove the face; return its relative residual.

    Each quantity is relative to the sizes of the terms whose difference it is.
    """
    B, y, d = map(doubles, (system.B, system.y, system.d))
    b, v = map(doubles, system.independent)
    tolerance, least = _CHECKED * math.sqrt(sum(B.shape)) * eps, tiny()
    on, off = list(face.support), list(face.vanishing)
    residual = float((np.abs(b @ q - v) / (np.abs(b) @ q + np.abs(v)).clip(least)).max())
    # `prepare` has checked that redundant rows agree with the others.
    every = float((np.abs(B @ q - y) / (np.abs(B) @ q + np.abs(y)).clip(least)).max())
    slack = (d - b.T @ dual) / (d + np.abs(b).T @ np.abs(dual))
    tightness = float(np.abs(slack[on]).max(initial=0.0))
    gap = abs(d @ q - v @ dual) / max(d @ q + np.abs(v) @ np.abs(dual), least)
    failures = {
        f"a row of Bq = y with a relative residual of {residual:.1e}": residual > tolerance,
        "a coordinate of the face that is not positive": not (q[on] > 0).all(),
        f"a slack of {tightness:.1e} on the face": tightness > tolerance,
        "a slack off the face that is zero up to rounding": bool((slack[off] <= 4 * eps).any()),
        f"a duality gap of {gap:.1e}": gap > tolerance,
    }
    for failure, happened in failures.items():
        if happened:
            expected = f"a program whose solution can be checked to a relative {tolerance:.0e}"
            raise DomainError("B, y", expected=expected, got=failure)
    return every
