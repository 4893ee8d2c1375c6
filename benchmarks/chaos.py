"""Kill the driver and the workers of a sweep at random; exits 1 if a result is lost or changed.

    python benchmarks/chaos.py [--kills 200] [--seed 0]

After each kill of the driver the sweep is resumed. At the end of each round the store must equal,
bit for bit, that of an undisturbed run, and no stored cell may have been computed again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from sweep_chaos import run_chaos


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tally = run_chaos(Path(folder), options.kills, seed=options.seed)
    print(
        f"{tally.drivers} drivers and {tally.workers} workers killed in {tally.rounds} rounds: "
        f"every store equals an undisturbed one, no stored cell was computed again; "
        f"{tally.again} of {tally.computed} computations were lost in flight "
        f"({time.perf_counter() - begin:.0f} s)"
    )


if __name__ == "__main__":
    main()
