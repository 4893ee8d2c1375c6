"""An optimal vertex of `min d'q` over `Bq = y`, `q >= 0`, correct to the rounding of the data.

A linear-program solver works to absolute tolerances near 1e-10, so it cannot tell a coordinate of
1e-12, or a reduced cost of 1e-12, from zero. Its basis is therefore only a proposal. The equations
of the basis are solved again, and the rounding of every coordinate and every slack is bounded. A
basis that is infeasible beyond that bound is improved by solving the same program in terms of the
move from this vertex, with the violation magnified (iterative refinement of linear programs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from posquad.core.ranges import tiny

SOLVER_OPTIONS = {
    "primal_feasibility_tolerance": 1e-10,
    "dual_feasibility_tolerance": 1e-10,
}
_MAGNIFIED = 1e-8  # size to which a violation is magnified: 100 tolerances of the solver
_TIED = 1e-9  # a reduced cost below this is zero to the solver
_ROUNDS = 8  # maximum number of rounds of refinement; two or three are usual
_SCALING_SWEEPS = 10  # sweeps over rows and columns that scale a program
_ENTRY_ROUNDING = 4.0  # units of rounding allowed in every entry of the data


@dataclass(frozen=True)
class Program:
    """`min c'x` over `bx = v`, `x >= 0`; the rows of b are independent."""

    b: np.ndarray  # [n, m]
    v: np.ndarray  # [n]
    c: np.ndarray  # [m]
    eps: float  # rounding of the data


@dataclass(frozen=True)
class Units:
    """Units of the scaled numbers: powers of two, so that conversion does not round."""

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
    """A basic solution and a dual vector, with bounds on the rounding of each."""

    x: np.ndarray  # [m]  zero off the basis
    misfit: np.ndarray  # [n]  v - bx, set to zero where it is rounding
    rounding: np.ndarray  # [m]  an x_a of at most this size is zero up to rounding
    dual: np.ndarray  # [n]
    slack: np.ndarray  # [m]  c - b'dual
    slack_rounding: np.ndarray  # [m]  a slack_a of at most this size is zero up to rounding

    @property
    def positive(self) -> np.ndarray:
        """Columns whose coordinate is positive beyond rounding."""
        return np.flatnonzero(self.x > self.rounding)

    @property
    def tight(self) -> np.ndarray:
        """Columns whose slack is zero up to rounding; they contain the optimal face."""
        return np.flatnonzero(self.slack <= self.slack_rounding)

    def on_positive(self, program: Program) -> np.ndarray:
        """Solution on the positive coordinates alone, each row scaled by the size of its terms."""
        support = self.positive
        x = np.zeros_like(self.x)
        if support.size:
            M, v = program.b[:, support], program.v
            weight = 1 / (np.abs(M) @ self.x[support] + np.abs(v)).clip(tiny())
            scaled = weight[:, None] * M * self.x[support]
            ratio = np.linalg.lstsq(scaled, weight * v, rcond=None)[0]
            ratio += np.linalg.lstsq(scaled, weight * v - scaled @ ratio, rcond=None)[0]
            x[support] = self.x[support] * ratio
        return x

    @property
    def primal_violation(self) -> float:
        """Largest negative coordinate or misfit of a row, beyond rounding, in absolute value."""
        negative = np.where(self.x < -self.rounding, -self.x, 0.0).max()
        return float(max(negative, np.abs(self.misfit).max()))

    @property
    def dual_violation(self) -> float:
        """Largest negative slack beyond rounding, in absolute value."""
        return float(np.where(self.slack < -self.slack_rounding, -self.slack, 0.0).max())


def scaled_program(
    b: np.ndarray, y: np.ndarray, d: np.ndarray, eps: float
) -> tuple[Program, Units]:
    """Program with rows, columns, right-hand side and costs of size one, and its units.

    The tolerances of solvers are absolute, and the answer should not depend on the user's units.
    """
    row, column = _geometric_units(b)
    for axis, unit in ((0, column), (1, row)):
        size = np.abs(row[:, None] * b * column).max(axis=axis)
        unit /= _power_of_two(np.where(size > 0, size, 1.0))
    v, c = row * y, d * column
    right = float(_power_of_two(np.abs(v).max() or 1.0))
    price = float(_power_of_two(np.median(c)))
    scaled = row[:, None] * b * column
    return Program(scaled, v / right, c / price, eps), Units(row, column, right, price)


def _geometric_units(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Units of rows and columns that bring the nonzero entries of b as close to 1 as possible.

    They minimise the squared logarithms of the scaled entries (Curtis and Reid, 1972), by
    alternating between rows and columns. Scaling by the largest entries alone would not correct a
    column in large units, which hides what its rows measure of the other columns.
    """
    present = b != 0
    log = np.log2(np.abs(b), where=present, out=np.zeros(b.shape))
    count = [np.maximum(present.sum(axis=axis), 1) for axis in (0, 1)]
    row, column = np.zeros(b.shape[0]), np.zeros(b.shape[1])
    for _ in range(_SCALING_SWEEPS):
        column = -(log + row[:, None] * present).sum(axis=0) / count[0]
        row = -(log + column * present).sum(axis=1) / count[1]
    return np.exp2(np.round(row)), np.exp2(np.round(column))


