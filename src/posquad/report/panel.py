"""What a figure of a report is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["Panel"]

_M = TypeVar("_M")  # what a panel shows: the measurements of an experiment, or a fit


@dataclass(frozen=True)
class Panel(Generic[_M]):
    """One figure: how it is drawn on axes, what it shows in words, and its counterpart."""

    key: str  # file name, for instance "exp1-invariance"
    title: str
    caption: str
    draw: Callable[[Any, _M], None]  # (matplotlib axes, what was measured)
    describe: Callable[[_M], str]  # a text alternative made from the numbers
    label: str = ""  # the paper's panel, for instance "fig:exp1-orthogonal-invariance"
