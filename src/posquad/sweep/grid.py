"""The cells of a sweep: a product of axes, or a list. `transition` adds adaptive grids.

A cell is a mapping from names to numbers, words or truth values. Its text, JSON with sorted names,
identifies it: the key of a result and the seed of a computation are hashes of it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from posquad.core.errors import DomainError

__all__ = [
    "MOST_CELLS",
    "Grid",
    "cell_key",
    "cell_seed",
    "cell_text",
    "joined",
    "listed",
    "product",
]

Parameters = dict[str, Any]  # names to int, float, str or bool
Known = Mapping[str, Mapping[str, float] | None]  # text of a cell to its result; None if it failed

MOST_CELLS = 10**7
"""Most cells of a sweep; a store of this many takes some gigabytes."""

RESERVED = ("key", "seed", "seconds", "finished", "host", "versions")
"""Columns of the results that say where and when a cell was computed; no parameter or result may
have their names."""

_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_NAME = re.compile(r"[A-Za-z]\w*")


class Grid(ABC):
    """Which cells a sweep computes. An adaptive grid asks for more cells as results arrive."""

    adaptive = False

    @property
    @abstractmethod
    def most(self) -> int:
        """Number of cells; of an adaptive grid, the most that it may ask for."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the parameters of a cell."""

    @abstractmethod
    def cells(self, known: Known) -> Iterator[Parameters]:
        """Yield the cells to compute, given the results so far, those included.

        What an adaptive grid asks for must depend on the results only, not on their order: then a
        sweep that is interrupted and resumed computes the same cells as one that is not.
        """


class _Product(Grid):
    def __init__(self, axes: Mapping[str, tuple[Any, ...]]) -> None:
        self.axes = axes

    @property
    def most(self) -> int:
        return math.prod(len(values) for values in self.axes.values())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.axes)

    def cells(self, known: Known) -> Iterator[Parameters]:
        for values in itertools.product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))


class _Listed(Grid):
    def __init__(self, items: Sequence[Parameters]) -> None:
        self.items = items

    @property
    def most(self) -> int:
        return len(self.items)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.items[0])

    def cells(self, known: Known) -> Iterator[Parameters]:
        return map(dict, self.items)


def product(**axes: Iterable[Any]) -> Grid:
    """Return the grid of all combinations of the values of the axes; the last varies fastest.

    >>> grid = product(d=[10, 20], trial=range(3))
    >>> grid.most, next(grid.cells({}))
    (6, {'d': 10, 'trial': 0})
    >>> product(d=range(10**5), n=range(10**4))
    Traceback (most recent call last):
    posquad.core.errors.DomainError: grid: expected at most 10,000,000 cells; got 1,000,000,000
    """
    if not axes:
        raise DomainError("grid", expected="at least one axis", got="none")
    lengths = {name: len(v) for name, v in axes.items() if isinstance(v, Sequence | range)}
    _require_few(math.prod(lengths.values()))  # before a range of 10^9 is made a tuple
    values = {name: _axis(name, axis) for name, axis in axes.items()}
    _require_few(math.prod(len(axis) for axis in values.values()))
    return _Product(values)


def listed(cells: Iterable[Mapping[str, Any]]) -> Grid:
    """Return the grid of these cells, which must be different and have the same names.

    >>> [cell["n"] for cell in listed([{"d": 10, "n": 24}, {"d": 20, "n": 60}]).cells({})]
    [24, 60]
    """
    try:
        items = [dict(cell) for cell in itertools.islice(cells, MOST_CELLS + 1)]
    except (TypeError, ValueError):
        expected = "a sequence of mappings from names to values"
        raise DomainError("cells", expected=expected, got=type(cells).__name__) from None
    if not items:
        raise DomainError("grid", expected="at least one cell", got="none")
    _require_few(len(items))
    names = tuple(items[0])
    for item in items:
        if set(item) != set(names):
            expected = f"the same names in every cell: {', '.join(names)}"
            raise DomainError("grid", expected=expected, got=", ".join(map(str, item)) or "none")
        for name, value in item.items():
            item[name] = require_value(name, value)
    if len({cell_text(item) for item in items}) < len(items):
        raise DomainError("grid", expected="different cells", got="a cell that occurs twice")
    return _Listed(items)


