"""`posquad fit --loss`: the answer names the likelihood, the model keeps the loss."""

from __future__ import annotations

import html
import json
import re
import shlex
import sys

import numpy as np
import pytest

from cli_support import assert_refused, command
from posquad.io.tables import write_columns


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A table of inputs, a response with outliers, and counts."""
    rng = np.random.default_rng(21)
    X, U = rng.standard_normal((90, 3)), rng.standard_normal((3, 1))
    mean = ((X @ U) ** 2).sum(axis=1)
    y = mean + 0.1 * rng.standard_normal(90)
    y[:4] += 1.0
    path = tmp_path_factory.mktemp("loss") / "data.csv"
    few = rng.poisson(0.5 * mean / mean.mean())
    columns = np.column_stack([X, y, rng.poisson(5 * mean), few])
    np.savetxt(path, columns, delimiter=",", header="a,b,c,y,count,few", comments="")
    return path


def fit(data, out, *options):
    return command("fit", data, "--features", "a,b,c", "--no-validate", "--out", out, *options)


def test_a_robust_fit_says_what_it_assumes(data, tmp_path):
    result = fit(data, tmp_path, "--loss", "geman-mcclure")
    words = " ".join(result.output.split())
    assert result.exit_code == 0
    assert "of the variance, outliers left out. No predictor" in words
    assert re.search(
        r"normal but for outliers \(Geman-McClure loss, scale 0\.\d+ estimated\)", words
    )
    assert "the fit gives them little weight" in words
    assert "Geman-McClure loss" in (tmp_path / "report.html").read_text()
    assert (
        json.loads((tmp_path / "model.json").read_text())["parameters"]["loss"] == "geman-mcclure"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rank", "1"], None),
        ([], None),  # 30 samples per unknown
        (
            ["--rank", "1", "--loss", "poisson", "--response", "few"],
            "approximate: the counts are small",
        ),
        (["--rank", "1", "--loss", "poisson", "--response", "count"], None),
    ],
)
def test_standard_errors_that_are_approximate_are_called_so(data, tmp_path, options, words):
    given = options if "--response" in options else [*options, "--response", "y"]
    result = fit(data, tmp_path, *given)
    assert result.exit_code == 0, result.output
    told = " ".join(result.output.split())
    assert ("standard errors approximate" in told) == (words is not None)
    assert words is None or f"standard errors {words}" in told
    assert words is None or words in html.unescape((tmp_path / "report.html").read_text())


def test_a_rank_chosen_from_few_samples_makes_standard_errors_approximate(data, tmp_path):
    path = tmp_path / "few.csv"
    path.write_text("".join(data.read_text().splitlines(keepends=True)[:26]))  # 3 unknowns or more
    told = " ".join(fit(path, tmp_path, "--response", "y").output.split())
    assert "standard errors approximate: they do not account for the choice of the rank" in told


def test_a_fit_by_least_squares_recommends_a_robust_loss(data, tmp_path, monkeypatch):
    """The command, run as it stands in the answer and in the page, is that of a robust fit."""
    given = ["--features", "a,b,c", "--rank", "1", "--no-validate"]
    monkeypatch.setattr(sys, "argv", ["posquad", "fit", str(data), *given])
    output = command("fit", data, *given, "--out", tmp_path / "plain").output
    words = " ".join(output.split())
    assert "independent normal noise of equal variance" in words
    assert "or fit again with a loss that gives them no weight: posquad fit" in words
    expected = ["posquad", "fit", str(data), *given, "--loss", "geman-mcclure"]
    page = html.unescape((tmp_path / "plain" / "report.html").read_text())
    assert shlex.join(expected) in page
    again = command(*expected[1:], "--out", tmp_path / "robust")
    assert "the fit gives them little weight" in " ".join(again.output.split())


def test_outliers_that_spoil_the_fit_are_counted_and_a_robust_loss_is_recommended(data, tmp_path):
    rows = np.loadtxt(data, delimiter=",", skiprows=1)
    rows[::10, 3] += 300.0
    path = tmp_path / "gross.csv"
    np.savetxt(path, rows, delimiter=",", header="a,b,c,y,count,few", comments="")
    words = " ".join(fit(path, tmp_path, "--rank", "1", "--response", "y").output.split())
    assert re.search(r"\d+ residuals are larger than six robust standard deviations", words)
    assert re.search("with a loss that gives them little weight: posquad .*geman-mcclure", words)
    assert "check for errors" not in words


def test_counts_are_fitted_as_such(data, tmp_path):
    result = fit(data, tmp_path, "--response", "count", "--loss", "poisson")
    words = " ".join(result.output.split())
    assert "independent Poisson counts, whose variance is their mean" in words
    assert "Poisson counts have 1" in words
    assert "--intercept" not in words
    assert "--linear" not in words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--loss", "poisson"], "data.csv: line 2, column 'y': expected counts (0, 1, 2, ...)"),
        (["--loss", "poisson", "--linear"], "loss: expected another loss than 'poisson'"),
        (["--scale", "2"], "scale: expected None for loss='least-squares'"),
        (["--loss", "huber", "--scale", "0"], "--scale: expected a finite number > 0"),
    ],
)
def test_bad_options_are_refused(data, tmp_path, options, words):
    assert_refused(fit(data, tmp_path / "out", *options), words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npy"])
def test_rows_that_are_no_counts_are_named(suffix, tmp_path):
    """By file and line, or by the number of the row from 1; rows of weight zero are counted."""
    rng = np.random.default_rng(0)
    columns = {"x1": rng.uniform(1, 2, 30), "x2": rng.uniform(1, 2, 30)}
    columns |= {"x3": rng.poisson(4.0, 30).astype(float), "x4": np.ones(30)}
    columns["x4"][:5] = 0.0
    path = tmp_path / f"data{suffix}"
    options = [
        "--response",
        "x3",
        "--weights",
        "x4",
        "--loss",
        "poisson",
        "--out",
        tmp_path / "fit",
    ]
    place = "line 22" if suffix == ".csv" else "row 21"
    for value in (-1.0, 2.5):
        write_columns(path, columns | {"x3": np.where(np.arange(30) == 20, value, columns["x3"])})
        words = f"{path}: {place}, column 'x3': expected counts (0, 1, 2, ...) for loss='poisson'; "
        assert_refused(command("fit", path, *options), f"{words}got {value:g}")
    zero = np.where(np.arange(30) == 20, 0.0, 1.0)
    counts = np.where(zero == 0, 3.0, columns["x3"])
    write_columns(path, {**columns, "x1": zero, "x2": zero, "x3": counts})
    words = f"{path}: {place}: expected an input that is not zero wherever the count is positive, "
    assert_refused(command("fit", path, *options), words, "; got zeros")


def test_an_unknown_loss_is_refused(data, tmp_path):
    result = fit(data, tmp_path / "out", "--loss", "l1")
    assert result.exit_code == 2
    assert "'l1' is not one of 'least-squares', 'huber', 'poisson'" in result.stderr
