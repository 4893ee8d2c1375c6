"""Columns of text, yes/no and percentages as numbers, and missing values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

from posquad.cli.options import parse_encodings
from posquad.core.errors import DomainError
from posquad.io.tables import Encoding, Rules, TableError, _memory, open_table, read_samples
from posquad.io.tables.choosing import choose_columns
from posquad.io.tables.reading import load_samples
from tables_support import refusal, written

PEOPLE = (
    "sex,age,size,smoker,rate,y\n"
    "male,20,small,yes,5%,1\n"
    "female,30,large,no,12.5 %,2\n"
    "female,40,medium,No,-1%,3\n"
)


def encoded(path: Path, *texts: str, **options: object):
    return read_samples(path, encode=parse_encodings(texts), **options)


def test_every_encoding_by_hand(tmp_path):
    path = written(tmp_path, PEOPLE)
    samples = encoded(path, "sex,smoker", "size=small,medium,large", "rate=percent")
    assert samples.features == ("sex=female", "sex=male", "age", "size", "smoker", "rate")
    expected = [[0, 1, 20, 0, 1, 0.05], [1, 0, 30, 2, 0, 0.125], [1, 0, 40, 1, 0, -0.01]]
    assert samples.X.tolist() == expected
    assert dict(samples.facts)["encoded"] == (
        "sex (female, male); size (small 0, medium 1, large 2); smoker (no 0, yes 1); "
        "rate (percent)"
    )
    auto = encoded(path, "auto", "size=small,medium,large")
    assert auto.features == samples.features
    assert auto.X.tolist() == expected


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".xlsx", ".csv.gz"])
def test_iris_as_scikit_learn_encodes_it(tmp_path, suffix):
    iris = load_iris(as_frame=True)
    frame = iris.frame.rename(columns={"sepal length (cm)": "y"})
    frame["target"] = [str(iris.target_names[k]) for k in frame["target"]]
    frame = frame.sample(frac=1, random_state=0)
    path = tmp_path / f"iris{suffix}"
    writers = {".parquet": frame.to_parquet, ".xlsx": frame.to_excel}
    writers.get(suffix, frame.to_csv)(path, index=False)
    one = encoded(path, "target", response="y")
    numbers = frame.drop(columns=["y", "target"]).to_numpy()
    truth = OneHotEncoder(sparse_output=False).fit(frame[["target"]])
    assert np.array_equal(one.X, np.hstack([numbers, truth.transform(frame[["target"]])]))
    order = ["virginica", "setosa", "versicolor"]
    ordinal = encoded(path, f"target={','.join(order)}", response="y")
    ranks = OrdinalEncoder(categories=[order]).fit_transform(frame[["target"]])
    assert np.array_equal(ordinal.X, np.hstack([numbers, ranks]))


def test_no_set_of_features_adds_up_to_a_constant_twice(tmp_path):
    """The inputs have full rank, with two columns of text, and with a constant in the model."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.choice([*"pqr"], 60), "b": rng.choice([*"uvw"], 60)})
    frame["y"] = rng.standard_normal(60)
    path = tmp_path / "data.csv"
    frame.to_csv(path, index=False)
    full = encoded(path, "a,b")
    assert full.features == ("a=p", "a=q", "a=r", "b=v", "b=w")
    assert np.linalg.matrix_rank(full.X) == 5
    assert np.array_equal(full.X[:, :3].sum(1), np.ones(60))
    less = encoded(path, "a,b", constant=True)
    assert less.features == ("a=q", "a=r", "b=v", "b=w")
    assert np.linalg.matrix_rank(np.column_stack([less.X, np.ones(60)])) == 5


def test_levels_are_ordered_and_numbers_can_be_levels(tmp_path):
    path = written(tmp_path, "ward,y\n10,1\n2.0,2\n1,3\n2,4\n")
    samples = encoded(path, "ward")
    assert samples.features == ("ward=1", "ward=2", "ward=10")
    assert samples.X.tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 1, 0]]
    path = tmp_path / "data.npz"
    np.savez(path, ward=[3, 7, 3], y=[1.0, 2.0, 3.0])
    assert encoded(path, "ward").features == ("ward=3", "ward=7")


