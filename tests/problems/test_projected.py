"""Measurements with other terms eliminated, against their dense twin and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conformance import OWN, SEARCH, MeasurementsConformance, arguments, twin
from posquad.measurements import Dense, RankOne
from posquad.problems.projected import Projected, column_basis
from support import normal

SHAPES = [(1, 1, 1, ()), (2, 3, 1, ()), (9, 4, 2, ()), (9, 1, 3, (2,)), (7, 3, 2, (2, 3))]


def base_of(kind, rng, n, d, batch):
    if kind == "rows":
        return RankOne(normal(rng, *batch, n, d))
    S = normal(rng, *batch, n, d, d)
    dense = Dense(S + S.mT)
    return dense if kind == "dense" else Projected(dense, normal(rng, *batch, n, 1))


@pytest.mark.parametrize("kind", ["rows", "dense", "projected"])
class TestProjected(MeasurementsConformance):
    @pytest.fixture(params=SHAPES, ids=str)
    def build(self, request, rng, kind):
        n, d, m, batch = request.param
        base, Z = base_of(kind, rng, n, d, batch), normal(rng, *batch, n, m)

        def built(dtype=torch.float64, device="cpu"):
            own = base.holding(base.data.to(device, dtype))
            return Projected(own, Z.to(device, dtype))

        return built

    @pytest.mark.parametrize("name", [name for name in SEARCH if name != "jacobian_size"])
    def test_what_a_search_asks_for(self, operator, rng, name):
        super().test_what_a_search_asks_for(operator, rng, name)

    @pytest.mark.parametrize("name", [name for name in OWN if name != "norms"])
    def test_what_depends_on_the_operator_alone(self, operator, name):
        super().test_what_depends_on_the_operator_alone(operator, name)

    def test_scales_are_those_of_the_base(self, operator, rng):
        """They bound those of the matrices together, because the projection is orthogonal."""
        A, U = twin(operator), arguments(operator, rng).U
        for own, found in (
            ((A**2).sum((-3, -2, -1)), operator.norms.square().sum(-1)),
            (
                (np.einsum("...iab,...br->...iar", A, U.numpy()) ** 2).sum((-3, -2, -1)),
                operator.jacobian_size(operator.project(U)),
            ),
        ):
            assert np.all(own <= found.numpy() * (1 + 1e-12))


def test_the_projection_is_that_of_least_squares(rng):
    X, Z, U = normal(rng, 12, 3), normal(rng, 12, 2), normal(rng, 3, 2)
    forms = ((X @ U) ** 2).sum(-1).numpy()
    left = forms - Z.numpy() @ np.linalg.lstsq(Z.numpy(), forms)[0]
    np.testing.assert_allclose(Projected(RankOne(X), Z).apply_factor(U), left, atol=1e-13)


@pytest.mark.parametrize("change", ["weighted", "at_rows", "holding", "double"])
def test_what_changes_the_measurements_changes_the_columns(rng, change):
    """The projection is then that of the changed columns: compared with one made of them."""
    X, Z, U = normal(rng, 12, 3), normal(rng, 12, 2), normal(rng, 3, 2)
    s, index = normal(rng, 12).abs(), torch.tensor([1, 4, 5, 8, 11])
    operator = Projected(RankOne(X), Z)
    changed, inputs, columns = {
        "weighted": lambda: (operator.weighted(s), s.sqrt()[:, None] * X, s[:, None] * Z),
        "at_rows": lambda: (operator.at_rows(index), X[index], Z[index]),
        "holding": lambda: (operator.holding(operator.data[index]), X[index], Z[index]),
        "double": lambda: (operator.double(), X, Z),
    }[change]()
    expected = Projected(RankOne(inputs), columns).apply_factor(U)
    np.testing.assert_allclose(changed.apply_factor(U), expected, atol=1e-13)


def test_a_change_of_coordinates_leaves_the_columns(rng):
    X, Z, T, U = normal(rng, 9, 3), normal(rng, 9, 2), normal(rng, 3, 2), normal(rng, 2, 1)
    operator = Projected(RankOne(X), Z)
    own = operator.transformed(T).apply_factor(U)
    np.testing.assert_allclose(own, operator.apply_factor(T @ U), atol=1e-12)


@pytest.mark.parametrize("m", [1, 3])
def test_the_compressed_measurements_have_the_same_inner_products(rng, m):
    """C'A for an orthonormal basis C of the complement: sums of squares, and the way back."""
    X, Z = normal(rng, 9, 3), normal(rng, 9, m)
    operator, e = Projected(RankOne(X), Z), normal(rng, 9)
    few = operator.compressed()
    assert few.n == 9 - m
    np.testing.assert_allclose(few.fourth_moments, operator.fourth_moments, atol=1e-12)
    inside = operator.eliminated(e)
    np.testing.assert_allclose(operator.compress(e).square().sum(), inside.square().sum())


def test_columns_that_depend_on_others_and_zero_columns(rng):
    Z = normal(rng, 9, 2)
    more = torch.cat([Z, Z.sum(1, keepdim=True), torch.zeros(9, 1, dtype=Z.dtype)], dim=1)
    assert column_basis(more).shape == (9, 2)
    X, U = normal(rng, 9, 3), normal(rng, 3, 1)
    both = [Projected(RankOne(X), columns).apply_factor(U) for columns in (Z, more)]
    np.testing.assert_allclose(*both, atol=1e-13)


def test_what_the_columns_express_is_exactly_zero_after_compression(rng):
    """x_1^2 = 1 is a constant."""
    X = torch.cat([normal(rng, 9, 1).sign(), normal(rng, 9, 2)], dim=1)
    few = Projected(RankOne(X), torch.ones(9, 1, dtype=X.dtype)).compressed()
    assert not few.A[:, 0, 0].any()
    assert few.A[:, 0, 1].any()
