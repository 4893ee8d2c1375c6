"""Tables as people have them, from the file to the prediction: text, gaps, other formats."""

from __future__ import annotations

import gzip
import hashlib
import json

import numpy as np
import pandas as pd
import pytest

from cli_support import assert_refused, command
from posquad.estimator import PositiveQuadraticRegressor

OPTIONS = ["--encode", "sex,port,smoker", "--encode", "rate=percent", "--encode", "size=S,M,L"]
OPTIONS += ["--drop", "name,day", "--response", "fare", "--rank", 2, "--no-certify"]


def people() -> pd.DataFrame:
    """A table like that of the passengers of the Titanic, with everything that is no number."""
    rng = np.random.default_rng(0)
    n = 80
    age, share = rng.integers(1, 80, n).astype(float), rng.integers(0, 30, n)
    sex, port = rng.choice(["male", "female"], n), rng.choice([*"CQS"], n)
    fare = (0.1 * age + 2 * (sex == "male") + (port == "C")) ** 2 + 0.1 * rng.standard_normal(n)
    columns = {"name": [f"person {k}" for k in range(n)], "sex": sex, "age": age, "port": port}
    columns |= {"day": pd.date_range("1912-04-01", periods=n).strftime("%Y-%m-%d")}
    columns |= {"smoker": rng.choice(["yes", "no"], n), "rate": [f"{x}%" for x in share]}
    return pd.DataFrame(columns | {"size": rng.choice([*"SML"], n), "fare": fare.round(3)})


def features(frame: pd.DataFrame) -> np.ndarray:
    """The inputs by hand: all of sex, port without its first level."""
    parts = [frame["sex"] == "female", frame["sex"] == "male", frame["age"]]
    parts += [frame["port"] == "Q", frame["port"] == "S", frame["smoker"] == "yes"]
    parts += [frame["rate"].str.rstrip("%").astype(float) / 100]
    return np.column_stack([*parts, frame["size"].map({"S": 0, "M": 1, "L": 2})]).astype(float)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    people().to_csv(folder / "people.csv")
    result = command("fit", folder / "people.csv", *OPTIONS, "--out", folder / "fit")
    assert result.exit_code == 0, result.output
    return folder, result.stdout


def printed(output: str) -> np.ndarray:
    return np.array([float(line.split(",")[0]) for line in output.splitlines()[1:]])


def test_the_options_of_the_message_make_the_fit_possible(fitted):
    folder, _ = fitted
    data = folder / "people.csv"
    result = command("fit", data, "--response", "fare", "--out", folder / "other")
    advice = "--encode sex,port,smoker,size --encode rate=percent --drop name,day, or"
    assert_refused(result, f"; add {advice}")
    words = advice.removesuffix(", or").split()
    again = command("fit", data, "--response", "fare", *words, "--rank", 1, "--no-certify",
                    "--out", folder / "other")  # fmt: skip
    assert again.exit_code == 0, again.output


def test_the_fit_says_what_it_did(fitted):
    folder, told = fitted
    flat = " ".join(told.split())
    assert "left out the first column, which has no name: an index" in flat
    assert "encoded sex (female, male); port (C, Q, S, without C); smoker (no 0, yes 1);" in flat
    facts = told.split("\n\n")[1].splitlines()
    assert all(len(line) <= 80 for line in facts)
    page = (folder / "fit" / "report.html").read_text(encoding="utf-8")
    assert "port (C, Q, S, without C)" in page
    assert "which has no name: an index" in page


def test_predictions_use_the_rules_of_the_fit(fitted):
    """x'Qx with NumPy and the inputs by hand, in any order of the columns and any kind of file."""
    folder, _ = fitted
    model = PositiveQuadraticRegressor.load(folder / "fit")
    frame = people().sample(frac=1, random_state=1)
    X = features(frame)
    expected = np.square(X @ model.components_.T).sum(1)
    mixed = frame[frame.columns[::-1]]
    mixed.to_csv(folder / "new.csv", index=False)
    mixed.to_excel(folder / "new.xlsx", index=False)
    mixed.assign(smoker=mixed["smoker"] == "yes").to_parquet(folder / "new.parquet")
    for name in ("new.csv", "new.xlsx", "new.parquet"):
        result = command("predict", folder / "fit", folder / name)
        assert result.exit_code == 0, result.output
        assert np.allclose(printed(result.stdout), expected, rtol=1e-12)
        assert "Compared with column 'fare'" in result.stderr