def test_an_encoded_table_that_does_not_fit_into_memory(tmp_path, monkeypatch):
    rows = "".join(f"level {k % 100},{k}\n" for k in range(2000))
    path = written(tmp_path, f"a,y\n{rows}")
    monkeypatch.setattr(_memory, "available_memory", lambda: 2_000_000)  # 100 columns need 3.2 MB
    with pytest.raises(TableError, match="expected an encoded table that fits into memory"):
        encoded(path, "a")


def test_a_response_can_be_encoded_as_one_number(tmp_path):
    path = written(tmp_path, PEOPLE)
    options = {"features": ["age"]}
    assert encoded(path, "smoker", response="smoker", **options).y.tolist() == [1, 0, 0]
    assert encoded(path, "auto", response="rate", **options).y.tolist() == [0.05, 0.125, -0.01]
    words = "expected a response of one number in each row; got text; give the order of its values"
    with pytest.raises(TableError, match=words):
        encoded(path, "sex", response="sex", **options)
    ranked = encoded(path, "sex=male,female", response="sex", **options)
    assert ranked.y.tolist() == [0, 1, 1]
    assert ranked.rules.response == Encoding("sex", "ordinal", ("male", "female"))


# What is refused, and which option helps.


def test_all_columns_that_are_no_numbers_are_named_at_once(tmp_path):
    dates = {"age": "born", ",20,": ",1.2.1990,", ",30,": ",3.4.91,", ",40,": ",12/31/1999,"}
    content = PEOPLE
    for number, day in dates.items():
        content = content.replace(number, day)
    sentence = refusal(written(tmp_path, content))
    assert "got text in 'sex' ('male', line 2), 'size' ('small', line 2), dates or times in" in (
        sentence
    )
    assert "yes or no in 'smoker' ('yes', line 2), percentages in 'rate' ('5%', line 2)" in sentence
    assert sentence.endswith(
        "; add --encode sex,size,smoker --encode rate=percent --drop born, "
        "or leave them out with --drop sex,size,smoker,rate"
    )


def test_text_of_many_values_can_only_be_left_out(tmp_path):
    names = "".join(f"person {k},{k},{k}\n" for k in range(60))
    path = written(tmp_path, f"first name,a,y\n{names}")
    assert refusal(path).endswith("('person 0', line 2); add --drop 'first name'")
    with pytest.raises(TableError, match="add --drop 'first name'"):
        encoded(path, "auto")


def test_a_response_of_text_is_another_column(tmp_path):
    path = written(tmp_path, PEOPLE)
    assert refusal(path, response="sex", features=["age"]).endswith(
        "expected columns of numbers; got text in 'sex' ('male', line 2); "
        "name another column with --response"
    )
    assert refusal(path, response="smoker", features=["age"]).endswith("; add --encode smoker")
    assert refusal(path, weights="size", features=["age"]).endswith("column with --weights")


@pytest.mark.parametrize(
    ("content", "texts", "words"),
    [
        (PEOPLE, ["sexx"], "a column 'sexx' for --encode; got sex, age.*did you mean 'sex'"),
        (PEOPLE, ["auto", "size=small,large"], "line 4, column 'size': expected one of small, lar"),
        (PEOPLE, ["auto", "age=percent"], "line 2, column 'age': expected a percentage such as 12"),
        ("a,y\nx,1\nx,2\n", ["a"], "'a': expected from 2 to 1000 different values to encode"),
        ("a,y\n2024-01-01,1\n2024-01-02,2\n", ["a"], "dates such as '2024-01-01'; add --drop a"),
        ("a,a=u,y\nu,1,1\nv,2,2\n", ["a"], "'a=u' twice, as a column and as a level of another"),
        ("a,b,y\n,1,2\nNA,3,4\n", ["a"], "from 2 to 1000 different values to encode; got 0; add"),
    ],
)  # fmt: skip
def test_encodings_that_are_refused(tmp_path, content, texts, words):
    with pytest.raises(TableError, match=words):
        encoded(written(tmp_path, content), *texts)


