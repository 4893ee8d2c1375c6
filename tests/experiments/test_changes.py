"""Parameters that are not the usual ones, and long numbers."""

from __future__ import annotations

import re

import pytest

from drawing_support import draw_unrendered
from posquad.experiments import reproduce as reproduce_module
from posquad.experiments.cells import shorten_numbers
from posquad.experiments.changes import changed_parameters, describe_sources
from posquad.experiments.registry import EXPERIMENTS
from posquad.experiments.reproduce import plan, reproduce

EXP1 = EXPERIMENTS["exp1"]


@pytest.mark.parametrize(
    ("values", "quick", "words"),
    [
        ({}, False, []),
        ({"seed": 5}, False, []),
        (EXP1.quick, True, []),
        (EXP1.quick, False, ["exp1.seeds = 16 (default: 64)", "exp1.steps = 100 (default: 300)"]),
        ({"n": 81}, True, ["exp1.n = 81 (paper: 80)"]),
        ({**EXP1.quick, "seeds": 64}, True, []),  # back to the full number
        ({**EXP1.quick, "seeds": 5}, True, ["exp1.seeds = 5 (default: 64)"]),
    ],
)
def test_what_the_user_changed(values, quick, words):
    changes = changed_parameters(EXP1, EXP1.parameters(**values), quick=quick)
    assert [change.words for change in changes] == words


def test_sources_of_all_parameters():
    values = EXP1.parameters(**EXP1.quick | {"n": 81, "seed": 2})
    rows = {row["name"]: row for row in describe_sources(EXP1, values, quick=True)}
    assert rows["n"]["source"] == "changed by you (paper: 80)"
    assert rows["seeds"]["source"] == "quick run (default: 64)"
    assert rows["d"]["source"] == "paper"
    assert rows["scale"]["source"] == "chosen here"
    assert rows["seed"]["source"] == "changed by you (default: 0)"
    assert [name for name, row in rows.items() if row["changed"]] == ["n"]


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("123456789", "123456789"),
        ("1234567890", "1.235e+09"),
        ("up to 10000000000000000000000000.0000 times", "up to 1.000e+25 times"),
        ("[-12345678901.5, 3]", "[-1.235e+10, 3]"),
        ("at least 84353665619395376.0.", "at least 8.435e+16."),
        ("0.1234567890123", "0.1234567890123"),
        ("1.2e+25 and x12345678901", "1.2e+25 and x12345678901"),
        ("exp5-0123456789abcdef", "exp5-0123456789abcdef"),
    ],
)
def test_long_numbers_are_shortened(text, short):
    assert shorten_numbers(text) == short


def test_absurd_parameters_give_no_number_of_many_digits(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce_module, "draw", draw_unrendered)
    changes = {"exp6": {"y": "1e22,3e21", "samples": "3"}}  # traces of the same size
    reproduce(tmp_path, plan(["exp6"], changes=changes))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    text = re.sub(r'<[^>]*>|data:[^"]*', " ", page.split("</style>")[1])
    assert re.findall(r"(?<![\w.])\d{10,}", text) == []
