"""`posquad sweep`: run, status, export, plot, Ctrl-C and what is refused."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest

import posquad
from cli_support import assert_refused, check_transcript, command
from posquad.sweep import Sweep, product, run_sweep
from posquad.sweep.engines import SerialEngine
from posquad.sweep.state import sweep_status

FILE = """
import random, time
import posquad
from posquad.sweep import Sweep, product

def cell(parameters, seed):
    time.sleep(parameters["wait"])
    if parameters["d"] == FAIL:
        raise ValueError("not this one")
    return {"found": random.Random(seed).random() < parameters["n"] / 10}

SWEEP = Sweep("mine", cell, product(wait=[WAIT], d=[2, 3], n=range(11), trial=range(6)),
              quick=product(wait=[WAIT], d=[2], n=[1, 9], trial=range(2)), measure="found",
              axis="n", by="d", title="A sweep of mine", question="How often?")
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(FILE.replace("FAIL", "0").replace("WAIT", "0.0"))
    return path


def test_run_status_export_and_plot(file, tmp_path):
    ran = command("sweep", "run", file, "--workers", 0)
    assert ran.exit_code == 0, ran.output
    assert "132 cells done, 0 failed, 0 left; 132 computed in" in ran.stdout
    folder = tmp_path / "sweep-mine"
    assert f"Report: {folder.name}/report.html" in ran.stdout
    page = (folder / "report.html").read_text()
    for words in ("A sweep of mine", "How often?", "132 cells are finished", "To repeat it",
                  "posquad", "Heat map", "d = 3", "95% interval"):  # fmt: skip
        assert words in page
    assert 'alt="Heat map. wait = 0, d = 2: 0.5 at ' in page
    assert (folder / "figures" / "heat-map.png").stat().st_size > 5000
    status = command("sweep", "status", folder)
    assert status.stdout == (
        "mine, version 1: 132 of 132 cells done, 0 failed, 0 left.\nNot running.\n"
    )
    assert command("sweep", "export", folder, "--to", "a.parquet").stdout == (
        "a.parquet: 132 cells.\n"
    )
    assert command("sweep", "export", folder, "--to", "a.csv").exit_code == 0
    table = pyarrow.parquet.read_table("a.parquet").to_pylist()
    with open("a.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(table) == len(rows) == 132
    for row, written in zip(table, rows, strict=True):
        assert {name: str(value) for name, value in row.items()} == written
    assert command("sweep", "plot", folder).exit_code == 0


def test_the_page_shows_what_the_commands_print(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The processes have tests of their own.
    monkeypatch.setattr("posquad.sweep.driver.engine_for", lambda sweep, *_: SerialEngine(sweep))
    page = Path(__file__).parents[2] / "docs" / "sweeps.md"
    assert check_transcript(page.read_text(encoding="utf-8")) == 4


def test_failures_are_shown_and_left_out_of_the_export(file):
    file.write_text(FILE.replace("FAIL", "3").replace("WAIT", "0.0"))
    ran = command("sweep", "run", file, "--workers", 0, "--out", "out", "--no-report")
    assert ran.exit_code == 1
    assert "66 cells done, 66 failed, 0 left" in ran.stdout
    assert "posquad sweep status out --failures" in ran.stdout
    status = command("sweep", "status", "out", "--failures").stdout
    assert status.count("ValueError: not this one") == 66
    assert "'d': 3" in status
    assert command("sweep", "export", "out", "--to", "a.csv").stdout == (
        "a.csv: 66 cells; 66 failed cells are left out.\n"
    )


def test_quick_runs_the_small_grid_and_a_time_limit_says_how_to_go_on(file):
    ran = command("sweep", "run", file, "--workers", 0, "--quick", "--no-report")
    assert "4 cells done" in ran.stdout
    ran = command("sweep", "run", file, "--workers", 0, "--time-limit", "1e-9", "--no-report")
    assert ran.exit_code == 1
    assert "Time limit reached; go on with: posquad" in ran.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "nothing"], "a Python file, or one of certifiability, ellipsoid, recovery"),
        (["run", "mine.py", "--scheduler", "tcp://a:1"], "engine 'dask' with it"),
        (["status", "nowhere"], "the folder of a sweep"),
        (["export", "nowhere", "--to", "a.parquet"], "the folder of a sweep"),
        (["export", "nowhere", "--to", "a.xlsx"], ".parquet or .csv"),
        (["plot", "nowhere"], "the folder of a sweep"),
    ],
)
def test_bad_calls_are_one_sentence(file, words, expected):
    assert_refused(command("sweep", *words), expected)


def test_a_sweep_that_was_not_run_from_a_file_cannot_be_plotted(file):
    run_sweep(Sweep("own", lambda p, s: {"y": 1}, product(x=[1])), "own", workers=0)
    assert_refused(command("sweep", "plot", "own"), "not run from a file")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX systems")
def test_ctrl_c_of_a_terminal_keeps_the_cells_and_says_how_to_go_on(file, tmp_path):
    """Ctrl-C reaches the driver and its workers; `status` sees the run from outside."""
    file.write_text(FILE.replace("FAIL", "0").replace("WAIT", "0.05"))
    words = [sys.executable, "-m", "posquad", "sweep", "run", str(file), "--out", "out"]
    process = subprocess.Popen(
        [*words, "--workers", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=tmp_path, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(Path(posquad.__file__).parents[1])},
    )  # fmt: skip
    out = tmp_path / "out"
    while process.poll() is None:
        if (out / "sweep.sqlite").exists() and sweep_status(out).done > 4:
            break
        time.sleep(0.1)
    seen = command("sweep", "status", out)
    live = seen.stdout
    assert "Running: process" in live, seen.output
    assert "left." in live
    os.killpg(process.pid, signal.SIGINT)
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 130, (printed, errors)
    assert printed.count("\n") == 1
    assert printed.startswith("Interrupted with ")
    assert f"go on with: posquad sweep run {file} --out out --workers 2" in printed
    assert "Traceback" not in errors
    assert 4 < sweep_status(out).done < 132
    assert sweep_status(out).driver is None
