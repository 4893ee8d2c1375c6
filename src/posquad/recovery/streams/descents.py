"""Ended descents of a search, which a search that was killed does not repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from posquad.recovery.damped import Endpoint
from posquad.recovery.streams.checkpoint import Keeper, State

_PREFIX = "descent"
PHASE = "search"


class Descent(NamedTuple):
    """A descent, and what the search counts."""

    start: np.ndarray  # [k, r]
    end: Endpoint
    steps: int  # of the budget, after it
    least: float  # least loss so far
    history: np.ndarray  # relative residual at each of its steps


class Descents:
    """The descents of a search in order; those of an earlier process come from its state.

    All else in a search is cheap and repeated: a descent that begins at the same factor as the
    next known one ends where that one did.
    """

    def __init__(self, keeper: Keeper | None = None) -> None:
        self._keeper = keeper or Keeper()
        self._known = _from_state(self._keeper.state)
        self._used = 0

    def next(self, start: np.ndarray, run: Callable[[], Descent]) -> Descent:
        """Return the next descent, which begins at `start`: the known one, or else run it."""
        if self._used < len(self._known):
            if np.array_equal(self._known[self._used].start, start):
                self._used += 1
                return self._known[self._used - 1]
            del self._known[self._used :]  # a time limit ended the search elsewhere
        self._known.append(run())
        self._used += 1
        if self._keeper.due:
            self._save()
        return self._known[-1]

    def _save(self) -> None:
        numbers, arrays = dict(self._keeper.base[0]), dict(self._keeper.base[1])
        numbers["descents"] = [[d.end.loss, d.end.cosine, d.steps, d.least] for d in self._known]
        for k, each in enumerate(self._known):
            arrays |= {f"{_PREFIX}{k}.start": each.start, f"{_PREFIX}{k}.end": each.end.V}
            arrays[f"{_PREFIX}{k}.history"] = each.history
        self._keeper.save(PHASE, numbers, arrays)


def _from_state(state: State | None) -> list[Descent]:
    if state is None or state.phase != PHASE:
        return []
    known = []
    for k, (loss, cosine, steps, least) in enumerate(state.numbers["descents"]):
        start, V, history = (
            state.arrays[f"{_PREFIX}{k}.{name}"] for name in ("start", "end", "history")
        )
        known.append(Descent(start, Endpoint(V, loss, cosine), int(steps), least, history))
    return known
