"""Single-precision inputs give the numbers of their double-precision copy, without that copy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels_support import assert_same_kernels
from posquad import RankOne, Status, recover
from posquad.problems import products, widened
from posquad.problems.views import RankOneView
from posquad.problems.widened import RankOneWidened
from posquad.recovery.prepare import looks_nongeneric, normalize_rows, prepare


@pytest.fixture
def large(monkeypatch):
    """Inputs count as too large for a copy."""
    for module in ("prepare", "admitted"):
        monkeypatch.setattr(f"posquad.recovery.{module}.is_large", lambda X: X.ndim == 2)


@pytest.fixture(params=["small", "symmetric sums"])
def pair(request, monkeypatch):
    if request.param == "symmetric sums":  # as for large inputs
        monkeypatch.setattr(products, "_SYMMETRIC_ENTRIES", 1)
        monkeypatch.setattr(widened, "_MOMENT_ENTRIES", 500)
    monkeypatch.setitem(widened._PART_BYTES, "cpu", 4000)
    g = torch.Generator().manual_seed(0)
    X = torch.randn(300, 5, generator=g)
    return RankOneWidened(X), RankOne(X.double()), g


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_kernels_are_those_of_the_copy(pair):
    wide, copy, g = pair
    assert_same_kernels(wide, copy, g, close)


def test_the_operator_in_single_precision_is_that_of_the_inputs(pair):
    wide, copy, _ = pair
    assert wide.single().X is wide.narrow
    view = RankOneView(wide, torch.eye(5, dtype=torch.float64))
    assert (wide.single_entries, view.single_entries, copy.single_entries) == (0, 0, 1500)
    assert view.single().base.X is wide.narrow


def problem(kind):
    rng = np.random.default_rng(3)
    X, U = rng.standard_normal((120, 6)), rng.standard_normal((6, 2))
    if kind == "units":
        X *= 10.0 ** np.arange(-3, 3)
    if kind == "uneven rows":
        X *= 10.0 ** rng.uniform(-4, 4, (120, 1))
    if kind == "beyond the squares of single precision":
        X *= 1e25
    X = X.astype(np.float32)
    weights = rng.random(120) + 0.5 if kind == "weighted" else None
    return X, U, ((X.astype(float) @ U) ** 2).sum(1), weights


KINDS = ["plain", "weighted", "units", "uneven rows", "beyond the squares of single precision"]


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kind", KINDS)
def test_large_inputs_stay_in_single_precision_and_give_double(kind):
    X, U, y, weights = problem(kind)
    inputs, responses = torch.from_numpy(X), torch.from_numpy(y)
    w = None if weights is None else torch.from_numpy(weights)
    made = (normalize_rows if kind == "uneven rows" else prepare)(inputs, responses, w)
    operator = made.problem.operator
    base = operator.base if isinstance(operator, RankOneView) else operator
    assert base.narrow is inputs
    found = recover(X, y, 2, weights=weights)
    assert found.status is Status.RECOVERED
    assert found.U.dtype == np.float64
    np.testing.assert_allclose(found.Q.dense(), U @ U.T, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("large")
def test_a_start_and_a_proof_are_in_double_precision():
    X, U, y, _ = problem("plain")
    found = recover(X, y, 2, start=U, certify=True)
    assert found.status is Status.CERTIFIED
    assert found.starts == 1
    np.testing.assert_allclose(found.Q.dense(), U @ U.T, rtol=1e-12, atol=1e-12)


def test_few_zeros_in_many_rows_are_rounding():
    X = torch.randn(5000, 10, generator=torch.Generator().manual_seed(0))
    X[:50, 3] = 0.0
    assert not looks_nongeneric(X)
    X[50, 4] = 0.0
    assert looks_nongeneric(X)
