"""Progress of a run: a bar with the remaining time on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from posquad.experiments.framework import Experiment
from posquad.experiments.records import Record
from posquad.experiments.reproduce import Watcher
from posquad.experiments.suite import Suite

__all__ = ["Bar", "Lines", "watcher_for"]


class Lines(Watcher):
    """Print one line when an experiment starts and one when it ends."""

    def begins(self, experiment: Experiment, position: int, total: int) -> None:
        click.echo(f"[{position}/{total}] {experiment.key} {experiment.title} ...")

    def ends(self, experiment: Experiment, record: Record, *, reused: bool) -> None:
        words = "reused from an earlier run" if reused else f"done in {record.seconds:.1f} s"
        click.echo(f"      {experiment.key} {words}")

    def writes(self, what: str) -> None:
        if what == "report":
            click.echo("writing the report ...")


class Bar(Watcher):
    """Show one bar for the whole run, in expected seconds, with an estimate of the time left."""

    def __init__(self, progress: Progress, weights: Mapping[str, float]) -> None:
        self.progress, self.weights = progress, weights
        self.done, self.current = 0.0, ""
        self.task = progress.add_task("starting", total=sum(weights.values()) or 1.0)

    def begins(self, experiment: Experiment, position: int, total: int) -> None:
        self.current = experiment.key
        self.progress.update(self.task, description=f"[{position}/{total}] {experiment.title}")

    def advances(self, fraction: float) -> None:
        completed = self.done + min(fraction, 1.0) * self.weights[self.current]
        self.progress.update(self.task, completed=completed)

    def ends(self, experiment: Experiment, record: Record, *, reused: bool) -> None:
        self.done += self.weights[experiment.key]
        words = "reused" if reused else f"{record.seconds:.1f} s"
        self.progress.console.print(f"  {experiment.key} {experiment.title}: {words}")
        self.progress.update(self.task, completed=self.done)

    def writes(self, what: str) -> None:
        self.progress.update(self.task, description=f"writing {what}")


@contextmanager
def watcher_for(suite: Suite, parameters: Mapping[str, Any], quick: bool) -> Iterator[Watcher]:
    """Choose a bar for a terminal, and plain lines for other outputs.

    >>> from posquad.experiments.suite import paper_suite
    >>> with watcher_for(paper_suite(), {}, quick=False) as watcher:
    ...     isinstance(watcher, (Lines, Bar))
    True
    """
    if not sys.stdout.isatty():
        yield Lines()
        return
    weights = {
        key: suite.experiments[key].quick_seconds if quick else suite.experiments[key].seconds
        for key in parameters
    }
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(highlight=False)) as progress:
        yield Bar(progress, weights)
