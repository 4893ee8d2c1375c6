"""Data files: what is read is what was written, whatever the kind of file."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posquad.core.files import FileError
from posquad.io.tables import TableError, _arrays, _memory, open_table, read_samples, write_columns
from posquad.problems.rows import disk
from tables_support import COLUMNS, RNG, SUFFIXES, TEXT, X, Y, refusal, table_bytes, written

# What is written.


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_text_is_written_in_little_memory(tmp_path, suffix):
    column = RNG.standard_normal(100_000)
    tracemalloc.start()
    try:
        write_columns(tmp_path / f"data{suffix}", {"a": column, "y": column})
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert used < 8e6  # the text has 4 MB, and its lines as strings 10 MB
    assert np.array_equal(read_samples(tmp_path / f"data{suffix}").y, column)


# What is read.


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_kind_of_file_gives_back_every_digit(tmp_path, suffix):
    path = tmp_path / f"data{suffix}"
    write_columns(path, COLUMNS)
    response = "x4" if suffix == ".npy" else None
    samples = read_samples(path, response=response)
    assert np.array_equal(samples.X, X)
    assert np.array_equal(samples.y, Y)
    assert samples.weights is None
    assert samples.features == (("x1", "x2", "x3") if suffix == ".npy" else ("a", "b", "c"))
    assert samples.named == (suffix != ".npy")


@pytest.mark.parametrize(
    ("content", "names", "rows"),
    [
        ("a,b,y\n1,2,3\n4,5,6\n", "a b", [[1, 2, 3], [4, 5, 6]]),
        ("a;b;y\n1;2;3\n", "a b", [[1, 2, 3]]),
        ("a\tb\ty\n1\t2\t3", "a b", [[1, 2, 3]]),
        ("a  b y\n 1 2   3\n", "a b", [[1, 2, 3]]),
        ("# a b y\n1 2 3\n", "a b", [[1, 2, 3]]),
        ("\ufeffa,b,y\r\n1,2,3\r\n\r\n", "a b", [[1, 2, 3]]),
        ("a,b,y\r1,2,3\r4,5,6\r", "a b", [[1, 2, 3], [4, 5, 6]]),
        ("\n\na,b,y\n\n1,2,3\n\n\n4,5,6\n\n", "a b", [[1, 2, 3], [4, 5, 6]]),
        ('"first, one",b,y\n1,2,3\n', "first, one|b", [[1, 2, 3]]),
        ('"he said ""so""",b,y\n"1",2,"3"\n', 'he said "so"|b', [[1, 2, 3]]),
        (" a , b ,y\n 1 , 2 ,3 \n", "a b", [[1, 2, 3]]),
        ("größe,b,y\n1,2,3\n", "größe b", [[1, 2, 3]]),
        ("b,y,a\n2,3,1\n", "b a", [[2, 1, 3]]),
        ("a,TARGET\n1e-3,+2.5E2\n-.5,3.\n", "a", [[1e-3, 250], [-0.5, 3]]),
        ("a,b,Response\n0,-0,5e-324\n", "a b", [[0, 0, 5e-324]]),
    ],
)
def test_text(tmp_path, content, names, rows):
    samples = read_samples(written(tmp_path, content))
    assert samples.features == tuple(names.split("|" if "|" in names else None))
    assert np.array_equal(np.column_stack([samples.X, samples.y]), rows)


def test_columns_without_a_header_are_numbered(tmp_path):
    path = written(tmp_path, "1,2,3\n4,5,6\n")
    samples = read_samples(path, response="x1")
    assert samples.features == ("x2", "x3")
    assert not samples.named
    assert samples.y.tolist() == [1, 4]
    assert "x1, x2, x3" in refusal(path)


def test_columns_that_are_not_asked_for_may_hold_anything(tmp_path):
    path = written(tmp_path, "name,a,b,y\nAnna,1,2,3\nnull,4,,6\n")
    samples = read_samples(path, features=["a"])
    assert samples.X.tolist() == [[1], [4]]
    assert "got text in 'name' ('Anna', line 2); add --encode name, or leave" in refusal(path)


