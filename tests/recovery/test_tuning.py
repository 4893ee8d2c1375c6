"""Constants of `recover` that make no sense are refused when they are made."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import fields

import pytest

from posquad.errors import DomainError, DtypeError
from posquad.recovery.tuning import Acceptance, Schedule, Sizes, Tuning


@pytest.mark.parametrize("group", [Sizes, Schedule, Acceptance])
def test_every_field_is_checked(group):
    assert group() == group()
    for item in fields(group):
        for value in (-1, math.nan, math.inf, "many", True):
            with pytest.raises(DomainError, match=rf"{item.name}: expected .*got"):
                group(**{item.name: value})


@pytest.mark.parametrize("group", [Sizes, Schedule, Acceptance])
def test_every_field_has_a_source_that_can_be_looked_up(group):
    """A formula, a measurement with its benchmark or problems, a definition or a choice."""
    source = inspect.getsource(group)
    for item in fields(group):
        text = re.search(rf' {item.name}: .*?"""(.*?)"""', source, re.DOTALL)
        assert text is not None, item.name
        words = " ".join(text[1].split())
        named = r"(Derived(:|,)|Measured(:| \w+ )|Cited: |(A|a) (definition|choice)\b)"
        assert re.search(named, words), f"{item.name}: {words}"


def test_counts_may_be_zero_but_not_fractions_and_other_numbers_not_zero():
    assert Schedule(others_round=0).others_round == 0
    with pytest.raises(DomainError, match=r"companions: expected an integer >= 0; got 2\.5"):
        Schedule(companions=2.5)
    with pytest.raises(DomainError, match="spread: expected a finite number > 0; got 0"):
        Schedule(spread=0)


def test_the_groups_have_their_places():
    with pytest.raises(
        DtypeError, match=r"sizes: expected posquad.recovery.tuning.Sizes; got Schedule"
    ):
        Tuning(sizes=Schedule())
