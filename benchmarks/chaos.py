"""Kill sweeps and fits of files at random; exits 1 if a result is lost or changed.

    python benchmarks/chaos.py [--kills 200] [--fits 50] [--damages 40] [--seed 0]

Fits go on from their checkpoints: after each kill the checkpoint must be whole and no earlier than
the one before, and the answer must have the bits of an undisturbed fit. Some of them find a bit of
their checkpoint or cache changed, or other rows in their table: the answer must be that of the rows
in the file, or a sentence names the damaged cache.

The driver and the workers of a sweep are killed too. After each kill of the driver the sweep is
resumed. At the end of each round the store must equal, bit for bit, that of an undisturbed run, and
no stored cell may have been computed again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import checkpoint_chaos
from checkpoint_chaos import ROUTES
from sweep_chaos import run_chaos


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--fits", type=int, default=50, help="kills of fits")
    parser.add_argument("--damages", type=int, default=40, help="fits whose files are changed")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.fits or options.damages:
        kill_fits(options.fits, options.damages, options.seed)
    if options.kills:
        kill_sweeps(options)


def kill_fits(kills: int, damages: int, seed: int) -> None:
    """Kill fits by every route about equally often, and others whose files are then changed."""
    shares = [kills // len(ROUTES) + (k < kills % len(ROUTES)) for k in range(len(ROUTES))]
    words = [f"{route}={share}" for route, share in zip(ROUTES, shares, strict=True) if share]
    words += [f"damaged={damages}"] if damages else []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(checkpoint_chaos.__file__)
        subprocess.run([sys.executable, program, folder, str(seed), *words], check=True)


def kill_sweeps(options: argparse.Namespace) -> None:
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
