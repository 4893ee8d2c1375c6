"""Bad files, options and places: one sentence, status 2, and files that are whole or absent."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest

from cli_support import assert_refused, command
from experiments_support import contents
from posquad.cli import fit
from posquad.cli.demo_data import make
from posquad.core import files
from posquad.estimator import regressor
from posquad.io.tables import read_samples, write_columns

# Bad input: one sentence, status 2, nothing written.

HEADER = "a,b,y\n"
TEXTS = {
    "empty": "",
    "header only": HEADER,
    "missing column": "a,b\n1,2\n",
    "text in numbers": f"{HEADER}1,2,3\n1,two,3\n",
    "NaN": f"{HEADER}1,nan,3\n",
    "ragged": f"{HEADER}1,2\n",
    "binary": "\0\1\2",
}


@pytest.mark.parametrize("kind", TEXTS)
def test_bad_files(fits, tmp_path, kind):
    data, out = tmp_path / "data.csv", tmp_path / "deep" / "out"
    data.write_text(TEXTS[kind])
    for result in (
        command("fit", data, "--out", out),
        command("predict", fits["noisy"][1], data, "--out", tmp_path / "new.csv"),
        command("certify", data, fits["noisy"][1]),
    ):
        assert_refused(result, str(data))
    assert set(contents(tmp_path)) == {"data.csv"}
    assert not out.parent.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--response", "z"], ["a column 'z' for --response"]),
        (["--features", "x1,,x2"], ["--features", "names such as"]),
        (["--features", "x1,y"], ["'y' as both input and response"]),
        (["--drop", "y"], ["'y', which --drop leaves out"]),
        (["--drop", "z"], ["a column 'z' for --drop"]),
        (["--drop", "x1,"], ["--drop", "names such as"]),
        (["--drop", "x1", "--features", "x1,x2"], ["--drop", "'x1'"]),
        (["--rank", 9], ["at most 8"]),
        (["--tolerance", -1], ["--tolerance"]),
        (["--time-limit", 0], ["--time-limit"]),
    ],
)
def test_bad_options(fits, tmp_path, options, words):
    data = fits["few"][1].parent / "few.csv"
    assert_refused(command("fit", data, *options, "--out", tmp_path / "out"), *words)
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written(fits, tmp_path, monkeypatch):
    data = fits["few"][1].parent / "few.csv"
    monkeypatch.setattr(fit, "_fitted", lambda *_: pytest.fail("it was computed"))
    (tmp_path / "file").write_text("")
    assert_refused(command("fit", data, "--out", tmp_path / "file"), "a file of that name")
    assert_refused(command("fit", data, "--out", tmp_path / "file" / "out"), "file")
    (tmp_path / "out" / "model.json").mkdir(parents=True)
    assert_refused(command("fit", data, "--out", tmp_path / "out"), "a folder of that name")


def test_files_on_the_way_are_not_named(fits, tmp_path, monkeypatch):
    """A file is written under another name first, and a folder probed: neither is the user's."""
    data, folder = fits["few"][1].parent / "few.csv", fits["few"][1]

    def full(path, temporary=None):
        raise OSError(28, "No space left on device", f".{path.name}.7.partial")

    monkeypatch.setattr(files, "_open_whole", full)
    out = tmp_path / "out"
    refused = command("fit", data, "--out", out)
    assert_refused(refused, f"{out}: expected a folder to write to; got No space left on device")
    predictions = tmp_path / "new.csv"
    refused = command("predict", folder, data, "--out", predictions)
    assert_refused(refused, f"{predictions}: expected a place", "got No space left on device")
    assert "partial" not in refused.stderr
    refused = command("predict", data, data)
    assert_refused(refused, f"{data}: expected a fitted model: the model.json of a fit, or its f")
    assert_refused(command("predict", tmp_path, data), "got a folder without model.json")


def test_what_was_read_is_not_replaced(fits, tmp_path):
    data = tmp_path / "model.certificate.npz"
    write_columns(data, make("recovery"))
    before = data.read_bytes()
    assert_refused(command("fit", data, "--out", tmp_path), "would be replaced")
    assert data.read_bytes() == before
    copy = tmp_path / "copy.csv"
    write_columns(copy, make("recovery"))
    result = command("predict", fits["recovery"][1], copy, "--out", copy)
    assert_refused(result, "which would be replaced")
    assert read_samples(copy).X.shape == (60, 8)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
