"""How often and how fast recovered answers are certified, beside what is required.

    python benchmarks/certificates.py [--large]

Planted problems: Gaussian inputs, eigenvalues of Q* evenly from 1 to 0.5, responses rounded. The
factor certified is the one that `recover` returns; an instance that is not recovered counts as not
certified. Seconds are those of `certify` alone, and of `verify` beside it; one thread if the
environment says so. Exits 1 if a required share or time is missed, or a proof is not proved again.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

from posquad import LeastSquares, RankOne, certify, recover
from posquad.certificates import verify
from posquad.geometry import dimension
from timing import machine

# d, r, n, instances, share required, seconds allowed
REQUIRED = [
    (10, 2, 38, 64, 0.95, None),
    (10, 2, 57, 64, 0.95, None),
    (10, 2, 76, 64, 0.95, None),
    (10, 2, 152, 64, 0.95, None),
    (40, 3, 351, 16, 1.0, 2.0),
    (40, 3, 234, 16, 0.9, 10.0),
    (100, 5, 1470, 8, 1.0, 10.0),
]
BEYOND = [(100, 5, 980, 4, None, None), (100, 5, 882, 4, None, None)]
LARGE = [(300, 5, 3 * dimension(300, 5), 1, None, None)]


def planted(seed: int, n: int, d: int, r: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng([seed, n, d, r])
    X = rng.standard_normal((n, d))
    W = np.linalg.qr(rng.standard_normal((d, r)))[0]
    turn = np.linalg.qr(rng.standard_normal((r, r)))[0]
    U = W * np.sqrt(np.linspace(1.0, 0.5, r)) @ turn
    return X, U, np.square(X @ U).sum(1)


def row(
    d: int, r: int, n: int, count: int, share: float | None, limit: float | None
) -> tuple[str, list[str]]:
    """One line of the table, and what it misses of what is required."""
    proved, seconds, checks, constants, missed = 0, [0.0], [0.0], [], []
    for seed in range(count):
        X, _, y = planted(seed, n, d, r)
        found = recover(X, y, r)
        if int(found.rank) != r:
            continue
        objective = LeastSquares(RankOne(X), y)
        begin = time.perf_counter()
        certificate = certify(objective, found.U)
        seconds.append(time.perf_counter() - begin)
        proved += certificate.proved
        if certificate.global_uniqueness.value is not None:
            constants.append(certificate.global_uniqueness.value)
        begin = time.perf_counter()
        if not verify(objective, certificate).valid:
            missed.append(f"the verifier rejects seed {seed} at {(d, r, n)}")
        checks.append(time.perf_counter() - begin)
    if share is not None and proved < share * count:
        missed.append(f"{proved} of {count} certified at {(d, r, n)}, {share:.0%} required")
    if limit is not None and max(seconds) >= limit:
        missed.append(f"{max(seconds):.2f} s at {(d, r, n)}, less than {limit:g} s required")
    asked = "" if share is None else f">= {share:.0%}"
    asked += "" if limit is None else f" in < {limit:g} s"
    constant = statistics.median(constants) if constants else float("nan")
    line = (
        f"{d:3d} {r:2d} {n:5d} {n / dimension(d, r):4.1f}  {proved:3d} of {count:2d}"
        f"  {statistics.median(seconds[1:] or seconds):15.3f} {max(seconds):7.3f} "
        f"{statistics.median(checks[1:] or checks):7.3f} {constant:9.1f}   {asked}"
    )
    return line, missed


def main() -> None:
    print(machine())
    print("  d  r     n  n/p  certified  seconds: median, worst  verify  constant   required")
    missed = []
    for case in REQUIRED + BEYOND + LARGE * ("--large" in sys.argv):
        line, lacking = row(*case)
        print(line, flush=True)
        missed += lacking
    for sentence in missed:
        print(f"MISSED: {sentence}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
