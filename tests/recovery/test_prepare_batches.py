"""Working coordinates: every problem of a batch is prepared as it would be alone."""

from __future__ import annotations

import pytest
import torch

from posquad.recovery.prepare import looks_nongeneric, normalize_rows, prepare
from recovery_support import costs_are
from support import gaussian_problem

SCALES = {
    "plain": [1.0, 1.0, 1.0, 1.0],
    "units": [1.0, 1e-4, 1.0, 1e4],
    "one small": [1.0, 1e-6, 1.0, 1.0],
    "tiny": [1e-60] * 4,
    "anisotropic": [1.0, 1.0, 1.0, 20.0],
}


def problem(kind, seed, n=40):
    X, _, y = gaussian_problem(torch.Generator().manual_seed(seed), n, 4, 2, smallest=0.5)
    return X * torch.tensor(SCALES[kind], dtype=torch.float64), y


def same(a, b, k):
    """Whether problem k of a batch has the coordinates of the problem alone, up to rotation."""
    scale = float(b.problem.operator.X.abs().max())
    torch.testing.assert_close(
        a.problem.operator.gram()[k], b.problem.operator.gram(), rtol=1e-9, atol=1e-9 * scale
    )
    torch.testing.assert_close(a.transform[k] @ a.transform[k].mT, b.transform @ b.transform.mT)
    torch.testing.assert_close(a.problem.y[k], b.problem.y)
    for name in ("scale", "span", "count"):
        assert float(getattr(a, name)[k]) == float(getattr(b, name))


def test_problems_of_different_kinds_together():
    problems = [problem(kind, seed) for seed, kind in enumerate(SCALES)]
    X, y = (torch.stack(parts) for parts in zip(*problems, strict=True))
    weights = torch.linspace(1, 2, 40, dtype=torch.float64).expand(len(X), 40)
    for w in (None, weights):
        together = prepare(X, y, w)
        for k in range(len(X)):
            same(together, prepare(X[k], y[k], None if w is None else w[k]), k)


@pytest.mark.parametrize("kind", SCALES)
def test_a_batch_of_one(kind):
    X, y = problem(kind, 9)
    same(prepare(X[None], y[None], None), prepare(X, y, None), 0)
    chosen = prepare(torch.stack([X, X]), torch.stack([y, 2 * y]), None).select(torch.tensor([1]))
    same(chosen, prepare(X, 2 * y, None), 0)


def test_uneven_rows_of_a_batch():
    X, y = problem("plain", 3)
    lengths = torch.logspace(0, 3, 40, dtype=torch.float64)
    X = torch.stack([X * lengths[:, None], X.flip(0) * lengths[:, None]])
    y = torch.stack([y * lengths.square(), y.flip(0) * lengths.square()])
    together = normalize_rows(X, y, None)
    for k in range(2):
        alone = normalize_rows(X[k], y[k], None)
        same(together, alone, k)
        torch.testing.assert_close(together.rows[k], alone.rows)


def test_structure_of_each_problem_of_a_batch():
    X, _ = problem("plain", 4)
    signs = X.sign()
    assert looks_nongeneric(torch.stack([X, signs])).tolist() == [False, True]


@pytest.mark.parametrize("unit", [1e-200, 1e-3, 1.0, 1e200])
def test_responses_are_divided_by_their_size(unit):
    X, y = problem("plain", 5)
    told = prepare(X, unit * y, None)
    assert float(told.problem.y.abs().max()) == 1
    assert float(told.scale) == pytest.approx(unit * float(y.abs().max()), rel=1e-15)
    nothing = prepare(X, 0 * y, None)
    assert float(nothing.scale) == 1


@pytest.mark.parametrize("spread", [1.0, 20.0, 1e-25])
def test_moments_in_single_precision_decide_only_what_is_clear(spread, monkeypatch):
    """The same coordinates as from moments in double precision, whitened where they must be."""
    X, _, y = gaussian_problem(torch.Generator().manual_seed(0), 400, 6, 2, smallest=0.5)
    X = X * torch.tensor([spread] + [1.0] * 5, dtype=torch.float64)
    if spread < 1:
        X = X * 1e25  # squares overflow in single precision
    monkeypatch.setattr("posquad.recovery.prepare.is_large", lambda X: True)
    expected = prepare(X, y, None)
    with costs_are(BLOCK=1):
        found = prepare(X, y, None)
    torch.testing.assert_close(found.transform, expected.transform, rtol=1e-12, atol=0)
    assert int(found.span) == int(expected.span)
    plain = bool((found.transform == torch.eye(6).to(X) * found.transform[0, 0]).all())
    assert plain == (spread == 1)