@pytest.mark.parametrize("change", ["missing", "empty", "cut", "flipped"])
def test_damaged_models(fits, tmp_path, name, change):
    for path, data in contents(fits["noisy"][1]).items():
        (tmp_path / path).write_bytes(data)
    target = tmp_path / name
    data = bytearray(target.read_bytes())
    if change == "missing":
        target.unlink()
    elif change == "flipped":
        data[len(data) // 2] ^= 1
        target.write_bytes(data)
    else:
        target.write_bytes(data[: 0 if change == "empty" else len(data) // 2])
    source = fits["noisy"][1].parent / "noisy.csv"
    for result in (command("predict", tmp_path, source), command("certify", source, tmp_path)):
        assert_refused(result, "a fitted model")
    assert_refused(command("predict", source, source), "a fitted model", "or its folder; got")


# Whole or not at all.


def test_a_disk_that_is_full_leaves_no_model(fits, tmp_path, monkeypatch):
    data, out = fits["few"][1].parent / "few.csv", tmp_path / "out"
    sync, calls, limits = os.fsync, [], [0]

    def full(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):  # only files need room
            return
        calls.append(handle)
        if len(calls) == limits[-1]:
            raise OSError(28, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    written = -1
    for limit in range(2, 7):  # the first is the probe of the folder
        limits.append(limit)
        calls.clear()
        result = command("fit", data, "--rank", 2, "--out", out)
        assert_refused(result, "No space left on device")
        found = set(contents(out))
        assert not {"model.json", "report.html"} & found  # no report of a model that is not there
        assert not any("partial" in name for name in found)
        assert len(calls) > written  # each got one file further
        written = len(calls)
    limits.append(0)
    assert command("fit", data, "--rank", 2, "--out", out).exit_code == 0


@pytest.mark.parametrize("stage", ["fit", "report"])
def test_nothing_is_written_before_everything_is_computed(fits, tmp_path, monkeypatch, stage):
    def fail(*_, **__):
        raise MemoryError

    if stage == "fit":
        monkeypatch.setattr(regressor.PositiveQuadraticRegressor, "fit", fail)
    else:
        monkeypatch.setattr(fit, "render", fail)
    data = fits["few"][1].parent / "few.csv"
    assert_refused(command("fit", data, "--out", tmp_path / "out"), "memory")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems allow no such file name")
def test_a_file_name_that_is_not_text(fits, tmp_path):
    data = tmp_path / os.fsdecode(b"\xff.csv")
    data.write_bytes((fits["few"][1].parent / "few.csv").read_bytes())
    result = command("fit", data, "--rank", 2, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "?.csv" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def program(*arguments: object, **options: object) -> subprocess.Popen:
    words = [sys.executable, "-m", "posquad", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, **pipes, **options)


def test_ctrl_c_leaves_everything_as_it_was(tmp_path):
    """A fit that takes long, in a process of its own, interrupted once it computes."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 60))
    columns = {f"x{k}": column for k, column in enumerate(X.T)} | {"y": rng.standard_normal(400)}
    write_columns(tmp_path / "data.npz", columns)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.json").write_text("old")
    process = program("fit", tmp_path / "data.npz", "--out", tmp_path / "out")
    probe = tmp_path / "out"
    began = probe.stat().st_mtime_ns
    while probe.stat().st_mtime_ns == began and process.poll() is None:
        time.sleep(0.05)  # until the folder is probed: then the fit begins
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, (out, err)
    assert err == "Interrupted: nothing was written.\n"
    assert out == ""
    assert contents(tmp_path / "out") == {"model.json": b"old"}


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"PK\x03\x04", b"a,y\n1,x\n", bytes(100)])
@pytest.mark.parametrize("suffix", [".csv", ".npy", ".npz", ".parquet"])
def test_the_program_shows_no_traceback(tmp_path, content, suffix):
    data = tmp_path / f"data{suffix}"
    data.write_bytes(content)
    if (suffix, content) != (".npz", b"PK\x03\x04"):  # one in a process of its own
        assert_refused(command("fit", data, "--out", tmp_path / "out"), str(data))
        return
    out, err = (process := program("fit", data, "--out", tmp_path / "out")).communicate(timeout=120)
    assert process.returncode == 2
    assert out == ""
    assert err.startswith(f"Error: {data}")
    assert len(err.splitlines()) == 1
