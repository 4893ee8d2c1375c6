"""One read of X: which variant of the kernel is used, and that it agrees with plain products."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import posquad
from posquad.problems import fused, rows
from posquad.problems.fused import fused_line, fused_sweep, planned
from posquad.recovery import from_rows
from posquad.recovery.streams import entry, passes
from support import normal

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, which this machine does not have"
)
SHAPES = [(1, 96, 1), (17, 100, 3), (5000, 1024, 16), (999, 700, 5)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("line", [False, True])
@pytest.mark.parametrize("d", [96, 100, 255, 512, 1000, 1024, 1025, 4096, 8192, 8200])
def test_a_variant_covers_all_columns_and_fits_the_chip(dtype, line, d):
    plan = planned(d, 5, dtype, line=line)
    if plan is None:
        assert d > (1024 if line or dtype == torch.float64 else 8192)
        return
    assert plan.columns * plan.cluster * 8 >= d
    assert plan.columns * dtype.itemsize % 128 == 0  # what the lanes of a warp read at a time
    assert plan.stages >= 2  # one step is collected while the next is projected
    assert plan.resident * (plan.shared_bytes + 1024) <= 228 * 1024
    assert plan.clusters(132) * plan.cluster <= 132 * plan.resident


@pytest.mark.parametrize(("d", "r", "line"), [(95, 5, False), (512, 17, False), (512, 9, True)])
def test_sizes_that_plain_products_do_as_well(d, r, line):
    assert planned(d, r, torch.float32, line=line) is None


def test_on_the_cpu_plain_products_are_used(rng, monkeypatch):
    monkeypatch.setattr(fused, "_LEAST_ENTRIES", 1)
    X, U, D, y = normal(rng, 300, 100), normal(rng, 100, 2), normal(rng, 100, 2), normal(rng, 300)
    assert fused_sweep(X, U, y) is None
    assert fused_line(X, U, D, y, None) is None


def test_the_line_sums_are_those_of_the_loss(rng):
    """G(t) against automatic differentiation of the weighted loss at three points of the line."""
    X, y, w = normal(rng, 50, 7), normal(rng, 50), normal(rng, 50).abs()
    U, D = normal(rng, 7, 2), normal(rng, 7, 2)
    line = passes.sweep_line(posquad.RankOne(rows.in_memory(X)), y, w, U, D)
    for t in (0.0, 0.4, -1.3):
        V = (U + t * D).requires_grad_()
        loss = (w * ((X @ V).square().sum(1) - y).square()).sum()
        (gradient,) = torch.autograd.grad(loss, V)
        torch.testing.assert_close(4 * line.gradient_at(t), gradient, rtol=1e-11, atol=1e-9)
        assert line.loss_at(t) == pytest.approx(float(loss.detach()), rel=1e-11)


def sums_along_line(X, U, D, y, w):
    """The definition: s0, s1, s2, `[3, n]`, and the four sums, `[4, d, r]`."""
    Z, P = X @ U, X @ D
    s = torch.stack([Z.square().sum(1) + y, 2 * (Z * P).sum(1), P.square().sum(1)])
    a, b, c = (w * s)[..., None]
    return s, torch.stack([X.T @ W for W in (a * Z, b * Z + a * P, c * Z + b * P, c * P)])


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "d", "r"), SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_kernel_agrees_with_plain_products(monkeypatch, dtype, n, d, r, weighted):
    """Errors are compared with the same sums of absolute values, as rounding analysis does."""
    monkeypatch.setattr(fused, "_LEAST_ENTRIES", 1)
    rng = torch.Generator("cuda").manual_seed(n + d)
    X, y = (torch.randn(*s, generator=rng, device="cuda", dtype=dtype) for s in ((n, d), (n,)))
    U, D = torch.randn(2, d, r, generator=rng, device="cuda", dtype=dtype) / d**0.5
    w = torch.rand(n, generator=rng, device="cuda", dtype=dtype) if weighted else torch.ones_like(y)
    values = [tensor.double() for tensor in (X, U, D, -y, w)]
    (s, sums), (s_size, size) = (
        sums_along_line(*given) for given in (values, [tensor.abs() for tensor in values])
    )
    level = 4 * torch.finfo(dtype).eps
    sweep = fused_sweep(X, U, y)
    assert sweep is not None
    errors, product = sweep
    assert ((errors - s[0]).abs() <= level * s_size[0]).all()
    if not weighted:
        assert ((product - sums[0]).abs() <= level * size[0]).all()
    if r <= 8:
        line = fused_line(X, U, D, y, w if weighted else None)
        assert line is not None
        got, terms = line
        assert ((got - s).abs() <= level * s_size).all()
        assert ((terms - sums).abs() <= level * size).all()


@needs_gpu
def test_the_same_bits_every_time(monkeypatch):
    monkeypatch.setattr(fused, "_LEAST_ENTRIES", 1)
    rng = torch.Generator("cuda").manual_seed(0)
    X, y = torch.randn(70_000, 512, generator=rng, device="cuda"), torch.ones(70_000, device="cuda")
    U = torch.randn(512, 4, generator=rng, device="cuda")
    first = posquad.LeastSquares(posquad.RankOne(X), y).gradient(U)
    for _ in range(3):
        assert torch.equal(posquad.LeastSquares(posquad.RankOne(X), y).gradient(U), first)


@needs_gpu
def test_rows_on_disk_are_worked_on_by_the_gpu(tmp_path, rng):
    X, U, y = normal(rng, 4000, 30), normal(rng, 30, 2), normal(rng, 4000)
    np.save(tmp_path / "x.npy", X.numpy())
    source = rows.from_npy(tmp_path / "x.npy").to(device="cuda")
    loss, gradient = posquad.LeastSquares(posquad.RankOne(source), y.cuda()).loss_and_gradient(
        U.cuda()
    )
    expected = posquad.LeastSquares(posquad.RankOne(X), y).loss_and_gradient(U)
    torch.testing.assert_close((loss.cpu(), gradient.cpu()), expected, rtol=1e-12, atol=1e-12)


@needs_gpu
@pytest.mark.parametrize("d", [30, 120])  # from moments, which the CPU makes, and by passes
@pytest.mark.parametrize("on_disk", [False, True])
def test_recovery_from_a_source_on_a_gpu(monkeypatch, tmp_path, rng, d, on_disk):
    monkeypatch.setattr(fused, "_LEAST_ENTRIES", 1)
    monkeypatch.setattr(entry, "MEMORY_ENTRIES", 2000 * d)
    monkeypatch.setattr(from_rows, "MEMORY_ENTRIES", 2000 * d)
    X, U = normal(rng, 20_000, d), normal(rng, d, 2)
    y = (X @ U).square().sum(1)
    y += 0.1 * y.std() * normal(rng, len(y))
    np.save(tmp_path / "x.npy", X.numpy())
    here = rows.from_npy(tmp_path / "x.npy")
    source = here.to(device="cuda") if on_disk else rows.in_memory(X.cuda())
    found, expected = posquad.recover(source, y.cuda(), 2), posquad.recover(here, y, 2)
    assert found.status is expected.status
    np.testing.assert_allclose(found.Q.dense(), expected.Q.dense(), rtol=0, atol=1e-9)
