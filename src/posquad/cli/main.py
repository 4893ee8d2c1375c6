"""The command line: `posquad reproduce`, `claims`, `info`; the others have modules `cli_...`."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from posquad._version import __version__
from posquad.cli.certify import certify_command
from posquad.cli.demo import demo_command
from posquad.cli.failure import Commands, Failure
from posquad.cli.fit import fit_command
from posquad.cli.predict import predict_command
from posquad.cli.progress import watcher_for
from posquad.core.errors import DomainError, PosquadError
from posquad.core.system import system_information
from posquad.experiments.claims import Verdict, failures, tally
from posquad.experiments.registry import EXPERIMENTS
from posquad.experiments.report import measured_cell, published_cell, shown
from posquad.experiments.reproduce import Outcome, plan, reproduce

__all__ = ["main"]

_OUT = click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("reproduction"),
    show_default=True,
    help="Folder of the results.",
)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
)
@click.version_option(__version__, prog_name="posquad")
def main() -> None:
    """Positive quadratic networks f_U(x) = x'UU'x.

    For data, start with `posquad demo recovery` and `posquad fit recovery.csv`; for the paper, with
    `posquad reproduce --quick`. Every command has examples under --help.
    """


for command in (demo_command, fit_command, predict_command, certify_command):
    main.add_command(command)


@main.command("reproduce", short_help="Run the paper's experiments, judge its claims.")
@click.option("--quick", is_flag=True, help="Fewer seeds and steps: under a minute.")
@click.option("--only", metavar="N,N", default="", help="Experiments to run, for instance 1,4.")
@_OUT
@click.option("--seed", type=click.IntRange(min=0), help="Base seed of every experiment.")
@click.option(
    "--set",
    "settings",
    metavar="EXP.NAME=VALUE",
    multiple=True,
    help="Change a parameter; may be repeated. Tuples are numbers with commas.",
)
@click.option("--fresh", is_flag=True, help="Run again what is already recorded.")
@click.option("--traceback", is_flag=True, help="Show where an error arose.")
@click.option("--list", "listing", is_flag=True, help="List experiments and parameters, and stop.")
def reproduce_command(
    quick: bool,
    only: str,
    out: Path,
    seed: int | None,
    settings: tuple[str, ...],
    fresh: bool,
    traceback: bool,
    listing: bool,
) -> None:
    """Run the experiments of the paper and compare every published number.

    Writes report.html, claims.json, figures/ and records/ into the output folder. Finished
    experiments are kept and reused by the next run with the same parameters; Ctrl-C is safe.

    Exit status: 0 if every identity and deterministic claim holds, 1 if one does not, 2 for bad
    input, 130 after Ctrl-C.

    \b
    Examples:
      posquad reproduce
      posquad reproduce --quick --only 1,4
      posquad reproduce --set exp2.n=1600 --set exp2.lambda_r=1,0.5 --out more-samples
    """
    try:
        changes = _parse_settings(settings)
        parameters = plan(_parse_only(only), quick=quick, seed=seed, changes=changes)
        if listing:
            _list(parameters)
            return
        with watcher_for(parameters, quick) as watcher:
            outcome = reproduce(
                out,
                parameters,
                quick=quick,
                fresh=fresh,
                command=shlex.join(["posquad", *sys.argv[1:]]),
                watcher=watcher,
            )
    except PosquadError as problem:
        if traceback:
            raise
        raise Failure(str(problem)) from None
    except KeyboardInterrupt:  # while results were being written
        _stop_interrupted()
    _summarize(outcome, out)
    if outcome.interrupted:
        _stop_interrupted()
    if failures(list(outcome.judged)):
        raise SystemExit(1)


@main.command("claims", short_help="Show the verdicts of a finished run.")
@_OUT
@click.option("--verdict", type=click.Choice([v.value for v in Verdict]), help="Only these.")
@click.option("--json", "as_json", is_flag=True, help="Print claims.json as it is.")
def claims_command(out: Path, verdict: str | None, as_json: bool) -> None:
    """Show published and measured values of a finished run, with their verdicts.

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
            raise TypeError("a list of claims is expected")
        entries = [dict(entry) for entry in found]
        rows = [_claim_row(entry) for entry in entries if verdict in (None, entry["verdict"])]
    except FileNotFoundError:
        message = f"{path}: no finished run there; `posquad reproduce --out {out}` makes one"
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
    words = tally([(entry["source"], entry["verdict"]) for entry in entries])
    console.print(f"{words[0].upper()}{words[1:]}.", highlight=False)


@main.command("info", short_help="Versions and devices, for bug reports.")
def info_command() -> None:
    """Print versions and devices that results depend on."""
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


def _stop_interrupted() -> NoReturn:
    click.echo("Interrupted. Finished experiments are kept; run the same command to go on.")
    raise SystemExit(130)


def _parse_only(text: str) -> list[str]:
    keys = [part.strip() for part in text.split(",")] if text.strip() else []
    return [key if key.startswith("exp") else f"exp{key}" for key in keys]


def _parse_settings(settings: tuple[str, ...]) -> dict[str, dict[str, str]]:
    changes: dict[str, dict[str, str]] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        experiment, dot, parameter = name.strip().partition(".")
        if not (equals and dot and parameter and value.strip()):
            raise DomainError("--set", expected="EXP.NAME=VALUE, such as exp2.n=1600", got=setting)
        changes.setdefault(experiment, {})[parameter.strip()] = value
    return changes


def _list(parameters: Any) -> None:
    from posquad.experiments.framework import described

    for key, values in parameters.items():
        click.echo(f"{key}  {EXPERIMENTS[key].title}")
        for entry in described(values):
            click.echo(f"  {key}.{entry['name']} = {shown(entry['value'])}")
            click.echo(f"      {entry['doc']} ({entry['source']})")


def _summarize(outcome: Outcome, out: Path) -> None:
    words = tally([(judged.claim.source, judged.verdict.value) for judged in outcome.judged])
    click.echo(f"{words[0].upper()}{words[1:]} ({outcome.seconds:.0f} s).")
    for judged in outcome.judged:
        if judged.verdict is Verdict.DIFFERS:
            published = published_cell(judged.as_dict() | {"published": judged.claim.published})
            click.echo(
                f"  differs: {judged.claim.id}: published {published}, measured "
                f"{measured_cell(judged.measured)}; {judged.why}"
            )
    if outcome.records:
        click.echo(f"Report: {out / 'report.html'}")


def _claim_row(entry: dict[str, Any]) -> list[Text]:
    colour = {"holds": "green", "differs": "bold red", "not-comparable": "yellow"}
    if not all(isinstance(entry[name], str) for name in ("id", "kind")):
        raise TypeError("an id or a kind is no text")
    return [  # as Text: a bracket in a value is no markup
        Text(entry["id"]),
        Text(entry["kind"]),
        Text(published_cell(entry | {"published": entry["printed"]})),
        Text(measured_cell(entry["measured"])),
        Text(entry["verdict"], style=colour[entry["verdict"]]),
    ]


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width to fit
        console = Console(highlight=False, width=200)
    return console
