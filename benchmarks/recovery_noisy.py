"""Noisy responses: the cost of `recover` in gradient evaluations, in one thread.

    python benchmarks/recovery_noisy.py

A gradient evaluation is one product XU and one with X'; its time is the median of 15, and that
of `recover` the median of three. Responses have 10% relative noise. Processor time is counted, so
that both numbers come from one run.
"""

from __future__ import annotations

import statistics
import time

import torch

from posquad import RankOne, Status, recover
from timing import machine, use_one_thread

CASES = [
    (2000, 20, 3, None),
    (20_000, 50, 3, None),
    (5000, 100, 5, None),
    (100_000, 30, 3, None),
    (20_000, 100, 5, 5),
]


def measure(n: int, d: int, r: int, rank: int | None) -> str:
    """A row of the table."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, d, generator=generator, dtype=torch.float64)
    U = torch.randn(d, r, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    y = (X @ U).square().sum(1) * (1 + 0.1 * noise)
    operator = RankOne(X)
    times: list[float] = []
    for _ in range(15):
        begin = time.process_time()
        operator.weighted_adjoint(y, operator.project(U))
        times.append(time.process_time() - begin)
    calls: list[float] = []
    for _ in range(3):
        begin = time.process_time()
        found = recover(X, y, rank)
        calls.append(time.process_time() - begin)
    assert isinstance(found.status, Status)  # of one problem
    spent = statistics.median(calls)
    given = "given" if rank else f"unknown, found {int(found.rank)}"
    evaluations = spent / statistics.median(times)
    return f"| {n}, {d}, {r} | {given} | {found.status.name} | {evaluations:.0f} | {spent:.2f} |"


def main() -> None:
    use_one_thread()
    print(machine())
    print("| n, d, r | rank | status | evaluations | seconds |")
    print("|---|---|---|---|---|")
    for case in CASES:
        print(measure(*case), flush=True)


if __name__ == "__main__":
    main()
