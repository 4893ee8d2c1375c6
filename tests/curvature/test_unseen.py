"""Directions without curvature: thresholds, rounding and projections, on numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad import LeastSquares, PopulationRisk, RankOne
from posquad.curvature import unseen
from posquad.curvature.eigen import flatten_block
from posquad.geometry.frames import Frame, frame
from posquad.geometry.population import population_lift
from support import normal, vector

EPS = 2.0**-52


def point_of(X, U, y=None):
    y = (X @ U).square().sum(-1) if y is None else y
    return unseen.working_point(LeastSquares(RankOne(X), y), U, frame("U", U), EPS)


# Thresholds.


def test_curvatures_are_zero_seen_or_uncertain():
    """With rounding 1e-10: zero up to it, seen beyond a hundred times of it."""
    values = vector(0.0, 1e-10, 1.01e-10, -1e-10, 1e-8, 1.01e-8, -1.01e-8, 1.0)
    zero, uncertain = unseen.classify_curvatures(values, vector(1.0)[0], vector(1e-10)[0])
    assert zero.tolist() == [True, True, False, True, False, False, False, False]
    assert uncertain.tolist() == [False, False, True, False, True, False, False, False]


def test_nothing_is_known_of_curvatures_where_rounding_is_coarse():
    """Rounding above a millionth of the largest curvature hides the kernel."""
    values = vector(0.0, 5.0)
    for rounding, coarse in ((4.9e-6, False), (5.1e-6, True)):
        zero, uncertain = unseen.classify_curvatures(values, vector(5.0)[0], vector(rounding)[0])
        assert zero.tolist() == [not coarse, False]
        assert uncertain.tolist() == [coarse, coarse]


def test_values_apart_from_the_rounding_of_the_largest():
    """`10 p eps` is the error of an eigenvalue; a hundred times that is apart."""
    bound = 100 * 10 * 7 * EPS * 3.0
    values = vector(0.99 * bound, -1.01 * bound, bound * 2)
    assert unseen.is_apart(values, vector(3.0)[0], 7).tolist() == [False, True, True]


@pytest.mark.parametrize("interpolating", [True, False])
def test_rounding_of_a_form_by_hand(rng, interpolating):
    """`10 p eps` of the scale, and that of U squared or of the gradient; d = 3, r = 2, p = 5."""
    U = torch.tensor([[2.0, 0.0], [0.0, 1e-6], [0.0, 0.0]], dtype=torch.float64)
    X = normal(rng, 12, 3)
    y = None if interpolating else torch.ones(12, dtype=torch.float64)
    point = point_of(X, U, y)
    assert bool(point.interpolating) is interpolating
    assert point.p == 5
    unit, scale, top = 10 * 5 * EPS, 7.0, 11.0
    extra = (unit * 2e6) ** 2 * scale if interpolating else unit * top / (4 * 1e-12)
    found = unseen.form_rounding(point, vector(scale)[0], vector(top)[0])
    assert float(found) == pytest.approx(unit * scale + extra, rel=1e-9)


# Interpolation.


def test_responses_agree_up_to_the_rounding_of_all_parts():
    """`||fitted - y|| <= 10 eps (||fitted|| + ||y|| + ||moved||)`, in any units."""
    eps = 1e-6
    for unit in (1.0, 1e200, 1e-200):
        y = unit * vector(3.0, 4.0)  # length 5
        moved = unit * vector(0.0, 10.0)
        limit = 10 * eps * (5 + 5 + 10) * unit
        for share, inside in ((0.99, True), (1.01, False)):
            fitted = y + share * limit * vector(0.8, -0.6)  # orthogonal to y: same length
            assert bool(unseen._is_rounding(fitted, y, moved, eps)) is inside
    zero = vector(0.0, 0.0)
    assert bool(unseen._is_rounding(zero, zero, zero, eps))


def test_moves_have_rows_as_long_as_those_of_the_factor(rng):
    u = normal(rng, 5, 3)
    moves = unseen._row_moves(u)
    assert moves.shape == (4, 5, 3)
    expected = u.abs().amax(-1, keepdim=True).expand(5, 3)
    for move in moves:
        torch.testing.assert_close(move.abs(), expected)
    signs = moves.sign()
    assert 0 < int((signs > 0).sum()) < signs.numel()
    assert len(signs.flatten(1).unique(dim=0)) == 4


def test_a_factor_is_the_target_up_to_ten_d_eps():
    U = torch.tensor([[2.0], [0.0], [1.0]], dtype=torch.float64)
    limit = 10 * 3 * EPS * 2.0
    for share, inside in ((0.9, True), (1.1, False)):
        moved = U.clone()
        moved[1] = share * limit
        assert bool(unseen._is_target(PopulationRisk(U), moved)) is inside


def test_the_gradient_of_the_population_is_left_out_at_the_target(rng):
    """At the target the Hessian is `4 [V S + U V'U + tr(U'V) U]`, elsewhere it has more."""
    U = normal(rng, 4, 2)
    V = normal(rng, 4, 2)
    for scale, inside in ((1.0, True), (1.5, False)):
        here = scale * U
        point = unseen.working_point(PopulationRisk(U), here, frame("U", here), EPS)
        assert bool(point.interpolating) is inside
        u = point.u
        curved = 4 * (V @ (u.mT @ u) + u @ (V.mT @ u) + (u * V).sum() * u)
        E = here @ here.mT - U @ U.mT
        rest = 2 * (2 * E @ V + E.trace() * V)
        torch.testing.assert_close(point.hessian(V), curved + (0 if inside else rest))
        assert point.measure is None


def test_measurements_at_the_rotated_factor(rng):
    X, U, D = normal(rng, 9, 4), normal(rng, 4, 2), normal(rng, 3, 4, 2)
    point = point_of(X, U)
    basis = frame("U", U)
    torch.testing.assert_close(point.u, basis.W * basis.s)
    torch.testing.assert_close(point.basis.P, torch.eye(2, dtype=torch.float64))
    expected = 2 * ((X @ point.u) * (X @ D)).sum(-1) / 9**0.5  # the differential of x'UU'x
    torch.testing.assert_close(point.measure(D), expected)
    moves = unseen._row_moves(point.u)
    changes = 2 * ((X @ moves)[:, None] * (X @ D)).sum(-1).abs() / 9**0.5
    torch.testing.assert_close(point.measure_change(D), changes.amax(0))


# Bases.


def test_orthonormal_combinations_span_the_columns(rng):
    D = normal(rng, 2, 6, 3)
    D[1, :, 1] = 0  # a zero column
    Q = unseen.orthonormal_combinations(D)
    for k, rank in ((0, 3), (1, 2)):
        columns = Q[k][:, :rank]
        torch.testing.assert_close(columns.mT @ columns, torch.eye(rank, dtype=torch.float64))
        assert not bool(Q[k][:, rank:].any())
        outside = D[k] - columns @ (columns.mT @ D[k])
        assert float(outside.abs().max()) < 1e-14
    first = D[0][:, D[0].norm(dim=0).argmax()]  # the longest column comes first
    torch.testing.assert_close(Q[0][:, 0], first / first.norm())


def test_small_rows_stay_accurate_relative_to_their_size():
    """The long column is (1, 1e-12), so the short one loses its first row without cancellation."""
    D = torch.tensor([[1.0, 1e-12], [1e-12, 3e-24], [0.0, 1e-30]], dtype=torch.float64)
    Q = unseen.orthonormal_combinations(D)
    expected = np.array([-2e-24 * 1e-12, 2e-24, 1e-30])  # to first order
    np.testing.assert_allclose(Q[:, 1], expected / np.linalg.norm(expected), rtol=1e-3)


def test_the_kernel_of_inputs_in_a_plane():
    """No input has a third coordinate, so the measurements do not see the last row of Delta."""
    X = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 1, 0], [1, -2, 0]], dtype=torch.float64)
    U = torch.tensor([[3.0], [1.0], [0.0]], dtype=torch.float64)
    point = point_of(X, U)
    Y = torch.eye(3, dtype=torch.float64)  # coordinates of dr = 3 directions
    none = torch.tensor(False)
    zero = torch.tensor([False, False, True])
    found = unseen.kernel_from_candidates(point, Y, zero, ~none, vector(1.0)[0], vector(1.0)[0])
    assert (int(found.size), bool(found.known), bool(found.suspected)) == (1, True, False)
    torch.testing.assert_close(found.vectors[:, 0].abs(), vector(0.0, 0.0, 1.0))
    # A candidate that is seen is rejected, and the kernel is then not known.
    zero = torch.tensor([True, False, True])
    found = unseen.kernel_from_candidates(point, Y, zero, ~none, vector(1.0)[0], vector(1.0)[0])
    assert (int(found.size), bool(found.known), bool(found.suspected)) == (1, False, True)
    torch.testing.assert_close(found.vectors[:, 0].abs(), vector(0.0, 0.0, 1.0))
    assert not bool(found.vectors[:, 1:].any())
    none_at_all = unseen.kernel_from_candidates(
        point, Y, zero & False, none, vector(1.0)[0], vector(1.0)[0]
    )
    assert (int(none_at_all.size), bool(none_at_all.known)) == (0, False)
    assert none_at_all.vectors.shape == (3, 0)


@pytest.mark.parametrize("interpolating", [True, False])
def test_seen_parts_are_removed_by_their_curvature(rng, interpolating):
    """A candidate with a component along a seen eigenvector of the form loses it."""
    X, U = normal(rng, 8, 3), normal(rng, 3, 1)
    X[:, 2] = 0
    y = (X @ U).square().sum(-1) + (0 if interpolating else 1)
    point = point_of(X, U, y)
    assert bool(point.interpolating) is interpolating
    form = point.population_hessian(torch.eye(3, dtype=torch.float64)[:, :, None])
    H = flatten_block(form)
    values, vectors = torch.linalg.eigh((H + H.mT) / 2)
    zero = values.abs() <= 1e-12 * values.abs().max()
    assert int(zero.sum()) == 1  # nothing sees the third coordinate
    clean, seen = vectors[:, zero], vectors[:, values.abs().argmax(), None]
    found = unseen.remove_seen_parts(point, clean + 1e-5 * seen, vectors, values, zero)
    torch.testing.assert_close(found, clean, rtol=0, atol=1e-12)


def test_measurements_in_parts_are_those_of_the_whole(rng, monkeypatch):
    X, U, D = normal(rng, 7, 3), normal(rng, 3, 2), normal(rng, 5, 3, 2)
    point = point_of(X, U)
    whole = torch.linalg.vector_norm(point.measure(D), dim=-1)
    for entries in (1, 7, 15, 10**6):
        monkeypatch.setattr(unseen, "_CHUNK_ENTRIES", entries)
        torch.testing.assert_close(unseen._measurement_norms(point.measure, D), whole)


def test_a_direction_is_unseen_up_to_the_rounding_of_its_length():
    """Measurements of `2 u x^2 v` against `10 p eps (sqrt(scale) length + change)`."""
    X = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    U = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    point = point_of(X, U)
    assert isinstance(point.basis, Frame)
    unit = 10 * 2 * EPS
    V = population_lift(
        point.basis, torch.tensor([[[0.0], [1.0]]], dtype=torch.float64)
    )  # length one
    assert bool(unseen._is_unseen(point, V, vector(1.0)[0]))
    # 2 v_1 is measured (n^(1/2) over n^(1/2)), and changes by as much per unit change of U.
    for share, hidden in ((0.9, True), (1.1, False)):
        moved = V.clone()
        moved[0, 0, 0] = share * unit * 4.0 / 2
        assert bool(unseen._is_unseen(point, moved, vector(16.0)[0])) is hidden
