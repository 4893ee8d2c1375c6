"""Minimum-trace programs whose answer is known, by construction or by an exact simplex method.

By strict complementarity a program can be built from its solution: take q > 0 on a set S and zero
off it, a slack that is zero on S and positive off it, `y = Bq` and `d = B'lam + slack`. Then the
optimal face has exactly the support S. Entries are small integers and powers of two, so that y and
d are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import numpy as np

from adversarial import Family, Outcome, rational
from posquad.core.errors import InfeasibleError, PosquadError
from posquad.selection import minimum_trace

Rng = np.random.Generator


@dataclass
class Program:
    """A program and its answer."""

    B: np.ndarray
    y: np.ndarray
    d: np.ndarray
    support: tuple[int, ...]
    value: float
    dimension: int
    q: np.ndarray | None  # the optimal vertex, where the face is a single point


def planted(
    rng: Rng,
    n: int,
    m: int,
    size: int,
    *,
    smallest: int = 3,
    slack_bits: int = 3,
    rank: int | None = None,
) -> Program:
    """A program of n rows and m columns with a face of `size` coordinates, in exact numbers.

    Coordinates go down to `2**-smallest`, slacks to `2**-slack_bits`; the columns of the support
    have the given rank (default: as large as possible).
    """
    rank = min(n, size) if rank is None else rank
    while True:
        B = rng.integers(-9, 10, (n, m)).astype(float)
        if rank < min(n, size):
            B[:, rank:size] = B[:, :rank] @ rng.integers(-2, 3, (rank, size - rank))
        slack = np.zeros(m)
        slack[size:] = 2.0 ** -rng.integers(0, slack_bits + 1, m - size)
        lam = rng.integers(-6, 7, n) / 4
        # Choose the sign of the column that makes its cost positive.
        B *= np.where(B.T @ lam < 0, -1.0, 1.0)
        d = B.T @ lam + slack
        columns = B[:, :size] / np.maximum(np.linalg.norm(B[:, :size], axis=0), 1e-300)
        s = np.linalg.svd(columns, compute_uv=False)
        full = np.linalg.matrix_rank(B) == min(n, rank + m - size)
        if (d > 0).all() and s[rank - 1] > 1e-2 and full:
            break
    q = np.zeros(m)
    q[:size] = 2.0 ** -rng.integers(0, smallest + 1, size)
    q[int(rng.integers(size))] = 1.0
    order = rng.permutation(m)
    B, d, q = B[:, order], d[order], q[order]
    support = tuple(np.flatnonzero(q).tolist())
    vertex = q if rank == size else None
    return Program(B, B @ q, d, support, float(d @ q), size - rank, vertex)


# Families of programs.


def small_coordinates(rng: Rng) -> Program:
    """Vertices with coordinates down to 1e-12 of the largest."""
    n = int(rng.integers(1, 5))
    return planted(rng, n, n + int(rng.integers(1, 5)), n, smallest=39)


def tiny_second_coordinate(rng: Rng) -> Program:
    """The vertex (1, eps, 0, 0) of 2 x 4 programs with reduced costs of at least a half."""
    program = planted(rng, 2, 4, 2, smallest=0, slack_bits=1)
    eps = 2.0 ** -int(rng.integers(10, 40))
    q = np.zeros(4)
    q[list(program.support)] = [1.0, eps]
    return replace(program, q=q, y=program.B @ q, value=float(program.d @ q))


def degenerate(rng: Rng) -> Program:
    """Fewer positive coordinates than rows: many bases, many duals."""
    n = int(rng.integers(2, 6))
    size = int(rng.integers(1, n))
    return planted(rng, n, n + int(rng.integers(1, 6)), size, smallest=20)


def faces(rng: Rng) -> Program:
    """Dual degenerate: faces of dimension 0 to 4."""
    n = int(rng.integers(1, 5))
    size = n + int(rng.integers(0, 5))
    return planted(rng, n, size + int(rng.integers(0, 4)), size, smallest=8)


def degenerate_faces(rng: Rng) -> Program:
    """Degenerate on both sides: a face of positive dimension in fewer dimensions than rows."""
    n = int(rng.integers(2, 6))
    rank = int(rng.integers(1, n))
    size = rank + int(rng.integers(1, 4))
    return planted(rng, n, size + int(rng.integers(1, 6)), size, smallest=8, rank=rank)


def near_ties(rng: Rng) -> Program:
    """Slacks down to 1e-11 off the face: not on it."""
    n = int(rng.integers(1, 5))
    return planted(rng, n, n + int(rng.integers(1, 5)), n, slack_bits=36)


def redundant(rng: Rng) -> Program:
    """Rows that repeat and combine others."""
    n = int(rng.integers(1, 4))
    size = n + int(rng.integers(-(n > 1), 3))
    program = planted(rng, n, size + int(rng.integers(1, 5)), size, smallest=10)
    more = rng.integers(-3, 4, (int(rng.integers(1, 4)), n)).astype(float)
    order = rng.permutation(n + len(more))
    rows, right = np.vstack([program.B, more @ program.B]), np.append(program.y, more @ program.y)
    return replace(program, B=rows[order], y=right[order])


def other_units(rng: Rng) -> Program:
    """Rows, columns, y and d in units from 1e-6 to 1e6; all powers of two."""
    n = int(rng.integers(1, 4))
    program = planted(rng, n, n + int(rng.integers(1, 6)), n, smallest=20)
    rows = 2.0 ** rng.integers(-20, 21, (n, 1))
    columns = 2.0 ** rng.integers(-20, 21, program.B.shape[1])
    price, size = 2.0 ** rng.integers(-20, 21), 2.0 ** rng.integers(-20, 21)
    assert program.q is not None
    return replace(
        program,
        B=rows * program.B * columns,
        y=rows[:, 0] * program.y * size,
        d=program.d * columns * price,
        q=program.q / columns * size,
        value=program.value * price * size,
    )


def large(rng: Rng) -> Program:
    """Up to 2,000 columns and 40 rows, faces of dimension 0 to 4."""
    n, m = int(rng.integers(5, 41)), int(rng.integers(200, 2001))
    return planted(rng, n, m, n + int(rng.integers(0, 5)), smallest=15)


def by_fractions(rng: Rng) -> Program | None:
    """Random real data with y inside the cone, solved by the exact simplex method.

    None if the exact vertex is degenerate or has a coordinate within 1e-11 of zero: the answer then
    depends on the last bit of the data.
    """
    n = int(rng.integers(1, 5))
    m = n + int(rng.integers(1, 4))
    B, d = rng.standard_normal((n, m)), rng.uniform(0.2, 3.0, m)
    y = B @ (rng.exponential(size=m) * 10.0 ** rng.uniform(-6, 0, m))
    best = rational.minimum(B, y, d)
    assert best is not None, "y is a positive combination of the columns"
    q = np.array([float(x) for x in best[1]])
    share = q[q > 0] / q.max()
    if share.min() < 1e-11 or len(share) < n:
        return None
    return Program(B, y, d, tuple(np.flatnonzero(q).tolist()), float(best[0]), 0, q)


def infeasible(rng: Rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y outside the cone of the columns, by up to its own size or by as little as 1e-6 of it."""
    n = int(rng.integers(1, 5))
    m = int(rng.integers(n, n + 5))
    z = rng.integers(-4, 5, n).astype(float)
    z[0] = rng.integers(1, 5)
    B = rng.integers(-9, 10, (n, m)).astype(float)
    B *= np.where(z @ B < 0, -1.0, 1.0)  # z'B >= 0
    y = B @ rng.integers(0, 3, m).astype(float)
    y -= (z @ y / (z @ z) + 2.0 ** -int(rng.integers(0, 20))) * z  # z'y < 0
    return B, y, rng.integers(1, 5, m).astype(float)


