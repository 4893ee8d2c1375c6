"""The rows of the label map, without Sphinx, so that a test can read them."""

from __future__ import annotations

from posquad.labels import Label, labels

KINDS = {
    "thm": "Theorem",
    "prop": "Proposition",
    "lem": "Lemma",
    "cor": "Corollary",
    "def": "Definition",
    "rem": "Remark",
}


def rows() -> list[Label]:
    """Every labelled statement, in the paper's order."""
    return list(labels().values())
