"""Search for a dual vector that bounds the trace from below; nothing here is a proof.

By weak duality, `A*(dual) <= I` implies `tr Q >= <dual, y>` for every PSD interpolant Q. If Q = UU'
has the least trace, an optimal dual vector satisfies `A*(dual) U = U`. The dual program has the
strictly feasible point 0, so a barrier method solves it for any data. The Hessian of the barrier is
`tr(A_i R A_j R)`, as in the search for the dual matrix.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from posquad.certificates.proofs.bounded_operator import BoundedOperator
from posquad.core.ranges import tiny

_LIMIT = 2500  # maximum number of measurements for second-order steps
_STEPS = 150  # maximum number of Newton steps
_SLACK = 1e-13  # allowance for rounding, relative to the size of the dual matrix


class TraceDual(NamedTuple):
    """A candidate dual vector, with `A*(dual) <= 1 + excess` still to be proved."""

    dual: np.ndarray
    excess: float
    method: str  # "least squares" or "interior point"


def trace_dual(operator: BoundedOperator, y: np.ndarray, U: np.ndarray) -> TraceDual | None:
    """Return the candidate with the largest bound on the trace.

    Candidates are the dual vector of least norm with `A*(dual) U = U`, and solutions of the dual
    program.
    """
    if operator.n > _LIMIT:
        return None
    K = np.concatenate([rows for rows, _ in operator.tangent_rows(U)])  # [n, d r]
    least = np.linalg.lstsq(K.T, U.ravel(), rcond=1e-12)[0]
    candidates = [_with_excess(operator, least, "least squares")]
    trace = float(np.square(U).sum())
    if not _bound(y, candidates[0]) >= trace * (1 - 1e-9):
        solved = barrier_dual(operator, y, trace)
        # The barrier method is accurate to about 1e-9; refine it until A*(dual) U = U.
        change = (U - operator.adjoint_factor(solved, U)[0]).ravel()
        refined = solved + np.linalg.lstsq(K.T, change, rcond=1e-9)[0]
        candidates += [_with_excess(operator, v, "interior point") for v in (solved, refined)]
    usable = [c for c in candidates if np.isfinite(c.dual).all() and np.abs(c.dual).max() > 0]
    return max(usable, key=lambda c: _bound(y, c), default=None)


def barrier_dual(operator: BoundedOperator, y: np.ndarray, trace: float) -> np.ndarray:
    """Maximise `<dual, y>` over `A*(dual) <= I` by the barrier method, from 0.

    It ends at a gap of `1e-10 trace`, or when the bound exceeds `10 trace`: then no PSD matrix has
    these measurements, and the program is unbounded.
    """
    d, dual = operator.d, np.zeros(operator.n)
    weight = d / max(trace, d * tiny())
    for _ in range(_STEPS):
        S = np.eye(d) - operator.adjoint(dual)[0]
        try:
            R = np.linalg.inv(S)
            R = (R + R.T) / 2
            gradient = operator.apply(R) - weight * y
            H = operator.weighted_gram(R)
            H[np.diag_indices(len(H))] += 1e-14 * float(np.trace(H)) / len(H)  # dependent A_i
            factor = scipy.linalg.cho_factor(H, lower=True)
            step = -scipy.linalg.cho_solve(factor, gradient)
            worst = float(scipy.linalg.eigvalsh(operator.adjoint(step)[0], S)[-1])
        except (np.linalg.LinAlgError, ValueError):
            break
        decrement = -float(gradient @ step)
        dual = dual + min(1.0, 0.9 / worst if worst > 0 else 1.0) * step
        if float(y @ dual) > 10 * trace:
            break
        if decrement < 0.25:
            if d / weight < 1e-10 * trace:
                break
            weight *= 10
    return dual


def _with_excess(operator: BoundedOperator, dual: np.ndarray, method: str) -> TraceDual:
    """Return the candidate for a dual vector, with its excess estimated."""
    Y, size = operator.adjoint(dual)
    top = float(np.linalg.eigvalsh(Y)[-1]) if np.isfinite(Y).all() else np.inf
    return TraceDual(dual, max(0.0, top - 1) + _SLACK * (1 + size), method)


def _bound(y: np.ndarray, candidate: TraceDual) -> float:
    return float(y @ candidate.dual) / (1 + candidate.excess)
