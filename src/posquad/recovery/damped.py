"""Damped Gauss-Newton and Newton descent of a sum of squared errors in a factor `V[k, r]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from posquad.recovery.budget import Budget

_DENSE_MOST = 1200  # entries of V up to which Gauss-Newton systems are solved densely
_ROUNDING = 8 * np.finfo(float).eps
_STATIONARY = 1e-13  # cosine between errors and slopes at which a point is stationary
_INNER = 100  # maximum number of conjugate gradient steps for one Gauss-Newton step
_FLOOR = 1e-11  # least damping over the mean curvature: the system is singular along rotations
_PATIENCE, _RATE = 20, 0.999  # a descent ends if this many steps leave this share of the error
_STEPS = 400  # maximum number of steps of a descent


class Endpoint(NamedTuple):
    """Where a descent ended."""

    V: np.ndarray  # [k, r]
    loss: float  # sum of squared weighted errors
    cosine: float  # between the errors and the range of their derivative; 0 if stationary


class SquaredErrors(Protocol):
    """Errors e that are quadratic in V, with derivative J; the loss is `||e||^2`."""

    @property
    def size(self) -> float:
        """The loss at V = 0."""
        ...

    def errors(self, V: np.ndarray) -> np.ndarray:
        """Return e."""
        ...

    def slope(self, V: np.ndarray, e: np.ndarray) -> np.ndarray:
        """Return `J'e`, `[k, r]`."""
        ...

    def curvature(self, V: np.ndarray) -> np.ndarray:
        """Return `J'J`, `[k r, k r]`."""
        ...

    def curved(self, V: np.ndarray, D: np.ndarray) -> np.ndarray:
        """Return `J'J D`, `[k, r]`."""
        ...

    def bend(self, e: np.ndarray) -> np.ndarray:
        """Return B, `[k, k]`, for which `B D` is the derivative of `J'e` along D with e fixed."""
        ...

    def total_curvature(self, V: np.ndarray) -> float:
        """Return the trace of `J'J`, or an upper bound on it."""
        ...

    def form_size(self, V: np.ndarray) -> float:
        """Return the size of the quadratic part of e over the root of `size`."""
        ...


def descend(
    problem: SquaredErrors,
    V: np.ndarray,
    budget: Budget,
    record: Callable[[float], None],
    *,
    polish: bool = False,
) -> Endpoint:
    """Descend from V by damped Gauss-Newton steps; the damping follows Nielsen's rule.

    Every step lowers the loss, or leaves it unchanged up to rounding while the slope falls. With
    `polish`, the steps are Newton's if V is small, and end at a stationary point only.
    `record(loss)` is called at every step.
    """
    e = problem.errors(V)
    loss, losses = float(e @ e), [float(e @ e)]
    g, total = problem.slope(V, e), problem.total_curvature(V)
    damping = 1e-2 * total / V.size * min(1.0, np.sqrt(loss / (problem.size or 1.0)))
    growth, hidden = 2.0, 0
    while len(losses) <= _STEPS and not budget.spent:
        slope = float(np.linalg.norm(g))
        if not slope > _STATIONARY * np.sqrt(total * loss) or hidden > 2:
            break
        # The loss is known up to the rounding of the form and the responses.
        rounding = _ROUNDING * np.sqrt(loss * problem.size) * (1 + problem.form_size(V))
        damping = max(damping, _FLOOR * total / V.size)
        newton = e if polish and V.size <= _DENSE_MOST else None
        D = _step(problem, V, g, damping, slope / np.sqrt(total * loss), newton)
        if D is None:
            damping, growth = damping * growth, 2 * growth
            if damping > 1e30 * total:
                break
            continue
        trial = V + D
        new = problem.errors(trial)
        gain = loss - float(new @ new)
        predicted = -float((D * g).sum()) + damping * float((D * D).sum())
        small = predicted <= rounding
        budget.steps += 1
        if gain > 0 or (small and gain >= -rounding):
            V, e, loss = trial, new, float(new @ new)
            g, total = problem.slope(V, e), problem.total_curvature(V)
            hidden = hidden + 1 if small and np.linalg.norm(g) > slope / 2 else 0
            ratio = np.clip(gain / predicted if predicted > 0 else 0.0, 0.0, 1.0)
            damping *= float(np.clip(1 - (2 * ratio - 1) ** 3, 0.1, 2.0))
            growth = 2.0
        else:
            damping, growth = damping * growth, 2 * growth
        losses.append(loss)
        record(loss)
        stuck = len(losses) > _PATIENCE and loss > _RATE**2 * losses[-1 - _PATIENCE]
        if damping > 1e30 * total or (stuck and not small and not polish):
            break
    length = np.sqrt(total * loss)
    return Endpoint(V, loss, float(np.linalg.norm(g)) / length if length > 0 else 0.0)


def _step(
    problem: SquaredErrors,
    V: np.ndarray,
    g: np.ndarray,
    damping: float,
    accuracy: float,
    errors: np.ndarray | None,
) -> np.ndarray | None:
    """Return the solution D of `(J'J + damping) D = -g`, nearly so if V is large.

    With `errors`, the term of the errors is added to `J'J`, which makes it the Hessian. The result
    is None if the matrix is not positive definite.
    """
    if V.size <= _DENSE_MOST:
        K = problem.curvature(V) + damping * np.eye(V.size)
        if errors is not None:
            K += np.kron(problem.bend(errors), np.eye(V.shape[1]))
        try:
            factor = cho_factor(K, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            return None
        return cho_solve(factor, -g.ravel(), check_finite=False).reshape(V.shape)
    D, R = np.zeros_like(V), -g
    direction, square = R, float((R * R).sum())
    least = square * float(np.clip(accuracy, 1e-3, 0.1)) ** 2
    for _ in range(_INNER):  # conjugate gradients: the inputs have covariance I
        curved = problem.curved(V, direction) + damping * direction
        t = square / float((direction * curved).sum())
        D, R = D + t * direction, R - t * curved
        before, square = square, float((R * R).sum())
        if square <= least:
            break
        direction = R + square / before * direction
    return D
