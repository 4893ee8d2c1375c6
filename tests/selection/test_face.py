"""Faces of linear programs and proofs of infeasibility: their parts, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad.core.errors import InfeasibleError
from posquad.selection import _face, feasibility
from posquad.selection._vertex import Program, optimal_vertex

EPS = 2.0**-52


# Faces.


def test_ranks_are_relative_to_columns_of_length_one():
    assert _face.rank(np.zeros((3, 0))) == 0
    assert _face.rank(np.array([[1.0, 1e9], [0.0, 0.0]])) == 1
    assert _face.rank(np.array([[1.0, 0.0], [0.0, 1e-100]])) == 2
    for off, found in ((1e-11, 2), (1e-13, 1)):  # singular values sqrt(2) and off / sqrt(2)
        assert _face.rank(np.array([[1.0, 1.0], [0.0, off]])) == found


def test_columns_are_scaled_to_length_one():
    columns, size = _face._normalized(np.array([[3.0, 0.0], [4.0, 0.0]]))
    np.testing.assert_allclose(columns, [[0.6, 0.0], [0.8, 0.0]])
    np.testing.assert_allclose(size, [5.0, 0.0])


def test_parts_orthogonal_to_a_basis():
    """The basis e_1, e_1 + t e_2 of unit columns: singular values near sqrt(2) and t / sqrt(2)."""
    columns = np.array([[1.0], [1.0], [1.0]])
    across, condition = _face._orthogonal_parts(np.zeros((3, 0)), columns)
    np.testing.assert_array_equal(across, columns)
    assert condition == 1
    basis = np.array([[1.0, 1.0], [0.0, 1e-3], [0.0, 0.0]])
    across, condition = _face._orthogonal_parts(basis, columns)
    np.testing.assert_allclose(across, [[0.0], [0.0], [1.0]], atol=1e-12)
    assert condition == pytest.approx(2e3, rel=1e-3)


def test_the_largest_support():
    """`v_1 = v_2`, `v_3 = 0` and v_4 = -v_3: only the first two can be positive."""
    columns = np.array([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    assert _face._largest_support(columns).tolist() == [True, True, False, False]


def support(b, v, c):
    program = Program(np.array(b, float), np.array(v, float), np.array(c, float), EPS)
    vertex = optimal_vertex(program)
    return program, vertex, _face.face_support(program, vertex).tolist()


def test_faces_by_hand():
    assert support([[1, 1]], [1], [1, 2])[2] == [0]  # one solution
    assert support([[1, 1]], [1], [1, 1])[2] == [0, 1]  # a segment
    assert support([[1, 1, 0], [0, 0, 1]], [1, 0], [1, 1, 1])[2] == [0, 1]  # q_3 = 0
    # Tied, but it cannot grow: q_1 + q_2 = 1, q_1 - q_2 + q_3 = 1 with q_3 <= 0 wherever q_2 = 0.
    assert support([[1, 1, 0], [1, 1, 1]], [1, 1], [1, 1, 0.5])[2] == [0, 1]


def test_the_dual_vector_is_the_given_one_where_nothing_is_free():
    program, vertex, face = support([[1, 0], [0, 1]], [1, 1], [1, 2])
    found = _face.complementary_dual(program, vertex, np.array(face))
    np.testing.assert_allclose(found, vertex.dual)


def test_the_smallest_relative_slack_is_maximized():
    """q = (1, 0, 0): z_1 = 1 is tight; slacks (1 - z_2) / 1 and (2 + z_2) / 2 are equal at 0."""
    program, vertex, _ = support([[1, 0, 0], [0, 1, -1]], [1, 0], [1, 1, 2])
    found = _face.complementary_dual(program, vertex, np.array([0]))
    np.testing.assert_allclose(found, [1.0, 0.0], atol=1e-9)


# Proofs of infeasibility.


def checked(b, v, z):
    return feasibility._checked(np.array(b, float), np.array(v, float), np.array(z, float))


def test_a_vector_proves_that_nothing_solves_or_what_vanishes():
    """q_1 + q_2 = y_1 and q_1 = y_2, by z = (1, -1), whose products are (0, 1)."""
    b = [[1, 1], [1, 0]]
    z, forced = checked(b, [0.5, 1], [3, -3])
    assert forced == ()
    np.testing.assert_allclose(z, [1, -1])  # of largest entry one
    assert checked(b, [1, 1], [1, -1])[1] == (1,)  # y_1 = y_2: q_2 vanishes
    assert checked(b, [1, 0.5], [1, -1]) is None  # <z, y> > 0
    assert checked(b, [0.5, 1], [-1, 1]) is None  # a negative product
    assert checked(b, [0.5, 1], [0, 0]) is None


def test_products_that_are_nearly_zero_are_made_zero():
    """A product of 1e-9 is active: z is moved until it vanishes."""
    z, _ = checked([[1, 1], [1, 0]], [0.5, 1], [1, -1 + 1e-9])
    np.testing.assert_allclose(z.sum(), 0, atol=1e-15)
    assert checked([[1, 1], [1, 0]], [0.5, 1], [1, -1 - 1e-6]) is None


def test_doubt_is_twenty_roundings():
    """n = 1, z = 1, B = 1: `20 eps |v|` is the doubt about y'z."""
    b = [[1.0]]
    assert checked(b, [-1.0], [1.0])[1] == ()
    wide = np.array([[1.0, 1.0], [1.0, 0.0]])
    limit = 20 * 2 * EPS * np.sqrt(2) * np.sqrt(2)  # z = (1, -1), v near (1, 1)
    for share, proof in ((0.9, (1,)), (1.1, ())):
        assert checked(wide, [1 - share * limit, 1.0], [1, -1])[1] == proof


def test_a_zero_row_does_not_hide_a_proof():
    """`0 = 0` and `q_1 + q_2 = -1`: no q >= 0 solves the second row."""
    B = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    y = torch.tensor([0.0, -1.0], dtype=torch.float64)
    with pytest.raises(InfeasibleError) as raised:
        feasibility.require_strictly_feasible(B, y)
    z = raised.value.farkas
    assert bool((z @ B >= 0).all())
    assert float(z @ y) < 0
    feasibility.require_strictly_feasible(B, -y)
