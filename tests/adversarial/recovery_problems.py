"""Random problems of recovery: with two known solutions of the same rank, and generic ones.

A problem with two solutions is a pair of factors U, V of the same rank with `x'UU'x = x'VV'x` for
every row x. `drawn` checks it in extended precision, and draws again if the two solutions are too
close to each other or to a lower rank.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from posquad.geometry import dimension
from posquad.recovery.streams.gather import kept_rows

Rng = np.random.Generator
LONG = np.longdouble


@dataclass(frozen=True)
class Twins:
    """Rows X `[n, d]` and two factors `[d, r]` with the same responses."""

    X: np.ndarray
    U: np.ndarray
    V: np.ndarray

    @property
    def y(self) -> np.ndarray:
        return responses(self.X, self.U)

    @property
    def distance(self) -> float:
        """`||UU' - VV'|| / ||UU'||`."""
        P = self.U @ self.U.T
        return float(np.linalg.norm(P - self.V @ self.V.T) / np.linalg.norm(P))


Maker = Callable[[], Twins]


def responses(X: np.ndarray, U: np.ndarray) -> np.ndarray:
    """`x'UU'x`, rounded from extended precision."""
    return np.square(X.astype(LONG) @ U.astype(LONG)).sum(-1).astype(float)


def misfit(twins: Twins) -> float:
    """Largest relative misfit of y by U and by V: of a row compared with its size, and of all."""
    y, worst = twins.y.astype(LONG), 0.0
    lengths = np.square(twins.X.astype(LONG)).sum(1)
    for U in (twins.U, twins.V):
        e = np.abs(np.square(twins.X.astype(LONG) @ U.astype(LONG)).sum(1) - y)
        own = y + lengths * np.linalg.norm(U, 2) ** 2
        row = (e / np.where(own > 0, own, 1)).max()
        worst = max(worst, float(row), float(np.sqrt((e**2).sum() / (y**2).sum())))
    return worst


def is_sound(twins: Twins) -> bool:
    """Whether U and V have their full rank, are clearly different, and give the same responses."""
    for U in (twins.U, twins.V):
        s = np.linalg.svd(U, compute_uv=False)
        if not s[-1] > 1e-2 * s[0] > 0:
            return False
    return twins.distance > 1e-3 and misfit(twins) < 1e-12


def drawn(make: Callable[[], Twins]) -> Twins:
    """The first sound problem of at most 200."""
    for _ in range(200):
        twins = make()
        if is_sound(twins):
            return twins
    raise AssertionError(f"no sound problem of {make} in 200")


def rotation(rng: Rng, size: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((size, size)))[0]


def hidden(rng: Rng, twins: Twins) -> Twins:
    """The same problem in other coordinates: in the given ones, rotated, or stretched too."""
    d, kind = twins.X.shape[1], int(rng.integers(4))
    if kind == 0:
        return twins
    stretch = np.ones(d) if kind < 3 else 10.0 ** rng.uniform(-0.5, 0.5, d)
    left, right = rotation(rng, d), rotation(rng, d)
    M, inverse = left * stretch @ right, (right.T / stretch) @ left.T
    return Twins(twins.X @ M, inverse @ twins.U, inverse @ twins.V)


def seeded(seed: int, name: str) -> Rng:
    """A generator for one seed of what the name says."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def many_copies(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """So many copies of the samples that `recover` does not read them into memory."""
    count = kept_rows(X.shape[1]) // len(X) + 1
    return np.tile(X, (count, 1)), np.tile(y, count)


def normal(rng: Rng, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape)


def needed_samples(d: int, r: int) -> int:
    """Rows that determine a generic matrix of rank r."""
    return min(dimension(d, r) + 1, d * (d + 1) // 2)


def samples(rng: Rng, d: int, r: int, *, most: float = 3.0, least: int = 0) -> int:
    """A number of rows from p + 1 to `most` p."""
    p = dimension(d, r)
    return max(int(rng.integers(p + 1, max(p + 2, int(most * p) + 1))), least)


# Generic problems, which have one solution for almost every draw from p + 1 rows on.


def correlated_rows(rng: Rng, n: int, d: int) -> np.ndarray:
    return normal(rng, n, d) * np.geomspace(1, 0.1, d) @ rotation(rng, d)


def student_rows(rng: Rng, n: int, d: int) -> np.ndarray:
    """Entries of three degrees of freedom, whose fourth moments are infinite."""
    return rng.standard_t(3, (n, d))


def uniform_rows(rng: Rng, n: int, d: int) -> np.ndarray:
    return rng.uniform(-1, 1, (n, d))


GENERIC_ROWS: dict[str, Callable[[Rng, int, int], np.ndarray]] = {
    "gaussian": normal,
    "correlated": correlated_rows,
    "student": student_rows,
    "uniform": uniform_rows,
}
GENERIC_SHAPES = ((4, 1), (8, 1), (6, 3), (10, 2), (20, 2))


def near_limit(p: int) -> dict[str, int]:
    """Numbers of rows near the information limit, by name."""
    factors = {"1.1p": 1.1, "1.25p": 1.25, "2p": 2.0}
    return {"p+1": p + 1} | {name: max(p + 1, math.ceil(f * p)) for name, f in factors.items()}


def generic(seed: int, rows: str, size: str, shape: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """Rows X of a distribution, a factor U and its responses y."""
    d, r = shape
    rng = seeded(seed, f"{rows} {size} {d} {r}")
    X = GENERIC_ROWS[rows](rng, near_limit(dimension(d, r))[size], d)
    U = normal(rng, d, r)
    return X, U, responses(X, U)
