"""Both ends of the spectrum to a few per cent, compared with LAPACK on the Jacobian."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad import RankOne
from posquad.curvature import ends as ends_module
from posquad.curvature.ends import spectrum_ends
from posquad.curvature.lanczos import Lanczos
from support import normal


def jacobian_spectrum(X, U):
    """Squared singular values of the Jacobian over n, without the gauge directions."""
    d, r = U.shape
    J = 2 * (X[:, :, None] * (X @ U)[:, None, :]).flatten(1).numpy()
    values = np.linalg.svd(J, compute_uv=False) ** 2 / len(X)
    return values[: d * r - r * (r - 1) // 2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("smallest", [1.0, 0.05, 1e-4])
def test_both_ends_are_within_the_accuracy(rng, dtype, smallest):
    d, r, n = 40, 3, 480
    X, Q = normal(rng, n, d), torch.linalg.qr(normal(rng, d, r)).Q
    U = Q * torch.logspace(0, np.log10(smallest), r, dtype=torch.float64).sqrt()
    values = jacobian_spectrum(X, U)
    ends = spectrum_ends(RankOne(X.to(dtype)), U, 0.1)
    assert bool(ends.known)
    assert abs(float(ends.low) / values[-1] - 1) <= 0.1
    assert abs(float(ends.high) / values[0] - 1) <= 0.1
    assert ends.low.dtype == torch.float64


def test_a_batch_has_the_ends_of_each_problem(rng):
    X, U = normal(rng, 2, 300, 30), normal(rng, 2, 30, 2)
    ends = spectrum_ends(RankOne(X), U, 0.1)
    assert bool(ends.known.all())
    for k in range(2):
        values = jacobian_spectrum(X[k], U[k])
        assert abs(float(ends.low[k]) / values[-1] - 1) <= 0.1
        assert abs(float(ends.high[k]) / values[0] - 1) <= 0.1


def test_a_kernel_is_never_known(rng):
    U = normal(rng, 20, 2)
    few = normal(rng, 30, 20)  # p = 39
    unseen = normal(rng, 200, 20)
    unseen[:, 0] = 0
    for X in (few, unseen):
        assert not bool(spectrum_ends(RankOne(X), U, 0.1).known)


def test_overflow_in_single_precision_is_not_known(rng):
    X, U = 1e15 * normal(rng, 200, 20), normal(rng, 20, 2)
    assert not bool(spectrum_ends(RankOne(X.float()), U, 0.1).known)
    assert bool(spectrum_ends(RankOne(X), U, 0.1).known)


def test_what_single_precision_cannot_see_is_tried_once(rng, monkeypatch):
    """The curvature is 1e-4 of the largest one; in double precision it is found."""
    X, U = normal(rng, 300, 20), normal(rng, 20, 1)
    X[:, 0] *= 1e-2
    attempts = []
    attempt = ends_module._Bounds.attempt
    monkeypatch.setattr(
        ends_module._Bounds, "attempt", lambda self: (attempts.append(1), attempt(self))
    )
    assert not bool(spectrum_ends(RankOne(X.float()), U, 0.1).known)
    tried = len(attempts)
    ends = spectrum_ends(RankOne(X), U, 0.1)
    assert bool(ends.known)
    assert abs(float(ends.low) / jacobian_spectrum(X, U)[-1] - 1) <= 0.1
    assert tried == 1


def test_an_exception_in_a_dense_spectrum_is_found(rng):
    """All rows but few see the first coordinate, so one value lies far below the others."""
    X, U = normal(rng, 2000, 30), normal(rng, 30, 1)
    X[:, 0] *= 0.1
    values = jacobian_spectrum(X, U)
    assert values[-1] < 0.1 * values[-2]
    ends = spectrum_ends(RankOne(X), U, 0.1)
    assert bool(ends.known)
    assert abs(float(ends.low) / values[-1] - 1) <= 0.1


@pytest.mark.parametrize(("share", "most"), [(0.5, 2), (0.8, 1), (1.5, 2)])
def test_a_wrong_estimate_only_costs_steps(rng, monkeypatch, share, most):
    """An estimate that is a little too low costs nothing, one that is far off another attempt."""
    d, r, n = 40, 3, 480
    X, U = normal(rng, n, d), torch.linalg.qr(normal(rng, d, r)).Q
    U = U * torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64)
    values = jacobian_spectrum(X, U)
    attempts = []
    attempt, first = ends_module._Bounds.attempt, ends_module._Bounds._first_estimate
    monkeypatch.setattr(
        ends_module._Bounds, "attempt", lambda self: (attempts.append(1), attempt(self))
    )
    wrong = torch.tensor(share * values[-1])
    monkeypatch.setattr(
        ends_module._Bounds, "_first_estimate", lambda self: (first(self)[0], wrong)
    )
    ends = spectrum_ends(RankOne(X), U, 0.1)
    assert bool(ends.known)
    assert abs(float(ends.low) / values[-1] - 1) <= 0.1
    assert len(attempts) == most


def test_growth_at_a_value_is_that_of_the_orthogonal_polynomial():
    """K = diag(1, 3) from (1, 1): p_1(t) = t - 2, since a_1 = 2 and b_1 = 1."""
    K = torch.diag(torch.tensor([1.0, 3.0], dtype=torch.float64))
    chain = Lanczos(lambda y: K @ y, lambda y: y, torch.ones(2, 1, dtype=torch.float64))
    chain.step()
    at = chain.growth_at(torch.tensor(7.0, dtype=torch.float64), chain.values())
    assert float(at) == pytest.approx(np.log(5), rel=1e-14)
