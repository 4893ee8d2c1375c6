"""Checkpoints of long work on files: kills, foreign and damaged files, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import checkpoint_chaos
from posquad import recover
from posquad.core.errors import DomainError
from posquad.core.files import FileError
from posquad.estimator import PositiveQuadraticRegressor
from posquad.problems import rows
from posquad.problems.rows import disk
from posquad.recovery import Checkpoint
from posquad.recovery.streams import checkpoint as module

N, D = 5000, 3


def test_a_killed_fit_goes_on_to_the_same_bits(tmp_path):
    """Processes kill themselves (SIGKILL) in the reading of rows, the search, and the passes.

    Then their files are damaged, or replaced by others of the same size and time.
    """
    program = [sys.executable, checkpoint_chaos.__file__, str(tmp_path), "0"]
    routes = ["moments=3,12", "linear=5,10", "again=4,16", "passes=15,40", "group=3,5"]
    routes.append("damaged=3")
    path = os.pathsep.join(entry for entry in sys.path if entry)
    child = subprocess.run(
        [*program, *routes],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == 0, child.stderr
    told = [json.loads(line) for line in child.stdout.splitlines()]
    *killed, damaged = told
    assert [each["killed"] for each in killed] == [2, 2, 2, 2, 2]
    assert all(each["compared"] == 1 for each in killed)
    assert damaged["compared"] == 3
    for k in range(4):  # in a group, the second process may have been killed before its first state
        assert child.stderr.count(f"Going on from {tmp_path}/{k}") == 2


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "BLOCK_BYTES", 24_000)  # 1000 rows
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D))
    np.save(tmp_path / "x.npy", X)
    return X, ((X @ rng.standard_normal((D, 1))) ** 2).sum(1) + 0.1 * rng.standard_normal(N)


def begin(path, y, place, rank=1, **options):
    """Fit until two blocks are read, and die; return the rows that were read."""
    source = rows.from_npy(path)

    def die(step):
        if step.time >= 3000:
            raise Killed

    with pytest.raises(Killed):
        recover(source, y, rank, checkpoint=Checkpoint(place, every=1e-9), progress=die, **options)


def go_on(path, y, place, rank=1, **options):
    """Fit; return the answer, and how many rows were read."""
    source = rows.from_npy(path)
    found = recover(source, y, rank, checkpoint=place, **options)
    return found, source.reads


def test_the_rows_of_a_checkpoint_are_not_read_again(table, tmp_path):
    X, y = table
    begin(tmp_path / "x.npy", y, tmp_path / "state")
    found, read = go_on(tmp_path / "x.npy", y, tmp_path / "state")
    assert read == N - 2000
    np.testing.assert_allclose(found.Q.dense(), recover(X, y, 1).Q.dense(), atol=1e-10)
    assert not (tmp_path / "state").exists()


def replace_rows(path):
    """Put other rows of the same kind into a file, of which size and time stay."""
    before = path.stat()
    np.save(path, np.random.default_rng(1).standard_normal((N, D)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (before.st_size, before.st_mtime_ns) == (path.stat().st_size, path.stat().st_mtime_ns)


CHANGES = {
    "the file": lambda path, y: (os.utime(path, ns=(1, 1)), {})[1],
    "the rows": lambda path, y: (replace_rows(path), {})[1],
    "a response": lambda path, y: {"y": np.append(y[:-1], 1.0)},
    "the rank": lambda path, y: {"rank": 2},
    "the seed": lambda path, y: {"seed": 1},
    "the weights": lambda path, y: {"weights": np.ones(N)},
    "the tolerance": lambda path, y: {"tolerance": 1e-6},
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_data_or_options_begin_anew(name, table, tmp_path):
    _, y = table
    path, place = tmp_path / "x.npy", tmp_path / "state"
    begin(path, y, place)
    options = {"y": y} | CHANGES[name](path, y)
    with pytest.warns(UserWarning, match=r"state is not used, .* other data, other options"):
        _, read = go_on(path, place=place, **options)
    assert read >= N
    assert not place.exists()


@pytest.mark.parametrize("cut", [0, 20, 40, 2000, -1])
def test_a_damaged_checkpoint_is_not_used(cut, table, tmp_path):
    _, y = table
    place = tmp_path / "state"
    begin(tmp_path / "x.npy", y, place)
    whole = place.read_bytes()
    place.write_bytes(whole[:cut] if cut >= 0 else whole[:-9] + b"x" + whole[-8:])
    with pytest.warns(UserWarning, match="state is not used, and the work begins anew: it is dam"):
        assert go_on(tmp_path / "x.npy", y, place)[1] >= N


def test_a_file_that_is_no_checkpoint_stays(table, tmp_path):
    _, y = table
    np.save(tmp_path / "y.npy", y)
    before = (tmp_path / "y.npy").read_bytes()
    with pytest.raises(FileError, match="expected a checkpoint of posquad or no file"):
        recover(rows.from_npy(tmp_path / "x.npy"), y, 1, checkpoint=tmp_path / "y.npy")
    assert (tmp_path / "y.npy").read_bytes() == before
    with pytest.raises(FileError, match="expected a readable checkpoint; got Is a directory"):
        recover(rows.from_npy(tmp_path / "x.npy"), y, 1, checkpoint=tmp_path)


def test_a_full_disk_does_not_end_the_work(table, tmp_path, monkeypatch):
    X, y = table

    def full(path: Path, *parts, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_whole", full)
    with pytest.warns(UserWarning, match=r"cannot be written \(No space left on dev") as told:
        found = recover(
            rows.from_npy(tmp_path / "x.npy"), y, 1, checkpoint=Checkpoint("state", every=1e-9)
        )
    assert len(told) == 1
    np.testing.assert_allclose(found.Q.dense(), recover(X, y, 1).Q.dense(), atol=1e-10)


def test_what_has_no_checkpoint(table):
    X, y = table
    for call in (recover, PositiveQuadraticRegressor().fit):
        with pytest.raises(DomainError, match="checkpoint: expected None unless X is a source"):
            call(X, y, checkpoint="state")
        with pytest.raises(DomainError, match="checkpoint: expected None unless the rows are"):
            call(rows.in_memory(X), y, checkpoint="state")
        with pytest.raises(DomainError, match="checkpoint: expected a path"):
            call(rows.in_memory(X[:100]), y[:100], checkpoint=5)  # read into memory
    with pytest.raises(DomainError, match="checkpoint: expected a path"):
        Checkpoint(3)
    with pytest.raises(DomainError, match="every: expected"):
        Checkpoint("state", every=0)
