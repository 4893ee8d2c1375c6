"""Attempts to make `recover` say what is not true of measurements `<A_i, Q>` by symmetric matrices.

Where two matrices of the same rank have the same measurements, RECOVERED is a defect and CERTIFIED
is worse. A positive semidefinite matrix with measurements zero, or a least error that is reached in
a limit only, also rules statuses out. Where there is one solution, RECOVERED must be right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from adversarial import Family, Outcome
from adversarial.recovery_problems import LONG, Rng, normal, rotation, seeded
from posquad import Dense, Recovery, recover
from posquad.geometry import dimension

UNIQUE = {"RECOVERED", "CERTIFIED"}  # statuses that assert that there is no other answer
SHAPES = [(4, 1), (5, 2), (6, 1), (6, 2), (6, 3), (8, 2), (10, 2)]


@dataclass(frozen=True)
class DenseTwins:
    """Matrices A `[n, d, d]` and factors `[d, r]` whose measurements are equal."""

    A: np.ndarray
    U: np.ndarray
    V: np.ndarray

    @property
    def y(self) -> np.ndarray:
        return measured(self.A, self.U)

    def is_sound(self) -> bool:
        """Whether U and V have their full rank, differ clearly, and have equal measurements."""
        for F in (self.U, self.V):
            s = np.linalg.svd(F, compute_uv=False)
            if not s[-1] > 1e-2 * s[0] > 0:
                return False
        apart = np.linalg.norm(self.U @ self.U.T - self.V @ self.V.T)
        size = np.linalg.norm(self.U @ self.U.T)
        e = np.abs(measured(self.A, self.V) - self.y)
        own = np.linalg.norm(self.A, axis=(1, 2)) * (size + apart)
        return bool(apart > 1e-3 * size and (e <= 1e-13 * own).all() and self.y.any())

    def disguised(self, rng: Rng) -> DenseTwins:
        """The same problem in other coordinates, or with norms of the A_i far apart, or neither."""
        kind = int(rng.integers(4))
        if kind == 0:
            T = rotation(rng, len(self.U)) * 10.0 ** rng.uniform(-0.5, 0.5, len(self.U))
            inverse = np.linalg.inv(T)
            A = T.T @ self.A @ T
            return DenseTwins((A + A.swapaxes(1, 2)) / 2, inverse @ self.U, inverse @ self.V)
        if kind == 1:
            scales = 10.0 ** rng.uniform(-2, 2, len(self.A))
            return DenseTwins(self.A * scales[:, None, None], self.U, self.V)
        return self


Design = Callable[[Rng], DenseTwins]


def measured(A: np.ndarray, U: np.ndarray) -> np.ndarray:
    """`<A_i, UU'>`, rounded from extended precision."""
    Q = U.astype(LONG) @ U.astype(LONG).T
    return (A.astype(LONG) * Q).sum((1, 2)).astype(float)


def away(Q: np.ndarray, U: np.ndarray) -> float:
    """`||Q - UU'|| / ||UU'||`."""
    P = U @ U.T
    return float(np.linalg.norm(Q - P) / np.linalg.norm(P))


def gaussian(rng: Rng, n: int, d: int) -> np.ndarray:
    A = normal(rng, n, d, d)
    return (A + A.swapaxes(1, 2)) / 2


def sparse(rng: Rng, n: int, d: int) -> np.ndarray:
    """Few entries of each A_i are not zero: at least two, so that H can be taken out."""
    A = gaussian(rng, n, d)
    i, j = np.triu_indices(d)
    for one in A:
        kept = rng.permutation(len(i))[: int(rng.integers(2, d + 1))]
        mask = np.zeros((d, d), bool)
        mask[i[kept], j[kept]] = mask[j[kept], i[kept]] = True
        one *= mask
    return A


def without(A: np.ndarray, H: np.ndarray) -> np.ndarray:
    """Take H out of every A_i, where A_i has entries: `<A_i, H> = 0`."""
    for _ in range(2):  # once more for rounding
        part = H * (A != 0)
        size = np.square(part).sum((1, 2))
        share = (A * H).sum((1, 2)) / np.where(size > 0, size, 1.0)
        A = A - share[:, None, None] * part
    return A


def products(rng: Rng, n: int, H: np.ndarray) -> np.ndarray:
    """`(a_i b_i' + b_i a_i') / 2` with `a_i'H b_i = 0`."""
    a, b = normal(rng, 2, n, len(H))
    turned = a @ H
    for _ in range(2):
        share = (turned * b).sum(1) / np.square(turned).sum(1).clip(1e-300)
        b = b - share[:, None] * turned
    A = a[:, :, None] * b[:, None, :]
    return (A + A.swapaxes(1, 2)) / 2


def shape(rng: Rng) -> tuple[int, int, int]:
    """Numbers of measurements from p + 1 to 3p."""
    d, r = SHAPES[int(rng.integers(len(SHAPES)))]
    p = dimension(d, r)
    n = p + 1 if rng.random() < 0.3 else int(rng.integers(p + 1, 3 * p + 1))
    return n, d, r


# Two solutions.


def projected(rng: Rng, *, kind: str = "gaussian", apart: bool = False) -> DenseTwins:
    """The difference H of two random matrices of rank r is taken out of every A_i.

    `apart`: their norms differ by 3 to 10 times. Of twins 10 to 30 times apart, some are missed
    (`docs/statuses.md`).
    """
    n, d, r = shape(rng)
    U, V = normal(rng, 2, d, r)
    if apart:
        V *= np.sqrt(10.0 ** rng.uniform(np.log10(3), np.log10(10)))
        U, V = (U, V) if rng.random() < 0.5 else (V, U)
    H = U @ U.T - V @ V.T
    H /= np.linalg.norm(H)
    if kind == "products":
        return DenseTwins(products(rng, n, H), U, V)
    return DenseTwins(without((sparse if kind == "sparse" else gaussian)(rng, n, d), H), U, V)


def common_part(rng: Rng) -> DenseTwins:
    """Two solutions that share all columns but one, in eigenvalues that are far smaller."""
    n, d, r = shape(rng)
    r = max(r, 2)
    n = max(n, dimension(d, r) + 1)
    U = normal(rng, d, r)
    V = U.copy()
    V[:, -1] = normal(rng, d)
    small = 10.0 ** rng.uniform(-1, 0)
    U[:, -1] *= small
    V[:, -1] *= small
    H = U @ U.T - V @ V.T
    return DenseTwins(without(gaussian(rng, n, d), H / np.linalg.norm(H)), U, V)


def signs(rng: Rng) -> DenseTwins:
    """No A_i joins two blocks: another sign of the second block of U."""
    n, d, r = shape(rng)
    first = np.arange(d) < int(rng.integers(1, d))
    A = gaussian(rng, n, d) * (first[:, None] == first)
    U = normal(rng, d, r)
    return DenseTwins(A, U, np.where(first[:, None], U, -U))


def exchange(rng: Rng) -> DenseTwins:
    """`PA_iP' = A_i` for an exchange P of two coordinates: U and PU."""
    n, d, r = shape(rng)
    order = np.arange(d)
    order[:2] = 1, 0
    A = gaussian(rng, n, d)
    U = normal(rng, d, r)
    return DenseTwins((A + A[:, order][:, :, order]) / 2, U, U[order])


def entries(rng: Rng) -> DenseTwins:
    """Entries of Q: all among d - 1 coordinates, and of the last the diagonal and r - 1 others.

    The last row of U may be reflected in the span of the r - 1 rows that it is joined with.
    """
    d, r = [(5, 2), (6, 2), (7, 2), (7, 3), (8, 3)][int(rng.integers(5))]
    i, j = np.triu_indices(d - 1)
    others = rng.permutation(d - 1)[: r - 1]
    i, j = np.r_[i, others, d - 1], np.r_[j, others * 0 + d - 1, d - 1]
    A = np.zeros((len(i), d, d))
    A[np.arange(len(i)), i, j] = 0.5
    A[np.arange(len(i)), j, i] += 0.5
    U = normal(rng, d, r)
    axis = np.linalg.svd(U[others])[2][-1]
    V = U.copy()
    V[-1] -= 2 * (U[-1] @ axis) * axis
    return DenseTwins(A, U, V)


def equal_blocks(rng: Rng) -> DenseTwins:
    """`A_i = diag(B_i, B_i)`: the exchange of the two halves of U."""
    half, r = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    d = 2 * half
    p = dimension(d, r)
    n = int(rng.integers(p + 1, 3 * p + 1))
    A = np.zeros((n, d, d))
    A[:, :half, :half] = A[:, half:, half:] = gaussian(rng, n, half)
    U = normal(rng, d, r)
    return DenseTwins(A, U, np.roll(U, half, axis=0))


DESIGNS: dict[str, Design] = {
    "gaussian": projected,
    "gaussian, norms apart": partial(projected, apart=True),
    "sparse": partial(projected, kind="sparse"),
    "sparse, norms apart": partial(projected, kind="sparse", apart=True),
    "products": partial(projected, kind="products"),
    "products, norms apart": partial(projected, kind="products", apart=True),
    "common part": common_part,
    "signs": signs,
    "exchange": exchange,
    "entries": entries,
    "equal blocks": equal_blocks,
}


def attempt_twins(design: Design, name: str, seed: int) -> Outcome:
    """One problem alone, of some seeds with a certificate, with the rank unknown or in a batch."""
    rng = seeded(seed, f"dense {name}")
    twins = next(t for t in (design(rng).disguised(rng) for _ in range(200)) if t.is_sound())
    (n, d, _), r = twins.A.shape, twins.U.shape[1]
    outcome = Outcome(tried=1)
    case = f"d, r, n = {d}, {r}, {n}"

    def judge(how: str, word: str, rank: int, Q: np.ndarray, excluded: bool) -> None:
        outcome.said[f"{how} {word}"] += 1
        # A lower rank than that of the two solutions may have one solution only.
        if excluded and rank == r:
            outcome.broken.append(f"{how}, {case}: the other solution is excluded")
        if word == "CERTIFIED" or (word == "RECOVERED" and rank == r):
            far = f"{away(Q, twins.U):.1e}, {away(Q, twins.V):.1e}"
            outcome.broken.append(f"{how}, {case}: {word}; distances from two solutions {far}")

    def told(found: Recovery) -> tuple[str, int, np.ndarray, bool]:
        return found.status.name, int(found.rank), found.Q.dense(), bool(found.excluded)

    judge("alone", *told(recover(Dense(twins.A), twins.y, r, certify=seed % 8 == 0)))
    if seed % 4 == 1:
        judge("rank unknown", *told(recover(Dense(twins.A), twins.y, max_rank=r)))
    if seed % 4 == 2:
        both = np.array([twins.y, measured(gaussian(rng, n, d), twins.U), 2 * twins.y])
        A = np.array([twins.A, gaussian(rng, n, d), twins.A])
        found = recover(Dense(A), both, r)
        for k in (0, 2):
            Q = found.Q.dense()[k] / (k or 1)
            word, rank = found.status[k].name, int(found.rank[k])
            judge("batch", word, rank, Q, bool(found.excluded[k]))
    return outcome


# One solution.


def attempt_generic(kind: str, seed: int) -> Outcome:
    """Random matrices: RECOVERED must be right, and must not be rare."""
    rng = seeded(seed, f"dense generic {kind}")
    n, d, r = shape(rng)
    U = normal(rng, d, r)
    A = products(rng, n, np.zeros((d, d))) if kind == "products" else None
    A = (sparse if kind == "sparse" else gaussian)(rng, n, d) if A is None else A
    if rng.random() < 0.3:
        A = A * 10.0 ** rng.uniform(-2, 2, (n, 1, 1))
    y = measured(A, U)
    found = recover(Dense(A), y, r, certify=seed % 8 == 0)
    word, error = found.status.name, away(found.Q.dense(), U)
    outcome = Outcome()
    outcome.said[word] += 1
    if word in UNIQUE and error > 1e-5:
        outcome.broken.append(f"d, r, n = {d}, {r}, {n}: {word} with the error {error:.1e}")
    if word == "BEST_FIT":
        outcome.broken.append(f"d, r, n = {d}, {r}, {n}: {word} of exact responses")
    return outcome


# What has no solution, or zero among others.


def attempt_zero(seed: int) -> Outcome:
    """y = 0, and a positive semidefinite P of rank k at most that asked for is in the kernel."""
    rng = seeded(seed, "dense zero")
    n, d, r = shape(rng)
    k = int(rng.integers(1, r + 1))
    V = normal(rng, d, k)
    P = V @ V.T / np.linalg.norm(V @ V.T)
    A = products(rng, n, P) if rng.random() < 0.3 else without(gaussian(rng, n, d), P)
    if rng.random() < 0.3:  # one that is nearly positive definite without V
        A[0] = np.eye(d) - P * np.trace(P)
    found = recover(Dense(A), np.zeros(n), r, certify=seed % 4 == 0)
    outcome = Outcome()
    outcome.said[found.status.name] += 1
    if found.status.name in UNIQUE:
        outcome.broken.append(f"d, r, n = {d}, {r}, {n}, P of rank {k}: {found.status.name}")
    return outcome


def attempt_limit(seed: int) -> Outcome:
    """`y = A(S)` of `S = FF' + uv' + vu'` with `<A_i, vv'> = 0` for all i: no minimum.

    `FF' + (u / t + tv)(u / t + tv)'` has the measurements `A(S) + A(uu') / t^2`. The A_i determine
    every other direction, so that only `S + svv'` have the measurements y: none is positive
    semidefinite.
    """
    rng = seeded(seed, "dense limit")
    d = int(rng.integers(2, 6))
    k = int(rng.integers(0, d - 1))
    basis = rotation(rng, d)
    v, u, F = basis[:, :1], basis[:, 1:2], basis[:, 2 : 2 + k]
    n = d * (d + 1) // 2 + int(rng.integers(0, 6))
    A = without(gaussian(rng, n, d), v @ v.T)
    S = F @ F.T + u @ v.T + v @ u.T
    y = (A * S).sum((1, 2))
    rank = d if rng.random() < 0.5 else min(d, k + 1)
    found = recover(Dense(A), y, rank)
    word, residual = found.status.name, float(found.residual)
    outcome = Outcome()
    outcome.said[f"{'full' if rank == d else 'low'} rank {word}"] += 1
    if word in UNIQUE or word == "BEST_FIT":
        outcome.broken.append(f"d, k, n, rank = {d}, {k}, {n}, {rank}: {word}, {residual:.1e}")
    return outcome


FAMILIES = (
    {
        f"twins, {name}": Family(partial(attempt_twins, design, name), 3, 200)
        for name, design in DESIGNS.items()
    }
    | {
        f"generic, {kind}": Family(partial(attempt_generic, kind), 3, 200)
        for kind in ("gaussian", "sparse", "products")
    }
    | {
        "zero responses": Family(attempt_zero, 5, 200),
        "no minimum": Family(attempt_limit, 3, 200),
    }
)
