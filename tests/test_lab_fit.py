"""`posquad demo`, `fit` and `predict`: answers in words, files that are whole, and refusals."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from doctest import ELLIPSIS, OutputChecker
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from lab_support import assert_refused, contents
from posquad.estimator import PositiveQuadraticRegressor, regressor
from posquad.lab import cli_fit
from posquad.lab.cli import main
from posquad.lab.demo import DEMOS, make
from posquad.lab.fit_answer import HEADINGS, Fit, answer
from posquad.lab.fit_report import render
from posquad.lab.tables import Samples, read_samples, write_columns
from posquad.status import Status

FILES = {"model.json", "model.safetensors", "report.html"}
CERTIFICATE = {"model.certificate.json", "model.certificate.npz"}


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """Every example fitted as its command says: the result of the command and its folder."""
    folder = tmp_path_factory.mktemp("fits")
    made = {}
    before = Path.cwd()
    os.chdir(folder)
    try:
        for name in DEMOS:
            told = command("demo", name)
            assert told.exit_code == 0, told.output
            words = told.stdout.splitlines()[-1].removeprefix("Next: posquad ").split()
            made[name] = command(*words, "--out", f"{name}-fit"), folder / f"{name}-fit"
    finally:
        os.chdir(before)
    return made


# The examples, from data to answer.


@pytest.mark.parametrize("name", DEMOS)
def test_an_example_says_what_was_announced(fits, name):
    result, folder = fits[name]
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    announced = DEMOS[name].says.split(",")[0].split(":")[0].split(";")[0].split(" with ")[0]
    assert result.stdout.lower().startswith(announced)
    certified = set() if name == "offset" else CERTIFICATE
    assert set(contents(folder)) == FILES | certified
    model = PositiveQuadraticRegressor.load(folder / "model")
    assert result.stdout.startswith(f"{HEADINGS[model.status_][0]}: ")
    assert str(folder.name) in result.stdout.splitlines()[-1]
    page = (folder / "report.html").read_text()
    assert f"{HEADINGS[model.status_][0]}: " in page


@pytest.mark.parametrize("name", DEMOS)
def test_predictions_are_those_of_the_formula(fits, name):
    """x'Qx + c with NumPy from the arrays of the model, and the numbers printed by the command."""
    _, folder = fits[name]
    data = folder.parent / f"{name}.csv"
    result = command("predict", folder, data)
    assert result.exit_code == 0, result.output
    header, *rows = result.stdout.splitlines()
    assert header.startswith("prediction")
    model = PositiveQuadraticRegressor.load(folder / "model")
    columns = make(name)
    X = np.column_stack([columns[name] for name in model.feature_names_in_])
    Q = model.components_.T @ model.components_
    expected = np.einsum("ni,ij,nj->n", X, Q, X) + model.intercept_
    found = np.array([float(row.split(",")[0]) for row in rows])
    assert np.abs(found - expected).max() <= 60 * len(Q) * 2e-16 * np.abs(expected).max()
    if name != "portfolio":  # whose response is not called y
        y = columns["y"]
        error = np.sqrt(np.mean((y - expected) ** 2))
        shown = float(result.stderr.split("root mean square error ")[1])
        assert shown == pytest.approx(error, rel=1e-3, abs=1e-12)


def test_the_exact_examples_are_the_truth(fits):
    """The signal of the phase example is known; the answer is it, up to sign."""
    signal_ = np.repeat([0.0, 2.0, -1.0, 1.0], 4)
    model = PositiveQuadraticRegressor.load(fits["phase"][1] / "model")
    assert model.status_ is Status.CERTIFIED
    assert np.abs(model.components_[0] * np.sign(model.components_[0, 4]) - signal_).max() < 1e-12


def test_what_to_do_next_has_numbers(fits):
    few = fits["few"][0].stdout
    assert "Collect at least 4 more samples: 12 are there, and rank 2 needs 16." in few
    assert "free directions    3" in few
    offset = fits["offset"][0].stdout
    assert 4.9 < float(offset.split("intercept")[1].split()[0]) < 5.1


def test_spoiled_rows_are_named(fits):
    """The rows that the example spoils, found by comparing with the largest responses."""
    spoiled = np.random.default_rng(0)
    spoiled.standard_normal((200, 8)), spoiled.standard_normal((8, 2))
    wrong = set((spoiled.choice(200, 6, replace=False) + 1).tolist())
    line = next(line for line in fits["outliers"][0].stdout.splitlines() if "stand far out" in line)
    named = line.split("Rows ")[1].split(" stand")[0]
    assert {int(word) for word in named.split(", ")} == wrong


