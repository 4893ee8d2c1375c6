"""The constants that `benchmarks/tuning.py` finds and changes, and the tables that it makes."""

from __future__ import annotations

import importlib
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
TOOL = runpy.run_path(str(FOLDER / "tuning_constants.py"))
TABLES = runpy.run_path(str(FOLDER / "tuning_tables.py"))
Constant = TOOL["Constant"]

ORIGIN = '''
from math import pi as PI
from dataclasses import dataclass

_STEPS = 3  # steps
_LOW, HIGH = 0.25, 2**4
BOUNDS: tuple[float, float] = (1e-3, 0.1)
SIZES = {"a": 100, "b": 12}
DOUBLED = 2 * _STEPS
NAME, FLAG, NOTHING, lower = "x", True, 0, 7
_UNUSED = 9

def steps(most=_STEPS):
    return most, _STEPS

@dataclass
class Group:
    size: int = 5
    """Largest size. Measured: a second."""
'''
USER = """
from pack.origin import _STEPS as MOST, Group
import pack.origin

def limit():
    return MOST

def group_size():
    return Group().size
"""


@pytest.fixture
def pack(tmp_path, monkeypatch):
    """Import the two modules of a package, with one constant changed if it is given."""
    folder = tmp_path / "pack"
    folder.mkdir()
    for name, text in (("__init__", ""), ("origin", ORIGIN), ("user", USER)):
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    def imported(constant=None, new=None):
        for name in [name for name in sys.modules if name.split(".")[0] == "pack"]:
            del sys.modules[name]
        finders = [] if constant is None else [TOOL["Change"](constant, new)]
        monkeypatch.setattr(sys, "meta_path", [*finders, *original])
        return importlib.import_module("pack.origin"), importlib.import_module("pack.user")

    original = list(sys.meta_path)
    yield imported
    for name in [name for name in sys.modules if name.split(".")[0] == "pack"]:
        del sys.modules[name]


def test_the_numbers_of_a_module_are_those_that_it_assigns_itself(pack):
    origin, user = pack()
    found = {(c.name, c.part): c.value for c in TOOL["assigned_in"](origin)}
    assert found == {
        ("_STEPS", None): 3,
        ("_LOW", None): 0.25,
        ("HIGH", None): 16,
        ("BOUNDS", 0): 1e-3,
        ("BOUNDS", 1): 0.1,
        ("SIZES", 0): 100,
        ("SIZES", 1): 12,
        ("DOUBLED", None): 6,
        ("_UNUSED", None): 9,
    }
    assert list(TOOL["assigned_in"](user)) == []


def test_a_change_is_seen_in_default_arguments_and_in_other_modules(pack):
    origin, user = pack(Constant("pack.origin", "_STEPS", 3), 8)
    assert origin.steps() == (8, 8)
    assert (origin.DOUBLED, user.limit()) == (16, 8)
    assert origin._LOW == 0.25
    origin, user = pack()
    assert (origin.steps(), user.limit()) == ((3, 3), 3)


def test_parts_of_tuples_and_dictionaries_and_fields_are_changed_alone(pack):
    assert pack(Constant("pack.origin", "BOUNDS", 0.1, 1), 0.2)[0].BOUNDS == (1e-3, 0.2)
    assert pack(Constant("pack.origin", "SIZES", 100, 0), 50)[0].SIZES == {"a": 50, "b": 12}
    origin = pack(Constant("pack.origin", "HIGH", 16), 8)[0]
    assert (origin._LOW, origin.HIGH) == (0.25, 8)
    assert pack(Constant("pack.origin", "Group.size", 5), 10)[1].group_size() == 10


def test_fields_are_found_with_the_source_that_their_text_names(pack):
    origin, _ = pack()

    @dataclass
    class Both:
        group: object

    assert list(TOOL["fields_of"](Both(origin.Group()))) == [
        Constant("pack.origin", "Group.size", 5, None, "measured")
    ]


def test_integers_stay_integers_from_one():
    def scaled(value, factor):
        return Constant("m", "A", value).scaled(factor)

    assert [scaled(8, 0.5), scaled(8, 2.0), scaled(1, 2.0), scaled(0.25, 0.5)] == [4, 16, 2, 0.125]
    assert isinstance(scaled(8, 0.5), int)
    assert scaled(1, 0.5) is None  # half of it is no other integer


def test_lines_that_read_a_constant(pack, tmp_path):
    pack()
    steps, size, unused = (
        Constant("pack.origin", name, value)
        for name, value in (("_STEPS", 3), ("Group.size", 5), ("_UNUSED", 9))
    )
    found = TOOL["readers"]([steps, size, unused], tmp_path / "pack")

    def lines(text, part):
        return {k for k, line in enumerate(text.splitlines(), 1) if part in line}

    assert found[unused] == set()
    assert found[size] == {("pack.user", k) for k in lines(USER, "Group().size")}
    reads = lines(ORIGIN, "2 * _STEPS") | lines(ORIGIN, "most=_STEPS") | lines(ORIGIN, "return")
    expected = {("pack.origin", k) for k in reads} | {
        ("pack.user", k) for k in lines(USER, "return MOST")
    }
    assert found[steps] == expected


def measured(label, good, wrong, seconds, residual, place):
    """A row of the record with ten problems of one kind, one of which is a best fit."""
    return {
        "group": "" if label == "default" else "fields", "label": label, "source": "measured",
        "value": 4, "new": 2, "run": "first", "place": place, "machine": "a machine",
        "families": {"noisy": [10, good, wrong, seconds]},
        "residuals": {"noisy: one": [residual]}, "trouble": [],
    }  # fmt: skip


def test_a_table_shows_what_changes_an_answer_or_the_time():
    rows = [
        measured("default", 10, 0, 9.0, 0.5, 0),
        measured("S.same", 10, 0, 12.0, 0.5, 1),
        measured("S.slow", 10, 0, 30.0, 0.5, 2),
        measured("S.worse", 10, 0, 10.0, 0.6, 3),
        measured("S.wrong", 7, 2, 10.0, None, 4),
        measured("default", 10, 0, 11.0, 0.5, 5),
    ]
    text = TABLES["page"]("fields", rows, ["S.unread"], 9)
    assert (
        "Of 9 constants, 4 were measured, at 4 values in all, each on the same 10 problems" in text
    )
    cells = [[c.strip() for c in line.split("|")] for line in text.splitlines() if line[:1] == "|"]
    shown = {row[1]: row[5:9] for row in cells[2:]}
    assert shown == {
        "default, at the start": ["10", "0", "9.0 s = 0.90", ""],
        "default, at the end": ["10", "0", "11.0 s = 1.10", ""],
        "`S.slow`": ["10", "0", "3.00", "noisy: time 3"],
        "`S.worse`": ["9", "1", "1.00", "noisy: -1 good, +1 wrong"],
        "`S.wrong`": ["7", "2", "1.00", "noisy: -3 good, +2 wrong"],
    }
    assert "No value that was tried changes an answer or the time of: `S.same`." in text
    assert "`S.unread`" in text
    assert len(TABLES["full_table"](rows).splitlines()) == 1 + len(rows)
