"""Least squares over positive semidefinite matrices: what is said to be proved is true.

A case has inputs and responses; some are built so that the answer is known. A vector that is said
to prove infeasibility is checked in exact fractions, and the bound on the residual against the
residuals of other positive semidefinite matrices: the planted one, and that of Clarabel.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
import torch

from adversarial import Family, Outcome
from adversarial.rational import is_positive_semidefinite, weighted_gram
from positive_support import clarabel_fit
from posquad import RankOne
from posquad.certificates import proved_least_residual
from posquad.recovery.budget import Budget
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.cone import positive_fit

Rng = np.random.Generator


@dataclass
class Case:
    """A program, and a factor of a positive semidefinite matrix that is known to fit well."""

    X: np.ndarray
    y: np.ndarray
    U: np.ndarray | None = None
    feasible: bool | None = None  # None: not known


def sizes(rng: Rng) -> tuple[int, int]:
    d = int(rng.integers(1, 6))
    return int(rng.integers(1, d * (d + 1) + 2)), d


def noise(rng: Rng) -> Case:
    """Responses without a signal, of any mean."""
    n, d = sizes(rng)
    X = rng.standard_normal((n, d))
    return Case(X, rng.standard_normal(n) + rng.uniform(-1, 1) * (X**2).sum(1))


def planted(rng: Rng) -> Case:
    """Responses of a matrix of any rank: something interpolates, often on the boundary."""
    n, d = sizes(rng)
    X = rng.integers(-9, 10, (n, d)).astype(float)
    U = rng.integers(-5, 6, (d, int(rng.integers(1, d + 1)))).astype(float)
    return Case(X, np.square(X @ U).sum(1), U, feasible=True)  # small integers: exact


def nearly_consistent(rng: Rng) -> Case:
    """Responses of a matrix with errors from 1e-12 to 0.1 of their size."""
    n, d = sizes(rng)
    X = rng.standard_normal((n, d))
    U = rng.standard_normal((d, int(rng.integers(1, d + 1))))
    y = np.square(X @ U).sum(1)
    return Case(X, y * (1 + 10.0 ** rng.uniform(-12, -1) * rng.standard_normal(n)), U)


def contradictory(rng: Rng) -> Case:
    """An input twice, with responses that differ by as little as 1e-6 of their size."""
    n, d = sizes(rng)
    X = rng.integers(-9, 10, (n + 1, d)).astype(float)
    U = rng.integers(-5, 6, (d, d)).astype(float)
    y = np.square(X @ U).sum(1)
    X[-1], y[-1] = X[0], y[0] + 2.0 ** -int(rng.integers(0, 20)) * max(1.0, y[0])
    return Case(X, y, U, feasible=False)


def other_units(rng: Rng) -> Case:
    """Rows, columns and responses in units from 1e-6 to 1e6; all powers of two."""
    case = planted(rng) if rng.random() < 0.5 else noise(rng)
    columns = 2.0 ** rng.integers(-20, 21, case.X.shape[1])
    size = 4.0 ** rng.integers(-10, 11)
    U = None if case.U is None else case.U / columns[:, None] * math.sqrt(size)
    return Case(case.X * columns, case.y * size, U, case.feasible)


def degenerate(rng: Rng) -> Case:
    """Few distinct inputs, zero rows and columns, equal and zero responses."""
    n, d = sizes(rng)
    X = rng.choice([-1.0, 0.0, 0.0, 1.0], (n, d))
    return Case(X, rng.choice([-1.0, 0.0, 1.0, 2.0], n))


def clarabel_factor(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A factor of the positive part of what Clarabel finds."""
    Q = clarabel_fit(X, y)
    if not np.isfinite(Q).all():
        return np.zeros_like(Q)
    values, vectors = np.linalg.eigh(Q)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def exact_residual(X: np.ndarray, y: np.ndarray, U: np.ndarray) -> float:
    """`||A(UU') - y||`, squared exactly and rounded once."""
    rows, columns = X.tolist(), U.T.tolist()
    total = Fraction(0)
    for row, response in zip(rows, y.tolist(), strict=True):
        products = (sum(map(_product, row, column), Fraction(0)) for column in columns)
        total += (sum((p * p for p in products), Fraction(0)) - Fraction(response)) ** 2
    return math.sqrt(total)


def exact_farkas(X: np.ndarray, y: np.ndarray, z: np.ndarray) -> bool:
    """Whether some `z + t 1` with a small t proves in fractions that nothing interpolates."""
    for t in (0.0, *10.0 ** np.arange(-16.0, -5.0) * np.abs(z).max()):
        lifted = z + t
        below = sum(map(_product, lifted, y), Fraction(0)) < 0
        if below and is_positive_semidefinite(weighted_gram(X, lifted)):
            return True
    return False


def attempt(make: Callable[[Rng], Case], seed: int) -> Outcome:
    case = make(np.random.default_rng(seed))
    X, y = case.X, case.y
    found = positive_fit(Problem(RankOne(X), torch.as_tensor(y)), Budget(max_steps=1000))
    size, z = float(np.linalg.norm(y)), found.farkas.numpy()
    ours = exact_residual(X, y, found.factor.numpy())
    broken = []
    others = [ours, size, exact_residual(X, y, clarabel_factor(X, y))]
    others += [] if case.U is None else [exact_residual(X, y, case.U)]
    least = min(others)
    if float(found.bound) * size > least * (1 + 1e-12) + 1e-12 * size:
        broken.append(f"a bound of {float(found.bound)}, but a residual of {least / size}")
    if bool(found.optimal) and ours > least * (1 + 1e-9) + 1e-11 * size:
        broken.append(f"optimal with {ours / size}, but there is {least / size}")
    if abs(float(found.residual) * size - ours) > 1e-13 * size:
        broken.append(f"a residual of {float(found.residual)}, not {ours / size}")
    if bool(found.interpolates) and ours > 1.1e-12 * size:
        broken.append(f"interpolates, with a residual of {ours / size}")
    if bool(found.infeasible) and case.feasible:
        broken.append("infeasible, but something interpolates")
    # A few units of rounding are all that `infeasible` does not cover.
    if float(found.bound) > 1e-9 and not exact_farkas(X, y, z):
        broken.append("the Farkas vector proves nothing")
    proved = proved_least_residual(RankOne(X), y, z)
    if proved > least:
        broken.append(f"proved {proved}, but there is {least}")
    said = "interpolates" if bool(found.interpolates) else "proved" if proved > 0 else "open"
    return Outcome(broken, Counter([said, "optimal" if bool(found.optimal) else "not optimal"]))


def _product(a: float, b: float) -> Fraction:
    return Fraction(float(a)) * Fraction(float(b))


FAMILIES = {
    make.__name__: Family(partial(attempt, make), 30, count)
    for make, count in (
        (noise, 200),
        (planted, 200),
        (nearly_consistent, 200),
        (contradictory, 200),
        (other_units, 200),
        (degenerate, 200),
    )
}
