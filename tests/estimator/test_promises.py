"""What RECOVERED promises of fits with other terms and of fits to many rows.

A problem proves the point by itself (`adversarial.functions`); one that proves nothing fails as an
error.
"""

from __future__ import annotations

import numpy as np
import pytest

from adversarial.functions import Function, Problem, drawn_function, twin, unknowns
from posquad.core.status import Status
from posquad.estimator import PositiveQuadraticRegressor as Regressor
from posquad.problems import rows

pytestmark = [  # what a fit says beside its status
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::posquad.core.errors.IdentifiabilityWarning"),
    pytest.mark.filterwarnings("ignore:The error of the fit is lost in rounding:UserWarning"),
    pytest.mark.filterwarnings("ignore:The search did not know the error:UserWarning"),
]

MANY = 4200  # rows that a fit to a source does not keep: more than 4096
TERMS = {"none": {}, "constant": {"fit_intercept": True}, "linear": {"linear": True}}


def fitted(problem, r, terms, **options):
    return Regressor(r, standard_errors=False, **TERMS[terms], **options).fit(problem.X, problem.y)


def streamed(problem, r, terms):
    model = Regressor(r, standard_errors=False, **TERMS[terms])
    half = len(problem.X) // 2
    model.partial_fit(problem.X[:half], problem.y[:half], refit=False)
    return model.partial_fit(problem.X[half:], problem.y[half:])


def read(problem, r, terms):
    model = Regressor(r, standard_errors=False, **TERMS[terms])
    return model.fit(rows.in_memory(problem.X), problem.y)


WAYS = pytest.mark.parametrize("fit", [read, streamed])


def distance(model, Q):
    return np.linalg.norm(model.components_.T @ model.components_ - Q) / np.linalg.norm(Q)


@pytest.mark.parametrize("terms", ["constant", "linear"])
def test_a_second_function_that_is_easy_to_find_is_found(terms):
    d, r = 4, 2
    n = 3 * unknowns(d, r, terms)
    said = [fitted(twin(seed, d, r, terms, n), r, terms).status_ for seed in range(8)]
    assert said == [Status.NOT_IDENTIFIED] * 8


@pytest.mark.parametrize(("terms", "n"), [("constant", 2), ("linear", 3)])
def test_as_many_samples_as_unknowns_check_nothing(terms, n):
    """One parabola goes through them, whatever they are; one more sample confirms it."""
    x = np.array([[0.0], [1.0], [3.0], [4.0]])
    function = Function(np.ones((1, 1)), np.full(1, 2.0 * (terms == "linear")), 5.0)
    for count, status in ((n, Status.NOT_IDENTIFIED), (n + 1, Status.RECOVERED)):
        assert fitted(Problem(x[:count], (function,)), 1, terms).status_ is status


MISSED = (0, 20, 23, 30, 31, 32, 41, 43, 50, 51, 55)  # with 10p samples, 5 to 10% are missed


@pytest.mark.parametrize("terms", ["constant", "linear"])
@pytest.mark.parametrize(
    ("d", "samples", "seeds"),
    [
        pytest.param(8, lambda p: p + 1, range(6), id="p+1"),
        pytest.param(8, lambda p: 2 * p, range(20), id="2p"),
        pytest.param(2, lambda p: 10 * p, MISSED, id="10p"),
    ],
)
def test_one_of_two_functions_is_not_recovered(d, samples, seeds, terms):
    n = samples(unknowns(d, 1, terms))
    said = [fitted(twin(seed, d, 1, terms, n), 1, terms).status_ for seed in seeds]
    assert said.count(Status.RECOVERED) == 0


@pytest.mark.parametrize("terms", ["constant", "linear"])
def test_max_starts_does_not_limit_the_search_for_a_second_solution(terms):
    d, r = 4, 2
    n = 3 * unknowns(d, r, terms)
    said = [fitted(twin(s, d, r, terms, n), r, terms, max_starts=1).status_ for s in range(4)]
    assert Status.RECOVERED not in said


