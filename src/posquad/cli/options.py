"""Options that commands of `posquad` share."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click

from posquad.core.errors import DomainError
from posquad.core.files import FileError
from posquad.io.tables import Caching, Encoding, Request
from posquad.io.tables.encoding import MISSING_RULES

__all__ = [
    "FILE",
    "cache_options",
    "chosen_caching",
    "columns_option",
    "folder_option",
    "missing_option",
    "number_options",
    "parse_encodings",
    "replacing",
    "require_new",
    "seed_option",
    "split_names",
    "table_option",
]

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


def cache_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about the copy of a large Parquet file, which is deleted with the command.

    It is deleted however the command ends: Ctrl-C ends the process without cleaning up.

    >>> command = click.command()(cache_options(lambda **options: None))
    >>> [option.name for option in command.params]
    ['cache', 'keep_cache']
    """
    keep = click.option(
        "--keep-cache",
        is_flag=True,
        help="Keep the copy of a large .parquet file for the next command.  [default: delete it]",
    )
    folder = click.option(
        "--cache",
        type=FILE,
        metavar="DIR",
        help="Folder for the copy of a large .parquet file.  [default: the folder of the file]",
    )

    @wraps(command)
    def with_copies(*given: Any, **options: Any) -> Any:
        before = _holds_of_copies()  # of a program that calls this command
        try:
            return command(*given, **options)
        finally:
            for hold in _holds_of_copies():
                if hold not in before:
                    hold.let_go()

    return folder(keep(with_copies))


def _holds_of_copies() -> list[Any]:
    caches = sys.modules.get("posquad.problems.rows.cache")  # if it is not loaded, there are none
    return [] if caches is None else caches.living_holds()


def chosen_caching(folder: Path | None, keep: bool) -> Caching:
    """Return where copies are made; refuse a folder that does not exist.

    >>> chosen_caching(Path("no/folder"), False)
    Traceback (most recent call last):
    posquad.core.errors.DomainError: --cache: expected a folder that exists; got 'no/folder'
    """
    if folder is not None and not folder.is_dir():
        raise DomainError("--cache", expected="a folder that exists", got=repr(str(folder)))
    return Caching(folder, keep)


FORCE = click.option("--force", is_flag=True, help="Replace an existing file.")
"""The option of commands that write a file to begin with."""


def require_new(path: Path, *, force: bool) -> None:
    """Refuse to replace a file, unless that is asked for.

    >>> require_new(Path(__file__), force=False)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    posquad.core.files.FileError: ...options.py: expected a new file; got one that exists, and it was not changed; --force replaces it
    """  # noqa: E501
    if path.exists() and not force:
        got = "one that exists, and it was not changed; --force replaces it"
        raise FileError(str(path), expected="a new file", got=got)


def replacing(path: Path) -> str:
    """Words that say, before a result is written, that it replaces an earlier file, if it does.

    >>> replacing(Path(__file__)), replacing(Path("no/file"))
    ('; replaces an earlier file', '')
    """
    return "; replaces an earlier file" if path.exists() else ""


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


def parse_encodings(texts: Sequence[str]) -> Request:
    """Parse the values of `--encode`.

    >>> parse_encodings(["size=small,large"]).columns["size"]
    Encoding(column='size', kind='ordinal', levels=('small', 'large'), reference=None)
    >>> list(parse_encodings(["sex,city"]).columns), parse_encodings(["auto"]).auto
    (['sex', 'city'], True)
    """
    auto, columns = False, {}
    for text in texts:
        name, levels = _split_at_sign(text)
        names = split_names(name, "--encode") or []
        found = [Encoding(each, "") for each in names]
        if levels is not None:
            found = [_with_levels(text, names, split_names(levels, "--encode") or [])]
        elif names == ["auto"]:
            auto, found = True, []
        for each in found:
            if each.column in columns:
                got = f"{each.column!r} twice"
                raise DomainError("--encode", expected="each column once", got=got)
            columns[each.column] = each
    return Request(columns, auto)


def _with_levels(text: str, names: list[str], levels: list[str]) -> Encoding:
    if len(names) != 1:
        raise DomainError("--encode", expected="one column before =", got=repr(text))
    if levels in (["onehot"], ["percent"]):
        return Encoding(names[0], levels[0])
    if len(levels) < 2 or len(set(levels)) < len(levels):
        expected = "onehot, percent, or different levels in their order (small,medium,large)"
        raise DomainError("--encode", expected=expected, got=repr(text))
    return Encoding(names[0], "ordinal", tuple(levels))


def _split_at_sign(text: str) -> tuple[str, str | None]:
    """Split at the first = that is not in quotation marks."""
    quoted = False
    for place, mark in enumerate(text):
        quoted ^= mark == '"'
        if mark == "=" and not quoted:
            return text[:place], text[place + 1 :]
    return text, None


def missing_option(choices: Sequence[str], words: str) -> Callable[[Any], Any]:
    """Return the option that says what to do about missing values.

    >>> callable(missing_option(["refuse", "mean"], "Missing values."))
    True
    """
    return click.option("--missing", type=click.Choice(choices), help=words)


def number_options(default: str) -> Callable[[Any], Any]:
    """Return the two options for the format of numbers in text files.

    >>> callable(number_options("a point"))
    True
    """

    def add(function: Any) -> Any:
        for option in (
            click.option(
                "--thousands",
                metavar="MARK",
                help="Separator of thousands in text files: , . ' or a blank.  [default: "
                f"{'none' if default == '.' else default}]",
            ),
            click.option(
                "--decimal",
                metavar="MARK",
                help=f"Decimal mark in text files: . or a comma.  [default: {default}]",
            ),
        ):
            function = option(function)
        return function

    return add


ENCODE = click.option(
    "--encode",
    multiple=True,
    metavar="COLUMNS",
    help="Columns of text to turn into numbers: A,B for a 0/1 column per value (yes/no gives one "
    "column), A=small,medium,large for 0, 1, 2 in this order, A=percent, or auto for all columns "
    "of text. Repeat the option for several.",
)
"""The option that encodes columns; `parse_encodings` reads its values."""

MISSING = missing_option(
    MISSING_RULES,
    "Missing values: refuse the table, drop their rows, or fill in the mean of the column (rows "
    "without a response are then dropped).  [default: refuse]",
)
"""The option of commands that learn from a table."""

DROP = columns_option("--drop", "Columns to leave out of the inputs.  [default: none]")
"""The option that leaves columns out of the inputs."""

RESULTS = folder_option("reproduction", "Folder of the results.")
"""The option that names the folder of `posquad reproduce`."""
