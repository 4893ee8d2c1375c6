"""The explorer as it is committed: what its sources build, what posquad answers, and one file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import webbrowser
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from posquad.cli.main import main
from posquad.report.explorer import explorer_path

ROOT = Path(__file__).parents[2] / "explorer"
FIXED = ("build.mjs", "package-lock.json", "page.html", "style.css", "tsconfig.json")


@pytest.fixture(scope="module")
def page() -> str:
    return explorer_path().read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def exports():
    """The modules that write posquad's answers."""
    sys.path.insert(0, str(ROOT))
    yield import_module
    sys.path.remove(str(ROOT))


def hash_of_sources() -> str:
    inside = [path.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("*.*")]
    digest = hashlib.sha256()
    for name in sorted([*FIXED, *inside]):
        digest.update(f"{name}\n".encode() + (ROOT / name).read_bytes() + b"\n")
    return digest.hexdigest()


def test_the_page_was_built_from_these_sources(page):
    recorded = re.search(r'name="posquad-sources" content="sha256:(\w+)"', page)
    assert recorded.group(1) == hash_of_sources(), "run `make explorer` and commit the page"


def test_the_sources_build_this_page(page, tmp_path):
    node = shutil.which("node")
    if node is None or not (ROOT / "node_modules" / "esbuild").is_dir():
        pytest.skip("`make explorer-check` installs esbuild and builds the page")
    built = tmp_path / "explorer.html"
    subprocess.run([node, ROOT / "build.mjs", built], check=True, capture_output=True, timeout=120)
    assert built.read_bytes() == page.encode()


def test_the_page_is_one_small_file_that_runs_only_its_own_script(page):
    assert len(page.encode()) < 400_000
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for name in ("script", "style"):
        (text,) = re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{name}-src"] == f"'sha256-{digest}'"
    markup = re.sub(r"<(script|style)>.*?</\1>", "", page, flags=re.DOTALL)
    assert re.search(r"\son\w+\s*=|\sstyle\s*=|javascript:", markup) is None
    assert re.findall(r'(?:src|href)="([^"]*)"', markup) == ["data:,", "#main"]


def test_the_licence_of_everything_bundled_is_in_the_page(page):
    lock = json.loads((ROOT / "package-lock.json").read_text(encoding="utf-8"))
    bundled = {
        name.removeprefix("node_modules/"): entry
        for name, entry in lock["packages"].items()
        if name and not entry.get("dev")
    }
    assert {"d3-axis", "d3-scale", "d3-selection", "d3-shape"} <= set(bundled)
    named = dict(re.findall(r"^(d3-[\w-]+|internmap) ([\d.]+)$", page, re.MULTILINE))
    assert set(named) <= set(bundled)
    assert {"d3-axis", "d3-scale", "d3-selection", "d3-shape"} <= set(named)
    assert all(bundled[name]["version"] == version for name, version in named.items())
    assert page.count("Copyright 20") + page.count("Copyright (c) 20") >= len(named)


def test_the_lock_file_names_no_registry():
    text = (ROOT / "package-lock.json").read_text(encoding="utf-8")
    assert '"resolved"' not in text
    assert '"integrity"' in text


def test_posquad_still_gives_the_answers_with_which_the_page_is_compared(exports):
    committed = json.loads((ROOT / "vectors.json").read_text(encoding="utf-8"))
    found = exports("export_vectors").cases()
    assert len(found) == len(committed) >= 200
    for new, old in zip(found, committed, strict=True):
        assert new["kind"] == old["kind"]
        expected, answer = np.array(old["answer"]), np.array(new["answer"])
        np.testing.assert_allclose(answer, expected, rtol=1e-10, atol=1e-10, err_msg=str(old))


def test_three_samples_of_a_vector_have_four_solutions(exports):
    """Each choice of signs of the three numbers x'u, up to a common sign, gives one."""
    vectors = exports("export_vectors")
    for number in (1, 7):
        X, y = vectors.recovery_samples(number, 3)
        signs = np.array([[1, 1, 1], [1, 1, -1], [1, -1, 1], [1, -1, -1]])
        u = np.linalg.solve(X, (signs * np.sqrt(y)).T).T
        (case,) = [
            one
            for one in json.loads((ROOT / "vectors.json").read_text(encoding="utf-8"))
            if one["kind"] == "minima" and one["input"] == {"set": number, "n": 3}
        ]
        expected = np.sort((u**2).sum(1))
        traces = np.sort(np.array(case["answer"])[:, [1, 5, 9]].sum(1))
        np.testing.assert_allclose(traces, expected, rtol=1e-9)


@pytest.mark.parametrize("number", [1, 8])
def test_the_table_of_the_fourth_scene_is_what_posquad_says(exports, number):
    problems = exports("export_problems")
    committed = json.loads(problems.TARGET.read_text(encoding="utf-8"))["recovery"][number - 1]
    assert problems.recovery_problem(problems.SEEDS[number - 1]) == committed


def test_the_command_opens_the_page(monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    result = CliRunner().invoke(main, ["explore"])
    assert (result.exit_code, opened) == (0, [explorer_path().as_uri()])
    assert result.output == f"Explorer: {explorer_path()}\n"
    result = CliRunner().invoke(main, ["explore", "--no-browser"])
    assert (result.exit_code, len(opened)) == (0, 1)


def test_without_a_browser_the_command_says_which_file_to_open(monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    result = CliRunner().invoke(main, ["explore"])
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "No browser could be started. Open this file in one:",
        f"Explorer: {explorer_path()}",
    ]