def test_columns_that_are_not_used_are_not_encoded(tmp_path):
    path = written(tmp_path, PEOPLE)
    with pytest.raises(TableError, match="--encode: expected columns that are used; got 'sex', wh"):
        encoded(path, "sex", features=["age"])
    with pytest.raises(TableError, match="got 'age', which is the weights"):
        encoded(path, "age", "sex", weights="age", features=["sex"])


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["sex,"], "names such as"),
        ([""], "names such as"),
        (["=a,b"], "names such as"),
        (["sex", "sex"], "each column once; got 'sex' twice"),
        (["size=small"], "different levels in their order"),
        (["size=a,b,a"], "different levels in their order"),
        (["size="], "names such as"),
        (["a,b=u,v"], "one column before ="),
    ],
)
def test_options_that_are_refused(texts, words):
    with pytest.raises(DomainError, match=words):
        parse_encodings(texts)


def test_names_with_signs_are_quoted():
    found = parse_encodings(['"a=b"', '"c,d"=u,"v,w"', "auto=onehot"])
    assert list(found.columns) == ["a=b", "c,d", "auto"]
    assert found.columns["c,d"].levels == ("u", "v,w")
    assert not found.auto


# Missing values.

GAPS = "sex,a,b,y\nm,1,,1\nf,,4,2\nf,3,5,3\nNA,5,6,4\nm,7,8,\n"


def test_missing_values_are_counted_by_column(tmp_path):
    with pytest.raises(TableError) as caught:
        encoded(written(tmp_path, GAPS), "sex")
    assert str(caught.value).endswith(
        "expected no missing values; got 1 in 'sex', 1 in 'a', 1 in 'b', 1 in 'y' (of 5 rows, the "
        "first in line 2); --missing drop leaves such rows out, --missing mean fills in column "
        "means"
    )


def test_missing_rows_are_left_out_and_the_others_keep_their_numbers(tmp_path):
    content = "sex,a,b,y\nm,1,,1\nf,2,4,2\nm,3,5,3\nNA,5,6,4\nx,7,8,\n"
    samples = encoded(written(tmp_path, content), "sex", missing="drop")
    assert samples.features == ("sex=f", "sex=m", "a", "b")  # no row that is left has sex x
    assert samples.X.tolist() == [[1, 0, 2, 4], [0, 1, 3, 5]]
    assert samples.y.tolist() == [2, 3]
    assert samples.rows([0, 1]) == ["line 3", "line 4"]
    told = dict(samples.facts)["rows left out"]
    assert told == "3 of 5, with missing values: 1 in 'sex', 1 in 'b', 1 in 'y'"


def test_missing_values_are_filled_with_means_as_pandas_computes_them(tmp_path):
    path = written(tmp_path, GAPS)
    samples = encoded(path, "sex", missing="mean")
    frame = pd.read_csv(path).dropna(subset="y")
    dummies = pd.get_dummies(frame["sex"], dtype=float)
    dummies[frame["sex"].isna()] = np.nan
    table = pd.concat([dummies, frame[["a", "b"]]], axis=1)
    assert np.allclose(samples.X, table.fillna(table.mean()), rtol=1e-15)
    assert np.allclose(samples.rules.means, table.mean(), rtol=1e-15)
    facts = dict(samples.facts)
    assert facts["rows left out"] == "1 of 5, with missing values: 1 in 'y'"
    assert facts["filled in"].endswith("column means: 1 in 'sex', 1 in 'a', 1 in 'b'")


