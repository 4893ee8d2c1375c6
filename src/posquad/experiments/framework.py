"""The parts of an experiment: parameters, a run that measures, panels and tables.

Each experiment is a package whose module `run` defines the constant `EXPERIMENT`. Its run returns
`Measured`: arrays whose dimensions have names and coordinates. A claim can therefore refer to the
value at "lambda_r = 0.7"; the result is None if that value was not run.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from posquad.core.errors import DomainError
from posquad.report.panel import Panel

__all__ = [
    "Experiment",
    "Measured",
    "Parameters",
    "Quantity",
    "ReportTable",
    "describe_parameters",
    "override",
    "own_parameter",
    "paper_parameter",
]

ProgressCallback = Callable[[float], None]  # called with the finished fraction of a run, in [0, 1]


def paper_parameter(default: Any, doc: str) -> Any:
    """Declare a parameter that the paper states; the default is the paper's value.

    >>> paper_parameter(8, "input dimension").default
    8
    """
    return field(default=default, metadata={"doc": doc, "source": "paper"})


def own_parameter(default: Any, doc: str) -> Any:
    """Declare a parameter that the paper does not state; the default is our choice.

    >>> own_parameter(1e-6, "tolerance").metadata["source"]
    'chosen here'
    """
    return field(default=default, metadata={"doc": doc, "source": "chosen here"})


@dataclass(frozen=True)
class Parameters:
    """Base class of the parameters of an experiment: numbers, and tuples of numbers."""

    seed: int = own_parameter(0, "base seed of all random numbers of this experiment")


def describe_parameters(parameters: Parameters) -> list[dict[str, Any]]:
    """List the name, value, meaning and source of every parameter.

    >>> describe_parameters(Parameters(seed=3))[0]["value"]
    3
    """
    return [
        {
            "name": entry.name,
            "value": getattr(parameters, entry.name),
            "doc": entry.metadata["doc"],
            "source": entry.metadata["source"],
        }
        for entry in dataclasses.fields(parameters)
    ]


def override(parameters: Parameters, changes: Mapping[str, str], *, where: str = "") -> Parameters:
    """Replace some of the parameters by values written as text.

    The text is a number, numbers separated by commas for a tuple, or JSON for a nested tuple. A
    value must have the type of the default.

    >>> override(Parameters(), {"seed": "7"})
    Parameters(seed=7)
    """
    known = {
        entry.name: getattr(parameters, entry.name) for entry in dataclasses.fields(parameters)
    }
    values = {}
    for name, text in changes.items():
        if name not in known:
            expected = f"one of {', '.join(known)}"
            raise DomainError(f"{where}{name}", expected=expected, got="no such parameter")
        values[name] = _parsed(f"{where}{name}", text, known[name])
    return dataclasses.replace(parameters, **values)


def _parsed(name: str, text: str, default: Any) -> Any:
    form = text.strip()
    if isinstance(default, tuple) and not form.startswith("["):
        form = f"[{form}]"
    try:
        value = json.loads(form)
    except ValueError:  # not JSON, or an integer with more digits than Python reads
        value = text
    result = _conformed(value, default)
    if result is None:
        raise DomainError(name, expected=f"something like {_shown(default)}", got=text)
    least = 0 if name.endswith("seed") else 1  # sizes and counts
    entries = result if isinstance(result, tuple) else (result,)
    if any(isinstance(entry, int) and entry < least for entry in entries):
        raise DomainError(name, expected=f"integers >= {least}", got=text)
    return result


def _conformed(value: Any, default: Any) -> Any:
    """Convert the value to the type of the default; None if that is not possible."""
    if isinstance(default, tuple):
        if not isinstance(value, list) or not value:
            return None
        entries = tuple(_conformed(entry, default[0]) for entry in value)
        return None if any(entry is None for entry in entries) else entries
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(default, float):
        return float(value) if abs(value) <= sys.float_info.max else None
    return value if isinstance(value, int) else None


def _shown(default: Any) -> str:
    text = json.dumps(default)
    flat = isinstance(default, tuple) and not isinstance(default[0], tuple)
    return text[1:-1].replace(" ", "") if flat else text


@dataclass(frozen=True)
class Quantity:
    """An array whose dimensions have names."""

    values: np.ndarray
    dims: tuple[str, ...]


@dataclass
class Measured:
    """The measurements of a run: coordinates of the dimensions, quantities, and remarks."""

    coords: dict[str, np.ndarray] = field(default_factory=dict)
    quantities: dict[str, Quantity] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def set_coordinates(self, dimension: str, values: Any) -> None:
        """Set the coordinates of a dimension."""
        self.coords[dimension] = np.asarray(values)

    def add(self, name: str, values: Any, *dims: str) -> None:
        """Add a quantity over dimensions whose coordinates have been set."""
        array = np.asarray(values)
        sizes = tuple(len(self.coords[dimension]) for dimension in dims)
        if array.shape != sizes:
            got = f"shape {array.shape}"
            raise DomainError(name, expected=f"shape {sizes} over {dims}", got=got)
        self.quantities[name] = Quantity(array, dims)

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the array of a quantity, or the coordinates of a dimension."""
        return self.quantities[name].values if name in self.quantities else self.coords[name]

    def at(self, name: str, where: Mapping[str, float]) -> np.ndarray | None:
        """Return the quantity at these coordinates; None if they were not run.

        >>> measured = Measured()
        >>> measured.set_coordinates("eta", [0.5, 0.25])
        >>> measured.add("error", [3.0, 1.0], "eta")
        >>> float(measured.at("error", {"eta": 0.25})), measured.at("error", {"eta": 0.1})
        (1.0, None)
        """
        quantity = self.quantities[name]
        index: list[Any] = [slice(None)] * len(quantity.dims)
        for dimension, value in where.items():
            hits = np.flatnonzero(np.isclose(self.coords[dimension], value, rtol=1e-9, atol=0))
            if len(hits) != 1:
                return None
            index[quantity.dims.index(dimension)] = int(hits[0])
        return quantity.values[tuple(index)]


@dataclass(frozen=True)
class ReportTable:
    """A table of a report: its cells are text made from the measurements."""

    key: str
    title: str
    header: tuple[str, ...]
    rows: Callable[[Measured], list[list[str]]]
    label: str = ""


@dataclass(frozen=True)
class Experiment:
    """An experiment, with everything that the runner, the claims and the report need."""

    key: str  # "exp1"
    title: str
    question: str  # for a reader who has not read the paper
    parameters: type[Parameters]
    run: Callable[[Any, ProgressCallback], Measured]
    section: str = ""  # label of the subsection of the paper
    labels: tuple[str, ...] = ()  # labels of the paper's statements that are tested
    quick: Mapping[str, Any] = field(default_factory=dict)  # parameters that --quick changes
    finding: Callable[[Measured], str] | None = None  # what was found, for the summary
    panels: tuple[Panel, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    seconds: float = 1.0  # expected duration of a full run on 2 cores, for the progress bar
    quick_seconds: float = 1.0

    @property
    def number(self) -> int | None:
        """The number of an experiment of the paper, by which the report is ordered."""
        digits = self.key.removeprefix("exp")
        return int(digits) if digits.isdecimal() else None
