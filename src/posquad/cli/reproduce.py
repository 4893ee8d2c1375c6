"""The command `posquad reproduce`: run the experiments and judge the paper's claims."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import click

from posquad.cli.failure import Failure
from posquad.cli.options import FILE, RESULTS
from posquad.cli.reproduce_progress import watcher_for
from posquad.core.errors import DomainError, PosquadError
from posquad.experiments.cells import format_value, measured_cell, published_cell
from posquad.experiments.changes import changed_parameters, describe_sources
from posquad.experiments.claims import Agreement, failures
from posquad.experiments.framework import Parameters
from posquad.experiments.headline import headline
from posquad.experiments.own import load_suite
from posquad.experiments.reproduce import Outcome, plan, reproduce
from posquad.experiments.suite import Suite, paper_suite
from posquad.report.formulas import as_plain

__all__ = ["reproduce_command"]


@click.command("reproduce")
@click.option("--quick", is_flag=True, help="Fewer seeds and steps: under a minute.")
@click.option("--only", metavar="N,N", default="", help="Experiments to run, such as 1,4.")
@click.option(
    "--experiment",
    "own",
    type=FILE,
    metavar="FILE",
    help="Run the experiment of a Python file instead of the paper's.",
)
@RESULTS
@click.option("--seed", type=click.IntRange(min=0), help="Base seed of every experiment.")
@click.option(
    "--set",
    "settings",
    metavar="EXP.NAME=VALUE",
    multiple=True,
    help="Change a parameter; can be repeated. Separate the numbers of a tuple by commas.",
)
@click.option("--fresh", is_flag=True, help="Run experiments again even if they are recorded.")
@click.option("--traceback", is_flag=True, help="Show the traceback of an error.")
@click.option("--list", "listing", is_flag=True, help="List experiments and parameters, and exit.")
def reproduce_command(
    quick: bool,
    only: str,
    own: Path | None,
    out: Path,
    seed: int | None,
    settings: tuple[str, ...],
    fresh: bool,
    traceback: bool,
    listing: bool,
) -> None:
    """Run the experiments of the paper and compare every published number.

    The command writes report.html, claims.json, figures/ and records/ into the output folder.
    Finished experiments are saved, and the next run with the same parameters reuses them; Ctrl-C
    loses at most the running experiment.

    Exit status: 0 if every identity and deterministic claim holds, 1 if one does not, 2 for bad
    input, 130 after Ctrl-C.

    \b
    Examples:
      posquad reproduce
      posquad reproduce --quick --only 1,4
      posquad reproduce --set exp2.n=1600 --set exp2.lambda_r=1,0.5 --out more-samples
      posquad reproduce --experiment my.py --out mine
    """
    try:
        changes, suite = _parse_settings(settings), _suite(own, only)
        parameters = plan(_parse_only(only), quick=quick, seed=seed, changes=changes, suite=suite)
        if listing:
            _list(suite, parameters, quick)
            return
        with watcher_for(suite, parameters, quick) as watcher:
            outcome = reproduce(
                out,
                parameters,
                quick=quick,
                fresh=fresh,
                command=shlex.join(["posquad", *sys.argv[1:]]),
                watcher=watcher,
                suite=suite,
            )
    except PosquadError as problem:
        if traceback:
            raise
        raise Failure(str(problem)) from None
    except KeyboardInterrupt:  # while results were being written
        _stop_interrupted()
    _summarize(outcome, out, _changed(suite, parameters, quick), own=own is not None)
    if outcome.interrupted:
        _stop_interrupted()
    if failures(list(outcome.judged)):
        raise SystemExit(1)


def _stop_interrupted() -> NoReturn:
    click.echo(
        "Interrupted. Finished experiments are saved; run the same command again to continue."
    )
    raise SystemExit(130)


def _suite(own: Path | None, only: str) -> Suite:
    if own is None:
        return paper_suite()
    if only.strip():
        raise DomainError("--only", expected="no numbers together with --experiment", got=only)
    return load_suite(own)


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


def _list(suite: Suite, parameters: Mapping[str, Parameters], quick: bool) -> None:
    for key, values in parameters.items():
        click.echo(f"{key}  {suite.experiments[key].title}")
        for entry in describe_sources(suite.experiments[key], values, quick=quick):
            click.echo(f"  {key}.{entry['name']} = {format_value(entry['value'])}")
            click.echo(f"      {as_plain(entry['doc'])} ({entry['source']})")


def _changed(suite: Suite, parameters: Mapping[str, Parameters], quick: bool) -> list[str]:
    return [
        change.words
        for key, values in parameters.items()
        for change in changed_parameters(suite.experiments[key], values, quick=quick)
    ]


def _summarize(outcome: Outcome, out: Path, changed: list[str], *, own: bool) -> None:
    entries = [judged.as_dict() for judged in outcome.judged]
    words = headline(entries)
    if changed:
        click.echo(f"Changed by you: {', '.join(changed)}.")
    click.echo(f"{words[0].upper()}{words[1:]} ({outcome.seconds:.0f} s).")
    for judged, entry in zip(outcome.judged, entries, strict=True):
        if judged.verdict is Agreement.DIFFERS:
            published = published_cell(entry | {"published": judged.claim.published})
            target = f"published {published}, measured {measured_cell(judged.measured)}"
            if judged.claim.source != "paper":  # nothing was published
                target = f"expected {judged.tolerance}"
            click.echo(f"  differs: {judged.claim.id}: {target}; {judged.why}")
        elif own and judged.verdict is Agreement.NOT_COMPARABLE:
            measure = judged.claim.measure
            click.echo(f"  cannot be compared: {judged.claim.id}: {judged.why} ({measure!r})")
    if outcome.records:
        click.echo(f"Report: {out / 'report.html'}")
