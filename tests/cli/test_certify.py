"""`posquad certify`: certificates made, kept and proved again; files that cannot be used."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest

from cli_support import assert_refused
from cli_support import command as posquad_command

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 4))
U = np.array([[1.0], [2.0], [0.0], [-1.0]])
Y = np.square(X @ U).sum(1)


def command(*arguments):
    return posquad_command("certify", *arguments)


@pytest.fixture
def files(tmp_path):
    """Data and a factor that answers them."""
    np.savez(tmp_path / "data.npz", X=X, y=Y)
    np.savez(tmp_path / "model.npz", U=U)
    return tmp_path / "data.npz", tmp_path / "model.npz"


def test_a_factor_is_certified_kept_and_proved_again(files, tmp_path):
    made = command(*files, "--save", tmp_path / "answer")
    assert made.exit_code == 0, made.output
    assert made.stdout.startswith(
        "proved to be the only answer: every PSD matrix that fits as well"
    )
    assert "Saved: " in made.stdout
    again = command(files[0], tmp_path / "answer.json")
    assert again.exit_code == 0
    assert again.stdout.splitlines()[-1] == "valid: proved to be the only answer"
    assert "proved again: global_uniqueness" in again.stdout
    # The arrays beside the certificate hold the factor too.
    assert command(files[0], tmp_path / "answer.npz").exit_code == 0


def test_ten_gigabytes_of_zeros_are_refused(files, tmp_path):
    """Judged by their size: read, they would take twice as much memory."""
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)
    assert_refused(command(files[0], path), "huge.json", "larger than 16 MB")


def test_dense_measurements(tmp_path):
    A = np.einsum("ni,nj->nij", X, X)
    np.savez(tmp_path / "data.npz", A=A, y=np.einsum("nij,ik,jk->n", A, U, U))
    np.savez(tmp_path / "model.npz", U=U)
    assert command(tmp_path / "data.npz", tmp_path / "model.npz").exit_code == 0


def test_whole_and_single_precision_numbers_are_taken_as_they_are(tmp_path):
    whole = RNG.integers(-4, 5, (30, 4))
    single = U.astype(np.float32)
    np.savez(tmp_path / "data.npz", X=whole, y=np.square(whole @ U).sum(1).astype(np.int32))
    np.savez(tmp_path / "model.npz", U=single)
    assert command(tmp_path / "data.npz", tmp_path / "model.npz").exit_code == 0


@pytest.mark.parametrize("change", ["factor", "few", "noise"])
def test_what_is_not_proved_has_status_one(files, tmp_path, change):
    data, model = files
    if change == "factor":
        np.savez(model, U=U + 1e-3)
    elif change == "few":
        np.savez(data, X=X[:3], y=Y[:3])
    else:
        np.savez(data, X=X, y=Y + 0.01 * RNG.standard_normal(30))
    made = command(data, model, "--save", tmp_path / "answer")
    assert made.exit_code == 1
    assert made.stdout.startswith("not proved to be the only answer\n")
    # A certificate that claims little is right about it, and still no proof of the answer.
    again = command(data, tmp_path / "answer.json")
    assert again.exit_code == 1
    words = "it does not prove that the answer is the only one"
    if change != "few":
        words = "the responses are not fitted exactly, so nothing is proved about them"
    assert again.stdout.splitlines()[-1].startswith("valid, but ")
    assert words in again.stdout.splitlines()[-1]


def test_a_certificate_of_other_data_is_not_valid(files, tmp_path):
    command(*files, "--save", tmp_path / "answer")
    np.savez(files[0], X=X, y=Y + 1e-9)
    result = command(files[0], tmp_path / "answer.json")
    assert result.exit_code == 1
    assert "not confirmed: the certificate belongs to other data" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("not valid")


def test_a_changed_certificate_is_refused(files, tmp_path):
    command(*files, "--save", tmp_path / "answer")
    path = tmp_path / "answer.json"
    body = json.loads(path.read_text())
    body["claims"]["beta"] = 2 * body["claims"]["beta"]
    path.write_text(json.dumps(body))
    assert_refused(command(files[0], path), "checksum")
    (tmp_path / "answer.npz").unlink()
    assert_refused(command(files[0], path), "no such file", "answer.npz")
    path.write_text("{")
    assert_refused(command(files[0], path), "fitted model", "answer")


def test_files_that_are_missing(files, tmp_path):
    missing = tmp_path / "missing.npz"
    assert_refused(command(missing, files[1]), "missing.npz", "no such file")
    assert_refused(command(files[0], missing), "missing.npz", "no such file")
    assert_refused(command(files[0], tmp_path / "missing.json"), "missing.json", "no such file")
    assert_refused(command(tmp_path, files[1]), str(tmp_path))


def content(kind, tmp_path):
    """Bytes that are not a usable data file."""
    buffer = io.BytesIO()
    if kind == "text":
        return b"x,y\n1,2\n"
    if kind == "empty":
        return b""
    if kind == "array":
        np.save(buffer, X)
    elif kind == "pickle":
        np.savez(buffer, X=np.array([{}, X], dtype=object), y=Y)
    elif kind == "foreign zip":
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("X.npy", "no array")
            archive.writestr("y.npy", "no array")
    else:
        (np.savez_compressed if kind == "flipped" else np.savez)(buffer, X=X, y=Y)
    whole = buffer.getvalue()
    if kind == "flipped":
        return whole[:200] + bytes(64) + whole[264:]
    return whole[: len(whole) // 2] if kind == "truncated" else whole


KINDS = ["text", "empty", "array", "pickle", "foreign zip", "truncated", "flipped"]


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_another_kind(files, tmp_path, kind):
    files[0].write_bytes(content(kind, tmp_path))
    assert_refused(command(*files), "data.npz")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"X": X}, ["--response", "x1, x2, x3, x4"]),
        ({}, ["X (n, d) and y (n)", "no array"]),
        ({"X": X, "y": Y[:-1]}, ["30 rows of X", "29 entries of y"]),
        ({"X": X[0], "y": Y}, ["X: expected 2 axes", "(4,)"]),
        ({"X": X[None, None], "y": Y}, ["X: expected 2 axes"]),
        ({"X": X, "y": Y[:, None]}, ["y: expected 1 axis"]),
        ({"A": X, "y": Y}, ["A: expected 3 axes"]),
        ({"X": X[:0], "y": Y[:0]}, ["n, d >= 1"]),
        ({"X": np.where(X[3, 1] == X, np.nan, X), "y": Y}, ["got 1 in 'x2' (of 30 rows", "row 4"]),
        (
            {"X": X, "y": np.where(Y[5] == Y, np.inf, Y)},
            ["y, row 6: ", "got an infinity"],
        ),
        ({"X": X + 1j, "y": Y}, ["X: expected real numbers", "complex128"]),
        ({"X": X, "y": np.full(30, "1")}, ["y: expected real numbers"]),
        ({"X": X, "y": np.full(30, 2**53 + 1)}, ["y, row 1: expected a double precision number"]),
        ({"A": np.einsum("ni,nj->nij", X, X + 1), "y": Y}, ["A"]),
        ({"A": np.full((2, 4, 4), np.inf), "y": Y[:2]}, ["A, matrix 1, row 1, column 1: expected"]),
    ],
)
def test_arrays_that_do_not_fit(files, arrays, words):
    np.savez(files[0], **arrays)
    assert_refused(command(*files), *words)


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (U[:-1], ["U", "d = 4"]),
        (U[:, 0], ["U: expected 2 axes"]),
        (np.full((4, 1), np.nan), ["U, row 1, column 1: ", "got NaN"]),
    ],
)
def test_factors_that_do_not_fit(files, factor, words):
    np.savez(files[1], U=factor)
    assert_refused(command(*files), *words)


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (np.zeros((4, 1)), "the largest entry of the factor U is 0"),
        (np.hstack([U, U]), "full column rank"),
    ],
)
def test_factors_without_full_rank_are_not_proved(files, factor, words):
    np.savez(files[1], U=factor)
    result = command(*files)
    assert result.exit_code == 1
    assert result.stdout.startswith("not proved")
    assert words in result.stdout


def test_saving_replaces_nothing_that_was_read_and_needs_a_place(files, tmp_path):
    for path in files:
        before = path.read_bytes()
        for name in (path, path.with_suffix(""), path.with_suffix(".json")):
            assert_refused(command(*files, "--save", name), "would replace")
        assert path.read_bytes() == before
    result = command(*files, "--save", tmp_path / "no" / "folder")
    assert result.exit_code == 2
    assert "can be written" in result.stderr
    command(*files, "--save", tmp_path / "answer")
    again = command(files[0], tmp_path / "answer.json", "--save", tmp_path / "more")
    assert_refused(again, "--save", "already a saved certificate")


def test_help_has_examples():
    result = command("--help")
    assert result.exit_code == 0
    assert "posquad certify data.npz model.npz --save answer" in result.stdout
    assert "Exit status" in result.stdout
