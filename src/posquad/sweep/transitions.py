"""Adaptive grids: trials are spent where a success rate crosses a level."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from posquad.core.errors import DomainError
from posquad.core.ranges import tiny
from posquad.sweep.crossing import Crossing, crossing
from posquad.sweep.grid import MOST_CELLS, Grid, Known, Parameters, cell_text, product, require_grid

__all__ = ["TRIAL", "Transition", "transition"]

TRIAL = "trial"
"""Name of the parameter that numbers the repetitions of a cell."""

_COARSE = 5  # values of the first round
_ASIDE = 0.85  # a round places its trials at the crossing, and where the logit is this far from
#     it on either side (rates 0.3 and 0.7 for the target 0.5), which gives the slope
_GROWTH = 1 / 3  # a round has at least this share of the trials so far, so rounds are few


@lru_cache(maxsize=2**14)
def _crossing(
    x: tuple[float, ...], hits: tuple[float, ...], counts: tuple[int, ...], target: float
) -> Crossing:
    """Return `crossing`; the rounds of a line are followed again whenever results arrive."""
    return crossing(x, hits, counts, target=target)


class Transition(Grid):
    """The adaptive grid that `transition` returns."""

    adaptive = True

    def __init__(
        self,
        axis: str,
        values: tuple[float, ...],
        measure: str,
        *,
        over: Grid | None,
        target: float,
        width: float,
        trials: int,
        limit: int,
    ) -> None:
        self.axis, self.values, self.measure, self.over = axis, values, measure, over
        self.target, self.width, self.trials, self.limit = target, width, trials, limit

    @property
    def most(self) -> int:
        return self.limit * (self.over.most if self.over else 1)

    @property
    def names(self) -> tuple[str, ...]:
        return (*(self.over.names if self.over else ()), self.axis, TRIAL)

    def cells(self, known: Known) -> Iterator[Parameters]:
        # Lines take turns, so that many workers are busy although a round waits for the last one.
        lines = [self._line(line, known)[0] for line in self.lines()]
        for position in range(max(map(len, lines))):
            yield from (line[position] for line in lines if position < len(line))

    def lines(self) -> Iterator[Parameters]:
        """Yield the parameters of each line along the axis."""
        yield from self.over.cells({}) if self.over else [{}]

    def crossing(self, line: Mapping[str, Any], known: Known) -> Crossing | None:
        """Return the crossing of a line so far; None before its first round is complete."""
        return self._line(line, known)[1]

    def _line(self, line: Mapping[str, Any], known: Known) -> tuple[list[Parameters], Any]:
        """Follow the rounds of a line as far as results are known."""
        planned = dict.fromkeys(self.values, 0)
        hits, counts = dict.fromkeys(self.values, 0.0), dict.fromkeys(self.values, 0)
        cells: list[Parameters] = []
        places = np.unique(np.linspace(0, len(self.values) - 1, _COARSE).round().astype(int))
        following = {self.values[k]: self.trials for k in places}
        found = None
        while following:
            for value, extra in following.items():
                for trial in range(planned[value], planned[value] + extra):
                    cell = {**line, self.axis: value, TRIAL: trial}
                    cells.append(cell)
                    text = cell_text(cell)
                    if text not in known:
                        counts[value] = -MOST_CELLS * self.trials  # the round is not complete
                    elif (result := known[text]) is not None:  # a failed cell is no trial
                        hits[value] += self._success(result)
                        counts[value] += 1
                planned[value] += extra
            if min(counts.values()) < 0:
                break
            used = [value for value in self.values if counts[value]]
            if len(used) < 2:  # nearly every cell failed
                break
            found = _crossing(
                tuple(used),
                tuple(hits[v] for v in used),
                tuple(counts[v] for v in used),
                self.target,
            )
            following = {} if self._ended(found, len(cells)) else self._round(found, len(cells))
        return cells, found

    def _success(self, result: Mapping[str, float]) -> float:
        """Return the share of successes of one cell, or refuse what is none."""
        if not 0 <= result.get(self.measure, -1) <= 1:
            expected = f"a result {self.measure!r} of 1 for a success and 0 for a failure"
            got = ", ".join(f"{name} = {value:g}" for name, value in result.items())
            raise DomainError("measure", expected=expected, got=got)
        return result[self.measure]

    def _ended(self, found: Crossing, used: int) -> bool:
        return used >= self.limit or (found.bracketed and found.width <= self.width)

    def _round(self, found: Crossing, used: int) -> dict[float, int]:
        """Return the trials of the next round, by value."""
        size = min(max(3 * self.trials, round(_GROWTH * used)), self.limit - used)
        # Trials spread over the interval while that is wider than the transition.
        aside = max(_ASIDE / max(abs(found.slope), tiny()), found.width / 4)
        values, following = np.array(self.values), dict[float, int]()
        for k, wanted in enumerate((found.value, found.value - aside, found.value + aside)):
            value = self.values[int(np.abs(values - wanted).argmin())]
            following[value] = following.get(value, 0) + size // 3 + (k < size % 3)
        return {value: extra for value, extra in following.items() if extra}


def transition(
    axis: str,
    values: Iterable[float],
    *,
    measure: str,
    width: float,
    target: float = 0.5,
    over: Grid | None = None,
    trials: int = 8,
    limit: int = 2000,
) -> Transition:
    """Return a grid that spends its trials where the rate of `measure` crosses `target`.

    Each line of the grid `over` starts with `trials` trials at five values. Rounds of further
    trials follow near the crossing, until the 95% interval of `posquad.sweep.crossing.crossing` is
    at most `width` wide and Wilson intervals show rates below and above the target, or until the
    line has used `limit` trials. The parameter `trial` numbers the trials of a cell.

    Args:
        axis: name of the parameter along which the rate changes.
        values: values of this parameter that may be used, increasing.
        measure: name of the result that is 1 for a success and 0 for a failure.
        width, target, trials, limit: see above.
        over: grid of the other parameters; None if there is none.

    >>> grid = transition("alpha", [0.1, 0.2, 0.3, 0.4], measure="fits", width=0.05, trials=2)
    >>> grid.names, len(list(grid.cells({})))
    (('alpha', 'trial'), 8)
    """
    if over is not None:
        require_grid("over", over)
    for name, value in {"width": width, "target": target}.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DomainError(name, expected="a number", got=repr(value))
    for name, value in {"trials": trials, "limit": limit}.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise DomainError(name, expected="an integer", got=repr(value))
    for name, value in {"axis": axis, "measure": measure}.items():
        if not isinstance(value, str):
            raise DomainError(name, expected="a name", got=repr(value))
    taken = (TRIAL, *(over.names if over else ()))
    if axis in taken or taken.count(TRIAL) > 1:
        raise DomainError("axis", expected="a name that is no other parameter", got=repr(axis))
    numbers = tuple(cell[axis] for cell in product(**{axis: values}).cells({}))
    if len(numbers) < 2 or any(isinstance(v, str | bool) or v >= w for v, w in pairwise(numbers)):
        raise DomainError(axis, expected="two or more increasing numbers", got=f"{numbers[:5]}")
    if not (0 < target < 1):
        raise DomainError("target", expected="a rate between 0 and 1", got=str(target))
    if not width > 0:
        raise DomainError("width", expected="a positive number", got=str(width))
    if not 1 <= trials <= limit:
        raise DomainError("trials", expected=f"from 1 to limit = {limit}", got=str(trials))
    if limit * (over.most if over else 1) > MOST_CELLS:
        raise DomainError("limit", expected=f"at most {MOST_CELLS:,} cells", got=str(limit))
    return Transition(
        axis, numbers, measure, over=over, target=target, width=width, trials=trials, limit=limit
    )
