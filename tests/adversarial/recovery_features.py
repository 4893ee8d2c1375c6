"""Further designs with two solutions: polynomial features, and rows with response zero.

Distances of points, and entries of the matrix, of which too few hold one item.
"""

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


def hanging_point(rng: Rng, *, more: int = 0) -> Maker:
    """Squared lengths of the bars between points in r dimensions, of which one hangs on r bars.

    Rows are `e_a - e_b`, and `e_a` for a bar to the point 0. The last point, or two last points
    that only a bar of their own joins besides, may be reflected in the plane through the r others.

    With one bar more there is one solution, and V does not fit.
    """
    d, r = [(6, 2), (7, 2), (8, 2), (8, 3), (10, 3)][int(rng.integers(5))]
    last = int(rng.integers(1, 3))
    share = float(rng.choice([1.0, 1.0, 0.8]))
    a, b = np.triu_indices(d + 1 - last, 1)
    kept = rng.random(len(a)) < share
    held = rng.permutation(d + 1 - last)[: r + more]
    bars = [*zip(a[kept], b[kept], strict=True)]
    bars += [(point, one) for point in range(d + 1 - last, d + 1) for one in held]
    bars += [(d - 1, d)] * (last - 1)
    first, second = np.array(bars).T
    places = np.vstack([np.zeros((1, d)), np.eye(d)])

    def make() -> Twins:
        points = np.vstack([np.zeros((1, r)), normal(rng, d, r)])
        reflected = points.copy()
        axis = np.linalg.svd(points[held[1:r]] - points[held[0]])[2][-1]
        moved = points[-last:] - points[held[0]]
        reflected[-last:] -= 2 * np.outer(moved @ axis, axis)
        X = places[first] - places[second]
        return hidden(rng, Twins(X, points[1:], reflected[1:]))

    return make


def missing_entries(rng: Rng, *, more: int = 0) -> Maker:
    """Entries of Q by rows `e_a + e_b`, `e_a - e_b` and `e_a`; few entries hold the last item.

    All pairs of d - 1 items are measured, and of the last one its diagonal and r - 1 products: its
    row of U may be reflected in the span of these r - 1 rows.

    With one product more there is one solution, and V does not fit.
    """
    d, r = [(5, 2), (6, 2), (7, 2), (7, 3), (8, 3)][int(rng.integers(5))]
    both = bool(rng.integers(2))

    def make() -> Twins:
        i, j = np.triu_indices(d - 1, 1)
        others = rng.permutation(d - 1)[: r - 1 + more]
        i, j = np.r_[i, others], np.r_[j, others * 0 + d - 1]
        eye = np.eye(d)
        sign = rng.choice([-1.0, 1.0], (len(i), 1))
        X = np.vstack([eye[i] + sign * eye[j], eye])
        X = np.vstack([X, eye[i] - sign * eye[j]]) if both else X
        U = normal(rng, d, r)
        axis = np.linalg.svd(U[others[: r - 1]])[2][-1]
        V = U.copy()
        V[-1] -= 2 * (U[-1] @ axis) * axis
        return hidden(rng, Twins(X, U, V))

    return make
