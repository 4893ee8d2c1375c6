"""Forms in which tables come: compressed, from Excel, from standard input, in other notations."""

from __future__ import annotations

import gzip
import io
import math
import struct
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posquad.core.errors import DomainError
from posquad.io.tables import NumberFormat, TableError, _memory, open_table, read_samples
from posquad.io.tables import _text as text_module
from tables_support import X, Y, refusal, table_bytes, written

TABLE = table_bytes(".csv")


def zstandard_frame(data: bytes) -> bytes:
    """A frame of raw blocks, by RFC 8878: magic number, one segment with its size, one block."""
    header = b"\x28\xb5\x2f\xfd" + bytes([0b1010_0000]) + struct.pack("<I", len(data))
    block = len(data) << 3 | 1  # raw, and the last one
    return header + struct.pack("<I", block)[:3] + data


PACKED = {
    ".gz": gzip.compress(TABLE),
    ".zst": pa.compress(TABLE, codec="zstd", asbytes=True),
}


# Compressed text.


@pytest.mark.parametrize("suffix", PACKED)
def test_compressed_tables_are_read(tmp_path, suffix):
    for kind in (".csv", ".txt"):
        samples = read_samples(written(tmp_path, PACKED[suffix], f"data{kind}{suffix}"))
        assert np.array_equal(samples.X, X)
        assert np.array_equal(samples.y, Y)
    twice = PACKED[suffix] + PACKED[suffix]  # members one after the other are one text
    path = written(tmp_path, twice, f"data.csv{suffix}")
    assert "line 9, column 'a': expected a finite number; got 'a'" in refusal(path)


def test_a_frame_that_was_written_by_hand(tmp_path):
    samples = read_samples(written(tmp_path, zstandard_frame(TABLE), "data.csv.zst"))
    assert np.array_equal(samples.X, X)


@pytest.mark.parametrize("suffix", PACKED)
def test_damaged_compressed_files_are_refused(tmp_path, suffix):
    whole = PACKED[suffix]
    path = tmp_path / f"data.csv{suffix}"
    for data in (whole[: len(whole) // 2], whole[:-1], b"no archive at all", b"\x1f\x8b"):
        sentence = refusal(written(tmp_path, data, path.name))
        assert "expected text compressed by " in sentence
    assert "an empty file" in refusal(written(tmp_path, gzip.compress(b""), "data.csv.gz"))


@pytest.mark.parametrize("suffix", PACKED)
@given(place=st.integers(0, 10**6), bits=st.integers(1, 255))
def test_changed_compressed_files(tmp_path_factory, suffix, place, bits):
    data = bytearray(PACKED[suffix])
    data[place % len(data)] ^= bits
    path = written(tmp_path_factory.mktemp("changed"), bytes(data), f"data.csv{suffix}")
    try:
        found = read_samples(path)
    except TableError:
        return
    if suffix == ".gz":  # it has a checksum
        assert np.array_equal(found.X, X)


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path, monkeypatch):
    path = written(tmp_path, gzip.compress(b"a,y\n" + b"1.0,2.0\n" * 3_000_000), "data.csv.gz")
    assert path.stat().st_size < 100_000
    rows = open_table(path).rows
    assert 0.5 * 3e6 < rows < 2 * 3e6
    monkeypatch.setattr(_memory, "available_memory", lambda: 20_000_000)
    assert "expected a table that fits into memory (20.0 MB are available)" in refusal(path)


# Standard input.


def from_input(monkeypatch, data: bytes):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    return read_samples(Path("-"))


@pytest.mark.parametrize("data", [TABLE, *PACKED.values()])
def test_standard_input_is_read_once_and_used_often(monkeypatch, data):
    samples = from_input(monkeypatch, data)
    assert np.array_equal(samples.X, X)
    assert samples.rows([0, 6]) == ["line 2", "line 8"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "standard input: expected a table; got an empty file"),
        (b"a,y\n1,2\n3\n", "standard input: line 3: expected 2 cells"),
        (b"a,y\n1,2\nx,4\n", "standard input: line 3, column 'a': expected a finite number"),
        (b"a,y\n1,\xe9\n", "standard input: line 2: expected text in UTF-8"),
        (b"PAR1....", "standard input: expected a text table; got a Parquet file; save it"),
        (b"PK\x03\x04..", "got an .npz or .xlsx file; save it and name the file"),
        (b"\x93NUMPY", "got a NumPy array; save it"),
    ],
)
def test_standard_input_that_is_refused(monkeypatch, data, words):
    with pytest.raises(TableError) as caught:
        from_input(monkeypatch, data)
    assert words in str(caught.value)


