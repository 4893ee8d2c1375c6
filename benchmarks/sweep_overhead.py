"""How much of the processor time of a sweep is not spent in its cells; exits 1 above 10%.

    python benchmarks/sweep_overhead.py [--cells 12000] [--workers 1]

Each cell computes for one millisecond of processor time. The overhead is the processor time of the
driver and of its workers, beyond that of the cells, over that of the cells: grouping, pickling,
checks of results, the store. Two sweeps that differ only in their number of cells are compared, so
that the start of Python and of the processes does not count.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = """
import time
from posquad.sweep import Sweep, product

def cell(parameters, seed):
    begin = time.process_time()
    while (spent := time.process_time() - begin) < 0.001:
        pass
    return {"spent": spent, "x": parameters["k"] % 7}

SWEEP = Sweep("milliseconds", cell, product(k=range(COUNT)))
"""
DRIVER = """
import sys
from posquad.sweep import load_sweep, run_sweep
run_sweep(load_sweep(sys.argv[1]), sys.argv[2], workers=int(sys.argv[3]))
"""


def processor_seconds(folder: Path, cells: int, workers: int) -> tuple[float, float]:
    """Processor time of the driver with its workers, and that of the cells."""
    from posquad.sweep import read_table

    folder.mkdir()
    (folder / "module.py").write_text(MODULE.replace("COUNT", str(cells)))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-c", DRIVER, "module.py", "out", str(workers)]
    subprocess.run(words, cwd=folder, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, float(read_table(folder / "out")["spent"].sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=12000)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        few = processor_seconds(Path(folder, "few"), options.cells // 4, options.workers)
        many = processor_seconds(Path(folder, "many"), options.cells, options.workers)
    used, spent = (m - f for m, f in zip(many, few, strict=True))
    overhead = used / spent - 1
    print(
        f"{options.cells - options.cells // 4} cells of 1 ms: {spent:.2f} s of processor time in "
        f"cells, {used:.2f} s in all; overhead {overhead:.1%}"
    )
    sys.exit(overhead > 0.1)


if __name__ == "__main__":
    main()
