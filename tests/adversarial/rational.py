"""An exact simplex method on fractions, the oracle for small linear programs; exact elimination.

Floats stand for their exact binary value, so the answer belongs to exactly the data that the
library is given. Two phases with Bland's rule on tableaus of `Fraction`: slow, but exact.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

Vector = list[Fraction]


def minimum(B: np.ndarray, y: np.ndarray, d: np.ndarray) -> tuple[Fraction, Vector] | None:
    """The least `d'q` over `Bq = y`, `q >= 0` with a vertex that attains it; None if infeasible."""
    rows = [[Fraction(float(x)) for x in row] for row in B]
    right = [Fraction(float(x)) for x in y]
    n, m = len(rows), len(rows[0])
    tableau = []
    for i, (row, v) in enumerate(zip(rows, right, strict=True)):
        sign = -1 if v < 0 else 1
        artificial = [Fraction(int(i == j)) for j in range(n)]
        tableau.append([sign * x for x in row] + artificial + [sign * v])
    basis = list(range(m, m + n))
    phase_one = [Fraction(0)] * m + [Fraction(1)] * n
    _pivot_to_optimum(tableau, basis, phase_one)
    if sum((row[-1] for row, j in zip(tableau, basis, strict=True) if j >= m), Fraction(0)):
        return None
    # Artificial variables still in the basis are zero: pivot them out, or drop a redundant row.
    for i in reversed(range(n)):
        if basis[i] >= m:
            column = next((j for j in range(m) if tableau[i][j]), None)
            if column is None:
                del tableau[i], basis[i]
            else:
                _pivot(tableau, basis, i, column)
    tableau = [row[:m] + row[-1:] for row in tableau]
    costs = [Fraction(float(x)) for x in d]
    _pivot_to_optimum(tableau, basis, costs)
    q = [Fraction(0)] * m
    for row, j in zip(tableau, basis, strict=True):
        q[j] = row[-1]
    return sum((c * x for c, x in zip(costs, q, strict=True)), Fraction(0)), q


def _pivot_to_optimum(tableau: list[Vector], basis: list[int], costs: Vector) -> None:
    while True:
        for j in range(len(costs)):
            if j in basis:
                continue
            worth = zip(tableau, basis, strict=True)
            if costs[j] < sum((costs[k] * row[j] for row, k in worth), Fraction(0)):
                break
        else:
            return
        ratios = [(row[-1] / row[j], basis[i], i) for i, row in enumerate(tableau) if row[j] > 0]
        assert ratios, "the cost is bounded below"
        _pivot(tableau, basis, min(ratios)[2], j)


def _pivot(tableau: list[Vector], basis: list[int], i: int, j: int) -> None:
    scale = tableau[i][j]
    tableau[i] = [x / scale for x in tableau[i]]
    for k, row in enumerate(tableau):
        if k != i and row[j]:
            factor = row[j]
            tableau[k] = [x - factor * p for x, p in zip(row, tableau[i], strict=True)]
    basis[i] = j


def form_errors(X: np.ndarray, U: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`||U'x_i||^2 - y_i`, each computed exactly and rounded once."""
    columns = [[Fraction(float(u)) for u in column] for column in U.T]
    errors = []
    for x, v in zip(X, y, strict=True):
        row = [Fraction(float(entry)) for entry in x]
        terms = (sum((a * b for a, b in zip(row, u, strict=True)), Fraction(0)) for u in columns)
        errors.append(float(sum((z * z for z in terms), -Fraction(float(v)))))
    return np.array(errors)


def weighted_gram(X: np.ndarray, z: np.ndarray) -> list[Vector]:
    """`X' diag(z) X`, exactly."""
    rows = [[Fraction(float(x)) for x in row] for row in X]
    weights = [Fraction(float(w)) for w in z]
    d = len(rows[0])
    return [
        [
            sum((w * x[a] * x[b] for w, x in zip(weights, rows, strict=True)), Fraction(0))
            for b in range(d)
        ]
        for a in range(d)
    ]


def is_positive_semidefinite(M: list[Vector]) -> bool:
    """Whether a symmetric matrix of fractions is positive semidefinite, by elimination."""
    M = [list(row) for row in M]
    for k in range(len(M)):
        if M[k][k] < 0 or (M[k][k] == 0 and any(M[k][k:])):
            return False
        for i in range(k + 1, len(M)):
            if M[k][k]:
                factor = M[i][k] / M[k][k]
                M[i] = [x - factor * p for x, p in zip(M[i], M[k], strict=True)]
    return True
