"""A view computes what `RankOne` computes on the transformed rows."""

from __future__ import annotations

import pytest
import torch

from kernels_support import assert_same_kernels
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
    assert_same_kernels(view, copy, g, close)
    assert (view.n, view.d) == (300, 3)
    close(view.double().X, copy.X)


def test_lengths_and_moments_do_not_form_the_rows(pair, monkeypatch):
    view, copy, _ = pair
    lengths, second = copy.squared_lengths, copy.second_moments
    monkeypatch.setattr(RankOneView, "X", property(lambda view: pytest.fail("all rows at once")))
    close(view.squared_lengths, lengths)
    close(view.second_moments, second)
