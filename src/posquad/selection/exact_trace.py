"""Minimum trace of commuting measurements in rational arithmetic (paper, section 4.4).

A pair (q, dual) solves `min d'q` over `B q = y`, `q >= 0` if and only if `B q = y`, `q >= 0`,
`d - B'dual >= 0` and `d'q = y'dual`, which a few comparisons of rational numbers decide. By
Proposition 4.2 (`prop:global-psd-trace-equivalence`) the value is then the smallest trace over all
positive semidefinite interpolants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from posquad.core.errors import DomainError, DtypeError, ShapeError
from posquad.core.results import Result
from posquad.core.verdict import Verdict
from posquad.selection.trace import minimum_trace

__all__ = ["ExactMinimumTrace", "check_exact_minimum_trace", "exact_minimum_trace"]

Vector = tuple[Fraction, ...]


@dataclass(frozen=True, eq=False, repr=False)
class ExactMinimumTrace(Result):
    """Pair (q, dual) of rational vectors, and whether it is proved optimal."""

    value: Fraction  # d'q
    q: Vector  # [m]
    dual: Vector  # [n]
    slack: Vector  # [m]  d - B'dual
    verdict: Verdict  # PROVED or REFUSED
    reason: str


def check_exact_minimum_trace(
    B: Any, y: Any, multiplicities: Any, q: Any, dual: Any
) -> ExactMinimumTrace:
    """Check exactly whether q has minimum trace, by `eq:minimum-reduced-trace` and its dual.

    Entries are integers, `Fraction`, strings such as "3/10" or "0.3", or floats, which stand for
    their exact binary value (0.3 is not 3/10). Shapes are `B[n, m]`, `y[n]`, multiplicities and q
    `[m]`, dual `[n]`. The function only compares; it does not solve anything.

    >>> B, y, d = [[1, 1, 1, 0], [0, 0, 1, 1]], [1, "3/10"], [1, 1, 2, 3]
    >>> proof = check_exact_minimum_trace(B, y, d, ["7/20", "7/20", "3/10", 0], [1, 1])
    >>> proof.verdict.name, str(proof.value), [str(s) for s in proof.slack]
    ('PROVED', '13/10', ['0', '0', '0', '2'])
    """
    b, v, d = _system(B, y, multiplicities)
    point, lam = _vector("q", q, len(d)), _vector("dual", dual, len(v))
    fitted = [_dot(row, point) for row in b]
    slack = tuple(w - _dot(column, lam) for w, column in zip(d, zip(*b, strict=True), strict=True))
    value, bound = _dot(d, point), _dot(v, lam)
    failures = [
        *(
            f"(Bq)_{i} = {f} != {t}"
            for i, (f, t) in enumerate(zip(fitted, v, strict=True))
            if f != t
        ),
        *(f"q_{a} = {x} < 0" for a, x in enumerate(point) if x < 0),
        *(f"(d - B'dual)_{a} = {s} < 0" for a, s in enumerate(slack) if s < 0),
        *([f"d'q = {value} != y'dual = {bound}"] if value != bound else []),
    ]
    reason = (
        failures[0] if failures else f"d'q = y'dual = {value}, q >= 0, d - B'dual >= 0, exactly"
    )
    verdict = Verdict.REFUSED if failures else Verdict.PROVED
    return ExactMinimumTrace(value, point, lam, slack, verdict, reason)


def exact_minimum_trace(B: Any, y: Any, multiplicities: Any) -> ExactMinimumTrace:
    """Solve `eq:minimum-reduced-trace` in floating point, then exactly, and prove the result.

    The floating-point solution tells which coordinates are positive. On them the equations are
    solved in rational numbers, with free unknowns set to simple fractions near the computed values.
    Arguments are as in `check_exact_minimum_trace`. The verdict is REFUSED if no such pair is
    optimal.

    >>> proof = exact_minimum_trace([[1, 1, 1, 0], [0, 0, 1, 1]], [1, "3/10"], [1, 1, 2, 3])
    >>> str(proof.value), [str(x) for x in proof.q], [str(s) for s in proof.slack]
    ('13/10', ['7/20', '7/20', '3/10', '0'], ['0', '0', '0', '2'])
    """
    b, v, d = _system(B, y, multiplicities)
    floats = [np.array([[float(x) for x in row] for row in b])]
    floats += [np.array([float(x) for x in vector]) for vector in (v, d)]
    near = minimum_trace(*floats)
    support = near.face.support
    columns = [[row[a] for a in support] for row in b]
    rows = [[row[a] for row in b] for a in support]
    weights = [d[a] for a in support]
    proof = None
    for denominator in (100, 10**4, 10**7, None):
        simple = _simplifier(denominator)
        inside = solve_exactly(columns, v, [simple(near.q[a]) for a in support])
        dual = solve_exactly(rows, weights, [simple(x) for x in near.dual])
        if inside is None or dual is None:
            continue
        q = [Fraction(0)] * len(d)
        for a, x in zip(support, inside, strict=True):
            q[a] = x
        proof = check_exact_minimum_trace(b, v, d, q, dual)
        if proof.verdict is Verdict.PROVED:
            return proof
    if proof is None:
        raise DomainError(
            "y",
            expected="a system whose computed support solves it exactly",
            got=f"no exact solution on the coordinates {support}; pass strings or Fractions",
        )
    return proof


def solve_exactly(
    rows: Sequence[Sequence[Fraction]], right: Sequence[Fraction], near: Sequence[Fraction]
) -> list[Fraction] | None:
    """Rational solution x of `rows x = right` with free unknowns taken from `near`, or None.

    >>> solve_exactly([[Fraction(1), Fraction(2)]], [Fraction(3)], [Fraction(0), Fraction(1)])
    [Fraction(1, 1), Fraction(1, 1)]
    """
    table = [[*row, t] for row, t in zip(rows, right, strict=True)]
    m = len(near)
    pivots: list[int] = []
    for column in range(m):
        k = len(pivots)
        found = next((i for i in range(k, len(table)) if table[i][column] != 0), None)
        if found is None:
            continue
        table[k], table[found] = table[found], table[k]
        head = table[k][column]
        table[k] = [x / head for x in table[k]]
        for i in range(len(table)):
            factor = table[i][column]
            if i != k and factor != 0:
                table[i] = [x - factor * t for x, t in zip(table[i], table[k], strict=True)]
        pivots.append(column)
    if any(row[m] != 0 for row in table[len(pivots) :]):
        return None
    x = list(near)
    for k, column in enumerate(pivots):
        others = (table[k][j] * x[j] for j in range(m) if j not in pivots)
        x[column] = table[k][m] - sum(others, Fraction(0))
    return x


def _simplifier(denominator: int | None) -> Callable[[float], Fraction]:
    if denominator is None:
        return lambda x: Fraction(float(x))
    return lambda x: Fraction(float(x)).limit_denominator(denominator)


def _dot(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    return sum((x * t for x, t in zip(a, b, strict=True)), Fraction(0))


def _system(B: Any, y: Any, multiplicities: Any) -> tuple[list[Vector], Vector, Vector]:
    d = _vector("multiplicities", multiplicities, None)
    rows = [_vector("B", row, len(d)) for row in B]
    if not rows or not d:
        raise ShapeError("B", expected="at least one row and column", got=f"{len(rows)} rows")
    if any(w <= 0 for w in d):
        raise DomainError("multiplicities", expected="positive numbers", got=f"{min(d)}")
    return rows, _vector("y", y, len(rows)), d


def _vector(name: str, values: Any, size: int | None) -> Vector:
    entries = tuple(_fraction(name, value) for value in values)
    if size is not None and len(entries) != size:
        raise ShapeError(name, expected=f"{size} entries", got=f"{len(entries)}")
    return entries


def _fraction(name: str, value: Any) -> Fraction:
    plain = value.item() if isinstance(value, np.generic) else value
    try:
        return Fraction(plain)
    except (ValueError, TypeError, OverflowError, ZeroDivisionError):
        expected = "integers, fractions, finite floats or strings such as '3/10'"
        raise DtypeError(name, expected=expected, got=repr(value)) from None