# Index columns.


@pytest.mark.parametrize(
    "content",
    [
        ",a,y\n0,1,2\n1,3,4\n",  # pandas: to_csv
        '"","a","y"\n"1",1,2\n"2",3,4\n',  # R: write.csv
        '"a" "y"\n"1" 1 2\n"2" 3 4\n',  # R: write.table
        "a y\n1 1 2\n2 3 4\n",  # R: write.table(quote = FALSE)
        "a\ty\nMazda RX4\t1\t2\nFiat 128\t3\t4\n",
        "Unnamed: 0,a,y\n0,1,2\n1,3,4\n",
        ",a,y\nMazda,1,2\n,3,4\n",
    ],
)
def test_an_index_is_left_out_and_this_is_said(tmp_path, content):
    samples = read_samples(written(tmp_path, content))
    assert samples.features == ("a",)
    assert np.column_stack([samples.X, samples.y]).tolist() == [[1, 2], [3, 4]]
    assert samples.facts == (("left out", "the first column, which has no name: an index"),)


def test_indices_that_pandas_writes(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 3.0], "y": [2.0, 4.0]}, index=["u", "v"])
    for suffix, write in ((".csv", frame.to_csv), (".xlsx", frame.to_excel),
                          (".parquet", frame.to_parquet)):  # fmt: skip
        write(tmp_path / f"data{suffix}")
        samples = read_samples(tmp_path / f"data{suffix}")
        assert samples.features == ("a",)
        assert "an index" in dict(samples.facts)["left out"]
    assert read_samples(written(tmp_path, "a,y\n1,2\n")).facts == ()


# First lines, comments, other notations of numbers.


@pytest.mark.parametrize(
    ("content", "names", "rows"),
    [
        ("sep=;\na;y\n1;2\n", "a", [[1, 2]]),
        ('"sep=,"\r\na,y\r\n1,2\r\n', "a", [[1, 2]]),
        ("SEP=|\na|y\n1|2\n", "a", [[1, 2]]),
        ("sep=\t\na\ty\n1\t2\n", "a", [[1, 2]]),
        ("sep= \na y\n1  2\n", "a", [[1, 2]]),
        ("# made by hand\n# on Monday\na,y\n1,2\n", "a", [[1, 2]]),
        ("#\n# a y\n1 2\n", "a", [[1, 2]]),
        ("#a,y\n1,2\n", "a", [[1, 2]]),
        ("#,name,y\n1,2,3\n", "# name", [[1, 2, 3]]),
        ("a,y\n# first\n1,2\n#3,4\n\n5,6\n# last\n", "a", [[1, 2], [5, 6]]),
    ],
)
def test_first_lines_and_comments(tmp_path, content, names, rows):
    samples = read_samples(written(tmp_path, content))
    assert samples.features == tuple(names.split())
    assert np.column_stack([samples.X, samples.y]).tolist() == rows


def test_comments_among_the_rows_are_counted(tmp_path):
    samples = read_samples(written(tmp_path, "# above\na,y\n1,2\n#3,4\n5,6\n# last\n"))
    assert samples.facts == (("comments", "2 lines that begin with # skipped"),)
    assert samples.rows([1]) == ["line 5"]


@pytest.mark.parametrize(
    ("decimal", "thousands", "content", "rows"),
    [
        (",", "", "a;y\n1,5;-,25\n2;3e2\n", [[1.5, -0.25], [2, 300]]),
        (",", "", 'a,y\n"1,5","2,5"\n', [[1.5, 2.5]]),
        (",", "", "a y\n1,5 2,5\n", [[1.5, 2.5]]),
        (",", ".", "a;y\n1.234,5;1.234.567\n12;0,5\n", [[1234.5, 1234567], [12, 0.5]]),
        (".", ",", 'a;y\n1,234.5;"1,234,567"\n', [[1234.5, 1234567]]),
        (".", "'", "a;y\n1'234.5;1\u2019234\n", [[1234.5, 1234]]),
        (",", " ", "a;y\n1 234,5;1\u00a0234\u202f567\n", [[1234.5, 1234567]]),
    ],
)
def test_other_notations_of_numbers(tmp_path, decimal, thousands, content, rows):
    numbers = NumberFormat(decimal, thousands)
    path = written(tmp_path, content)
    samples = read_samples(path, numbers=numbers)
    assert np.column_stack([samples.X, samples.y]).tolist() == rows
    assert samples.rules.numbers == numbers


