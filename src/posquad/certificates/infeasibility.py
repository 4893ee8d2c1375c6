"""Proofs that no positive semidefinite matrix explains the responses, or fits them better.

If `A*(z) >= 0`, then `<z, A(Q)> = <A*(z), Q> >= 0` for every positive semidefinite Q, of any rank,
so `||A(Q) - y|| >= -<z, y> / ||z||` (statement 12 of `docs/theory.md`). A positive bound makes z a
Farkas vector. `posquad.recovery` computes such vectors at full rank; any vector may be tried.
"""

from __future__ import annotations

import math

import numpy as np

from posquad.certificates.proofs.bounded_operator import (
    BoundedDense,
    BoundedOperator,
    BoundedRankOne,
    bounded_problem,
)
from posquad.certificates.proofs.statements import proves_dual_feasible, residual_below
from posquad.core.arrays import Array, require_shape
from posquad.core.errors import DomainError
from posquad.core.ranges import BOUND_SIZES
from posquad.problems.combination import positive_combination
from posquad.problems.measurements import Dense, Measurements
from posquad.problems.objectives import LeastSquares

__all__ = ["proved_least_residual", "proves_infeasible"]

_LIFTS = (1.0, 4.0, 16.0)  # multiples of the estimated rounding that z is shifted by


def proves_infeasible(measurements: Measurements, y: Array, z: Array) -> bool:
    """Prove that no positive semidefinite matrix Q has `A(Q) = y`, of whatever rank.

    The proof is `A*(z) >= 0` and `<z, y> < 0`: a Q with `A(Q) = y` would have
    `<z, y> = <A*(z), Q> >= 0`. It is about the exact numbers in the arrays, with every rounding
    error bounded. False proves nothing, in particular not that such a Q exists.

    Args:
        measurements: one `RankOne` or `Dense` operator.
        y: the responses, `[n]`.
        z: the vector to try, `[n]`; see `proved_least_residual`.

    The first two inputs are equal, their responses are not:

    >>> from posquad import RankOne
    >>> X = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, -1.0]])
    >>> proves_infeasible(RankOne(X), np.array([1.0, 2.0, 1.0]), np.array([1.0, -0.9, 0.1]))
    True
    """
    return proved_least_residual(measurements, y, z) > 0


def proved_least_residual(measurements: Measurements, y: Array, z: Array) -> float:
    """Prove a lower bound on `||A(Q) - y||` for all positive semidefinite Q; 0 if none is proved.

    The bound is `-<z, y> / ||z||`, rounded down, for a z with `A*(z) >= 0`. The residual vector
    `A(Q) - y` of the best Q gives the best bound, the norm of the residual itself. z may violate
    the condition a little, where a combination `A*(w)` is positive definite (for rank-one
    measurements w = 1): the proof then uses `z + t w` with a small t.

    Args:
        measurements: one `RankOne` or `Dense` operator.
        y: the responses, `[n]`.
        z: the vector to try, `[n]`.

    The best fit of a negative response is zero:

    >>> from posquad import RankOne
    >>> y = np.array([-3.0, 1.0])
    >>> round(proved_least_residual(RankOne(np.eye(2)), y, np.array([1.0, 0.0])), 10)
    3.0
    """
    objective = LeastSquares(measurements, y)
    operator, responses = bounded_problem(objective)
    (vector,) = measurements.admit(z=z)
    require_shape("z", vector, (operator.n,), "(n,), one entry per response")
    if vector.ndim != 1:
        got = f"a batch of shape {tuple(vector.shape[:-1])}"
        raise DomainError("z", expected="one vector, shape (n,)", got=got)
    return _least_residual(operator, responses, vector.detach().double().cpu().numpy())


def _least_residual(operator: BoundedOperator, y: np.ndarray, z: np.ndarray) -> float:
    if not (np.any(y) and np.any(z)):
        return 0.0
    with np.errstate(all="ignore"):  # nothing is proved from overflows
        unit = _unit(y)
        y_scaled, z = _scaled(y, unit), _scaled(z, _unit(z))
        if isinstance(operator, BoundedRankOne):
            operator = _column_scaled(operator)
        for lift in _lifts(operator, z):
            vector = z + lift
            if proves_dual_feasible(operator, vector):
                bound = residual_below(y_scaled, vector) / unit
                return bound if BOUND_SIZES.of().low < bound < math.inf else 0.0
    return 0.0


def _lifts(operator: BoundedOperator, z: np.ndarray) -> list[np.ndarray]:
    """Return shifts t w of z to try, with `A*(w) > 0`; nothing here is a proof."""
    w, none = np.ones(operator.n), np.zeros(operator.n)
    if isinstance(operator, BoundedDense):
        found = positive_combination(Dense(operator.A))
        if found is None:
            return [none]
        w = found[0].numpy()
    moments, _ = operator.adjoint(w)
    Y, size = operator.adjoint(z)
    values, vectors = np.linalg.eigh(moments)
    if not values[0] > 1e-12 * values[-1]:
        return [none, *(factor * operator.n * np.finfo(float).eps * w for factor in _LIFTS)]
    half = vectors / np.sqrt(values)
    lowest = float(np.linalg.eigvalsh(half.T @ Y @ half)[0])
    rounding = 4 * operator.depth * operator.d * np.finfo(float).eps * size / float(values[0])
    least = max(0.0, -1.01 * lowest)
    return [none, *((least + factor * rounding) * w for factor in _LIFTS)]


def _column_scaled(operator: BoundedRankOne) -> BoundedRankOne:
    """Scale the columns by powers of two and drop zero ones; `A*(z) >= 0` does not depend on it."""
    largest = operator.absolute.max(0)
    X = operator.X[:, largest > 0]
    if not X.size:
        return BoundedRankOne(np.zeros((operator.n, 1)))
    return BoundedRankOne(_scaled(X, np.array([_unit(column) for column in X.T])))


def _unit(values: np.ndarray) -> float:
    """Return the power of two that brings the largest entry close to one."""
    exponent = math.frexp(float(np.abs(values).max()))[1]
    return 2.0 ** min(1000, max(-1000, -exponent))


def _scaled(values: np.ndarray, unit: np.ndarray | float) -> np.ndarray:
    """Return the values times powers of two, which is exact, or NaN where it would not be."""
    scaled = values * unit
    return np.where(scaled / unit == values, scaled, np.nan)
