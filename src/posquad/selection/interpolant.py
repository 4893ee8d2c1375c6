"""Minimum-trace interpolants over all positive semidefinite matrices, by semidefinite programming.

The measurements need not commute. The solver is Clarabel, of the extra `posquad[sdp]`; the duality
gap and the residuals of what it returns are computed here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from posquad.core.arrays import Array, doubles, like, require_exactly, require_symmetric, tensors
from posquad.core.extras import import_extra
from posquad.core.ranges import tiny
from posquad.core.results import Result
from posquad.core.status import Status
from posquad.selection.families import one_family
from posquad.selection.trace import TraceCheck, check_trace_bound

__all__ = ["MinimumTraceInterpolant", "distance_to_minimum_trace", "minimum_trace_interpolant"]


@dataclass(frozen=True, eq=False, repr=False)
class MinimumTraceInterpolant(Result):
    """Minimum-trace positive semidefinite interpolant, with a check of its optimality."""

    value: float  # tr Q
    Q: Any  # [d, d]
    dual: Any  # [n]
    check: TraceCheck  # weak duality on the full matrices, computed from Q and dual
    status: Status


def minimum_trace_interpolant(A: Array, y: Array) -> MinimumTraceInterpolant:
    """`min tr Q` over Q >= 0 with `<A_i, Q> = y_i`, by the semidefinite solver Clarabel.

    The measurements `A[n, d, d]` need not commute; `y[n]`. The solver's own report is not trusted:
    `check` holds the duality gap, the dual slack and the residuals of what it returned, and the
    status is CONVERGED only if all of them are within a relative 1e-6. Needs the extra
    `posquad[sdp]`.

    >>> result = minimum_trace_interpolant(np.diag([1.0, 2.0])[None], np.array([2.0]))
    >>> round(result.value, 6)
    1.0
    """
    a, v = _one_family(A, y)
    Q, dual, solved = _solve_psd(a, v, np.eye(a.shape[1]))
    check = check_trace_bound(a, v, Q, dual)
    size = 1e-6 * max(abs(check.trace), abs(check.bound), tiny())
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
        Q=like(A, _on_device_of(A, Q)),
        dual=like(A, _on_device_of(A, dual)),
        check=check,
        status=Status.CONVERGED if solved else Status.NOT_CONVERGED,
    )


def distance_to_minimum_trace(
    A: Array, y: Array, Q: Array, *, least: MinimumTraceInterpolant | None = None
) -> float:
    """Frobenius distance from Q to the set of minimum-trace positive semidefinite interpolants.

    The set may hold more than one matrix, so its nearest point is found by a second semidefinite
    program, with a quadratic objective and the trace bounded by the minimum (plus a relative 1e-9).
    The result is NaN if a program is not solved. Needs the extra `posquad[sdp]`. The first program
    is not solved again if `least` is the result of `minimum_trace_interpolant(A, y)`.

    >>> round(distance_to_minimum_trace(np.eye(2)[None], np.array([2.0]), np.diag([2.0, 1.0])), 6)
    0.707107
    """
    a, v = _one_family(A, y)
    (target,) = tensors(Q=Q)
    require_exactly("Q", target, a.shape[1:], "one matrix")
    require_symmetric("Q", target)
    M = doubles(target)
    least = least or minimum_trace_interpolant(a, v)
    if least.status is not Status.CONVERGED:
        return math.nan
    # The trace becomes one more constraint, at most tau (1 + 1e-9).
    both = np.concatenate([a, np.eye(len(M))[None]])
    right = np.append(v, least.value * (1 + 1e-9))
    nearest, _, solved = _solve_psd(both, right, -M, weight=1.0, inequalities=1)
    return float(np.linalg.norm(nearest - M)) if solved else math.nan


def _one_family(A: Array, y: Array) -> tuple[np.ndarray, np.ndarray]:
    a, v = tensors(A=A, y=y)
    require_exactly("y", v, (one_family(a).n,), "one entry per matrix")
    return doubles(a), doubles(v)


def _solve_psd(
    a: np.ndarray, v: np.ndarray, C: np.ndarray, *, weight: float = 0.0, inequalities: int = 0
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Minimise `weight ||Q||_F^2 / 2 + <C, Q>` over Q >= 0 with `<a_i, Q> = v_i`.

    The last `inequalities` constraints are `<=`. Returns Q, the multipliers of the constraints and
    whether the solver says that it solved the problem.
    """
    clarabel = import_extra("clarabel", "sdp")
    d = a.shape[1]
    j, i = np.tril_indices(d)  # i <= j: Clarabel stacks the upper triangle column by column
    scale = np.where(i == j, 1.0, math.sqrt(2))  # makes the stacking an isometry
    size, equalities = len(i), len(v) - inequalities
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    cones = [clarabel.ZeroConeT(equalities)]
    cones += [clarabel.NonnegativeConeT(inequalities)] if inequalities else []
    # The solver's tolerances are absolute, so scale rows and right-hand side to size one.
    norms = np.linalg.norm(a, axis=(1, 2))
    rows = 1 / np.where(norms >= tiny(), norms, 1.0)  # a zero row stays zero
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


def _on_device_of(model: Array, values: np.ndarray) -> Tensor:
    """Values as a tensor on the device of the caller's array."""
    return torch.from_numpy(values).to(model.device if isinstance(model, Tensor) else "cpu")
