"""Parquet files, read by pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from posquad.core.extras import import_extra
from posquad.io.tables._table import Table, TableError, exact, refuse_kind, require_distinct

_KIND = "a Parquet file"


def open_parquet(path: Path) -> Table:
    """Open a Parquet file as a table; only its footer is read."""
    parquet, arrow = import_extra("pyarrow.parquet", "lab"), import_extra("pyarrow", "lab")
    if not path.stat().st_size:
        raise TableError(str(path), expected=_KIND, got="an empty file")
    try:
        with parquet.ParquetFile(path, memory_map=True) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (arrow.ArrowException, OSError, ValueError) as problem:
        refuse_kind(path, _KIND, problem)
    # pandas stores an index as a column of this name; it is not part of the data
    names = tuple(name for name in schema.names if not name.startswith("__index_level_"))
    require_distinct(path, names)
    if not rows or not names:
        got = f"{rows} rows and {len(names)} columns"
        raise TableError(str(path), expected="rows and columns", got=got)
    types = {name: schema.field(name).type for name in names}
    return Table(path, names, rows, True, partial(_read, path, rows, types))


def _read(path: Path, rows: int, types: dict[str, Any], names: Sequence[str]) -> np.ndarray:
    parquet, arrow = import_extra("pyarrow.parquet", "lab"), import_extra("pyarrow", "lab")
    for name in names:
        if not (arrow.types.is_integer(types[name]) or arrow.types.is_floating(types[name])):
            where = f"{path}: column {name!r}"
            raise TableError(where, expected="real numbers", got=f"type {types[name]}")
    single = all(types[name] in (arrow.float32(), arrow.float16()) for name in names)
    values = np.empty((rows, len(names)), np.float32 if single else np.float64)
    try:
        with parquet.ParquetFile(path, memory_map=True) as file:
            for position, name in enumerate(names):  # one at a time, to save memory
                column = file.read(columns=[name])[name].combine_chunks()
                _require_no_gaps(path, name, column)
                given = column.to_numpy(zero_copy_only=False)
                values[:, position] = exact(path, name, given[:, None], [name])[:, 0]
    except TableError:
        raise
    except (arrow.ArrowException, OSError, ValueError) as problem:
        refuse_kind(path, _KIND, problem)
    return values


def _require_no_gaps(path: Path, name: str, column: Any) -> None:
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))) + 1
        where = f"{path}: row {row}, column {name!r}"
        got = "a missing value; leave such rows out or fill them in"
        raise TableError(where, expected="a finite number", got=got)
