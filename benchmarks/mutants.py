"""Random mutants of the library: how many wrong programs do the tests notice?

    python benchmarks/mutants.py --count 100 --seed 1 [--module recovery/] [--budget 60]

A mutant is the source with one small error: an operator swapped, a comparison moved, a constant
changed, a statement deleted. The tests that execute the changed line run on a copy of the
repository, and a mutant that fails none of them has survived: it is either equivalent (no caller
can tell the difference; say so, with a reason, in `equivalent_mutants.toml`) or a missing test.
A key of that file that names no line or change any more is listed, and the run goes on.
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Queue

import pytest

from mutants_map import PYTEST, ROOT, SOURCES, environment, fresh_map, require_own_posquad
from mutations import Mutant, mutants

# Processes are forked from one that has imported what takes seconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["__main__", "torch", "scipy.optimize", "scipy.stats", "mpmath", "clarabel"]
)
EQUIVALENT = Path(__file__).parent / "equivalent_mutants.toml"
SUBPACKAGES = re.compile(
    r"(geometry|problems|dynamics|curvature|theory|selection|recovery|certificates"
    r"|distributed|dipy|estimator|io|sweep)/.*\.py"
)
IN_PROCESSES = ("distributed", "sweep")  # subpackages that work in processes of their own
FOREIGN = 97  # exit status of a process that would have tested another posquad


def chosen(mutant: Mutant, tests: dict[str, dict], budget: float) -> tuple[list[str], float]:
    """The tests to run and their seconds: one case of every test function first, fastest first.

    Which lines other processes execute is not measured. So all tests of a subpackage follow if it
    works in processes of its own, or if no test executes the line.
    """
    numbers: dict[str, set[int]] = {}
    for file, line in mutant.lines:
        numbers.setdefault(file, set()).add(line)
    touching = {
        test
        for test, case in tests.items()
        if any(numbers[file].intersection(case["lines"].get(file, ())) for file in numbers)
    }
    candidates = set(touching)
    if not touching or subpackage(mutant) in IN_PROCESSES:
        candidates |= {test for test in tests if test.startswith(f"tests/{subpackage(mutant)}/")}
    turn: Counter[str] = Counter()
    order = []
    for seconds, test in sorted((tests[test]["seconds"], test) for test in candidates):
        function = test.split("[")[0]
        order.append((test not in touching, turn[function], seconds, test))
        turn[function] += 1
    picked, total = [], 0.0
    for *_, seconds, test in sorted(order):
        if total + seconds <= budget:
            picked.append(test)
            total += seconds
    return picked, total


def subpackage(mutant: Mutant) -> str:
    return mutant.file.split("/")[0]


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
    with suppress(ProcessLookupError):  # also ends what the tests have started
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    if late:
        return "timed out"
    if process.exitcode == FOREIGN:
        sys.exit(told.recv())
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
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))
    os.chdir(workspace)
    os.environ.update(environment(workspace))
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(workspace / "src"))
    try:
        require_own_posquad(workspace)
    except SystemExit as foreign:
        tell.send(foreign.code)
        sys.exit(FOREIGN)
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


def judged(
    drawn: list[Mutant],
    equivalent: dict[str, str],
    tests: dict[str, dict],
    workspaces: list[Path],
    budget: float,
) -> Iterator[tuple[Mutant, str]]:
    """Each mutant with what the tests say of it, printed as it becomes known.

    Before, a few tests run without any change, and must pass. The tests that noticed a mutant run
    once more in the end: one that fails then says nothing.
    """
    idle: Queue[Path] = Queue()
    for workspace in workspaces:
        idle.put(workspace)
    quickest = sorted(tests, key=lambda test: tests[test]["seconds"])[:3]
    wrong = outcome(workspaces[0], quickest, 300)
    if wrong:  # a process that ends for another reason would count as a mutant that was noticed
        sys.exit(f"{wrong} without any change")
    killers: set[str] = set()

    def judge(mutant: Mutant) -> tuple[Mutant, str, float]:
        workspace, begin = idle.get(), time.perf_counter()
        said = verdict(mutant, tests, workspace, budget)
        idle.put(workspace)
        return mutant, said, time.perf_counter() - begin

    with ThreadPoolExecutor(len(workspaces)) as pool:
        for mutant, said, seconds in pool.map(judge, drawn):
            reasons = [equivalent[name] for name in mutant.names if name in equivalent]
            if said.startswith("SURVIVED") and reasons:
                said = f"equivalent: {reasons[0]}"
            print(f"{mutant.change}  {said}  {seconds:.1f} s", flush=True)
            if "::" in said and said.startswith("killed by "):
                killers.add(said.removeprefix("killed by "))
            yield mutant, said
    wrong = outcome(workspaces[0], sorted(killers), 1200) if killers else ""
    if wrong:
        print(f"{wrong} without any change: this test says nothing, and nor does the score")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="which random mutants")
    parser.add_argument("--module", default="", help="only files that match this pattern")
    parser.add_argument("--tests", default="", help="only test files that match this pattern")
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests per mutant")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--equivalent", type=Path, default=EQUIVALENT, help="TOML: name = reason")
    options = parser.parse_args()
    equivalent = tomllib.loads(options.equivalent.read_text())
    paths = sorted((ROOT / SOURCES).rglob("*.py"))
    texts = {p.relative_to(ROOT / SOURCES).as_posix(): p.read_text() for p in paths}
    files = [file for file in texts if SUBPACKAGES.fullmatch(file)]
    possible = [mutant for file in files for mutant in mutants(file, texts)]
    stale = equivalent.keys() - {name for mutant in possible for name in mutant.names}
    drawn = [mutant for mutant in possible if re.search(options.module, mutant.file)]
    drawn = random.Random(options.seed).sample(drawn, min(options.count, len(drawn)))
    del possible  # each holds a whole source
    scores: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        workspaces = [copy(Path(folder).resolve() / f"{job}") for job in range(options.jobs)]
        doctests = [f"{SOURCES}/{file}" for file in files]
        tests = fresh_map(workspaces[0], doctests, options.tests)
        for mutant, said in judged(drawn, equivalent, tests, workspaces, options.budget):
            score = scores.setdefault(subpackage(mutant), Counter())
            score[said.split()[0].rstrip(":")] += 1
    for name, score in sorted(scores.items()):
        print(f"{name}: {summary(score)}")
    print(summary(sum(scores.values(), Counter())))
    if stale:
        print(f"{options.equivalent.name}: {len(stale)} keys name no line or change; remove them:")
        print("\n".join(f"  {key}" for key in sorted(stale)))


def summary(score: Counter[str]) -> str:
    """One sentence about the mutants of a score."""
    noticed = score["killed"] + score["timed"]
    counted = noticed + score["SURVIVED"]
    return (
        f"{sum(score.values())} mutants: {score['killed']} killed, {score['timed']} timed out, "
        f"{score['SURVIVED']} survived, {score['equivalent']} equivalent; "
        f"{noticed / max(counted, 1):.1%} of those that are not equivalent were noticed"
    )


if __name__ == "__main__":
    main()
