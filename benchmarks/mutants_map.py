"""Which test executes which line, for `mutants.py`: measured once, kept in `.mutants/map.json`.

    python benchmarks/mutants_map.py OUTPUT TEST_FILE ...

runs these test files in the current directory and writes the seconds and the lines of each test.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).resolve().parent.parent
MAP = ROOT / ".mutants" / "map.json"
SOURCES = "src/posquad"
# Slow tests of experiments and pages, and tests of the source text.
LEFT_OUT = re.compile(r"tests/(experiments|report|test_(?!adversarial))|browser")
PYTEST = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header", "--tb=no"]


class Recorder:
    """A pytest plugin: seconds of computing of each test, and a coverage context of its own.

    A fixture that several tests share runs once, in a context that counts for all of them.
    """

    def __init__(self, measured: coverage.Coverage) -> None:
        self.coverage, self.test, self.begin = measured, "", 0.0
        self.seconds: dict[str, float] = {}
        self.contexts: dict[str, list[str]] = {}
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.test, self.begin = item.nodeid, time.process_time()
        shared = [_shared(item.nodeid, name) for name in getattr(item, "fixturenames", ())]
        self.contexts[item.nodeid] = [item.nodeid, *shared]
        self.coverage.switch_context(item.nodeid)

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self.seconds[item.nodeid] = time.process_time() - self.begin

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef) -> object:
        if fixturedef.scope != "function":
            self.coverage.switch_context(_shared(self.test, fixturedef.argname))
        made = yield
        self.coverage.switch_context(self.test)
        return made


def _shared(test: str, fixture: str) -> str:
    return f"{_file(test)} fixture {fixture}"


def _file(test: str) -> str:
    return test.split("::")[0]


def record(output: str, files: list[str]) -> None:
    """Run these test files in this process; write the seconds and the lines of each test."""
    require_own_posquad(Path.cwd())
    measured = coverage.Coverage(data_file=None, config_file=False, source=[SOURCES])
    recorder = Recorder(measured)
    measured.start()
    pytest.main([*PYTEST, *files], plugins=[recorder])
    measured.stop()
    data = measured.get_data()
    lines: dict[str, dict[str, list[int]]] = {}
    for path in data.measured_files():
        file = Path(path).relative_to(Path(SOURCES).resolve()).as_posix()
        for line, contexts in data.contexts_by_lineno(path).items():
            for context in contexts:
                lines.setdefault(context, {}).setdefault(file, []).append(line)
    told: dict[str, dict] = {file: {} for file in files}
    for test in recorder.seconds.keys() - recorder.failed:
        seen: dict[str, list[int]] = {}
        for context in recorder.contexts[test]:
            for file, numbers in lines.get(context, {}).items():
                seen[file] = sorted({*seen.get(file, []), *numbers})
        told[_file(test)][test] = {"seconds": round(recorder.seconds[test], 4), "lines": seen}
    Path(output).write_text(json.dumps(told))


def fresh_map(workspace: Path, doctests: list[str], pattern: str = "") -> dict[str, dict]:
    """test -> its seconds and lines, measured again where tests or what they execute has changed.

    The tests of the files that match the pattern, doctests included, run in `workspace`, a copy of
    the repository. The map is written after every folder, so that an interrupted measurement goes
    on where it ended.
    """
    files = sorted([*(ROOT / SOURCES).rglob("*.py"), *(ROOT / "tests").rglob("*.py")])
    digests = {p.relative_to(ROOT).as_posix(): _digest(p.read_bytes()) for p in files}
    tests = [file for file in digests if re.match(r"tests/(\w+/)*test_\w+\.py", file)]
    helpers = {f for f in digests if f.startswith("tests/")} - {*tests}
    helped = _digest("".join(digests[file] for file in sorted(helpers)).encode())
    used = [file for file in tests if not LEFT_OUT.search(file)] + doctests
    used = [file for file in used if re.search(pattern, file)]
    known = json.loads(MAP.read_text()) if MAP.exists() else {}
    keys = {file: helped + digests[file] for file in used}
    stale = [
        file
        for file in used
        if file not in known
        or known[file]["key"] != keys[file]
        or any(digests.get(f"{SOURCES}/{f}") != d for f, d in known[file]["sources"].items())
    ]
    folders: dict[str, list[str]] = {}
    for file in stale:
        folders.setdefault(str(Path(file).parent), []).append(file)
    for folder, group in folders.items():
        print(f"measuring which lines {folder} executes: {len(group)} files ...", flush=True)
        output = workspace / "map.json"
        command = [sys.executable, str(Path(__file__).resolve()), str(output), *group]
        settings = os.environ | environment(workspace)
        ended = subprocess.run(command, cwd=workspace, env=settings, capture_output=True, text=True)
        if ended.returncode:
            sys.exit(f"{folder} could not be measured:\n{ended.stderr}")
        for file, cases in json.loads(output.read_text()).items():
            executed = {source for case in cases.values() for source in case["lines"]}
            sources = {source: digests[f"{SOURCES}/{source}"] for source in executed}
            known[file] = {"key": keys[file], "sources": sources, "tests": cases}
        MAP.parent.mkdir(exist_ok=True)
        MAP.write_text(json.dumps(known))
    return {test: case for file in used for test, case in known[file]["tests"].items()}


def environment(workspace: Path) -> dict[str, str]:
    """Variables with which every process of the tests imports the posquad of this copy."""
    return {"PYTHONPATH": str(workspace / "src"), "OPENBLAS_NUM_THREADS": "1"}


def require_own_posquad(workspace: Path) -> None:
    """End this process, with a sentence, if it would import posquad from elsewhere."""
    found = importlib.util.find_spec("posquad")
    origin = found.origin if found else None
    if origin is None or not Path(origin).resolve().is_relative_to(workspace.resolve()):
        sys.exit(f"posquad would be imported from {origin}, not from the copy in {workspace}")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


if __name__ == "__main__":
    record(sys.argv[1], sys.argv[2:])
