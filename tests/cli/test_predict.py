"""`posquad predict`: numbers by the formula, columns by name, errors that cover the truth."""

from __future__ import annotations

import numpy as np
import pytest

from cli_support import assert_refused, command
from posquad.cli.demo_data import DEMOS, make
from posquad.estimator import PositiveQuadraticRegressor
from posquad.io.tables import read_samples, write_columns


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


def test_missing_responses_do_not_prevent_predictions(fits, tmp_path):
    columns = make("noisy")
    data = tmp_path / "new.csv"
    rows = zip(*(columns[f"x{k}"].tolist() for k in range(1, 9)), strict=True)
    lines = [",".join([*map(repr, row), ""]) for row in rows]
    data.write_text("\n".join([",".join(columns), *lines]))
    result = command("predict", fits["noisy"][1], data)
    assert result.exit_code == 0, result.output
    whole = command("predict", fits["noisy"][1], fits["noisy"][1].parent / "noisy.csv")
    assert result.stdout == whole.stdout
    assert result.stderr.startswith("Predictions are not compared with 'y': ")
    assert "expected no missing values; got 300 in 'y'" in result.stderr
    assert_refused(command("predict", fits["noisy"][1], data, "--response", "y"), "300 in 'y'")


def test_standard_errors_cover_the_truth(fits):
    """Two standard errors hold the exact response in about 95 of 100 rows."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 8))
    U = np.linalg.qr(rng.standard_normal((8, 2)))[0] * np.sqrt([2.0, 1.0])
    rows = command("predict", fits["noisy"][1], fits["noisy"][1].parent / "noisy.csv").stdout
    found = np.array([[float(cell) for cell in row.split(",")] for row in rows.splitlines()[1:]])
    inside = np.abs(found[:, 0] - np.square(X @ U).sum(1)) < 2 * found[:, 1]
    assert 0.85 < inside.mean() <= 1


# What is compared, and what is refused.


def test_the_response_of_the_fit_is_the_one_that_is_compared(fits, tmp_path):
    data, folder = fits["portfolio"][1].parent / "portfolio.csv", fits["portfolio"][1]
    told = command("predict", folder, data).stderr
    assert told.startswith("Compared with column 'variance': R²")
    proof = command("certify", data, folder)
    assert proof.exit_code == 1, proof.output  # noise: not proved, and nothing was to be named
    columns = make("portfolio")
    columns["y"] = columns.pop("variance")
    other = tmp_path / "other.csv"
    write_columns(other, columns)
    assert command("predict", folder, other).stderr == ""  # a column that is called y by chance
    assert_refused(command("certify", other, folder), "a column 'variance'")
    assert "Compared with column 'y'" in command("predict", folder, other, "--response", "y").stderr


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_inputs_of_extreme_size_are_refused_with_their_location(fits, tmp_path, suffix):
    columns = make("noisy")
    columns["x3"][144] = -1e300
    data = tmp_path / f"data{suffix}"
    write_columns(data, columns)
    result = command("predict", fits["noisy"][1], data)
    place = "line 146, column 'x3'" if suffix == ".csv" else "row 145, column 'x3'"
    assert_refused(result, f"1.0e+300 as the largest, in {place}; choose another unit")
    columns["x3"][144], columns["y"][0] = 1e-300, 1e300
    write_columns(data, columns)
    result = command("predict", fits["noisy"][1], data)
    assert result.exit_code == 0
    assert result.stderr.startswith("Predictions are not compared with 'y': ")
    assert len(result.stderr.splitlines()) == 1


def test_lines_are_counted_with_blank_ones(tmp_path):
    data = tmp_path / "data.csv"
    data.write_text("\na,y,w\n1,1,1\n\n2,4,-1\n")
    assert_refused(command("fit", data, "--weights", "w"), "-1 in line 5")