@pytest.mark.parametrize("terms", ["constant", "linear"])
def test_a_column_below_the_tolerance_is_not_recovered(terms):
    """x_4 of size 1e-6: its square is far below the tolerance, with Q_44 = 1 and with Q_44 = 0."""
    rng, d = np.random.default_rng(0), 4
    X = rng.standard_normal((60, d))
    X[:, -1] *= 1e-6
    b = rng.standard_normal(d) * (terms == "linear")
    with_it = Function(np.eye(d)[:, [0, -1]], b, 1000.0)
    without = Function(np.eye(d)[:, [0]], b, 1000.0)
    problem = Problem(X, (with_it, without), level=1e-10)
    model = fitted(problem, 2, terms)
    assert model.status_ is not Status.RECOVERED or distance(model, with_it.Q) < 1e-3


def signs(rng):
    return rng.choice([-1.0, 1.0], (MANY, 4))


def levels(rng):
    """Three categories of three levels, one-hot without the first level."""
    chosen = rng.integers(0, 3, (MANY, 3, 1))
    return (chosen == [1, 2]).reshape(MANY, 6).astype(float)


def unit_rows(rng):
    X = rng.standard_normal((MANY, 4))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@WAYS
@pytest.mark.parametrize(
    ("design", "terms"), [(signs, "none"), (levels, "none"), (unit_rows, "constant")]
)
def test_many_rows_of_few_kinds_are_recovered(design, terms, fit):
    """Rank one is unique here: +-1 and one-hot rows give products of entries of u, spheres uu'."""
    rng = np.random.default_rng(1)
    X = design(rng)
    problem = Problem(X, (drawn_function(rng, X.shape[1], 1, terms),))
    Q = problem.functions[0].Q
    whole = fitted(problem, 1, terms)
    if whole.status_ is not Status.RECOVERED or distance(whole, Q) > 1e-9:
        raise ValueError("these rows are not recovered in memory either")
    model = fit(problem, 1, terms)
    assert model.status_ is Status.RECOVERED
    assert distance(model, Q) < 1e-6


@WAYS
@pytest.mark.parametrize("terms", TERMS)
def test_many_rows_with_two_solutions_are_reproduced_and_not_identified(terms, fit):
    model = fit(twin(0, 4, 1, terms, MANY), 1, terms)
    assert model.status_ is Status.NOT_IDENTIFIED
    assert model.residual_ < 1e-9


def test_equal_first_rows_of_a_source_with_weights():
    worst = 0.0
    for seed in range(0, 6, 2):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((6000, 4))
        true = drawn_function(rng, 4, 2, "linear")
        weights = rng.uniform(0.1, 2.0, len(X))
        X[:MANY] = X[0]
        new = rng.standard_normal((1000, 4))
        model = Regressor(2, linear=True, standard_errors=False)
        size = np.abs(true(new)).max()
        if np.abs(model.fit(X, true(X), weights).predict(new) - true(new)).max() > 1e-9 * size:
            raise ValueError("these rows do not determine the function in memory either")
        model.fit(rows.in_memory(X), true(X), weights)
        worst = max(worst, np.abs(model.predict(new) - true(new)).max() / size)
    assert worst < 1e-6


@pytest.mark.parametrize("d", [2, 4])
def test_a_square_that_a_constant_replaces_is_not_recovered(d):
    """2 + x_1 = x_1^2 + x_1 + 1 at x_1 = +-1."""
    e = np.eye(d)[0]
    X = np.random.default_rng(d).choice([-1.0, 1.0], (20 * d, d))
    functions = Function(np.zeros((d, 1)), e, 2.0), Function(e[:, None], e, 1.0)
    model = fitted(Problem(X, functions), 1, "linear")
    assert model.status_ is not Status.RECOVERED


@pytest.mark.parametrize("d", [2, 4])
def test_a_constant_on_a_sphere_is_not_recovered(d):
    """2 = x'x + 1 at |x| = 1."""
    X = np.random.default_rng(d).standard_normal((20 * d, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    functions = Function(np.zeros((d, d)), np.zeros(d), 2.0), Function(np.eye(d), np.zeros(d), 1.0)
    model = fitted(Problem(X, functions), d, "constant")
    assert model.status_ is not Status.RECOVERED
