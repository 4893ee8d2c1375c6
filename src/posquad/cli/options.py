"""Options that commands of `posquad` share."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from posquad.core.errors import DomainError

__all__ = ["FILE", "columns_option", "folder_option", "seed_option", "split_names", "table_option"]

FILE: Any = click.Path(path_type=Path)
"""A path; the command itself checks whether it can be used."""


def columns_option(name: str, words: str) -> Callable[[Any], Any]:
    """Return an option that names one column, or several separated by commas.

    >>> callable(columns_option("--response", "Column of the responses."))
    True
    """
    shown = {"--features": "A,B,C", "--drop": "A,B"}.get(name, "NAME")
    return click.option(name, metavar=shown, help=words)


def folder_option(default: str, words: str) -> Callable[[Any], Any]:
    """Return the option that names the folder of the results.

    >>> callable(folder_option("fit", "Folder of the model and the report."))
    True
    """
    return click.option("--out", type=FILE, default=Path(default), show_default=True, help=words)


def table_option(default: str) -> Callable[[Any], Any]:
    """Return the option that names a data file to write.

    >>> callable(table_option("NAME.csv"))
    True
    """
    words = f"File to write: .csv, .tsv, .parquet, .npz or .npy.  [default: {default}]"
    return click.option("--out", type=FILE, help=words)


def seed_option(words: str) -> Callable[[Any], Any]:
    """Return the option that sets the seed, 0 by default.

    >>> callable(seed_option("Seed of the random starts."))
    True
    """
    seeds = click.IntRange(min=0)
    return click.option("--seed", type=seeds, default=0, show_default=True, help=words)


def split_names(text: str | None, option: str = "--features") -> list[str] | None:
    """Split a list of names at its commas; a name with a comma must be in quotation marks.

    >>> split_names('age, "height, cm"')
    ['age', 'height, cm']
    """
    if text is None:
        return None
    found = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    if not found or not all(found):
        raise DomainError(option, expected="names such as a,b,c", got=repr(text))
    return found


DROP = columns_option("--drop", "Columns to leave out of the inputs.  [default: none]")
"""The option that leaves columns out of the inputs."""

RESULTS = folder_option("reproduction", "Folder of the results.")
"""The option that names the folder of `posquad reproduce`."""
