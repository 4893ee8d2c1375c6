"""Further designs with two solutions: polynomial features, and rows with response zero."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np

from adversarial.recovery_problems import Maker, Rng, Twins, hidden, normal, rotation


def polynomial_features(rng: Rng) -> Maker:
    """Quadratic monomials of 4 or 5 variables, at rank two.

    For complex linear forms l and m, `|l m|^2 = |l conj(m)|^2`, and the real and imaginary parts of
    the two products are quadratic forms. A small imaginary part makes the eigenvalues unequal.
    """
    variables = int(rng.integers(4, 6))
    i, j = np.array(list(combinations_with_replacement(range(variables), 2))).T
    p = 2 * len(i) - 1
    n = int(rng.integers(p + 1, 4 * p))
    share = float(rng.choice([1.0, 0.3, 0.1]))

    def factor(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        product = a[i] * b[j] + np.where(i == j, 0, a[j] * b[i])
        return np.stack([product.real, product.imag], 1)

    def make() -> Twins:
        points = normal(rng, n, variables)
        a, b = (normal(rng, variables) + share * 1j * normal(rng, variables) for _ in range(2))
        return hidden(rng, Twins(points[:, i] * points[:, j], factor(a, b), factor(a, b.conj())))

    return make


def zero_responses(rng: Rng) -> Maker:
    """Rows on two hyperplanes, where `|u'x| = |v'x|`, and long rows orthogonal to u and to v."""
    d = int(rng.integers(4, 12))
    n, zeros = int(rng.integers(d, 2 * d)), d - 2

    def make() -> Twins:
        M = rotation(rng, d)
        u, v = M[:, :1] + 0.3 * M[:, 1:2], M[:, 1:2] - 0.3 * M[:, :1]
        X = normal(rng, 2 * n, d)
        for half, w in ((X[:n], u - v), (X[n:], u + v)):
            half -= (half @ w) @ w.T / (w.T @ w)
        flat = 10 * normal(rng, zeros, d - 2) @ M[:, 2:].T
        return Twins(np.vstack([X, flat]), u, v)

    return make
