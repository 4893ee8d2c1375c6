"""Rows of Parquet files: their columns, their caches and leftovers, and what is refused."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest

from posquad.core.errors import DomainError, NonFiniteError
from posquad.core.files import FileError
from posquad.problems import rows
from posquad.problems.rows import disk
from posquad.problems.rows.cache import Cache
from posquad.problems.rows.reader import block_checksum
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
    ended = f".t.parquet.{'0' * 16}.{'1' * 16}.temporary.npy"

    def convert_beside(out):
        living = hidden(tmp_path)
        for name in (killed, ended, of_another):
            (tmp_path / name).write_bytes(b"begun")
        rows.from_parquet(path, keep=True)
        assert hidden(tmp_path) > living | {of_another}
        assert not {killed, ended} & hidden(tmp_path)

    Cache(tmp_path, "t.parquet", "3" * 16, "4" * 16).write(convert_beside, lambda: None)


def test_caches_of_older_versions_are_deleted_unless_they_are_read(tmp_path):
    path, other = tmp_path / "t.parquet", tmp_path / "u.parquet"
    rows.from_parquet(written(other, [5.0]), keep=True)
    of_other = hidden(tmp_path)
    table = rows.from_parquet(written(path, [1.0, 2.0]), keep=True)
    first = hidden(tmp_path) - of_other
    newer = rows.from_parquet(written(path, [3.0]), keep=True)
    assert hidden(tmp_path) > first
    assert table.read_all().tolist() == [[1], [2]]
    assert newer.read_all().tolist() == [[3]]
    del table, newer
    rows.from_parquet(written(path, [4.0, 4.0, 4.0]), keep=True)
    assert len(hidden(tmp_path)) == 2
    assert not hidden(tmp_path) & first
    assert hidden(tmp_path) > of_other


def test_files_of_one_name_share_a_folder_of_caches(tmp_path):
    caches = tmp_path / "caches"
    caches.mkdir()
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        rows.from_parquet(written(tmp_path / place / "t.parquet", [1.0]), folder=caches, keep=True)
    assert len(hidden(caches)) == 2


def test_a_cut_cache_is_written_again(tmp_path):
    path = written(tmp_path / "t.parquet", [1.0, 2.0])
    rows.from_parquet(path, keep=True)
    (name,) = hidden(tmp_path)
    for size in (0, 60, (tmp_path / name).stat().st_size - 8):
        os.truncate(tmp_path / name, size)
        assert rows.from_parquet(path, keep=True).read_all().tolist() == [[1], [2]]
    assert hidden(tmp_path) == {name}


@pytest.fixture
def checked(tmp_path, monkeypatch, rng):
    """A table in six blocks of 100 rows, and the path of its cache."""
    monkeypatch.setattr(disk, "BLOCK_BYTES", 2400)
    X = normal(rng, 550, 3).numpy()
    path = written(tmp_path / "t.parquet", *X.T)
    rows.from_parquet(path, keep=True)
    (name,) = hidden(tmp_path)
    return X, path, tmp_path / name


def flip(path, place, bit=0):
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def test_no_bit_of_a_cache_changes_a_number(checked):
    """Of 60 random bits and many of the ends, none is used: an error, or the numbers again."""
    X, path, cache = checked
    size, rng = cache.stat().st_size, np.random.default_rng(0)
    numbers = 128 + X.nbytes
    places = [*range(12), *range(numbers - 3, size, 4), *rng.integers(0, size, 60)]
    told = 0
    for place in map(int, places):
        flip(cache, place, int(rng.integers(8)))
        if 128 <= place < numbers:
            told += 1
            with pytest.raises(FileError, match="by their checksum") as found:
                rows.from_parquet(path).read_all()
            words = f"got others in block {(place - 128) // 2400 + 1} of 6, by their checksum"
            assert words in str(found.value)
            assert str(found.value).startswith(f"{cache}: expected the numbers of {path}")
            assert "it was deleted, and the next call converts the file" in str(found.value)
            assert not cache.exists()
        np.testing.assert_array_equal(rows.from_parquet(path, keep=True).read_all(), X)
    assert told > 45


def test_a_cache_is_deleted_with_its_last_source(tmp_path):
    path = written(tmp_path / "t.parquet", [1.0, 2.0], [3.0, 4.0])
    table = rows.from_parquet(path)
    assert table.cache.path.exists()
    parts = [table.part(0, 1), table.with_columns([1]), pickle.loads(pickle.dumps(table))]
    other = rows.from_parquet(path)
    assert hidden(tmp_path) == {table.cache.path.name}
    del table, other
    while parts:
        assert parts.pop().read_all()[1, -1] == 4
        assert bool(hidden(tmp_path)) == bool(parts)
    # One that is kept is used by other calls and stays.
    rows.from_parquet(path, keep=True)
    kept = hidden(tmp_path)
    assert len(kept) == 1
    assert rows.from_parquet(path).cache.keep
    assert hidden(tmp_path) == kept
    with pytest.raises(DomainError, match="keep: expected True or False; got 'no'"):
        rows.from_parquet(path, keep="no")


READERS = """
import os, signal, sys
from pathlib import Path
from posquad.problems import rows

