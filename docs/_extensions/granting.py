"""The table of the statuses, computed from the rules that grant them, without Sphinx.

Every rule is evaluated at every combination of findings. A cell names the answers to a question
with which the rule grants its status. The table is exact: the status is that of the first column
whose cells all hold, because a rule that is not a conjunction of answers is refused.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from posquad.recovery.evidence import Evidence
from posquad.recovery.status import RULES, Rule

ANY = "\u2013"  # a dash: the finding is not needed


class Question(NamedTuple):
    """A question to the evidence, and the findings that mean each answer."""

    words: str  # as Markdown
    answers: dict[str, list[dict[str, Any]]]


def _whether(words: str, field: str) -> Question:
    return Question(words, {"yes": [{field: True}], "no": [{field: False}]})


def _within(words: str, field: str, limit: str) -> Question:
    values = {"yes": 0.5, "no": 2.0, "unknown": math.nan}
    return Question(words, {word: [{field: v, limit: 1.0}] for word, v in values.items()})


def _others() -> dict[str, list[dict[str, Any]]]:
    answers: dict[str, list[dict[str, Any]]] = {"yes": [], "no": [], "unknown": []}
    for found in itertools.product([False, True], repeat=4):
        linear, excluded, sought, different = found
        word = "yes" if different else "no" if sought else "unknown"
        word = "no" if linear or excluded else word
        names = ("linear", "excluded", "sought", "different")
        answers[word].append(dict(zip(names, found, strict=True)))
    return answers


QUESTIONS = (
    _whether("responses reproduced: `residual` at most `tolerance`", "reproduced"),
    _within("each response reproduced: `worst` at most `tolerance`", "worst", "tolerance"),
    _whether("inputs span the space", "spans"),
    _whether("enough independent samples: `samples`, `needed`", "checked"),
    Question(
        "`curvature` computed",
        {"yes": [{"curvature": (0.5, 1.0)}], "unknown": [{"curvature": (math.nan, math.nan)}]},
    ),
    _whether("a direction is free", "free"),
    _whether("curvature positive, and the estimate of the error valid", "isolated"),
    _within("`error` at most `largest`", "error", "largest"),
    Question(
        "another solution: `linear`, `excluded`, `sought`, `different`",
        _others(),
    ),
    _whether("residual at its proved `bound`, or the search settled at a best fit", "best"),
    _whether("the error falls as coefficients grow without bound", "escapes"),
    _whether("diagnosis asked for: `diagnose`", "diagnosed"),
    _whether("a limit or the user ended the work", "spent"),
    _whether("a certificate proves uniqueness", "proved"),
)


class States(NamedTuple):
    """Every combination of findings: the evidence of a batch, and its answers to the questions."""

    evidence: Evidence
    answers: list[np.ndarray]  # for each question, the positions [N] of its answers


def states() -> States:
    """Return every combination of the findings of `QUESTIONS`."""
    findings = [
        [(k, found) for k, all in enumerate(question.answers.values()) for found in all]
        for question in QUESTIONS
    ]
    grid = np.indices([len(each) for each in findings]).reshape(len(findings), -1)
    known: dict[str, np.ndarray] = {}
    answers = []
    for each, index in zip(findings, grid, strict=True):
        answers.append(np.array([k for k, _ in each])[index])
        for field in each[0][1]:
            known[field] = np.array([found[field] for _, found in each])[index]
    return States(Evidence.blank(grid.shape[1], np.dtype(float)).updated(**known), answers)


def columns(rules: tuple[Rule, ...], all: States) -> list[list[tuple[str, ...]]]:
    """Return for each rule, and each question, the answers with which the status is granted."""
    table, left = [], np.ones(np.shape(all.evidence.residual), dtype=bool)
    for rule in rules:
        holds = rule.holds(all.evidence)
        exact = np.ones_like(holds)
        for given in all.answers:
            exact &= np.isin(given, np.unique(given[holds]))
        if not np.array_equal(holds, exact):
            name = rule.status.name
            raise ValueError(f"a rule of {name} is no conjunction of answers: split it into two")
        granted = holds & left  # no earlier rule holds
        words = (np.array(list(question.answers)) for question in QUESTIONS)
        given = (np.unique(answers[granted]) for answers in all.answers)
        table.append([tuple(w[k].tolist()) for w, k in zip(words, given, strict=True)])
        left &= ~holds
    return table


def table(rules: tuple[Rule, ...] = RULES) -> list[list[str]]:
    """Return the table: a row of the statuses, and a row for each question."""
    rows = [["finding", *(rule.status.name for rule in rules)]]
    for question, row in zip(QUESTIONS, zip(*columns(rules, states()), strict=True), strict=True):
        shown = [ANY if len(cell) == len(question.answers) else " or ".join(cell) for cell in row]
        rows.append([question.words, *shown])
    return rows