def test_a_first_line_with_decimal_commas_and_no_names(tmp_path):
    path = written(tmp_path, "1,5 2,5\n3 4,5\n")
    samples = read_samples(path, response="x2", numbers=NumberFormat(","))
    assert np.column_stack([samples.X, samples.y]).tolist() == [[1.5, 2.5], [3, 4.5]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a;y\n1,5;1\n2,25;2\n", "in 'a' ('1,5', line 2); add --decimal ,"),
        ("a;y\n1,500;1\n", "in 'a' ('1,500', line 2); add --decimal , or --thousands ,"),
        ("a;y\n1,234,500;1\n", "add --thousands ,"),
        ("a;y\n1.234,5;1\n", "add --decimal , --thousands ."),
        ("a;y\n1'234;1\n", 'add --thousands "\'"'),
        ("a;y\n1 234;1\n", "add --thousands ' '"),
    ],
)
def test_numbers_in_another_notation_are_refused_with_the_option(tmp_path, content, words):
    assert words in refusal(written(tmp_path, content))


@pytest.mark.parametrize("cell", ["1.5", "1,23,4", "1.23", "1.2345,0", "1,000.5", "1..000"])
def test_separators_out_of_place_are_refused(tmp_path, cell):
    """1.5 with a separator of thousands is not 15."""
    path = written(tmp_path, f"a;y\n1;1\n2;2\n{cell};3\n")
    sentence = refusal(path, numbers=NumberFormat(",", "."))
    assert "line 4, column 'a': expected a finite number" in sentence or (
        f"numbers in another format in 'a' ('{cell}', line 4)" in sentence
    )


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([".", ",", " ", ""]))
def test_numbers_come_back_from_every_notation(value, thousands):
    """Written by Python with separators, and read back to the last digit."""
    decimal = "." if thousands == "," else ","
    whole = f"{value:,.17f}" if 1e-3 < abs(value) < 1e15 else repr(value)
    swapped = whole.translate(str.maketrans({",": thousands or None, ".": decimal}))
    assert NumberFormat(decimal, thousands).parse(swapped) == float(whole.replace(",", ""))


def test_formats_that_contradict_themselves():
    for marks, words in (
        ((",", ","), ", for both"),
        ((";", ""), "--decimal"),
        ((".", "x"), "thou"),
    ):
        with pytest.raises(DomainError, match=words):
            NumberFormat(*marks)
    assert math.isnan(NumberFormat(",").parse("n/a"))


# Excel.


def workbook(path: Path, rows: list[list[object]], *, sheets: int = 1) -> Path:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for _ in range(sheets - 1):
        book.create_sheet().append(["other"])
    book.save(path)
    return path


def test_the_first_sheet_of_a_workbook(tmp_path):
    short = np.round(np.column_stack([X, Y]), 9)  # openpyxl writes 16 digits
    rows = [["a", "b", "c", "y"], *short.tolist()]
    samples = read_samples(workbook(tmp_path / "data.xlsx", rows, sheets=3))
    assert np.array_equal(np.column_stack([samples.X, samples.y]), short)
    assert samples.facts == (("sheet", "'Sheet', the first of 3"),)
    assert samples.rows([2]) == ["line 4"]
    bare = read_samples(workbook(tmp_path / "bare.xlsx", rows[1:]), response="x4")
    assert np.array_equal(bare.X, short[:, :3])
    assert bare.features == ("x1", "x2", "x3")


