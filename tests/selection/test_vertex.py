"""Vertices of linear programs: units, bases, rounding and refinement, by hand and by SciPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from posquad.selection import _vertex
from posquad.selection._vertex import Program, Vertex, optimal_vertex, scaled_program

EPS = 2.0**-52


def program_of(b, v, c):
    return Program(np.array(b, float), np.array(v, float), np.array(c, float), EPS)


def vertex_of(**changes):
    zero = np.zeros(3)
    values = dict.fromkeys(("x", "rounding", "slack", "slack_rounding"), zero)
    values |= {"misfit": np.zeros(2), "dual": np.zeros(2)}
    return Vertex(**(values | {k: np.array(v, float) for k, v in changes.items()}))


# What a vertex says of itself.


def test_coordinates_and_slacks_are_compared_with_their_rounding():
    found = vertex_of(
        x=[1e-3, 1e-3, -1.0], rounding=[1e-3, 0.9e-3, 0.0],
        slack=[1e-3, 1e-3, -1.0], slack_rounding=[1e-3, 0.9e-3, 0.0],
    )  # fmt: skip
    assert found.positive.tolist() == [1]
    assert found.tight.tolist() == [0, 2]


def test_violations_are_those_beyond_rounding():
    none = vertex_of(x=[-1e-3, 2.0, 0.0], rounding=[1e-3, 0.0, 0.0])
    assert (none.primal_violation, none.dual_violation) == (0, 0)
    some = vertex_of(x=[-2e-3, -5e-3, 0.0], rounding=[1e-3, 0.0, 0.0], misfit=[0.0, -4e-3])
    assert some.primal_violation == 5e-3
    assert vertex_of(misfit=[0.0, -4e-3]).primal_violation == 4e-3
    slack = vertex_of(slack=[-1e-3, -3e-3, 7.0], slack_rounding=[1e-3, 1e-3, 0.0])
    assert slack.dual_violation == 3e-3


def test_a_violation_is_magnified_to_a_hundred_tolerances():
    assert _vertex._magnification(1e-12) == pytest.approx(1e4)
    assert _vertex._magnification(0.0) == 1


def test_the_solution_on_positive_coordinates():
    """Rows of very different size: `x_1 + x_2 = 3`, `1e8 x_1 = 1e8`."""
    program = program_of([[1, 1, 1], [1e8, 0, 1]], [3, 1e8], [1, 1, 1])
    near = vertex_of(x=[1.0 + 1e-9, 2.0, 1e-30], rounding=[1e-15, 1e-15, 1e-15])
    np.testing.assert_allclose(near.on_positive(program), [1, 2, 0], rtol=1e-15)
    nothing = vertex_of(x=[0.0, 0.0, 0.0])
    np.testing.assert_array_equal(nothing.on_positive(program), 0)


# Units.


def test_scaling_is_exact_and_reversible():
    rng = np.random.default_rng(0)
    b = rng.standard_normal((2, 4)) * np.array([[1e-6], [1e5]]) * np.array([1.0, 1e4, 1e-7, 3.0])
    x = rng.uniform(1, 2, 4) * [1.0, 1e-4, 1e7, 1.0]
    y, d = b @ x, np.array([1.0, 2e6, 3e-5, 1.0])
    program, units = scaled_program(b, y, d, EPS)
    for values in (units.row, units.column, [units.right, units.price]):
        np.testing.assert_array_equal(np.frexp(values)[0], 0.5)  # powers of two
    np.testing.assert_array_equal(program.b, units.row[:, None] * b * units.column)
    np.testing.assert_array_equal(program.v * units.right, units.row * y)
    np.testing.assert_array_equal(program.c * units.price, d * units.column)
    assert 1 <= np.abs(program.v).max() < 2
    assert 1 <= np.median(program.c) < 2
    assert np.all(np.abs(program.b).max(axis=1) < 2)
    assert np.all(np.abs(program.b).max(axis=1) >= 1)
    inside = rng.uniform(1, 2, 4)
    np.testing.assert_allclose(
        b @ units.point(inside), program.b @ inside * units.right / units.row
    )
    lam = rng.standard_normal(2)
    slack = program.c - program.b.T @ lam
    np.testing.assert_allclose(units.slack(slack), d - b.T @ units.dual(lam), rtol=1e-9)


def test_geometric_units_of_a_product_are_its_inverse():
    """Entries `r_i c_j` are scaled to exactly one; zeros are left out."""
    b = np.outer([2.0**-7, 2.0**3], [2.0**5, 1.0, 2.0**-9])
    row, column = _vertex._geometric_units(b)
    np.testing.assert_array_equal(row[:, None] * b * column, 1)
    b[0, 1] = 0
    row, column = _vertex._geometric_units(b)
    scaled = row[:, None] * b * column
    np.testing.assert_array_equal(scaled[b != 0], 1)


def test_powers_of_two_at_or_below():
    found = _vertex._power_of_two(np.array([1.0, 1.99, 2.0, 0.75]))
    assert found.tolist() == [1.0, 1.0, 2.0, 0.5]


# Bases.


def test_columns_above_their_bound_come_first():
    b = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    every = np.ones(3, bool)
    assert _vertex._basis(b, np.array([0.0, 5.0, 1.0]), every).tolist() == [1, 2]
    assert _vertex._basis(b, np.array([5.0, 0.0, 1.0]), every).tolist() == [0, 2]
    # Columns that are not tied are left out; the basis may then be smaller.
    assert _vertex._basis(b, np.array([5.0, 0.0, 1.0]), every & [True, True, False]).tolist() == [0]
    # Of dependent columns one is taken; more than the rows are never taken.
    square = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    assert len(_vertex._basis(square, np.array([1.0, 1.0, 1.0]), every)) == 2
    assert _vertex._basis(square, np.array([1.0, 0.0, 1.0]), every).tolist() == [0, 2]
    # Above the bound by a billionth of the largest or less is at the bound.
    assert _vertex._basis(b, np.array([5.0, 4e-9, 1.0]), every).tolist() == [0, 2]
    assert _vertex._basis(b, np.array([2e-9, 1.1e-8, 10.0]), every).tolist() == [1, 2]


def test_basic_solution_and_its_rounding_by_hand():
    """`x_1 = 2`, `2 x_2 = 6`; prices 1 and 4 give the dual (1, 2) and the slack 7 - 3."""
    program = program_of([[1, 0, 1], [0, 2, 1]], [2, 6], [1, 4, 7])
    found = _vertex._basic_solution(program, np.array([0, 1]), np.zeros(2))
    np.testing.assert_allclose(found.x, [2, 3, 0])
    np.testing.assert_allclose(found.dual, [1, 2])
    np.testing.assert_allclose(found.slack, [0, 0, 4], atol=1e-15)
    np.testing.assert_array_equal(found.misfit, 0)
    # 4 eps |M^-1| (|M||x| + |v|) = 4 eps (4, 12 / 2)
    np.testing.assert_allclose(found.rounding, 4 * EPS * np.array([4, 6, 0]))
    # c + |b|'|dual| + |M^-1 b|' (|M|'|dual| + prices), with M^-1 b = (1, 0, 1; 0, 1, 1/2)
    carried = np.array([2, 8, 2 + 8 / 2])
    expected = np.array([1, 4, 7]) + np.array([1, 4, 3]) + carried
    np.testing.assert_allclose(found.slack_rounding, 4 * EPS * expected)


def test_a_misfit_beyond_rounding_is_kept():
    program = program_of([[1, 1], [1, 2]], [1, 1.5], [1, 1])
    found = _vertex._basic_solution(program, np.array([0]), np.zeros(2))
    assert np.abs(found.misfit).max() == pytest.approx(0.25)
    assert found.primal_violation == pytest.approx(0.25)


def best_vertex(program):
    """The least cost over all basic solutions, by enumeration."""
    n, m = program.b.shape
    costs = []
    for basis in itertools.combinations(range(m), n):
        M = program.b[:, basis]
        if abs(np.linalg.det(M)) > 1e-9:
            x = np.linalg.solve(M, program.v)
            if (x >= -1e-12).all():
                costs.append(program.c[list(basis)] @ x)
    return min(costs)


@pytest.mark.parametrize("seed", range(5))
def test_the_vertex_is_the_best_of_all(seed):
    g = np.random.default_rng(seed)
    b = g.standard_normal((2, 5))
    program = program_of(b, b @ g.uniform(0, 1, 5), g.uniform(0.5, 2, 5))
    found = optimal_vertex(program)
    assert isinstance(found, Vertex)
    assert program.c @ found.x == pytest.approx(best_vertex(program), rel=1e-12)
    assert program.v @ found.dual == pytest.approx(program.c @ found.x, rel=1e-12)
    assert found.primal_violation == found.dual_violation == 0


@pytest.mark.parametrize("tiny", [1e-11, 1e-13])
def test_what_the_solver_cannot_see_is_refined(tiny):
    """`x_1 + x_2 = 1`, `x_1 - x_2 = 1 - 2 tiny` at prices that differ by `tiny`."""
    program = program_of([[1, 1, 1], [1, -1, 1 - 2 * tiny]], [1, 1 - 2 * tiny], [1, 1, 1 - tiny])
    found = optimal_vertex(program)
    assert isinstance(found, Vertex)
    np.testing.assert_allclose(program.b @ found.x, program.v, rtol=1e-15)
    assert (found.x >= -found.rounding).all()
    assert found.positive.tolist() == [2]  # cheaper by `tiny` than x = (1 - tiny, tiny, 0)


def test_an_infeasible_program_says_why():
    told = optimal_vertex(program_of([[1, 1]], [-1], [1, 1]))
    assert isinstance(told, str)
    assert "infeasible" in told.lower()
