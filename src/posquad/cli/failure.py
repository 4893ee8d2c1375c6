"""How a command of `posquad` fails: on bad input, on Ctrl-C, on an output that takes no more."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

import click

__all__ = ["INTERRUPTED", "Commands", "Failure"]

INTERRUPTED = "Interrupted: nothing was written."


class Failure(click.ClickException):
    """Bad input, or a file or folder that cannot be used: one sentence, exit status 2."""

    exit_code = 2


class Commands(click.Group):
    """A group whose commands all end alike: 130 after Ctrl-C, 2 without room for the output."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Ctrl-C that it does not answer itself is status 130, and one line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(INTERRUPTED, err=True)
            raise SystemExit(130) from None

    def main(self, *args: Any, **options: Any) -> Any:
        """Start the command line; a closed pipe ends it quietly, which is click's doing."""
        try:
            return super().main(*args, **options)
        except OSError as problem:
            if problem.filename is not None:  # not the output, which has no name
                raise
            _forget_output()
            got = problem.strerror or str(problem)
            Failure(f"standard output: expected a place to write to; got {got}").show()
            raise SystemExit(Failure.exit_code) from None


def _forget_output() -> None:
    """What could not be written would be tried again, with a traceback, when Python ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
