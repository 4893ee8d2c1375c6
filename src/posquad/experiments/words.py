"""Lists for sentences and rows for tables, made from measurements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from posquad.experiments.framework import Measured

__all__ = ["listed", "rows_over"]


def listed(form: str, *columns: Any) -> str:
    """Format the columns row by row, and join the results with commas.

    >>> listed("{:.0f}% at n = {}", [25.0, 100.0], [8, 16])
    '25% at n = 8, 100% at n = 16'
    """
    return ", ".join(form.format(*entries) for entries in zip(*columns, strict=True))


def rows_over(dimension: str, **forms: str) -> Callable[[Measured], list[list[str]]]:
    """Return a function that gives the rows of a table, one per coordinate of a dimension.

    >>> measured = Measured()
    >>> measured.set_coordinates("eta", [0.5, 0.25])
    >>> measured.add("error", [3.0, 1.0], "eta")
    >>> rows_over("eta", error=".1e")(measured)
    [['0.5', '3.0e+00'], ['0.25', '1.0e+00']]
    """

    def rows(measured: Measured) -> list[list[str]]:
        return [
            [f"{value:g}", *(format(measured[name][k], form) for name, form in forms.items())]
            for k, value in enumerate(measured[dimension])
        ]

    return rows
