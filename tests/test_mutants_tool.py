"""The tool that counts how many small errors the tests notice, on a library of a few lines."""

from __future__ import annotations

import ast
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
TOOL = runpy.run_path(str(FOLDER / "mutations.py"))
MAP = runpy.run_path(str(FOLDER / "mutants_map.py"))

LIBRARY = '''
"""A library."""


def area(width, height):
    return width * height


def in_a_worker(x):
    return x


def untested(x):
    return -x
'''
TESTS = """
import subprocess
import sys

import pytest

from posquad.sweep.small import area


def test_area():
    assert area(2, 3) == 6


def test_worker():
    code = "from posquad.sweep.small import in_a_worker; assert in_a_worker(2) == 2"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.xfail(strict=True)
def test_that_fails_anyway():
    assert area(2, 2) == 5
"""
EQUIVALENT = """
'sweep/small.py: return -x: -x -> x' = 'nobody calls it'
'sweep/small.py: return +x' = 'a line that is gone'
'sweep/gone.py: x = 1: 1 -> 2' = 'a file that is gone'
"""


def mutants_of(text):
    return list(TOOL["mutants"]("a/b.py", {"a/b.py": text}))


def ended(root, conftest, *options):
    """The tool in a repository of the library above, while another posquad comes first."""
    for name in ("mutants.py", "mutants_map.py", "mutations.py"):
        (root / "benchmarks").mkdir(exist_ok=True)
        shutil.copy(FOLDER / name, root / "benchmarks" / name)
    files = {
        "benchmarks/equivalent_mutants.toml": EQUIVALENT,
        "src/posquad/__init__.py": "",
        "src/posquad/sweep/__init__.py": "",
        "src/posquad/sweep/small.py": LIBRARY,
        "tests/sweep/test_small.py": TESTS,
        "conftest.py": conftest,
        "pyproject.toml": "[tool.pytest.ini_options]\nfilterwarnings = ['error']\n",
        "other/posquad/__init__.py": "raise ImportError('another checkout')",
    }
    heavy = ("torch", "clarabel", "mpmath", "scipy/__init__", "scipy/optimize", "scipy/stats")
    files |= {f"other/{name}.py": "" for name in heavy}  # which the tool imports beforehand
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    command = [sys.executable, "benchmarks/mutants.py", "--tests", "^tests/", *options]
    environment = os.environ | {"PYTHONPATH": str(root / "other")}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the tool prints about every mutant of the library."""
    run = ended(tmp_path_factory.mktemp("repository"), "")
    assert run.returncode == 0, run.stderr
    return run.stdout


def verdict(told, change):
    (line,) = [line for line in told.splitlines() if change in line]
    return line.split(change)[1].split()[0].rstrip(":")


def test_errors_that_the_tests_execute_are_noticed(told):
    assert verdict(told, "width * height -> width / height") == "killed"
    assert verdict(told, "return width * height -> return None") == "killed"
    assert "without any change" not in told


def test_errors_in_other_processes_are_noticed(told):
    assert verdict(told, "return x -> return None") == "killed"


def test_survivors_and_equivalent_mutants_are_told_apart(told):
    assert verdict(told, "sign: -x -> x") == "equivalent"
    assert verdict(told, "return -x -> return None") == "SURVIVED"
    *_, summary = [line for line in told.splitlines() if " mutants: " in line]
    assert "3 killed, 0 timed out, 1 survived, 1 equivalent; 75.0% of those" in summary
    assert f"sweep: {summary}" in told.splitlines()


def test_keys_that_name_nothing_are_listed_and_stop_nothing(told):
    *_, head, first, second = told.splitlines()
    assert head.startswith("equivalent_mutants.toml: 2 keys name no line or change")
    assert first.strip() == "sweep/gone.py: x = 1: 1 -> 2"
    assert second.strip() == "sweep/small.py: return +x"


def test_tests_that_cannot_run_are_no_score(tmp_path):
    """A conftest that fails where mutants are judged, though not where lines are measured."""
    fault = "import multiprocessing\nassert multiprocessing.parent_process() is None\n"
    run = ended(tmp_path, fault, "--count", "1")
    assert run.returncode == 1
    assert "without any change" in run.stderr
    assert "noticed" not in run.stdout


def test_another_checkout_is_not_tested_silently(tmp_path):
    MAP["require_own_posquad"](FOLDER.parent)
    with pytest.raises(
        SystemExit, match=r"posquad would be imported from .*, not from the copy in"
    ):
        MAP["require_own_posquad"](tmp_path)


def test_a_mutant_is_named_by_its_line_without_comment():
    (first, *_) = mutants_of("def f(x):\n    return x + 1  # why\n")
    assert first.names == (
        "a/b.py: return x + 1: return x + 1 -> return None",
        "a/b.py: return x + 1",
    )
    assert first.line == 2
    assert ("a/b.py", 2) in first.lines


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("x < 1", ["x <= 1", "x > 1", "x < 2"]),
        ("x and y", ["x or y"]),
        ("not x", ["x"]),
        ("-x", ["x"]),
        ("x == 'a'", ["x != 'a'", "x == 'a?'"]),
        ("0.5", ["1.0", "0.25"]),
        ("max(x, y)", ["min(x, y)"]),
        ("f'{x + 1}'", []),
    ],
)
def test_the_small_errors_of_an_expression(code, changed):
    deleted, *others = mutants_of(f"def f(x, y):\n    z = {code}\n")
    assert deleted.after == "pass"
    statements = [ast.parse(other.source).body[0].body[0] for other in others]
    assert [ast.unparse(statement.value) for statement in statements] == changed


def test_a_constant_is_seen_by_the_lines_that_name_it():
    """In other files too, unless it is private."""
    texts = {"a.py": "LIMIT = 2\n_OWN = 3\n", "b.py": "from a import LIMIT\nx = LIMIT\n_OWN = 4\n"}
    limit, own = (mutant.lines for mutant in TOOL["mutants"]("a.py", texts))
    assert limit == {("a.py", 1), ("b.py", 1), ("b.py", 2)}
    assert own == {("a.py", 2)}
