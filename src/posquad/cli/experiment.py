"""The command `posquad experiment`: start an experiment of one's own."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from posquad.cli.failure import Failure, reporting
from posquad.cli.options import FILE, FORCE, require_new
from posquad.core.files import write_file
from posquad.experiments.own import template

__all__ = ["experiment_command"]


@click.group("experiment")
def experiment_command() -> None:
    """Write an experiment of your own, and run it like the paper's.

    \b
    Examples:
      posquad experiment new my.py
      posquad reproduce --experiment my.py --out mine
    """


@experiment_command.command("new")
@click.argument("file", type=FILE)
@FORCE
def new_command(file: Path, force: bool) -> None:
    """Write a template of 30 lines to FILE; it runs as it is.

    Exit status: 0; 2 if FILE exists or cannot be written; 130 after Ctrl-C.

    \b
    Examples:
      posquad experiment new my.py
    """
    if file.suffix != ".py":
        raise Failure(f"{file}: expected a name that ends in .py; got {file.suffix or 'none'}")
    with reporting("the template needs"):
        require_new(file, force=force)
        write_file(file, template().encode())
    click.echo(f"{file}: an experiment that runs as it is.")
    command = f"posquad reproduce --experiment {shlex.quote(str(file))}"
    click.echo(f"Next: {command} --out {shlex.quote(file.stem)}")
