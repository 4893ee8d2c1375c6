"""Data files: what is read is what was written, and every bad file gets one clear sentence."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posquad.lab.records import RecordError
from posquad.lab.tables import TableError, _arrays, _memory, open_table, read_samples, write_columns
from posquad.lab.tables._text import LONGEST
from posquad.lab.tables.writing import as_bytes

RNG = np.random.default_rng(0)
X = RNG.standard_normal((7, 3))
Y = RNG.standard_normal(7)
COLUMNS = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": Y}
SUFFIXES = [".csv", ".tsv", ".txt", ".parquet", ".npz", ".npy"]
TEXT = [".csv", ".tsv", ".txt"]


def written(folder: Path, content: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(path: Path, **options: object) -> str:
    """The sentence with which a file is refused."""
    with pytest.raises(TableError) as caught:
        read_samples(path, **options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.startswith(str(path))
    return sentence.removeprefix(str(path))


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
    assert "line 2, column 'name': expected a finite number; got 'Anna'" in refusal(path)


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


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", "<f2", "<i4", "|u1", "<i8"])
def test_numbers_of_every_type_keep_their_value(tmp_path, dtype):
    values = np.arange(12).reshape(4, 3).astype(dtype)
    for order in "CF":
        np.save(tmp_path / "data.npy", np.asarray(values, order=order))
        samples = read_samples(tmp_path / "data.npy", response="x2")
        assert samples.X.tolist() == values[:, [0, 2]].astype(float).tolist()
        # single precision stays, so that a fit knows how exact the numbers are
        narrow = dtype in ("<f4", "<f2")
        assert samples.X.dtype == (np.float32 if narrow else np.float64)


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
    assert "checksum does not fit" in refusal(written(tmp_path, bytes(data), "data.npz"))


# What is refused.


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "got an empty file"),
        ("\n \n", "nothing but blank lines"),
        ("a,b,y\n", "a header and no row"),
        ("a,b,y\n1,2,3\n4,5\n", "line 3: expected 3 cells, as the header has; got 2"),
        ("a,b,y\n\n1,2,3,4\n", "line 3: expected 3 cells, as the header has; got 4"),
        ("a b y\n1 2\n", "line 2: expected 3 cells"),
        ("1,2\n3\n", "--response"),
        ("a,b,y\n1,2,3\n4,abc,6\n", "line 3, column 'b': expected a finite number; got 'abc'"),
        ("a,b,y\n1,2,\n", "line 2, column 'y': expected a finite number; got a missing value"),
        ("a,b,y\n1,NA,3\n", "line 2, column 'b': expected a finite number; got a missing value"),
        ("a,b,y\n1,nan,3\n", "line 2, column 'b': expected a finite number; got nan"),
        ("a,b,y\n1,2,-Inf\n", "line 2, column 'y': expected a finite number; got -Inf"),
        ("a,b,y\n1,2,1e999\n", "got 1e999, which is beyond double precision"),
        ("a;b;y\n1;2,5;3\n", "got '2,5'; write decimals with a point"),
        ("a,b,y\n1,1_000,3\n", "got '1_000'"),
        ("a,b,y\n1,0x10,3\n", "got '0x10'"),
        ("a,b,y\n1,1+2j,3\n", "got '1+2j'"),
        ("a,b,y\n1,true,3\n", "got 'true'"),
        ("a,b,y\n1,2024-01-01,3\n", "got '2024-01-01'"),
        ("a,b,y\n1,٣,3\n", "got '٣'"),
        ("a,b,y\n1,2\0,3\n", "a binary file"),
        (f"a,b,y\n1,{'z' * 500},3\n", f"got '{'z' * 40}...'"),
        ("a,a,y\n1,2,3\n", "got 'a' for columns 1 and 2"),
        (",a,y\n1,2,3\n", "got none for column 1"),
        ('a,b,y\n1,"2,3\n', "line 2"),
        ("y\n1\n", "columns of inputs"),
        ("a,b\n1,2\n", "name the response with --response"),
        ("y,target,a\n1,2,3\n", "y and target"),
        (b"a,b,y\n1,2,3\n\xe9,5,6\n", "line 3: expected text in UTF-8; got the byte 0xe9"),
        ("a,b,y\n1,2,3\n".encode("utf-16"), "UTF-16"),
        (bytes(5000), "nothing but zero bytes"),
        (b"\x89PNG\r\n\x1a\n\0\0", "a binary file"),
        ("<html><body>not found</body></html>\n", "a header and no row"),
    ],
)
@pytest.mark.parametrize("suffix", TEXT)
def test_text_that_is_refused(tmp_path, content, words, suffix):
    assert words in refusal(written(tmp_path, content, f"data{suffix}"))


def test_a_line_without_end_is_refused_without_being_read(tmp_path):
    path = written(tmp_path, b"a,y\n" + b"1" * (LONGEST + 5))
    assert "no end of the line" in refusal(path)


def npz(**arrays: object) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # NumPy pickles objects unless told not to
    return buffer.getvalue()


def npy(array: object) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def header(shape: tuple, descr: object = "<f8") -> bytes:
    buffer = io.BytesIO()
    told = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, told)
    return buffer.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


BAD = np.array([[1.0, 2.0], [np.nan, 4.0]])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "an empty file"),
        (b"\x93NUM", "a part of one"),
        (b"no array at all", "magic"),
        (npy(X)[:40], "a part of one"),
        (npy(X)[:-8], "it is not whole"),
        (npy(X) + b"more", "bytes of numbers"),
        (npy(np.array([{}, 1], dtype=object)), "pickled Python objects, which are never loaded"),
        (pickle.dumps({"X": 1}), "magic"),
        (npy(X[0]), "expected 2 axes; got shape (3,)"),
        (npy(X[None]), "expected 2 axes"),
        (npy(X[:0]), "n, d >= 1"),
        (npy(X[:, :0]), "n, d >= 1"),
        (npy(X > 0), "expected real numbers; got type bool"),
        (npy(X + 1j), "complex128"),
        (npy(X.astype(str)), "expected real numbers"),
        (npy(X.astype("datetime64[s]")), "expected real numbers"),
        (npy(np.zeros(3, dtype=[("a", float), ("y", float)])), "fields a, y"),
        (npy(BAD), "row 2, column 'x1': expected a finite number; got NaN"),
        (npy(np.full((2, 2), 2**53 + 1)), "expected a double precision number"),
        (header((10**6, 10**6)), "it is not whole"),
        (header((-1, 2)), ""),
        (b"\x93NUMPY\x01\x00\x06\x00{'a':}", ""),
        (b"\x93NUMPY\x09\x00\x06\x00{'a':}", "a part of one"),
    ],
)
def test_npy_that_is_refused(tmp_path, content, words):
    assert words in refusal(written(tmp_path, content, "data.npy"), response="x2")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "an empty file"),
        (npy(X), "name it .npy"),
        (npz(X=X, y=Y)[:200], "not a zip file"),
        (npz(X=X), "x1, x2, x3"),
        (npz(X=X, z=Y), "X (7, 3), z (7,)"),
        (npz(X=X, y=np.array([{}], dtype=object)), "y: expected real numbers; got pickled"),
        (npz(X=X, y=Y, extra=np.array([None])), "extra: expected real numbers; got pickled"),
        (npz(X=X, y=Y[:-1]), "7 rows of X and 6 entries of y"),
        (npz(X=X, y=Y, weights=Y[:-1]), "6 entries of weights"),
        (npz(X=X, y=Y, weights=-np.ones(7)), "nonnegative weights"),
        (npz(X=X, y=Y, weights=np.zeros(7)), "not all zero"),
        (npz(X=X, y=Y[:, None]), "y: expected 1 axis"),
        (npz(X=X[0], y=Y), "X: expected 2 axes"),
        (npz(X=X, y=np.where(Y[5] == Y, np.inf, Y)), "y[5]: expected a finite number"),
        (npz(a=Y, b=Y[:-1]), "columns of one length"),
        (zipped({"X.npy": b"text", "y.npy": b"text"}), "magic"),
        (zipped({"X.npy": npy(X), "y.npy": header((10**12,))}), "y: expected 8000000000000 bytes"),
        (zipped({"readme.txt": b"hello"}), "a part of one"),
        (zipped({}), "no array"),
    ],
)
def test_npz_that_is_refused(tmp_path, content, words):
    assert words in refusal(written(tmp_path, content, "data.npz"))


def test_an_array_that_claims_to_be_huge_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    """800 MB of zeros in less than one: refused by what its header says."""
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("X.npy", "w", force_zip64=True) as member:
            member.write(header((10**7, 10)))
            for _ in range(100):
                member.write(bytes(8 * 10**6))
        archive.writestr("y.npy", npy(np.zeros(10**7)))
    assert path.stat().st_size < 2**20
    monkeypatch.setattr(_memory, "available_memory", lambda: 10**9)
    monkeypatch.setattr(_arrays, "_filled", lambda *_: pytest.fail("it was unpacked"))
    assert "fits into memory (1.0 GB are available); got one that needs" in refusal(path)


def table_of(**columns: object) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "an empty file"),
        (b"PAR1", "a part of one"),
        (table_of(a=[1.0], y=[2.0])[:-20], "a part of one"),
        (table_of(a=[1.0, 2.0], y=[1.0, None]), "row 2, column 'y': expected a finite number"),
        (table_of(a=[1.0, np.nan], y=[1.0, 2.0]), "row 2, column 'a'"),
        (table_of(a=["1"], y=[2.0]), "column 'a': expected real numbers; got type string"),
        (table_of(a=[True], y=[2.0]), "got type bool"),
        (table_of(a=[[1.0]], y=[2.0]), "got type list"),
        (table_of(a=[2**53 + 1], y=[2.0]), "double precision"),
        (table_of(a=pa.array([], pa.float64()), y=pa.array([], pa.float64())), "0 rows"),
        (table_of(a=[1.0]), "--response"),
    ],
)
def test_parquet_that_is_refused(tmp_path, content, words):
    assert words in refusal(written(tmp_path, content, "data.parquet"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_large_file_of_zeros_costs_neither_time_nor_memory(tmp_path, suffix):
    path = tmp_path / f"data{suffix}"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)
    if path.stat().st_blocks * 512 > 2**30:
        pytest.skip("the file system has no sparse files")
    refusal(path)


def test_a_large_array_that_was_never_written(tmp_path):
    rows = 10 * 2**30 // 80
    path = written(tmp_path, header((rows, 10)), "data.npy")
    os.truncate(path, path.stat().st_size + 80 * rows)
    assert "10.7 GB of which" in refusal(path, response="x10")


def test_what_does_not_fit_into_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    for suffix in SUFFIXES:
        write_columns(tmp_path / f"data{suffix}", {name: np.zeros(5000) for name in "aby"})
    monkeypatch.setattr(_memory, "available_memory", lambda: 10_000)
    for suffix in SUFFIXES:
        path = tmp_path / f"data{suffix}"
        sentence = refusal(path, response="x3" if suffix == ".npy" else None)
        assert "expected a table that fits into memory (10.0 KB are available)" in sentence
    monkeypatch.setattr(_memory, "available_memory", lambda: None)
    assert len(read_samples(tmp_path / "data.csv").y) == 5000


def test_memory_is_known_or_not(monkeypatch):
    assert _memory.available_memory() > 2**20
    monkeypatch.setattr(_memory, "_free", lambda: None)
    monkeypatch.setattr(_memory, "_LIMITS", ())
    assert _memory.available_memory() is None


def test_paths_that_are_no_data_file(tmp_path):
    assert "no such file" in refusal(tmp_path / "data.csv")
    (tmp_path / "folder.csv").mkdir()
    assert "a folder" in refusal(tmp_path / "folder.csv")
    assert "got .xlsx" in refusal(tmp_path / "data.xlsx")
    assert "no suffix" in refusal(tmp_path / "data")
    os.mkfifo(tmp_path / "pipe.csv")
    assert "a pipe" in refusal(tmp_path / "pipe.csv")


def test_a_file_without_permission(tmp_path, monkeypatch):
    path = written(tmp_path, "a,y\n1,2\n")

    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # the superuser may read whatever the mode says
    assert "cannot be read (Permission denied)" in refusal(path)


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
    assert "'y' as --response too" in refusal(path, features=["y"], response="y")
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
    with pytest.raises(RecordError, match="No space left"):
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


BODIES = {suffix: as_bytes(suffix, COLUMNS) for suffix in SUFFIXES}


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
