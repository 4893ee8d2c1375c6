"""Attempts to obtain a wrong kernel, or an eigenvalue that is not the extreme one.

The dimension of a kernel is known exactly: every floating-point number is a fraction, so the rank
of the derivative of the measurements can be computed modulo a large prime, without rounding.
Extreme eigenvalues are compared with LAPACK on a matrix built here from the definition.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import torch

from adversarial import Family, Outcome
from posquad import Dense, LeastSquares, RankOne, effective_spectrum, operator_bounds
from posquad import operator_deviation as deviation_of
from posquad.core.status import Status
from posquad.curvature.eigen import converged, extreme_eigenpairs, no_preconditioner
from posquad.curvature.ends import spectrum_ends
from posquad.geometry import dimension

Rng = np.random.Generator
PRIME = 2**61 - 1
LONG = np.longdouble


# Oracles.


def residue(value: float) -> int:
    """A floating-point number modulo the prime: it is an integer over a power of two."""
    top, bottom = float(value).as_integer_ratio()
    return top * pow(bottom, -1, PRIME) % PRIME


def exact_rank(B: list[list[int]]) -> int:
    """Rank modulo the prime, which is that of the rational matrix with probability 1 - 1e-17."""
    rows, rank = [row[:] for row in B], 0
    for column in range(len(rows[0])):
        pivot = next((i for i in range(rank, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        inverse = pow(rows[rank][column], -1, PRIME)
        for i in range(rank + 1, len(rows)):
            factor = rows[i][column] * inverse % PRIME
            if factor:
                rows[i] = [
                    (a - factor * b) % PRIME for a, b in zip(rows[i], rows[rank], strict=True)
                ]
        rank += 1
        if rank == len(rows):
            break
    return rank


def exact_kernel_dimension(X: np.ndarray, U: np.ndarray) -> int:
    """p minus the rank of `Delta -> x_i'Delta U'x_i`, which vanishes on fiber directions."""
    u = [[residue(v) for v in row] for row in U]
    B = []
    for row in X:
        x = [residue(v) for v in row]
        z = [sum(a * b[j] for a, b in zip(x, u, strict=True)) % PRIME for j in range(U.shape[1])]
        B.append([a * b % PRIME for a in x for b in z])
    return dimension(*U.shape) - exact_rank(B)


def tangent_basis(W: np.ndarray) -> np.ndarray:
    """Tangent matrices `[p, d, d]` at range(W), orthonormal in `2 <a, b> + tr(a) tr(b)`."""
    d, r = W.shape
    frame = np.linalg.qr(W, mode="complete")[0]
    pairs = [(i, j) for j in range(r) for i in range(j, d)]
    units = [np.outer(frame[:, i], frame[:, j]) for i, j in pairs]
    xi = np.array([(unit + unit.T) / 2 for unit in units])
    flat = xi.reshape(len(xi), -1)
    trace = np.trace(xi, axis1=1, axis2=2)
    factor = np.linalg.cholesky(2 * flat @ flat.T + np.outer(trace, trace))
    return np.linalg.solve(factor, flat).reshape(xi.shape)


def seen_share(X: np.ndarray, W: np.ndarray, unseen: int) -> float:
    """Smallest over largest curvature of the seen directions, relative to the population's."""
    x = X / np.abs(X).max()
    B = np.einsum("na,pab,nb->np", x, tangent_basis(W), x)
    seen = np.linalg.svd(B, compute_uv=False)[: dimension(*W.shape) - unseen]
    return float((seen[-1] / seen[0]) ** 2) if len(seen) else 1.0


def gram(A: np.ndarray, U: np.ndarray) -> np.ndarray:
    """`<xi, T_n(xi)>` on an orthonormal basis of the directions orthogonal to the fiber."""
    d, r = U.shape
    skew = [
        np.outer(np.eye(r)[i], np.eye(r)[j]) - np.outer(np.eye(r)[j], np.eye(r)[i])
        for i in range(r)
        for j in range(i)
    ]
    vertical = np.array([(U @ K).ravel() for K in skew]).reshape(len(skew), d * r)
    across = np.linalg.qr(vertical.T, mode="complete")[0][:, len(skew) :]
    rows = A @ U if A.ndim == 3 else A[:, :, None] * (A @ U)[:, None, :]
    B = 2 * rows.reshape(len(A), -1) @ across
    return B.T @ B / len(A)


# Kernels.


def gaussian_rows(rng: Rng, n: int, d: int) -> np.ndarray:
    return rng.standard_normal((n, d))


