"""`recover(..., certify=True)`: when the status says certified, and what is attached."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad import LeastSquares, RankOne, Status, recover
from posquad.certificates import verify
from posquad.core.errors import DomainError, Interrupted
from posquad.recovery import in_memory
from support import gaussian_problem

NUMPY = pytest.mark.parametrize("numpy", [True, False], ids=["numpy", "torch"])


def problem(seed, n, d=10, r=2):
    return gaussian_problem(torch.Generator().manual_seed(seed), n, d, r, smallest=0.5)


@NUMPY
def test_enough_exact_samples_are_certified(numpy):
    X, U, y = problem(0, 38)
    if numpy:
        X, y = X.numpy(), y.numpy()
    found = recover(X, y, 2, certify=True)
    assert found.status is Status.CERTIFIED
    assert found.message.startswith("recovered and certified: ")
    assert type(found.U) is type(X)
    assert found.certificate.proved
    assert "status=CERTIFIED" in repr(found)
    # The proof is about these data and this factor, bit for bit, and it holds.
    assert verify(LeastSquares(RankOne(X), y), found.certificate, found.U).valid
    wrong = np.linalg.norm(np.asarray(found.Q.dense()) - (U @ U.mT).numpy())
    assert wrong <= found.certificate.error_bound(misfit=1e-12)


def test_without_the_option_nothing_is_proved():
    X, _, y = problem(0, 38)
    plain, certified = recover(X, y, 2), recover(X, y, 2, certify=True)
    assert plain.certificate is None
    assert plain.status is Status.RECOVERED
    assert torch.equal(plain.U, certified.U)


@pytest.mark.parametrize("n", [12, 19])
def test_no_more_samples_than_unknowns_are_not_certified(n):
    X, _, y = problem(1, n)
    found = recover(X, y, 2, certify=True)
    assert found.status is Status.NOT_IDENTIFIED
    assert found.certificate is not None
    assert not found.certificate.proved


def test_noise_is_not_certified_but_bounded():
    """The answer does not interpolate; what Theorem D says about the truth is still proved."""
    X, U, y = problem(2, 152)
    noise = 1e-3 * torch.randn(152, generator=torch.Generator().manual_seed(3), dtype=y.dtype)
    found = recover(X, y + noise, 2, certify=True)
    assert found.status is Status.BEST_FIT
    assert not found.certificate.proved
    assert found.certificate.global_uniqueness.proved
    misfit = float(noise.square().mean().sqrt())
    wrong = float(torch.linalg.matrix_norm(found.Q.dense() - U @ U.mT))
    assert 0 < wrong <= found.certificate.error_bound(misfit=misfit * (1 + 1e-12))


def test_a_rank_asked_too_large_is_certified_at_the_rank_found():
    X, _, y = problem(4, 60)
    found = recover(X, y, 3, certify=True)
    assert int(found.rank) == 2
    assert found.status is Status.CERTIFIED
    assert found.certificate.witness.U.shape == (10, 2)


def test_samples_of_weight_zero_are_left_out():
    X, _, y = problem(5, 64)
    weights = torch.ones(64, dtype=y.dtype)
    weights[:4] = 0
    spoiled = y.clone()
    spoiled[:4] += 7
    found = recover(X, spoiled, 2, weights=weights, certify=True)
    assert found.status is Status.CERTIFIED
    assert verify(LeastSquares(RankOne(X[4:]), y[4:]), found.certificate).valid
    assert not verify(LeastSquares(RankOne(X), spoiled), found.certificate).valid


def test_a_zero_answer_has_no_factor_to_certify():
    X, _, y = problem(6, 30)
    found = recover(X, 0 * y, 2, certify=True)
    assert found.certificate is None
    assert found.status is Status.RECOVERED


def test_an_answer_out_of_range_has_no_certificate():
    X, _, y = problem(7, 38)
    found = recover(X, y * 1e-320, 2, certify=True)
    assert found.status is not Status.CERTIFIED


def test_a_spent_budget_is_not_overdrawn():
    X, _, y = problem(8, 38)
    found = recover(X, y, 2, certify=True, max_steps=1)
    assert found.status is Status.INTERRUPTED
    assert found.certificate is None


def test_an_interrupted_proof_leaves_the_answer(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(in_memory.certifier, "certify", interrupted)
    X, _, y = problem(0, 38)
    with pytest.raises(Interrupted) as stop:
        recover(X, y, 2, certify=True)
    assert stop.value.result.status is Status.RECOVERED
    assert stop.value.result.certificate is None


def test_a_batch_is_refused_before_any_work():
    X, _, y = problem(0, 38)
    called = []
    with pytest.raises(DomainError, match=r"certify: expected False for a batch.*got batch \(1,\)"):
        recover(X[None], y[None], 2, certify=True, progress=called.append)
    assert called == []
