"""The store: one writer, a full disk, damage, another sweep, and a file system without locks."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys

import pytest

from posquad.core.errors import DomainError
from posquad.core.files import FileError
from posquad.sweep import Sweep, product, read_table, run_sweep, sweep_status
from posquad.sweep import store as module
from posquad.sweep.store import LOCK, STORE, Store, driver_of

IDENTITY = {"sweep": "mine", "version": 1, "fingerprint": ""}


def double(parameters, seed):
    return {"y": 2 * parameters["x"]}


SWEEP = Sweep("mine", double, product(x=range(4)))


def test_a_second_driver_is_refused_and_the_first_is_named(tmp_path):
    with Store.create(tmp_path, IDENTITY):
        holder = driver_of(tmp_path)
        assert holder.startswith("process ")
        script = (
            "import sys; from pathlib import Path; from posquad.sweep.store import Store\n"
            f"with Store.create(Path(sys.argv[1]), {IDENTITY!r}): pass"
        )
        run = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True
        )
        assert run.returncode == 1
        last = run.stderr.strip().splitlines()[-1]
        assert "expected a folder that no other driver is using; got process" in last
        assert holder in last
    assert driver_of(tmp_path) is None
    with Store.create(tmp_path, IDENTITY):
        pass


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Sweep("yours", double, product(x=range(4))), "a store of the sweep 'yours'"),
        (Sweep("mine", double, product(x=range(4)), version=2), "a store of version 2"),
        (Sweep("mine", lambda p, s: {"y": 3}, product(x=range(4))), "another function"),
    ],
)
def test_a_store_of_another_sweep_version_or_function_is_refused(tmp_path, other, words):
    run_sweep(SWEEP, tmp_path, workers=0)
    with pytest.raises(DomainError, match=words):
        run_sweep(other, tmp_path, workers=0)
    assert sweep_status(tmp_path).done == 4


def test_another_file_is_not_taken_for_a_store(tmp_path):
    (tmp_path / STORE).write_text("this is no database, but a text of some length" * 20)
    with pytest.raises(FileError, match="an undamaged store; got file is not a database"):
        run_sweep(SWEEP, tmp_path, workers=0)
    with pytest.raises(FileError, match="not a database"):
        read_table(tmp_path)
    (tmp_path / STORE).unlink()
    with sqlite3.connect(tmp_path / STORE) as database:
        database.execute("CREATE TABLE meta (name TEXT, value TEXT)")
    with pytest.raises(FileError, match="another kind of database"):
        sweep_status(tmp_path)
    (tmp_path / STORE).unlink()
    with pytest.raises(FileError, match="the folder of a sweep"):
        sweep_status(tmp_path)


def test_a_changed_row_is_found(tmp_path):
    run_sweep(SWEEP, tmp_path, workers=0)
    with sqlite3.connect(tmp_path / STORE) as database:
        database.execute("""UPDATE cells SET result = '{"y": 7}' WHERE parameters = '{"x":2}'""")
    with pytest.raises(FileError, match=r"checksum of .* does not match"):
        read_table(tmp_path)
    with pytest.raises(FileError, match="checksum"):
        run_sweep(SWEEP, tmp_path, workers=0)


def test_a_truncated_store_is_found(tmp_path):
    run_sweep(SWEEP, tmp_path, workers=0)
    data = (tmp_path / STORE).read_bytes()
    (tmp_path / STORE).write_bytes(data[: len(data) - 4096])
    with pytest.raises(FileError, match="undamaged store"):
        read_table(tmp_path)


def test_a_full_disk_is_one_sentence_and_the_store_stays_intact(tmp_path):
    """The file may not grow beyond a limit, as on a full disk."""
    script = (
        "import resource, sys; from posquad.sweep import Sweep, product, run_sweep\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "def cell(p, seed): return {'y': p['x'] / 7}\n"
        "run_sweep(Sweep('mine', cell, product(x=range(2000))), sys.argv[1], workers=0)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True
    )
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert "expected room to write the results; got" in last
    assert "free some space and run the same command" in last
    done = sweep_status(tmp_path).done
    assert 0 < done < 2000
    table = read_table(tmp_path)
    assert len(table) == done
    assert (table["y"] == table["x"] / 7).all()
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


@pytest.mark.parametrize("reported", ["locking protocol", "unable to lock"])
def test_a_file_system_without_locks_is_one_sentence(tmp_path, monkeypatch, reported):
    class Broken:
        def execute(self, *_):
            raise sqlite3.OperationalError(reported)

        def close(self):
            pass

    monkeypatch.setattr(module, "_connect", lambda *_, **__: Broken())
    with pytest.raises(FileError, match="a file system on which files can be locked"):
        run_sweep(SWEEP, tmp_path, workers=0)
    assert not (tmp_path / LOCK).exists()


def test_a_folder_that_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="a folder; got a file of that name"):
        run_sweep(SWEEP, tmp_path / "file", workers=0)
