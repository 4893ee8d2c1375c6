"""Write columns of numbers to a data file, in the format given by its suffix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from posquad.core.extras import import_extra
from posquad.core.files import open_file
from posquad.io.tables._table import TableError

__all__ = ["require_suffix", "text_parts", "write_columns", "write_to"]

_ROWS = 2**14  # rows that are text at a time
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
    with open_file(path) as file:
        write_to(file, path.suffix.lower(), columns)


def write_to(file: IO[bytes], suffix: str, columns: Mapping[str, np.ndarray]) -> None:
    """Write columns `[n]` to an open file in this format.

    >>> import io
    >>> write_to(file := io.BytesIO(), ".tsv", {"a": np.array([1.5])})
    >>> file.getvalue()
    b'a\\n1.5\\n'
    """
    if suffix == ".npy":
        np.save(file, np.column_stack(list(columns.values())))
    elif suffix == ".npz":
        np.savez(file, allow_pickle=False, **columns)
    elif suffix == ".parquet":
        table = import_extra("pyarrow", "lab").table(dict(columns))
        import_extra("pyarrow.parquet", "lab").write_table(table, file)
    else:
        file.writelines(text_parts(columns, "," if suffix == ".csv" else "\t"))


def text_parts(columns: Mapping[str, np.ndarray], delimiter: str = ",") -> Iterator[bytes]:
    """Yield the bytes of a text file in parts, because text is many times larger than its numbers.

    >>> list(text_parts({"a": np.array([1.5]), "b": np.array([2.0])}))
    [b'a,b\\n', b'1.5,2.0\\n']
    """
    yield f"{delimiter.join(map(_quoted, columns))}\n".encode()
    for start in range(0, max(map(len, columns.values())), _ROWS):
        parts = (column[start : start + _ROWS].tolist() for column in columns.values())
        lines = (delimiter.join(map(_cell, row)) for row in zip(*parts, strict=True))
        yield "".join(f"{line}\n" for line in lines).encode()


def _cell(value: object) -> str:
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(name: str) -> str:
    if not set(',;\t"\n\r') & set(name):
        return name
    return '"' + name.replace('"', '""') + '"'