# What must hold.


def broken_promises(program: Program, result) -> list[str]:
    """Compare with the answer that is known."""
    B, y, d = program.B, program.y, program.d
    found = []
    q, support = np.asarray(result.q), list(result.face.support)
    size = float(d @ q) + abs(program.value)
    if abs(result.value - program.value) > 1e-11 * size:
        found.append(f"value {result.value!r}, not {program.value!r}")
    if (np.abs(B @ q - y) > 1e-11 * (np.abs(B) @ q + np.abs(y))).any() or (q < 0).any():
        found.append("q is not feasible")
    slack = d - B.T @ result.dual
    scale = d + np.abs(B).T @ np.abs(result.dual)
    if (np.abs(slack - result.slack) > 1e-11 * scale).any() or (slack < -1e-11 * scale).any():
        found.append("the slack is not that of the dual, or negative")
    if not abs(result.gap) <= 1e-11 * size:
        found.append(f"a gap of {result.gap}")
    if result.face.support != program.support:
        found.append(f"face {result.face.support}, not {program.support}")
    elif result.face.dimension != program.dimension:
        found.append(f"dimension {result.face.dimension}, not {program.dimension}")
    if sorted([*support, *result.face.vanishing]) != list(range(len(d))):
        found.append("support and vanishing coordinates do not make up all")
    if program.q is not None:
        # The rounding of y moves q by eps cond(B) times the largest contribution.
        weight = np.abs(B).max(axis=0)
        off = np.abs(q - program.q) * weight
        if (off > 1e-12 * (program.q * weight).max()).any():
            found.append(f"q is off by {off.max():.1e}")
    elif support:
        # The entropic minimizer: d log q in the range of B' on the face.
        b, target = B[:, support].T, d[support] * np.log(q[support])
        lam = np.linalg.lstsq(b, target, rcond=None)[0]
        misfit = np.abs(b @ lam - target) / d[support]
        if misfit.max() > 1e-6:
            found.append(f"d log q leaves the range of B' by {misfit.max():.1e}")
    return found


