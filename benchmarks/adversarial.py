"""All adversarial trials in full; exits 1 if a promise is broken.

    python benchmarks/adversarial.py [suite ...] [--share 1.0]

The families are those of `tests/adversarial/`: attempts to obtain a false certificate, linear
programs whose answer is known exactly, spectra with a kernel of known dimension, and so on. A seed
that breaks a promise is printed and can be run alone:

    python benchmarks/adversarial.py curvature --family kernel --seeds 17 18
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from adversarial import totals
from adversarial.registry import SUITES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", default=list(SUITES), metavar="suite")
    parser.add_argument(
        "--share", type=float, default=1.0, help="share of the full number of seeds"
    )
    parser.add_argument("--family", help="this family only")
    parser.add_argument(
        "--seeds", type=int, nargs=2, help="from this seed up to that one, excluded"
    )
    options = parser.parse_args()
    unknown = set(options.suites) - set(SUITES)
    if unknown:
        parser.error(f"unknown suite {sorted(unknown)}; there are {list(SUITES)}")
    begin, tried, broken = time.perf_counter(), 0, []
    print("suite         family                           seeds     cases  broken  what was said")
    for suite in options.suites:
        for name, family in SUITES[suite].items():
            if options.family not in (None, name):
                continue
            seeds = range(max(1, round(options.share * family.in_full)))
            seeds = range(*options.seeds) if options.seeds else seeds
            total = totals(family, seeds)
            said = ", ".join(f"{word} {count}" for word, count in sorted(total.said.items()))
            span = f"{seeds.start}-{seeds.stop - 1}"
            counts = f"{total.tried:9d} {len(total.broken):7d}"
            print(f"{suite:13s} {name:28s} {span:>9s} {counts}  {said}", flush=True)
            tried += total.tried
            broken += [f"{suite} {name}, {promise}" for promise in total.broken]
    print(f"{tried} cases, {len(broken)} broken, {time.perf_counter() - begin:.0f} s")
    for promise in broken[:50]:
        print(promise)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
