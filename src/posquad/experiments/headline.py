"""How many claims hold, counted apart by what they depend on.

A published claim holds as printed only if it is compared from what the paper states. If it depends
on a choice of ours, or on a parameter that the user changed, it is counted apart. All counts are
made from the objects of `claims.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Counts", "count", "headline", "standing"]

STANDINGS = ("printed", "given", "changed", "differs", "unknown")


def standing(entry: Mapping[str, Any]) -> str:
    """Return under which heading a claim is counted.

    "printed", "given" and "changed" hold: as the paper prints them, given choices of ours, and with
    parameters that the user changed. The others are "differs" and "unknown".

    >>> standing({"verdict": "holds", "given": ["exp4.flow"], "changed": []})
    'given'
    """
    if entry["verdict"] != "holds":
        return {"differs": "differs", "not-comparable": "unknown"}[entry["verdict"]]
    if entry["changed"]:
        return "changed"
    return "given" if entry["given"] else "printed"


@dataclass(frozen=True)
class Counts:
    """The number of claims under each heading."""

    printed: int = 0
    given: int = 0
    changed: int = 0
    differs: int = 0
    unknown: int = 0
    differs_changed: int = 0  # those among `differs` whose parameters the user changed

    @property
    def holds(self) -> int:
        """The number of claims that hold, on whatever they depend."""
        return self.printed + self.given + self.changed

    @property
    def all(self) -> int:
        """The number of claims."""
        return self.holds + self.differs + self.unknown


def count(entries: Iterable[Mapping[str, Any]]) -> Counts:
    """Count claims by their standing.

    >>> count([{"verdict": "holds", "given": [], "changed": []}]).printed
    1
    """
    found = list(entries)
    standings = [standing(entry) for entry in found]
    changed = sum(e["verdict"] == "differs" and bool(e["changed"]) for e in found)
    return Counts(**{name: standings.count(name) for name in STANDINGS}, differs_changed=changed)


def headline(entries: Iterable[Mapping[str, Any]]) -> str:
    """Say how many claims hold, in one sentence without its full stop.

    >>> claim = {"source": "paper", "verdict": "holds", "given": [], "changed": []}
    >>> headline([claim, claim | {"given": ["exp4.flow"]}, claim | {"source": "posquad"}])
    '1 of 2 published claims holds as printed; 1 holds given choices of ours; none differs; the \
additional check holds'
    """
    found = list(entries)
    published = count(entry for entry in found if entry["source"] == "paper")
    others = count(entry for entry in found if entry["source"] != "paper")
    parts = []
    if published.all:
        parts += _published_parts(published)
    if others.all:
        parts += _other_parts(others, "additional check" if published.all else "claim")
    return "; ".join(parts) or "no claim belongs to this run"


def _published_parts(counts: Counts) -> list[str]:
    noun = "published claim" if counts.all == 1 else "published claims"
    parts = [f"{counts.printed} of {counts.all} {noun} {_verb(counts.printed, 'hold')} as printed"]
    if counts.given:
        parts.append(f"{counts.given} {_verb(counts.given, 'hold')} given choices of ours")
    if counts.changed:
        words = "with parameters that you changed"
        parts.append(f"{counts.changed} {_verb(counts.changed, 'hold')} {words}")
    parts.append(_differs_part(counts))
    if counts.unknown:
        parts.append(f"{counts.unknown} cannot be compared")
    return parts


def _other_parts(counts: Counts, noun: str) -> list[str]:
    if counts.holds == counts.all:
        return [f"the {noun} holds" if counts.all == 1 else f"all {counts.all} {noun}s hold"]
    parts = [f"{counts.holds} of {counts.all} {noun}s {_verb(counts.holds, 'hold')}"]
    if counts.differs:
        parts.append(f"{_differs_part(counts)}{'' if noun == 'claim' else ' among them'}")
    if counts.unknown:
        parts.append(f"{counts.unknown} of them cannot be compared")
    return parts


def _differs_part(counts: Counts) -> str:
    if not counts.differs:
        return "none differs"
    words = f"{counts.differs} {_verb(counts.differs, 'differ')}"
    if counts.differs_changed == counts.differs:
        return f"{words}, with parameters that you changed"
    if counts.differs_changed:
        words += f", {counts.differs_changed} of them with parameters that you changed"
    return words


def _verb(number: int, verb: str) -> str:
    return f"{verb}s" if number == 1 else verb
