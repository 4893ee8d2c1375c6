"""Functions `x'Qx + b'x + c`, and problems that one or two of them reproduce.

The functions are constructed, and `Problem` raises ValueError if one of them does not reproduce the
responses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posquad.geometry import dimension


@dataclass(frozen=True)
class Function:
    """f(x) = x'UU'x + b'x + c."""

    U: np.ndarray
    b: np.ndarray
    c: float

    def __call__(self, X):
        return ((X @ self.U) ** 2).sum(axis=1) + X @ self.b + self.c

    @property
    def Q(self):
        return self.U @ self.U.T


@dataclass(frozen=True)
class Problem:
    """Samples and functions that reproduce them all: to rounding, or to a level of their spread.

    The matrices of two functions differ by more than a hundredth of the larger one.
    """

    X: np.ndarray
    functions: tuple[Function, ...]
    level: float = 0.0

    @property
    def y(self):
        return self.functions[0](self.X)

    def __post_init__(self):
        y, (first, *others) = self.y, self.functions
        allowed = max(self.level * np.std(y), 1e-13 * np.abs(y).max())
        for other in others:
            error = np.abs(other(self.X) - y).max()
            apart = np.linalg.norm(other.Q - first.Q)
            size = max(np.linalg.norm(other.Q), np.linalg.norm(first.Q))
            if error > allowed or apart < size / 100:
                raise ValueError(f"no second solution: error {error:.1e}, distance {apart:.1e}")


def drawn_function(rng, d, r, terms):
    b = rng.standard_normal(d) if terms == "linear" else np.zeros(d)
    return Function(rng.standard_normal((d, r)), b, rng.standard_normal() * (terms != "none"))


def twin(seed, d, r, terms, n, *, through_zero=False):
    """Two random functions, and rows at which they are equal: each on a random line.

    The lines may go through zero.
    """
    rng = np.random.default_rng(seed)
    while True:
        pair = drawn_function(rng, d, r, terms), drawn_function(rng, d, r, terms)
        X = rows_on_lines(rng, *pair, n, through_zero=through_zero)
        if X is not None:
            return Problem(X, pair)


def rows_on_lines(rng, one, two, n, *, through_zero=False):
    """Rows at which two functions are equal, each on a random line; None if there are too few."""
    d = len(one.U)
    S, g, h = one.Q - two.Q, one.b - two.b, one.c - two.c
    a, v = rng.standard_normal((2, 50 * n, d))
    a = 0 * a if through_zero else a
    A = np.einsum("ni,ij,nj->n", v, S, v)
    B = 2 * np.einsum("ni,ij,nj->n", a, S, v) + v @ g
    C = np.einsum("ni,ij,nj->n", a, S, a) + a @ g + h
    inside = B * B > 4 * A * C
    q = -(B + np.copysign(np.sqrt(np.where(inside, B * B - 4 * A * C, 1.0)), B)) / 2
    t = np.where(rng.random(len(q)) < 0.5, q / A, C / q)
    X = a + t[:, None] * v
    X = X[inside & (np.linalg.norm(X, axis=1) < 10 * np.sqrt(d))][:n]
    return X if len(X) == n else None


def unknowns(d, r, terms):
    return dimension(d, r) + {"none": 0, "constant": 1, "linear": d + 1}[terms]