class _Joined(Grid):
    def __init__(self, grids: Sequence[Grid]) -> None:
        self.grids = grids
        self.adaptive = any(grid.adaptive for grid in grids)

    @property
    def most(self) -> int:
        return sum(grid.most for grid in self.grids)

    @property
    def names(self) -> tuple[str, ...]:
        return self.grids[0].names

    def cells(self, known: Known) -> Iterator[Parameters]:
        return itertools.chain.from_iterable(grid.cells(known) for grid in self.grids)


def joined(*grids: Grid) -> Grid:
    """Return the grid of the cells of several grids; a cell of two of them is computed once.

    >>> joined(product(x=[1, 2]), product(x=[2, 3])).most
    4
    """
    for grid in grids:
        require_grid("grids", grid)
    if not grids or any(set(grid.names) != set(grids[0].names) for grid in grids):
        got = "; ".join(", ".join(grid.names) for grid in grids) or "none"
        raise DomainError("grid", expected="grids with the same parameters", got=got)
    _require_few(sum(grid.most for grid in grids))
    return _Joined(grids)


def require_grid(name: str, grid: object) -> None:
    """Refuse what is not a grid."""
    if not isinstance(grid, Grid):
        expected = "a grid made by product, listed or transition"
        raise DomainError(name, expected=expected, got=type(grid).__name__)


def cell_text(parameters: Mapping[str, Any]) -> str:
    """Return the text that identifies a cell: JSON with sorted names.

    >>> cell_text({"n": 24, "alpha": 0.25})
    '{"alpha":0.25,"n":24}'
    """
    return _JSON.encode(parameters)


def cell_key(sweep: str, version: int, text: str) -> str:
    """Return the key of a cell, 32 hexadecimal digits, from the sweep, its version and the text.

    >>> cell_key("mine", 1, '{"n":24}') == cell_key("mine", 2, '{"n":24}')
    False
    """
    return hashlib.sha256(f"{sweep}\n{version}\n{text}".encode()).hexdigest()[:32]


def cell_seed(key: str) -> int:
    """Return the seed of the cell with this key, below 2^63.

    >>> cell_seed("0123456789abcdef" * 2)
    40992764608243447
    """
    return int(key[:16], 16) >> 1


def require_value(name: str, value: Any) -> Any:
    """Return a value of a parameter as int, float, str or bool; refuse anything else."""
    if not _NAME.fullmatch(str(name)):
        raise DomainError("grid", expected="names of letters and digits", got=repr(name))
    if name in RESERVED:
        expected = f"another name than {', '.join(RESERVED)}, which every table of results has"
        raise DomainError("grid", expected=expected, got=repr(name))
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()  # a number of NumPy
    if not isinstance(value, int | float | str | bool) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        got = repr(value) if isinstance(value, float) else type(value).__name__
        raise DomainError(name, expected="finite numbers, words or truth values", got=got)
    if isinstance(value, int) and abs(value) >= 2**63:
        raise DomainError(name, expected="integers below 2^63", got=str(value))
    return value


def _axis(name: str, values: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise DomainError(name, expected="a sequence of values", got=repr(values))
    found = tuple(itertools.islice(values, MOST_CELLS + 1))
    _require_few(len(found))
    axis = tuple(require_value(name, value) for value in found)
    if not axis:
        raise DomainError(name, expected="at least one value", got="none")
    if len({json.dumps(value) for value in axis}) < len(axis):
        raise DomainError(name, expected="different values", got="a value that occurs twice")
    return axis


def _require_few(count: int) -> None:
    if count > MOST_CELLS:
        raise DomainError("grid", expected=f"at most {MOST_CELLS:,} cells", got=f"{count:,}")
