"""The command `posquad explore`: open the explorer in a browser."""

from __future__ import annotations

import webbrowser

import click

from posquad.report.explorer import explorer_path

__all__ = ["explore_command"]


@click.command("explore")
@click.option(
    "--browser/--no-browser", default=True, help="Open the page, or only print where it is."
)
def explore_command(browser: bool) -> None:
    """Open the explorer, a page on which a positive quadratic network trains.

    The page is one file that needs no network; copy it wherever you like. Exit status: 0, also if
    no browser can be started.

    \b
    Examples:
      posquad explore
      posquad explore --no-browser
    """
    path = explorer_path()
    if browser and not webbrowser.open(path.as_uri()):
        click.echo("No browser could be started. Open this file in one:")
    click.echo(f"Explorer: {path}")
