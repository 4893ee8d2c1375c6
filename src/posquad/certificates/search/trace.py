"""Search for a dual vector that bounds the trace from below; nothing here is a proof.

Weak duality: `A*(dual) <= I` gives `tr Q >= <dual, y>` for every PSD interpolant Q. At a Q = UU' of
least trace an optimal dual vector has `A*(dual) U = U`. The dual program has the strictly feasible
point 0, so a barrier method solves it whatever the data are; its Hessian is that of the search for
the dual matrix, `tr(A_i R A_j R)`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from posquad.certificates.proofs.bounded_operator import Forms

_LIMIT = 2500  # most measurements for which second-order steps are made
_STEPS = 150
_SLACK = 1e-13  # what is left for rounding, relative to the size of the dual matrix


class TraceDual(NamedTuple):
    """A dual vector with `A*(dual) <= 1 + excess`, to be proved."""

    dual: np.ndarray
    excess: float
    method: str  # "least squares" or "interior point"


def trace_dual(forms: Forms, y: np.ndarray, U: np.ndarray) -> TraceDual | None:
    """The candidate with the larger bound: least norm with `A*(dual) U = U`, or the program's."""
    if forms.n > _LIMIT:
        return None
    K = np.concatenate([rows for rows, _ in forms.tangent_rows(U)])  # [n, d r]
    least = np.linalg.lstsq(K.T, U.ravel(), rcond=1e-12)[0]
    candidates = [_measured(forms, least, "least squares")]
    trace = float(np.square(U).sum())
    if not _bound(y, candidates[0]) >= trace * (1 - 1e-9):
        solved = barrier_dual(forms, y, trace)
        # The barrier stops at 1e-9 or so; after a projection complementarity holds to rounding.
        change = (U - forms.adjoint_factor(solved, U)[0]).ravel()
        refined = solved + np.linalg.lstsq(K.T, change, rcond=1e-9)[0]
        candidates += [_measured(forms, v, "interior point") for v in (solved, refined)]
    usable = [c for c in candidates if np.isfinite(c.dual).all() and np.abs(c.dual).max() > 0]
    return max(usable, key=lambda c: _bound(y, c), default=None)


def barrier_dual(forms: Forms, y: np.ndarray, trace: float) -> np.ndarray:
    """Maximise `<dual, y>` over `A*(dual) <= I` by the barrier method, from 0.

    Ends at a gap of 1e-10 of `trace`, or where the bound exceeds ten times it: then no PSD matrix
    has these measurements and the program is unbounded.
    """
    d, dual = forms.d, np.zeros(forms.n)
    weight = d / max(trace, 1e-300)
    for _ in range(_STEPS):
        S = np.eye(d) - forms.adjoint(dual)[0]
        try:
            R = np.linalg.inv(S)
            R = (R + R.T) / 2
            gradient = forms.apply(R) - weight * y
            H = forms.weighted_gram(R)
            H[np.diag_indices(len(H))] += 1e-14 * float(np.trace(H)) / len(H)  # dependent A_i
            factor = scipy.linalg.cho_factor(H, lower=True)
            step = -scipy.linalg.cho_solve(factor, gradient)
            L = np.linalg.cholesky(S)
            half = scipy.linalg.solve_triangular(L, forms.adjoint(step)[0], lower=True)
            moved = scipy.linalg.solve_triangular(L, half.T, lower=True)
            worst = float(np.linalg.eigvalsh((moved + moved.T) / 2)[-1])
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


def _measured(forms: Forms, dual: np.ndarray, method: str) -> TraceDual:
    Y, size = forms.adjoint(dual)
    top = float(np.linalg.eigvalsh(Y)[-1]) if np.isfinite(Y).all() else np.inf
    return TraceDual(dual, max(0.0, top - 1) + _SLACK * (1 + size), method)


def _bound(y: np.ndarray, candidate: TraceDual) -> float:
    return float(y @ candidate.dual) / (1 + candidate.excess)
