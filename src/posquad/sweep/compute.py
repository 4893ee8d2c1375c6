"""What a worker does: compute a group of cells and check what the function returns."""

from __future__ import annotations

import math
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from posquad._version import __version__
from posquad.sweep.declaration import CellFunction, Origin
from posquad.sweep.grid import RESERVED, Parameters

__all__ = ["Batch", "CellOutcome", "Task", "compute"]

_PACKAGES = ("numpy", "scipy", "torch")
_TRACEBACK = 20_000  # characters of a traceback that are kept
_WATCH = 0.25  # seconds between two looks at whether the driver is still there


@dataclass(frozen=True)
class Task:
    """Cells that a worker computes in one go, as (key, parameters, seed)."""

    cells: tuple[tuple[str, Parameters, int], ...]
    seconds: float = math.inf  # no further cell is begun after this time
    names: tuple[str, ...] | None = None  # names of earlier results, which must be the same


@dataclass(frozen=True)
class CellOutcome:
    """What became of one cell."""

    key: str
    result: dict[str, float | int] | None  # None if the cell failed
    seconds: float
    message: str = ""  # traceback of a failure
    misuse: str = ""  # what is wrong with what the function returned


@dataclass(frozen=True)
class Batch:
    """Outcomes of the cells that a worker has computed; the others were not begun."""

    outcomes: list[CellOutcome]
    host: str
    versions: dict[str, str] = field(default_factory=dict)


def compute(origin: Origin | CellFunction, task: Task) -> Batch:
    """Compute the cells of a task, in order, until its time is over; at least one.

    >>> task = Task((("key", {"x": 2}, 0),))
    >>> compute(lambda parameters, seed: {"y": parameters["x"] ** 2}, task).outcomes[0].result
    {'y': 4}
    """
    cell = _loaded(origin) if isinstance(origin, Origin) else origin
    began, outcomes = time.monotonic(), []
    for key, parameters, seed in task.cells:
        if outcomes and time.monotonic() - began > task.seconds:
            break
        outcomes.append(_outcome(cell, key, parameters, seed, task.names))
    return Batch(outcomes, platform.node(), _versions())


def prepare(origin: Origin | CellFunction) -> None:
    """Load the cell function, so that a task can begin at once."""
    if isinstance(origin, Origin):
        _loaded(origin)


def initialize(driver: int) -> None:
    """Prepare a worker: Ctrl-C is for the driver, and a worker without a driver ends.

    `driver` is the process of the driver, which may have ended before this worker has begun.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == driver:
            time.sleep(_WATCH)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@cache
def _loaded(origin: Origin) -> CellFunction:
    return origin.load().cell


def _outcome(
    cell: CellFunction,
    key: str,
    parameters: Parameters,
    seed: int,
    names: tuple[str, ...] | None,
) -> CellOutcome:
    began = time.monotonic()
    try:
        returned = cell(dict(parameters), seed)
    except (Exception, SystemExit):
        message = traceback.format_exc()[-_TRACEBACK:]
        return CellOutcome(key, None, time.monotonic() - began, message=message)
    seconds = time.monotonic() - began
    result, misuse = checked_result(returned, names)
    message = f"The cell returned {misuse}." if misuse else ""
    return CellOutcome(key, result, seconds, message=message, misuse=misuse)


def checked_result(
    returned: Any, names: tuple[str, ...] | None
) -> tuple[dict[str, float | int] | None, str]:
    """Return the result as plain numbers, or None and what is wrong with it."""
    if not isinstance(returned, Mapping):
        return None, "nothing" if returned is None else f"an object of type {_kind(returned)}"
    result: dict[str, float | int] = {}
    for name, value in returned.items():
        if not isinstance(name, str) or not name.isidentifier():
            return None, f"the name {name!r}, which is not a word of letters and digits"
        if name in RESERVED:
            return None, f"the name {name!r}, which every table of results has already"
        number = _number(value)
        if number is None:
            return None, f"an object of type {_kind(value)} as {name!r}"
        if not math.isfinite(number):
            return None, f"{number} as {name!r}"
        result[name] = number
    if not result:
        return None, "no numbers"
    if names is not None and set(result) != set(names):
        return None, f"the names {', '.join(sorted(result))} instead of {', '.join(sorted(names))}"
    return dict(sorted(result.items())), ""


def _number(value: Any) -> float | int | None:
    """Return a number as int or float of Python; None if it is none."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()  # of NumPy or torch
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value if abs(value) < 2**63 else None
    return value if isinstance(value, float) else None


def _kind(thing: Any) -> str:
    return type(thing).__name__


@cache
def _versions() -> dict[str, str]:
    found: dict[str, str] = {"posquad": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = _of_loaded(package) or version(package)
        except PackageNotFoundError:
            continue
    return found


def _of_loaded(package: str) -> str:
    """Return the version of a loaded package, which is faster than reading its metadata."""
    module = sys.modules.get(package)
    return str(getattr(module, "__version__", "")) if module else ""
