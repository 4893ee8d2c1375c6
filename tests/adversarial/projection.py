"""Attempts to obtain a wrong entropy projection with status CONVERGED.

The oracle is Newton's method on the dual in extended precision, started from the returned dual
vector; the dual is strictly concave on independent rows, so its root does not depend on the start.
The data are doubles taken as exact. A promise is broken if a coordinate of a CONVERGED answer errs
by more than `error`, if `error` exceeds the promised bound, or if q underflows and `underflow` does
not say so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import mpmath
import numpy as np

from adversarial import Family, Outcome
from posquad.core.errors import InfeasibleError
from posquad.core.status import Status
from posquad.selection import bregman_projection, von_neumann_projection
from posquad.selection.projection import Projection

Rng = np.random.Generator
PROMISED = np.finfo(float).eps ** (2 / 3)  # relative error of a CONVERGED answer
MATRICES = np.finfo(float).eps ** 0.5  # the same of von Neumann projections, in Frobenius norm
SMALLEST = math.log(np.finfo(float).tiny)


@dataclass
class Case:
    """A feasible system; `rows` are independent and imply the others exactly."""

    B: np.ndarray
    y: np.ndarray
    d: np.ndarray
    q0: np.ndarray
    rows: np.ndarray | None = None  # None: all of them
    easy: bool = False  # the answer must be CONVERGED
    digits: int = 60


def exact_logs(case: Case, dual: np.ndarray) -> list | None:
    """Logarithms of the exact projection; None if Newton's method finds none from this dual."""
    rows = np.arange(len(case.y)) if case.rows is None else case.rows
    dual = case_dual(case, dual, rows)
    with mpmath.workdps(case.digits):
        real = mpmath.mpf
        sizes = [real(x) for x in np.abs(case.B[rows]).max(1).tolist()]
        B = [[real(x) / c for x in case.B[i].tolist()] for i, c in zip(rows, sizes, strict=True)]
        y = [real(x) / c for x, c in zip(case.y[rows].tolist(), sizes, strict=True)]
        d = [real(x) for x in case.d.tolist()]
        start = [mpmath.log(real(x)) for x in case.q0.tolist()]
        n, m = len(y), len(d)
        lam = [real(x) * c for x, c in zip(dual.tolist(), sizes, strict=True)]
        for _ in range(60):
            turn = [mpmath.fdot((B[i][a], lam[i]) for i in range(n)) / d[a] for a in range(m)]
            q = [mpmath.exp(s + t) for s, t in zip(start, turn, strict=True)]
            weighted = [[B[i][a] * q[a] / d[a] for a in range(m)] for i in range(n)]
            gram = mpmath.matrix(
                [
                    [mpmath.fdot(zip(weighted[i], B[j], strict=True)) for j in range(n)]
                    for i in range(n)
                ]
            )
            misfit = mpmath.matrix(
                [y[i] - mpmath.fdot(zip(B[i], q, strict=True)) for i in range(n)]
            )
            try:
                delta = mpmath.lu_solve(gram, misfit)
            except ZeroDivisionError:
                return None
            change = [
                abs(mpmath.fdot((B[i][a], delta[i]) for i in range(n)) / d[a]) for a in range(m)
            ]
            largest = max(change)
            damping = mpmath.log1p(largest) / largest if largest > 1e-10 else 1
            lam = [lam[i] + damping * delta[i] for i in range(n)]
            if largest < real(10) ** -25:
                return [s + t for s, t in zip(start, turn, strict=True)]
        return None


