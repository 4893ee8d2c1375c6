"""Files that several threads, processes or hosts write at the same time."""

from __future__ import annotations

import os
import secrets
import stat
import threading
from pathlib import Path

import pytest

from posquad.core import files
from posquad.core.files import read_json, write_whole


def in_threads(*works) -> None:
    """Run the functions at the same time; the first error is raised here."""
    errors: list[BaseException] = []
    ready = threading.Barrier(len(works))

    def guarded(work):
        try:
            ready.wait()
            work()
        except BaseException as problem:
            errors.append(problem)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_threads_that_write_one_file_leave_one_content_whole_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    contents = [bytes([k]) * 100_000 for k in range(8)]
    write_whole(path, contents[0])
    seen: set[bytes] = set()
    done = threading.Event()

    def write(content: bytes) -> None:
        for _ in range(5):
            write_whole(path, content)

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        in_threads(*(lambda content=content: write(content) for content in contents))
    finally:
        done.set()
        reader.join()
    assert seen <= set(contents)
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_temporary_names_differ_within_a_process(tmp_path, monkeypatch):
    """Two writers in the middle of their writes hold two files: the process id alone made one."""
    names: list[set[str]] = []
    middle = threading.Barrier(2)
    fsync = os.fsync

    def watched(descriptor):
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            middle.wait(timeout=30)
            names.append({path.name for path in tmp_path.iterdir()})
            middle.wait(timeout=30)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    in_threads(*(lambda k=k: write_whole(tmp_path / "file", bytes([k])) for k in range(2)))
    assert [len(found) for found in names] == [2, 2]
    assert (tmp_path / "file").read_bytes() in (b"\0", b"\1")


def test_a_temporary_file_of_somebody_else_is_left_alone(tmp_path, monkeypatch):
    """Another host may have taken the name: the write fails, and the file of the other stays."""
    monkeypatch.setattr(secrets, "token_hex", lambda size: "taken")
    theirs = tmp_path / ".taken.partial"
    theirs.write_bytes(b"theirs")
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "file", b"ours")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [
        (theirs.name, b"theirs")
    ]


def test_a_file_has_the_permissions_that_the_user_chose(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_whole(tmp_path / "file", b"")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize(("number", "raised"), [(22, False), (5, True)], ids=["EINVAL", "EIO"])
def test_a_folder_that_cannot_be_synced(tmp_path, monkeypatch, number, raised):
    """Some file systems cannot sync a folder, which is no error; a broken disk is one."""
    fsync = os.fsync

    def watched(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    if raised:
        with pytest.raises(OSError, match=r"Input/output error"):
            write_whole(tmp_path / "file", b"new")
    else:
        write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("[NaN]", "NaN is not a JSON number"),
        ("[-Infinity]", "-Infinity is not a JSON number"),
        ("{", "Expecting property name"),
    ],
)
def test_json_that_is_refused(tmp_path, text, reason):
    path: Path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        read_json(path)


def test_json_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    path: Path = tmp_path / "a.json"
    path.write_text("[1]")
    monkeypatch.setattr(files, "_JSON_LIMIT", 2)
    with pytest.raises(ValueError, match="larger than 0 MB"):
        read_json(path)