path, ends = Path(sys.argv[1]), ("end", "fail", "interrupt", "kill")
caches = lambda: len(list(path.parent.glob(".t.parquet.*")))
ready, children = os.pipe(), []
for end in ends:
    go = os.pipe()
    child = os.fork()
    if not child:  # a process of its own, which has imported everything
        table = rows.from_parquet(path)
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        if end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if end == "interrupt":
            raise KeyboardInterrupt
        sys.exit(end == "fail")
    children.append((child, go[1]))
    os.read(ready[0], 1)
for child, go in children:
    print(caches())
    os.write(go, b"x")
    os.waitpid(child, 0)
print(caches())
sys.exit(rows.from_parquet(path).n)
"""


def test_the_last_process_deletes_a_cache(tmp_path):
    """Processes that end, fail or are interrupted; one that is killed leaves it to the next."""
    path = written(tmp_path / "t.parquet", [1.0, 2.0])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", READERS, str(path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["1", "1", "1", "1", "1"], run.stderr
    assert run.returncode == 2
    assert not hidden(tmp_path)


@pytest.mark.parametrize("size", [0, 3, 8, 1021 * 8, 1021 * 8 * 3 + 17])
def test_checksums_are_sums_of_words(size):
    """Against integers of Python; and pages that change places change them."""
    data = np.random.default_rng(size).bytes(size)
    sums, whole = [0] * 1021, size // 8
    for k in range(whole):
        sums[k % 1021] += int.from_bytes(data[8 * k : 8 * k + 8], sys.byteorder)
    parts = [(total % 2**64).to_bytes(8, sys.byteorder) for total in sums]
    digest = hashlib.blake2b(b"".join(parts) + data[8 * whole :], digest_size=8).digest()
    assert block_checksum(data) == int.from_bytes(digest, "little")
    pages = np.random.default_rng(1).standard_normal((20, 512))
    assert block_checksum(pages) != block_checksum(pages[::-1].copy())


def test_checksums_are_checked_wherever_rows_are_read(checked):
    X, path, cache = checked
    table = rows.from_parquet(path)
    parts = [table.part(k, 4) for k in range(4)]
    shards = [table.part_rows(k, 4) for k in range(4)]
    flip(cache, 128 + 24 * 437 + 5)
    os.utime(cache, ns=(1, table.shards[0].changed))  # as if the disk had done it
    assert [next(table.blocks(0))[0].start, next(table.blocks(500))[0].start] == [0, 500]
    with pytest.raises(FileError, match="others in block 5 of 6, by their checksum"):
        list(table.blocks(300))
    for part, place in zip(parts, shards, strict=True):
        cache.write_bytes(b"")  # deleted by the last error
        rows.from_parquet(path, keep=True)
        flip(cache, 128 + 24 * 437 + 5)
        os.utime(cache, ns=(1, table.shards[0].changed))
        for chosen in (part, part.with_columns([2, 0]), pickle.loads(pickle.dumps(part))):
            if place.start <= 437 < place.stop:
                with pytest.raises(FileError, match="others in block 5 of 6"):
                    chosen.read_all()
                break
            columns = [0, 1, 2] if chosen.columns is None else chosen.columns
            np.testing.assert_array_equal(chosen.read_all(), X[place][:, columns])


def test_a_cache_that_is_written_twice_at_once(tmp_path):
    """The second writer leaves the file of the first, which may be read already."""
    path = written(tmp_path / "t.parquet", [1.0, 2.0])
    tables = []

    def overtake(share):
        if not tables:
            tables.append(None)
            tables[0] = rows.from_parquet(path)

    second = rows.from_parquet(path, progress=overtake)
    assert tables[0].read_all().tolist() == second.read_all().tolist() == [[1], [2]]
    assert len(hidden(tmp_path)) == 1


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_other_numbers_of_the_same_size_and_time_have_another_cache(compression, tmp_path):
    path = tmp_path / "t.parquet"
    plain = {"compression": compression, "use_dictionary": False, "write_statistics": False}
    for value in (1.0, 2.0):
        parquet.write_table(pyarrow.table({"a": np.full(500, value)}), path, **plain)
        os.utime(path, ns=(1, 1))
        table = rows.from_parquet(path)
        assert table.read_all().unique().tolist() == [value]
        table.fingerprint()


def test_a_parquet_file_that_changes_while_it_is_converted(tmp_path):
    path = written(tmp_path / "t.parquet", [1.0, 2.0])
    with pytest.raises(FileError, match=r"t.parquet: expected the file as it was when it was open"):
        rows.from_parquet(path, progress=lambda share: os.utime(path, ns=(1, 1)))
    assert not hidden(tmp_path)