def case_dual(case: Case, dual: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The multipliers of all rows as multipliers of the independent ones."""
    if len(rows) == len(dual):
        return dual
    return np.linalg.lstsq(case.B[rows].T, case.B.T @ dual, rcond=None)[0]


def judge(case: Case) -> Outcome:
    try:
        found = bregman_projection(case.B, case.y, case.d, case.q0)
    except InfeasibleError:
        return Outcome(["a feasible system was refused"])
    outcome = Outcome(said=Counter([found.status.name]))
    if found.status is not Status.CONVERGED:
        if case.easy:
            outcome.broken.append(f"not solved (error {float(found.error):.1e})")
        return outcome
    outcome.broken += lies(case, found)
    return outcome


def lies(case: Case, found: Projection) -> list[str]:
    logs = exact_logs(case, found.dual)
    if logs is None:
        return ["CONVERGED where no solution was found"]
    said = []
    if not float(found.error) <= PROMISED:
        said.append(f"CONVERGED with an error of {float(found.error):.1e}")
    small = np.array([t < SMALLEST for t in logs])
    if not np.array_equal(small, found.underflow):
        said.append("underflow is not said where it is")
    with mpmath.workdps(case.digits):
        off = [
            abs(mpmath.mpf(float(x)) / mpmath.exp(t) - 1)
            for x, t, tiny in zip(found.q, logs, small, strict=True)
            if not tiny
        ]
        away = [abs(x - t) / (1 + abs(t)) for x, t in zip(found.log_q.tolist(), logs, strict=True)]
    if off and max(off) > float(found.error):
        said.append(f"q is off by {float(max(off)):.1e}, the error is {float(found.error):.1e}")
    if max(away) > float(found.error) + 4 * np.finfo(float).eps:
        said.append(f"log q is off by {float(max(away)):.1e}")
    return said


# The cases.


def random_system(rng: Rng, n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((n, m)), rng.integers(1, 6, m).astype(float)


def sizes(rng: Rng) -> tuple[int, int]:
    m = int(rng.integers(1, 9))
    return int(rng.integers(1, min(m, 4) + 1)), m


def ordinary(rng: Rng) -> Case:
    n, m = sizes(rng)
    B, d = random_system(rng, n, m)
    q0 = 10.0 ** rng.uniform(-3, 3) * rng.uniform(0.2, 2, m)
    return Case(B, B @ rng.uniform(0.2, 2, m), d, q0, easy=True)


def scaled_columns(rng: Rng) -> Case:
    """Column sizes from 1e-5 to 1e4."""
    n, m = sizes(rng)
    B, d = random_system(rng, n, m)
    B = B * 10.0 ** rng.uniform(-5, 4, m)
    return Case(B, B @ rng.uniform(0.2, 2, m), d, rng.uniform(0.2, 2, m))


def very_scaled_columns(rng: Rng) -> Case:
    n, m = sizes(rng)
    B, d = random_system(rng, n, m)
    B = B * 10.0 ** rng.uniform(-12, 12, m)
    q = 10.0 ** rng.uniform(-3, 3, m)
    return Case(B, B @ q, d, 10.0 ** rng.uniform(-3, 3, m), digits=90)


def scaled_rows(rng: Rng) -> Case:
    n, m = sizes(rng)
    B, d = random_system(rng, n, m)
    B = B * 10.0 ** rng.uniform(-150, 150, (n, 1))
    return Case(B, B @ rng.uniform(0.2, 2, m), d, rng.uniform(0.2, 2, m), digits=80, easy=True)


def tiny_starts(rng: Rng) -> Case:
    n, m = sizes(rng)
    B, d = random_system(rng, n, m)
    q0 = 10.0 ** rng.uniform(-250, -20) * rng.uniform(0.2, 2, m)
    return Case(B, B @ rng.uniform(0.2, 2, m), d, q0, digits=90)


def underflowing(rng: Rng) -> Case:
    """Nonnegative measurements and tiny starts: coordinates off the optimal face underflow."""
    n, m = sizes(rng)
    B = rng.integers(0, 4, (n, m)) + rng.uniform(0, 1, (n, m))
    d = rng.integers(1, 6, m).astype(float)
    q0 = 10.0 ** rng.uniform(-250, -200, m)
    return Case(B, B @ rng.uniform(0.2, 2, m), d, q0, digits=120)


def spread_starts(rng: Rng) -> Case:
    n, m = sizes(rng)
    B, d = random_system(rng, n, m)
    q0 = 10.0 ** rng.uniform(-100, 60, m)
    return Case(B, B @ rng.uniform(0.2, 2, m), d, q0, digits=250)


def near_boundary(rng: Rng) -> Case:
    """A positive solution with coordinates down to 2^-40; all sums are exact."""
    n, m = sizes(rng)
    n = m if rng.random() < 0.5 else n
    B = independent_integers(rng, n, m)
    q = rng.integers(1, 16, m) / 16 * 2.0 ** -(rng.integers(0, 40, m) * (rng.random(m) < 0.5))
    d = rng.integers(1, 6, m).astype(float)
    return Case(B, B @ q, d, rng.uniform(0.2, 2, m), digits=90)


def independent_integers(rng: Rng, n: int, m: int) -> np.ndarray:
    while True:
        B = rng.integers(-3, 4, (n, m)).astype(float)
        if np.linalg.matrix_rank(B) == n:
            return B


def exact_product(B: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Bq rounded once, so that a positive solution is as near as doubles allow."""
    return np.array([math.fsum(row * q) for row in B])


def redundant(rng: Rng) -> Case:
    """Integer rows and combinations of them: the dependencies are exact."""
    n, m = sizes(rng)
    B = independent_integers(rng, n, m)
    more = rng.integers(-2, 3, (int(rng.integers(1, 4)), n)).astype(float)
    q = rng.integers(1, 2**20, m) / 2.0**20  # all sums are exact
    column = 2.0 ** rng.integers(-15, 15, m)
    every = np.vstack([B, more @ B]) * column
    order = rng.permutation(len(every))
    rows = np.argsort(order)[:n]
    q0 = 10.0 ** rng.uniform(-8, 3) * rng.uniform(0.2, 2, m)
    d = rng.integers(1, 6, m).astype(float)
    return Case(every[order], (every @ q)[order], d, q0, rows=rows)


def duplicated(rng: Rng) -> Case:
    """Columns repeated, exactly or up to rounding, with different starts."""
    n, m = sizes(rng)
    B, d = random_system(rng, n, m)
    again = np.concatenate([np.arange(m), rng.integers(0, m, int(rng.integers(1, 6)))])
    B = B[:, again] * (1 + (rng.random(len(again)) < 0.5) * 1e-15)
    size = len(again)
    q0 = 10.0 ** rng.uniform(-6, 2, size)
    return Case(B, B @ rng.uniform(0.2, 2, size), d[again], q0)


def nearly_dependent_rows(rng: Rng) -> Case:
    n, m = max(2, sizes(rng)[0]), int(rng.integers(3, 8))
    B, d = random_system(rng, min(n, m), m)
    B[-1] = B[0] + 10.0 ** rng.uniform(-11, -3) * B[-1]
    return Case(B, exact_product(B, rng.uniform(0.2, 2, m)), d, rng.uniform(0.2, 2, m))


def wide(rng: Rng) -> Case:
    m = int(rng.integers(20, 61))
    B, d = random_system(rng, int(rng.integers(1, 7)), m)
    B = B * 10.0 ** rng.uniform(-4, 3, m)
    return Case(B, B @ rng.uniform(0.2, 2, m), d, 10.0 ** rng.uniform(-6, 1, m))


def graded_multiplicities(rng: Rng) -> Case:
    n, m = sizes(rng)
    B, _ = random_system(rng, n, m)
    d = 10.0 ** rng.uniform(-4, 6, m)
    return Case(B, B @ rng.uniform(0.2, 2, m), d, rng.uniform(0.2, 2, m))


KINDS: dict[str, Callable[[Rng], Case]] = {
    kind.__name__: kind
    for kind in (
        ordinary,
        scaled_columns,
        very_scaled_columns,
        scaled_rows,
        tiny_starts,
        underflowing,
        spread_starts,
        near_boundary,
        redundant,
        duplicated,
        nearly_dependent_rows,
        wide,
        graded_multiplicities,
    )
}


def attempt(kind: str, seed: int) -> Outcome:
    return judge(KINDS[kind](np.random.default_rng([seed, list(KINDS).index(kind)])))


def attempt_matrices(seed: int) -> Outcome:
    """Diagonal matrices, for which the von Neumann projection is that of their diagonals."""
    rng = np.random.default_rng([seed, 990])
    kinds = (ordinary, scaled_columns, tiny_starts, near_boundary, nearly_dependent_rows)
    case = kinds[int(rng.integers(len(kinds)))](rng)
    case.d = np.ones_like(case.d)
    A = np.stack([np.diag(row) for row in case.B])
    found = von_neumann_projection(A, case.y, np.diag(case.q0))
    outcome = Outcome(said=Counter([found.status.name]))
    if found.status is Status.CONVERGED:
        logs = exact_logs(case, found.dual)
        exact = (
            np.diag([float(mpmath.exp(t)) for t in logs]) if logs else np.full_like(found.q, np.inf)
        )
        off = np.linalg.norm(found.q - exact) / np.linalg.norm(exact)
        if not (off <= 2 * float(found.error) and float(found.error) <= MATRICES):
            outcome.broken.append(f"Q is off by {off:.1e}, the error is {float(found.error):.1e}")
    return outcome


FAMILIES = {kind: Family(partial(attempt, kind), 50, 2000) for kind in KINDS} | {
    "von_neumann": Family(attempt_matrices, 80, 2000)
}
