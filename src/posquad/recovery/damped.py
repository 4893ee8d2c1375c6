"""Damped Gauss-Newton and Newton descent of a sum of squared errors in a factor `V[k, r]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from posquad.recovery.budget import Budget
from posquad.recovery.solvers.levenberg import (
    FIRST_DAMPING,
    GROWTH,
    HIDDEN_GAIN,
    LEAST_DAMPING,
    LEAST_FACTOR,
    MOST_FACTOR,
)

# Entries of V up to which Gauss-Newton systems are solved densely. Derived: 12 MB, and its
# factorization takes 6e8 operations, a tenth of a second.
_DENSE_MOST = 1200
# Cosine between errors and slopes at which a point is stationary. A choice: a descent on the sums
# of a stream is cheap, so that it goes to rounding.
_STATIONARY = 1e-13
# Steps that rounding hides and that do not halve the slope, after which a descent ends. A choice:
# two may be bad luck.
_HIDDEN_STEPS = 2
# Maximum number of conjugate gradient steps for one Gauss-Newton step. Derived: at a condition
# number of 500, 85 steps give the least accuracy, 1e-3 (their error is 2 (1 - 2 / (1 +
# sqrt(500)))^k).
_INNER = 100
# Bounds on the accuracy of these steps, which otherwise equals the cosine of errors and slopes. A
# choice: those of `posquad.recovery.solvers.gauss_newton`.
_LEAST_ACCURACY = 1e-3
_MOST_ACCURACY = 0.1
# A descent ends if this many steps leave this share of the error. A choice: the defaults of
# `levenberg_marquardt`.
_PATIENCE = 20
_RATE = 0.999
# Maximum number of steps of a descent. Measured: `benchmarks/tuning.py --methods`.
_STEPS = 400
# Damping, over the trace of J'J, at which a descent ends. Derived: a step is then shorter than
# 1e-30 of the slope over the curvature, and V does not change in double precision.
_MOST_DAMPING = 1e30


class Endpoint(NamedTuple):
    """Where a descent ended."""

    V: np.ndarray  # [k, r]
    loss: float  # sum of squared weighted errors
    cosine: float  # between the errors and the range of their derivative; 0 if stationary


class Eliminated(NamedTuple):
    """Errors with the products of one direction v with all linear functions eliminated."""

    inner: SquaredErrors  # as a function of W, of the forms `BWW'B'`
    basis: np.ndarray  # [k, k - 1]  B, orthogonal to v
    coefficients: Callable[[np.ndarray], np.ndarray]  # c(W), `[k]`, of the products (v's)(c's)


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

    def loss(self, V: np.ndarray) -> float:
        """Return `||e||^2`."""
        ...

    def scaled(self, V: np.ndarray) -> np.ndarray:
        """Return V times the factor of least loss; V itself if that is zero."""
        ...

    def correlation(self, V: np.ndarray) -> np.ndarray:
        """Return `-A*(e)`, `[k, k]`: an eigenvector of a positive eigenvalue lowers the loss."""
        ...

    def without(self, v: np.ndarray) -> Eliminated:
        """Return the errors with all products of `v's` with linear functions eliminated."""
        ...

    def system(self) -> tuple[np.ndarray, np.ndarray]:
        """Return `S[m, k(k+1)/2]` and `z[m]` with `e = S svec(VV') - z`, up to a constant error."""
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
    """Descend from V by damped Gauss-Newton steps; the damping follows the rule of Nielsen (1999).

    Every step lowers the loss, or leaves it unchanged up to rounding while the slope falls. With
    `polish`, the steps are Newton's if V is small, and end at a stationary point only.
    `record(loss)` is called at every step.
    """
    e = problem.errors(V)
    loss, losses = float(e @ e), [float(e @ e)]
    g, total = problem.slope(V, e), problem.total_curvature(V)
    damping = FIRST_DAMPING * total / V.size * min(1.0, np.sqrt(loss / (problem.size or 1.0)))
    growth, hidden = GROWTH, 0
    while len(losses) <= _STEPS and not budget.spent:
        slope = float(np.linalg.norm(g))
        if not slope > _STATIONARY * np.sqrt(total * loss) or hidden > _HIDDEN_STEPS:
            break
        # The loss is known up to the rounding of the form and the responses.
        rounding = HIDDEN_GAIN * np.finfo(float).eps * np.sqrt(loss * problem.size)
        rounding *= 1 + problem.form_size(V)
        damping = max(damping, LEAST_DAMPING * total / V.size)
        newton = e if polish and V.size <= _DENSE_MOST else None
        D = _step(problem, V, g, damping, slope / np.sqrt(total * loss), newton)
        if D is None:
            damping, growth = damping * growth, GROWTH * growth
            if damping > _MOST_DAMPING * total:
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
            damping *= float(np.clip(1 - (2 * ratio - 1) ** 3, LEAST_FACTOR, MOST_FACTOR))
            growth = GROWTH
        else:
            damping, growth = damping * growth, GROWTH * growth
        losses.append(loss)
        record(loss)
        stuck = len(losses) > _PATIENCE and loss > _RATE**2 * losses[-1 - _PATIENCE]
        if damping > _MOST_DAMPING * total or (stuck and not small and not polish):
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
    least = square * float(np.clip(accuracy, _LEAST_ACCURACY, _MOST_ACCURACY)) ** 2
    for _ in range(_INNER):  # conjugate gradients: the inputs have covariance I
        curved = problem.curved(V, direction) + damping * direction
        t = square / float((direction * curved).sum())
        D, R = D + t * direction, R - t * curved
        before, square = square, float((R * R).sum())
        if square <= least:
            break
        direction = R + square / before * direction
    return D
