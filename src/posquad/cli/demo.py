"""The command `posquad demo`: write example data."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from posquad.cli.demo_data import DEMOS, fit_options, make
from posquad.cli.failure import reporting
from posquad.cli.options import FORCE, require_new, seed_option, table_option
from posquad.io.tables.writing import require_suffix, write_columns

__all__ = ["demo_command"]


@click.command("demo")
@click.argument("name", required=False)
@table_option("NAME.csv")
@seed_option("Seed of the random numbers; another seed gives other data of the same kind.")
@FORCE
@click.option("--list", "listing", is_flag=True, help="List the example data and exit.")
def demo_command(name: str | None, out: Path | None, seed: int, force: bool, listing: bool) -> None:
    """Write the example data NAME, and print the command to run next.

    Exit status: 0; 2 for an unknown NAME, or a file that exists or cannot be written; 130 after
    Ctrl-C.

    \b
    Examples:
      posquad demo --list
      posquad demo recovery
      posquad demo noisy --out noisy.parquet --seed 1
    """
    if listing or name is None:
        for demo in DEMOS.values():
            click.echo(f"{demo.name:<10} {demo.shows}; {demo.says}")
            options = fit_options(demo.name, ".csv")
            command = f"posquad demo {demo.name} && posquad fit {demo.name}.csv {options}"
            click.echo(f"{'':<10} {command.rstrip()}")
        return
    with reporting("the example needs"):
        columns = make(name, seed)
        target = Path(f"{name}.csv") if out is None else out
        require_suffix(target)
        require_new(target, force=force)
        write_columns(target, columns)
    demo, options = DEMOS[name], fit_options(name, target.suffix.lower())
    click.echo(f"{target}: {demo.shows}.")
    click.echo(f"A fit will say: {demo.says}.")
    click.echo(f"Next: posquad fit {shlex.quote(str(target))} {options}".rstrip())
