"""Groups of small problems of one shape whose truth is known: the families of the corpus.

Problems with two solutions are those of `recovery_designs` and `functions`, generic rows those of
`recovery_problems`. The other truths are made here; each family says why its truth holds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from adversarial.functions import Function, drawn_function, twin, unknowns
from adversarial.recovery import narrow_rows
from adversarial.recovery_designs import DESIGNS, Design
from adversarial.recovery_problems import GENERIC_ROWS, Rng, drawn, normal, responses, seeded
from posquad.geometry import dimension

MEMBERS = 8  # problems of a group, which is also asked as a batch


class Case(NamedTuple):
    """Samples, and the one function that has these responses where the truth is "unique"."""

    X: np.ndarray
    y: np.ndarray
    truth: Function | None = None


@dataclass(frozen=True)
class Group:
    """Problems of one shape and truth; `rank` is that of the planted function.

    Where there are several solutions, `several` is the least rank of which two are known; 0 is the
    rank itself.
    """

    truth: str
    rank: int
    cases: list[Case]
    terms: str = "none"
    several: int = 0


Maker = Callable[[Rng], Group]


class Family(NamedTuple):
    """Groups of one kind, and how many of them the full corpus has."""

    make: Maker
    groups: int


def group_of(family: str, seed: int) -> Group:
    """Return the group of a family and a seed."""
    return FAMILIES[family].make(seeded(seed, f"corpus {family}"))


def planted(X: np.ndarray, U: np.ndarray) -> Case:
    """Return the case of the form UU'; its responses are rounded from extended precision."""
    return Case(X, responses(X, U), Function(U, np.zeros(len(U)), 0.0))


def shape(rng: Rng, *, least: int = 1) -> tuple[int, int]:
    """Return a dimension d from 2 to 10 and a rank from `least` to 3."""
    d = int(rng.integers(max(2, least), 11))
    return d, int(rng.integers(least, min(d, 3) + 1))


def rows_number(rng: Rng, p: int, most: float = 3.0) -> int:
    """Return a number of rows from p + 1 to `most` p."""
    return int(rng.integers(p + 1, max(p + 2, int(most * p) + 1)))


# One solution: for almost every draw of generic rows, from p + 1 of them on.


def generic(rows: str, rng: Rng) -> Group:
    """Return problems of generic rows and a planted form of rank 1 to 3."""
    d, r = shape(rng)
    n = rows_number(rng, dimension(d, r))
    draw = GENERIC_ROWS[rows]
    return Group("unique", r, [planted(draw(rng, n, d), normal(rng, d, r)) for _ in range(MEMBERS)])


def full_rank(rng: Rng) -> Group:
    """Return problems of rank d: d(d+1)/2 generic rows determine every symmetric matrix."""
    d = int(rng.integers(2, 7))
    p = d * (d + 1) // 2
    n = int(rng.integers(p, 2 * p + 1))
    planted_rank = int(rng.integers(1, d + 1))
    cases = [planted(normal(rng, n, d), normal(rng, d, planted_rank)) for _ in range(MEMBERS)]
    return Group("unique", d, cases)


def generic_function(terms: str, rng: Rng) -> Group:
    """Return problems of Gaussian rows and one function with other terms."""
    d, r = shape(rng)
    n = rows_number(rng, unknowns(d, r, terms))

    def make() -> Case:
        X, function = normal(rng, n, d), drawn_function(rng, d, r, terms)
        return Case(X, function(X), function)

    return Group("unique", r, [make() for _ in range(MEMBERS)], terms)


# Two solutions.


def twins(design: Design, rng: Rng) -> Group:
    """Return problems of a design, each with two solutions of one rank."""
    make = design(rng)
    found = [drawn(make) for _ in range(MEMBERS)]
    return Group("twin", found[0].U.shape[1], [Case(one.X, one.y) for one in found])


def twin_functions(terms: str, rng: Rng) -> Group:
    """Return problems that two functions with other terms reproduce."""
    d, r = shape(rng)
    n = rows_number(rng, unknowns(d, r, terms))
    cases: list[Case] = []
    while len(cases) < MEMBERS:
        with suppress(ValueError):  # the two functions are too close to each other
            zero = bool(rng.integers(2))
            one = twin(int(rng.integers(2**31)), d, r, terms, n, through_zero=zero)
            cases.append(Case(one.X, one.y))
    return Group("twin", r, cases, terms)


# A direction is free.


def too_few_rows(rng: Rng) -> Group:
    """Return problems of fewer than p Gaussian rows.

    The derivative of `U -> A(UU')` has rank n < p there, so that a surface of U has the responses.
    """
    d, r = shape(rng, least=2)
    n = int(rng.integers(max(1, d - 2), dimension(d, r)))
    cases = [planted(normal(rng, n, d), normal(rng, d, r)) for _ in range(MEMBERS)]
    return Group("continuum", r, [case._replace(truth=None) for case in cases])


def subspace(rng: Rng) -> Group:
    """Return problems of rows in a subspace, outside of which Q is free."""
    d, r = shape(rng)
    n = rows_number(rng, dimension(d, r))
    cases = [planted(narrow_rows(rng, n, d), normal(rng, d, r)) for _ in range(MEMBERS)]
    return Group("continuum", r, [case._replace(truth=None) for case in cases])


def sign_columns(rng: Rng) -> Group:
    """Return problems with `x_1^2 = x_2^2 = 1` and a factor of which e_1 and e_2 are columns.

    A part of `e_1e_1'` may be exchanged for `e_2e_2'`; the whole of either leaves rank r - 1.
    """
    d, r = shape(rng, least=2)
    n = rows_number(rng, dimension(d, r))

    def make() -> Case:
        X, U = normal(rng, n, d), normal(rng, d, r)
        X[:, :2] = rng.choice([-1.0, 1.0], (n, 2))
        U[:, :2] = np.eye(d)[:, :2] * rng.uniform(0.5, 2, 2)
        return Case(X, responses(X, U))

    return Group("continuum", r, [make() for _ in range(MEMBERS)], several=r - 1)


