"""The state of a fit to a stream of samples: its first rows, and then their moments."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from posquad.core.errors import DomainError
from posquad.estimator._model import Terms
from posquad.problems.moments import Moments, begin_moments
from posquad.problems.rebasing import extended
from posquad.recovery import MOMENT_MOST, kept_rows

_PREFIX = "stream."


class Stream:
    """Samples given so far: all rows while they are few, and their moments afterwards."""

    def __init__(self, d: int, terms: Terms, moments: Moments | None = None) -> None:
        self.d, self.moments = d, moments
        self.terms: Terms = terms
        self.narrow = False  # whether some of the rows held are in single precision
        self.held: list[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = []

    def add(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> None:
        """Add samples; `begun` and `compress` replace the rows when there are enough of them."""
        if self.moments is not None:
            self.moments = _with(self.moments, X, y, weights)
            return
        most = kept_rows(self.d, self.terms)
        many = len(y) + self._count > most
        if many and self.d > MOMENT_MOST:
            expected = f"at most {most} rows in all, or at most {MOMENT_MOST} columns, of a stream"
            raise DomainError("X", expected=expected, got=f"more rows of {self.d} columns")
        self.narrow |= np.float32 in (X.dtype, y.dtype)
        self.held.append((X.copy(), y.copy(), None if weights is None else weights.copy()))

    @property
    def _count(self) -> int:
        return sum(len(part) for _, part, _ in self.held)

    def begun(self) -> Moments | None:
        """Return moments of no samples that suit the rows held, if these are too many to keep."""
        if self.moments is not None or self._count <= kept_rows(self.d, self.terms):
            return None
        X, y, weights = self.samples()
        if weights is not None and not weights.any():
            return None  # no sample counts yet
        tensors = [None if a is None else torch.from_numpy(a) for a in (X, y, weights)]
        begun = begin_moments(*tensors, terms=self.terms)  # type: ignore[arg-type]
        begun.narrow = self.narrow
        return begun

    def compress(self, begun: Moments) -> None:
        """Replace the rows that are held by their moments."""
        # All at once: into which parts a saved stream was divided is not known any more.
        self.moments = _with(begun, *self.samples())
        self.held = []

    def samples(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return the rows that are held, their responses and weights."""
        X, y, w = zip(*self.held, strict=True)
        weights = None
        if any(part is not None for part in w):
            parts = [np.ones(len(b)) if a is None else a for a, b in zip(w, y, strict=True)]
            weights = np.concatenate(parts)
        return np.concatenate(X), np.concatenate(y), weights

    def weighted_samples(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return `samples`, at least one of which must have a positive weight."""
        X, y, weights = self.samples()
        if weights is not None and not weights.any():
            expected = "a positive weight before the first fit; refit=False only adds samples"
            raise DomainError("sample_weight", expected=expected, got="only zeros so far")
        return X, y, weights

    def to_store(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return what a file keeps: plain values, and arrays by name."""
        if self.moments is None:
            body: dict[str, Any] = {"terms": self.terms, "narrow": self.narrow}
            X, y, w = self.samples()
            arrays = {"X": X, "y": y} | ({} if w is None else {"weights": w})
        else:
            body, arrays = self.moments.to_store()
        return body, {f"{_PREFIX}{name}": array for name, array in arrays.items()}

    @classmethod
    def from_store(cls, d: int, body: dict[str, Any], arrays: dict[str, np.ndarray]) -> Stream:
        """Restore a stream; raise ValueError or LookupError if the parts do not fit together."""
        held = {k.removeprefix(_PREFIX): v for k, v in arrays.items() if k.startswith(_PREFIX)}
        terms = body["terms"]
        if terms not in ("none", "constant", "linear"):
            raise ValueError(f"{terms!r} are no terms of a model")
        stream = cls(d, terms)
        if "count" not in body:
            X, y, w = held["X"], held["y"], held.get("weights")
            _require_shape("X", X, (len(y), d))
            if w is not None:
                _require_shape("weights", w, y.shape)
            stream.held = [(X, y, w)]
            stream.narrow = bool(body.get("narrow", np.float32 in (X.dtype, y.dtype)))
            return stream
        stream.moments = Moments.from_store(d, body, held)
        return stream


def _with(moments: Moments, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> Moments:
    moments.narrow |= np.float32 in (X.dtype, y.dtype)
    w = None if weights is None else torch.from_numpy(weights)
    return extended(moments, torch.from_numpy(X), torch.from_numpy(y), w)


def _require_shape(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != shape or array.dtype.kind != "f" or not np.isfinite(array).all():
        raise ValueError(f"{name} of the stream is not {shape} finite numbers")


def require_same(known: Terms, wanted: Terms) -> None:
    """Refuse to go on with other terms than those of the first samples."""
    if known != wanted:
        expected = f"the terms of the first call of partial_fit, {known}"
        raise DomainError("fit_intercept, linear", expected=expected, got=wanted)