def test_what_predictions_refuse(fitted, tmp_path):
    folder, _ = fitted
    frame = people().head(3)
    data = tmp_path / "new.csv"

    def refused(new: pd.DataFrame, *words: str) -> None:
        new.to_csv(data, index=False)
        assert_refused(command("predict", folder / "fit", data), *words)

    ports = frame.assign(port=["C", "X", "S"])
    refused(ports, f"{data}: line 3, column 'port': expected one of C, Q, S; got 'X'")
    refused(frame.drop(columns=["sex", "age"]), "the columns 'sex', 'age' of the model; got name,")
    gaps = frame.assign(age=[1, np.nan, 2], sex=["male", None, None])
    refused(gaps, "got 2 in 'sex', 1 in 'age' (of 3 rows, the first in line 3); --missing mean")
    filled = command("predict", folder / "fit", data, "--missing", "mean")
    model, X = PositiveQuadraticRegressor.load(folder / "fit"), features(gaps)
    means = features(people()).mean(0)
    X[1, 2], X[1:, :2] = means[2], means[:2]
    assert np.allclose(printed(filled.stdout), np.square(X @ model.components_.T).sum(1))


def test_columns_by_position_are_encoded_too(fitted, tmp_path):
    folder, _ = fitted
    names = {"sex": "geschlecht", "port": "hafen"}
    people().rename(columns=names).to_csv(tmp_path / "new.csv", index=False)
    order = "geschlecht,age,hafen,smoker,rate,size"
    result = command("predict", folder / "fit", tmp_path / "new.csv", "--features", order)
    assert result.stdout == command("predict", folder / "fit", folder / "people.csv").stdout
    short = command("predict", folder / "fit", tmp_path / "new.csv", "--features", "age,size")
    assert_refused(short, "expected 6 columns of inputs, as the model has")


@pytest.mark.parametrize("missing", ["drop", "mean"])
def test_missing_values_in_a_fit(tmp_path, missing):
    frame = people()
    frame.loc[[3, 5], "age"] = np.nan
    frame.loc[[5], "sex"] = None
    data, out = tmp_path / "people.csv", tmp_path / "fit"
    frame.to_csv(data, index=False)
    counts = "got 1 in 'sex', 2 in 'age' (of 80 rows, the first in line 5); --missing drop leaves"
    assert_refused(command("fit", data, *OPTIONS, "--out", out), counts)
    result = command("fit", data, *OPTIONS, "--missing", missing, "--out", out)
    assert f"samples            {78 if missing == 'drop' else 80}; this" in result.stdout
    again = command("predict", out, data)
    if missing == "drop":
        assert_refused(again, "--missing mean fills in the column means of the fitted data")
    else:
        assert len(printed(again.stdout)) == 80


def test_a_model_of_an_earlier_version_is_read(fits, tmp_path):
    folder = fits["noisy"][1]
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    body = json.loads((folder / "model.json").read_text())
    assert body.pop("table_rules")["version"] == 1
    store(tmp_path / "model.json", body)
    data = folder.parent / "noisy.csv"
    assert command("predict", tmp_path, data).stdout == command("predict", folder, data).stdout
    gaps = tmp_path / "gaps.csv"
    gaps.write_text(",".join(f"x{k}" for k in range(1, 9)) + "\n1,2,3,4,5,6,7,\n")
    refused = command("predict", tmp_path, gaps)
    assert_refused(refused, "got 1 in 'x8'", "leave such rows out or fill them in")
    refused = command("predict", tmp_path, gaps, "--missing", "mean")
    assert_refused(refused, "expected a model that holds column means, for --missing mean")


def store(path, body: dict) -> None:
    """Write the file of a model with its checksum, as the format says."""
    rest = {key: value for key, value in body.items() if key != "sha256"}
    checksum = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**rest, "sha256": checksum}))


@pytest.mark.parametrize(
    "rules", [[], {"version": 9}, {"version": 1}, {"means": [1.0]}, {"inputs": [1]}]
)
def test_rules_that_cannot_be_used(fits, tmp_path, rules):
    folder = fits["noisy"][1]
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    body = json.loads((folder / "model.json").read_text())
    whole = isinstance(rules, dict) and "version" not in rules
    store(tmp_path / "model.json", {**body, "table_rules": {**body["table_rules"], **rules}
                                    if whole else rules})  # fmt: skip
    data = folder.parent / "noisy.csv"
    for words in (("predict", tmp_path, data), ("certify", data, tmp_path)):
        assert_refused(command(*words), "expected a fitted model; got")


