"""Constructions of problems with two exact solutions of the same rank.

Each says why both factors have the same responses. A construction draws a shape and returns a
function that makes problems of this shape, so that a batch can be made of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import scipy.linalg

from adversarial.recovery_features import (
    hanging_point,
    missing_entries,
    polynomial_features,
    zero_responses,
)
from adversarial.recovery_problems import (
    Maker,
    Rng,
    Twins,
    hidden,
    needed_samples,
    normal,
    rotation,
    samples,
)
from posquad.geometry import dimension

Design = Callable[[Rng], Maker]


# Decoupled blocks: U_b O_b for any orthogonal O_b explains the rows of block b.


def blocks(
    rng: Rng, *, parts: int = 2, single: bool = False, rare: bool = False, heavy: bool = False
) -> Maker:
    """Rows in complementary subspaces, in hidden coordinates.

    `single`: all blocks but the first have one coordinate. `rare`: the last block is seen by few
    rows. `heavy`: row lengths vary by four powers of ten.
    """
    while True:
        r = int(rng.integers(1, 4))
        sizes = rng.integers(1, 6, parts)
        sizes[1:] = 1 if single else sizes[1:]
        d = int(sizes.sum())
        # Otherwise there are too few independent rows, which is easily seen.
        if r < d and (sizes * (sizes + 1) // 2).sum() > dimension(d, r):
            break
    needed = np.array([needed_samples(m, min(m, r)) for m in sizes])
    if rare:
        needed[-1] = int(rng.integers(1, needed[-1] + 1))
    n = samples(rng, d, r, least=int(needed.sum()))
    chances = sizes / d if not rare else np.append(sizes[:-1], 0) / sizes[:-1].sum()

    def make() -> Twins:
        extra = rng.choice(parts, n - needed.sum(), p=chances)
        which = rng.permutation(np.concatenate([np.repeat(np.arange(parts), needed), extra]))
        owner = np.repeat(np.arange(parts), sizes)
        X = normal(rng, n, d) * (which[:, None] == owner)
        if heavy:
            X *= 10.0 ** rng.uniform(-2, 2, (n, 1))
        U = normal(rng, d, r)
        turn = rotation(rng, r) if rng.random() < 0.5 else -np.eye(r)
        V = np.where((owner == parts - 1)[:, None], U @ turn, U)
        return hidden(rng, Twins(X, U, V))

    return make


def many_unknowns(rng: Rng, *, d: int, r: int, n: int) -> Maker:
    """Two blocks in a rotated space, with so many unknowns that no dense spectrum is computed."""

    def make() -> Twins:
        size = int(2 ** rng.uniform(0, np.log2(d / 2)))
        first = np.arange(d) < size
        chance = max(0.05, size / d)
        X = normal(rng, n, d) * np.where(rng.random((n, 1)) < chance, first, ~first)
        U = normal(rng, d, r)
        V, turn = np.where(first[:, None], U, -U), rotation(rng, d)
        return Twins(X @ turn, turn.T @ U, turn.T @ V)

    return make


def palindromes(rng: Rng) -> Maker:
    """Integer rows (a, a) and (a, -a): exchanging the halves of U changes no response."""
    half, r = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    d = 2 * half
    n = samples(rng, d, r, least=2 * needed_samples(half, min(r, half)))

    def make() -> Twins:
        a = rng.integers(-9, 10, (n, half)).astype(float)
        X = np.hstack([a, a * np.where(np.arange(n) % 2, 1.0, -1.0)[:, None]])
        U = rng.integers(-9, 10, (d, r)).astype(float)
        return Twins(X, U, np.roll(U, half, axis=0))

    return make


# Kernels of A: a matrix H = UU' - VV' with x'Hx = 0 for every row.


def hyperplane_kernel(rng: Rng) -> Maker:
    """At most 2d - 2 Gaussian rows: d - 1 are orthogonal to a, the others to b; H = ab' + ba'."""
    d = int(rng.integers(3, 9))
    n = int(rng.integers(d + 1, 2 * d - 1))

    def make() -> Twins:
        X = normal(rng, n, d)
        a = np.linalg.svd(X[: d - 1])[2][-1]
        unseen = np.linalg.svd(X[d - 1 :])[2][n - d + 1 :]
        b = unseen.T @ normal(rng, len(unseen))
        b *= 10.0 ** rng.uniform(-0.5, 0.5) / np.linalg.norm(b)
        return Twins(X[rng.permutation(n)], (a + b)[:, None], (a - b)[:, None])

    return make


def full_kernel(rng: Rng) -> Maker:
    """Gaussian rows, d = 2r: the positive and negative part of a matrix in the kernel of A."""
    r = int(rng.choice([2, 2, 2, 3, 4]))
    d = 2 * r
    D = d * (d + 1) // 2
    n = int(rng.integers(dimension(d, r) + 1, D))
    i, j = np.triu_indices(d)

    def make() -> Twins:
        X = normal(rng, n, d)
        rows = X[:, i] * X[:, j] * np.where(i == j, 1.0, 2.0)
        kernel = np.linalg.svd(rows)[2][n:]
        for _ in range(20):
            H = np.zeros((d, d))
            H[i, j] = H[j, i] = kernel.T @ normal(rng, len(kernel))
            values, vectors = np.linalg.eigh(H)
            if (values < 0).sum() == r:
                break
        parts = vectors * np.sqrt(np.abs(values))
        return Twins(X, parts[:, r:], parts[:, :r])

    return make


def newton_kernel(rng: Rng) -> Maker:
    """Gaussian rows; Newton steps of least norm for A(UU' - VV') = 0 from random U, V.

    The symmetric matrices of rank 2r have 2rd - r(2r - 1) dimensions, so that solutions are to be
    expected for fewer rows than that.
    """
    shapes = [(3, 1), (4, 1), (6, 1), (5, 2), (6, 2), (8, 2), (10, 2), (8, 3)]
    d, r = shapes[int(rng.integers(len(shapes)))]
    p = dimension(d, r)
    most = 2 * r * d - r * (2 * r - 1)
    # Newton's steps rarely find solutions for more rows than this.
    n = int(rng.integers(p + 1, max(p + 2, int(p + 0.6 * (most - p)) + 1)))
    return partial(newton_twins, rng, n, d, r)


def large_newton_kernel(rng: Rng) -> Maker:
    """The same with more unknowns, where descents from random starts rarely reach a solution."""
    shapes = [(20, 4, 85), (20, 4, 100), (40, 2, 100), (40, 3, 135), (40, 3, 150), (60, 3, 230)]
    d, r, n = shapes[int(rng.integers(len(shapes)))]
    return partial(newton_twins, rng, n, d, r)


def newton_twins(rng: Rng, n: int, d: int, r: int) -> Twins:
    X = normal(rng, n, d)
    W, sign = normal(rng, d, 2 * r), np.repeat([1.0, -1.0], r)
    for _ in range(40):
        z = X @ W
        e = (np.square(z) * sign).sum(1)
        if np.abs(e).max() < 1e-15 * np.square(z).sum(1).max():
            break
        J = (2 * X[:, :, None] * (z * sign)[:, None, :]).reshape(n, -1)
        W = W - np.linalg.lstsq(J, e, rcond=1e-12)[0].reshape(W.shape)
    return Twins(X, W[:, :r], W[:, r:])


def copies(rng: Rng) -> Maker:
    """Multiples of few Gaussian rows, up to rounding or to 1e-14: they count as rows, not more."""
    shapes = [(4, 1), (6, 1), (5, 2), (6, 2), (8, 2)]
    d, r = shapes[int(rng.integers(len(shapes)))]
    p = dimension(d, r)
    base = int(rng.integers(max(d, p - 2), p + 2))
    n = int(rng.integers(p + 2, 3 * p))

    def make() -> Twins:
        twins = newton_twins(rng, base, d, r)
        which = np.append(np.arange(base), rng.integers(0, base, n - base))
        X = twins.X[which] * rng.choice([-2.0, -1.0, 0.7, 1.0, 3.0], (n, 1))
        if rng.random() < 0.5:
            X *= 1 + 1e-14 * normal(rng, n, d)
        return Twins(X[rng.permutation(n)], twins.U, twins.V)

    return make


# Rows on a quadric.


def quadric(rng: Rng, *, common: bool = False) -> Maker:
    """Rows on `|A'x| = |B'x|`: [A, C] and [B, C] have the same responses, for any C."""
    r = int(rng.integers(1 + common, 4))
    shared = int(rng.integers(1, r)) if common else 0
    d = int(rng.integers(max(2, 2 * r - shared), 2 * r + 4))
    n = samples(rng, d, r, most=float(rng.choice([1.2, 3.0, 20.0])))
    unit = rng.random() < 0.3
    return partial(_on_quadric, rng, n, d, r, shared, unit=unit)


def _on_quadric(rng: Rng, n: int, d: int, r: int, shared: int, *, unit: bool) -> Twins:
    M, k = rotation(rng, d), r - shared
    M = M * 10.0 ** rng.uniform(-0.3, 0.3, d) if d < 50 else M
    w = normal(rng, n, d)  # M'x
    ratio = np.linalg.norm(w[:, :k], axis=1) / np.linalg.norm(w[:, k : 2 * k], axis=1)
    w[:, k : 2 * k] *= ratio[:, None]
    X = scipy.linalg.solve(M.T, w.T).T
    if unit:
        X /= np.linalg.norm(X, axis=1, keepdims=True)
    C = normal(rng, d, shared) / np.sqrt(d)
    return Twins(X, np.hstack([M[:, :k], C]), np.hstack([M[:, k : 2 * k], C]))


def large_quadric(rng: Rng, *, d: int, n: int) -> Maker:
    return partial(_on_quadric, rng, n, d, 1, 0, unit=False)


def many_rows(rng: Rng, *, d: int, n: int) -> Maker:
    """Rank two with a common column, and so many rows that a part of them is searched."""
    return partial(_on_quadric, rng, n, d, 2, 1, unit=False)


def wide_quadric(rng: Rng) -> Maker:
    """More unknowns, where descents from random starts rarely reach a solution."""
    shapes = [(24, 3, 104), (24, 3, 138), (40, 2, 120), (40, 2, 158), (60, 3, 265), (80, 2, 477)]
    d, r, n = shapes[int(rng.integers(len(shapes)))]
    return partial(_on_quadric, rng, n, d, r, 0, unit=False)


def uneven_quadric(rng: Rng) -> Maker:
    """Rows `a + tb` on a quadric, of lengths that differ by up to 10 times."""
    d, r = [(24, 3), (30, 3), (40, 3), (60, 2)][int(rng.integers(4))]
    n = 2 * dimension(d, r)

    def make() -> Twins:
        U, V = normal(rng, d, r), normal(rng, d, r)
        X = np.empty((0, d))
        while len(X) < n:
            a, b = normal(rng, 2 * n, d), normal(rng, 2 * n, d)
            form = [
                (p @ U * (q @ U)).sum(1) - (p @ V * (q @ V)).sum(1)
                for p, q in ((b, b), (a, b), (a, a))
            ]
            root = np.sqrt(np.maximum(form[1] ** 2 - form[0] * form[2], 0))
            t = (-form[1] + root) / form[0]
            X = np.concatenate([X, (a + t[:, None] * b)[(root > 0) & (np.abs(t) < 5)]])
        return Twins(X[:n], U, V)

    return make


def unequal_quadric(rng: Rng) -> Maker:
    """The second solution is up to 30 times as long as the first."""
    d, r = [(4, 2), (5, 2), (6, 2), (6, 3)][int(rng.integers(4))]
    n = samples(rng, d, r, most=4.0)

    def make() -> Twins:
        factors = np.linalg.qr(normal(rng, d, d))[0][:, : 2 * r] * 10.0 ** rng.uniform(
            -0.5, 0, 2 * r
        )
        A, B = factors[:, :r], factors[:, r:] * 10.0 ** rng.uniform(0, 0.75)
        x = normal(rng, n, d)
        away = x - x @ B @ np.linalg.pinv(B)  # the part that B does not see
        ratio = np.linalg.norm(x @ A, axis=1) / np.linalg.norm(x @ B, axis=1)
        return Twins(away + (x - away) * ratio[:, None], A, B)

    return make


def equal_squares(rng: Rng) -> Maker:
    """Integer rows with `x_1 = x_2` or `x_1 = -x_2`: e_1 and e_2 have the same responses."""
    d, r = int(rng.integers(3, 8)), int(rng.integers(1, 4))
    r = min(r, d - 1)
    n = samples(rng, d, r)

    def make() -> Twins:
        X = rng.integers(-5, 6, (n, d)).astype(float)
        X[:, 1] = X[:, 0] * rng.choice([-1.0, 1.0], n)
        C = rng.integers(-3, 4, (d, r - 1)).astype(float)
        first, second = (c * 3.0 for c in np.eye(d)[:2])
        U, V = (np.column_stack([column, C]) for column in (first, second))
        return hidden(rng, Twins(X, U, V))

    return make


def kronecker(rng: Rng) -> Maker:
    """Rows `a (x) b`: with skew A and B, `x'(A (x) B)x = 0`; its parts have rank 2."""
    p, q = int(rng.integers(2, 4)), int(rng.integers(2, 4))
    shared = int(rng.integers(0, 2)) if p * q > 4 else 0
    d, r = p * q, 2 + shared
    n = samples(rng, d, r)

    def make() -> Twins:
        X = np.einsum("ni,nj->nij", normal(rng, n, p), normal(rng, n, q)).reshape(n, d)
        A, B = (np.outer(u, v) - np.outer(v, u) for u, v in (normal(rng, 2, p), normal(rng, 2, q)))
        values, vectors = np.linalg.eigh(np.kron(A, B))
        ends = np.r_[d - 2 : d, 0:2]
        parts = vectors[:, ends] * np.sqrt(np.abs(values[ends]))
        # LSL' = S for S = diag(1, 1, -1, -1) and L = exp(KS), K skew.
        K = np.triu(normal(rng, 4, 4), 1) / 3
        parts = parts @ scipy.linalg.expm((K - K.T) * np.array([1, 1, -1, -1]))
        C = normal(rng, d, shared)
        return Twins(X, np.hstack([parts[:, :2], C]), np.hstack([parts[:, 2:], C]))

    return make


def sign_rows(rng: Rng) -> Maker:
    """Rows of signs: a column with the entries (a, b) has the responses of (b, a)."""
    d, r = int(rng.integers(5, 10)), int(rng.integers(1, 3))
    n = samples(rng, d, r)

    def make() -> Twins:
        X = rng.choice([-1.0, 1.0], (n, d))
        places = rng.permutation(d)[: 2 * r].reshape(r, 2)
        U = np.zeros((d, r))
        for column, place in enumerate(places):
            U[place, column] = rng.integers(-4, 5, 2)
        V = U.copy()
        V[places[0]] = U[places[0, ::-1]]
        return hidden(rng, Twins(X, U, V))

    return make


# Columns that too few rows join.


def overlapping_groups(rng: Rng) -> Maker:
    """Each row sees one of two groups, which share r - 1 columns.

    The reflection of R^r that leaves the shared rows of U fixed gives the second solution.
    """
    while True:
        r = int(rng.integers(1, 4))
        sizes = rng.integers(r, r + 4, 2)
        d = int(sizes.sum()) - r + 1
        needed = [needed_samples(int(m), r) for m in sizes]
        measured = (sizes * (sizes + 1) // 2).sum() - r * (r - 1) // 2
        if r < d and measured > dimension(d, r):
            break
    n = samples(rng, d, r, least=sum(needed))
    first, second = np.arange(d) < sizes[0], np.arange(d) >= d - sizes[1]

    def make() -> Twins:
        seen = int(rng.integers(needed[0], n - needed[1] + 1))
        X = normal(rng, n, d) * np.where(np.arange(n)[:, None] < seen, first, second)
        U = normal(rng, d, r)
        fixed = U[first & second]
        axis = np.linalg.svd(fixed)[2][-1] if r > 1 else np.ones(1)
        V = np.where(first[:, None], U, U - 2 * np.outer(U @ axis, axis))
        return hidden(rng, Twins(X[rng.permutation(n)], U, V))

    return make


def rare_feature(rng: Rng) -> Maker:
    """A column that is nonzero in at most r rows.

    Its row u of U is on the spheres `|u + U_rest'x_i / x_ij|^2 = const`; so is its reflection in
    the hyperplane of their centres.
    """
    d, r = int(rng.integers(4, 9)), int(rng.integers(1, 4))
    few = int(rng.integers(max(1, r - 1), r + 1))
    n = samples(rng, d, r, least=dimension(d - 1, r) + 2 + few)

    def make() -> Twins:
        X = normal(rng, n, d)
        X[few:, -1] = 0
        U = normal(rng, d, r)
        centres = -(X[:few, :-1] @ U[:-1]) / X[:few, -1:]
        axis = np.linalg.svd(centres[1:] - centres[0])[2][-1] if few > 1 else normal(rng, r)
        axis /= np.linalg.norm(axis)
        V = U.copy()
        V[-1] -= 2 * ((U[-1] - centres[0]) @ axis) * axis
        return hidden(rng, Twins(X[rng.permutation(n)], U, V))

    return make


DESIGNS: dict[str, Design] = {
    "two blocks": blocks,
    "three blocks": partial(blocks, parts=3),
    "blocks of one": partial(blocks, parts=3, single=True),
    "rare block": partial(blocks, rare=True),
    "heavy blocks": partial(blocks, heavy=True),
    "palindromes": palindromes,
    "hyperplane kernel": hyperplane_kernel,
    "full kernel": full_kernel,
    "newton kernel": newton_kernel,
    "copies": copies,
    "quadric": quadric,
    "quadric, common": partial(quadric, common=True),
    "quadric, unequal": unequal_quadric,
    "equal squares": equal_squares,
    "kronecker": kronecker,
    "sign rows": sign_rows,
    "overlapping groups": overlapping_groups,
    "rare feature": rare_feature,
    "polynomial features": polynomial_features,
    "zero responses": zero_responses,
    "hanging point": hanging_point,
    "missing entries": missing_entries,
}

LARGE: dict[str, tuple[Design, int]] = {  # with the number of seeds of the full run
    "blocks, d = 60": (partial(many_unknowns, d=60, r=10, n=20 * 555), 4),
    "blocks, d = 100": (partial(many_unknowns, d=100, r=6, n=20 * 585), 4),
    "blocks, d = 270": (partial(many_unknowns, d=270, r=2, n=36_000), 1),
    "quadric, d = 200": (partial(large_quadric, d=200, n=4000), 10),
    "quadric, d = 300": (partial(many_rows, d=300, n=28_000), 2),
    "newton kernel, p > 60": (large_newton_kernel, 60),
    "quadric, p > 60": (wide_quadric, 60),
    "quadric, uneven rows, p > 60": (uneven_quadric, 40),
}
