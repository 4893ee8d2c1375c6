"""Adaptive grids: what they cost, what they find, and that order does not matter."""

from __future__ import annotations

import hashlib
import math
import random
from statistics import median

import pytest

from posquad.core.errors import DomainError
from posquad.sweep import product, transition
from posquad.sweep.crossing import crossing
from posquad.sweep.grid import MOST_CELLS, cell_text

VALUES = [round(0.05 + 0.01 * k, 2) for k in range(56)]


def success(cell, seed=0, centre=0.25, scale=0.015):
    """A trial whose success rate falls from 1 to 0 around the centre."""
    digest = hashlib.sha256(f"{seed} {cell_text(cell)}".encode()).hexdigest()
    return int(int(digest[:12], 16) / 16**12 < 1 / (1 + math.exp((cell["x"] - centre) / scale)))


def followed(grid, answer, shuffle=None):
    """Compute what a grid asks for until it asks for nothing more."""
    known = {}
    while True:
        new = [cell for cell in grid.cells(known) if cell_text(cell) not in known]
        if not new:
            return known
        if shuffle is not None:
            shuffle.shuffle(new)
            new = new[: max(1, len(new) // 2)]
        known |= {cell_text(cell): answer(cell) for cell in new}


def cells_of_the_full_grid(seed, width):
    """Fewest cells of a grid with equally many trials at every value that reaches the width."""
    hits, trials, following = dict.fromkeys(VALUES, 0), 0, 10
    while True:
        for x in VALUES:
            hits[x] += sum(success({"x": x, "trial": k}, seed) for k in range(trials, following))
        trials, following = following, following + 3
        found = crossing(VALUES, list(hits.values()), [trials] * len(VALUES))
        if found.bracketed and found.width <= width:
            return trials * len(VALUES)


def test_a_fifth_of_the_cells_of_the_full_grid_suffices():
    ratios, covered = [], 0
    for seed in range(4):
        grid = transition("x", VALUES, measure="ok", width=0.01, trials=4)
        known = followed(grid, lambda cell, seed=seed: {"ok": success(cell, seed)})
        found = grid.crossing({}, known)
        assert found.bracketed
        assert found.width <= 0.01
        covered += found.low - 0.002 <= 0.25 <= found.high + 0.002
        ratios.append(cells_of_the_full_grid(seed, 0.01) / len(known))
    assert median(ratios) >= 5
    assert covered >= 3


def test_the_cells_do_not_depend_on_the_order_of_the_results():
    grid = transition("x", VALUES, measure="ok", width=0.02, over=product(line=[1, 2]))
    one = followed(grid, lambda cell: {"ok": success(cell)})
    two = followed(grid, lambda cell: {"ok": success(cell)}, shuffle=random.Random(0))
    assert one == two
    assert {cell["line"] for cell in grid.cells(one)} == {1, 2}


def test_failed_cells_are_no_trials_and_the_limit_is_kept():
    grid = transition("x", VALUES, measure="ok", width=1e-6, trials=4, limit=60)
    known = followed(grid, lambda cell: None if cell["trial"] % 2 else {"ok": success(cell)})
    assert len(known) == 60 == grid.most
    assert grid.crossing({}, known).trials == sum(result is not None for result in known.values())


def test_a_rate_that_never_crosses_uses_its_limit_and_says_so():
    grid = transition("x", VALUES, measure="ok", width=0.01, trials=4, limit=50)
    known = followed(grid, lambda cell: {"ok": 1})
    assert len(known) == 50
    assert not grid.crossing({}, known).bracketed


def test_two_values_are_enough():
    grid = transition("x", [0.0, 1.0], measure="ok", width=0.5, trials=4, limit=200)
    known = followed(grid, lambda cell: {"ok": int(cell["x"])})
    found = grid.crossing({}, known)
    assert found.bracketed
    assert 0 < found.value < 1
    assert found.width <= 0.5


def test_a_line_of_which_one_value_succeeds_ends_without_a_crossing():
    grid = transition("x", VALUES, measure="ok", width=0.01, trials=4)
    known = followed(grid, lambda cell: {"ok": 1} if cell["x"] == VALUES[0] else None)
    assert len(known) == 20  # the first round
    assert grid.crossing({}, known) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"values": [1.0]}, "two or more increasing"),
        ({"values": [2.0, 1.0]}, "two or more increasing"),
        ({"values": ["a", "b"]}, "two or more increasing"),
        ({"width": 0.0}, "a positive number"),
        ({"target": 1.5}, "between 0 and 1"),
        ({"trials": 0}, "from 1 to limit"),
        ({"limit": 10**9}, "at most 10,000,000 cells"),
        ({"axis": "trial"}, "no other parameter"),
        ({"over": product(x=[1])}, "no other parameter"),
        ({"over": product(trial=[1])}, "no other parameter"),
        ({"over": 5}, "over: expected a grid"),
        ({"width": "0.1"}, "width: expected a number"),
        ({"target": None}, "target: expected a number"),
        ({"trials": 2.5}, "trials: expected an integer"),
        ({"limit": True}, "limit: expected an integer"),
        ({"axis": 3}, "axis: expected a name"),
        ({"measure": None}, "measure: expected a name"),
    ],
)
def test_bad_transitions_are_refused(options, words):
    given = {"axis": "x", "values": VALUES, "measure": "ok", "width": 0.1} | options
    axis, values = given.pop("axis"), given.pop("values")
    with pytest.raises(DomainError, match=words):
        transition(axis, values, **given)


def test_all_lines_together_have_at_most_the_cells_of_a_grid():
    def grid(limit, over=None):
        return transition("x", VALUES, measure="ok", width=0.1, limit=limit, over=over)

    assert grid(MOST_CELLS).most == MOST_CELLS
    three = product(line=[1, 2, 3])
    assert grid(MOST_CELLS // 3, three).most == MOST_CELLS // 3 * 3
    for limit, over in ((MOST_CELLS + 1, None), (MOST_CELLS // 3 + 1, three)):
        with pytest.raises(DomainError, match="limit: expected at most 10,000,000 cells"):
            grid(limit, over)


@pytest.mark.parametrize("result", [{"found": 1}, {"ok": 2.5}, {"ok": -1}])
def test_a_result_that_is_no_success_or_failure_is_refused(result):
    grid = transition("x", VALUES, measure="ok", width=0.1)
    with pytest.raises(DomainError, match="measure: expected a result 'ok' of 1 for a success"):
        followed(grid, lambda cell: result)
