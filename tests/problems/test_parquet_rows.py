"""Rows of Parquet files: their columns, their caches and leftovers, and what is refused."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest

from posquad.core.errors import DomainError, NonFiniteError
from posquad.core.files import FileError
from posquad.problems import rows
from posquad.problems.rows.cache import Cache
from support import normal


def written(path, *columns, names="abc"):
    """Write columns of numbers to a Parquet file."""
    parquet.write_table(pyarrow.table(list(columns), names=list(names[: len(columns)])), path)
    return path


def hidden(folder):
    """The names of the hidden files in a folder."""
    return {file.name for file in folder.iterdir() if file.name.startswith(".")}


def test_a_parquet_file_is_converted_once(rng, tmp_path):
    X = normal(rng, 20, 2).numpy()
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"a": X[:, 0], "k": range(20), "b": X[:, 1]}), path)
    shares = []
    table = rows.from_parquet(path, ["b", "a"], progress=shares.append)
    np.testing.assert_array_equal(table.read_all(), X[:, ::-1])
    assert shares == [1.0]
    rows.from_parquet(path, ["b", "a"], progress=shares.append)
    assert shares == [1.0]  # the cache is there
    assert rows.from_parquet(path).d == 3  # other columns have another cache
    parquet.write_table(pyarrow.table({"a": X[:, 1], "b": X[:, 0]}), path)
    os.utime(path, ns=(1, 1))
    np.testing.assert_array_equal(rows.from_parquet(path, ["b", "a"]).read_all(), X)
    assert not list(tmp_path.glob("*.partial"))


def test_parquet_refusals(tmp_path):
    path = tmp_path / "t.parquet"
    table = {"a": ["x", "y"], "b": [1.0, None], "c": [2**60 + 1, 0]}
    parquet.write_table(pyarrow.table(table), path)
    with pytest.raises(FileError, match="column 'a': expected real numbers; got type string"):
        rows.from_parquet(path)
    with pytest.raises(FileError, match=r"column 'b': expected a number in every row; .* row 1"):
        rows.from_parquet(path, ["b"])
    with pytest.raises(FileError, match="column 'c': expected double precision numbers"):
        rows.from_parquet(path, ["c"])
    with pytest.raises(FileError, match="expected a column 'z'; got a, b, c"):
        rows.from_parquet(path, ["z"])
    with pytest.raises(DomainError, match="columns: expected a list of names; got 'bc'"):
        rows.from_parquet(path, "bc")
    with pytest.raises(DomainError, match="path: expected a path; got NoneType"):
        rows.from_parquet(None)
    path.write_bytes(b"nothing")
    with pytest.raises(FileError, match="expected a Parquet file"):
        rows.from_parquet(path)
    assert [item.name for item in tmp_path.iterdir()] == ["t.parquet"]


def test_a_full_disk_leaves_no_cache(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"a": [1.0, 2.0]}), path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        FileError, match=r"GB for a cache of t.parquet; got No space left on device"
    ):
        rows.from_parquet(path)
    assert [item.name for item in tmp_path.iterdir()] == ["t.parquet"]


def test_an_index_of_pandas_is_no_input(tmp_path):
    import pandas

    path = tmp_path / "t.parquet"
    frame = pandas.DataFrame({"a": np.arange(6.0), "b": np.ones(6)}).iloc[[1, 5, 2]]
    frame.to_parquet(path)
    assert "__index_level_0__" in parquet.read_schema(path).names
    np.testing.assert_array_equal(rows.from_parquet(path).read_all(), frame.to_numpy())
    assert rows.from_parquet(path, ["__index_level_0__"]).read_all().tolist() == [[1], [5], [2]]


def test_two_columns_of_one_name(tmp_path):
    path = written(tmp_path / "t.parquet", [1.0], [2.0], [3.0], names="aab")
    with pytest.raises(FileError, match=r"t.parquet: expected one column 'a'; got 2 of them"):
        rows.from_parquet(path)
    assert float(rows.from_parquet(path, ["b"]).read_all()) == 3


def test_places_of_cells_are_those_of_the_parquet_file(tmp_path):
    numbers = np.ones(30_000)
    missing = pyarrow.array(numbers, mask=np.arange(30_000) == 19_999)
    path = written(tmp_path / "t.parquet", numbers, missing)
    with pytest.raises(FileError, match=r"t.parquet: column 'b': .* missing value in row 19999$"):
        rows.from_parquet(path)
    numbers[19_999] = np.nan
    table = rows.from_parquet(written(path, np.ones(30_000), numbers))
    words = r"got NaN in row 19999 of .*/t.parquet, column 'b'$"
    for part in (table, table.with_columns([1]), pickle.loads(pickle.dumps(table))):
        with pytest.raises(NonFiniteError, match=words):
            _ = [part.require_finite(place, block) for place, block in part.blocks()]


def test_leftovers_of_killed_writers_are_deleted(tmp_path):
    path = written(tmp_path / "t.parquet", [1.0, 2.0])
    killed, of_another = f".t.parquet.{'0' * 16}.{'1' * 16}.partial", f".{'2' * 16}.partial"
    with Cache(tmp_path, "t.parquet", "3" * 16, "4" * 16).written():
        living = hidden(tmp_path)
        for name in (killed, of_another):
            (tmp_path / name).write_bytes(b"begun")
        rows.from_parquet(path)
        assert hidden(tmp_path) > living | {of_another}
        assert killed not in hidden(tmp_path)


def test_caches_of_older_versions_are_deleted_unless_they_are_read(tmp_path):
    path, other = tmp_path / "t.parquet", tmp_path / "u.parquet"
    rows.from_parquet(written(other, [5.0]))
    of_other = hidden(tmp_path)
    table = rows.from_parquet(written(path, [1.0, 2.0]))
    first = hidden(tmp_path) - of_other
    newer = rows.from_parquet(written(path, [3.0]))
    assert hidden(tmp_path) > first
    assert table.read_all().tolist() == [[1], [2]]
    assert newer.read_all().tolist() == [[3]]
    del table, newer
    rows.from_parquet(written(path, [4.0, 4.0, 4.0]))
    assert len(hidden(tmp_path)) == 2
    assert not hidden(tmp_path) & first
    assert hidden(tmp_path) > of_other


def test_files_of_one_name_share_a_folder_of_caches(tmp_path):
    caches = tmp_path / "caches"
    caches.mkdir()
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        rows.from_parquet(written(tmp_path / place / "t.parquet", [1.0]), folder=caches)
    assert len(hidden(caches)) == 2


def test_a_cut_cache_is_written_again(tmp_path):
    path = written(tmp_path / "t.parquet", [1.0, 2.0])
    rows.from_parquet(path)
    (name,) = hidden(tmp_path)
    for size in (0, 60, (tmp_path / name).stat().st_size - 8):
        os.truncate(tmp_path / name, size)
        assert rows.from_parquet(path).read_all().tolist() == [[1], [2]]
    assert hidden(tmp_path) == {name}


def test_a_parquet_file_that_changes_while_it_is_converted(tmp_path):
    path = written(tmp_path / "t.parquet", [1.0, 2.0])
    with pytest.raises(FileError, match=r"t.parquet: expected the file as it was when it was open"):
        rows.from_parquet(path, progress=lambda share: os.utime(path, ns=(1, 1)))
    assert not hidden(tmp_path)
