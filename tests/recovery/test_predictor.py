"""The predictor `Q = UU'` that a result holds: products against NumPy, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad.core.errors import ShapeError
from posquad.recovery.psd_operator import Predictor

rng = np.random.default_rng(0)
U = rng.standard_normal((4, 2))
Q = U @ U.T


def test_products_are_those_of_the_matrix():
    predictor = Predictor(U)
    assert predictor.shape == (4, 4)
    np.testing.assert_allclose(predictor.dense(), Q)
    np.testing.assert_allclose(np.asarray(predictor), Q)
    assert np.asarray(predictor, dtype=np.float32).dtype == np.float32
    assert np.asarray(Predictor(torch.as_tensor(U).float())).dtype == np.float64
    X, v, V = rng.standard_normal((5, 4)), rng.standard_normal(4), rng.standard_normal((4, 3))
    np.testing.assert_allclose(predictor.apply(X), np.einsum("ni,ij,nj->n", X, Q, X))
    np.testing.assert_allclose(predictor @ v, Q @ v)
    np.testing.assert_allclose(predictor @ V, Q @ V)
    values = np.sort(np.linalg.eigvalsh(Q))[::-1]
    np.testing.assert_allclose(predictor.eigenvalues(), values[:2])
    assert repr(predictor) == "Predictor(shape=(4, 4), rank<=2)"


def test_batches():
    stack = rng.standard_normal((3, 4, 2))
    predictor = Predictor(stack)
    assert predictor.shape == (3, 4, 4)
    X, V = rng.standard_normal((3, 5, 4)), rng.standard_normal((3, 4, 2))
    matrices = stack @ np.swapaxes(stack, -1, -2)
    np.testing.assert_allclose(predictor.apply(X), np.einsum("bni,bij,bnj->bn", X, matrices, X))
    np.testing.assert_allclose(predictor @ V, matrices @ V)
    np.testing.assert_allclose(predictor @ V[0, :, 0], matrices @ V[0, :, 0])


@pytest.mark.parametrize("shape", [(4,), (5, 3), (2, 5, 4)])
def test_inputs_that_do_not_fit_are_refused(shape):
    """Rows of another length, no matrix, and a batch of two for three predictors."""
    with pytest.raises(ShapeError, match="X"):
        Predictor(rng.standard_normal((3, 4, 2))).apply(np.ones(shape))


@pytest.mark.parametrize("shape", [(), (3,), (3, 4), (2, 4, 1)])
def test_factors_of_a_product_that_do_not_fit_are_refused(shape):
    with pytest.raises(ShapeError, match="V"):
        Predictor(rng.standard_normal((3, 4, 2))) @ np.ones(shape)
