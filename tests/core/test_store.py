"""A JSON file and its arrays: complete, unchanged and of the same pair, or refused."""

from __future__ import annotations

import json

import pytest

from posquad.core.files import json_checksum, write_whole
from posquad.core.store import StoreError, read_arrays, read_body, save_pair

FORMAT = "example 1"


@pytest.fixture
def pair(tmp_path):
    words, arrays = tmp_path / "a.json", tmp_path / "a.npz"
    save_pair(words, {"format": FORMAT, "number": 0.1}, arrays, b"numbers")
    return words, arrays


def test_what_was_written_is_read(pair):
    body = read_body(pair[0], FORMAT)
    assert body["number"] == 0.1
    assert body["arrays_bytes"] == 7
    assert body["sha256"] == json_checksum(body)
    assert read_arrays(pair[1], body) == b"numbers"


def test_the_arrays_are_written_first(tmp_path):
    order = []

    def noted(path, data):
        order.append(path.name)
        write_whole(path, data)

    save_pair(tmp_path / "a.json", {}, tmp_path / "a.npz", b"", write=noted)
    assert order == ["a.npz", "a.json"]


def test_a_body_that_json_cannot_hold_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_pair(tmp_path / "a.json", {"number": float("nan")}, tmp_path / "a.npz", b"")
    assert list(tmp_path.iterdir()) == []


def changed(path):
    path.write_text(path.read_text().replace("0.1", "0.2"))


def nested(path):
    path.write_text("[" * 100_000)


BODIES = {
    "a changed number": (changed, "checksum does not match"),
    "not JSON": (lambda path: path.write_text("{"), "not valid JSON"),
    "nested": (nested, "nested too deeply"),
    "a list": (lambda path: path.write_text("[1]"), "not of the format 'example 1'"),
    "another format": (lambda path: path.write_text('{"format": 2}'), "not of the format"),
    "no file": (lambda path: path.unlink(), "no such file"),
}


@pytest.mark.parametrize(("damage", "reason"), BODIES.values(), ids=BODIES)
def test_a_body_that_is_refused(pair, damage, reason):
    damage(pair[0])
    with pytest.raises(StoreError, match=reason) as caught:
        read_body(pair[0], FORMAT)
    assert caught.value.path == pair[0]


def test_arrays_of_another_size_are_not_read(pair, monkeypatch):
    body = read_body(pair[0], FORMAT)
    pair[1].write_bytes(b"more numbers")
    monkeypatch.setattr(type(pair[1]), "read_bytes", lambda path: pytest.fail("read"))
    with pytest.raises(StoreError, match="changed or belongs to another one"):
        read_arrays(pair[1], body)


@pytest.mark.parametrize("content", [b"NUMBERS", None])
def test_arrays_that_are_refused(pair, content):
    body = read_body(pair[0], FORMAT)
    pair[1].unlink()
    if content is not None:
        pair[1].write_bytes(content)
    with pytest.raises(StoreError, match="no such file" if content is None else "checksum"):
        read_arrays(pair[1], body)


def test_a_body_without_a_size_is_still_read(pair):
    """Files written before the size was stored."""
    body = json.loads(pair[0].read_text())
    del body["arrays_bytes"]
    assert read_arrays(pair[1], body) == b"numbers"
