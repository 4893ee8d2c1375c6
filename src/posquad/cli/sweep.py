"""The command `posquad sweep`: run a sweep, look at it, export and plot its results."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from posquad.cli.failure import reporting
from posquad.cli.options import replacing
from posquad.cli.sweep_progress import duration, sweep_progress
from posquad.core.errors import Interrupted, MissingExtraError
from posquad.sweep import Sweep, Swept, export, load_sweep, run_sweep, sweep_status
from posquad.sweep.state import failed_cells

__all__ = ["sweep_command"]

_FOLDER: Any = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


@click.group("sweep")
def sweep_command() -> None:
    """Compute one function over a grid of cells, and never lose a finished cell.

    A sweep is one of certifiability, ellipsoid, recovery, or a Python file with a constant SWEEP.
    Its folder can be looked at, exported and plotted at any time, also while it runs.

    Exit status: 0; 1 if cells failed or are left; 2 for bad input; 130 after Ctrl-C.

    \b
    Examples:
      posquad sweep run ellipsoid --quick
      posquad sweep run my.py --out night --workers 8
      posquad sweep status night
      posquad sweep export night --to results.parquet
    """


@sweep_command.command("run")
@click.argument("name", metavar="NAME_OR_FILE")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the results.  [default: "
              "sweep-NAME]")  # fmt: skip
@click.option("--quick", is_flag=True, help="The small grid of the sweep: about a minute.")
@click.option("--workers", type=click.IntRange(min=0), help="Processes; 0 computes in this "
              "process, for debugging.  [default: one per core]")  # fmt: skip
@click.option(
    "--engine",
    type=click.Choice(["local", "dask"]),
    default="local",
    show_default=True,
    help="Processes of this machine, or Dask.",
)
@click.option("--scheduler", metavar="ADDRESS", help="Dask scheduler, such as tcp://host:8786.  "
              "[default: a cluster on this machine]")  # fmt: skip
@click.option("--time-limit", type=click.FloatRange(min=0, min_open=True), metavar="S",
              help="Begin no cell after S seconds.")  # fmt: skip
@click.option("--retry", is_flag=True, help="Compute failed cells again.")
@click.option("--no-report", is_flag=True, help="Write no report at the end.")
def run_command(name: str, out: Path | None, no_report: bool, **options: Any) -> None:
    """Compute the cells that the folder does not hold yet, and write report.html.

    The same command continues a run that was interrupted, killed or stopped by --time-limit.
    Finished cells are never computed again. A failed cell is stored with its traceback.

    Exit status: 0; 1 if cells failed or are left; 2 for bad input; 130 after Ctrl-C.

    \b
    Examples:
      posquad sweep run recovery --quick
      posquad sweep run my.py --out night --time-limit 3600
      posquad sweep run my.py --out night --retry
      posquad sweep run my.py --engine dask --scheduler tcp://10.0.0.1:8786
    """
    command = shlex.join(["posquad", *sys.argv[1:]])
    with reporting("the sweep needs"):
        sweep = load_sweep(name)
        folder = out or Path(f"sweep-{sweep.key}")
        try:
            with sweep_progress() as progress:
                swept = run_sweep(sweep, folder, progress=progress, command=command, **options)
        except Interrupted as stop:
            _stop_interrupted(stop.result, command)
        _tell(swept, command)
        if not no_report and swept.done:
            _plot(folder, sweep)
    if not swept.complete:
        raise SystemExit(1)


@sweep_command.command("status")
@_FOLDER
@click.option("--failures", is_flag=True, help="Show the tracebacks of failed cells.")
def status_command(folder: Path, failures: bool) -> None:
    """Say how far a sweep is; it may be running.

    Exit status: 0; 2 if DIR is not the folder of a sweep; 130 after Ctrl-C.

    \b
    Examples:
      posquad sweep status night
      posquad sweep status night --failures
    """
    with reporting("the status needs"):
        state = sweep_status(folder)
        failed = failed_cells(folder) if failures else []
    asked = f"{state.asked} or more" if state.adaptive else str(state.asked)
    click.echo(f"{state.sweep}, version {state.version}: {state.done} of {asked} cells done, "
               f"{state.failed} failed, {state.waiting} left.")  # fmt: skip
    if state.driver:
        left = "" if state.left is None else f"; about {duration(state.left)} left"
        click.echo(f"Running: {state.driver}{left}.")
    elif state.waiting and state.command:
        click.echo(f"Not running; go on with: {state.command}")
    else:
        click.echo("Not running.")
    for row in failed:
        click.echo(f"\n{row.parameters}\n{row.message.rstrip()}")


@sweep_command.command("export")
@_FOLDER
@click.option("--to", required=True, type=click.Path(path_type=Path), help="File to write: "
              ".parquet or .csv.")  # fmt: skip
def export_command(folder: Path, to: Path) -> None:
    """Write the finished cells to a table: parameters, results, seed, seconds, host, versions.

    Exit status: 0; 2 if a file cannot be read or written; 130 after Ctrl-C.

    \b
    Examples:
      posquad sweep export night --to results.parquet
    """
    with reporting("the export needs"):
        replaced = replacing(to)
        count = export(folder, to)
        failed = sweep_status(folder).failed
    left_out = f"; {failed} failed cells are left out" if failed else ""
    click.echo(f"{to}: {count} cells{left_out}{replaced}.")


@sweep_command.command("plot")
@_FOLDER
def plot_command(folder: Path) -> None:
    """Write report.html and figures/ from the cells finished so far.

    Exit status: 0; 2 if DIR is not the folder of a sweep; 130 after Ctrl-C.

    \b
    Examples:
      posquad sweep plot night
    """
    with reporting("the report needs"):
        _plot(folder, None)


def _plot(folder: Path, sweep: Sweep | None) -> None:
    from posquad.sweep.report import plot_sweep  # imports torch, which a driver may not need

    try:
        click.echo(f"Report: {plot_sweep(folder, sweep)}")
    except MissingExtraError as problem:
        if sweep is None:
            raise
        click.echo(f"No report: {problem}")


def _tell(swept: Swept, command: str) -> None:
    now = f"{swept.computed} computed in {duration(swept.seconds)}"
    counts = f"{swept.done} cells done, {swept.failed} failed, {swept.left} left"
    click.echo(f"{counts}; {now}: {swept.folder}")
    if swept.left:
        click.echo(f"Time limit reached; go on with: {command}")
    if swept.failed:
        folder = shlex.quote(str(swept.folder))
        click.echo(f"Why cells failed: posquad sweep status {folder} --failures; run with --retry "
                   "to compute them again.")  # fmt: skip


def _stop_interrupted(swept: Swept, command: str) -> NoReturn:
    click.echo(f"Interrupted with {swept.done} cells done, all stored; go on with: {command}")
    raise SystemExit(130)
