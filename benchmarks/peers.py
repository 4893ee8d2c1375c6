"""posquad, pymanopt, geomstats, torch optimizers and CVXPY on one problem, every cell by a run.

    make peers        (its own environment: geomstats 2.8.0 needs NumPy below 2.4)
    python benchmarks/peers.py [--only NAME ...] [--docs FILE] [--readme FILE]

The problem: find the positive semidefinite Q of rank r from `y_i = x_i'Qx_i`. Where a package has
no function for something, the text says which names were looked for and what to write by hand.
Only claims that a run confirms are written; a contradicted claim ends the run.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import time
from pathlib import Path

import peers_abilities
import peers_recovery
import peers_settings
import peers_tools
from peers_table import Row, notes, replaced, table
from timing import machine, use_one_thread

PROBES = [
    *peers_recovery.ROWS,
    *peers_settings.ROWS,
    *peers_tools.ROWS,
    *peers_abilities.ROWS,
]
INTRODUCTION = """\
# Compared with other packages

This page compares what five packages can do for one problem: find the positive semidefinite Q of
rank r from `y_i = x_i'Qx_i`, i = 1..n. The other packages are general tools; posquad solves only
this problem. A matrix of rank r has `p = dr - r(r-1)/2` unknowns. Each cell is the outcome of a
small run, which is described below the table. Where a package has no function for something, the
description names what was looked for and what can be written by hand. The speed of the methods is
compared on [another page](recovery-race.md).
"""


def page(rows: list[Row]) -> str:
    names = ("posquad", "torch", "pymanopt", "geomstats", "cvxpy", "clarabel", "numpy", "scipy")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    made = (
        "This page is made by `make peers` (`benchmarks/peers.py`); times are for orientation. "
        f"{versions}; "
    )
    parts = [INTRODUCTION, table(rows), f"{made}{machine()}.", "## What was run", notes(rows)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", help="names of probes; nothing is written")
    parser.add_argument("--docs", type=Path, default=None, help="where to write the page")
    parser.add_argument("--readme", type=Path, default=None, help="where to renew the table")
    options = parser.parse_args()
    use_one_thread()
    rows = []
    for probe in PROBES:
        if options.only and probe.__name__ not in options.only:
            continue
        begin = time.perf_counter()
        rows.append(probe())
        print(f"{notes(rows[-1:])}\n  {table(rows[-1:]).splitlines()[-1]}")
        print(f"  [{probe.__name__}: {time.perf_counter() - begin:.1f} s]\n", flush=True)
    if options.docs is not None and not options.only:
        options.docs.write_text(page(rows), encoding="utf-8")
    if options.readme is not None and not options.only:
        text = options.readme.read_text(encoding="utf-8")
        options.readme.write_text(replaced(text, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
