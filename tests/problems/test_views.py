"""A view computes what `RankOne` computes on the transformed rows."""

from __future__ import annotations

import pytest
import torch

from posquad import RankOne
from posquad.problems.views import RankOneView


@pytest.fixture(params=[False, True], ids=["transformed", "scaled"])
def pair(request):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(300, 5, generator=g, dtype=torch.float64)
    T = torch.randn(5, 3, generator=g, dtype=torch.float64)
    rows = torch.rand(300, generator=g, dtype=torch.float64) + 0.5 if request.param else None
    moved = X @ T if rows is None else rows[:, None] * (X @ T)
    return RankOneView(RankOne(X), T, rows), RankOne(moved), g


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def test_kernels(pair):
    view, copy, g = pair
    U, D = (torch.randn(4, 3, 2, generator=g, dtype=torch.float64) for _ in range(2))
    z, Q = torch.randn(4, 300, generator=g, dtype=torch.float64), U @ U.mT
    for name, arguments in {
        "apply_kernel": (Q,), "adjoint_kernel": (z,), "apply_factor_kernel": (U,),
        "apply_tangent": (U, D), "adjoint_factor_kernel": (z, U), "project": (U,),
        "gram": (Q[0],), "normal_kernel": (Q,), "log_sizes": (U,),
        "weighted_adjoint": (z, copy.project(U)), "gradient_sweep": (U, z),
        "normal_equations": (copy.project(U[0]), z[0]), "largest_entry": (), "absolute_moments": (),
        "symmetric_fit": (z[0],),
    }.items():  # fmt: skip
        found, expected = (getattr(operator, name)(*arguments) for operator in (view, copy))
        for a, b in zip(
            *((x if isinstance(x, tuple) else (x,)) for x in (found, expected)), strict=True
        ):
            close(a, b)
    close(view.linearize(U, z)(D), copy.linearize(U, z)(D))
    Z = copy.project(U)
    close(view.gauss_newton_product(Z)(D), copy.gauss_newton_product(Z)(D))


def test_moments_and_rows(pair):
    view, copy, _ = pair
    for name in ("X", "squared_lengths", "second_moments", "fourth_moments"):
        close(getattr(view, name), getattr(copy, name))
    assert (view.n, view.d) == (300, 3)
    close(view.normalized().X, copy.normalized().X)
    close(view.double().X, copy.X)


def test_lengths_and_moments_do_not_form_the_rows(pair, monkeypatch):
    view, copy, _ = pair
    lengths, second = copy.squared_lengths, copy.second_moments
    monkeypatch.setattr(RankOneView, "X", property(lambda view: pytest.fail("all rows at once")))
    close(view.squared_lengths, lengths)
    close(view.second_moments, second)
