"""Kernels that only rank-one measurements have, against NumPy, for one operator and a batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from posquad import Dense, GaussianPopulation, RankOne
from posquad.problems import measurements, products
from support import normal

BATCHES = [(), (2,), (2, 3)]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("small", [False, True])
def test_moments_and_lengths(rng, batch, small, monkeypatch):
    if small:
        monkeypatch.setattr(measurements, "_BLOCK_BYTES", {"cpu": 1})
    X = normal(rng, *batch, 150, 3)  # three blocks of at least 64 rows
    X[..., 5, :] = 0
    operator, x = RankOne(X), X.numpy()
    blocks = [part.shape[-2] for _, part in operator._blocks()]
    assert blocks == ([64, 64, 22] if small else [150])
    np.testing.assert_allclose(operator.squared_lengths, (x**2).sum(-1), rtol=1e-13)
    gram = np.einsum("...ni,...nj->...ij", x, x)
    np.testing.assert_allclose(operator.second_moments, gram / 150, rtol=1e-12, atol=1e-13)
    absolute = np.einsum("...ni,...nj->...ij", abs(x), abs(x))
    np.testing.assert_allclose(operator.absolute_moments(), absolute, rtol=1e-12)
    assert float(operator.largest_entry()) == abs(x).max()
    unit = operator.normalized().X.numpy()
    lengths = np.linalg.norm(unit, axis=-1)
    np.testing.assert_allclose(np.delete(lengths, 5, axis=-1), 1, rtol=1e-14)
    np.testing.assert_array_equal(lengths[..., 5], 0)


def test_the_largest_entry_may_be_negative():
    for sign in (1.0, -1.0):
        X = torch.tensor([[1.0, sign * 3.0], [0.5, -sign * 2.0]], dtype=torch.float64)
        assert float(RankOne(X).largest_entry()) == 3


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("entries", [1, 30, 2**22])
def test_normal_equations(rng, batch, entries, monkeypatch):
    """`J'J` and `J'e` with `(J Delta)_i = 2 x_i'Delta U'x_i`, in blocks of rows of any size."""
    monkeypatch.setattr(measurements, "_JACOBIAN_ENTRIES", entries)
    X, U, e = normal(rng, *batch, 7, 3), normal(rng, *batch, 3, 2), normal(rng, *batch, 7)
    Z = X @ U
    J = 2 * np.einsum("...ni,...nj->...nij", X, Z).reshape(*batch, 7, 6)
    matrix, right = RankOne(X).normal_equations(Z, e)
    np.testing.assert_allclose(matrix, np.einsum("...na,...nb->...ab", J, J), atol=1e-11)
    np.testing.assert_allclose(right, np.einsum("...na,...n->...a", J, e), atol=1e-12)


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("r", [1, 2, 3, 5])
def test_gauss_newton_products(rng, r, small, monkeypatch):
    """Half of `J'J` from the Jacobian, for starts, directions and batches, in blocks of rows."""
    if small:
        monkeypatch.setattr(measurements, "_BLOCK_BYTES", {"cpu": 1})
    X, U, D = normal(rng, 150, 6), normal(rng, 2, 6, r), normal(rng, 2, 6, r)
    operator, Z = RankOne(X), X @ U
    J = 2 * np.einsum("ni,snj->snij", X, Z).reshape(2, 150, 6 * r)
    half = np.einsum("sna,snb->sab", J, J) / 2
    expected = np.einsum("sab,sb->sa", half, D.flatten(1)).reshape(2, 6, r)
    close = {"rtol": 1e-11, "atol": 1e-9}
    np.testing.assert_allclose(operator.gauss_newton_product(Z)(D), expected, **close)
    np.testing.assert_allclose(operator.gauss_newton_product(Z[0])(D[0]), expected[0], **close)
    many = operator.gauss_newton_product(Z[0])(D)  # directions in front of one start
    np.testing.assert_allclose(many[0], expected[0], **close)
    batch = RankOne(torch.stack([X, X])).gauss_newton_product(Z)(D)
    np.testing.assert_allclose(batch, expected, **close)


def test_symmetric_products_of_a_large_matrix(rng, monkeypatch):
    """One triangle by blocks of rows, for weights of both signs and zero, against NumPy."""
    monkeypatch.setattr(products, "_SYMMETRIC_ENTRIES", 1)
    monkeypatch.setattr(products, "_SYMMETRIC_BLOCK", 1)
    X, z = normal(rng, 300, 5), normal(rng, 300)
    z[7] = 0
    x = X.numpy()
    operator = RankOne(X)
    weighted = operator.adjoint_kernel(z)
    np.testing.assert_allclose(weighted, x.T @ (z.numpy()[:, None] * x), rtol=1e-12, atol=1e-11)
    assert bool((weighted == weighted.mT).all())
    np.testing.assert_allclose(operator.second_moments, x.T @ x / 300, rtol=1e-12, atol=1e-13)
    assert bool(torch.isnan(operator.adjoint_kernel(torch.full_like(z, torch.nan))).all())
    recorded = X.clone().requires_grad_(True)
    assert RankOne(recorded).adjoint_kernel(z).requires_grad


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
@pytest.mark.parametrize("r", [1, 2, 3, 5, 8, 9])
def test_products_with_a_large_matrix_in_every_layout(rng, dtype, close, r):
    """The layout of the operands depends on the number of columns and on the precision."""
    X, U = normal(rng, 1100, 260).to(dtype), normal(rng, 2, 260, r).to(dtype)
    operator, x = RankOne(X), X.double().numpy()
    Z = operator.project(U)
    exact = x @ U.double().numpy()
    np.testing.assert_allclose(Z, exact, atol=16 * close)
    np.testing.assert_allclose(operator.project(U[0]), exact[0], atol=16 * close)
    assert Z.mT.is_contiguous()
    weights = (exact[0] * (x @ U[1].double().numpy())).sum(-1, keepdims=True) * exact[0]
    found = operator.gauss_newton_product(Z[0])(U[1])
    np.testing.assert_allclose(found, 2 * x.T @ weights, atol=close * abs(weights).sum())


@pytest.mark.parametrize("batch", BATCHES)
def test_projections_and_grams(rng, batch):
    X, U, w = normal(rng, *batch, 6, 4), normal(rng, *batch, 4, 2), normal(rng, *batch, 6)
    operator, D = RankOne(X), normal(rng, 4, 4)
    x = X.numpy()
    np.testing.assert_allclose(operator.project(U), x @ U.numpy(), atol=1e-13)
    Z = normal(rng, *batch, 6, 2)
    expected = np.einsum("...ni,...n,...nr->...ir", x, w, Z)
    np.testing.assert_allclose(operator.weighted_adjoint(w, Z), expected, atol=1e-13)
    np.testing.assert_allclose(operator.gram(), x @ np.swapaxes(x, -1, -2), atol=1e-13)
    np.testing.assert_allclose(operator.gram(D), x @ D.numpy() @ np.swapaxes(x, -1, -2), atol=1e-12)
    T = normal(rng, 4, 3)
    np.testing.assert_allclose(operator.transformed(T).X, x @ T.numpy(), atol=1e-13)
    starts = normal(rng, 5, *(1,) * len(batch), 4, 2)  # in front of the batch
    np.testing.assert_allclose(operator.project(starts), x @ starts.numpy(), atol=1e-13)


def test_fourth_moments_are_products_of_pairs(rng):
    """svec is an isometry: the values are those of the full matrices `x_i x_i'`."""
    X = normal(rng, 9, 3)
    M = RankOne(X).fourth_moments.numpy()
    assert M.shape == (6, 6)
    assert np.trace(M) == pytest.approx(float((X.square().sum(-1) ** 2).sum()))
    values = np.linalg.eigvalsh(M)
    outer = np.einsum("ni,nj->nij", X, X).reshape(9, 9)
    expected = np.linalg.svd(outer, compute_uv=False)[:6] ** 2
    np.testing.assert_allclose(np.sort(values), np.sort(expected), rtol=1e-10)


@pytest.mark.parametrize("kind", ["rank one", "dense", "population"])
@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
def test_sizes_of_terms_in_any_unit(kind, unit):
    """d = 1: the largest terms of `A(u^2)` and `A u` are `a u^2` and `a u`."""
    U = unit * torch.tensor([[-2.0]], dtype=torch.float64)
    operator = {
        "rank one": RankOne(np.array([[3.0], [-1.0]])),
        "dense": Dense(np.array([[[9.0]], [[-1.0]]])),
        "population": GaussianPopulation(1),
    }[kind]
    a = 2.0 if kind == "population" else 9.0  # sqrt(n) sqrt(2) = 2
    values, products = operator.log_sizes(U)
    assert float(values) == pytest.approx(math.log(a * 4) + 2 * math.log(unit), rel=1e-12)
    expected = math.log(a * 2) + math.log(unit)
    if kind == "rank one":
        assert float(products) == pytest.approx(expected, rel=1e-12)
    else:  # a generic matrix with entries below one stands for the A_i
        assert abs(float(products) - expected) < 2
    zero = operator.log_sizes(0 * U)[0]
    assert float(zero) == -math.inf


def test_operators_say_what_they_are(rng):
    assert repr(RankOne(normal(rng, 5, 2))) == "RankOne(n=5, d=2)"
    assert repr(RankOne(normal(rng, 3, 5, 2))) == "RankOne(n=5, d=2, batch=(3,))"
    assert repr(GaussianPopulation(3)) == "GaussianPopulation(n=7, d=3)"
    operator = GaussianPopulation(2)
    assert operator.double() is operator
    single = RankOne(torch.ones(2, 2))
    assert single.double().X.dtype == torch.float64
    assert RankOne(normal(rng, 3, 5, 2)).select(torch.tensor([2, 0])).X.shape == (2, 5, 2)