def test_a_workbook_that_was_written_by_hand(tmp_path):
    """The smallest files that the format (ECMA-376) asks for, with a gap and a wrong dimension."""
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    relations = "http://schemas.openxmlformats.org/package/2006/relationships"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    types = "http://schemas.openxmlformats.org/package/2006/content-types"
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    files = {
        "[Content_Types].xml": f'<Types xmlns="{types}">'
        '<Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{kind}.sheet.main+xml"/>'
        f'<Override PartName="/xl/a.xml" ContentType="{kind}.worksheet+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{relations}"><Relationship Id="r1" '
        f'Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets>'
        '<sheet name="A" sheetId="1" r:id="r1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{relations}"><Relationship Id="r1" '
        f'Type="{office}/worksheet" Target="a.xml"/></Relationships>',
        "xl/a.xml": f'<worksheet xmlns="{main}"><dimension ref="A1"/><sheetData>'
        '<row r="2"><c r="A2" t="inlineStr"><is><t>a</t></is></c>'
        '<c r="B2" t="inlineStr"><is><t>y</t></is></c></row>'
        '<row r="3"><c r="A3"><v>0.1</v></c><c r="B3"><v>-2.5E3</v></c></row>'
        '<row r="5"><c r="A5" t="inlineStr"><is><t>0.30000000000000004</t></is></c>'
        "<c r=\"B5\"><f>B3*2</f><v>-5000</v></c></row></sheetData></worksheet>",
    }  # fmt: skip
    path = tmp_path / "data.xlsx"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    samples = read_samples(path)
    assert samples.X.tolist() == [[0.1], [0.1 + 0.2]]
    assert samples.y.tolist() == [-2500, -5000]
    assert samples.rows([1]) == ["line 5"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "an empty first sheet"),
        ([["a", "y"]], "a header without rows"),
        ([["a", "y"], [1, 2], [3, 4, 5]], "line 3: expected 2 cells, as the header has; got 3"),
        ([["a", "y"], [1, 2], [3, "x"]], "line 3, column 'y': expected a finite number; got 'x'"),
        ([["a", "y"], [1, 2], [None, 3]], "got 1 in 'a' (of 2 rows, the first in line 3)"),
        ([["a", "y"], [1, 2], [3]], "got 1 in 'y' (of 2 rows"),
        ([["a", "y"], [pd.Timestamp("2024-01-31"), 2]], "dates or times in 'a' ('2024-01-31T00:0"),
        ([["a", "y"], [True, 2]], "yes or no in 'a' ('True', line 2); add --encode a"),
        ([["a", None, "y"], [1, 2, 3]], "no name for column 2"),
        ([["a", "a", "y"], [1, 2, 3]], "'a' for columns 1 and 2"),
    ],
)
def test_workbooks_that_are_refused(tmp_path, rows, words):
    assert words in refusal(workbook(tmp_path / "data.xlsx", rows))


def test_files_that_are_no_workbook(tmp_path):
    whole = workbook(tmp_path / "data.xlsx", [["a", "y"], [1, 2]]).read_bytes()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.txt", "text")
    for data in (b"a,y\n1,2\n", whole[:-40], archive.getvalue(), b"PK\x03\x04"):
        sentence = refusal(written(tmp_path, data, "data.xlsx"))
        assert "an Excel workbook (.xlsx); got a file of another kind" in sentence
    assert "an empty file" in refusal(written(tmp_path, b"", "data.xlsx"))


@given(place=st.integers(0, 10**6), bits=st.integers(1, 255))
def test_changed_workbooks(tmp_path_factory, place, bits):
    folder = tmp_path_factory.mktemp("changed")
    path = workbook(folder / "data.xlsx", [["a", "y"], [1.5, 2.5], [3.5, 4.5]])
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= bits
    try:
        found = read_samples(written(folder, bytes(data), "data.xlsx"))
    except TableError:
        return
    assert np.column_stack([found.X, found.y]).tolist() == [[1.5, 2.5], [3.5, 4.5]]


def test_without_openpyxl_the_extra_is_named(tmp_path, monkeypatch):
    path = workbook(tmp_path / "data.xlsx", [["a", "y"], [1, 2]])
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(ImportError, match=r"pip install 'posquad\[excel\]'"):
        read_samples(path)


def test_a_table_of_numbers_is_read_by_the_fast_parser(tmp_path, monkeypatch):
    """Cell by cell only where a cell is missing or not plain."""
    monkeypatch.setattr(text_module, "parse_cells", lambda *_, **__: pytest.fail("cell by cell"))
    assert np.array_equal(read_samples(written(tmp_path, TABLE)).X, X)
