"""Progress of a sweep: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from posquad.sweep.driver import Progress

__all__ = ["duration", "sweep_progress"]

_FIRST, _FACTOR, _LONGEST = 5.0, 1.5, 600.0  # seconds between plain lines: more and more


def duration(seconds: float) -> str:
    """Return a duration in words.

    >>> duration(12.3), duration(200), duration(9000)
    ('12 s', '3 min 20 s', '2 h 30 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@contextmanager
def sweep_progress() -> Iterator[Callable[[Progress], None]]:
    """Yield a callback that shows the progress on standard error.

    >>> with sweep_progress() as progress:
    ...     callable(progress)
    True
    """
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True, highlight=False)) as bar:
        task = bar.add_task("starting", total=None)

        def show(state: Progress) -> None:
            bar.update(
                task,
                description=_words(state),
                completed=state.done + state.failed,
                total=state.total,
            )

        yield show


def _lines() -> Callable[[Progress], None]:
    due, gap = _FIRST, _FIRST

    def show(state: Progress) -> None:
        nonlocal due, gap
        if state.elapsed >= due:
            click.echo(_words(state), err=True)
            gap = min(gap * _FACTOR, _LONGEST)
            due = state.elapsed + gap

    return show


def _words(state: Progress) -> str:
    total = f"{state.total} or more" if state.adaptive else str(state.total)
    left = "" if state.left is None else f", about {duration(state.left)} left"
    failed = f", {state.failed} failed" if state.failed else ""
    return f"{state.done} of {total} cells{failed}{left}"
