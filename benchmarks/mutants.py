"""Random mutants of the library: how many wrong programs do the tests notice?

    python benchmarks/mutants.py --count 100 --seed 1 [--module recovery/] [--budget 60]

A mutant is the source with one small error: an operator swapped, a comparison moved, a constant
changed, a statement deleted. The tests that execute the changed line run on a copy of the
repository, and a mutant that fails none of them has survived: it is either equivalent (no caller
can tell the difference; say so, with a reason, in `equivalent_mutants.toml`) or a missing test.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Queue

import pytest

from mutants_map import PYTEST, ROOT, SOURCES, fresh_map
from mutations import Mutant, mutants

# Processes are forked from one that has imported what takes seconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch", "scipy.optimize", "scipy.stats", "mpmath", "clarabel"])
EQUIVALENT = Path(__file__).parent / "equivalent_mutants.toml"
SUBPACKAGES = re.compile(
    r"(geometry|problems|dynamics|curvature|theory|selection|recovery|certificates)/.*\.py"
)


def chosen(mutant: Mutant, tests: dict[str, dict], budget: float) -> tuple[list[str], float]:
    """The tests to run and their seconds: one case of every test function first, fastest first."""
    numbers: dict[str, set[int]] = {}
    for file, line in mutant.lines:
        numbers.setdefault(file, set()).add(line)
    touching = [
        (case["seconds"], test)
        for test, case in tests.items()
        if any(numbers[file].intersection(case["lines"].get(file, ())) for file in numbers)
    ]
    turn: Counter[str] = Counter()
    order = []
    for seconds, test in sorted(touching):
        function = test.split("[")[0]
        order.append((turn[function], seconds, test))
        turn[function] += 1
    picked, total = [], 0.0
    for _, seconds, test in sorted(order):
        if total + seconds <= budget:
            picked.append(test)
            total += seconds
    return picked, total


def verdict(mutant: Mutant, tests: dict[str, dict], workspace: Path, budget: float) -> str:
    """What the tests say of it: `killed by ...`, `timed out` or `SURVIVED ...`."""
    picked, seconds = chosen(mutant, tests, budget)
    if not picked:
        return "SURVIVED: no test executes it"
    path = workspace / SOURCES / mutant.file
    original = path.read_bytes()
    path.write_bytes(mutant.source)
    said = outcome(workspace, picked, 30 + 3 * seconds)
    path.write_bytes(original)
    return said or f"SURVIVED {len(picked)} tests"


def outcome(workspace: Path, tests: list[str], limit: float) -> str:
    """`killed by ...` or `timed out`; nothing if all pass. The limit is in seconds of computing.

    A busy machine must not end a run, so the clock ends only a process that hangs.
    """
    told, tell = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=run_tests, args=(workspace, tests, int(limit), tell))
    process.start()
    process.join(10 * limit)
    late = process.is_alive() or process.exitcode == -signal.SIGXCPU
    process.kill()
    process.join()
    if late:
        return "timed out"
    if process.exitcode == 0:
        return ""
    return f"killed by {told.recv() if told.poll() else 'the end of the process'}"


class Killer:
    """A pytest plugin: the first test that fails, or the file that cannot be imported."""

    def __init__(self) -> None:
        self.name = "an error outside of the tests"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.name = report.nodeid if report.failed else self.name

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.name = f"importing {report.nodeid}" if report.failed else self.name


def run_tests(workspace: Path, tests: list[str], limit: int, tell: Connection) -> None:
    """In a process of its own, where posquad has not been imported yet."""
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))
    os.chdir(workspace)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(workspace / "src"))
    killer = Killer()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        status = pytest.main(["-x", *PYTEST, *tests], plugins=[killer])
    tell.send(killer.name)
    sys.exit(int(status))


def copy(workspace: Path) -> Path:
    """A copy of what the tests need of the repository."""
    unused = shutil.ignore_patterns("__pycache__")
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, workspace / folder, ignore=unused)
    for file in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / file, workspace / file)
    return workspace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="which random mutants")
    parser.add_argument("--module", default="", help="only files that match this pattern")
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests per mutant")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--equivalent", type=Path, default=EQUIVALENT, help="TOML: name = reason")
    options = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    equivalent = tomllib.loads(options.equivalent.read_text())
    score: Counter[str] = Counter()
    killers: set[str] = set()
    paths = sorted((ROOT / SOURCES).rglob("*.py"))
    texts = {p.relative_to(ROOT / SOURCES).as_posix(): p.read_text() for p in paths}
    files = [file for file in texts if SUBPACKAGES.fullmatch(file)]
    possible = [mutant for file in files for mutant in mutants(file, texts)]
    stale = equivalent.keys() - {name for mutant in possible for name in mutant.names}
    if stale:
        keys = "; ".join(sorted(stale))
        sys.exit(f"{options.equivalent.name} has keys that name no line or change: {keys}")
    drawn = [mutant for mutant in possible if re.search(options.module, mutant.file)]
    drawn = random.Random(options.seed).sample(drawn, min(options.count, len(drawn)))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        idle: Queue[Path] = Queue()
        for job in range(options.jobs):
            idle.put(copy(Path(folder).resolve() / f"{job}"))
        tests = fresh_map(idle.queue[0], [f"{SOURCES}/{file}" for file in files])

        def judge(mutant: Mutant) -> tuple[Mutant, str, float]:
            workspace, begin = idle.get(), time.perf_counter()
            said = verdict(mutant, tests, workspace, options.budget)
            idle.put(workspace)
            return mutant, said, time.perf_counter() - begin

        for mutant, said, seconds in pool.map(judge, drawn):
            reasons = [equivalent[name] for name in mutant.names if name in equivalent]
            if said.startswith("SURVIVED") and reasons:
                said = f"equivalent: {reasons[0]}"
            score[said.split()[0].rstrip(":")] += 1
            print(f"{mutant.change}  {said}  {seconds:.1f} s", flush=True)
            if "::" in said and said.startswith("killed by "):
                killers.add(said.removeprefix("killed by "))
        wrong = outcome(idle.get(), sorted(killers), 1200) if killers else ""
        if wrong:
            print(f"{wrong} without any change: this test says nothing, and nor does the score")
    noticed = score["killed"] + score["timed"]
    counted = noticed + score["SURVIVED"]
    print(
        f"{sum(score.values())} mutants: {score['killed']} killed, {score['timed']} timed out, "
        f"{score['SURVIVED']} survived, {score['equivalent']} equivalent; "
        f"{noticed / max(counted, 1):.1%} of those that are not equivalent were noticed"
    )


if __name__ == "__main__":
    main()
