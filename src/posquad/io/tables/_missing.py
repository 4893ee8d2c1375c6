"""Missing values: counted by column, refused, left out with their rows, or filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from posquad.io.tables._table import Fact, Table, TableError, name_rows
from posquad.io.tables.encoding import Encoding, quoted_names

__all__ = ["Gaps"]

Handled = tuple[np.ndarray, dict[str, np.ndarray], np.ndarray | None, list[Fact]]


class Gaps:
    """The missing values of a table: NaN in the inputs X `[n, d]` and in the other columns."""

    def __init__(
        self,
        table: Table,
        X: np.ndarray,
        columns: Mapping[str, np.ndarray],
        inputs: Sequence[Encoding],
    ) -> None:
        self.table, self.X, self.columns = table, X, dict(columns)
        self.masks: dict[str, np.ndarray] = {}  # rows in which a column has no value
        self.inputs: dict[str, int] = {}  # columns of inputs with gaps, and their place in X
        with np.errstate(over="ignore", invalid="ignore"):  # a sum is NaN if any entry is
            some = np.isnan(np.sum(X, axis=0, dtype=np.float64))
        start = 0
        for each in inputs:
            if some[start] and (mask := np.isnan(X[:, start])).any():
                self.masks[each.column], self.inputs[each.column] = mask, start
            start += len(each.features)
        for name, column in columns.items():
            if (mask := np.isnan(column)).any():
                self.masks[name] = mask

    def handled(self, missing: str, means: Sequence[float] | None, *, keep_rows: bool) -> Handled:
        """Return inputs and columns without gaps, the rows kept (None for all) and what was done.

        With `missing="mean"`, gaps of the inputs are filled with `means`, or with the means of the
        other rows if `means` is None. A row without a response is never filled in, but left out.
        """
        X, columns = self.X, self.columns
        if not self.masks:
            return X, columns, None, []
        unfilled = [name for name in self.masks if name not in self.inputs]
        if missing == "mean" and means is not None and not means and self.inputs:
            expected = "a model that holds column means, for --missing mean"
            got = "one without them; leave out rows with missing values or fill them in"
            raise TableError(str(self.table.path), expected=expected, got=got)
        if missing == "refuse" or (keep_rows and (missing == "drop" or unfilled)):
            names = unfilled if missing == "mean" else list(self.masks)
            self._refuse(names, bool(means), keep_rows=keep_rows)
        told: list[Fact] = []
        leaving = list(self.masks) if missing == "drop" else unfilled
        kept = None
        if leaving:
            gone = np.any([self.masks[name] for name in leaving], axis=0)
            kept = np.flatnonzero(~gone)
            if not len(kept):
                got = f"none of {len(X)}; missing are {self._counts(leaving)}"
                expected = "a row without missing values"
                raise TableError(str(self.table.path), expected=expected, got=got)
            words = f"{gone.sum()} of {len(gone)}, with missing values: {self._counts(leaving)}"
            told.append(("rows left out", words))
            X = X[kept]
            columns = {name: column[kept] for name, column in columns.items()}
        if missing == "mean" and self.inputs:
            X = self._filled(X, means)
            filled = [name for name in self.masks if name in self.inputs]
            told.append(("filled in", f"missing values by column means: {self._counts(filled)}"))
        return X, columns, kept, told

    def _filled(self, X: np.ndarray, means: Sequence[float] | None) -> np.ndarray:
        gaps, X = np.isnan(X), np.array(X)
        if means is None:
            known = (~gaps).sum(axis=0)
            if not known.all():
                empty = [name for name, start in self.inputs.items() if not known[start]]
                got = f"no value in {', '.join(map(repr, empty))}; add --drop {quoted_names(empty)}"
                raise TableError(str(self.table.path), expected="columns with values", got=got)
            values = np.where(gaps, 0, X).sum(axis=0, dtype=np.float64) / known
        else:
            values = np.asarray(means)
        rows, places = np.nonzero(gaps)
        X[rows, places] = values[places]
        return X

    def _counts(self, names: Sequence[str]) -> str:
        told = [f"{int(self.masks[name].sum())} in {name!r}" for name in names[:12]]
        more = f" and others in {len(names) - 12} more columns" if len(names) > 12 else ""
        return ", ".join(told) + more

    def _refuse(self, names: Sequence[str], means: bool, *, keep_rows: bool) -> NoReturn:
        row = int(np.argmax(np.any([self.masks[name] for name in names], axis=0)))
        [place] = name_rows([row], self.table.lines)
        remedy = "--missing drop leaves such rows out, --missing mean fills in column means"
        if keep_rows:
            remedy = "leave such rows out or fill them in"
            if means and set(names) == set(self.inputs):
                remedy = "--missing mean fills in the column means of the fitted data"
        got = f"{self._counts(names)} (of {len(self.X)} rows, the first in {place})"
        expected = "no missing values"
        raise TableError(str(self.table.path), expected=expected, got=f"{got}; {remedy}")
