"""One problem asked in every way: the answer of the rows in memory to 1e-9, with the same status.

A way gives the same samples to `recover` or to the regressor as another design or another kind of
measurements: matrices, a batch, tensors, other units, a source that is summed to moments or passed
over, a stream.
"""

from __future__ import annotations

from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch

from adversarial.functions import Function, drawn_function, twin
from posquad import Dense, RankOne, Status, recover
from posquad.estimator import PositiveQuadraticRegressor as Regressor
from posquad.problems import rows
from posquad.recovery.streams import entry

pytestmark = [  # what a fit says beside its status
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::posquad.core.errors.IdentifiabilityWarning"),
]

COPIES = 4200  # rows of which a source keeps fewer


class Told(NamedTuple):
    status: Status
    function: Function
    residual: float


def told(found, k=()) -> Told:
    U = np.asarray(found.U)[k]
    status = found.status[k] if isinstance(found.status, list) else found.status
    function = Function(U, np.zeros(len(U)), 0.0)
    return Told(status, function, float(np.asarray(found.residual)[k]))


def told_by_model(model) -> Told:
    function = Function(model.components_.T, model.coef_, float(model.intercept_))
    return Told(model.status_, function, float(model.residual_))


def repeated(X, y):
    """So many copies of all samples that a source does not keep them, which change no fit."""
    count = -(-COPIES // len(y))
    return np.tile(X, (count, 1)), np.tile(y, count)


# Ways without other terms.


def by_class(X, y, r):
    return told(recover(RankOne(X), y, r))


def by_tensors(X, y, r):
    return told(recover(torch.from_numpy(X), torch.from_numpy(y), r))


def by_matrices(X, y, r):
    return told(recover(Dense(X[:, :, None] * X[:, None, :]), y, r))


def by_batch(X, y, r):
    others = np.random.default_rng(0).standard_normal((2, *X.shape))
    both = np.stack([others[0], X, others[1]])
    return told(recover(both, np.stack([y, y, y]), r), 1)


def in_other_units(X, y, r):
    found = told(recover(1e3 * X, 1e-5 * y, r))
    return found._replace(function=Function(found.function.U * 10**5.5, found.function.b, 0.0))


def in_another_order(X, y, r):
    return told(recover(X[::-1].copy(), y[::-1].copy(), r))


def with_weights_of_repetition(X, y, r):
    X, y = np.concatenate([X, X[:1]]), np.append(y, y[0])
    return told(recover(X, y, r, weights=np.r_[0.5, np.ones(len(y) - 2), 0.5]))


def by_moments(X, y, r):
    X, y = repeated(X, y)
    return told(recover(rows.in_memory(X), y, r))


def by_passes(X, y, r):
    X, y = repeated(X, y)
    with mock.patch.multiple(entry, MOMENT_MOST=0, MEMORY_ENTRIES=X.size // 2):
        return told(recover(rows.in_memory(X), y, r))


WAYS = {
    way.__name__: way
    for way in (
        by_class,
        by_tensors,
        by_matrices,
        by_batch,
        in_other_units,
        in_another_order,
        with_weights_of_repetition,
        by_moments,
        by_passes,
    )
}

# Ways with other terms.

TERMS = {"constant": {"fit_intercept": True}, "linear": {"linear": True}}


def model_of(terms, r):
    return Regressor(r, standard_errors=False, **TERMS[terms])


def term_batches(X, y, r, terms):
    model = model_of(terms, r)
    for part in np.array_split(np.arange(len(y)), 3):
        model.partial_fit(X[part], y[part], refit=part[-1] == len(y) - 1)
    return told_by_model(model)


def term_order(X, y, r, terms):
    return told_by_model(model_of(terms, r).fit(X[::-1].copy(), y[::-1].copy()))


def term_source(X, y, r, terms):
    X, y = repeated(X, y)
    return told_by_model(model_of(terms, r).fit(rows.in_memory(X), y))


def term_stream(X, y, r, terms):
    return term_batches(*repeated(X, y), r, terms)


TERM_WAYS = {way.__name__: way for way in (term_batches, term_order, term_source, term_stream)}


def samples(kind, terms):
    """Return X, y and the rank that is asked for."""
    rng, d, r = np.random.default_rng(3), 5, 2
    X, true = rng.standard_normal((40, d)), drawn_function(rng, d, r, terms)
    y = true(X)
    if kind == "noisy":
        y = y + 0.1 * np.std(y) * rng.standard_normal(len(y))
    if kind == "of lower rank":
        y = Function(true.U[:, :1], true.b, true.c)(X)
    if kind == "few":
        X, y = X[:8], y[:8]
    if kind == "two solutions":
        problem = twin(1, d, 1, terms, 3 * d)
        X, y, r = problem.X, problem.y, 1
    return X, y, (None if kind == "of unknown rank" else r)


KINDS = ("exact", "noisy", "of unknown rank", "of lower rank", "few", "two solutions")
UNIQUE = ("exact", "noisy", "of unknown rank", "of lower rank")


def check(way: Told, memory: Told, kind: str, accuracy: float = 1e-9) -> None:
    assert way.status is memory.status
    assert way.residual == pytest.approx(memory.residual, rel=1e-9, abs=1e-9)
    if kind in UNIQUE:
        parts = zip(_coefficients(way), _coefficients(memory), strict=True)
        apart, size = np.sum([[np.square(a - b).sum(), np.square(b).sum()] for a, b in parts], 0)
        assert apart <= accuracy**2 * size


def _coefficients(told: Told) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return told.function.Q, told.function.b, np.array(told.function.c)


STATUS = {
    "exact": Status.RECOVERED,
    "noisy": Status.BEST_FIT,
    "of unknown rank": Status.RECOVERED,
    "of lower rank": Status.RECOVERED,
    "few": Status.NOT_IDENTIFIED,
    "two solutions": Status.NOT_IDENTIFIED,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_answer_in_memory(way, kind):
    X, y, r = samples(kind, "none")
    memory = told(recover(X, y, r))
    assert memory.status is STATUS[kind]
    # Passes end where the next step would lower the squared error by 1e-14 of it: the predictions
    # are then within 1e-7 of the residual, 0.055 here.
    accuracy = 1e-8 if (way, kind) == ("by_passes", "noisy") else 1e-9
    check(WAYS[way](X, y, r), memory, kind, accuracy)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("way", TERM_WAYS)
def test_every_way_with_other_terms_gives_the_answer_in_memory(way, terms, kind):
    X, y, r = samples(kind, terms)
    memory = told_by_model(model_of(terms, r).fit(X, y))
    assert memory.status is STATUS[kind]
    check(TERM_WAYS[way](X, y, r, terms), memory, kind)