def attempt(make: Callable[[Rng], Program | None], seed: int) -> Outcome:
    """One program whose answer is known."""
    program = make(np.random.default_rng(seed))
    if program is None:
        return Outcome(said=Counter(["left out"]))
    try:
        result = minimum_trace(program.B, program.y, program.d)
    except PosquadError as error:
        return Outcome([f"refused: {error}"], Counter(["refused"]))
    return Outcome(broken_promises(program, result), Counter(["solved"]))


def attempt_infeasible(seed: int) -> Outcome:
    """No q >= 0 solves the system: an error must say so, with a Farkas vector that proves it."""
    B, y, d = infeasible(np.random.default_rng(seed))
    try:
        minimum_trace(B, y, d)
    except InfeasibleError as error:
        z = np.asarray(error.farkas)
        size = float(np.abs(z).max()) * float(np.abs(B).max())
        products = [sum(map(_product, column, z)) for column in B.T]
        right = sum(map(_product, y, z))
        if min(products) < -1e-12 * size or right >= 0:
            return Outcome(["the Farkas vector proves nothing"], Counter(["infeasible"]))
        return Outcome(said=Counter(["infeasible"]))
    except PosquadError as error:
        return Outcome([f"refused: {error}"], Counter(["refused"]))
    return Outcome(["solved, although it is infeasible"], Counter(["solved"]))


def _product(a: float, b: float) -> Fraction:
    return Fraction(float(a)) * Fraction(float(b))


FAMILIES = {
    make.__name__: Family(partial(attempt, make), count, 10 * count)
    for make, count in (
        (small_coordinates, 300),
        (tiny_second_coordinate, 300),
        (degenerate, 200),
        (faces, 150),
        (degenerate_faces, 150),
        (near_ties, 200),
        (redundant, 150),
        (other_units, 200),
        (by_fractions, 200),
        (large, 4),
    )
} | {"infeasible": Family(attempt_infeasible, 100, 1000)}
