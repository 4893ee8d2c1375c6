"""Write columns of numbers to a data file, in the format given by its suffix."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from posquad.core.extras import import_extra
from posquad.core.files import write_file
from posquad.io.tables._table import TableError

__all__ = ["as_bytes", "require_suffix", "write_columns"]

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".npz", ".npy")


def require_suffix(path: Path) -> None:
    """Refuse a file name without a suffix of a known format.

    >>> require_suffix(Path("data.xlsx"))
    Traceback (most recent call last):
    posquad.io.tables._table.TableError: data.xlsx: expected a file that ends in .csv, .tsv, .txt, .parquet, .npz or .npy; got .xlsx
    """  # noqa: E501
    if path.suffix.lower() not in SUFFIXES:
        *most, last = SUFFIXES
        expected = f"a file that ends in {', '.join(most)} or {last}"
        raise TableError(str(path), expected=expected, got=path.suffix or "no suffix")


def write_columns(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Write columns `[n]` to a file atomically; text files keep every digit.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_columns(Path(folder, "a.csv"), {"a": np.array([0.1]), "y": np.array([2.0])})
    ...     Path(folder, "a.csv").read_text()
    'a,y\\n0.1,2.0\\n'
    """
    require_suffix(path)
    write_file(path, as_bytes(path.suffix.lower(), columns))


def as_bytes(suffix: str, columns: Mapping[str, np.ndarray]) -> bytes:
    """Return the content of a data file in this format.

    >>> as_bytes(".tsv", {"a": np.array([1.5])})
    b'a\\n1.5\\n'
    """
    buffer = io.BytesIO()
    if suffix == ".npy":
        np.save(buffer, np.column_stack(list(columns.values())))
    elif suffix == ".npz":
        np.savez(buffer, allow_pickle=False, **columns)
    elif suffix == ".parquet":
        table = import_extra("pyarrow", "lab").table(dict(columns))
        import_extra("pyarrow.parquet", "lab").write_table(table, buffer)
    else:
        return _text("," if suffix == ".csv" else "\t", columns)
    return buffer.getvalue()


def _cell(value: object) -> str:
    return _quoted(value) if isinstance(value, str) else repr(value)


def _text(delimiter: str, columns: Mapping[str, np.ndarray]) -> bytes:
    names = [_quoted(name) for name in columns]
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    lines = [delimiter.join(names), *(delimiter.join(map(_cell, row)) for row in rows)]
    return ("\n".join(lines) + "\n").encode()


def _quoted(name: str) -> str:
    if not set(',;\t"\n\r') & set(name):
        return name
    return '"' + name.replace('"', '""') + '"'
