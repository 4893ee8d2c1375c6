"""Small linear algebra, against SciPy and by hand."""

from __future__ import annotations

import numpy as np
import scipy
import torch

from posquad.core.linalg import largest_eigenpairs, norm, solve_semidefinite, spectral_norm


def test_a_singular_matrix_is_solved_in_its_range():
    # SciPy's pseudoinverse, of the matrix scaled to unit diagonal; the second element is regular.
    G = np.array([[[4.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 9.0]], np.diag([1.0, 2.0, 4.0])])
    right = np.array([[2.0, 1.0, 18.0], [1.0, 1.0, 1.0]])
    found = solve_semidefinite(torch.from_numpy(G), torch.from_numpy(right)).numpy()
    for g, b, x in zip(G, right, found, strict=True):
        s = 1 / np.sqrt(np.diag(g))
        expected = s * (scipy.linalg.pinvh(s[:, None] * g * s) @ (s * b))
        np.testing.assert_allclose(x, expected, rtol=1e-13)
    np.testing.assert_allclose(found[0], [0.25, 0.5, 2.0], rtol=1e-13)  # by hand


def test_a_matrix_that_is_not_finite_spoils_only_its_own_element():
    G = torch.stack([torch.full((2, 2), torch.nan), torch.eye(2)]).double()
    found = solve_semidefinite(G, torch.ones(2, 2, dtype=torch.float64))
    np.testing.assert_allclose(found[1], 1.0, rtol=1e-15)


def test_norms_along_one_dimension_do_not_overflow():
    columns = torch.tensor([[3.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    for scale in (1e-200, 1.0, 1e200):
        np.testing.assert_allclose(norm(scale * columns, (-2,)), [5 * scale, 0.0], rtol=1e-15)


def test_the_spectral_norm_of_a_large_matrix():
    rng = np.random.default_rng(0)
    M = rng.standard_normal((600, 700))  # no gap below the largest singular value
    found = float(spectral_norm(torch.from_numpy(M)))
    truth = scipy.linalg.svdvals(M)[0]
    assert 0.98 * truth <= found <= truth * (1 + 1e-14)
    turned = 3.0 * scipy.stats.ortho_group.rvs(550, random_state=1)
    np.testing.assert_allclose(spectral_norm(torch.from_numpy(turned)), 3.0, rtol=1e-13)
    np.testing.assert_allclose(spectral_norm(torch.diag(torch.tensor([1.0, -4.0]))), 4.0)


def test_a_norm_scales_exactly_with_powers_of_two():
    """Also where the squares would overflow or underflow, in a batch with ordinary matrices."""
    M = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 4, 3)))
    plain = norm(M)
    np.testing.assert_allclose(plain, np.linalg.norm(M, axis=(1, 2)), rtol=1e-15)
    for power in (-900, -520, -400, 400, 520, 900):
        scale = 2.0**power
        assert torch.equal(norm(scale * M), scale * plain)
        assert torch.equal(norm(torch.cat([M, scale * M])), torch.cat([plain, scale * plain]))
    odd = torch.tensor([[0.0, 0.0], [np.inf, 1.0], [np.nan, 1.0], [5e-324, 0.0]]).double()
    np.testing.assert_array_equal(norm(odd, (-1,)), [0.0, np.inf, np.nan, float(odd[3, 0])])
    assert norm(torch.ones(2, 0, 3)).tolist() == [0.0, 0.0]


def test_the_largest_eigenpairs_of_small_and_large_matrices():
    """A diagonal in a rotated basis, for all pairs, a few of a large matrix, and a batch."""
    rng = np.random.default_rng(0)
    for d, count in ((4, 2), (240, 3), (240, 100)):
        W = np.linalg.qr(rng.standard_normal((d, d)))[0]
        values = np.arange(d) - d / 2
        M = torch.from_numpy((W * values) @ W.T)
        expected = W[:, : -count - 1 : -1]
        for matrix in (M, torch.stack([M, M])):
            found, vectors = largest_eigenpairs(matrix, count)
            np.testing.assert_allclose(
                found, np.broadcast_to(values[::-1][:count], found.shape), rtol=1e-12, atol=1e-10
            )
            cosines = abs((vectors.numpy() * expected).sum(-2))
            np.testing.assert_allclose(cosines, 1, atol=1e-10)
