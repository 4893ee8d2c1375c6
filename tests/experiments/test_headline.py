"""How many claims hold, and what they depend on, in one sentence."""

from __future__ import annotations

import pytest

from posquad.experiments.headline import count, headline, standing


def claim(verdict="holds", *, given=(), changed=(), source="paper"):
    return {
        "verdict": verdict,
        "given": list(given),
        "changed": list(changed),
        "source": source,
    }


PRINTED, GIVEN, CHANGED = claim(), claim(given=["a.b"]), claim(given=["a.b"], changed=["n = 2"])
DIFFERS, UNKNOWN = claim("differs"), claim("not-comparable", given=["a.b"])
BY_CHANGE = claim("differs", changed=["n = 2"])
OURS = claim(source="posquad")


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        (PRINTED, "printed"),
        (GIVEN, "given"),
        (CHANGED, "changed"),  # whatever we chose, the user chose something else
        (DIFFERS, "differs"),
        (BY_CHANGE, "differs"),
        (UNKNOWN, "unknown"),
    ],
)
def test_standing(entry, place):
    assert standing(entry) == place


def test_every_claim_is_counted_once():
    entries = [PRINTED, GIVEN, GIVEN, CHANGED, DIFFERS, BY_CHANGE, UNKNOWN]
    counts = count(entries)
    assert (counts.printed, counts.given, counts.changed) == (1, 2, 1)
    assert (counts.differs, counts.differs_changed, counts.unknown) == (2, 1, 1)
    assert (counts.holds, counts.all) == (4, len(entries))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([], "no claim belongs to this run"),
        ([PRINTED] * 3, "3 of 3 published claims hold as printed; none differs"),
        (
            [PRINTED, GIVEN, GIVEN, UNKNOWN],
            "1 of 4 published claims holds as printed; 2 hold given choices of ours; none differs; "
            "1 cannot be compared",
        ),
        ([DIFFERS] * 2, "0 of 2 published claims hold as printed; 2 differ"),
        (
            [CHANGED, BY_CHANGE],
            "0 of 2 published claims hold as printed; 1 holds with parameters that you changed; "
            "1 differs, with parameters that you changed",
        ),
        (
            [DIFFERS, BY_CHANGE],
            "0 of 2 published claims hold as printed; 2 differ, 1 of them with parameters that "
            "you changed",
        ),
        ([PRINTED, OURS, OURS], "1 of 1 published claim holds as printed; none differs; all 2 "
         "additional checks hold"),
        ([OURS], "the claim holds"),
        ([OURS, claim("differs", source="mine")], "1 of 2 claims holds; 1 differs"),
        (
            [PRINTED, OURS, claim("not-comparable", source="posquad")],
            "1 of 1 published claim holds as printed; none differs; 1 of 2 additional checks "
            "holds; 1 of them cannot be compared",
        ),
    ],
)  # fmt: skip
def test_headline(entries, words):
    assert headline(entries) == words
