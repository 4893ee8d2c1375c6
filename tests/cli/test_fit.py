"""`posquad demo` and `fit`: from data to an answer in words, and what the options do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cli_support import CERTIFICATE, FILES, assert_refused, command
from experiments_support import contents
from posquad.cli.demo_data import DEMOS, make
from posquad.core.status import Status
from posquad.estimator import PositiveQuadraticRegressor, regressor
from posquad.io.tables import write_columns
from posquad.report.fit_answer import HEADINGS

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


def test_the_exact_examples_are_the_truth(fits):
    """The signal of the phase example is known; the answer is it, up to sign."""
    signal_ = np.repeat([0.0, 2.0, -1.0, 1.0], 4)
    model = PositiveQuadraticRegressor.load(fits["phase"][1] / "model")
    assert model.status_ is Status.CERTIFIED
    assert np.abs(model.components_[0] * np.sign(model.components_[0, 4]) - signal_).max() < 1e-12


def test_what_to_do_next_has_numbers(fits):
    few = fits["few"][0].stdout
    assert "Collect at least 4 more samples: there are 12, and rank 2 needs 16." in few
    assert "free directions    3" in few
    offset = fits["offset"][0].stdout
    assert 4.9 < float(offset.split("\n  intercept")[1].split()[0]) < 5.1


def test_corrupted_rows_are_named(fits):
    """The rows that the example spoils, found by comparing with the largest responses."""
    spoiled = np.random.default_rng(0)
    spoiled.standard_normal((200, 8)), spoiled.standard_normal((8, 2))
    wrong = {row + 2 for row in spoiled.choice(200, 6, replace=False).tolist()}  # after a header
    named = " ".join(fits["outliers"][0].stdout.split()).split("Lines ")[1]
    assert {int(word) for word in named.split(" are outliers")[0].split(", ")} == wrong


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
    assert_refused(constant, "without other terms")


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


def test_an_example_replaces_no_file_unless_it_is_told_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("few.csv").write_text("mine")
    words = "few.csv: expected a new file; got one that exists, and it was not changed; --force"
    assert_refused(command("demo", "few"), words)
    assert_refused(command("demo", "noisy", "--out", "few.csv"), words)
    assert Path("few.csv").read_text() == "mine"
    assert command("demo", "few", "--force").exit_code == 0
    assert Path("few.csv").read_text().startswith("x1,")
    assert command("experiment", "new", "my.py").exit_code == 0
    Path("my.py").write_text("mine")
    assert_refused(command("experiment", "new", "my.py"), "my.py: expected a new file; got one")
    assert command("experiment", "new", "my.py", "--force").exit_code == 0
    assert Path("my.py").read_text() != "mine"


def test_examples_by_name():
    listed = command("demo", "--list").stdout.splitlines()
    assert [line.split()[0] for line in listed[::2]] == list(DEMOS)
    assert "posquad demo few && posquad fit few.csv --rank 2" in [line.strip() for line in listed]
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
    assert "zero in every row: --drop x3" in told


def test_columns_that_repeat_others_are_named_and_dropped(tmp_path):
    columns = make("recovery")
    columns["x3"], columns["x5"] = columns["x1"], -2 * columns["x2"]
    data = tmp_path / "data.csv"
    write_columns(data, columns)
    result = command("fit", data, "--rank", 2, "--out", tmp_path / "out")
    told = " ".join(result.stdout.split())
    assert "(x3 is the same as x1, x5 is -2 times x2): --drop x3,x5" in told
    assert "(replaced" not in told
    fewer = command("fit", data, "--drop", "x3,x5", "--rank", 2, "--out", tmp_path / "out")
    assert "Model:" in fewer.stdout
    assert "model.json (replaces an earlier fit)" in fewer.stdout
    kept = PositiveQuadraticRegressor.load(tmp_path / "out" / "model").feature_names_in_.tolist()
    assert kept == ["x1", "x2", "x4", "x6", "x7", "x8"]


def test_a_small_problem_has_one_thread(fits, tmp_path, monkeypatch):
    """Seen from inside the fit; what the user sets, and the setting before, stay."""
    data, seen = fits["few"][1].parent / "few.csv", []
    whole = regressor.PositiveQuadraticRegressor.fit

    def watched(*arguments, **options):
        seen.append(torch.get_num_threads())
        return whole(*arguments, **options)

    monkeypatch.setattr(regressor.PositiveQuadraticRegressor, "fit", watched)
    torch.set_num_threads(2)
    try:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        command("fit", data, "--rank", 2, "--out", tmp_path / "out")
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        command("fit", data, "--rank", 2, "--out", tmp_path / "out")
        halves = len(seen) // 2  # the fits of cross-validation, too
        assert set(seen[:halves]) == {1}
        assert set(seen[halves:]) == {2}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_an_interrupted_fit_warns_only_in_its_answer(tmp_path):
    rng = np.random.default_rng(0)
    columns = {f"x{k}": column for k, column in enumerate(rng.standard_normal((20, 100)))}
    write_columns(tmp_path / "data.csv", columns | {"y": rng.standard_normal(100)})
    words = ["--rank", 2, "--time-limit", 1e-3, "--out", tmp_path / "out"]
    result = command("fit", tmp_path / "data.csv", *words)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Not finished")
    assert result.stderr == ""


@pytest.mark.parametrize("size", [1e-320, 1e-60, 1e60, 1e308])
@pytest.mark.parametrize("what", ["inputs", "responses"])
def test_numbers_of_extreme_size(tmp_path, what, size):
    columns = make("few")
    names = ["y"] if what == "responses" else [name for name in columns if name != "y"]
    for name in names:
        columns[name] = np.sign(columns[name]) * size
    write_columns(tmp_path / "data.npz", columns)
    result = command("fit", tmp_path / "data.npz", "--out", tmp_path / "out")
    assert_refused(result, f"the {what}", "choose another unit", "between 1e-50 and 1e+50")
    assert_refused(result, "in row 1, column 'y'" if what == "responses" else "in row 1, column")


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
def test_very_few_samples(tmp_path, samples):
    write_columns(tmp_path / "data.csv", {"a": np.ones(samples), "y": np.ones(samples)})
    result = command("fit", tmp_path / "data.csv", "--out", tmp_path / "out")
    assert result.exit_code in (0, 2)
    assert result.exit_code == 0 or len(result.stderr.splitlines()) == 1
