"""The table of `docs/statuses.md` is the rule by which `recover` grants a status."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from posquad import Status
from posquad.recovery.evidence import Evidence
from posquad.recovery.status import RULES, Rule, grant

DOCS = Path(__file__).parents[1] / "docs"

# Of each rule, from the first that is tried: an answer per question; . means that any will do.
RULE = """
CERTIFIED       . y?  . . . . . . . . . . . y
UNDETERMINED    . .   n . . . . . . . . . . .
RECOVERED       y y?  y y . n y y n . . y . n
NO_MINIMUM      n .   y . . . . . . . y . . .
BEST_FIT        n .   y . . . . . . y n . . .
INTERRUPTED     n .   y . . . . . . n n . y .
INTERRUPTED     y .   y . ? n . . . . . . y .
INTERRUPTED     y y?  y y y n y y ? . . y y n
LOSS_REACHED    y .   y . . . . . . . . n . .
NOT_IDENTIFIED  y .   y . . . . . . . . y . .
STALLED         n .   y . . . . . . n n . n .
"""


@pytest.fixture(scope="module")
def granting():
    sys.path.insert(0, str(DOCS / "_extensions"))
    import granting

    yield granting
    sys.path.remove(str(DOCS / "_extensions"))


def test_the_page_shows_the_table_made_from_the_code():
    assert "```{status-table}\n```" in (DOCS / "statuses.md").read_text("utf-8")
    assert '"statustable",' in (DOCS / "conf.py").read_text("utf-8")


def test_the_table_is_the_rule(granting):
    """Whoever changes what a status needs changes this test, too."""
    (_, *names), *rows = granting.table()
    short = {"yes": "y", "no": "n", "unknown": "?", "yes or unknown": "y?", granting.ANY: "."}
    shown = [[name, *(short[row[k]] for row in rows)] for k, name in enumerate(names, start=1)]
    assert shown == [line.split() for line in RULE.strip().splitlines()]


def test_the_first_column_that_holds_is_the_status_that_is_granted(granting):
    """Every combination of findings, read from the table as a reader does."""
    (_, *names), *rows = granting.table()
    all = granting.states()
    read = np.full(all.answers[0].shape, -1)
    for k, name in reversed(list(enumerate(names, start=1))):
        holds = np.ones(read.shape, dtype=bool)
        for question, row, given in zip(granting.QUESTIONS, rows, all.answers, strict=True):
            allowed = row[k].split(" or ") if row[k] != granting.ANY else list(question.answers)
            holds &= np.isin(given, [list(question.answers).index(word) for word in allowed])
        read[holds] = Status[name].code
    assert len(read) > 200_000
    np.testing.assert_array_equal(read, grant(all.evidence))


def test_the_questions_are_about_all_that_a_rule_reads(granting):
    asked = {
        name
        for question in granting.QUESTIONS
        for found in question.answers.values()
        for name in found[0]
    }
    read = set()

    class Watched:
        def __getattr__(self, name):
            read.add(name)
            return getattr(blank, name)

    blank = Evidence.blank(1, np.dtype(float))
    for rule in RULES:
        rule.holds(Watched())  # type: ignore[arg-type]
    assert read == asked
    assert asked < {field.name for field in fields(Evidence)}


def test_every_status_that_recover_can_grant_has_a_column(granting):
    page = (DOCS / "statuses.md").read_text("utf-8")
    described = set(re.findall(r"`([A-Z_]+)`", page)) & set(Status.__members__)
    assert described == {rule.status.name for rule in RULES}
    everything = grant(granting.states().evidence)
    assert set(everything.tolist()) == {rule.status.code for rule in RULES}


def test_another_rule_is_another_table_and_an_inexact_one_is_refused(granting):
    lax = Rule(Status.RECOVERED, lambda e: e.reproduced & e.checked)
    changed = tuple(lax if rule.status is Status.RECOVERED else rule for rule in RULES)
    assert granting.table(changed) != granting.table()
    either = Rule(Status.BEST_FIT, lambda e: e.best | e.escapes)
    with pytest.raises(ValueError, match="BEST_FIT is no conjunction of answers"):
        granting.table((either,))
