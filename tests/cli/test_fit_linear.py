"""`posquad fit --linear`, cross-validation, and what is said of a model that does not suit."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from html import unescape

import numpy as np
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold, cross_val_predict

from cli_support import assert_refused, command
from posquad.cli.demo_data import make
from posquad.core.status import Status
from posquad.estimator import PositiveQuadraticRegressor
from posquad.io.tables import write_columns


def written(folder, X, y):
    names = {f"x{k}": column for k, column in enumerate(np.asarray(X).T)}
    write_columns(folder / "data.csv", names | {"y": np.asarray(y, dtype=float)})
    return folder / "data.csv"


def said(*words):
    result = command("fit", *words)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def test_linear_terms_are_found_saved_and_predicted(tmp_path):
    columns = make("linear")
    write_columns(tmp_path / "data.csv", columns)
    told = said(tmp_path / "data.csv", "--linear", "--out", tmp_path / "fit")
    assert "rank 1 (chosen)" in told
    assert "of the deviations from the mean" in told
    model = PositiveQuadraticRegressor.load(tmp_path / "fit")
    np.testing.assert_allclose(model.coef_, [3, -2, 1, 0], atol=0.3)
    result = command("predict", tmp_path / "fit", tmp_path / "data.csv")
    assert "R² 0.9" in result.stderr
    page = (tmp_path / "fit" / "report.html").read_text(encoding="utf-8")
    assert "x'Qx + b'x + c" in unescape(page)
    assert "linear<br>b" in page
    refused = command("certify", tmp_path / "data.csv", tmp_path / "fit")
    assert_refused(refused, "without other terms", "one with linear terms")


def test_a_plain_fit_says_what_linear_terms_would_give(tmp_path):
    write_columns(tmp_path / "data.csv", make("linear"))
    told = said(tmp_path / "data.csv", "--out", tmp_path / "fit")
    assert "With linear terms, cross-validated R² would be 0.9" in told
    assert "--linear" in told


def test_a_certificate_is_about_the_form_alone(tmp_path):
    write_columns(tmp_path / "data.csv", make("linear"))
    refused = command(
        "fit", tmp_path / "data.csv", "--linear", "--certify", "--out", tmp_path / "o"
    )
    assert_refused(refused, "--certify", "no --linear")


def test_a_response_with_two_values_is_for_a_classifier(tmp_path):
    X = np.random.default_rng(1).standard_normal((60, 2))
    told = said(written(tmp_path, X, X[:, 0] > 0), "--out", tmp_path / "fit")
    assert "only the values 0 and 1" in told
    assert "logistic regression" in told


def test_a_constant_response_needs_a_constant(tmp_path):
    data = written(tmp_path, np.random.default_rng(3).standard_normal((40, 3)), np.full(40, 5.0))
    told = said(data, "--out", tmp_path / "fit")
    assert "Every response is 5" in told
    assert "--intercept" in told
    told = said(data, "--intercept", "--out", tmp_path / "fit")
    assert "rank 0 (chosen)" in told


def test_too_few_rows_are_counted_from_the_columns(tmp_path):
    X = np.random.default_rng(4).standard_normal((8, 10))
    told = said(written(tmp_path, X, X[:, 0] ** 2), "--out", tmp_path / "fit")
    assert "8 rows for 10 columns are too few; at least 11 are needed" in told


def test_where_linear_regression_is_as_good_it_is_said(tmp_path):
    rng = np.random.default_rng(2)
    X = rng.standard_normal((80, 2)) + 5
    y = X @ [1.0, 2.0] + 20 + rng.standard_normal(80)
    told = said(written(tmp_path, X, y), "--linear", "--out", tmp_path / "fit")
    assert "Linear regression predicts as well" in told


def test_where_linear_regression_is_better_the_score_with_linear_terms_is_said(tmp_path):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((80, 2))
    y = X @ [1.0, 2.0] + 20 + rng.standard_normal(80)
    told = said(written(tmp_path, X, y), "--out", tmp_path / "fit")
    folds = KFold(5, shuffle=True, random_state=0)
    line = cross_val_predict(LinearRegression(), X, y, cv=folds)
    score = 1 - ((line - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert f"Linear regression predicts better (cross-validated R² {score:.4g}, this" in told
    assert f"with --linear {score:.4g})" in told  # rank 0: linear regression itself


def test_where_nothing_predicts_linear_regression_is_no_advice(tmp_path):
    rng = np.random.default_rng(6)
    data = written(tmp_path, rng.standard_normal((80, 2)), rng.standard_normal(80) + 5)
    told = said(data, "--out", tmp_path / "fit")
    assert "Linear regression does not predict better than the mean either" in told
    assert "Linear regression predicts" not in told


def test_negative_responses_are_named_beside_linear_regression(tmp_path):
    X = np.random.default_rng(7).standard_normal((80, 2))
    told = said(written(tmp_path, X, -(X**2).sum(axis=1)), "--out", tmp_path / "fit")
    assert "80 of 80 responses are negative" in told


def test_constant_and_shifted_columns_are_named_with_linear_terms(tmp_path):
    X = np.random.default_rng(9).standard_normal((60, 2))
    columns = [X, np.full(60, 0.1), 2 * X[:, 0] + 1]
    data = written(tmp_path, np.column_stack(columns), X[:, 0] ** 2 + X[:, 1])
    told = said(data, "--linear", "--out", tmp_path / "fit")
    assert told.startswith("Not determined: ")
    assert "the same in every row: --drop x2" in told
    assert "(x3 is 2 times x0 plus a constant): --drop x3" in told


def test_one_row_makes_no_columns_alike(tmp_path):
    for options in ([], ["--linear"]):
        told = said(written(tmp_path, [[1.0, 2.0]], [3.0]), *options, "--out", tmp_path / "fit")
        assert "1 row for 2 columns are too few" in told
        assert "repeat others" not in told
        assert "in every row" not in told


def test_validation_can_be_left_out(tmp_path):
    write_columns(tmp_path / "data.csv", make("noisy"))
    told = said(tmp_path / "data.csv", "--no-validate", "--out", tmp_path / "fit")
    assert "cross-validated" not in told
    assert "linear regression" not in told


def test_no_minimum_names_the_columns_and_the_option(tmp_path):
    x = np.linspace(0, 3, 40)
    data = written(tmp_path, np.column_stack([np.ones(40), x, x > 1]), np.sqrt(x))
    told = said(data, "--rank", 1, "--intercept", "--out", tmp_path / "fit")
    assert told.startswith("No minimum: ")
    assert "--linear" in told
    assert "only one value: --drop x0 " in told


def test_ctrl_c_writes_the_best_model_so_far(tmp_path):
    """In a process of its own, interrupted once it searches."""
    rng = np.random.default_rng(0)
    data = written(tmp_path, rng.standard_normal((400, 60)), rng.standard_normal(400))
    words = [sys.executable, "-m", "posquad", "fit", str(data), "--out", str(tmp_path / "fit")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, **pipes)
    while not (tmp_path / "fit").exists() and process.poll() is None:
        time.sleep(0.05)  # the folder is probed before the fit begins
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, (out, err)
    if err != "Interrupted: nothing was written.\n":  # else it was too early for a model
        assert err == "Interrupted: the best model so far was written.\n"
        model = PositiveQuadraticRegressor.load(tmp_path / "fit")
        assert model.status_ is Status.INTERRUPTED
        assert out.startswith("Not finished: ")
