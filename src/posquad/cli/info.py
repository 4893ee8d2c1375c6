"""The command `posquad info`: versions and devices, for bug reports."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import click
import torch  # noqa: F401  # imported with the command, while Ctrl-C ends the program

from posquad.core.system import system_information

__all__ = ["info_command"]


@click.command("info")
def info_command() -> None:
    """Print the versions and devices that results depend on."""
    for name, value in system_information().items():
        words = ", ".join(map(str, value)) or "cpu only" if isinstance(value, list) else value
        click.echo(f"{name:<12} {words}")
    for package in (
        *("clarabel", "scikit-learn", "safetensors", "pyarrow"),
        *("matplotlib", "jinja2", "click", "rich"),
    ):
        try:
            found = version(package)
        except PackageNotFoundError:
            found = "not installed"
        click.echo(f"{package:<12} {found}")
