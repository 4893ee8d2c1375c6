"""Runs in this process: what is stored, what is refused, failures, retries, limits."""

from __future__ import annotations

import json
import sqlite3

import numpy as np
import pytest

from posquad import Interrupted
from posquad.core.errors import DomainError
from posquad.core.files import FileError
from posquad.sweep import (
    Sweep,
    load_sweep,
    product,
    read_table,
    run_sweep,
    sweep_status,
    transition,
)
from posquad.sweep.grid import cell_key, cell_seed, cell_text
from posquad.sweep.report import plot_sweep
from posquad.sweep.state import failed_cells
from posquad.sweep.store import STORE


def run(cell, folder, grid=None, **options):
    return run_sweep(Sweep("mine", cell, grid or product(x=range(6))), folder, workers=0, **options)


def test_a_row_holds_parameters_key_seed_result_seconds_versions_and_host(tmp_path):
    run(lambda p, seed: {"b": seed % 1000, "a": np.float64(p["x"]) / 3, "c": True}, tmp_path)
    with sqlite3.connect(tmp_path / STORE) as database:
        rows = database.execute(
            "SELECT key, parameters, seed, result, status, seconds, host, text FROM cells "
            "JOIN versions ON versions.id = cells.versions"
        ).fetchall()
    assert len(rows) == 6
    for key, parameters, seed, result, status, seconds, host, versions in rows:
        text = cell_text(json.loads(parameters))
        assert key == cell_key("mine", 1, text)
        assert seed == cell_seed(key)
        x = json.loads(parameters)["x"]
        assert json.loads(result) == {"a": x / 3, "b": seed % 1000, "c": 1}
        assert status == "done"
        assert seconds >= 0
        assert host
        assert {"posquad", "python", "numpy"} <= set(json.loads(versions))


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (lambda p, s: None, "got nothing"),
        (lambda p, s: 3.0, "got an object of type float"),
        (lambda p, s: {}, "got no numbers"),
        (lambda p, s: {"y": float("nan")}, "got nan as 'y'"),
        (lambda p, s: {"y": float("inf")}, "got inf as 'y'"),
        (lambda p, s: {"y": object()}, "got an object of type object as 'y'"),
        (lambda p, s: {"y": np.ones(2)}, "got an object of type ndarray as 'y'"),
        (lambda p, s: {"y": "word"}, "got an object of type str as 'y'"),
        (lambda p, s: {"y z": 1}, "not a word"),
        (lambda p, s: {"y": 2**63}, "an object of type int"),
    ],
)
def test_what_the_function_returns_is_checked_before_anything_is_stored(tmp_path, cell, words):
    with pytest.raises(DomainError, match="mine: expected a dict of finite numbers") as refusal:
        run(cell, tmp_path)
    assert words in str(refusal.value)
    assert sweep_status(tmp_path).done == sweep_status(tmp_path).failed == 0


def test_a_later_result_with_other_names_or_nan_is_a_failed_cell(tmp_path):
    def cell(parameters, seed):
        x = parameters["x"]
        return {"z": 1.0} if x == 3 else {"y": float("nan") if x == 4 else 1.0}

    swept = run(cell, tmp_path)
    assert (swept.done, swept.failed, swept.complete) == (4, 2, False)
    messages = {row.parameters["x"]: row.message for row in failed_cells(tmp_path)}
    assert messages == {
        3: "The cell returned the names z instead of y.",
        4: "The cell returned nan as 'y'.",
    }
    assert len(read_table(tmp_path)) == 4


def test_a_failed_cell_keeps_its_traceback_and_is_computed_again_only_on_retry(tmp_path):
    broken = [True]

    def cell(parameters, seed):
        if parameters["x"] == 2 and broken[0]:
            raise ArithmeticError("no answer for two")
        return {"y": parameters["x"]}

    assert run(cell, tmp_path).failed == 1
    (row,) = failed_cells(tmp_path)
    assert "ArithmeticError: no answer for two" in row.message
    assert "in cell" in row.message
    assert (row.status, row.result) == ("failed", None)
    broken[0] = False
    again = run(cell, tmp_path)
    assert (again.computed, again.failed) == (0, 1)
    retried = run(cell, tmp_path, retry=True)
    assert (retried.computed, retried.failed, retried.done) == (1, 0, 6)
    assert failed_cells(tmp_path) == []


def test_exit_in_a_cell_is_a_failure(tmp_path):
    assert run(lambda p, s: exit(3) if p["x"] else {"y": 1}, tmp_path).failed == 5


def test_ctrl_c_keeps_what_is_finished(tmp_path):
    def cell(parameters, seed):
        if parameters["x"] == 4:
            raise KeyboardInterrupt
        return {"y": 1}

    with pytest.raises(Interrupted) as stop:
        run(cell, tmp_path)
    assert 0 < stop.value.result.done < 6
    assert sweep_status(tmp_path).done == stop.value.result.done


