"""Records on disk: bit for bit, whole or not at all, and reused only for the same question."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import json
import os
import pickle
import stat
from pathlib import Path

import numpy as np
import pytest
import scipy
import torch

from experiments_support import contents, measured, small_record
from posquad.core.errors import PosquadError
from posquad.core.files import FileError, json_checksum, write_file
from posquad.core.system import system_information
from posquad.experiments import records
from posquad.experiments.records import load, record_key, save
from posquad.experiments.registry import EXPERIMENTS

KEY = small_record().key


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with one record in it."""
    save(tmp_path / "records", small_record())
    return tmp_path / "records"


def word_file(folder: Path) -> Path:
    return folder / f"exp5-{KEY}.json"


def array_file(folder: Path) -> Path:
    return folder / f"exp5-{KEY}.npz"


def assert_same(found, expected):
    for name in ("experiment", "key", "seconds", "system", "finished"):
        assert getattr(found, name) == getattr(expected, name)
    assert found.parameters == json.loads(json.dumps(expected.parameters))
    assert found.measured.remarks == expected.measured.remarks
    assert list(found.measured.quantities) == list(expected.measured.quantities)
    assert list(found.measured.coords) == list(expected.measured.coords)
    for name, quantity in expected.measured.quantities.items():
        assert found.measured.quantities[name].dims == quantity.dims
    for name in [*expected.measured.quantities, *expected.measured.coords]:
        one, other = found.measured[name], expected.measured[name]
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()  # NaN, -0.0 and subnormals included


def test_round_trip_bit_for_bit(folder):
    assert_same(load(folder, "exp5", KEY), small_record())


def test_a_real_measurement_survives(tmp_path):
    """A record of an experiment as it is run, not only one made up for the test."""
    record = dataclasses.replace(small_record(experiment="exp6"), measured=measured("exp6"))
    save(tmp_path, record)
    assert_same(load(tmp_path, "exp6", record.key), record)


def test_what_the_files_are(folder):
    assert sorted(contents(folder)) == [f"exp5-{KEY}.json", f"exp5-{KEY}.npz"]
    words = json.loads(word_file(folder).read_text(encoding="utf-8"))
    assert words["key"] == KEY
    assert words["parameters"]["seed"] == 0
    assert words["system"] == {"torch": "2.13.0", "devices": []}
    data = array_file(folder).read_bytes()
    assert words["arrays_sha256"] == hashlib.sha256(data).hexdigest()
    assert words["arrays_bytes"] == len(data)
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        assert sorted(arrays.files) == sorted(
            ["coord epsilon", "coord step", "error", "single", "found", "count"]
        )


def test_no_record_is_none(tmp_path, folder):
    assert load(tmp_path, "exp5", KEY) is None
    assert load(tmp_path / "nowhere", "exp5", KEY) is None
    assert load(folder, "exp5", small_record(1).key) is None
    assert load(folder, "exp6", KEY) is None


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def with_arrays(folder: Path, data: bytes) -> None:
    """Replace the arrays and make the digest fit, as somebody who means harm would."""
    array_file(folder).write_bytes(data)
    saying(folder, arrays_sha256=hashlib.sha256(data).hexdigest(), arrays_bytes=len(data))


def without(folder: Path, name: str) -> None:
    words = json.loads(word_file(folder).read_text(encoding="utf-8"))
    del words[name]
    words["sha256"] = json_checksum(words)
    word_file(folder).write_text(json.dumps(words))


def saying(folder: Path, **changes: object) -> None:
    """Change entries of the JSON file and make its checksum match."""
    words = json.loads(word_file(folder).read_text(encoding="utf-8"))
    assert set(changes) < set(words)
    words |= changes
    words["sha256"] = json_checksum(words)
    word_file(folder).write_text(json.dumps(words))


def misstate(folder: Path) -> None:
    """Change a number in the JSON file, which stays valid JSON."""
    text = word_file(folder).read_text(encoding="utf-8")
    assert '"seconds": 0.25' in text
    word_file(folder).write_text(text.replace('"seconds": 0.25', '"seconds": 0.26'))


