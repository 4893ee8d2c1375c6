"""The words and the page of a fit, and the page of the documentation about them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cli_support import check_transcript, command
from posquad.core.status import Status
from posquad.estimator import PositiveQuadraticRegressor
from posquad.io.tables import Samples
from posquad.report import fit_report
from posquad.report.figures import draw
from posquad.report.fit_answer import HEADINGS, answer
from posquad.report.fit_figures import panels
from posquad.report.fit_report import render
from posquad.report.fitted_model import FittedModel, format_r_squared

# Words and page.


def fit_with(status: Status, **changes: object) -> FittedModel:
    X = np.random.default_rng(0).standard_normal((40, 3))
    y = (X[:, 0] + X[:, 1]) ** 2
    model = PositiveQuadraticRegressor(1).fit(X, y)
    model.status_ = status
    for name, value in changes.items():
        setattr(model, name, value)
    samples = Samples(Path("data.csv"), X, y, None, ("<b>a</b>", "b", "c"), True, "<i>y</i>")
    return FittedModel(
        model, samples, model.predict(X), 1.0, "posquad <u>fit</u>", Path("fit/model.json")
    )


@pytest.mark.parametrize("status", HEADINGS)
def test_every_status_has_words(status):
    said = answer(fit_with(status))
    assert said.word == HEADINGS[status][0]
    assert said.message.lower().endswith(f"{status.value.lower()}.")
    assert said.steps
    assert all(step.words[0].isupper() for step in said.steps)
    page = render(fit_with(status))
    assert f"{said.word}: {said.headline}" in page
    for markup in ("<b>", "<i>", "<u>"):  # names of columns, and the command, are only text
        assert markup not in page
    for text in ("&lt;b&gt;a&lt;/b&gt;", "&lt;i&gt;y&lt;/i&gt;", "&lt;u&gt;fit"):
        assert text in page


def test_an_error_that_rounding_hides_is_not_blamed_on_the_starts():
    said = answer(fit_with(Status.STALLED, residual_=np.nan))
    [step] = said.steps
    assert step.words.startswith("Rounding hides the error of the fit: shuffle the rows")
    assert "rounding hides the error" in said.message


@pytest.mark.parametrize("status", [Status.BEST_FIT, Status.STALLED])
def test_a_limit_on_the_rank_is_named_where_it_ended_the_choice(status):
    chosen = {"rank": None, "rank_": 2, "max_rank": 2}
    words = [step.words for step in answer(fit_with(status, **chosen)).steps]
    told = "Rank 2 is the best of those tried, and --max-rank 2 allowed no higher one: raise the"
    assert any(step.startswith(told) for step in words)
    whole = {"rank_": 3, "max_rank": 3}  # of three columns
    for other in ({"rank": 2}, {"max_rank": 3}, {"max_rank": None}, whole):
        words = [step.words for step in answer(fit_with(status, **chosen | other)).steps]
        assert not any("--max-rank" in step for step in words)


def test_statuses_that_a_fit_can_have_all_have_words():
    begun = list(Status).index(Status.RECOVERED)
    assert set(HEADINGS) == set(list(Status)[begun:])


def test_advice_follows_the_numbers():
    fit = fit_with(Status.BEST_FIT, residual_=2e-6)
    words = " ".join(step.words for step in answer(fit).steps)
    assert "--tolerance 1e-05" in words
    assert "leave out --rank" in words
    fit.samples.y[:5] = -10.0
    worse = FittedModel(fit.model, fit.samples, fit.predicted, 1.0, "", Path("fit/model.json"))
    words = " ".join(step.words for step in answer(worse).steps)
    assert "5 of 40 responses are negative" in words
    assert worse.r_squared == pytest.approx(
        1 - np.square(worse.observed - worse.predicted).sum() / (40 * worse.observed.var())
    )
    free = fit_with(Status.NOT_IDENTIFIED, kernel_dimension_=2)
    assert "2 directions are free" in answer(free).steps[0].words


def best_fit_of(y: np.ndarray, **options: object) -> str:
    X = np.random.default_rng(0).standard_normal((len(y), 3))
    model = PositiveQuadraticRegressor(1, **options).fit(X, y)
    samples = Samples(Path("data.csv"), X, y, None, ("a", "b", "c"), True, "y")
    fit = FittedModel(model, samples, model.predict(X), 1.0, "", Path("fit/model.json"))
    model.status_ = Status.BEST_FIT
    said = answer(fit)
    return " ".join([said.message, *(step.words for step in said.steps)])


@pytest.mark.parametrize(
    ("shift", "told"),
    [
        (-100.0, "300 of 300 responses are negative"),
        (-2.0, "of 300 responses are negative"),
        (0.0, ""),
    ],
)
def test_negative_responses_are_counted_plainly(shift, told):
    """Those of noise around zero are no reason for advice."""
    rng = np.random.default_rng(0)
    y = rng.standard_normal((300, 3))[:, 0] ** 2 * 2 + shift + 0.1 * rng.standard_normal(300)
    count = int((y < 0).sum())
    assert count > 1
    words = best_fit_of(y)
    assert (f"{count} of 300 responses are negative" in words) == bool(told)
    assert told in words


def test_one_negative_response_is_one():
    y = np.random.default_rng(0).standard_normal((300, 3))[:, 0] ** 2
    y[7] = -50.0
    assert "1 response is negative" in best_fit_of(y)


def test_numbers_that_are_not_defined_are_not_shown():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    y = np.full(40, 2.0)
    model = PositiveQuadraticRegressor(1).fit(X, y)
    samples = Samples(Path("data.csv"), X, y, None, ("a", "b", "c"), True, "y")
    fit = FittedModel(model, samples, model.predict(X), 1.0, "", Path("fit/model.json"))
    facts = dict(answer(fit).facts)
    assert facts["R²"] == "undefined (constant responses)"
    assert facts["samples"].startswith("40; this rank needs at least 4")
    model.rank = 2  # as if it was lowered
    assert dict(answer(fit).facts)["samples"] == "40"
    model.rank, model.rank_ = None, 0
    assert dict(answer(fit).facts)["samples"] == "40"


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.5123, "0.5123"), (1 - 4.6e-4, "0.9995"), (1 - 3e-6, "0.999997"), (1 - 3e-8, "1 - 3.0e-08")],
)
def test_a_share_close_to_one_can_be_read(value, told):
    assert format_r_squared(value) == told


def test_a_certificate_of_noisy_data_says_what_it_is_about(fits):
    result, folder = fits["noisy"]
    assert "not applicable: the responses are not reproduced exactly" in result.stdout
    assert result.stdout.split("\n")[1].startswith("The model explains 99.6% of the variance.")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Unique for its own fitted values; the responses are not fitted exactly" in page
    data = folder.parent / "noisy.csv"
    made = command("certify", data, folder)
    words = "nique for its own fitted values; the responses are not fitted exactly, so nothing is"
    assert words in made.stdout.splitlines()[-1]
    again = command("certify", data, folder / "model.certificate.json")
    assert again.stdout.splitlines()[-1].startswith(f"valid, but u{words}")


def test_a_spectrum_of_which_only_the_ends_are_known():
    """Of p = 1200 directions: nothing is said of those that were not looked at."""
    ends = {"effective_spectrum_": np.array([0.5, 8.0]), "kernel_dimension_": np.nan}
    fit = fit_with(Status.BEST_FIT, **ends)
    fit.model.n_features_in_ = 1200
    page = render(fit)
    assert "1200 directions, the number not identified is unknown" in page
    assert "Only the smallest and the largest eigenvalue were computed: 0.5 and 8." in page


def test_what_is_unknown_is_said():
    fit = fit_with(Status.BEST_FIT, kernel_dimension_=np.nan, identifiable_=None)
    told = "unknown; the data may leave some directions of Q free"
    assert dict(answer(fit).facts)["free directions"] == told
    page = render(fit)
    assert told in page
    assert "It is unknown whether the data identify the components." in page
    assert "3 directions, the number not identified is unknown" in page
    assert "The eigenvalues range from" in page
    assert "identified ones" not in page
    [spectrum] = [panel for panel in panels(fit) if panel.title == "Effective spectrum"]
    assert "computed (3)" in draw(spectrum, fit, None).svg
    free = fit_with(Status.NOT_IDENTIFIED, kernel_dimension_=np.nan)
    assert answer(free).steps[0].words == "Collect samples with more varied inputs."
    assert "free directions" not in dict(answer(fit_with(Status.BEST_FIT)).facts)
    assert "It is unknown" not in render(fit_with(Status.BEST_FIT))


def test_many_rows_are_thinned_and_the_largest_residuals_kept(rendered):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30_000, 2))
    y = X[:, 0] ** 2 + 0.1 * rng.standard_normal(30_000)
    y[12_345] += 100
    model = PositiveQuadraticRegressor(1).fit(X, y)
    samples = Samples(Path("data.csv"), X, y, None, ("a", "b"), True, "y")
    fit = FittedModel(model, samples, model.predict(X), 1.0, "posquad fit", Path("fit/model.json"))
    page = render(fit)
    assert "of 30000 rows, including the largest residuals" in page
    assert len(page) < 2_000_000
    told = " ".join(step.words for step in answer(fit).steps)
    assert "Row 12346 is an outlier: check for errors, or fit again with a loss that" in told


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


def test_the_page_shows_what_the_commands_say(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "command-line.md"
    monkeypatch.chdir(tmp_path)
    assert check_transcript(page.read_text(encoding="utf-8")) >= 8


def test_the_page_names_every_answer_and_suffix():
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    for word, _, _ in HEADINGS.values():
        assert f"\n| {word} |" in page
    for suffix in (
        ".csv",
        ".tsv",
        ".txt",
        ".csv.gz",
        ".csv.zst",
        ".xlsx",
        ".parquet",
        ".npz",
        ".npy",
    ):
        assert f"`{suffix}`" in page


# Advice that is withheld.


def test_outliers_of_a_model_that_explains_little_are_not_named():
    """Heavy tails of responses that have nothing to do with the inputs are no errors."""
    rng = np.random.default_rng(0)
    y = np.exp(2 * rng.standard_normal(300))
    assert "explains little" in best_fit_of(y)
    assert "check for errors" not in best_fit_of(y)
    X = np.random.default_rng(0).standard_normal((300, 3))
    y = X[:, 0] ** 2 + 0.05 * rng.standard_normal(300)
    y[7] = 60.0  # R2 is low because of this row alone
    words = best_fit_of(y)
    assert "explains little" in words
    assert "Row 8 is an outlier" in words or "Rows 8" in words


@pytest.mark.parametrize(
    ("changes", "advised"),
    [
        ({"certify": False}, True),
        ({"certify": True}, False),
        ({"certify": False, "fit_intercept": True}, False),
        ({"certify": False, "linear": True}, False),
        ({"certify": False, "rank_": 0}, False),
    ],
)
def test_a_proof_is_advised_only_where_it_was_not_requested(changes, advised):
    fit = fit_with(Status.RECOVERED, **changes)
    words = " ".join(step.words for step in answer(fit).steps)
    assert ("--certify" in words) == advised
    if changes.get("rank_", 1):
        assert ("request one with --certify" in render(fit)) == advised


# The table of components.


def shown_inputs(U, X, linear=None):
    """The inputs that the page shows, and what it says about them."""
    samples = Samples(Path("a.npy"), X, np.ones(len(X)), None, tuple(f"x{k}" for k in range(20)),
                      True, "y")  # fmt: skip
    coef = np.zeros(20) if linear is None else linear
    model = SimpleNamespace(components_=U, coef_=coef, linear=linear is not None)
    fit = FittedModel(model, samples, np.ones(len(X)), 0.1, "posquad fit", Path("fit"))
    table = fit_report._components(fit)
    return [row["name"] for row in table["rows"]], table["note"]


def test_the_inputs_that_are_shown_do_not_depend_on_units():
    """Columns in other units have other entries of U and b, and the same part of the response."""
    rng = np.random.default_rng(0)
    U, X, b = rng.standard_normal((2, 20)), rng.uniform(1, 2, (90, 20)), rng.standard_normal(20)
    units = 10.0 ** rng.integers(-3, 4, 20)
    names, note = shown_inputs(U, X)
    assert len(names) == 12
    assert "12 of 20 inputs, those with the largest terms of their own, Q_kk times the mean" in note
    own = [(np.square(U[:, k]).sum() * np.square(X[:, k]).mean(), f"x{k}") for k in range(20)]
    assert names == [name for _, name in sorted(own, reverse=True)[:12]]
    assert shown_inputs(U / units, X * units)[0] == names
    # With linear terms, other zeros of the inputs also only change b: f(x) = g(x + a).
    linear, note = shown_inputs(U, X, b)
    assert "effect around the means: Q_kk times the variance of x_k, plus the slope" in note
    a = rng.uniform(0, 300, 20)
    assert shown_inputs(U / units, (X + a) * units, (b - 2 * U.T @ (U @ a)) / units)[0] == linear
    assert (
        shown_inputs(np.zeros((0, 20)), X * units, b / units)[0]
        == (shown_inputs(np.zeros((0, 20)), X, b)[0])
    )