def test_the_proof_is_checked_again_by_the_command_of_the_report(fits, monkeypatch):
    result, folder = fits["recovery"]
    line = next(line for line in result.stdout.splitlines() if "posquad certify" in line)
    monkeypatch.chdir(folder.parent)
    again = command(*line.split()[1:])
    assert again.exit_code == 0, again.output
    assert again.stdout.splitlines()[-1] == "valid: proved to be the only answer"
    direct = command("certify", "recovery.csv", folder)
    assert direct.exit_code == 0
    assert direct.stdout.startswith("proved to be the only answer")
    assert command("certify", "few.csv", folder).exit_code == 1  # of other data it is not
    constant = command("certify", "offset.csv", "offset-fit")
    assert_refused(constant, "without a constant")


def test_a_weighted_proof_leaves_out_rows_of_weight_zero(tmp_path):
    columns = make("recovery")
    weight = np.ones(60)
    weight[:5], columns["y"][:5] = 0, 1000.0
    data = tmp_path / "data.csv"
    write_columns(data, columns | {"w": weight})
    out = tmp_path / "out"
    result = command("fit", data, "--weights", "w", "--out", out)
    assert result.stdout.startswith("Certified"), result.output
    line = next(line for line in result.stdout.splitlines() if "posquad certify" in line)
    assert command(*line.split()[1:]).exit_code == 0
    assert command("certify", data, out, "--weights", "w").exit_code == 0
    assert command("certify", data, out).exit_code == 1


@pytest.mark.parametrize("suffix", [".tsv", ".parquet", ".npz", ".npy"])
def test_every_kind_of_file_gives_the_same_answer(fits, tmp_path, suffix):
    data = tmp_path / f"recovery{suffix}"
    told = command("demo", "recovery", "--out", data)
    words = told.stdout.splitlines()[-1].removeprefix("Next: posquad ").split()
    result = command(*words, "--out", tmp_path / "out")
    assert result.stdout.startswith("Certified"), result.output
    first = PositiveQuadraticRegressor.load(fits["recovery"][1] / "model")
    model = PositiveQuadraticRegressor.load(tmp_path / "out" / "model")
    assert np.array_equal(model.components_, first.components_)
    response = ["--response", "x9"] if suffix == ".npy" else []
    values = command("predict", tmp_path / "out", data, *response).stdout
    assert values == command("predict", fits["recovery"][1], data, *response).stdout


def test_examples_by_name():
    listed = command("demo", "--list").stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(DEMOS)
    assert command("demo").stdout.splitlines() == listed
    assert_refused(command("demo", "nothing"), "recovery", "got nothing")
    assert_refused(command("demo", "few", "--out", "few.xls"), "got .xls")
    assert not np.array_equal(make("few", 0)["y"], make("few", 1)["y"])


# Options.


def test_columns_and_names(tmp_path):
    rng = np.random.default_rng(1)
    columns = {name: rng.standard_normal(40) for name in ("b", "a", "id", "c, d")}
    columns["out"] = (columns["a"] + 2 * columns["c, d"]) ** 2
    data, out = tmp_path / "data.csv", tmp_path / "deep" / "out"
    write_columns(data, columns)
    options = ["--response", "out", "--features", 'a, "c, d"', "--rank", 1]
    result = command("fit", data, *options, "--out", out)
    assert result.stdout.startswith("Certified"), result.output
    model = PositiveQuadraticRegressor.load(out / "model")
    assert model.feature_names_in_.tolist() == ["a", "c, d"]
    assert np.abs(model.components_ - [[1, 2]]).max() < 1e-12
    # another order, other columns beside: names decide
    new = tmp_path / "new.csv"
    write_columns(new, {"c, d": np.array([1.0]), "junk": np.zeros(1), "a": np.array([3.0])})
    assert float(command("predict", out, new).stdout.splitlines()[1].split(",")[0]) == (
        pytest.approx(25, abs=1e-12)
    )
    write_columns(new, {"a": np.array([3.0])})
    assert_refused(command("predict", out, new), "the column 'c, d' of the model; got a")
    write_columns(tmp_path / "new.npy", {"a": np.array([3.0]), "c, d": np.array([1.0])})
    told = command("predict", out, tmp_path / "new.npy", "--no-std").stdout.split()
    assert float(told[1]) == pytest.approx(25, abs=1e-12)
    write_columns(tmp_path / "new.npy", columns)
    assert_refused(command("predict", out, tmp_path / "new.npy"), "expected 2 columns", "got 5")


