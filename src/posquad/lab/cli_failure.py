"""How a command of `posquad` fails on bad input."""

from __future__ import annotations

import click

__all__ = ["Failure"]


class Failure(click.ClickException):
    """Bad input, or a file or folder that cannot be used: one sentence, exit status 2."""

    exit_code = 2
