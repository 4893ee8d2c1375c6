"""Progress of fits and tables: a bar or the steps on a terminal, nothing elsewhere."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from posquad.core.progress import Progress as Step

__all__ = ["fit_progress", "table_progress", "voxel_progress"]


@contextmanager
def voxel_progress(total: int) -> Iterator[Callable[[int], None] | None]:
    """Yield a callback that shows how many voxels are done, on a terminal; None elsewhere.

    >>> with voxel_progress(10) as advance:
    ...     advance is None or callable(advance)
    True
    """
    if not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("fitting"),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} voxels"),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("fitting", total=total)
        yield lambda voxels: shown.update(task, advance=voxels)


@contextmanager
def table_progress() -> Iterator[Callable[[str, float], None] | None]:
    """Yield a callback that shows how far a large table is read, on a terminal; None elsewhere.

    >>> with table_progress() as report:
    ...     report is None or callable(report)
    True
    """
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True) as shown:
        tasks: dict[str, Any] = {}

        def report(work: str, share: float) -> None:
            if work not in tasks:
                tasks[work] = shown.add_task(work, total=1.0)
            shown.update(tasks[work], completed=share)

        yield report


@contextmanager
def fit_progress(work: str = "fitting") -> Iterator[Callable[[Step], None] | None]:
    """Yield a callback that shows the work, its steps and residual on a terminal; None elsewhere.

    The progress goes to standard error, so that it does not mix with the answer.

    >>> with fit_progress() as progress:
    ...     progress is None or callable(progress)
    True
    """
    if not sys.stderr.isatty():
        yield None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(work)
        steps = 0

        def advance(step: Step) -> None:
            nonlocal steps
            if math.isnan(step.loss):  # rows are being read, and nothing is fitted yet
                shown.update(task, description=f"reading: {step.time / step.end:.0%}")
                return
            steps += 1
            shown.update(task, description=f"{work}: step {steps}, residual {step.loss:.1e}")

        yield advance
