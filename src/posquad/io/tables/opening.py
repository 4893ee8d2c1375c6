"""Open a data file by its suffix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from posquad.io.tables._arrays import open_npy, open_npz
from posquad.io.tables._cells import PLAIN, NumberFormat
from posquad.io.tables._excel import open_excel
from posquad.io.tables._parquet import open_parquet
from posquad.io.tables._source import COMPRESSED
from posquad.io.tables._table import STDIN, Table, TableError
from posquad.io.tables._text import open_text

__all__ = ["open_table", "require_file"]

TEXT = (".csv", ".tsv", ".txt")
_KINDS: dict[str, Callable[[Path], Table]] = {
    ".parquet": open_parquet,
    ".xlsx": open_excel,
    ".npz": open_npz,
    ".npy": open_npy,
}


def open_table(path: Path, numbers: NumberFormat = PLAIN) -> Table:
    """Open a data file by its suffix; its columns are known, its numbers are not read yet.

    The path `-` is standard input. `numbers` is the format of the numbers in a text file.

    >>> open_table(Path("data.xls"))
    Traceback (most recent call last):
    posquad.io.tables._table.TableError: data.xls: expected a file that ends in .csv, .tsv or .txt (also .gz or .zst), .parquet, .xlsx, .npz or .npy, or - for standard input; got .xls; save it as .xlsx or .csv
    """  # noqa: E501
    path = STDIN if path == Path("-") else path
    suffix = path.suffix.lower()
    if suffix in COMPRESSED:
        suffix = path.with_suffix("").suffix.lower()
        if suffix not in TEXT:
            got = f"{suffix}{path.suffix}; decompress it first" if suffix else path.suffix
            expected = "a compressed text table such as data.csv.gz"
            raise TableError(str(path), expected=expected, got=got)
    if path != STDIN:
        if suffix not in (*TEXT, *_KINDS):
            *most, last = _KINDS
            raise TableError(
                str(path),
                expected=f"a file that ends in .csv, .tsv or .txt (also .gz or .zst), "
                f"{', '.join(most)} or {last}, or - for standard input",
                got=".xls; save it as .xlsx or .csv" if suffix == ".xls" else suffix or "no suffix",
            )
        require_file(path)
    try:
        return _KINDS[suffix](path) if suffix in _KINDS else open_text(path, numbers)
    except OSError as problem:
        raise unreadable(path, problem) from None


def require_file(path: Path) -> None:
    """Refuse a path that is not a readable file.

    >>> require_file(Path("no/such.csv"))
    Traceback (most recent call last):
    posquad.io.tables._table.TableError: no/such.csv: expected a data file; got no such file
    """
    try:
        if path.is_dir():
            raise TableError(str(path), expected="a file", got="a folder")
        if not path.exists():
            raise TableError(str(path), expected="a data file", got="no such file")
        if not path.is_file():
            raise TableError(str(path), expected="a file", got="a device or a pipe")
        with path.open("rb"):
            pass
    except OSError as problem:
        raise unreadable(path, problem) from None


def unreadable(path: Path, problem: OSError) -> TableError:
    """Return the error for a file that the system cannot read."""
    got = f"one that cannot be read ({problem.strerror or problem})"
    return TableError(str(path), expected="a data file", got=got)
