"""What `posquad fit` leaves: the files in its folder, and the answer on the terminal."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from posquad.cli.checkpoints import CHECKPOINT
from posquad.core.files import FileError, require_folder, write_file
from posquad.io.models import MODEL
from posquad.report.fit_answer import Answer

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


def write_fit(out: Path, model: Any, text: str | None) -> None:
    """Write the report, then the model; model.json comes last and completes the fit.

    Without a text there is no report, and that of an earlier model is removed.
    """
    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # writing a few files takes no time
    try:
        # A file name may hold bytes that are not text; the page shows a question mark for them.
        if text is None:
            (out / REPORT).unlink(missing_ok=True)
        else:
            write_file(out / REPORT, text.encode(errors="replace"))
        try:
            model.save(out / MODEL)
        except OSError as problem:
            with suppress(OSError):  # the report would be about a model that does not exist
                (out / REPORT).unlink()
            got = f"{problem.strerror or problem}"
            raise FileError(str(out), expected="a folder to write to", got=got) from None
        if model.certificate_ is None:  # a certificate of an earlier fit is about another model
            for end in (".json", ".npz"):
                (out / f"{MODEL}.certificate{end}").unlink(missing_ok=True)
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def print_answer(said: Answer | None, out: Path, replaced: bool) -> None:
    """Print the answer and what to do next, if they are known, and where the files are."""
    if said is not None:
        _print_words(said)
    before = " (replaces an earlier fit)" if replaced else ""
    click.echo(f"Model:  {out / f'{MODEL}.json'}{before}")
    if said is not None:
        click.echo(f"Report: {out / REPORT}")


def _print_words(said: Answer) -> None:
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
    click.echo()
