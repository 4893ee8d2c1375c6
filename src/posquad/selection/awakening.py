"""The order in which coordinates grow from a vanishing start, and the exponents that follow.

See `docs/noncommuting.md`, section "Small starts".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch

from posquad.core.arrays import A, doubles, like, require_exactly, tensors
from posquad.core.errors import DomainError, ShapeError
from posquad.core.results import Result
from posquad.selection.feasibility import require_strictly_feasible

__all__ = ["Awakening", "awakening_path"]

_TIE = 1e-12  # relative difference below which two coordinates wake at the same time
_FITTED = 1e-10  # relative residual at which the path ends
_EVENTS = 100  # events per coordinate after which a path is given up


@dataclass(frozen=True, eq=False, repr=False)
class Awakening(Result):
    """The limiting dual path of the mirror flow from `eps` times the vector of ones, eps -> 0."""

    dual: Any  # [k + 1, n]  corners of mu / log(1/eps), from zero to the end
    order: tuple[tuple[int, ...], ...]  # coordinates that wake at each of the k events
    support: tuple[int, ...]  # coordinates that are awake at the end
    slack: Any  # [d]  1 - D's at the end: coordinate a ends of size eps^slack_a
    exponents: Any  # [d, d]  p_ab: the integrals of `first_order_selection` grow like eps^-p_ab


def awakening_path(D: A, y: A) -> Awakening:
    """Limiting dual path of the mirror flow from a vanishing start, and the exponents of R.

    From `q0 = eps 1` the mirror flow has `log q = log eps + D'mu`. In the limit eps -> 0 the path
    `s = mu / log(1/eps)` is piecewise straight. A coordinate is asleep while `(D's)_a < 1`. When
    one wakes, q becomes the least-squares solution of `Dq = y` with q >= 0 on the coordinates with
    `(D's)_a = 1`, and s continues in the direction of its residual `y - Dq` until the next one
    wakes or the residual is zero. Coordinates that the solution sets to zero fall asleep again.

    With `delta_ab(s) = (D's)_a - (D's)_b` and the slack `1 - (D's)_a` at the end,

        p_ab = max over the path of |delta_ab| / 2 - (slack_a + slack_b) / 2.

    The entry R_ab of `first_order_selection` is at most of the order `eps^-p_ab`, up to smaller
    factors, where the path converges; see `docs/noncommuting.md` for what is proved.

    Args:
        D: `[n, d]`, row i is the diagonal of measurement i.
        y: `[n]`, such that `Dq = y` has a solution q > 0.

    Raises:
        InfeasibleError: if no q > 0 solves `Dq = y`.

    Two separate measurements with responses 1 and 0.4: the exponent is (1 - 0.4) / 2.

    >>> path = awakening_path(np.eye(2), np.array([1.0, 0.4]))
    >>> path.order, float(path.exponents[0, 1].round(12))
    (((0,), (1,)), 0.3)
    """
    rows, v = tensors(D=D, y=y)
    if rows.ndim != 2 or 0 in rows.shape:
        got = f"shape {tuple(rows.shape)}"
        raise ShapeError("D", expected="shape (n, d) with n, d >= 1", got=got)
    require_exactly("y", v, rows.shape[:1], "one entry per row of D")
    require_strictly_feasible(rows, v)
    corners, order, support = _follow(doubles(rows), doubles(v))
    columns = corners @ doubles(rows)  # (D's)_a at the corners
    slack = 1 - columns[-1]
    slack[list(support)] = 0.0
    apart = np.abs(columns[:, :, None] - columns[:, None, :]).max(0)
    exponents = (apart - slack[:, None] - slack[None, :]) / 2
    np.fill_diagonal(exponents, 0.0)
    dual, slack, exponents = (
        like(D, torch.from_numpy(x).to(rows)) for x in (corners, slack, exponents)
    )
    return Awakening(dual, tuple(order), support, slack, exponents)


def _follow(
    D: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, list[tuple[int, ...]], tuple[int, ...]]:
    """The corners of s, the coordinates that wake at each, and those awake at the end."""
    d = D.shape[1]
    s, awake, residual = np.zeros(len(y)), np.zeros(d, dtype=bool), y
    corners, order = [s], []
    for _ in range(_EVENTS * d):
        if np.linalg.norm(residual) <= _FITTED * np.linalg.norm(y):
            return np.stack(corners), order, tuple(np.flatnonzero(awake).tolist())
        speed = D.T @ residual  # zero up to rounding where awake
        rising = ~awake & (speed > _TIE * np.linalg.norm(D, axis=0) * np.linalg.norm(residual))
        wait = np.full(d, np.inf)
        wait[rising] = (1 - D.T @ s)[rising] / speed[rising]
        if not np.isfinite(wait.min()):
            break  # the responses are fitted as well as they can be
        first = wait <= wait.min() * (1 + _TIE)
        s = s + wait.min() * residual
        corners.append(s)
        order.append(tuple(np.flatnonzero(first).tolist()))
        candidates = np.flatnonzero(awake | first)
        q = scipy.optimize.nnls(D[:, candidates], y)[0]
        awake = np.zeros(d, dtype=bool)
        awake[candidates[q > 0]] = True
        residual = y - D[:, candidates] @ q
    raise DomainError(
        "y",
        expected="a system whose coordinates wake one after another until it is fitted",
        got=f"a relative residual of {np.linalg.norm(residual) / np.linalg.norm(y):.1e} "
        f"after {len(order)} events",
    )