def replaced_form(terms: str, rng: Rng) -> Group:
    """Return problems with a column of two values, whose square the other terms replace.

    e_1 is a column of the factor, of any length: with a constant, `x_1^2 = 1`; with linear terms,
    `x_1^2 = x_1`.
    """
    d, r = shape(rng)
    n = rows_number(rng, unknowns(d, r, terms), 4.0)

    def make() -> Case:
        X, function = normal(rng, n, d), drawn_function(rng, d, r, terms)
        X[:, 0] = rng.integers(0, 2, n) if terms == "linear" else rng.choice([-1.0, 1.0], n)
        function.U[:, 0] = np.eye(d)[0] * rng.uniform(0.5, 2)
        return Case(X, function(X))

    return Group("continuum", r, [make() for _ in range(MEMBERS)], terms)


# Noise: with more than p rows, no function of the rank reproduces the responses.


def noisy(rows: str, terms: str, rng: Rng) -> Group:
    """Return problems with normal noise of 0.001 to 0.3 standard deviations of the responses."""
    d, r = shape(rng)
    n = rows_number(rng, unknowns(d, r, terms), 4.0)
    level = 10.0 ** rng.uniform(-3, np.log10(0.3))

    def make() -> Case:
        X, function = GENERIC_ROWS[rows](rng, n, d), drawn_function(rng, d, r, terms)
        y = function(X)
        return Case(X, y + level * np.std(y) * normal(rng, n))

    return Group("noisy", r, [make() for _ in range(MEMBERS)], terms)


# No minimum: the least squares over the closure of the model are outside of the model.


def column_of_ones(rng: Rng) -> Group:
    """Return problems of (1, x), with a constant.

    The model is the parabolas with a positive coefficient of x^2, and the constants. If the best
    parabola has none, or a negative one, the least error is that of a line.
    """
    n, line = int(rng.integers(8, 40)), bool(rng.integers(2))

    def make() -> Case:
        x = rng.uniform(0, 3, n)
        y = rng.normal() + rng.choice([-1, 1]) * rng.uniform(0.5, 3) * x
        y = y if line else y - rng.uniform(0.2, 2) * x**2 + 0.1 * normal(rng, n)
        return Case(np.column_stack([np.ones(n), x]), y)

    def holds(case: Case) -> bool:
        square, slope = np.polyfit(case.X[:, 1], case.y, 2)[:2]
        tilted = abs(np.polyfit(case.X[:, 1], case.y, 1)[0]) > 0.1
        return tilted and (square < -0.01 or (line and abs(slope) > 0.1))

    return Group("no minimum", 1, _first(make, holds), "constant")


def two_valued_column(rng: Rng) -> Group:
    """Return problems of (z, x) with z 0 or 1, and linear terms.

    `(az + bx)^2 = a^2 z + 2ab zx + b^2 x^2`: any interaction zx, but with a positive x^2. If the
    best coefficient of x^2 is zero or negative, the least error is that of an interaction alone.
    """
    n, exact = int(rng.integers(20, 60)), bool(rng.integers(2))

    def make() -> Case:
        z, x = rng.integers(0, 2, n).astype(float), normal(rng, n)
        y = rng.choice([-1, 1]) * rng.uniform(1, 4) * z * x + rng.normal() * x + rng.normal()
        y = y if exact else y - rng.uniform(0.2, 2) * x**2 + 0.1 * normal(rng, n)
        return Case(np.column_stack([z, x]), y)

    def holds(case: Case) -> bool:
        z, x = case.X.T
        columns = np.column_stack([z * x, z, x, np.ones(n), x**2])
        product = np.linalg.lstsq(columns[:, :4], case.y)[0][0]
        square = np.linalg.lstsq(columns, case.y)[0][4]
        return abs(product) > 0.5 and (square < -0.01 or exact)

    return Group("no minimum", 1, _first(make, holds), "linear")


def _first(make: Callable[[], Case], holds: Callable[[Case], bool]) -> list[Case]:
    """Return as many cases as a group has, each of which has the property."""
    cases: list[Case] = []
    while len(cases) < MEMBERS:
        case = make()
        if holds(case):
            cases.append(case)
    return cases


TERMS = ("constant", "linear")

FAMILIES: dict[str, Family] = (
    {f"unique, {rows}": Family(partial(generic, rows), 70) for rows in GENERIC_ROWS}
    | {"unique, full rank": Family(full_rank, 70)}
    | {f"unique, {terms}": Family(partial(generic_function, terms), 50) for terms in TERMS}
    | {f"twin, {name}": Family(partial(twins, design), 22) for name, design in DESIGNS.items()}
    | {f"twin, {terms}": Family(partial(twin_functions, terms), 20) for terms in TERMS}
    | {
        "continuum, too few rows": Family(too_few_rows, 50),
        "continuum, subspace": Family(subspace, 50),
        "continuum, sign columns": Family(sign_columns, 50),
    }
    | {f"continuum, {terms}": Family(partial(replaced_form, terms), 20) for terms in TERMS}
    | {f"noisy, {rows}": Family(partial(noisy, rows, "none"), 40) for rows in GENERIC_ROWS}
    | {f"noisy, {terms}": Family(partial(noisy, "gaussian", terms), 20) for terms in TERMS}
    | {
        "no minimum, column of ones": Family(column_of_ones, 8),
        "no minimum, two-valued column": Family(two_valued_column, 8),
    }
)
