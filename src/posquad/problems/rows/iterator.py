"""Rows that an object gives out piece by piece, with the protocol of XGBoost's `DataIter`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from posquad.core.arrays import converted_tensor, floating_tensor
from posquad.core.errors import DomainError, ShapeError
from posquad.problems.rows.source import Rows

__all__ = ["IteratorRows", "Pieces", "from_iterator"]


class Pieces(Protocol):
    """An object that gives out a table piece by piece, and can begin again."""

    def next(self, input_data: Callable[..., None]) -> Any:
        """Call `input_data(data=X, label=y, weight=w)` with the next piece; return 0 at the end."""
        ...

    def reset(self) -> None:
        """Begin again with the first piece."""
        ...


class IteratorRows(Rows):
    """Rows that an object gives out; its responses and weights are kept."""

    y: Tensor | None
    weights: Tensor | None

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        self.n, self.d = 0, 0
        labels: list[Tensor | None] = []
        weights: list[Tensor | None] = []
        narrow = True
        for data, label, weight in self._pieces():
            self.require_finite(slice(self.n, self.n + len(data)), data)
            self.d, self.n = data.shape[1], self.n + len(data)
            narrow = narrow and data.dtype == torch.float32
            labels.append(_copy(label))
            weights.append(_copy(weight))
        if not self.n:
            raise ShapeError("pieces", expected="at least one row", got="none")
        self.dtype = torch.float32 if narrow else torch.float64
        self.y = _joined("label", labels)
        self.weights = _joined("weight", weights)
        self.reads += self.n

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        done = 0
        for data, _, _ in self._pieces():
            if done + len(data) > self.n:
                got = f"more than {self.n}"
                raise DomainError("pieces", expected=f"{self.n} rows, as before", got=got)
            self.require_finite(slice(done, done + len(data)), data)
            yield slice(done, done + len(data)), data.to(self.dtype)
            done += len(data)
        if done < self.n:
            raise DomainError("pieces", expected=f"{self.n} rows, as before", got=str(done))

    def _pieces(self) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
        given_out: list[tuple[Any, Any, Any]] = []

        def input_data(data: Any, label: Any = None, weight: Any = None, **_: Any) -> None:
            given_out.append((data, label, weight))

        self.pieces.reset()
        while self.pieces.next(input_data):
            if len(given_out) != 1:
                expected = "one call of input_data in each call of next that does not return 0"
                raise DomainError("pieces", expected=expected, got=f"{len(given_out)} calls")
            data, label, weight = given_out.pop()
            X = floating_tensor("data", data)
            if X.ndim != 2 or not X.shape[1]:
                got = f"shape {tuple(X.shape)}"
                raise ShapeError("data", expected="shape (rows, d)", got=got)
            rest = {"label": label, "weight": weight}
            given = [None if v is None else converted_tensor(k, v) for k, v in rest.items()]
            for name, value in zip(rest, given, strict=True):
                if value is not None and value.shape != X.shape[:1]:
                    expected = f"shape ({len(X)},), one number per row of data"
                    raise ShapeError(name, expected=expected, got=f"shape {tuple(value.shape)}")
            if self.d and X.shape[1] != self.d:
                got = f"{X.shape[1]} after {self.d}"
                raise ShapeError("data", expected="pieces of one width", got=got)
            if len(X):
                yield X, given[0], given[1]


def _copy(part: Tensor | None) -> Tensor | None:
    """Return a copy: the object may use its memory again for the next piece."""
    return None if part is None else part.to(torch.float64, copy=True)


def _joined(name: str, parts: list[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    if known and len(known) < len(parts):
        expected = "one for every piece, or for none"
        raise DomainError(name, expected=expected, got=f"{len(known)} of {len(parts)}")
    return torch.cat(known) if known else None


def from_iterator(pieces: Pieces) -> IteratorRows:
    """Return the rows that an object with `next` and `reset` gives out (XGBoost's `DataIter`).

    `pieces.next(input_data)` calls `input_data(data=X, label=y, weight=w)` and returns 1, or
    returns 0 at the end; `pieces.reset()` begins again. The table is gone through once here, to
    count its rows; `y` and `weights` of the result are copies of what was given with them. So the
    object may fill the same arrays again for the next piece.

    >>> class Halves:
    ...     def reset(self):
    ...         self.k = 0
    ...     def next(self, input_data):
    ...         self.k += 1
    ...         if self.k <= 2:
    ...             input_data(data=torch.ones(2, 3), label=torch.full((2,), 1.0 * self.k))
    ...         return self.k <= 2
    >>> rows = from_iterator(Halves())
    >>> rows.n, rows.y.tolist()
    (4, [1.0, 1.0, 2.0, 2.0])
    """
    if not all(callable(getattr(pieces, name, None)) for name in ("next", "reset")):
        expected = "an object with the methods next and reset"
        raise DomainError("pieces", expected=expected, got=type(pieces).__name__)
    return IteratorRows(pieces)
