"""Data files that cannot be used: every one gets one clear sentence."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from posquad.io.tables import _arrays, _memory, read_samples, write_columns
from posquad.io.tables._text import LONGEST
from tables_support import SUFFIXES, TEXT, X, Y, refusal, written

# What is refused.


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "got an empty file"),
        ("\n \n", "only blank lines"),
        ("a,b,y\n", "a header without rows"),
        ("a,b,y\n1,2,3\n4,5\n", "line 3: expected 3 cells, as the header has; got 2"),
        ("a,b,y\n\n1,2,3,4\n", "line 3: expected 3 cells, as the header has; got 4"),
        ("a b y\n1 2\n", "line 2: expected 3 cells"),
        ("1,2\n3\n", "--response"),
        ("a,b,y\n1,2,3\n4,abc,6\n", "line 3, column 'b': expected a finite number; got 'abc'"),
        (
            "a,b,y\n1,2,\n",
            "expected no missing values; got 1 in 'y' (of 1 rows, the first in line 2)",
        ),
        ("a,b,y\n1,NA,3\n", "got 1 in 'b' (of 1 rows, the first in line 2); --missing drop leaves"),
        ("a,b,y\n1,nan,3\n", "got 1 in 'b'"),
        ("a,b,y\n1,2,-Inf\n", "line 2, column 'y': expected a finite number; got '-Inf'"),
        ("a,b,y\n1,2,1e999\n", "got 1e999, which exceeds double precision"),
        ("a;b;y\n1;2,5;3\n", "numbers in another format in 'b' ('2,5', line 2); add --decimal ,"),
        ("a,b,y\n1,1_000,3\n", "got text in 'b' ('1_000', line 2)"),
        ("a,b,y\n1,0x10,3\n", "got text in 'b' ('0x10', line 2)"),
        ("a,b,y\n1,1+2j,3\n", "got text in 'b' ('1+2j', line 2)"),
        ("a,b,y\n1,true,3\n", "got yes or no in 'b' ('true', line 2); add --encode b, or"),
        (
            "a,b,y\n1,2024-01-01,3\n",
            "got dates or times in 'b' ('2024-01-01', line 2); add --drop b",
        ),
        ("a,b,y\n1,٣,3\n", "got text in 'b' ('٣', line 2)"),
        ("a,b,y\n1,2\0,3\n", "a binary file"),
        (f"a,b,y\n1,{'z' * 500},3\n", f"got text in 'b' ('{'z' * 40}...', line 2)"),
        ("a,a,y\n1,2,3\n", "got 'a' for columns 1 and 2"),
        ("a,,y\n1,2,3\n", "got no name for column 2"),
        (",,y\n1,2,3\n", "got no name for column 1"),
        ("a,b,y\n1,2,3,4\n5,6,7\n", "line 2: expected 3 cells, as the header has; got 4"),
        ('"a" "y"\n"1" 2 3\n4 5\n', "line 3: expected 3 cells, as the header has; got 2"),
        ("sep=:\na:y\n1:2\n", "line 1: expected sep= and a comma"),
        ("sep=;\n", "only a first line sep="),
        ("# only\n# comments\n", "a header without rows"),
        ('a,b,y\n1,"2,3\n', "line 2"),
        ("y\n1\n", "column of inputs"),
        ("a,b\n1,2\n", "name the response with --response"),
        ("y,target,a\n1,2,3\n", "y and target"),
        (b"a,b,y\n1,2,3\n\xe9,5,6\n", "line 3: expected text in UTF-8; got the byte 0xe9"),
        ("a,b,y\n1,2,3\n".encode("utf-16"), "UTF-16"),
        (bytes(5000), "only zero bytes"),
        (b"\x89PNG\r\n\x1a\n\0\0", "a binary file"),
        ("<html><body>not found</body></html>\n", "a header without rows"),
    ],
)
def test_text_that_is_refused(tmp_path, content, words):
    for suffix in TEXT:
        assert words in refusal(written(tmp_path, content, f"data{suffix}"))


def test_a_line_without_end_is_refused_without_being_read(tmp_path):
    path = written(tmp_path, b"a,y\n" + b"1" * (LONGEST + 5))
    assert "a line of more than" in refusal(path)


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
        (b"\x93NUM", "an incomplete one"),
        (b"no array at all", "magic"),
        (npy(X)[:40], "an incomplete one"),
        (npy(X)[:-8], "the file is not complete"),
        (npy(X) + b"more", "bytes of numbers"),
        (npy(np.array([{}, 1], dtype=object)), "pickled Python objects, which are never loaded"),
        (pickle.dumps({"X": 1}), "magic"),
        (npy(X[0]), "expected 2 axes; got shape (3,)"),
        (npy(X[None]), "expected 2 axes"),
        (npy(X[:0]), "n, d >= 1"),
        (npy(X[:, :0]), "n, d >= 1"),
        (npy(X + 1j), "complex128"),
        (npy(X.astype(str)), "expected real numbers"),
        (npy(X.astype("datetime64[s]")), "expected real numbers"),
        (npy(np.zeros(3, dtype=[("a", float), ("y", float)])), "fields a, y"),
        (npy(BAD), "got 1 in 'x1' (of 2 rows, the first in row 2)"),
        (npy(np.full((2, 2), 2**53 + 1)), "expected a double precision number"),
        (header((10**6, 10**6)), "the file is not complete"),
        (header((-1, 2)), ""),
        (b"\x93NUMPY\x01\x00\x06\x00{'a':}", ""),
        (b"\x93NUMPY\x09\x00\x06\x00{'a':}", "an incomplete one"),
    ],
)
def test_npy_that_is_refused(tmp_path, content, words):
    assert words in refusal(written(tmp_path, content, "data.npy"), response="x2")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "an empty file"),
        (npy(X), "rename the file to .npy"),
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
        (npz(X=X, y=np.where(Y[5] == Y, np.inf, Y)), "y, row 6: expected a finite number"),
        (npz(a=Y, b=Y[:-1]), "columns of one length"),
        (zipped({"X.npy": b"text", "y.npy": b"text"}), "magic"),
        (zipped({"X.npy": npy(X), "y.npy": header((10**12,))}), "y: expected 8000000000000 bytes"),
        (zipped({"readme.txt": b"hello"}), "an incomplete one"),
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
        (b"PAR1", "an incomplete one"),
        (table_of(a=[1.0], y=[2.0])[:-20], "an incomplete one"),
        (table_of(a=[1.0, 2.0], y=[1.0, None]), "got 1 in 'y' (of 2 rows, the first in row 2)"),
        (table_of(a=[1.0, np.nan], y=[1.0, 2.0]), "got 1 in 'a' (of 2 rows, the first in row 2)"),
        (table_of(a=["b"], y=[2.0]), "got text in 'a' ('b', row 1); add --encode a, or leave it"),
        (table_of(a=[date(2024, 1, 31)], y=[2.0]), "dates or times in 'a' ('2024-01-31', row 1)"),
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
    assert "10.7 GB, of which" in refusal(path, response="x10")


def test_what_does_not_fit_into_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    for suffix in SUFFIXES:
        write_columns(tmp_path / f"data{suffix}", {name: np.zeros(5000) for name in "aby"})
    monkeypatch.setattr(_memory, "available_memory", lambda: 10_000)
    for suffix in SUFFIXES:
        path = tmp_path / f"data{suffix}"
        sentence = refusal(path, response="x3" if suffix == ".npy" else None)
        assert "expected a table that fits into memory (10.0 KB are available)" in sentence
        assert "; save it as .parquet or .npy, of which tables of numbers are read" in sentence
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
    assert "got .xls; save it as .xlsx or .csv" in refusal(tmp_path / "data.xls")
    assert "got .parquet.gz; decompress it first" in refusal(tmp_path / "data.parquet.gz")
    assert "such as data.csv.gz; got .zst" in refusal(tmp_path / "data.zst")
    assert "no suffix" in refusal(tmp_path / "data")
    os.mkfifo(tmp_path / "pipe.csv")
    assert "a pipe" in refusal(tmp_path / "pipe.csv")


def test_a_file_without_permission(tmp_path, monkeypatch):
    path = written(tmp_path, "a,y\n1,2\n")

    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # the superuser may read whatever the mode says
    assert "cannot be read (Permission denied)" in refusal(path)
