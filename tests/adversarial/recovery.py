"""Attempts to make `recover` say what is not true.

Where two matrices of the same rank explain the responses, RECOVERED is a defect and CERTIFIED is
worse. Where one does, a wrong answer must not be called RECOVERED; how often the right one is not
called so is counted. A problem must get the same answer alone and in a batch. At full rank the
problem is convex, and the words are compared with the optimum of Clarabel and a proved lower bound.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np

from adversarial import Family, Outcome
from adversarial.recovery_designs import DESIGNS, LARGE, Design
from adversarial.recovery_features import hanging_point, missing_entries
from adversarial.recovery_problems import (
    GENERIC_ROWS,
    GENERIC_SHAPES,
    Rng,
    Twins,
    drawn,
    generic,
    many_copies,
    near_limit,
    normal,
    responses,
    rotation,
    seeded,
)
from positive_support import clarabel_fit
from posquad import Recovery, recover
from posquad.geometry import dimension
from posquad.problems import rows

EPS = float(np.finfo(float).eps)
UNIQUE = {"RECOVERED", "CERTIFIED"}  # statuses that assert that there is no other answer
REPRODUCED = UNIQUE | {"NOT_IDENTIFIED"}


def away(Q: np.ndarray, U: np.ndarray) -> float:
    """`||Q - UU'|| / ||UU'||`."""
    P = U @ U.T
    return float(np.linalg.norm(Q - P) / np.linalg.norm(P))


# Two solutions.


def attempt_twins(design: Design, name: str, count: int, seed: int) -> Outcome:
    """Problems with two solutions, alone, in one batch and (the first) by moments.

    A proof is asked for of few.
    """
    rng = seeded(seed, name)
    make = design(rng)
    twins = [drawn(make) for _ in range(count)]
    (n, d), r = twins[0].X.shape, twins[0].U.shape[1]
    outcome = Outcome(tried=count)

    def judge(how: str, k: int, word: str, rank: int, Q: np.ndarray, excluded: bool) -> None:
        outcome.said[f"{how} {word}"] += 1
        if excluded and rank == r:
            outcome.broken.append(f"{how}, problem {k}: the other solution is excluded")
        # A lower rank than that of the two solutions may have one solution only.
        if word == "CERTIFIED" or (word == "RECOVERED" and rank == r):
            distances = f"{away(Q, twins[k].U):.1e}, {away(Q, twins[k].V):.1e}"
            case = f"{how}, problem {k}, d, r, n = {d}, {r}, {n}"
            outcome.broken.append(f"{case}: {word}; distances from two solutions {distances}")

    for k, one in enumerate(twins):
        found = recover(one.X, one.y, r, certify=count > 1 and k == seed % 8)
        told = int(found.rank), found.Q.dense(), bool(found.excluded)
        judge("alone", k, found.status.name, *told)
    if count > 1:
        found = recover(np.array([t.X for t in twins]), np.array([t.y for t in twins]), r)
        for k, Q in enumerate(found.Q.dense()):
            told = int(found.rank[k]), Q, bool(found.excluded[k])
            judge("batch", k, found.status[k].name, *told)
        found = recover_by_moments(twins[0], r)
        told = int(found.rank), found.Q.dense(), bool(found.excluded)
        judge("by moments", 0, found.status.name, *told)
    return outcome


def recover_by_moments(twins: Twins, rank: int) -> Recovery:
    """Recover from so many copies of the rows that they are not kept in memory."""
    X, y = many_copies(twins.X, twins.y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # digits that heavy rows hide
        return recover(rows.in_memory(X), y, rank)


# One solution.


def attempt_generic(shape: tuple[int, int], seed: int) -> Outcome:
    """Every distribution of rows at every number of rows near the information limit."""
    d, r = shape
    outcome = Outcome(tried=0)
    for kind in GENERIC_ROWS:
        for size, n in near_limit(dimension(d, r)).items():
            X, U, y = generic(seed, kind, size, shape)
            found = recover(X, y, r)
            outcome.tried += 1
            outcome.said[f"{size} {found.status.name}"] += 1
            error = away(found.Q.dense(), U)
            if found.status.name in UNIQUE and error > 1e-5:
                outcome.broken.append(f"{kind}, d, r, n = {d}, {r}, {n}: error {error:.1e}")
    return outcome


def attempt_joined(design: Design, name: str, seed: int) -> Outcome:
    """A design with one row more than has two solutions."""
    twins = design(seeded(seed, name))()
    (n, d), r = twins.X.shape, twins.U.shape[1]
    found = recover(twins.X, twins.y, r)
    word, error = found.status.name, away(found.Q.dense(), twins.U)
    outcome = Outcome(said=Counter([word]))
    if word in UNIQUE and error > 1e-5:
        outcome.broken.append(f"d, r, n = {d}, {r}, {n}: {word} with the error {error:.1e}")
    return outcome


def attempt_estimate(extra: int, noise: float, seed: int) -> Outcome:
    """The true error of a recovered answer beside its estimate, with `extra` rows beyond p.

    Noise below the tolerance leaves a residual that is smaller than the noise, because p unknowns
    are fitted to it.
    """
    rng = seeded(seed, f"estimate {extra} {noise}")
    d, r = [(4, 1), (8, 1), (5, 2), (6, 3), (10, 2)][int(rng.integers(5))]
    X, U = normal(rng, dimension(d, r) + extra, d), normal(rng, d, r)
    y = responses(X, U)
    found = recover(X, y * (1 + noise * normal(rng, len(X))), r)
    outcome = Outcome()
    if found.status.name not in UNIQUE:
        outcome.said[found.status.name] += 1
        return outcome
    error, estimate = away(found.Q.dense(), U), float(found.error_estimate)
    factor = error / estimate if error > 1e-15 else 0.0
    limit = next((f for f in (1, 10, 100) if factor <= f), None)
    outcome.said[f"error <= {limit}x" if limit else "error > 100x"] += 1
    if factor > 100 and error > 1e-12:
        outcome.broken.append(f"d, r, n = {d}, {r}, {len(X)}: {error:.1e}, told {estimate:.1e}")
    return outcome


def attempt_level(seed: int) -> Outcome:
    """Noise around the tolerance: what is certified also counts as reproduced without `certify`.

    A proof may settle what the diagnosis left in doubt (NOT_IDENTIFIED).
    """
    rng = seeded(seed, "level")
    d, r = [(2, 1), (3, 1), (4, 1), (4, 2)][int(rng.integers(4))]
    n = int(rng.uniform(2, 5) * dimension(d, r)) + 1
    X, U = normal(rng, n, d), normal(rng, d, r)
    noise = 10.0 ** rng.uniform(-12, -8)
    y = responses(X, U) * (1 + noise * normal(rng, n))
    word, proved = (recover(X, y, r, certify=flag).status.name for flag in (False, True))
    outcome = Outcome(said=Counter([f"{word}, {proved}"]))
    if word != proved and not (proved == "CERTIFIED" and word in REPRODUCED):
        case = f"d, r, n = {d}, {r}, {n}, noise {noise:.1e}"
        outcome.broken.append(f"{case}: {word}, but {proved} with a certificate")
    return outcome


# Batches.


def zero_inputs(rng: Rng, n: int, d: int, r: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((n, d)), rng.choice([0.0, 1.0]) * normal(rng, n)


def zero_responses(rng: Rng, n: int, d: int, r: int) -> tuple[np.ndarray, np.ndarray]:
    return normal(rng, n, d), np.zeros(n)


def explained(
    rows: Callable[[Rng, int, int], np.ndarray], rng: Rng, n: int, d: int, r: int
) -> tuple[np.ndarray, np.ndarray]:
    X = rows(rng, n, d)
    return X, responses(X, normal(rng, d, r))


def lower_rank(rng: Rng, n: int, d: int, r: int) -> tuple[np.ndarray, np.ndarray]:
    return explained(normal, rng, n, d, max(1, r - 1))


def noisy(rng: Rng, n: int, d: int, r: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = explained(normal, rng, n, d, r)
    return X, y * (1 + 0.1 * normal(rng, n))


def repeated_rows(rng: Rng, n: int, d: int) -> np.ndarray:
    return normal(rng, max(d, n // 3), d)[rng.integers(0, max(d, n // 3), n)]


def narrow_rows(rng: Rng, n: int, d: int) -> np.ndarray:
    """Rows in a subspace."""
    k = int(rng.integers(1, d))
    return normal(rng, n, k) @ rotation(rng, d)[:k]


def uneven_rows(rng: Rng, n: int, d: int) -> np.ndarray:
    return normal(rng, n, d) * 10.0 ** rng.uniform(-3, 3, (n, 1))


def hidden_blocks(rng: Rng, n: int, d: int) -> np.ndarray:
    first = np.arange(d) < int(rng.integers(1, d))
    return normal(rng, n, d) * np.where(rng.random((n, 1)) < 0.5, first, ~first) @ rotation(rng, d)


Mixed = Callable[[Rng, int, int, int], tuple[np.ndarray, np.ndarray]]
ORDINARY: dict[str, Mixed] = {
    "noisy": noisy,
    "lower rank": lower_rank,
    "zero responses": zero_responses,
} | {
    f.__name__: partial(explained, f)
    for f in (normal, repeated_rows, narrow_rows, uneven_rows, hidden_blocks)
}
MIXED = ORDINARY | {"zero inputs": zero_inputs}


def attempt_batch(kinds: dict[str, Mixed], most: int, seed: int) -> Outcome:
    """Mixed problems of one shape in one call, and each alone; at most `most` of them."""
    rng = seeded(seed, f"batch {most} {len(kinds)}")
    d, r = [(3, 1), (3, 2), (4, 1), (4, 2), (5, 2)][int(rng.integers(5 if most < 500 else 1))]
    p = dimension(d, r)
    n = int(rng.integers(p + 1, 4 * p)) if most < 500 else 3 * p
    count = int(rng.integers(1, most + 1)) if most < 500 else most
    chosen = [str(kind) for kind in rng.choice(list(kinds), count)]
    problems = [kinds[kind](rng, n, d, r) for kind in chosen]
    X, y = (np.array(part) for part in zip(*problems, strict=True))
    outcome = Outcome(tried=count)
    case = f"d, r, n = {d}, {r}, {n}, {count} problems"
    try:
        together = recover(X, y, r)
    except Exception as error:  # whatever it is, it is the defect that is looked for
        outcome.said["raised"] += 1
        outcome.broken.append(f"{case}: {type(error).__name__}: {error}")
        return outcome
    for k, kind in enumerate(chosen):
        alone = recover(X[k], y[k], r)
        outcome.said[alone.status.name] += 1
        compare(outcome, f"{case}, problem {k}, {kind}", alone, together, k)
    return outcome


def compare(outcome: Outcome, case: str, alone: Recovery, together: Recovery, k: int) -> None:
    """The answer alone beside that of problem k of a batch."""
    word, other = alone.status.name, together.status[k].name
    if word != other:
        outcome.broken.append(f"{case}: {word} alone, {other} together")
    elif word == "RECOVERED":
        Q, R = alone.Q.dense(), together.Q.dense()[k]
        if not np.linalg.norm(Q - R) <= 1e-8 * np.linalg.norm(Q):
            outcome.broken.append(f"{case}: answers differ by {np.linalg.norm(Q - R):.1e}")
        # Residuals at rounding differ from run to run, and estimates are their multiples: those of
        # ill-conditioned problems are up to 1e5 times as large.
        told = (alone.error_estimate, together.error_estimate[k])
        low, high = sorted(max(1e5 * EPS, float(estimate)) for estimate in told)
        if not high <= 2 * low:
            outcome.broken.append(f"{case}: error estimates {low:.1e} and {high:.1e}")
    elif word == "BEST_FIT":
        low, high = sorted(float(f) for f in (alone.residual, together.residual[k]))
        if not high <= low * (1 + 1e-6):
            outcome.broken.append(f"{case}: best fits with residuals {low} and {high}")


# The convex case, rank = d.


def indefinite(rng: Rng, X: np.ndarray) -> np.ndarray:
    """Responses of a matrix with one negative eigenvalue, down to 1e-6 of the largest."""
    V = rotation(rng, X.shape[1])
    values = rng.uniform(0.1, 1, len(V))
    values[0] = -(10.0 ** rng.uniform(-6, 0))
    return np.square(X @ V) @ values


def negative_response(rng: Rng, X: np.ndarray) -> np.ndarray:
    y = responses(X, normal(rng, X.shape[1], X.shape[1]))
    y[0] *= -(10.0 ** rng.uniform(-4, 0))
    return y


def dominated_response(rng: Rng, X: np.ndarray) -> np.ndarray:
    """`x_0 = (x_1 + x_2) / 2`, but `y_0 > (y_1 + y_2) / 2`: a Farkas vector is (-2, 1, 1)."""
    X[0] = (X[1] + X[2]) / 2
    y = responses(X, normal(rng, X.shape[1], X.shape[1]))
    y[0] = (y[1] + y[2]) / 2 * (1 + 10.0 ** rng.uniform(-4, 0))
    return y


def ones(rng: Rng, X: np.ndarray) -> np.ndarray:
    """An ellipsoid through all points."""
    return np.ones(len(X))


def positive(rng: Rng, X: np.ndarray) -> np.ndarray:
    """A positive semidefinite matrix, often singular."""
    return responses(X, normal(rng, X.shape[1], int(rng.integers(1, X.shape[1] + 1))))


CONVEX = {
    f.__name__: f for f in (indefinite, negative_response, dominated_response, ones, positive)
}


def optimum(X: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """A lower and an upper bound of `min ||A(Q) - y|| / ||y||` over Q >= 0.

    If `sum lam_i x_i x_i'` is positive semidefinite, then `lam'(A(Q) - y) >= -lam'y`.
    """
    values, vectors = np.linalg.eigh(clarabel_fit(X, y))
    e = np.square(X @ vectors) @ np.maximum(values, 0) - y
    size = np.linalg.norm(y)
    # X'X is positive definite, so a multiple of the vector of ones repairs rounding.
    moment = X.T @ X
    least = np.linalg.eigvalsh((X.T * e) @ X)[0] / np.linalg.eigvalsh(moment)[0]
    lam = e + max(0.0, -least) * (1 + 1e-6)
    bound = -float(lam @ y) / (float(np.linalg.norm(lam)) or 1.0)
    return max(0.0, bound / size), float(np.linalg.norm(e) / size)


def attempt_convex(kind: str, shape: tuple[int, int] | None, seed: int) -> Outcome:
    """Rank d, with fewer and with more than d(d+1)/2 rows."""
    rng = seeded(seed, f"convex {kind}")
    d = int(rng.integers(2, 7))
    n = int(rng.uniform(0.5, 2) * d * (d + 1) / 2) + 3
    n, d = shape or (n, d)
    X = normal(rng, n, d)
    y = CONVEX[kind](rng, X)
    found = recover(X, y, d)
    low, high = optimum(X, y)
    word, rank = found.status.name, int(found.rank)
    misfit = np.einsum("ni,ij,nj->n", X, found.Q.dense(), X) - y
    residual = float(np.linalg.norm(misfit) / np.linalg.norm(y))
    outcome = Outcome()
    feasible = "infeasible" if low > 1e-8 else "feasible" if high < 1e-8 else "open"
    outcome.said[f"{feasible} {word}"] += 1
    case = f"n, d = {n}, {d}, rank {rank}, {word} with residual {residual:.2e}"
    if word in REPRODUCED and (feasible == "infeasible" or residual > 1e-9):
        outcome.broken.append(f"{case}: no matrix has less than {low:.2e}")
    if word in UNIQUE and rank == d and n < d * (d + 1) // 2:
        outcome.broken.append(f"{case}: fewer rows than unknowns")
    if word == "BEST_FIT" and residual > high * (1 + 1e-6) + 1e-9:
        outcome.broken.append(f"{case}: the optimum is at most {high:.2e}")
    return outcome


FAMILIES = (
    {
        f"twins, {name}": Family(partial(attempt_twins, design, name, 4), 1, 80)
        for name, design in DESIGNS.items()
    }
    | {
        f"twins, {name}": Family(partial(attempt_twins, design, name, 1), 0, seeds)
        for name, (design, seeds) in LARGE.items()
    }
    | {
        f"generic, d, r = {d}, {r}": Family(
            partial(attempt_generic, (d, r)), 0 if d == 20 else 1, 15 if d == 20 else 75
        )
        for d, r in GENERIC_SHAPES
    }
    | {
        f"estimate, p + {k}, {noise:.0e}": Family(partial(attempt_estimate, k, noise), 10, 400)
        for k in (1, 2)
        for noise in (0.0, 1e-12)
    }
    | {
        f"joined, {name}": Family(partial(attempt_joined, partial(design, more=1), name), 5, 200)
        for name, design in (
            ("hanging point", hanging_point),
            ("missing entries", missing_entries),
        )
    }
    | {"level": Family(attempt_level, 20, 400)}
    | {
        "batch": Family(partial(attempt_batch, MIXED, 24), 2, 60),
        "batch, ordinary": Family(partial(attempt_batch, ORDINARY, 24), 2, 60),
        "batch, up to 200": Family(partial(attempt_batch, MIXED, 200), 0, 4),
        "batch, 1000": Family(partial(attempt_batch, MIXED, 1000), 0, 1),
    }
    | {f"convex, {kind}": Family(partial(attempt_convex, kind, None), 3, 150) for kind in CONVEX}
    | {"convex, d = 20": Family(partial(attempt_convex, "ones", (160, 20)), 0, 1)}
)
