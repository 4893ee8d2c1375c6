"""A part of the labelled corpus: no word is false; and how words of two versions are compared."""

from __future__ import annotations

import pytest

from adversarial.corpus import run, ways_of, words_of
from adversarial.corpus_problems import FAMILIES, MEMBERS, group_of
from adversarial.corpus_words import (
    BEST,
    FALSE,
    TRUTHS,
    Grade,
    false_words,
    grade,
    moves,
    table_of_moves,
    table_of_words,
)
from posquad.core.status import Status

FIRST = 100_000  # a seed of the tests, so that the full run adds cases instead of repeating these


def told(word, truth, right=None):
    return {"word": word, "truth": truth, "right": right, "rank": 1, "misfit": 0.5}


@pytest.mark.parametrize("place", range(len(FAMILIES)), ids=list(FAMILIES))
def test_no_word_is_false(place):
    """One group of each family in two of the ways, which change from family to family."""
    family = list(FAMILIES)[place]
    ways = ways_of(group_of(family, FIRST))
    chosen = {ways[place % len(ways)], ways[(place + len(ways) // 2) % len(ways)]}
    records = words_of(family, FIRST, chosen if "no minimum" not in family else ["regressor"])
    assert records
    assert not list(false_words(records))


def test_every_truth_has_a_best_word_and_none_is_also_false():
    assert set(BEST) == set(FALSE) == set(TRUTHS)
    for truth in TRUTHS:
        assert BEST[truth]
        assert not BEST[truth] & FALSE[truth]
        assert BEST[truth] <= {status.name for status in Status}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (told("RECOVERED", "unique", True), Grade.BEST),
        (told("RECOVERED", "unique", False), Grade.FALSE),  # another matrix
        (told("NOT_IDENTIFIED", "unique"), Grade.NEUTRAL),
        (told("STALLED", "twin"), Grade.NEUTRAL),
        (told("RECOVERED", "twin", False), Grade.FALSE),
        (told("RECOVERED", "twin", True), Grade.NEUTRAL),  # of a lower rank
        (told("NOT_IDENTIFIED", "noisy", False), Grade.FALSE),  # it reproduces nothing
        (told("RAISED", "noisy"), Grade.FALSE),
        (told("REFUSED", "unique"), Grade.NEUTRAL),
    ],
)
def test_grades(record, expected):
    assert grade(record) is expected


def test_moves_are_counted_and_those_away_come_first():
    old = {
        "a": told("STALLED", "unique"),
        "b": told("STALLED", "unique"),
        "c": told("NOT_IDENTIFIED", "twin"),
        "d": told("BEST_FIT", "noisy"),
        "gone": told("BEST_FIT", "noisy"),
    }
    new = {
        "a": told("RECOVERED", "unique", True),
        "b": told("RECOVERED", "unique", True),
        "c": told("STALLED", "twin"),
        "d": told("BEST_FIT", "noisy"),
    }
    found = moves(old, new)
    assert [(move.old, move.new, move.away, move.keys) for move in found] == [
        ("NOT_IDENTIFIED", "STALLED", True, ["c"]),
        ("STALLED", "RECOVERED", False, ["a", "b"]),
    ]
    assert not any(move.away for move in moves(old, old))
    assert "AWAY" in table_of_moves(found).splitlines()[1]
    assert table_of_moves([]) == "no word changed"


def test_an_answer_that_becomes_wrong_is_a_move_away():
    old = {"a": told("RECOVERED", "unique", True)}
    new = {"a": told("RECOVERED", "unique", False)}
    (move,) = moves(old, new)
    assert (move.old, move.new, move.away) == ("RECOVERED", "RECOVERED (wrong)", True)
    assert list(false_words(new)) == [
        "a: RECOVERED (wrong), but the truth is unique (rank 1, misfit 0.5)"
    ]


def test_a_run_is_the_same_again_and_in_its_order(monkeypatch):
    kept = {name: FAMILIES[name] for name in ("unique, gaussian", "continuum, subspace")}
    monkeypatch.setattr("adversarial.corpus.FAMILIES", kept)
    one, two = (list(run(1e-3, FIRST)) for _ in range(2))
    assert one == two
    keys = [next(iter(records)) for records in one]
    assert keys == [f"{name} / {FIRST} / 0 / alone" for name in kept]
    assert sum(key.endswith(" / batch") for key in one[0]) == MEMBERS
    lines = table_of_words(one[0] | one[1]).splitlines()
    assert lines[1].split()[:2] == ["unique", "alone"]
