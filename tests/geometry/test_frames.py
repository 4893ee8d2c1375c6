"""The small equations of the quotient: solutions against SciPy, derivatives where roots repeat."""

import numpy as np
import pytest
import scipy.linalg
import torch
from torch.autograd import gradcheck, gradgradcheck

from posquad.core.errors import RankDeficientError
from posquad.geometry.frames import divide_right, frame, polar_rotation, solve_sylvester
from support import SIZES, normal, ratio, rotation

DTYPES = [torch.float64, torch.float32]

SPECTRA = {
    "identity": [1.0, 1.0, 1.0],
    "pair": [2.0, 1.0, 1.0],
    "almost": [1.0 + 1e-10, 1.0, 0.5],
    "distinct": [3.0, 2.0, 1.0],
}
"""Singular values that repeat, nearly repeat, or are well separated."""


def with_spectrum(rng, d, values, dtype=torch.float64):
    """A factor `[d, r]` with random singular vectors and the given singular values."""
    r = len(values)
    W = torch.linalg.qr(normal(rng, d, r)).Q
    return (W * torch.tensor(values, dtype=torch.float64) @ rotation(rng, r)).to(dtype)


def spread(d, r, rng, dtype):
    return with_spectrum(rng, d, np.linspace(2.0, 1.0, r).tolist(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("d", "r"), SIZES)
def test_frame_is_the_singular_value_decomposition(rng, d, r, dtype):
    U = normal(rng, 2, 3, d, r, dtype=dtype)
    W, s, P = frame("U", U)
    I = torch.eye(r, dtype=dtype).expand(2, 3, r, r)
    assert ratio(W * s[..., None, :] @ P.mT - U, torch.linalg.vector_norm(U), d) < 60
    assert ratio(W.mT @ W - I, 1.0, d) < 60
    assert ratio(P.mT @ P - I, 1.0, d) < 60
    assert bool((s.diff(dim=-1) <= 0).all())
    expected = np.linalg.svd(U.double().numpy(), compute_uv=False)
    assert ratio(s - torch.from_numpy(expected).to(dtype), torch.linalg.vector_norm(s), d) < 60


def test_frame_is_cut_off_from_differentiation(rng):
    U = normal(rng, 4, 2).requires_grad_()
    assert not any(part.requires_grad for part in frame("U", U))


@pytest.mark.parametrize("dtype", DTYPES)
def test_frame_refuses_exactly_below_the_rounding_level(dtype):
    # Diagonal factors: their singular values are exact, so the boundary can be met from both sides.
    threshold = 5 * torch.finfo(dtype).eps
    U = torch.eye(5, 2, dtype=dtype)
    U[1, 1] = 2 * threshold
    assert frame("U", U).s[1] == 2 * threshold
    U[1, 1] = 0.5 * threshold
    with pytest.raises(RankDeficientError) as caught:
        frame("V", U)
    assert caught.value.argument == "V"
    assert caught.value.singular_values.tolist() == [1.0, 0.5 * threshold]
    assert "full column rank 2" in caught.value.expected
    assert f"{0.5 * threshold:.3e}" in caught.value.got


def test_frame_names_the_deficient_batch_element(rng):
    U = normal(rng, 2, 3, 5, 2)
    U[1, 0, :, 1] = 2 * U[1, 0, :, 0]
    with pytest.raises(RankDeficientError, match="batch element 3 of 6") as caught:
        frame("U", U)
    assert caught.value.singular_values.shape == (2,)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("d", "r"), SIZES)
def test_solve_sylvester_agrees_with_scipy(rng, d, r, dtype):
    U, C = spread(d, r, rng, dtype), normal(rng, r, r, dtype=dtype)
    S = U.mT @ U
    X = solve_sylvester(S, C, frame("U", U))
    expected = scipy.linalg.solve_sylvester(S.double().numpy(), S.double().numpy(), C.double())
    # cond(S) = 4: no room for amplification.
    assert ratio(X - torch.from_numpy(expected).to(dtype), torch.linalg.vector_norm(C), d) < 60


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("d", "r"), SIZES)
def test_divide_right_agrees_with_scipy(rng, d, r, dtype):
    U, C = spread(d, r, rng, dtype), normal(rng, d, r, dtype=dtype)
    S = U.mT @ U
    X = divide_right(C, S, frame("U", U))
    expected = scipy.linalg.solve(S.double().numpy(), C.double().numpy().T, assume_a="pos").T
    assert ratio(X - torch.from_numpy(expected).to(dtype), torch.linalg.vector_norm(C), d) < 60


@pytest.mark.parametrize("reflect", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("r", [1, 2, 5])
def test_polar_rotation_agrees_with_scipy(rng, r, dtype, reflect):
    M = (rotation(rng, r, reflect=reflect) @ spread(r, r, rng, torch.float64)).to(dtype)
    expected, _ = scipy.linalg.polar(M.double().numpy())
    assert ratio(polar_rotation(M) - torch.from_numpy(expected).to(dtype), r**0.5, r) < 60


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_polar_rotation_of_a_singular_matrix_is_still_a_polar_factor(rng, rank):
    M = normal(rng, 3, rank) @ normal(rng, rank, 3)
    R = polar_rotation(M)
    H = R.mT @ M
    assert ratio(R.mT @ R - torch.eye(3, dtype=R.dtype), 3**0.5, 3) < 60
    scale = 1.0 + torch.linalg.vector_norm(M)
    assert ratio(H - H.mT, scale, 3) < 60
    assert float(torch.linalg.eigvalsh(H)[0]) > -60 * 3 * torch.finfo(H.dtype).eps * scale


def test_solutions_broadcast_over_batches(rng):
    U, C = normal(rng, 4, 1, 5, 3), normal(rng, 2, 3, 3)
    S, basis = U.mT @ U, frame("U", U)
    X, Y = solve_sylvester(S, C, basis), divide_right(C, S, basis)
    assert X.shape == Y.shape == (4, 2, 3, 3)
    scale = torch.linalg.vector_norm(X) * torch.linalg.vector_norm(S)
    assert ratio(S @ X + X @ S - C, scale, 5) < 60
    scale = torch.linalg.vector_norm(Y) * torch.linalg.vector_norm(S)
    assert ratio(Y @ S - C, scale, 5) < 60


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("values", SPECTRA.values(), ids=SPECTRA)
def test_derivatives_of_the_equations_where_singular_values_repeat(rng, values, check):
    U = with_spectrum(rng, 4, values).requires_grad_()
    C = normal(rng, 3, 3).requires_grad_()  # neither symmetric nor skew
    assert check(lambda u, c: solve_sylvester(u.mT @ u, c, frame("U", u)), (U, C))
    assert check(lambda u, c: divide_right(c, u.mT @ u, frame("U", u)), (U, C))


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("reflect", [False, True])
@pytest.mark.parametrize("values", SPECTRA.values(), ids=SPECTRA)
def test_derivatives_of_the_polar_factor_where_singular_values_repeat(rng, values, reflect, check):
    M = rotation(rng, 3, reflect=reflect) @ with_spectrum(rng, 3, values)
    assert check(polar_rotation, (M.requires_grad_(),))


def test_derivative_of_the_polar_factor_at_the_identity_is_the_skew_part(rng):
    M, weights = torch.eye(4, dtype=torch.float64).requires_grad_(), normal(rng, 4, 4)
    (gradient,) = torch.autograd.grad((weights * polar_rotation(M)).sum(), M)
    assert ratio(gradient - (weights - weights.mT) / 2, torch.linalg.vector_norm(weights), 4) < 60
