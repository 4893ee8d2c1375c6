"""Words of a corpus beside the truth: which are best, which are false, and which moves are allowed.

A status may change from one version of the library to another only towards the truth.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

TRUTHS = ("unique", "twin", "continuum", "noisy", "no minimum")
# One problem as it was asked: word, truth, and whether the word is right of its answer (or None).
Record = dict[str, str | bool | float | None]
Records = dict[str, Record]


class Grade(IntEnum):
    """How near a word is to the truth."""

    FALSE = 0
    NEUTRAL = 1
    BEST = 2


# Words that assert that the answer is the only one.
ASSERTING_UNIQUE = frozenset({"RECOVERED", "CERTIFIED"})
# Words that no call has a reason to use, whatever the truth.
_NEVER = frozenset({"RAISED", "DIVERGED", "RUNNING"})
_DETAILS = ("rank", "distance", "misfit", "error")

BEST: dict[str, frozenset[str]] = {
    "unique": ASSERTING_UNIQUE,
    "twin": frozenset({"NOT_IDENTIFIED"}),
    "continuum": frozenset({"NOT_IDENTIFIED", "UNDETERMINED"}),
    "noisy": frozenset({"BEST_FIT"}),
    "no minimum": frozenset({"NO_MINIMUM"}),
}
FALSE: dict[str, frozenset[str]] = {
    "unique": _NEVER | {"UNDETERMINED", "NO_MINIMUM"},
    "twin": _NEVER | ASSERTING_UNIQUE | {"UNDETERMINED", "NO_MINIMUM"},
    "continuum": _NEVER | ASSERTING_UNIQUE | {"NO_MINIMUM"},
    "noisy": _NEVER | ASSERTING_UNIQUE | {"UNDETERMINED", "NO_MINIMUM"},
    "no minimum": _NEVER | ASSERTING_UNIQUE | {"UNDETERMINED", "BEST_FIT"},
}


def grade(record: Record) -> Grade:
    """Return how near the word of a record is to the truth.

    A word that does not hold for its answer is false. One that is false for the rank of the truth,
    but right for the lower rank of its answer, is neutral.
    """
    word, truth, right = record["word"], str(record["truth"]), record["right"]
    if right is False:
        return Grade.FALSE
    if word in FALSE[truth]:
        return Grade.NEUTRAL if right else Grade.FALSE
    return Grade.BEST if word in BEST[truth] else Grade.NEUTRAL


class Move(NamedTuple):
    """Cases of one truth whose word changed from `old` to `new`."""

    old: str
    new: str
    truth: str
    away: bool  # whether the new word is farther from the truth
    keys: list[str]


def moves(old: Records, new: Records) -> list[Move]:
    """Return the moves of the cases that both have; those away from the truth come first."""
    found: dict[tuple[str, str, str, bool], list[str]] = defaultdict(list)
    for key in old.keys() & new.keys():
        one, other = old[key], new[key]
        away = grade(other) < grade(one)
        if shown(one) != shown(other):
            found[shown(one), shown(other), str(one["truth"]), away].append(key)
    every = [Move(*kind, keys=sorted(keys)) for kind, keys in found.items()]
    return sorted(every, key=lambda move: (not move.away, -len(move.keys), move))


def shown(record: Record) -> str:
    """Return the word of a record, marked if its answer is wrong."""
    return f"{record['word']} (wrong)" if record["right"] is False else str(record["word"])


def false_words(records: Records) -> Iterator[str]:
    """Yield a line for each case whose word is false."""
    for key, record in sorted(records.items()):
        if grade(record) is Grade.FALSE:
            names = [name for name in _DETAILS if record.get(name) is not None]
            told = ", ".join(f"{name} {record[name]}" for name in names)
            yield f"{key}: {shown(record)}, but the truth is {record['truth']} ({told})"


def table_of_moves(found: list[Move], examples: int = 5) -> str:
    """Return the moves as a table, with keys of some cases below each."""
    if not found:
        return "no word changed"
    lines = []
    for move in found:
        mark = "AWAY" if move.away else ""
        head = f"{move.old} -> {move.new}"
        lines.append(f"{head:42s} {move.truth:11s} {len(move.keys):6d}  {mark}".rstrip())
        lines += [f"    {key}" for key in move.keys[:examples]]
    return "\n".join(["old word -> new word                       truth        count", *lines])


def table_of_words(records: Records) -> str:
    """Return how often each word was said, for each truth and way to ask."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for key, record in records.items():
        counts[str(record["truth"]), key.split(" / ")[-1]][shown(record)] += 1
    order = sorted(counts, key=lambda kind: (TRUTHS.index(kind[0]), kind[1]))
    lines = [f"{'truth':11s} {'way':34s} cases  words"]
    for truth, way in order:
        words = counts[truth, way].most_common()
        said = ", ".join(f"{word} {count}" for word, count in words)
        lines.append(f"{truth:11s} {way:34s} {counts[truth, way].total():5d}  {said}")
    return "\n".join(lines)
