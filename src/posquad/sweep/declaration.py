"""`Sweep`: what a sweep computes, where, and how its results are shown."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from posquad.core.errors import DomainError
from posquad.core.modules import module_from_file, module_from_source
from posquad.sweep.grid import Grid, require_grid

__all__ = ["DIAGRAMS", "Origin", "Sweep", "load_sweep"]

CellFunction = Callable[[dict[str, Any], int], Any]

DIAGRAMS = ("certifiability", "ellipsoid", "recovery")
"""Names of the sweeps of this package."""

_KEY = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True)
class Sweep:
    """One function of one cell, and the cells.

    `cell(parameters, seed)` returns a dict of numbers, with the same names for every cell. Its
    random numbers must come from `seed`, which is derived from the parameters. Raise `version` when
    the function changes: a store keeps the results of one version only.

    >>> from posquad.sweep import product
    >>> Sweep("squares", lambda p, seed: {"y": p["x"] ** 2}, product(x=range(3))).grid.most
    3
    """

    key: str  # small letters, digits and hyphens
    cell: CellFunction
    grid: Grid
    quick: Grid | None = None  # the cells of --quick
    version: int = 1
    title: str = ""
    question: str = ""  # for the report; formulas are TeX between dollar signs
    measure: str = ""  # result that the heat map shows: a rate over trials, or any number
    axis: str = ""  # parameter of its horizontal axis
    by: str = ""  # parameter of its vertical axis
    target: float = 0.5  # level whose crossing is drawn
    panels: Callable[[Any], Sequence[Any]] | None = None  # further `Panel`s, from a `Table`
    findings: Callable[[Any], list[str]] | None = None  # sentences made from the results
    sources: tuple[str, ...] = ()  # references of the report
    origin: Origin | None = None  # set by `load_sweep`

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not _KEY.fullmatch(self.key):
            expected = "small letters, digits and hyphens"
            raise DomainError("key", expected=expected, got=repr(self.key))
        if not callable(self.cell):
            got = type(self.cell).__name__
            raise DomainError("cell", expected="a function of (parameters, seed)", got=got)
        require_grid("grid", self.grid)
        if self.quick is not None:
            require_grid("quick", self.quick)
        if isinstance(self.version, bool) or not isinstance(self.version, int):
            raise DomainError("version", expected="an integer", got=repr(self.version))
        if self.quick is not None and set(self.quick.names) != set(self.grid.names):
            got = ", ".join(self.quick.names)
            raise DomainError(
                "quick", expected=f"the parameters {', '.join(self.grid.names)}", got=got
            )
        self._require_layout()

    def _require_layout(self) -> None:
        """Refuse a heat map that cannot be drawn, before anything is computed."""
        for name in ("axis", "by"):
            value = getattr(self, name)
            if value and value not in self.grid.names:
                expected = f"one of the parameters {', '.join(self.grid.names)}"
                raise DomainError(name, expected=expected, got=repr(value))
        if self.axis and isinstance(next(iter(self.grid.cells({})))[self.axis], str):
            raise DomainError("axis", expected="a parameter with numbers", got=repr(self.axis))
        if isinstance(self.target, bool) or not isinstance(self.target, int | float):
            raise DomainError("target", expected="a number", got=repr(self.target))

    @property
    def place(self) -> str:
        """The name or file from which `load_sweep` loads the sweep again; empty if none."""
        if self.origin is None:
            return ""
        return self.key if self.origin.module else str(Path(self.origin.path).absolute())

    def chosen(self, *, quick: bool) -> Grid:
        """Return the grid of a full or of a quick run."""
        return self.quick if quick and self.quick is not None else self.grid


@dataclass(frozen=True)
class Origin:
    """Where a worker finds a sweep: the name of a module, or the source of a file."""

    module: str = ""
    path: str = ""
    source: bytes = b""

    def load(self) -> Sweep:
        """Return the sweep; a worker calls this once."""
        if self.module:
            return _sweep_of(import_module(self.module), self.module)
        return _sweep_of(module_from_source(self.source, self.path, kind="sweep"), self.path)


def load_sweep(name: str | Path) -> Sweep:
    """Return a sweep of this package by its name, or the constant SWEEP of a Python file.

    >>> load_sweep("no-such-sweep")
    Traceback (most recent call last):
    posquad.core.files.FileError: no-such-sweep: expected a Python file, or one of certifiability, ellipsoid, recovery; got no such file
    """  # noqa: E501
    if str(name) in DIAGRAMS:
        module = f"posquad.sweep.diagrams.{name}"
        return _with_origin(_sweep_of(import_module(module), module), Origin(module=module))
    path = Path(name)
    expected = f"a Python file, or one of {', '.join(DIAGRAMS)}"
    sweep = _sweep_of(module_from_file(path, kind="sweep", expected=expected), str(path))
    return _with_origin(sweep, Origin(path=str(path), source=path.read_bytes()))


def fingerprint(sweep: Sweep) -> str:
    """Return a hash of the source of the cell function; empty for a sweep of this package.

    Comments and the layout do not count. A file counts as a whole, since the function may call
    others in it.
    """
    if sweep.origin is not None and sweep.origin.module:
        return ""  # the version of posquad is stored with every result
    try:
        source = (
            sweep.origin.source.decode()
            if sweep.origin
            else inspect.cleandoc(inspect.getsource(sweep.cell))
        )
        text = ast.dump(ast.parse(source))
    except (OSError, TypeError, ValueError, SyntaxError):  # no source, or a part of a line
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _with_origin(sweep: Sweep, origin: Origin) -> Sweep:
    return replace(sweep, origin=origin)


def _sweep_of(module: Any, where: str) -> Sweep:
    sweep = getattr(module, "SWEEP", None)
    if not isinstance(sweep, Sweep):
        got = "none" if sweep is None else type(sweep).__name__
        raise DomainError(where, expected="a constant SWEEP of type posquad.sweep.Sweep", got=got)
    return sweep
