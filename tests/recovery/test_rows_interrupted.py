"""Ctrl-C while rows of a source are fitted: the best answer so far is kept."""

from __future__ import annotations

import numpy as np
import pytest

from posquad import Interrupted, Status, recover
from posquad.estimator import PositiveQuadraticRegressor
from posquad.problems import rows
from posquad.recovery.streams import entry

N, D = 5000, 4


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(0)
    X, U = rng.standard_normal((N, D)), rng.standard_normal((D, 2))
    y = ((X @ U) ** 2).sum(1)
    return X, y + 0.1 * y.std() * rng.standard_normal(N)


def pressed_at(count):
    """A progress callback in which Ctrl-C is pressed at a step of the search."""
    steps = 0

    def progress(step):
        nonlocal steps
        steps += not np.isnan(step.loss)  # rows are being read, and nothing is fitted yet
        if steps == count:
            raise KeyboardInterrupt

    return progress


def relative_residual(Q, X, y):
    return np.linalg.norm(((X @ Q) * X).sum(1) - y) / np.linalg.norm(y)


def test_by_moments(samples):
    X, y = samples
    whole = recover(rows.in_memory(X), y)
    with pytest.raises(Interrupted) as stop:
        recover(rows.in_memory(X), y, progress=pressed_at(whole.steps - 1))
    best = stop.value.result
    assert best.status is Status.INTERRUPTED
    assert 0 < int(best.rank) <= int(whole.rank) + 1
    # `residual` of noisy data is relative to their spread; that of the zero function is 1.
    assert relative_residual(best.Q.dense(), X, y) < 1.01 * relative_residual(whole.Q.dense(), X, y)


def test_before_any_descent_has_ended(samples):
    X, y = samples
    with pytest.raises(Interrupted) as stop:
        recover(rows.in_memory(X), y, 2, progress=pressed_at(1))
    best = stop.value.result  # the first start
    assert best.status is Status.INTERRUPTED
    np.testing.assert_allclose(best.residual, relative_residual(best.Q.dense(), X, y), rtol=1e-9)
    assert best.residual < 1


def test_a_model_of_a_source(samples):
    X, y = samples
    whole = PositiveQuadraticRegressor().fit(rows.in_memory(X), y)
    model = PositiveQuadraticRegressor()
    with pytest.raises(Interrupted) as stop:
        model.fit(rows.in_memory(X), y, progress=pressed_at(whole.n_iter_ - 1))
    assert stop.value.result is model
    assert model.status_ is Status.INTERRUPTED
    np.testing.assert_allclose(model.predict(X), whole.predict(X), atol=0.2 * y.std())


@pytest.mark.parametrize("of_the_rows_in_memory", [True, False])
def test_by_passes(samples, monkeypatch, of_the_rows_in_memory):
    X, y = samples
    monkeypatch.setattr(entry, "MOMENT_MOST", 0)
    monkeypatch.setattr(entry, "MEMORY_ENTRIES", 300 * D)
    start = recover(X[:300], y[:300], 2)
    count = len(start.history) + (0 if of_the_rows_in_memory else 3)
    with pytest.raises(Interrupted) as stop:
        recover(rows.in_memory(X), y, 2, progress=pressed_at(count))
    best = stop.value.result
    assert best.status is Status.INTERRUPTED
    assert best.rows == N
    found = relative_residual(best.Q.dense(), X, y)
    assert found <= relative_residual(start.Q.dense(), X, y)
    if not of_the_rows_in_memory:
        np.testing.assert_allclose(best.residual, found, rtol=1e-10)
