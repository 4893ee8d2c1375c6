"""Proofs of single statements, each a function that returns a bound or whether the proof succeeds.

Statements are about the exact real matrices whose entries are the given floating-point numbers. The
numbered formulas are those of `docs/theory.md`. No function searches or iterates. A result of False
proves nothing, in particular not the opposite.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from posquad.certificates.proofs.bounded_operator import (
    BoundedOperator,
    BoundedRankOne,
    symmetrized,
)
from posquad.certificates.proofs.rounding import (
    UNDERFLOW,
    down,
    gamma,
    in_range,
    norm_above,
    proves_above,
    total,
    up,
)

Route = Literal["gram", "monomials", "moment"]


def residual_above(operator: BoundedOperator, y: np.ndarray, U: np.ndarray) -> float:
    """Return an upper bound on the root mean square of `A(UU') - y`."""
    return residual_and_rounding(operator, y, U)[0]


def residual_and_rounding(
    operator: BoundedOperator, y: np.ndarray, U: np.ndarray
) -> tuple[float, float]:
    """Return `residual_above`, and an upper bound on the part of it that is due to rounding.

    A machine that rounds differently obtains at most the first plus twice the second, up to the
    rounding of scalars.
    """
    if not in_range(*operator.arrays(), U):
        return math.inf, math.inf
    values, error = operator.measure(U)
    above = (np.abs(values - y) + error) * (1 + gamma(4)) + UNDERFLOW
    root = math.sqrt(operator.n)
    rounding = up(norm_above(error * (1 + gamma(4)) + gamma(4) * np.abs(y)) / root)
    return up(norm_above(above) / root), rounding


def response_size_below(y: np.ndarray) -> float:
    """Return a lower bound on the root mean square of y."""
    squares = float(np.square(y).sum()) * (1 - gamma(y.size + 4)) - y.size * UNDERFLOW
    return down(math.sqrt(squares / y.size)) if squares > 0 else 0.0


def trace_above(U: np.ndarray) -> float:
    """Return an upper bound on `tr UU'`."""
    return total(np.square(U).ravel() * (1 + gamma(4)))


def trace_below(U: np.ndarray) -> float:
    """Return a lower bound on `tr UU'`."""
    return max(0.0, down(float(np.square(U).sum()) * (1 - gamma(U.size + 4))) - U.size * UNDERFLOW)


def size_below(U: np.ndarray) -> float:
    """Return a lower bound on `||UU'||_F`, which is at least `tr UU' / sqrt(r)`."""
    return down(trace_below(U) / math.sqrt(U.shape[1]))


def proves_largest(U: np.ndarray, largest: float) -> bool:
    """Prove `lambda_1(UU') <= largest`."""
    spread = np.sqrt(gamma(U.shape[0] + 4) * np.square(U).sum(0))
    return in_range(U) and proves_above(-(U.T @ U), spread, -down(largest))


class TangentGram:
    """The matrix `G = sum_i vec(A_i U) vec(A_i U)'`, with `N(xi(Z))^2 = (4/n) vec(Z)' G vec(Z)`.

    G acts on all d r directions Z; the gauge directions are in its kernel.
    """

    def __init__(self, operator: BoundedOperator, U: np.ndarray) -> None:
        self.n, self.depth, self.U = operator.n, operator.depth, U
        self.usable = in_range(*operator.arrays(), U)
        self.G = np.zeros((U.size, U.size))
        self.size = np.zeros(U.size)
        for rows, absolute in operator.tangent_rows(U):
            self.G += rows.T @ rows
            self.size += np.square(absolute).sum(0)

    def with_gauge(self, weight: float) -> tuple[np.ndarray, np.ndarray]:
        """Return `G + weight C` and its spread; `C(Z) = ||U'Z - Z'U||^2 / 2`.

        C is zero on horizontal Z; the spread is that of `proves_above`.
        """
        U = self.U
        d, r = U.shape
        gauge = np.einsum("ab,jk->ajbk", U @ U.T, np.eye(r)) - np.einsum("ak,bj->ajbk", U, U)
        rows = np.repeat(np.square(U).sum(1), r)
        spread = np.sqrt(gamma(self.depth + 8) * (self.size + 4 * weight * rows) + UNDERFLOW)
        return self.G + weight * gauge.reshape(d * r, d * r), spread

    def proves_smallest(self, value: float, weight: float) -> bool:
        """Prove `lambda_min^eff(UU') >= value` (statement 2)."""
        if not (self.usable and value > 0 and weight >= 0):
            return False
        G, spread = self.with_gauge(weight)
        return proves_above(G, spread, up(value * self.n / 4))

    def proves_largest(self, value: float) -> bool:
        """Prove `lambda_max^eff(UU') <= value`."""
        spread = np.sqrt(gamma(self.depth + 8) * self.size + UNDERFLOW)
        return self.usable and proves_above(-self.G, spread, -down(value * self.n / 4))


def proves_quartic(operator: BoundedOperator, value: float, route: Route, parameter: float) -> bool:
    """Prove `N(vv')^2 <= value` for all unit vectors v, by one of three routes (statement 6).

    - "gram": `K - k w w' <= n t I` on R^n, where `K_ij = <A_i, A_j>`, `w_i = tr A_i`, k is the
      parameter, in [0, 1/d), and `value = t (1 - k d + k) / (1 - k d)`;
    - "monomials": `T_n <= (value - c) Id + c I (x) I` on symmetric matrices, where c is the
      parameter;
    - "moment": `sum_i A_i^2 <= n value I` on R^d.
    """
    n, d = operator.n, operator.d
    if not (in_range(*operator.arrays()) and value > 0 and parameter >= 0):
        return False
    if route == "moment":
        M, size = operator.second_moment()
        slack = up(gamma(operator.depth) * size) + UNDERFLOW
        return proves_above(-M, np.zeros(d), -(down(value * n) - slack))
    if route == "gram":
        # rest <= 1 - k d, and rest / (rest + k) increases with rest.
        rest = down(1 - up(parameter * d)) if up(parameter * d) < 1 else 0.0
        level = down(value * n * rest / up(rest + parameter)) if rest > 0 else 0.0
        K, w, size = operator.gram()
        spread = np.sqrt(2 * gamma(operator.depth + 8)) * size
        K = parameter * (w[:, None] * w) - K
        return level > 0 and proves_above(K, spread, -level)
    if route != "monomials":
        return False
    G, size = operator.monomial_gram()
    a, b = np.triu_indices(d)
    level = down(value - up(parameter)) if value > up(parameter) else 0.0
    M = -G
    diagonal = np.where(a == b, 1.0, 2.0) * n * level
    eye = (a == b) * 1.0
    spread = np.sqrt(gamma(operator.depth + 8) * (size + n * (level + parameter) * 2))
    M += (n * parameter) * (eye[:, None] * eye)
    M[np.diag_indices(len(a))] += diagonal
    return level > 0 and proves_above(M, spread, 0.0)


def proves_dual(
    operator: BoundedOperator, U: np.ndarray, z: np.ndarray, beta: float, lam: float, mu: float
) -> bool:
    """Prove that a `z0`, no longer than z, has `A*(z0) U = 0` and `V'A*(z0)V >= beta I`.

    This is statement 9, for proved bounds `lambda_min^eff >= lam > 0` and mu. z0 is the orthogonal
    projection of z onto the kernel of `z -> A*(z) U`, and the spectral norm of `A*(z - z0)` is at
    most `2 ||A*(z)U||_F sqrt(mu/lam)`. `A*(z0)` is zero on the range of U, of dimension r, so it
    suffices that `A*(z0) + t WW' >= beta I` for some W of r columns; V need not be known.
    """
    if not (in_range(*operator.arrays(), U, z) and beta > 0 and lam > 0 and mu > 0):
        return False
    product, size = operator.adjoint_factor(z, U)
    off = norm_above(np.abs(product) + gamma(operator.depth) * size)
    moved = up(2 * off * math.sqrt(mu / lam))
    Y, scale = operator.adjoint(z)
    W = np.linalg.qr(U)[0]  # any W is valid; one that spans the range lets the proof succeed
    weight = 3 * (beta + moved)
    columns = np.square(W).sum()
    slack = up(
        moved
        + gamma(operator.depth) * scale
        + gamma(operator.depth) * (weight * columns + float(np.abs(Y).sum(1).max()))
    )
    M = symmetrized(Y + weight * (W @ W.T))
    return bool(proves_above(M, np.zeros(len(M)), up(beta + slack) + UNDERFLOW))


def proves_dual_slack(operator: BoundedOperator, dual: np.ndarray, excess: float) -> bool:
    """Prove `A*(dual) <= (1 + excess) I`."""
    if not (in_range(*operator.arrays(), dual) and excess >= 0):
        return False
    Y, scale = operator.adjoint(dual)
    slack = up(gamma(operator.depth) * scale) + UNDERFLOW
    return proves_above(-Y, np.zeros(len(Y)), -(down(1 + excess) - slack))


def trace_bound_below(y: np.ndarray, dual: np.ndarray, excess: float, misfit: float) -> float:
    """Return a lower bound on `tr Q` for Q >= 0 with `||A(Q) - y|| <= sqrt(n) misfit`.

    This is statement 10; it requires a proof of `A*(dual) <= (1 + excess) I`.
    """
    products = y * dual
    rounding = gamma(y.size + 4) * total(np.abs(products))
    low = float(products.sum()) - rounding
    low -= up(norm_above(dual) * math.sqrt(y.size) * misfit)
    return down(low / up(1 + excess)) if low > 0 else 0.0


def proves_dual_feasible(operator: BoundedOperator, z: np.ndarray) -> bool:
    """Prove `A*(z) >= 0`.

    For rank-one measurements it suffices that z sums to a nonnegative number over all samples with
    the same input, up to sign. This needs no inverse, so that inputs need not span the space.
    """
    if not all(np.isfinite(array).all() for array in (*operator.arrays(), z)):
        return False
    if in_range(*operator.arrays(), z):
        Y, scale = operator.adjoint(z)
        slack = up(gamma(operator.depth) * scale) + UNDERFLOW
        if proves_above(Y, np.zeros(len(Y)), slack):
            return True
    return isinstance(operator, BoundedRankOne) and min(_sums_by_input(operator.X, z)) >= 0


def _sums_by_input(X: np.ndarray, z: np.ndarray) -> list[float]:
    """Sum z over the rows of X that are equal up to sign; zero rows do not count."""
    nonzero = X.any(1)
    rows, weights = X[nonzero], z[nonzero]
    first = np.take_along_axis(rows, (rows != 0).argmax(1)[:, None], axis=1)
    _, group = np.unique(rows * np.sign(first) + 0.0, axis=0, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    ends = np.flatnonzero(np.diff(group.ravel()[order])) + 1
    # fsum rounds once, so the sign is exact.
    return [math.fsum(part) for part in np.split(weights[order], ends)] if len(rows) else [0.0]


def residual_below(y: np.ndarray, z: np.ndarray) -> float:
    """Return a lower bound on `||A(Q) - y||` for all Q >= 0 (statement 12); 0 if it is negative.

    It requires a proof of `A*(z) >= 0`, and entries of y and z in the range of `in_range`.
    """
    if not in_range(y, z):
        return 0.0
    products = y * z
    low = -float(products.sum()) - gamma(y.size + 4) * total(np.abs(products))
    return down((low - y.size * UNDERFLOW) / norm_above(z)) if low > y.size * UNDERFLOW else 0.0
