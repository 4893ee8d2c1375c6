"""An optimal vertex of `min d'q` over `Bq = y`, `q >= 0`, right to the rounding of the data.

A linear-program solver works to absolute tolerances near 1e-10, so that it cannot tell a coordinate
of 1e-12, or a reduced cost of 1e-12, from zero. Its basis is therefore taken as a proposal: the
equations of the basis are solved afresh, the rounding of every coordinate and every slack is
bounded, and a basis that is infeasible beyond that bound is improved by the same program seen from
this vertex, with the violation magnified (iterative refinement of linear programs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

_SOLVER = {
    "primal_feasibility_tolerance": 1e-10,
    "dual_feasibility_tolerance": 1e-10,
}
_SEEN = 1e-8  # what a violation is magnified to: a hundred tolerances of the solver
_TIED = 1e-9  # a reduced cost that the solver means to be zero
_ROUNDS = 8  # of refinement; the second or third is the last one in practice
_ENTRY_ROUNDING = 4.0  # units of rounding granted to every entry of the data


@dataclass(frozen=True)
class Program:
    """`min c'x` over `bx = v`, `x >= 0`; the rows of b are independent."""

    b: np.ndarray  # [n, m]
    v: np.ndarray  # [n]
    c: np.ndarray  # [m]
    eps: float  # rounding of the data


@dataclass(frozen=True)
class Units:
    """The units of the scaled numbers, as powers of two: changing them rounds nothing."""

    row: np.ndarray  # [n]
    column: np.ndarray  # [m]
    right: float
    price: float

    def point(self, x: np.ndarray) -> np.ndarray:
        return x * self.column * self.right

    def dual(self, dual: np.ndarray) -> np.ndarray:
        return dual * self.row * self.price

    def slack(self, slack: np.ndarray) -> np.ndarray:
        return slack * self.price / self.column


@dataclass(frozen=True)
class Vertex:
    """A basic solution and a dual vector, with what rounding can hide in each."""

    x: np.ndarray  # [m]  zero off the basis
    misfit: np.ndarray  # [n]  v - bx, zero where it is rounding
    doubt: np.ndarray  # [m]  |x_a| at or below this is zero to rounding
    dual: np.ndarray  # [n]
    slack: np.ndarray  # [m]  c - b'dual
    slack_doubt: np.ndarray  # [m]  |slack_a| at or below this is zero to rounding

    @property
    def positive(self) -> np.ndarray:
        """Columns whose coordinate is positive beyond rounding."""
        return np.flatnonzero(self.x > self.doubt)

    @property
    def tight(self) -> np.ndarray:
        """Columns whose slack is zero to rounding; they hold every optimal face."""
        return np.flatnonzero(self.slack <= self.slack_doubt)

    def on_positive(self, program: Program) -> np.ndarray:
        """The solution with only the positive coordinates, each row weighed in its own size."""
        support = self.positive
        x = np.zeros_like(self.x)
        if support.size:
            M, v = program.b[:, support], program.v
            weight = 1 / (np.abs(M) @ self.x[support] + np.abs(v)).clip(np.finfo(float).tiny)
            scaled = weight[:, None] * M * self.x[support]
            ratio = np.linalg.lstsq(scaled, weight * v, rcond=None)[0]
            ratio += np.linalg.lstsq(scaled, weight * v - scaled @ ratio, rcond=None)[0]
            x[support] = self.x[support] * ratio
        return x

    @property
    def primal_violation(self) -> float:
        """Largest amount by which a coordinate is negative, or a row missed, beyond rounding."""
        negative = np.where(self.x < -self.doubt, -self.x, 0.0).max()
        return float(max(negative, np.abs(self.misfit).max()))

    @property
    def dual_violation(self) -> float:
        """Largest amount by which a slack is negative beyond rounding."""
        return float(np.where(self.slack < -self.slack_doubt, -self.slack, 0.0).max())


def scaled_program(
    b: np.ndarray, y: np.ndarray, d: np.ndarray, eps: float
) -> tuple[Program, Units]:
    """A program with rows and columns of size one, y and prices of size one, and its units.

    The tolerances of solvers are absolute, and the answer should not depend on anyone's units.
    """
    row, column = np.ones(len(y)), np.ones(len(d))
    for _ in range(3):
        for axis, unit in ((0, column), (1, row)):
            size = np.abs(row[:, None] * b * column).max(axis=axis)
            unit /= np.where(size > 0, _power_of_two(np.where(size > 0, size, 1.0)), 1.0)
    v, c = row * y, d * column
    right = float(_power_of_two(np.abs(v).max() or 1.0))
    price = float(_power_of_two(np.median(c)))
    scaled = row[:, None] * b * column
    return Program(scaled, v / right, c / price, eps), Units(row, column, right, price)


def optimal_vertex(program: Program) -> Vertex | str:
    """A vertex that is optimal to rounding, or why there is none, in words."""
    b, v, c = program.b, program.v, program.c
    cost, lower = c, np.zeros(len(c))
    answer = _linear_program(cost, b, v, lower)
    if answer.status != 0:
        return str(answer.message)
    dual, vertex, enlarged, sharpened = answer.eqlin.marginals, None, 1.0, 1.0
    for _ in range(_ROUNDS):
        if answer.status == 0:
            tied = np.abs(answer.lower.marginals) <= _TIED * np.maximum(1.0, cost)
            vertex = _solved(program, _basis(b, answer.x - lower, tied), dual)
            if vertex.primal_violation == 0 and vertex.dual_violation == 0:
                return vertex
            enlarged = max(enlarged, _magnification(vertex.primal_violation))
            sharpened = max(sharpened, _magnification(vertex.dual_violation))
        else:  # feasible only to rounding: look with less magnification
            enlarged, sharpened = max(1.0, enlarged / 10), max(1.0, sharpened / 10)
        assert vertex is not None, "the first program was solved"
        # Unknowns are the moves from the vertex, bounded by x >= 0.
        cost, lower = sharpened * vertex.slack, -enlarged * vertex.x
        answer = _linear_program(cost, b, enlarged * (v - b @ vertex.x), lower)
        if answer.status == 0:
            dual = vertex.dual + answer.eqlin.marginals / sharpened
    return "no basis is feasible to the rounding of the data on both sides"


def _linear_program(cost: np.ndarray, b: np.ndarray, right: np.ndarray, lower: np.ndarray) -> Any:
    """Minimise over `bx = right`, `x >= lower` by the dual simplex method, to a basic solution."""
    bounds = np.stack([lower, np.full(len(cost), np.inf)], axis=1)
    answer: Any = None
    for presolve in (False, True):  # presolve may remove small coordinates, so it comes second
        answer = scipy.optimize.linprog(
            cost,
            A_eq=b,
            b_eq=right,
            bounds=bounds,
            method="highs-ds",
            options=_SOLVER | {"presolve": presolve},
        )
        if answer.status == 0:
            break
    return answer


def _magnification(violation: float) -> float:
    """What makes a violation a hundred times the solver's tolerance."""
    return _SEEN / violation if violation > 0 else 1.0


