"""How many generic problems near the information limit are called RECOVERED.

    python benchmarks/recovery_shares.py [--problems 64] [--shapes 4,1 10,2]

A status that is never returned is never wrong, so caution has to be measured too. Each cell counts
the problems called RECOVERED or CERTIFIED; those with a relative error above 1e-5 are counted as
wrong. The problems are those of the families "generic" of the adversarial suite.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from adversarial.recovery_problems import GENERIC_ROWS, GENERIC_SHAPES, generic, near_limit
from posquad import Status, recover
from timing import machine, use_one_thread


def cell(shape: tuple[int, int], rows: str, size: str, problems: int) -> tuple[int, int]:
    """Problems called recovered, and those of them that are wrong."""
    said = wrong = 0
    for seed in range(problems):
        X, U, y = generic(seed, rows, size, shape)
        found = recover(X, y, shape[1])
        if found.status in (Status.RECOVERED, Status.CERTIFIED):
            P = U @ U.T
            said += 1
            wrong += bool(np.linalg.norm(found.Q.dense() - P) > 1e-5 * np.linalg.norm(P))
    return said, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=64, help="number of problems per cell")
    parser.add_argument("--shapes", nargs="+", help="d,r of the shapes; by default all")
    options = parser.parse_args()
    use_one_thread()
    shapes = GENERIC_SHAPES
    if options.shapes:
        shapes = [(int(d), int(r)) for d, r in (text.split(",") for text in options.shapes)]
    print(machine())
    sizes = list(near_limit(p=2))
    print(f"| d, r | rows | {' | '.join(sizes)} | of | wrong | ms per problem |")
    print("|---" * (len(sizes) + 5) + "|")
    for shape in shapes:
        total = np.zeros(len(sizes), dtype=int)
        for rows in GENERIC_ROWS:
            begin = time.process_time()
            cells = [cell(shape, rows, size, options.problems) for size in sizes]
            spent = 1e3 * (time.process_time() - begin) / (len(cells) * options.problems)
            said, wrong = np.array(cells).T
            total += said
            counts = " | ".join(map(str, said))
            tail = f"{options.problems} | {wrong.sum()} | {spent:.0f}"
            print(f"| {shape[0]}, {shape[1]} | {rows} | {counts} | {tail} |", flush=True)
        counts = " | ".join(map(str, total))
        of = options.problems * len(GENERIC_ROWS)
        print(f"| {shape[0]}, {shape[1]} | all | {counts} | {of} | | |", flush=True)


if __name__ == "__main__":
    main()
