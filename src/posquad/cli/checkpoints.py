"""The checkpoint of `posquad fit`: the state of a long fit, in the folder of its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from posquad.cli.processes import launched
from posquad.core.errors import DomainError
from posquad.io.models import MODEL
from posquad.io.tables import Samples
from posquad.recovery import Checkpoint

__all__ = ["CHECKPOINT", "checkpoint_options", "fit_checkpoint", "keeping"]

CHECKPOINT = f"{MODEL}.checkpoint"


def checkpoint_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about checkpoints to a command.

    >>> command = click.command()(checkpoint_options(lambda **options: None))
    >>> [option.name for option in command.params]
    ['checkpoint', 'checkpoint_every']
    """
    every = click.option(
        "--checkpoint-every",
        type=float,
        metavar="SECONDS",
        default=300.0,
        show_default=True,
        help="Time between two states.",
    )
    wanted = click.option(
        "--checkpoint/--no-checkpoint",
        default=None,
        help="Save states from which the same command goes on.  [default: if read block by block]",
    )
    return wanted(every(command))


def fit_checkpoint(
    samples: Samples, wanted: bool | None, every: float, out: Path
) -> Checkpoint | None:
    """Return where a fit saves its state: by default, if the table stays in its file.

    >>> import numpy as np
    >>> samples = Samples(Path("a.npy"), np.ones((2, 1)), None, None, ("x1",), False, None)
    >>> fit_checkpoint(samples, None, 300.0, Path("fit")) is None
    True
    """
    if wanted and samples.extremes is None:
        expected = "a table of at least 256 MB in a .npy or .parquet file"
        raise DomainError("--checkpoint", expected=expected, got="one that is read into memory")
    if wanted is False or samples.extremes is None:
        return None
    return Checkpoint(out / CHECKPOINT, every=every, keep=True, tell=_tell)


def _tell(sentence: str) -> None:
    click.echo(sentence, err=True)


@contextmanager
def keeping(checkpoint: Checkpoint | None) -> Iterator[None]:
    """Say, if Ctrl-C ends the fit, that its state is kept.

    >>> with keeping(None):
    ...     pass
    """
    try:
        yield
    except KeyboardInterrupt:
        if checkpoint is None or launched().rank or not checkpoint.path.exists():
            raise
        _tell(f"Interrupted: the same command goes on from {checkpoint.path}.")
        raise SystemExit(130) from None