def test_a_model_that_is_fitted_again_forgets_the_table(fitted, tmp_path):
    model = PositiveQuadraticRegressor.load(fitted[0] / "fit")
    assert model.table_rules_ is not None
    X = np.random.default_rng(0).standard_normal((20, 2))
    model.set_params(rank=1).fit(X, X[:, 0] ** 2).save(tmp_path / "model")
    assert PositiveQuadraticRegressor.load(tmp_path / "model").table_rules_ is None


# Standard input and other formats, through the program.


def test_standard_input(fits, tmp_path):
    data = (fits["noisy"][1].parent / "noisy.csv").read_bytes()
    out = tmp_path / "out"
    words = ["fit", "-", "--out", str(out)]
    result = command(*words, input=gzip.compress(data))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == fits["noisy"][0].stdout.splitlines()[0]
    assert "from standard input" in (out / "report.html").read_text(encoding="utf-8")
    piped = command("predict", out, "-", input=data)
    assert piped.stdout == command("predict", fits["noisy"][1], fits["noisy"][1].parent
                                   / "noisy.csv").stdout  # fmt: skip
    bad = command(*words, input=b"a,y\n1,2\nx,4\n5,6\n")
    assert_refused(bad, "standard input: line 3, column 'a': expected a finite number; got 'x'")
    assert_refused(command(*words, input=b""), "got an empty file")


def test_a_proof_of_encoded_data_is_checked_again(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    a, size = rng.integers(-9, 9, 30), rng.integers(0, 3, 30)
    y = (a + 2.5 * size) ** 2
    data = "".join(f"{u};{[*'SML'][s]};{v}\n".replace(".", ",") for u, s, v in zip(a, size, y,
                   strict=True))  # fmt: skip
    (tmp_path / "data.csv").write_text(f"a;size;y\n{data}")
    monkeypatch.chdir(tmp_path)
    options = ["--encode", "size=S,M,L", "--decimal", ","]
    result = command("fit", "data.csv", *options)
    assert result.stdout.startswith("Certified"), result.output
    line = next(line for line in result.stdout.splitlines() if "posquad certify" in line)
    again = command(*line.split()[1:])
    assert again.exit_code == 0, again.output
    assert command("certify", "data.csv", "fit").exit_code == 0
    refused = command("certify", "data.csv", "fit", *options)
    assert_refused(refused, "--encode, --missing: expected neither of them for a fitted model")
    piped = command("certify", "-", "fit", input=f"a;size;y\n{data}")
    assert piped.exit_code == 0, piped.output
    plain = data.replace(",", ".")
    (tmp_path / "points.csv").write_text(f"a;size;y\n{plain}")
    refused = command("predict", "fit", "points.csv", "--response", "y")
    assert_refused(refused, "a number with --decimal .")
    assert command("predict", "fit", "points.csv", "--decimal", ".").exit_code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--decimal", ";"], ["--decimal: expected . or ,"]),
        (["--thousands", "."], ["a mark other than --decimal"]),
        (["--encode", "x1,"], ["--encode: expected names such as"]),
        (["--encode", "z"], ["a column 'z' for --encode"]),
        (["--encode", "x1=low"], ["--encode: expected onehot, percent, or different levels"]),
    ],
)
def test_options_that_are_refused(fits, tmp_path, options, words):
    data = fits["few"][1].parent / "few.csv"
    assert_refused(command("fit", data, *options, "--out", tmp_path / "out"), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--intercept", "--linear"])
def test_a_constant_takes_the_place_of_the_first_level(tmp_path, option):
    frame = people()[["sex", "age", "fare"]]
    frame.to_csv(tmp_path / "data.csv", index=False)
    words = ["--response", "fare", "--encode", "auto", option, "--rank", 1]
    result = command("fit", tmp_path / "data.csv", *words, "--out", tmp_path / "fit")
    assert "encoded            sex (female, male, without female)" in result.stdout
    model = PositiveQuadraticRegressor.load(tmp_path / "fit")
    assert list(model.feature_names_in_) == ["sex=male", "age"]