def test_options_reach_the_fit(fits, tmp_path):
    data = fits["noisy"][1].parent / "noisy.csv"
    options = "--rank 3 --criterion cv --max-rank 4 --intercept --tolerance 1e-3 --max-starts 2"
    options += " --time-limit 30 --seed 7"
    result = command("fit", data, *options.split(), "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    kept = PositiveQuadraticRegressor.load(tmp_path / "out" / "model").get_params()
    expected = {"rank": 3, "criterion": "cv", "max_rank": 4, "fit_intercept": True}
    expected |= {"tolerance": 1e-3, "max_starts": 2, "time_limit": 30, "random_state": 7}
    assert {name: kept[name] for name in expected} == expected
    assert kept["certify"] is False  # not defined with an intercept


def test_no_certificate_is_made_where_none_is_wanted(fits, tmp_path):
    data, out = fits["recovery"][1].parent / "recovery.csv", tmp_path / "out"
    assert command("fit", data, "--out", out).stdout.startswith("Certified")
    assert set(contents(out)) == FILES | CERTIFICATE
    result = command("fit", data, "--no-certify", "--out", out)
    assert result.stdout.startswith("Recovered")
    assert "--certify" in result.stdout
    assert set(contents(out)) == FILES  # that of the fit before would be about another model
    assert_refused(command("fit", data, "--certify", "--intercept", "--out", out), "--certify")


def test_responses_that_are_all_zero(tmp_path):
    write_columns(tmp_path / "data.csv", {"a": np.arange(1.0, 6), "y": np.zeros(5)})
    result = command("fit", tmp_path / "data.csv", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "Q = 0" in (tmp_path / "out" / "report.html").read_text()
    predicted = command("predict", tmp_path / "out", tmp_path / "data.csv", "--no-std").stdout
    assert predicted.split() == ["prediction", *["0.0"] * 5]


def test_columns_that_are_zero_are_named(tmp_path):
    columns = make("recovery")
    columns["x3"] = np.zeros(60)
    write_columns(tmp_path / "data.csv", columns)
    result = command("fit", tmp_path / "data.csv", "--rank", 2, "--out", tmp_path / "out")
    told = " ".join(result.stdout.split())
    assert "zero throughout, with --features: x3." in told


@pytest.mark.parametrize("size", [1e-320, 1e-60, 1e60, 1e308])
@pytest.mark.parametrize("what", ["inputs", "responses"])
def test_numbers_out_of_all_proportion(tmp_path, what, size):
    columns = make("few")
    names = ["y"] if what == "responses" else [name for name in columns if name != "y"]
    for name in names:
        columns[name] = np.sign(columns[name]) * size
    write_columns(tmp_path / "data.npz", columns)
    result = command("fit", tmp_path / "data.npz", "--out", tmp_path / "out")
    assert_refused(result, f"the {what}", "choose another unit", "between 1e-50 and 1e+50")


@pytest.mark.parametrize("scale", [1e-40, 1e40])
def test_large_and_small_units_do_not_matter(fits, tmp_path, scale):
    columns = make("recovery")
    columns = {name: column * (1 if name == "y" else scale) for name, column in columns.items()}
    write_columns(tmp_path / "data.csv", columns)
    result = command("fit", tmp_path / "data.csv", "--rank", 2, "--out", tmp_path / "out")
    assert result.stdout.startswith(("Recovered", "Certified")), result.output
    first = PositiveQuadraticRegressor.load(fits["recovery"][1] / "model").components_
    found = PositiveQuadraticRegressor.load(tmp_path / "out" / "model").components_ * scale
    assert np.abs(found - first).max() < 1e-9


def test_a_computation_that_breaks_down_is_one_sentence(fits, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("linalg.svd: failed to converge\nmore")

    monkeypatch.setattr(regressor.PositiveQuadraticRegressor, "fit", fail)
    data = fits["few"][1].parent / "few.csv"
    assert_refused(command("fit", data, "--out", tmp_path / "out"), "linalg.svd: failed")


@pytest.mark.parametrize("samples", [1, 2])
def test_hardly_any_data(tmp_path, samples):
    write_columns(tmp_path / "data.csv", {"a": np.ones(samples), "y": np.ones(samples)})
    result = command("fit", tmp_path / "data.csv", "--out", tmp_path / "out")
    assert result.exit_code in (0, 2)
    assert result.exit_code == 0 or len(result.stderr.splitlines()) == 1


def test_predictions_in_files(fits, tmp_path):
    data, model = fits["noisy"][1].parent / "noisy.csv", fits["noisy"][1]
    printed = command("predict", model, data).stdout.splitlines()[1:]
    first = float(printed[0].split(",")[0]), float(printed[0].split(",")[1])
    for suffix in (".csv", ".parquet", ".npz", ".npy"):
        out = tmp_path / f"predictions{suffix}"
        result = command("predict", model, data, "--out", out)
        assert result.exit_code == 0
        assert result.stdout == f"Predictions: {out} (300 rows)\n"
        names = ("x1", "x2") if suffix == ".npy" else ("prediction", "standard_error")
        kept = read_samples(out, response=names[1], features=[names[0]])
        assert (kept.X[0, 0], kept.y[0]) == first
    without = command("predict", model, data, "--no-std").stdout.splitlines()
    assert without[0] == "prediction"


def test_a_response_that_is_still_missing_is_no_obstacle(fits, tmp_path):
    columns = make("noisy")
    data = tmp_path / "new.csv"
    rows = zip(*(columns[f"x{k}"].tolist() for k in range(1, 9)), strict=True)
    lines = [",".join([*map(repr, row), ""]) for row in rows]
    data.write_text("\n".join([",".join(columns), *lines]))
    result = command("predict", fits["noisy"][1], data)
    assert result.exit_code == 0, result.output
    whole = command("predict", fits["noisy"][1], fits["noisy"][1].parent / "noisy.csv")
    assert result.stdout == whole.stdout
    assert result.stderr.startswith("Not compared with 'y': ")
    assert "a missing value" in result.stderr
    assert_refused(command("predict", fits["noisy"][1], data, "--response", "y"), "missing value")


def test_standard_errors_cover_the_truth(fits):
    """Two standard errors hold the exact response in about 95 of 100 rows."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 8))
    U = np.linalg.qr(rng.standard_normal((8, 2)))[0] * np.sqrt([2.0, 1.0])
    rows = command("predict", fits["noisy"][1], fits["noisy"][1].parent / "noisy.csv").stdout
    found = np.array([[float(cell) for cell in row.split(",")] for row in rows.splitlines()[1:]])
    inside = np.abs(found[:, 0] - np.square(X @ U).sum(1)) < 2 * found[:, 1]
    assert 0.85 < inside.mean() <= 1


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
        (["--features", "x1,y"], ["a column y, response or target"]),
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
    monkeypatch.setattr(cli_fit, "_fitted", lambda *_: pytest.fail("it was computed"))
    (tmp_path / "file").write_text("")
    assert_refused(command("fit", data, "--out", tmp_path / "file"), "a file of that name")
    assert_refused(command("fit", data, "--out", tmp_path / "file" / "out"), "file")
    (tmp_path / "out" / "model.json").mkdir(parents=True)
    assert_refused(command("fit", data, "--out", tmp_path / "out"), "a folder of that name")


def test_what_was_read_is_not_replaced(fits, tmp_path):
    data = tmp_path / "model.certificate.npz"
    write_columns(data, make("recovery"))
    before = data.read_bytes()
    assert_refused(command("fit", data, "--out", tmp_path), "would be replaced")
    assert data.read_bytes() == before
    copy = tmp_path / "copy.csv"
    write_columns(copy, make("recovery"))
    result = command("predict", fits["recovery"][1], copy, "--out", copy)
    assert_refused(result, "which it would replace")
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
    assert_refused(command("predict", source, source), "a fitted model")


# Whole or not at all.


def test_a_disk_that_is_full_leaves_no_model(fits, tmp_path, monkeypatch):
    data, out = fits["few"][1].parent / "few.csv", tmp_path / "out"
    sync, calls, limits = os.fsync, [], [0]

    def full(handle):
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
        monkeypatch.setattr(cli_fit, "render", fail)
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
    if (suffix, content) not in [(".csv", b""), (".npy", b"\x93NUMPY"), (".npz", b"PK\x03\x04")]:
        assert_refused(command("fit", data, "--out", tmp_path / "out"), str(data))
        return
    out, err = (process := program("fit", data, "--out", tmp_path / "out")).communicate(timeout=120)
    assert process.returncode == 2
    assert out == ""
    assert err.startswith(f"Error: {data}")
    assert len(err.splitlines()) == 1


# Words and page.


def fit_with(status: Status, **changes: object) -> Fit:
    X = np.random.default_rng(0).standard_normal((40, 3))
    y = (X[:, 0] + X[:, 1]) ** 2
    model = PositiveQuadraticRegressor(1).fit(X, y)
    model.status_ = status
    for name, value in changes.items():
        setattr(model, name, value)
    samples = Samples(Path("data.csv"), X, y, None, ("<b>a</b>", "b", "c"), True, "<i>y</i>")
    return Fit(model, samples, model.predict(X), 1.0, "posquad <u>fit</u>", Path("fit/model.json"))


@pytest.mark.parametrize("status", HEADINGS)
def test_every_status_has_words(status):
    said = answer(fit_with(status))
    assert said.word == HEADINGS[status][0]
    assert said.message.lower() == f"{status.value.lower()}."
    assert said.steps
    assert all(step.words[0].isupper() for step in said.steps)
    page = render(fit_with(status))
    assert f"{said.word}: {said.headline}" in page
    for markup in ("<b>", "<i>", "<u>"):  # names of columns, and the command, are only text
        assert markup not in page
    for text in ("&lt;b&gt;a&lt;/b&gt;", "&lt;i&gt;y&lt;/i&gt;", "&lt;u&gt;fit"):
        assert text in page


def test_statuses_that_a_fit_can_have_all_have_words():
    begun = list(Status).index(Status.RECOVERED)
    assert set(HEADINGS) == set(list(Status)[begun:])


def test_advice_follows_the_numbers():
    fit = fit_with(Status.BEST_FIT, residual_=2e-6)
    words = " ".join(step.words for step in answer(fit).steps)
    assert "--tolerance 1e-05" in words
    assert "leave --rank out" in words
    fit.samples.y[:5] = -10.0
    worse = Fit(fit.model, fit.samples, fit.predicted, 1.0, "", Path("fit/model.json"))
    words = " ".join(step.words for step in answer(worse).steps)
    assert "5 responses are negative" in words
    assert worse.r_squared == pytest.approx(
        1 - np.square(worse.observed - worse.predicted).sum() / (40 * worse.observed.var())
    )
    free = fit_with(Status.NOT_IDENTIFIED, kernel_dimension_=2)
    assert "2 directions are free" in answer(free).steps[0].words


def test_a_spectrum_of_which_only_the_ends_are_known():
    """Of p = 1200 directions: nothing is said of those that were not looked at."""
    ends = {"effective_spectrum_": np.array([0.5, 8.0]), "kernel_dimension_": np.nan}
    fit = fit_with(Status.BEST_FIT, **ends)
    fit.model.n_features_in_ = 1200
    page = render(fit)
    assert "1200 directions, how many are not identified was not counted" in page
    assert "Only the two ends were computed: 0.5 and 8." in page


def test_many_rows_are_thinned_and_the_largest_residuals_kept():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30_000, 2))
    y = X[:, 0] ** 2 + 0.1 * rng.standard_normal(30_000)
    y[12_345] += 100
    model = PositiveQuadraticRegressor(1).fit(X, y)
    samples = Samples(Path("data.csv"), X, y, None, ("a", "b"), True, "y")
    fit = Fit(model, samples, model.predict(X), 1.0, "posquad fit", Path("fit/model.json"))
    page = render(fit)
    assert "of 30000 rows are drawn, the largest residuals among them" in page
    assert len(page) < 2_000_000
    assert "Row 12346 stands far out" in " ".join(step.words for step in answer(fit).steps)


def test_the_model_file_is_plain(fits):
    body = json.loads((fits["noisy"][1] / "model.json").read_text(), parse_constant=pytest.fail)
    assert body["status"] == "BEST_FIT"


@pytest.mark.parametrize("name", ["fit", "predict", "certify", "demo"])
def test_help_has_examples_and_exit_statuses(name):
    result = command(name, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert "Exit status:" in result.stdout


# The page about all this.


def transcript(text: str) -> list[tuple[str, str]]:
    """Commands and outputs of the blocks of a page."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in block.split("$ ")[1:]:
            line, _, output = part.partition("\n")
            found.append((line, output))
    return found


def test_the_page_shows_what_the_commands_say(tmp_path, monkeypatch):
    page = Path(__file__).parents[1] / "docs" / "command-line.md"
    monkeypatch.chdir(tmp_path)
    steps = transcript(page.read_text(encoding="utf-8"))
    assert len(steps) >= 8
    for line, expected in steps:
        words = shlex.split(line)
        assert words[0] == "posquad"
        result = command(*words[1:])
        assert OutputChecker().check_output(expected, result.output, ELLIPSIS), result.output


def test_the_page_names_every_answer_and_suffix():
    page = (Path(__file__).parents[1] / "docs" / "command-line.md").read_text(encoding="utf-8")
    for word, _, _ in HEADINGS.values():
        assert f"\n| {word} |" in page
    for suffix in (".csv", ".tsv", ".txt", ".parquet", ".npz", ".npy"):
        assert f"`{suffix}`" in page
