"""Rows of several processes (gloo, a file store): the answers of one process, and faults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from group_program import SIZE, answers, samples, starts
from sklearn.metrics import r2_score

from posquad import recover
from posquad.core.errors import DomainError
from posquad.estimator import PositiveQuadraticRegressor
from posquad.problems import rows

UNUSABLE = "rank 1: expected its rows to be usable; got "
IN_X = "X: expected finite numbers; got NaN in row 2100, column 0, on rank 1"
IN_Y = "y: expected finite numbers; got an infinity for row 2100 of rank 1"
PROGRAM = str(Path(__file__).with_name("group_program.py"))


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """The folder of the results of three processes, their outputs, and their exit statuses."""
    folder = tmp_path_factory.mktemp("group")
    processes = [
        subprocess.Popen(
            [sys.executable, PROGRAM, str(folder / "s"), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(SIZE)
    ]
    said = [process.communicate(timeout=300)[0] for process in processes]
    return folder, said, [process.returncode for process in processes]


@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_give_the_answers_of_one(group, size):
    folder, said, _ = group
    X, y, w = samples()
    alone = answers(rows.in_memory(X), X, y, w)
    model = PositiveQuadraticRegressor(2).fit(rows.in_memory(X), y, w)
    alone["score"] = r2_score(y, model.predict(X), sample_weight=w)  # of all rows
    few = slice(0, 100 * size)
    alone["few"] = recover(X[few], y[few], 2).Q.dense()
    alone |= starts(X, y)
    few = slice(0, 10 * size)
    alone["few start"] = starts(X[few], y[few], ["interpolant"])["start interpolant"]
    for name, expected in alone.items():
        files = [folder / f"s.{size}.{name}.{rank}.npy" for rank in range(size)]
        assert all(file.exists() for file in files), said
        parts = [np.load(file) for file in files]
        for part in parts[1:]:
            np.testing.assert_array_equal(part, parts[0])  # the same bits on all ranks
        atol = 1e-12 * np.abs(expected).max()
        np.testing.assert_allclose(parts[0], expected, rtol=1e-12, atol=atol, err_msg=name)


@pytest.mark.parametrize(
    ("name", "by_others", "by_rank_1"),
    [
        ("nan", "rank 1: expected its rows to be usable; got X", "NaN in row 2100 of "),
        ("array", f"{UNUSABLE}{IN_X}", IN_X),
        ("y", f"{UNUSABLE}{IN_Y}", IN_Y),
        ("none", f"{UNUSABLE}X_local: expected float64 or float32; got dtype object", "NoneType"),
        ("list", f"{UNUSABLE}X: expected shape (n, d) with n, d >= 1; got shape (0,)", "shape (0,"),
        ("integers", "no error", "no error"),
        ("ranks", "got rank 0: rank=2, seed=0; rank 1: rank=3, seed=1; rank 2", "rank=3"),
        ("linear", "rank 0: linear=False; rank 1: linear=True; rank 2: linear=False", "rank 0"),
        ("widths", "one d and one dtype on all ranks; got rank 0: 8 columns of float64", "rank 1"),
        ("dtypes", "rank 0: 8 columns of float64; rank 1: 8 columns of float32", "rank 1"),
        ("slow", "decided", "decided"),
        ("leaves", "rank 1: expected it to go on; got an error or an interruption", "MemoryError"),
        ("responses", "rank 1: expected its rows to be usable", "one response per row"),
        ("start", "rank 1: expected its rows to be usable; got y: ", "one response per row"),
        ("kinds", "the same on all ranks; got rank 0: kind 'moment', rank 2; rank 1", "rank 3"),
        ("weights", "the same on all ranks; got rank 0: no weights; rank 1: weights", "weights"),
    ],
)
def test_a_fault_of_one_process_is_said_by_all(group, name, by_others, by_rank_1):
    lines = [{line.split(":")[0]: line for line in said.splitlines()} for said in group[1]]
    for rank, words in enumerate((by_others, by_rank_1, by_others)):
        assert words in lines[rank][name]


def test_ctrl_c_on_one_process_keeps_the_best_answer(group):
    folder, said, _ = group
    assert "interrupted: INTERRUPTED" in said[0]
    for words in said[1:]:
        assert "interrupted: rank 0: expected it to go on; got an error or an interruption" in words
    X, y, _ = samples()
    with np.load(folder / "s.interrupted.npz") as kept:
        error = ((X @ kept["Q"]) * X).sum(1) - y
        residual = np.linalg.norm(error) / np.linalg.norm(y)
        np.testing.assert_allclose(kept["residual"], residual, rtol=1e-10)
    assert residual < 0.1  # the noise: one step was complete


@pytest.mark.parametrize("name", ["hangs", "killed"])
def test_a_process_that_hangs_or_is_killed_ends_the_others(group, name):
    _, said, statuses = group
    assert statuses == [1, -9, -9]
    assert f"{name}: group: expected all processes of the group to go on; got one" in said[0]


def test_without_a_group():
    with pytest.raises(DomainError, match="expected a process group"):
        rows.sharded(np.ones((2, 2)))
