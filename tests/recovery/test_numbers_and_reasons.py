"""The numbers of `recover` have sources, and those of a status that make no sense are refused."""

from __future__ import annotations

import ast
import inspect
import math
import re
from dataclasses import fields
from pathlib import Path

import pytest

import posquad.recovery
from posquad.errors import DomainError
from posquad.recovery import Acceptance

# A formula, a citation, a measurement with its benchmark or problems, a definition or a choice.
SOURCE = re.compile(r"(Derived(:|,)|Measured(:| \w+ )|Cited: |(A|a) (definition|choice)\b)")


def test_every_field_is_checked():
    assert Acceptance() == Acceptance()
    for item in fields(Acceptance):
        for value in (-1, math.nan, math.inf, "many", True):
            with pytest.raises(DomainError, match=rf"{item.name}: expected .*got"):
                Acceptance(**{item.name: value})


def test_every_field_has_a_source_that_can_be_looked_up():
    source = inspect.getsource(Acceptance)
    for item in fields(Acceptance):
        text = re.search(rf' {item.name}: .*?"""(.*?)"""', source, re.DOTALL)
        assert text is not None, item.name
        words = " ".join(text[1].split())
        assert SOURCE.search(words), f"{item.name}: {words}"


def test_every_field_is_in_the_table_of_statuses():
    page = (Path(__file__).parents[2] / "docs" / "statuses.md").read_text("utf-8")
    numbers = page.split("## The numbers of a status")[1].split("\n## ")[0]
    for item in fields(Acceptance):
        assert f"`{item.name}`" in numbers


def comment_above(lines: list[str], line: int) -> str:
    """The comment of a constant; those that follow each other share theirs."""
    while line and re.match(r"_?[A-Z][A-Z0-9_, ]* = ", lines[line - 1]):
        line -= 1
    begin = line
    while begin and lines[begin - 1].startswith("#"):
        begin -= 1
    return " ".join(" ".join(lines[begin:line]).replace("#", " ").split())


def test_every_number_at_the_head_of_a_module_has_a_source():
    count = 0
    for path in Path(posquad.recovery.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if not isinstance(node, ast.Assign) or isinstance(node.value, ast.Dict):
                continue
            constants = (part for part in ast.walk(node.value) if isinstance(part, ast.Constant))
            if any(isinstance(part.value, int | float) for part in constants):
                source = comment_above(text.split("\n"), node.lineno - 1)
                assert SOURCE.search(source), f"{path.name}: {ast.unparse(node)}: {source}"
                count += 1
    assert count > 100


def test_counts_may_be_zero_but_not_fractions_and_other_numbers_not_zero():
    assert Acceptance(least_agreeing=0).least_agreeing == 0
    with pytest.raises(DomainError, match=r"others_rounds: expected an integer >= 0; got 2\.5"):
        Acceptance(others_rounds=2.5)
    with pytest.raises(DomainError, match="sure: expected a finite number > 0; got 0"):
        Acceptance(sure=0)