def sign_rows(rng: Rng, n: int, d: int) -> np.ndarray:
    return rng.choice([-1.0, 1.0], (n, d))


def block_rows(rng: Rng, n: int, d: int) -> np.ndarray:
    """Each row sees one of two groups of coordinates."""
    first = np.arange(d) < int(rng.integers(1, d))
    which = rng.random((n, 1)) < 0.5
    return rng.standard_normal((n, d)) * np.where(which, first, ~first)


def few_coordinates(rng: Rng, n: int, d: int) -> np.ndarray:
    """A coordinate that no row sees."""
    X = rng.standard_normal((n, d))
    X[:, int(rng.integers(d))] = 0
    return X


def repeated_rows(rng: Rng, n: int, d: int) -> np.ndarray:
    X = rng.standard_normal((max(1, n // 2), d))
    return X[rng.integers(0, len(X), n)] * rng.choice([-1.0, 1.0], (n, 1))


def integer_rows(rng: Rng, n: int, d: int) -> np.ndarray:
    return rng.integers(-2, 3, (n, d)).astype(float)


def turned_away_rows(rng: Rng, n: int, d: int) -> np.ndarray:
    """Rows that `attempt_kernel` turns away from the largest column of U: `x'u` cancels."""
    return rng.standard_normal((n, d))


ROWS: dict[str, Callable[[Rng, int, int], np.ndarray]] = {
    f.__name__: f
    for f in (
        gaussian_rows,
        sign_rows,
        block_rows,
        few_coordinates,
        repeated_rows,
        integer_rows,
        turned_away_rows,
    )
}


def rotation(rng: Rng, size: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((size, size)))[0]


def measured(X: np.ndarray, U: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Curvature of directions relative to the population's, in extended precision."""
    x, u = X.astype(LONG) / (np.abs(X).max() or 1.0), U.astype(LONG) / np.abs(U).max()
    worst = []
    for D in vectors.astype(LONG):
        xi = D @ u.T + u @ D.T
        population = np.sqrt(2 * np.square(xi).sum() + np.trace(xi) ** 2)
        seen = np.einsum("na,ab,nb->n", x, xi, x)
        reach = np.square(x).sum(1).max() * population
        worst.append(np.abs(seen).max() / (reach or 1.0))
    return np.array(worst, dtype=float)


def attempt_kernel(kind: str, seed: int) -> Outcome:
    """A factor in two gauges: dense in both, matrix-free in one."""
    rng = np.random.default_rng([seed, sorted(ROWS).index(kind)])
    d = int(rng.integers(2, 8))
    r = int(rng.integers(1, min(d, 3) + 1))
    p = dimension(d, r)
    n = max(1, p - int(rng.integers(-3, 6)))
    condition = 10.0 ** rng.choice([0, 1, 2, 3, 4, 5, 6, 8, 10])
    X = ROWS[kind](rng, n, d) * 10.0 ** rng.uniform(-20, 20)
    W = np.linalg.qr(rng.standard_normal((d, r)))[0]
    U = W * np.geomspace(1, 1 / condition, r) * 10.0 ** rng.uniform(-20, 20)
    if kind == "turned_away_rows":
        X -= (1 - 10.0 ** rng.uniform(-4, 0)) * np.outer(X @ W[:, 0], W[:, 0])
    outcome = Outcome(tried=0)
    for turn, methods in ((np.eye(r), ("dense",)), (rotation(rng, r), ("dense", "matrix-free"))):
        V = U @ turn
        unseen = exact_kernel_dimension(X, V)
        share = seen_share(X, W, unseen) if X.any() else 1.0
        for method in methods:
            clear = condition <= 1e6 and share > (1e-9 if method == "dense" else 1e-6)
            check_kernel(outcome, X, V, condition, unseen, clear=clear, method=method)
    return outcome


def check_kernel(
    outcome: Outcome,
    X: np.ndarray,
    U: np.ndarray,
    condition: float,
    unseen: int,
    *,
    clear: bool,
    method: Literal["dense", "matrix-free"],
) -> None:
    """Check the reported kernel; `clear` if every seen direction is far above rounding."""
    p = dimension(*U.shape)
    request: dict = {"which": "all"} if method == "dense" else {"which": "smallest", "k": p}
    if method != "dense":
        request["k"] = min(p, unseen + 2)
    objective = LeastSquares(RankOne(X), np.square(X @ U).sum(1))
    spectrum = effective_spectrum(objective, U, method=method, **request)
    found = spectrum.kernel_dimension
    case = f"{method}, d, r = {U.shape}, n = {len(X)}, condition {condition:.0e}"
    outcome.tried += 1
    outcome.said["known" if spectrum.kernel_is_complete else "not known"] += 1
    if spectrum.kernel_is_complete and found != unseen:
        outcome.broken.append(f"{case}: complete with {found} of {unseen} kernel directions")
    if clear and not spectrum.kernel_is_complete:
        outcome.broken.append(f"{case}: not known, with {found} of {unseen} kernel directions")
    if found > unseen:
        outcome.broken.append(f"{case}: {found} kernel directions, there are {unseen}")
    # U is given to eps ||U||, which rotates its smallest direction by eps * condition.
    allowed = 1e3 * np.finfo(float).eps * condition * p
    if found and (worst := measured(X, U, spectrum.kernel_vectors).max()) > allowed:
        outcome.broken.append(f"{case}: a kernel direction is measured by {worst:.1e}")


def attempt_weak(seed: int) -> Outcome:
    """One direction seen by `off` of the others: never counted wrongly, at any `off`."""
    rng = np.random.default_rng([seed, 5417])
    d, r = int(rng.integers(3, 6)), int(rng.integers(1, 3))
    p = dimension(d, r)
    n = p + int(rng.integers(0, 5))
    X = rng.standard_normal((n, d))
    # The r directions e_1 v' + v e_1', v in range(U), are seen by `off` only.
    off = 0.0 if rng.random() < 0.3 else 10.0 ** rng.uniform(-10, 0)
    X[:, 0] *= off
    U = np.linalg.qr(rng.standard_normal((d, r)))[0] * np.geomspace(1, rng.uniform(0.01, 1), r)
    outcome = Outcome(tried=0)
    for method in ("dense", "matrix-free"):
        unseen = exact_kernel_dimension(X, U)
        check_kernel(outcome, X, U, 100.0, unseen, clear=off in (0, 1), method=method)
    return outcome


# Extreme eigenvalues.


def plain(rng: Rng) -> tuple[np.ndarray, int]:
    d, r = int(rng.integers(2, 13)), int(rng.integers(1, 4))
    r = min(d, r)
    return rng.standard_normal((int(rng.uniform(1.05, 8) * dimension(d, r)) + 1, d)), r


def many(rng: Rng) -> tuple[np.ndarray, int]:
    """So many rows that every vector is nearly an eigenvector."""
    d, r = int(rng.integers(8, 17)), int(rng.integers(1, 3))
    return rng.standard_normal((40 * dimension(d, r), d)), r


def decoupled(rng: Rng) -> tuple[np.ndarray, int]:
    """Rows in one of two complementary subspaces, of different sizes, under a hidden rotation."""
    d, r = int(rng.integers(4, 41)), int(rng.integers(1, 3))
    n, split = int(rng.uniform(2, 5) * dimension(d, r)), int(rng.integers(1, d))
    first = np.arange(d) < split
    which = rng.random((n, 1)) < rng.uniform(0.1, 0.9)
    rows = rng.standard_normal((n, d)) * np.where(which, first, ~first)
    return rows * np.where(which, rng.uniform(0.3, 1), 1.0) @ rotation(rng, d), r


def heavy(rng: Rng) -> tuple[np.ndarray, int]:
    """A few long rows."""
    X, r = plain(rng)
    return X * 10.0 ** rng.uniform(-1, 0.5, (len(X), 1)), r


PROBLEMS = {f.__name__: f for f in (plain, many, decoupled, heavy)}


def attempt_ends(kind: str, seed: int) -> Outcome:
    """Both ends at a random tolerance, for a batch of factors."""
    rng = np.random.default_rng([seed, 71 + sorted(PROBLEMS).index(kind)])
    X, r = PROBLEMS[kind](rng)
    d = X.shape[1]
    batch = int(rng.integers(1, 5))
    tolerance = float(rng.choice([0.5, 0.3, 0.1, 1e-2, 1e-3, 1e-5, 1e-9]))
    U = rng.standard_normal((batch, d, r)) * np.geomspace(1, 10.0 ** -rng.uniform(0, 1.5), r)
    k = int(rng.integers(1, min(4, dimension(d, r)) + 1))
    objective = LeastSquares(RankOne(X), np.square(X @ U).sum(-1))
    truth = [np.linalg.eigvalsh(gram(X, u)) for u in U]
    outcome = Outcome(tried=0)
    for end in ("smallest", "largest"):
        found = effective_spectrum(
            objective,
            U,
            k=k,
            which=end,
            method="matrix-free",
            tolerance=tolerance,
            seed=int(rng.integers(1000)),
        )
        for values, true in zip(found.values, truth, strict=True):
            judge(outcome, values, true, end == "largest", tolerance, found.status)
    return outcome


def attempt_bounds(kind: str, seed: int) -> Outcome:
    """Both ends to a random accuracy, in either precision, also where there is a kernel."""
    names = sorted([*PROBLEMS, *ROWS])
    rng = np.random.default_rng([seed, 91 + names.index(kind)])
    if kind in PROBLEMS:
        X, r = PROBLEMS[kind](rng)
        d = X.shape[1]
    else:
        d = int(rng.integers(2, 13))
        r = int(rng.integers(1, min(d, 3) + 1))
        X = ROWS[kind](rng, max(1, dimension(d, r) + int(rng.integers(-4, 20))), d)
    batch = int(rng.integers(1, 4))
    accuracy = float(rng.choice([0.3, 0.1, 0.05]))
    U = rng.standard_normal((batch, d, r)) * np.geomspace(1, 10.0 ** -rng.uniform(0, 2), r)
    outcome = Outcome(tried=0)
    for dtype in (torch.float64, torch.float32):
        x = torch.from_numpy(X).to(dtype)
        ends = spectrum_ends(RankOne(x), torch.from_numpy(U), accuracy, seed)
        for u, low, high, known in zip(U, *(t.tolist() for t in ends), strict=True):
            outcome.tried += 1
            outcome.said["known" if known else "not known"] += 1
            true = np.linalg.eigvalsh(gram(x.double().numpy(), u))
            for found, value in ((low, true[0]), (high, true[-1])):
                if known and not abs(found - value) <= accuracy * value:
                    case = f"{dtype}, n, d, r = {len(X), d, r}, accuracy {accuracy}"
                    outcome.broken.append(f"{case}: {found} instead of {value}")
    return outcome


def judge(
    outcome: Outcome,
    values: np.ndarray,
    true: np.ndarray,
    largest: bool,
    tolerance: float,
    status: Status,
) -> None:
    """Values ascending; `true` are all eigenvalues."""
    outcome.tried += 1
    outcome.said[status.name] += 1
    k, rounding = len(values), 1e-11 * np.abs(true).max()
    if np.isnan(values).any():
        if status is not Status.NOT_CONVERGED:
            outcome.broken.append(f"{status.name} with NaN")
        return
    expected, sign = (true[-k:], 1) if largest else (true[:k], -1)
    beyond = sign * (expected - values)  # how far the truth lies beyond what was found
    if (beyond > tolerance * np.abs(values) + rounding).any() or (beyond < -rounding).any():
        outcome.broken.append(f"tolerance {tolerance}: {values} instead of {expected}")


def clustered(rng: Rng, N: int) -> np.ndarray:
    gaps = 10.0 ** rng.uniform(-8, 0, N)
    return np.cumsum(gaps) / gaps.sum() + 10.0 ** rng.uniform(-3, 0)


def repeated(rng: Rng, N: int) -> np.ndarray:
    return rng.choice(rng.uniform(0.1, 3, int(rng.integers(1, 6))), N)


def outlying(rng: Rng, N: int) -> np.ndarray:
    """A narrow bulk and one value apart from it."""
    values = 1 + 0.05 * rng.standard_normal(N)
    values[0] = rng.choice([0.5, 0.7, 0.9, 1.1, 1.5])
    return values


def signed(rng: Rng, N: int) -> np.ndarray:
    return rng.standard_normal(N) * 10.0 ** rng.uniform(-2, 2)


VALUES = {f.__name__: f for f in (clustered, repeated, outlying, signed)}


def attempt_matrix(kind: str, seed: int) -> Outcome:
    """A batch of matrices with given eigenvalues; the start may be orthogonal to the wanted one."""
    rng = np.random.default_rng([seed, 311 + sorted(VALUES).index(kind)])
    N, k = int(rng.integers(2, 150)), int(rng.integers(1, 4))
    k, batch = min(k, N), int(rng.integers(1, 6))
    spectra = np.array([np.sort(VALUES[kind](rng, N)) for _ in range(batch)])
    Q = rotation(rng, N) if rng.random() < 0.7 else np.eye(N)
    A = torch.from_numpy((Q * spectra[:, None, :]) @ Q.T)
    tolerance = float(rng.choice([0.5, 0.3, 0.1, 1e-2, 1e-3, 1e-5, 1e-9]))
    largest = bool(rng.random() < 0.5)
    start = rng.standard_normal((batch, N, min(k + 2, N)))
    if rng.random() < 0.5 and N > 8:  # orthogonal to the wanted eigenvectors, by structure
        away = Q[:, -2:] if largest else Q[:, :2]
        start = start - away @ (away.T @ start)
    same = lambda block: block  # noqa: E731
    pairs = extreme_eigenpairs(
        lambda block: A @ block,
        no_preconditioner(same),
        same,
        torch.from_numpy(start),
        k=k,
        largest=largest,
        dimension=N,
        tolerance=tolerance,
        max_products=5000,
        seed=int(rng.integers(1000)),
    )
    outcome = Outcome(tried=0)
    good = converged(pairs, tolerance)
    for values, known, true in zip(pairs.values, good, spectra, strict=True):
        status = Status.CONVERGED if bool(known.all()) else Status.NOT_CONVERGED
        shown = np.where(known.numpy(), values.numpy(), np.nan)
        judge(outcome, np.sort(shown), true, largest, tolerance, status)
    return outcome


def attempt_full_space(seed: int) -> Outcome:
    """`operator_bounds` and `operator_deviation` against the matrix of the operator."""
    rng = np.random.default_rng([seed, 613])
    d = int(rng.integers(1, 8))
    size = d * (d + 1) // 2
    n = int(rng.uniform(0.3, 6) * size) + 1
    X = rng.standard_normal((n, d))
    if rng.random() < 0.4 and d > 1:
        first = np.arange(d) < int(rng.integers(1, d))
        X = X * np.where(rng.random((n, 1)) < 0.5, first, ~first) @ rotation(rng, d)
    i, j = np.triu_indices(d)
    rows = X[:, i] * X[:, j] * np.where(i == j, 1.0, math.sqrt(2))
    T = rows.T @ rows / n
    trace = (i == j).astype(float)
    tolerance = float(rng.choice([0.5, 0.3, 0.1, 1e-2, 1e-3, 1e-8]))
    population = 2 * np.eye(size) + np.outer(trace, trace)
    outcome = Outcome(tried=0)
    for call, matrix in ((operator_bounds, T), (deviation_of, T - population)):
        bounds = call(RankOne(X), tolerance=tolerance, seed=seed % 1000)
        true = np.linalg.eigvalsh(matrix)
        for value, largest in ((bounds.smallest, False), (bounds.largest, True)):
            judge(outcome, np.array([value]), true, largest, tolerance, bounds.status)
    return outcome


def attempt_spectrum(seed: int) -> Outcome:
    """All values of a batch against the matrix built from the definition."""
    rng = np.random.default_rng([seed, 997])
    d, r = int(rng.integers(1, 9)), int(rng.integers(1, 4))
    r, batch = min(d, r), int(rng.integers(1, 5))
    n = int(rng.uniform(0.3, 4) * dimension(d, r)) + 1
    A = rng.standard_normal((n, d, d)) if rng.random() < 0.3 else rng.standard_normal((n, d))
    A = A + A.transpose(0, 2, 1) if A.ndim == 3 else A
    operator = Dense(A) if A.ndim == 3 else RankOne(A)
    U = rng.standard_normal((batch, d, r)) * np.geomspace(1, 10.0 ** -rng.uniform(0, 1.5), r)
    spectrum = effective_spectrum(LeastSquares(operator, operator.apply_factor(U)), U)
    outcome = Outcome(tried=batch, said=Counter([spectrum.status.name] * batch))
    for u, values, V in zip(U, spectrum.values, spectrum.vectors, strict=True):
        true = np.linalg.eigvalsh(gram(A, u))
        if np.abs(values - true).max() > 1e-12 * len(true) * true[-1]:
            outcome.broken.append(f"{values} instead of {true}")
        flat = V.reshape(len(V), -1)
        if np.abs(flat @ flat.T - np.eye(len(V))).max() > 1e-10:
            outcome.broken.append("vectors are not orthonormal")
    return outcome


FAMILIES = (
    {f"kernel, {kind}": Family(partial(attempt_kernel, kind), 60, 1000) for kind in ROWS}
    | {"kernel, weak rows": Family(attempt_weak, 60, 1000)}
    | {f"ends, {kind}": Family(partial(attempt_ends, kind), 18, 500) for kind in PROBLEMS}
    | {f"ends, {kind}": Family(partial(attempt_matrix, kind), 50, 1000) for kind in VALUES}
    | {
        f"bounds, {kind}": Family(partial(attempt_bounds, kind), 12, 500)
        for kind in [*PROBLEMS, *ROWS]
    }
    | {"ends, full space": Family(attempt_full_space, 40, 1000)}
    | {"spectrum": Family(attempt_spectrum, 60, 1000)}
)