def test_an_index_of_pandas_is_no_column(tmp_path):
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"a": [1.0], "y": [2.0], "__index_level_0__": [7]}), path)
    assert read_samples(path).features == ("a",)


def test_arrays_with_weights(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, X=X, y=Y, weights=np.arange(7))
    samples = read_samples(path)
    assert samples.weights.tolist() == list(range(7))
    assert samples.X.shape == (7, 3)
    chosen = read_samples(path, features=["x3", "x1"])
    assert np.array_equal(chosen.X, X[:, [2, 0]])
    mixed = read_samples(path, features=["x3", "y"], response="x1")
    assert np.array_equal(mixed.X, np.column_stack([X[:, 2], Y]))


@pytest.mark.parametrize(
    "dtype", ["<f8", ">f8", "<f4", ">f4", "<f2", "<i4", ">i2", "|u1", "<i8", "|b1"]
)
@pytest.mark.parametrize("streamed", [False, True])
def test_numbers_of_every_type_keep_their_value(tmp_path, monkeypatch, dtype, streamed):
    monkeypatch.setattr(_memory, "STREAMED", 1 if streamed else 2**40)
    monkeypatch.setattr(disk, "BLOCK_BYTES", 50)  # several blocks
    values = np.arange(12).reshape(4, 3).astype(dtype)
    for order in "CF":
        np.save(tmp_path / "data.npy", np.asarray(values, order=order))
        samples = read_samples(tmp_path / "data.npy", response="x2")
        assert (samples.extremes is not None) == streamed  # whether it stays in its file
        X = samples.X.read_all().numpy() if streamed else samples.X
        assert X.tolist() == values[:, [0, 2]].astype(float).tolist()
        assert list(samples.y) == values[:, 1].astype(float).tolist()
        # single precision stays, so that a fit knows how exact the numbers are
        narrow = dtype in ("<f4", ">f4", "<f2")
        assert X.dtype == (np.float32 if narrow else np.float64)


def test_integers_that_are_no_doubles_are_refused_block_by_block(tmp_path, monkeypatch):
    monkeypatch.setattr(_memory, "STREAMED", 1)
    for number, kind in ((2**53 + 1, "<i8"), (-(2**53) - 1, "<i8"), (2**64 - 1, "<u8")):
        np.save(tmp_path / "data.npy", np.array([[1, 2], [number, 4]], dtype=kind))
        words = f": expected integers below 2^53, which are doubles; got {number}"
        assert refusal(tmp_path / "data.npy", response="x2") == words


def test_float32_columns_of_parquet_stay_so(tmp_path):
    single = pa.array([1.5, 2.5], pa.float32())
    pq.write_table(pa.table({"a": single, "y": single}), tmp_path / "single.parquet")
    assert read_samples(tmp_path / "single.parquet").X.dtype == np.float32
    pq.write_table(pa.table({"a": single, "y": [1, 2]}), tmp_path / "mixed.parquet")
    assert read_samples(tmp_path / "mixed.parquet").X.dtype == np.float64


@pytest.mark.parametrize("compressed", [False, True])
def test_large_arrays_stay_on_disk(tmp_path, monkeypatch, compressed):
    monkeypatch.setattr(_arrays, "MAPPED", 64)
    np.save(tmp_path / "data.npy", np.column_stack([X, Y]))
    (np.savez_compressed if compressed else np.savez)(tmp_path / "data.npz", X=X, y=Y)
    for name, response, mapped in (("data.npy", "x4", True), ("data.npz", "y", not compressed)):
        before = (tmp_path / name).read_bytes()
        samples = read_samples(tmp_path / name, response=response)
        assert np.array_equal(samples.X, X)
        assert np.array_equal(samples.y, Y)
        assert isinstance(_owner(samples.X), np.memmap) == mapped
        samples.X[0, 0] = 5.0  # copy on write: the file is never changed
        assert (tmp_path / name).read_bytes() == before