class Trap:
    """Unpickling it calls a function that leaves a trace."""

    sprung: list[str] = []  # noqa: RUF012

    def __reduce__(self):
        return Trap.sprung.append, ("ran",)


def pickled_arrays() -> bytes:
    buffer = io.BytesIO()
    trap = np.empty(1, dtype=object)
    trap[0] = Trap()
    np.savez(buffer, error=trap)
    return buffer.getvalue()


DAMAGE = {
    "json truncated": lambda folder: truncate(word_file(folder)),
    "json empty": lambda folder: word_file(folder).write_bytes(b""),
    "json is a list": lambda folder: word_file(folder).write_text("[1]"),
    "json is a number": lambda folder: word_file(folder).write_text("3"),
    "json is not text": lambda folder: word_file(folder).write_bytes(b"\xff\xfe\x00"),
    "json without key": lambda folder: without(folder, "key"),
    "json without format": lambda folder: without(folder, "format"),
    "json without dimensions": lambda folder: without(folder, "dimensions"),
    "json without arrays": lambda folder: without(folder, "arrays_sha256"),
    "json changed": misstate,
    "json nested": lambda folder: word_file(folder).write_text("[" * 100_000),
    "json of another format": lambda folder: saying(folder, format=records.FORMAT + 1),
    "json of another experiment": lambda folder: saying(folder, experiment="exp6"),
    "json of another key": lambda folder: saying(folder, key=small_record(1).key),
    "npz truncated": lambda folder: truncate(array_file(folder)),
    "npz changed": lambda folder: flip(array_file(folder)),
    "npz empty": lambda folder: array_file(folder).write_bytes(b""),
    "npz missing": lambda folder: array_file(folder).unlink(),
    "npz of objects": lambda folder: with_arrays(folder, pickled_arrays()),
    "npz is a pickle": lambda folder: with_arrays(folder, pickle.dumps(Trap())),
    "npz is empty, digest fits": lambda folder: with_arrays(folder, b""),
    "npz is no zip, digest fits": lambda folder: with_arrays(folder, b"PK\x03\x04" + b"x" * 99),
    "npz is cut, digest fits": lambda folder: with_arrays(
        folder, array_file(folder).read_bytes()[:-40]
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=[name.replace(" ", "-") for name in DAMAGE])
def test_a_damaged_record_is_one_clear_error_and_stays_as_it_is(folder, damage):
    damage(folder)
    before = contents(folder)
    Trap.sprung.clear()
    with pytest.raises(FileError) as caught:
        load(folder, "exp5", KEY)
    assert Trap.sprung == []
    assert isinstance(caught.value, PosquadError)
    assert caught.value.argument == str(word_file(folder))
    assert "expected a complete record; nothing was changed" in str(caught.value)
    assert "--fresh" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(folder) == before


def test_a_damaged_record_can_be_replaced(folder):
    truncate(word_file(folder))
    save(folder, small_record(value=2.0))
    assert_same(load(folder, "exp5", KEY), small_record(value=2.0))
    assert len(contents(folder)) == 2


def test_a_damaged_record_does_not_affect_the_others(folder):
    save(folder, small_record(1, value=2.0))
    truncate(word_file(folder))
    assert_same(load(folder, "exp5", small_record(1).key), small_record(1, value=2.0))


def test_an_object_array_is_refused_before_anything_is_written(folder):
    before = contents(folder)
    record = small_record(1)
    record.measured.add("trap", np.array([Trap(), Trap()], dtype=object), "epsilon")
    with pytest.raises(ValueError, match="allow_pickle"):
        save(folder, record)
    assert contents(folder) == before


def stop_at(monkeypatch, ending: str) -> None:
    def killed(path, data):
        if path.name.endswith(ending):
            raise KeyboardInterrupt
        write_file(path, data)

    monkeypatch.setattr(records, "write_file", killed)


@pytest.mark.parametrize("ending", [".json", ".npz"])
def test_a_kill_between_the_writes_leaves_no_record_and_the_others_as_they_are(
    folder, monkeypatch, ending
):
    before, other = contents(folder), small_record(1, value=2.0)
    stop_at(monkeypatch, ending)
    with pytest.raises(KeyboardInterrupt):
        save(folder, other)
    assert before.items() <= contents(folder).items()
    assert load(folder, "exp5", other.key) is None
    monkeypatch.undo()
    save(folder, other)  # and nothing is in the way of the next run
    assert_same(load(folder, "exp5", other.key), other)
    assert_same(load(folder, "exp5", KEY), small_record())


@pytest.mark.parametrize("ending", [".json", ".npz"])
def test_a_kill_while_a_record_is_computed_again_never_mixes_the_two(folder, monkeypatch, ending):
    """The old one, or an error that says so; never words of one with numbers of the other."""
    stop_at(monkeypatch, ending)
    with pytest.raises(KeyboardInterrupt):
        save(folder, small_record(value=2.0))
    if ending == ".npz":
        assert_same(load(folder, "exp5", KEY), small_record())
    else:
        with pytest.raises(FileError, match="checksum does not match"):
            load(folder, "exp5", KEY)
    monkeypatch.undo()
    save(folder, small_record(value=2.0))
    assert_same(load(folder, "exp5", KEY), small_record(value=2.0))


def test_nothing_is_deleted_or_overwritten_by_another_key(folder, monkeypatch):
    def refused(path, missing_ok=False):
        pytest.fail(f"{path} is deleted")

    monkeypatch.setattr(Path, "unlink", refused)
    before = contents(folder)
    for seed in (1, 2):
        save(folder, small_record(seed, value=float(seed)))
    assert before.items() <= contents(folder).items()
    assert len(contents(folder)) == 6
    assert_same(load(folder, "exp5", KEY), small_record())
    for seed in (1, 2):
        record = small_record(seed, value=float(seed))
        assert_same(load(folder, "exp5", record.key), record)


def test_other_experiments_are_left_alone(folder):
    save(folder, small_record(experiment="exp6"))
    before = contents(folder)
    save(folder, small_record(1))
    kept = {name: data for name, data in before.items() if name.startswith("exp6")}
    assert len(kept) == 2
    assert kept.items() <= contents(folder).items()


def test_writing_again_what_is_there_changes_nothing(folder):
    before = contents(folder)
    save(folder, small_record())
    assert contents(folder) == before


def full_disk(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_keeps_the_old_file_and_leaves_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "claims.json"
    write_file(path, b"old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(FileError, match="No space left on device") as caught:
        write_file(path, b"new")
    assert caught.value.argument == str(path)
    assert contents(tmp_path) == {"claims.json": b"old"}


def test_an_interrupt_while_writing_keeps_the_old_file_and_leaves_no_litter(tmp_path, monkeypatch):
    def interrupted(descriptor):
        raise KeyboardInterrupt

    path = tmp_path / "claims.json"
    write_file(path, b"old")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_file(path, b"new")
    assert contents(tmp_path) == {"claims.json": b"old"}
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "report.html", b"first")
    assert contents(tmp_path) == {"claims.json": b"old"}


def test_the_new_content_is_complete_before_it_has_the_name(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "er" / "file"
    seen, fsync = [], os.fsync

    def watched(descriptor):
        found = os.fstat(descriptor)
        seen.append((path.exists(), "folder" if stat.S_ISDIR(found.st_mode) else found.st_size))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    write_file(path, b"12345")
    assert seen == [(False, 5), (True, "folder")]  # the folder keeps the new name
    assert contents(tmp_path) == {"deep/er/file": b"12345"}


def in_place_of_the_folder(tmp_path):
    (tmp_path / "taken").write_bytes(b"a file")
    return tmp_path / "taken" / "exp5.json"


def in_place_of_the_parent(tmp_path):
    (tmp_path / "taken").write_bytes(b"a file")
    return tmp_path / "taken" / "records" / "exp5.json"


def in_place_of_the_file(tmp_path):
    (tmp_path / "exp5.json" / "inside").mkdir(parents=True)
    return tmp_path / "exp5.json"


def where_nothing_can_be_made(tmp_path):
    return Path("/proc/posquad/exp5.json")


@pytest.mark.parametrize(
    "place",
    [
        in_place_of_the_folder,
        in_place_of_the_parent,
        in_place_of_the_file,
        where_nothing_can_be_made,
    ],
)
def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path, place):
    path = place(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(FileError, match="expected a place that can be written to") as caught:
        write_file(path, b"new")
    assert caught.value.argument == str(path)
    assert contents(tmp_path) == before


def test_the_key_is_a_function_of_the_parameters():
    experiment = EXPERIMENTS["exp5"]
    default = experiment.parameters()
    key = record_key(experiment, default)
    assert record_key(experiment, experiment.parameters()) == key
    assert record_key(experiment, experiment.parameters(epsilons=default.epsilons)) == key
    changes = {field.name: getattr(default, field.name) for field in dataclasses.fields(default)}
    others = {key}
    for name, value in changes.items():
        changed = value[:-1] if isinstance(value, tuple) else value + 1
        others.add(record_key(experiment, dataclasses.replace(default, **{name: changed})))
    assert len(others) == len(changes) + 1  # each parameter, the seed among them, counts


def test_experiments_with_equal_parameters_have_different_keys():
    keys = {record_key(e, e.parameters()) for e in EXPERIMENTS.values()}
    assert len(keys) == len(EXPERIMENTS)


@pytest.mark.parametrize(
    ("key", "touched", "matters"),
    [
        ("exp5", "selection/flow.py", True),
        ("exp5", "core/arrays.py", True),
        ("exp5", "experiments/exp5/run.py", True),
        ("exp8", "experiments/exp8/sharpness.py", True),
        ("exp8", "certificates/search/dual.py", True),
        ("exp7", "selection/von_neumann.py", True),
        ("exp1", "experiments/problems.py", True),
        ("exp5", "experiments/exp1/run.py", False),
        ("exp5", "estimator/regressor.py", False),
        ("exp2", "experiments/words.py", True),
        ("exp3", "experiments/exp3/published.py", True),
        *((f"exp{k}", f"experiments/exp{k}/panels.py", False) for k in range(1, 9)),
        ("exp5", "report/palette.py", False),
        ("exp5", "cli/main.py", False),
    ],
)
def test_the_key_follows_the_source_that_computes_the_result(monkeypatch, key, touched, matters):
    root = Path(records.__file__).parents[1]
    assert (root / touched).exists()
    experiment = EXPERIMENTS[key]
    before = record_key(experiment, experiment.parameters())
    read_bytes = Path.read_bytes

    def edited(path):
        return read_bytes(path) + (b"# edited" if path == root / touched else b"")

    monkeypatch.setattr(Path, "read_bytes", edited)
    assert (record_key(experiment, experiment.parameters()) != before) == matters


@pytest.mark.parametrize("package", [records, torch, np, scipy], ids=lambda p: p.__name__)
def test_the_key_follows_the_versions(monkeypatch, package):
    experiment = EXPERIMENTS["exp5"]
    before = record_key(experiment, experiment.parameters())
    monkeypatch.setattr(package, "__version__", "999")
    assert record_key(experiment, experiment.parameters()) != before


def test_system_information_names_what_a_result_may_depend_on():
    found = system_information()
    assert found["torch"] == torch.__version__
    assert found["numpy"] == np.__version__
    assert found["scipy"] == scipy.__version__
    assert found["threads"] == torch.get_num_threads()
    json.dumps(found, allow_nan=False)
    assert not any(key in found for key in ("user", "host", "node"))  # a report is passed around
