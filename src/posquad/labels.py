"""The map from the paper's labels to functions, tests and experiments.

`labels.toml` beside this file has one entry for each theorem, proposition, lemma, corollary,
definition and remark of the paper. A test checks that it is complete and that every name in it
exists.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from posquad.core.citations import cite

__all__ = ["Label", "labels"]


@dataclass(frozen=True)
class Label:
    """One numbered statement of the paper, with the functions and tests that belong to it."""

    name: str  # as in the paper, for instance "thm:effective-hessian"
    section: int
    title: str
    functions: tuple[str, ...] = ()  # dotted public names
    tests: tuple[str, ...] = ()  # "tests/test_x.py::test_name"
    experiments: tuple[str, ...] = ()
    note: str = ""  # why nothing is computed, or what else a reader should know

    @property
    def number(self) -> str:
        """The kind and number of the statement in the paper, for instance `Theorem 3.1`."""
        return cite(self.name)


def labels() -> dict[str, Label]:
    """Every labelled statement, by name, in the paper's order.

    >>> labels()["prop:procrustes-distance"].functions[0]
    'posquad.geometry.procrustes_distance'
    """
    text = files("posquad").joinpath("labels.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)["label"]
    return {entry["name"]: _label(entry) for entry in entries}


def _label(entry: dict[str, Any]) -> Label:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
    return Label(**values)
