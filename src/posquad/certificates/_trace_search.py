"""Search for a dual vector that bounds the trace from below; nothing here is a proof.

Weak duality: `A*(dual) <= I` gives `tr Q >= <dual, y>` for every PSD interpolant Q. At a Q = UU' of
least trace an optimal dual vector has `A*(dual) U = U`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from posquad.certificates._forms import DenseForms, Forms, RankOneForms
from posquad.errors import MissingExtraError
from posquad.selection.noncommuting import minimum_trace_interpolant

_SDP_LIMIT = 40  # largest d for the semidefinite solver
_SDP_ROWS = 1000
_SLACK = 1e-13  # what is left for rounding, relative to the size of the dual matrix


class TraceDual(NamedTuple):
    """A dual vector with `A*(dual) <= 1 + excess`, to be proved."""

    dual: np.ndarray
    excess: float
    method: str  # "least squares" or "semidefinite program"


def trace_dual(forms: Forms, y: np.ndarray, U: np.ndarray) -> TraceDual | None:
    """The candidate with the larger bound: least norm with `A*(dual) U = U`, or Clarabel's."""
    K = np.concatenate([rows for rows, _ in forms.tangent_rows(U)])  # [n, d r]
    least = np.linalg.lstsq(K.T, U.ravel(), rcond=1e-12)[0]
    candidates = [_measured(forms, least, "least squares")]
    if not _good(forms, y, U, candidates[0]):
        solved = _semidefinite(forms, y)
        if solved is not None:
            # The solver stops at 1e-9 or so; complementarity holds to rounding after a projection.
            change = (U - forms.adjoint_factor(solved, U)[0]).ravel()
            refined = solved + np.linalg.lstsq(K.T, change, rcond=1e-9)[0]
            candidates += [_measured(forms, v, "semidefinite program") for v in (solved, refined)]
    usable = [c for c in candidates if np.isfinite(c.dual).all() and np.abs(c.dual).max() > 0]
    return max(usable, key=lambda c: float(y @ c.dual) / (1 + c.excess), default=None)


def _measured(forms: Forms, dual: np.ndarray, method: str) -> TraceDual:
    Y, size = forms.adjoint(dual)
    top = float(np.linalg.eigvalsh(Y)[-1]) if np.isfinite(Y).all() else np.inf
    return TraceDual(dual, max(0.0, top - 1) + _SLACK * (1 + size), method)


def _good(forms: Forms, y: np.ndarray, U: np.ndarray, candidate: TraceDual) -> bool:
    trace = float(np.square(U).sum())
    return bool(float(y @ candidate.dual) / (1 + candidate.excess) >= trace * (1 - 1e-9))


def _semidefinite(forms: Forms, y: np.ndarray) -> np.ndarray | None:
    if forms.d > _SDP_LIMIT or forms.n > _SDP_ROWS:
        return None
    if isinstance(forms, RankOneForms):
        A = forms.X[:, :, None] * forms.X[:, None, :]
    elif isinstance(forms, DenseForms):
        A = forms.A
    else:
        return None
    try:
        return np.asarray(minimum_trace_interpolant(A, y).dual)
    except MissingExtraError:
        return None
