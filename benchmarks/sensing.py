"""Recovery from Gaussian symmetric matrices: how often, how fast, and twins that it must not miss.

    python benchmarks/sensing.py                    the table of docs/measured.md
    python benchmarks/sensing.py --twins 1000       problems with two solutions

A_i has independent entries N(0, 1), symmetrised. A twin is a problem whose responses two matrices
of rank r reproduce: the difference of two random ones is taken out of every A_i.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import numpy as np

from posquad import Dense, recover
from posquad.geometry import dimension

ROWS = ((10, 2, "p+1"), (10, 2, 1.25), (10, 2, 2.0), (20, 2, 1.1), (20, 2, 1.5))


def symmetric(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Return Gaussian symmetric matrices `[n, d, d]`."""
    A = rng.standard_normal((n, d, d))
    return (A + A.swapaxes(1, 2)) / 2


def samples(d: int, r: int, share: str | float) -> int:
    """Return the number of measurements of a row."""
    p = dimension(d, r)
    return p + 1 if share == "p+1" else round(float(share) * p)


def twin(rng: np.random.Generator, n: int, d: int, r: int) -> tuple[np.ndarray, ...]:
    """Return `A[n, d, d]`, responses `[n]` and the two solutions."""
    first, second = (U @ U.T for U in rng.standard_normal((2, d, r)))
    unseen = (first - second) / np.linalg.norm(first - second)
    A = symmetric(rng, n, d)
    A -= np.einsum("iab,ab->i", A, unseen)[:, None, None] * unseen
    return A, np.einsum("iab,ab->i", A, first), first, second


def table(count: int) -> None:
    """Print a row for each shape."""
    print("| (d, r) | n | RECOVERED | wrong | median s | slowest s |\n|---|---|---|---|---|---|")
    for d, r, share in ROWS:
        n, words, wrong, times = samples(d, r, share), Counter(), 0, []
        for seed in range(count):
            rng = np.random.default_rng([d, r, n, seed])
            U = rng.standard_normal((d, r))
            A = symmetric(rng, n, d)
            began = time.perf_counter()
            found = recover(Dense(A), np.einsum("iab,ab->i", A, U @ U.T), r)
            times.append(time.perf_counter() - began)
            words[found.status.name] += 1
            far = np.linalg.norm(found.Q.dense() - U @ U.T) > 1e-6 * np.linalg.norm(U @ U.T)
            wrong += far and found.status.name == "RECOVERED"
        shares = f"{words['RECOVERED']} of {count}"
        label = f"{n} ({share}{'p' if share != 'p+1' else ''})"
        middle = np.median(times)
        print(f"| ({d}, {r}) | {label} | {shares} | {wrong} | {middle:.2f} | {max(times):.2f} |")


def twins(count: int) -> None:
    """Print the words said of problems with two solutions."""
    words, false = Counter(), []
    for seed in range(count):
        rng = np.random.default_rng([30, seed])
        d, r = [(4, 1), (5, 2), (6, 1), (6, 2), (8, 2), (10, 2)][seed % 6]
        p = dimension(d, r)
        most = min(3 * p, d * (d + 1) // 2 - 1)
        n = int(rng.integers(p + 1, most + 1)) if most > p else p + 1
        A, y, *_ = twin(rng, n, d, r)
        found = recover(Dense(A), y, r)
        words[found.status.name] += 1
        if found.status.name in ("RECOVERED", "CERTIFIED"):
            false.append((seed, d, r, n))
    print(dict(words), "RECOVERED or CERTIFIED:", false)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=48, help="problems of a row of the table")
    parser.add_argument("--twins", type=int, default=0, help="problems with two solutions")
    given = parser.parse_args()
    twins(given.twins) if given.twins else table(given.count)


if __name__ == "__main__":
    main()
