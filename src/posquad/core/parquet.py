"""What several readers of Parquet files know about them."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["data_columns"]


def data_columns(names: Sequence[str]) -> list[str]:
    """Return the names of columns without those in which pandas stores the index of a data frame.

    >>> data_columns(["a", "b", "__index_level_0__"])
    ['a', 'b']
    """
    return [name for name in names if not name.startswith("__index_level_")]
