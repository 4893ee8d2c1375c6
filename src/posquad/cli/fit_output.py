"""What `posquad fit` leaves: the files in its folder, and the answer on the terminal."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from pathlib import Path

import click

from posquad.cli.checkpoints import CHECKPOINT
from posquad.core.files import FileError, require_folder, write_file
from posquad.io.models import MODEL
from posquad.report.fit_answer import Answer
from posquad.report.fitted_model import FittedModel

REPORT = "report.html"
_WIDTH = 80  # columns of a plain terminal


def require_place(data: Path, out: Path) -> list[Path]:
    """Check, before any work, that results can be written; return the folders that are new."""
    written = [f"{MODEL}{end}" for end in (".json", ".safetensors")] + [REPORT, CHECKPOINT]
    written += [f"{MODEL}.certificate{end}" for end in (".json", ".npz")]
    for name in written:
        if (out / name).resolve() == data.resolve():
            raise FileError(
                "--out", expected="another folder", got=f"{out}, where {data} would be replaced"
            )
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    require_folder(out, written)
    return new


def write_fit(out: Path, fit: FittedModel, text: str) -> None:
    """Write the report, then the model; model.json comes last and completes the fit."""
    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # writing a few files takes no time
    try:
        # A file name may hold bytes that are not text; the page shows a question mark for them.
        write_file(out / REPORT, text.encode(errors="replace"))
        try:
            fit.model.save(out / MODEL)
        except OSError as problem:
            with suppress(OSError):  # the report would be about a model that does not exist
                (out / REPORT).unlink()
            got = f"{problem.strerror or problem}"
            raise FileError(str(out), expected="a folder to write to", got=got) from None
        if fit.model.certificate_ is None:  # a certificate of an earlier fit is about another model
            for end in (".json", ".npz"):
                (out / f"{MODEL}.certificate{end}").unlink(missing_ok=True)
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def print_answer(said: Answer, out: Path, replaced: bool) -> None:
    """Print the answer, what to do next, and where the files are."""
    click.echo(f"{said.word}: {said.headline}.")
    click.echo(click.wrap_text(said.message, _WIDTH))
    click.echo()
    for name, value in said.facts:
        click.echo(click.wrap_text(f"{name:<18} {value}", _WIDTH, "  ", " " * 21))
    click.echo("\nWhat to do next:")
    for number, step in enumerate(said.steps, 1):
        click.echo(click.wrap_text(f"{number}. {step.words}", _WIDTH, "  ", "     "))
        if step.command:  # on its own line, so that it can be copied
            click.echo(f"       {step.command}")
    before = " (replaces an earlier fit)" if replaced else ""
    click.echo(f"\nModel:  {out / f'{MODEL}.json'}{before}")
    click.echo(f"Report: {out / REPORT}")
