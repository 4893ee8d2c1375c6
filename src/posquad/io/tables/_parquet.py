"""Parquet files, read by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from posquad.core.extras import import_extra
from posquad.core.parquet import data_columns
from posquad.io.tables._memory import is_streamed
from posquad.io.tables._table import (
    INDEX,
    TEMPORARY,
    Caching,
    NotNumbers,
    Report,
    Row,
    Source,
    Table,
    TableError,
    exact,
    is_index,
    refuse_kind,
    require_distinct,
)

if TYPE_CHECKING:
    from posquad.problems.rows import Rows

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
    names = tuple(data_columns(schema.names))
    names = names[bool(names) and is_index(names[0]) :]
    require_distinct(path, names)
    if rows < 1 or not names:
        got = f"{rows} rows and {len(names)} columns"
        raise TableError(str(path), expected="rows and columns", got=got)
    types = {name: schema.field(name).type for name in names}
    told = [INDEX] if len(names) < len(schema.names) else []
    read, cells = partial(_read, path, rows, types), partial(_cells, path, types)
    numeric = frozenset(name for name in names if _holds_numbers(types[name]))

    def source(used: Sequence[str]) -> Source | None:
        if not numeric.issuperset(used) or not is_streamed(8 * rows * len(used)):
            return None
        # In the order of the file: a fit and predictions with it then convert the same columns.
        return partial(_source, path, [name for name in names if name in used])

    return Table(
        path,
        names,
        rows,
        True,
        read,
        cells=cells,
        facts=lambda: told,
        numeric=numeric,
        source=source,
    )


def _holds_numbers(kind: Any) -> bool:
    """Tell whether a type is one of real numbers; true and false are 1 and 0."""
    types = import_extra("pyarrow", "lab").types
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _source(
    path: Path,
    used: Sequence[str],
    wanted: Sequence[str],
    report: Report | None = None,
    *,
    caching: Caching = TEMPORARY,
) -> Rows:
    """Return the rows of some of the columns that are used; all of these are converted."""
    # torch is imported when it is needed
    from posquad.problems.rows.parquet import MissingNumberError, from_parquet

    told = None if report is None else partial(report, f"converting {path.name}")
    try:
        whole = from_parquet(path, used, **caching._asdict(), progress=told)
    except MissingNumberError as found:  # in tables, rows count from 1
        where = f"{path}: row {found.row + 1}, column {found.column!r}"
        expected, got = found.expected, "a missing value"
        raise TableError(where, expected=expected, got=got) from None
    return whole.with_columns([used.index(name) for name in wanted])


def _read(path: Path, rows: int, types: dict[str, Any], names: Sequence[str]) -> np.ndarray:
    parquet, arrow = import_extra("pyarrow.parquet", "lab"), import_extra("pyarrow", "lab")
    for name in names:
        if not _holds_numbers(types[name]):
            where = f"{path}: column {name!r}"
            raise NotNumbers(where, expected="real numbers", got=f"type {types[name]}")
    single = all(types[name] in (arrow.float32(), arrow.float16()) for name in names)
    values = np.empty((rows, len(names)), np.float32 if single else np.float64)
    try:
        with parquet.ParquetFile(path, memory_map=True) as file:
            for position, name in enumerate(names):  # one at a time, to save memory
                column = file.read(columns=[name])[name].combine_chunks()
                if len(column) != rows:
                    raise ValueError(f"{len(column)} values of {name!r} in {rows} rows")
                known = column.drop_null().to_numpy(zero_copy_only=False)
                present = np.asarray(column.is_valid())  # exact before NaN marks what is missing
                values[present, position] = exact(path, name, known[:, None], [name])[:, 0]
                values[~present, position] = np.nan
    except TableError:
        raise
    except (arrow.ArrowException, OSError, ValueError) as problem:
        refuse_kind(path, _KIND, problem)
    return values


def _cells(path: Path, types: dict[str, Any], names: Sequence[str]) -> Iterator[Row]:
    """Yield rows as text; a missing value is an empty cell."""
    parquet, arrow = import_extra("pyarrow.parquet", "lab"), import_extra("pyarrow", "lab")
    number = 0
    try:
        with parquet.ParquetFile(path, memory_map=True) as file:
            for batch in file.iter_batches(columns=list(names)):
                columns = [_as_text(path, name, batch[name], types[name]) for name in names]
                for cells in zip(*columns, strict=True):
                    number += 1
                    yield number, cells
    except TableError:
        raise
    except (arrow.ArrowException, OSError, ValueError) as problem:
        refuse_kind(path, _KIND, problem)


def _as_text(path: Path, name: str, column: Any, kind: Any) -> list[str]:
    arrow = import_extra("pyarrow", "lab")
    try:
        return column.cast(arrow.string()).fill_null("").to_pylist()
    except arrow.ArrowNotImplementedError:
        where, expected = f"{path}: column {name!r}", "numbers or text"
        raise TableError(where, expected=expected, got=f"type {kind}; add --drop") from None