def optimal_vertex(program: Program) -> Vertex | str:
    """A vertex that is optimal up to rounding, or a sentence that says why there is none."""
    b, v, c = program.b, program.v, program.c
    cost, lower = c, np.zeros(len(c))
    answer = _linear_program(cost, b, v, lower)
    if answer.status != 0:
        return str(answer.message)
    dual, vertex, primal_scale, dual_scale = answer.eqlin.marginals, None, 1.0, 1.0
    for _ in range(_ROUNDS):
        if answer.status == 0:
            tied = np.abs(answer.lower.marginals) <= _TIED * np.maximum(1.0, cost)
            vertex = _basic_solution(program, _basis(b, answer.x - lower, tied), dual)
            if vertex.primal_violation == 0 and vertex.dual_violation == 0:
                return vertex
            primal_scale = max(primal_scale, _magnification(vertex.primal_violation))
            dual_scale = max(dual_scale, _magnification(vertex.dual_violation))
        else:  # feasible only up to rounding: magnify less
            primal_scale, dual_scale = max(1.0, primal_scale / 10), max(1.0, dual_scale / 10)
        assert vertex is not None, "the first program was solved"
        # The unknowns are moves from the vertex, with lower bounds from x >= 0.
        cost, lower = dual_scale * vertex.slack, -primal_scale * vertex.x
        answer = _linear_program(cost, b, primal_scale * (v - b @ vertex.x), lower)
        if answer.status == 0:
            dual = vertex.dual + answer.eqlin.marginals / dual_scale
    return "no basis is both primal and dual feasible to the rounding of the data"


def _linear_program(cost: np.ndarray, b: np.ndarray, right: np.ndarray, lower: np.ndarray) -> Any:
    """Minimise over `bx = right`, `x >= lower` by the dual simplex method, to a basic solution."""
    bounds = np.stack([lower, np.full(len(cost), np.inf)], axis=1)
    answer: Any = None
    for presolve in (False, True):  # presolve may remove small coordinates, so try without first
        answer = scipy.optimize.linprog(
            cost,
            A_eq=b,
            b_eq=right,
            bounds=bounds,
            method="highs-ds",
            options=SOLVER_OPTIONS | {"presolve": presolve},
        )
        if answer.status == 0:
            break
    return answer


def _magnification(violation: float) -> float:
    """Factor that makes a violation a hundred times the solver's tolerance."""
    return _MAGNIFIED / violation if violation > 0 else 1.0


def _basis(b: np.ndarray, above: np.ndarray, tied: np.ndarray) -> np.ndarray:
    """Independent columns with reduced cost zero, preferring those above their bound.

    At a degenerate vertex they may be fewer than the rows. If more columns are tied than can be
    independent, any maximal independent set spans the same range.
    """
    high = above > _TIED * max(1.0, above.max())
    chosen = np.empty(0, dtype=int)
    for tier in (tied & high, tied & ~high):
        candidates = np.flatnonzero(tier)
        room = len(b) - len(chosen)
        if not room or not len(candidates):
            continue
        columns = b[:, candidates] / np.maximum(np.linalg.norm(b[:, candidates], axis=0), tiny())
        if len(chosen):
            Q = np.linalg.qr(b[:, chosen])[0]
            for _ in range(2):  # the second pass removes the rounding of the first
                columns = columns - Q @ (Q.T @ columns)
        R, pivots = scipy.linalg.qr(columns, mode="r", pivoting=True)
        rank = int((np.abs(np.diag(R)) > 1e-13 * len(b)).sum())
        chosen = np.append(chosen, candidates[pivots[: min(rank, room)]])
    return np.sort(chosen)


def _basic_solution(program: Program, basis: np.ndarray, near: np.ndarray) -> Vertex:
    """Solution on the basis, and the dual vector nearest to `near` that is tight on it.

    Each comes with its rounding: for `Mx = v` with every entry known to a relative eps,
    `|dx| <= eps |M^+| (|M||x| + |v|)` (Oettli and Prager). The same bound for the dual is carried
    over to the slacks.
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
    slack[basis] = 0.0  # by definition of the dual vector
    unit = _ENTRY_ROUNDING * program.eps
    full, rounding = np.zeros(len(c)), np.zeros(len(c))
    full[basis] = x
    terms = np.abs(M) @ np.abs(x) + np.abs(v)  # [n]
    rounding[basis] = unit * (np.abs(inverse) @ terms)
    misfit = v - M @ x
    misfit[np.abs(misfit) <= unit * (terms + np.abs(M) @ (np.abs(inverse) @ terms))] = 0.0
    # The rounding of the dual reaches the slacks through M^+ b, which may be far below |M^+||b|.
    carried = np.abs(inverse @ b).T @ (np.abs(M).T @ np.abs(dual) + prices)
    slack_rounding = unit * (c + np.abs(b).T @ np.abs(dual) + carried)
    return Vertex(full, misfit, rounding, dual, slack, slack_rounding)


def _power_of_two(values: np.ndarray | float) -> np.ndarray:
    """The power of two at or just below each value."""
    return np.exp2(np.floor(np.log2(values)))
