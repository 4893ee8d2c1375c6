"""The command `posquad claims`: show the verdicts of a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from posquad.cli.failure import Failure
from posquad.cli.options import RESULTS
from posquad.experiments.cells import measured_cell, published_cell
from posquad.experiments.claims import Agreement
from posquad.experiments.headline import headline, standing

__all__ = ["claims_command"]


@click.command("claims")
@RESULTS
@click.option(
    "--verdict",
    type=click.Choice([v.value for v in Agreement]),
    help="Show only claims with this verdict.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the file claims.json unchanged.")
def claims_command(out: Path, verdict: str | None, as_json: bool) -> None:
    """Show the published and measured values of a finished run, with verdicts.

    Exit status: 0; 2 for a folder without a finished run; 130 after Ctrl-C.

    \b
    Examples:
      posquad claims
      posquad claims --verdict differs --out more-samples
    """
    path = out / "claims.json"
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text)
        if not isinstance(found, list):
            raise TypeError("expected a list of claims")
        entries = [dict(entry) for entry in found]
        rows = [_claim_row(entry) for entry in entries if verdict in (None, entry["verdict"])]
    except FileNotFoundError:
        message = f"{path}: there is no finished run; `posquad reproduce --out {out}` makes one"
        raise Failure(message) from None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise Failure(f"{path}: cannot be read ({problem})") from None
    if as_json:
        click.echo(text)
        return
    console = _console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "kind", "published", "measured", "verdict"):
        justify = "right" if name in ("published", "measured") else "left"
        table.add_column(name, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    words = headline(entries)
    console.print(f"{words[0].upper()}{words[1:]}.", highlight=False)


def _claim_row(entry: dict[str, Any]) -> list[Text]:
    colour = {"differs": "bold red", "unknown": "yellow"}
    depends = {"given": " (given our choice)", "changed": " (as changed)"}
    place = standing(entry)
    if not all(isinstance(entry[name], str) for name in ("id", "kind")):
        raise TypeError("an id or a kind is not text")
    return [  # as Text, so that brackets in a value are not markup
        Text(entry["id"]),
        Text(entry["kind"]),
        Text(published_cell(entry | {"published": entry["printed"]})),
        Text(measured_cell(entry["measured"])),
        Text(entry["verdict"] + depends.get(place, ""), style=colour.get(place, "green")),
    ]


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width to fit
        console = Console(highlight=False, width=200)
    return console
