"""A figure of a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["Panel"]

_M = TypeVar("_M")  # what a panel shows: the measurements of an experiment, or a fitted model


def _say_nothing(_: object) -> str:
    """Describe nothing: the title is the text alternative."""
    return ""


@dataclass(frozen=True)
class Panel(Generic[_M]):
    """A figure: how to draw it, how to describe it in words, and its label in the paper."""

    key: str  # file name, for instance "exp1-invariance"
    title: str
    caption: str  # what to see; formulas are TeX between dollar signs
    draw: Callable[[Any, _M], None]  # (matplotlib axes, or an array of them; what to show)
    describe: Callable[[_M], str] = _say_nothing  # a text alternative made from the numbers
    label: str = ""  # of the figure in the paper, for instance "fig:exp1-orthogonal-invariance"
    heights: tuple[float, ...] = (1,)  # relative heights of the axes, from top to bottom