def test_what_cannot_be_filled_is_refused(tmp_path):
    path = written(tmp_path, "a,b,y\n1,,1\n2,NA,2\n")
    assert "columns with values; got no value in 'b'; add --drop b" in refusal(path, missing="mean")
    assert "a row without missing values; got none of 2; missing are 2 in 'b'" in refusal(
        path, missing="drop"
    )


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet", ".csv", ".xlsx"])
def test_missing_numbers_in_every_kind_of_file(tmp_path, suffix):
    X = np.array([[1.0, np.nan, 2.0], [3.0, 4.0, 5.0], [np.nan, 6.0, 7.0]])
    frame, path = pd.DataFrame(X, columns=["a", "b", "y"]), tmp_path / f"data{suffix}"
    if suffix == ".npy":
        np.save(path, X)
    elif suffix == ".npz":
        np.savez(path, X=X[:, :2], y=X[:, 2])
    else:
        writers = {".parquet": frame.to_parquet, ".xlsx": frame.to_excel, ".csv": frame.to_csv}
        writers[suffix](path, index=False)
    response = "x3" if suffix == ".npy" else "y"
    sentence = refusal(path, response=response)
    first, second = ("x1", "x2") if suffix.startswith(".np") else ("a", "b")
    assert f"got 1 in {first!r}, 1 in {second!r} (of 3 rows, the first in" in sentence
    assert read_samples(path, response=response, missing="drop").X.tolist() == [[3, 4]]
    filled = read_samples(path, response=response, missing="mean")
    assert filled.X.tolist() == [[1, 5], [3, 4], [2, 6]]


def test_a_level_that_is_named_is_not_missing(tmp_path):
    path = written(tmp_path, "alley,y\nnone,1\ngravel,2\nNA,3\n")
    samples = encoded(path, "alley=none,gravel", missing="drop")
    assert samples.X.tolist() == [[0], [1]]


# The rules of a model.


def test_rules_are_applied_to_other_tables(tmp_path):
    learned = encoded(written(tmp_path, PEOPLE), "sex,smoker,size", "rate=percent").rules
    rules = Rules.from_json(json.loads(json.dumps(learned.to_json())))
    assert rules == learned
    names = [each.column for each in rules.inputs]

    def apply(content: str, **options: object):
        table = open_table(written(tmp_path, content, "new.csv"))
        choice = choose_columns(table, features=names, optional_response=True)
        return load_samples(table, choice, rules=rules, **options)

    header = "y,rate,smoker,size,age,sex\n"
    new = apply(f"{header}9,50%,TRUE,small,1,female\n")
    assert new.features == ("sex=female", "sex=male", "age", "size=medium", "size=small", "smoker",
                            "rate")  # fmt: skip
    assert new.X.tolist() == [[1, 0, 1, 0, 1, 1, 0.5]]
    for row, words in [
        (
            "9,50%,yes,huge,1,male",
            "line 2, column 'size': expected one of large, medium, small; go",
        ),
        ("9,50%,maybe,small,1,male", "column 'smoker': expected yes or no (true or false); got 'm"),
        ("9,0.5,yes,small,1,male", "line 2, column 'rate': expected a percentage"),
        ("9,5%,yes,small,old,male", "line 2, column 'age': expected a finite number; got 'old'"),
    ]:
        with pytest.raises(TableError) as caught:
            apply(f"{header}{row}\n")
        assert words in str(caught.value)
    gaps = f"{header}9,,yes,small,,female\n"
    with pytest.raises(TableError, match=r"1 in 'age', 1 in 'rate'.*; --missing mean fills in the"):
        apply(gaps, keep_rows=True)
    filled = apply(gaps, missing="mean", keep_rows=True)
    assert filled.X[0, [2, 6]] == pytest.approx([30, (0.05 + 0.125 - 0.01) / 3], rel=1e-15)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"inputs": [{"column": "sex", "kind": "hash"}]},
        {"inputs": [{"column": "sex", "kind": "onehot"}]},
        {"inputs": [{"column": 1, "kind": "number"}]},
        {"inputs": ["sex"]},
        {"inputs": None},
        {"means": [1.0]},
        {"means": ["x"]},
        {"missing": "guess"},
        {"decimal": ";"},
    ],
)
def test_rules_that_were_changed_are_refused(tmp_path, change):
    body = encoded(written(tmp_path, PEOPLE), "auto").rules.to_json()
    with pytest.raises(ValueError, match=r"rules of a table|an encoding|means|could not|--decimal"):
        Rules.from_json({**body, **change})
    with pytest.raises(ValueError, match="another version"):
        Rules.from_json([])