def _basis(b: np.ndarray, above: np.ndarray, tied: np.ndarray) -> np.ndarray:
    """Independent columns of those with reduced cost zero, first those above their bound.

    At a degenerate vertex they may be fewer than the rows; where more columns are tied than can be
    independent, any maximal set spans the same range.
    """
    high = above > _TIED * max(1.0, above.max())
    chosen = np.empty(0, dtype=int)
    for tier in (tied & high, tied & ~high):
        candidates = np.flatnonzero(tier)
        room = len(b) - len(chosen)
        if not room or not len(candidates):
            continue
        columns = b[:, candidates] / np.maximum(np.linalg.norm(b[:, candidates], axis=0), 1e-300)
        if len(chosen):
            Q = np.linalg.qr(b[:, chosen])[0]
            for _ in range(2):  # the second time removes the rounding of the first
                columns = columns - Q @ (Q.T @ columns)
        R, pivots = scipy.linalg.qr(columns, mode="r", pivoting=True)
        rank = int((np.abs(np.diag(R)) > 1e-13 * len(b)).sum())
        chosen = np.append(chosen, candidates[pivots[: min(rank, room)]])
    return np.sort(chosen)


def _solved(program: Program, basis: np.ndarray, near: np.ndarray) -> Vertex:
    """The solution on the basis, and the dual vector nearest to `near` that is tight on it.

    Each with its rounding: for `Mx = v` with every entry known to a relative eps,
    `|dx| <= eps |M^+| (|M||x| + |v|)` (Oettli and Prager); the same for the dual, carried on to
    the slacks.
    """
    b, v, c = program.b, program.v, program.c
    M, prices = b[:, basis], c[basis]
    Q, R = np.linalg.qr(M)  # [n, k], [k, k]
    inverse = scipy.linalg.solve_triangular(R, Q.T)  # [k, n]  the pseudoinverse
    x = inverse @ v
    x = x + inverse @ (v - M @ x)
    dual = near
    for _ in range(2):
        dual = dual + inverse.T @ (prices - M.T @ dual)
    slack = c - b.T @ dual
    slack[basis] = 0.0  # by definition of the dual
    unit = _ENTRY_ROUNDING * program.eps
    full, doubt = np.zeros(len(c)), np.zeros(len(c))
    full[basis] = x
    terms = np.abs(M) @ np.abs(x) + np.abs(v)  # [n]
    doubt[basis] = unit * (np.abs(inverse) @ terms)
    misfit = v - M @ x
    misfit[np.abs(misfit) <= unit * (terms + np.abs(M) @ (np.abs(inverse) @ terms))] = 0.0
    dual_doubt = np.abs(inverse).T @ (np.abs(M).T @ np.abs(dual) + prices)
    slack_doubt = unit * (c + np.abs(b).T @ (np.abs(dual) + dual_doubt))
    return Vertex(full, misfit, doubt, dual, slack, slack_doubt)


def _power_of_two(values: np.ndarray | float) -> np.ndarray:
    """The power of two at or just below each value."""
    return np.exp2(np.floor(np.log2(values)))
