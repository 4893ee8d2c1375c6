"""How the commands of `posquad` are loaded, and how they report failures."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import click

from posquad.cli.interrupts import INTERRUPTED, allow_interrupt
from posquad.core.errors import PosquadError

__all__ = ["Commands", "Failure", "reporting"]


class Failure(click.ClickException):
    """Bad input, or a file or folder that cannot be used: one sentence, exit status 2."""

    exit_code = 2


class GroupEnded(Failure):
    """Another process that works on the same fit ended: one sentence, exit status 1."""

    exit_code = 1


@contextmanager
def reporting(work: str) -> Iterator[None]:
    """Turn an error of posquad, or a lack of memory, into a `Failure`.

    `work` begins the message about memory.

    >>> with reporting("the fit needs"):
    ...     raise MemoryError
    Traceback (most recent call last):
    posquad.cli.failure.Failure: the fit needs more memory than is available
    """
    try:
        yield
    except PosquadError as problem:
        ended = getattr(problem, "exit_code", None) == GroupEnded.exit_code
        raise (GroupEnded if ended else Failure)(str(problem)) from None
    except MemoryError:
        raise Failure(f"{work} more memory than is available") from None


class Commands(click.Group):
    """A group that imports a command only when it is used, and ends all commands in the same way.

    `modules` gives, for each command, its module and the sentence that the help shows. The status
    is 130 after Ctrl-C, and 2 if the output cannot be written.
    """

    def __init__(self, *args: Any, modules: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*args, **options)
        self.modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.modules:
            return None
        command = getattr(import_module(self.modules[cmd_name][0]), f"{cmd_name}_command")
        allow_interrupt()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.modules[name][1]) for name in sorted(self.modules)])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; Ctrl-C that it does not handle itself ends it with one line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(INTERRUPTED, err=True)
            raise SystemExit(130) from None

    def main(self, *args: Any, **options: Any) -> Any:
        """Start the command line; click itself ends it quietly if a pipe is closed."""
        try:
            return super().main(*args, **options)
        except OSError as problem:
            if problem.filename is not None:  # a file, not standard output, which has no name
                raise
            _discard_output()
            got = problem.strerror or str(problem)
            Failure(f"standard output: expected a place to write to; got {got}").show()
            raise SystemExit(Failure.exit_code) from None


def _discard_output() -> None:
    """Redirect standard output to nowhere: Python would try to flush it again at exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
