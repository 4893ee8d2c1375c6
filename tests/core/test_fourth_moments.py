"""Fourth moments that are kept once, against the Gram matrix of all products."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad.core.fourth_moments import FourthMoments
from posquad.core.symmetric import symmetric_congruence
from support import normal


@pytest.mark.parametrize("k", [1, 2, 5, 6, 7, 13])
def test_gram_and_weighted_sums(rng, k):
    Z, e = normal(rng, 300, k), normal(rng, 300)
    layout = FourthMoments(k)
    total = torch.zeros(layout.size, dtype=torch.float64)
    sums = layout.accumulate(total, Z[:90], lambda products, rows: e[:90][rows])
    sums += layout.accumulate(total, Z[90:], lambda products, rows: e[90:][rows])
    i, j = np.triu_indices(k)
    products = Z.numpy()[:, i] * Z.numpy()[:, j]
    scale = 60 * 300 * np.finfo(float).eps
    bound = scale * np.abs(products).T @ np.abs(products)
    assert (np.abs(layout.gram(total).numpy() - products.T @ products) <= bound).all()
    bound = scale * np.abs(products).T @ np.abs(e.numpy())
    assert (np.abs(sums.numpy() - products.T @ e.numpy()) <= bound).all()
    np.testing.assert_array_equal(layout.accumulate(None, Z, lambda p, rows: e[rows] * 0), 0)


def test_a_weight_may_depend_on_the_products(rng):
    Z, c = normal(rng, 20, 3), normal(rng, 6)
    layout = FourthMoments(3)
    sums = layout.accumulate(None, Z, lambda products, rows: c @ products)
    i, j = np.triu_indices(3)
    products = Z.numpy()[:, i] * Z.numpy()[:, j]
    np.testing.assert_allclose(sums, products.T @ (products @ c.numpy()), rtol=1e-12)


def test_distinct_moments_take_a_quarter_of_the_products():
    layout = FourthMoments(40)
    assert layout.size < 0.25 * layout.pairs**2


def test_congruence_with_a_rectangular_matrix(rng):
    """`svec(GSG')` for `G[4, 2]`, with svec written out by hand."""
    G, S = normal(rng, 4, 2).numpy(), np.array([[1.0, 2.0], [2.0, 5.0]])

    def svec(M):
        i, j = np.triu_indices(len(M))
        return M[i, j] * np.where(i == j, 1, np.sqrt(2))

    image = symmetric_congruence(torch.from_numpy(G)).numpy() @ svec(S)
    np.testing.assert_allclose(image, svec(G @ S @ G.T), rtol=1e-13)
