"""The rows of the label map and of the index, without Sphinx, so that a test can read them."""

from __future__ import annotations

from posquad.labels import Label, labels


def rows() -> list[Label]:
    """Every labelled statement, in the paper's order."""
    return list(labels().values())


def by_number() -> list[Label]:
    """Every labelled statement, by kind and number."""
    return sorted(rows(), key=_place)


def _place(label: Label) -> tuple[str, list[int]]:
    kind, number = label.number.split()
    return kind, [int(part) for part in number.split(".")]
