"""The choices of ours on which the comparison with a published number depends.

The paper leaves them open: data, starts, windows of fits. They are data (`claims.toml`), next to
the claims that name them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["HOW", "Choice", "choices"]

HOW: Mapping[str, str] = {
    "matched": "chosen so that the published value appears",
    "order": "a problem of our own, so only the order of magnitude is compared",
    "own": "a value of our own",
}
"""How a choice was made, in words."""


@dataclass(frozen=True)
class Choice:
    """What the paper leaves open, and the parameters by which we decided it."""

    id: str  # "exp4.flow"; the part before the dot is the key of the experiment
    parameters: tuple[str, ...]
    how: str  # a key of `HOW`
    words: str

    @property
    def experiment(self) -> str:
        """The key of the experiment to which the choice belongs."""
        return self.id.partition(".")[0]


@cache
def choices() -> dict[str, Choice]:
    """Return all choices by their id, in the order of the paper.

    >>> choices()["exp4.flow"].parameters
    ('perturbation', 'window', 'records')
    """
    text = files("posquad.experiments").joinpath("claims.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)["choice"]
    return {
        entry["id"]: Choice(**entry | {"parameters": tuple(entry["parameters"])})
        for entry in entries
    }