def test_a_larger_grid_computes_only_what_is_new(tmp_path):
    def cell(parameters, seed):
        return {"y": parameters["x"]}

    run(cell, tmp_path, product(x=range(3)))
    assert run(cell, tmp_path, product(x=range(5))).computed == 2
    run(cell, tmp_path, product(x=range(2)))
    state = sweep_status(tmp_path)
    assert (state.done, state.asked, state.outside, state.waiting) == (5, 2, 3, 0)


def test_a_time_limit_leaves_cells_and_the_next_run_goes_on(tmp_path):
    import time

    def cell(parameters, seed):
        time.sleep(0.02)
        return {"y": 1}

    grid = product(x=range(30))
    first = run(cell, tmp_path, grid, time_limit=0.1)
    assert 0 < first.done < 30
    assert first.left == 30 - first.done
    assert run(cell, tmp_path, grid).computed == first.left
    with pytest.raises(DomainError, match="a positive number of seconds"):
        run(cell, tmp_path, time_limit=0.0)


def test_progress_reaches_the_total(tmp_path):
    seen = []
    run(lambda p, s: {"y": 1}, tmp_path, progress=seen.append)
    assert (seen[-1].done, seen[-1].total, seen[-1].adaptive) == (6, 6, False)


def test_an_adaptive_sweep_resumes_to_the_same_store(tmp_path):
    grid = transition("x", range(20), measure="ok", width=1.0, trials=4, limit=200)

    def cell(parameters, seed):
        return {"ok": seed / 2**63 < 1 / (1 + np.exp(parameters["x"] - 7.3))}

    sweep = Sweep("mine", cell, grid)
    whole = run_sweep(sweep, tmp_path / "whole", workers=0)
    calls = []

    def interrupted(parameters, seed):
        calls.append(parameters)
        if len(calls) % 30 == 0:
            raise KeyboardInterrupt
        return cell(parameters, seed)

    stops = 0
    while True:
        try:
            run_sweep(Sweep("mine", interrupted, grid), tmp_path / "parts", workers=0)
            break
        except Interrupted:
            stops += 1
    assert stops >= 1
    one, two = read_table(tmp_path / "whole"), read_table(tmp_path / "parts")
    assert len(one) == whole.done
    for name in ("x", "trial", "ok", "key", "seed"):
        assert np.array_equal(one[name], two[name])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "cloud"}, "'local' or 'dask'"),
        ({"workers": -1}, "0 or more"),
        ({"workers": 1.5}, "workers: expected an integer, 0 or more; got 1.5"),
        ({"workers": True}, "workers: expected an integer"),
        ({"time_limit": "60"}, "time_limit: expected a positive number of seconds"),
        ({"scheduler": "tcp://127.0.0.1:1"}, "engine 'dask'"),
    ],
)
def test_bad_engines_are_refused(tmp_path, options, words):
    sweep = Sweep("mine", lambda p, s: {"y": 1}, product(x=[1]))
    with pytest.raises(DomainError, match=words):
        run_sweep(sweep, tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"measure": "ok"}, "mine: expected the result 'ok', which the sweep declares .*; got y"),
        ({"cell": lambda p, s: {"seed": 1}}, "the name 'seed', which every table of results has"),
        ({"findings": lambda table: [1 / 0]}, "mine: findings: expected .* got ZeroDivisionError"),
        ({"panels": lambda table: 3}, "mine: panels: expected .* got TypeError"),
    ],
)
def test_declarations_that_do_not_suit_the_results_are_one_sentence(tmp_path, options, words):
    sweep = Sweep(
        **{"key": "mine", "cell": lambda p, s: {"y": 1}, "grid": product(x=[1])} | options
    )
    with pytest.raises(DomainError, match=words):
        plot_sweep(run_sweep(sweep, tmp_path, workers=0).folder, sweep)


def test_what_is_no_sweep_and_no_callback_is_refused(tmp_path):
    with pytest.raises(DomainError, match=r"sweep: expected a posquad\.sweep\.Sweep"):
        run_sweep("mine.py", tmp_path)
    with pytest.raises(DomainError, match="progress: expected a callable"):
        run(lambda p, s: {"y": 1}, tmp_path, progress=3)
    with pytest.raises(FileError, match="expected a Parquet file of results; got no such file"):
        read_table(tmp_path / "none.parquet")


def test_a_file_without_a_sweep_is_refused(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("SWEEP = 3\n")
    with pytest.raises(DomainError, match=r"a constant SWEEP of type .*; got int"):
        load_sweep(file)
    file.write_text("1 / 0\n")
    with pytest.raises(DomainError, match=r"ZeroDivisionError: division by zero \(line 1\)"):
        load_sweep(file)