def _owner(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    return array


def test_a_mapped_member_is_compared_with_its_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr(_arrays, "MAPPED", 64)
    np.savez(tmp_path / "data.npz", X=RNG.standard_normal((20_000, 3)), y=np.zeros(20_000))
    data = bytearray((tmp_path / "data.npz").read_bytes())
    data[400_000] ^= 1  # in the middle of X, far from what is read to describe it
    assert "checksum does not match" in refusal(written(tmp_path, bytes(data), "data.npz"))


# Which columns.


def test_columns_by_name(tmp_path):
    path = written(tmp_path, "age,size,weight,y\n1,2,3,4\n")
    samples = read_samples(path, response="size", weights="weight", features=["y"])
    assert (samples.X.item(), samples.y.item(), samples.weights.item()) == (4, 2, 3)
    assert "did you mean 'size'" in refusal(path, response="sise")
    assert "did you mean 'size'" in refusal(path, response="SIZE")
    assert "a column 'q' for --weights; got age, size" in refusal(path, weights="q")
    assert "a column 'agee' for --features" in refusal(path, features=["agee"])
    assert "'age' twice" in refusal(path, features=["age", "age"])
    assert "'y', which is also --response" in refusal(path, features=["y"], response="y")
    assert "for both" in refusal(path, response="y", weights="y")


def test_many_columns_are_not_all_listed(tmp_path):
    names = ",".join(f"c{k}" for k in range(1000))
    sentence = refusal(written(tmp_path, f"{names}\n{names.replace('c', '')}\n"))
    assert "c7, ..., c999 (1000 columns)" in sentence


# What is written.


def test_writing_is_whole_or_not_at_all(tmp_path, monkeypatch):
    path = written(tmp_path, "old")

    def broken(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(FileError, match="No space left"):
        write_columns(path, COLUMNS)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(TableError, match=r"got \.xls"):
        write_columns(tmp_path / "data.xls", COLUMNS)


def test_names_that_need_quotes_come_back(tmp_path):
    names = ["a,b", 'say "so"', " spaced ", "größe", "tab\there", "<script>"]
    columns = {name: np.array([float(k)]) for k, name in enumerate(names)} | {"y": np.ones(1)}
    for suffix in (".csv", ".parquet"):
        path = tmp_path / f"data{suffix}"
        write_columns(path, columns)
        found = read_samples(path).features
        assert [name.strip() for name in found] == [name.strip() for name in names]


# Files that were cut, or changed by one byte: a refusal, or the numbers that were written.


BODIES = {suffix: table_bytes(suffix) for suffix in SUFFIXES}


def outcome(path: Path) -> np.ndarray | None:
    try:
        samples = read_samples(path, response="x4" if path.suffix == ".npy" else None)
    except TableError:
        return None
    return np.column_stack([samples.X, samples.y])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_cut_files(tmp_path, suffix):
    whole = BODIES[suffix]
    steps = max(1, len(whole) // 150)
    for end in range(0, len(whole), steps):
        found = outcome(written(tmp_path, whole[:end], f"data{suffix}"))
        if suffix in TEXT:  # lines have no end mark: fewer, or a last number that is shorter
            assert found is None or len(found) <= 7
        else:
            assert found is None


@pytest.mark.parametrize("suffix", [".parquet", ".npz", ".npy"])
@given(place=st.integers(0, 10**6), bits=st.integers(1, 255))
def test_changed_files(tmp_path_factory, suffix, place, bits):
    data = bytearray(BODIES[suffix])
    data[place % len(data)] ^= bits
    folder = tmp_path_factory.mktemp("changed")
    found = outcome(written(folder, bytes(data), f"data{suffix}"))
    if suffix == ".npz" and found is not None:  # its members have checksums
        assert np.array_equal(np.sort(found, axis=1), np.sort(np.column_stack([X, Y]), axis=1))


@given(st.binary(max_size=300))
def test_any_bytes(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("any")
    for suffix in SUFFIXES:
        outcome(written(folder, data, f"data{suffix}"))


@given(st.text(alphabet='ay,;\t\n\r "#1.e-+xn\ufeff', max_size=60))
def test_any_text(tmp_path_factory, text):
    path = written(tmp_path_factory.mktemp("any"), text)
    found = outcome(path)
    assert found is None or np.isfinite(found).all()


def test_a_table_is_described_without_being_read(tmp_path):
    table = open_table(written(tmp_path, "a,y\n1,2\nx,y\n"))
    assert table.names == ("a", "y")
