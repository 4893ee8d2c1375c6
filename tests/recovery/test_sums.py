"""Problems whose measurements are sums over samples, in the stages of `recover`."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from posquad import Status, recover
from posquad.core.errors import IdentifiabilityWarning
from posquad.estimator import PositiveQuadraticRegressor
from posquad.problems import rows
from posquad.problems.moments import begin_moments
from posquad.problems.packed import Packed
from posquad.recovery import answers, exclusion, second_solutions, second_starts
from posquad.recovery.budget import Budget, History
from posquad.recovery.candidates import Candidates, Task
from posquad.recovery.evidence import Evidence
from posquad.recovery.problem_cache import ProblemCache
from posquad.recovery.streams.compressed import Compressed

N, D = 5000, 4


def compressed(X, y, weights=None, terms="none"):
    given = [None if a is None else torch.from_numpy(a) for a in (X, y, weights)]
    moments = begin_moments(*given, terms=terms)
    moments.add(*given)
    return Compressed(moments)


def task_of(tolerance=1e-10):
    return Task(tolerance, 0, History(Budget(max_steps=10_000)))


def signs(seed=0, d=D):
    return np.random.default_rng(seed).choice([-1.0, 1.0], (N, d))


@pytest.mark.parametrize("terms", ["none", "constant", "linear"])
def test_the_error_is_that_of_the_rows_with_the_best_other_terms(terms):
    """Against weighted linear regression of what a form leaves, on the rows."""
    rng = np.random.default_rng(1)
    X, w = rng.standard_normal((N, D)) * [1e-2, 1.0, 3.0, 50.0] + 2, rng.random(N)
    y, U = rng.standard_normal(N) + X[:, 1] ** 2, rng.standard_normal((D, 2)) / X.std(0)[:, None]
    Z = {"none": X[:, :0], "constant": np.ones((N, 1)), "linear": np.c_[X, np.ones(N)]}[terms]
    root = np.sqrt(w)
    left = root * (y - ((X @ U) ** 2).sum(1))
    if Z.size:
        left = left - root[:, None] * Z @ np.linalg.lstsq(root[:, None] * Z, left)[0]
    mean = np.average(y, weights=w) if Z.size else 0.0
    expected = np.linalg.norm(left) / np.linalg.norm(root * (y - mean))
    prepared = compressed(X, y, w, terms).prepared
    e, rounding = prepared.given.errors(torch.from_numpy(U))
    assert prepared.of_all_samples(float(prepared.relative(e))) == pytest.approx(expected, rel=1e-9)
    assert float(rounding) < 1e-12
    V = prepared.enter(torch.from_numpy(U))
    own = prepared.problem.relative_residual(V)
    assert prepared.of_all_samples(float(own)) == pytest.approx(expected, rel=1e-9)
    assert (int(prepared.count), prepared.other_terms) == (N, Z.shape[1])


def test_a_second_solution_counts_where_rounding_does_not_exclude_it():
    """Rows of +-1 leave the diagonal of Q free; here a form of another trace has a residual."""
    X = signs()
    problem = compressed(X, ((X @ [1.0, 2.0, -1.0, 0.5]) ** 2))
    prepared = problem.prepared
    U = prepared.enter(torch.tensor([[1.0], [2.0], [-1.0], [0.5]], dtype=torch.float64))
    known = Candidates(1, U, *(np.array(v) for v in (0.0, 1, 1, True, 0.0)))
    radii = second_solutions.Radii(*torch.tensor([0.01, 1e-5], dtype=torch.float64))
    start = 1.3 * U[None]
    for hidden, different in ((0.0, False), (1.0, True)):
        sums = replace(prepared.sums, hidden=lambda V, h=hidden: torch.full(V.shape[:-2], h))
        shared = ProblemCache(replace(prepared, sums=sums))
        spent = task_of()
        spent.history.budget.steps = spent.history.budget.max_steps  # no descent
        ends = second_solutions._ends(
            second_solutions._Known(shared, known, radii, shared.problem), spent, start
        )
        assert [bool(each) for each in ends] == [False, different]


def test_the_search_says_nothing_if_few_starts_agree(monkeypatch):
    X = signs()
    shared = ProblemCache(compressed(X, (X @ [1.0, 2.0, -1.0, 0.5]) ** 2).prepared)
    assert second_starts.plan_search(shared, 1, nongeneric=False).least == 11
    U = torch.ones(D, 1, dtype=torch.float64)
    known = Candidates(1, U, *(np.array(v) for v in (0.0, 1, 1, True, 0.0)))
    radii = second_solutions.Radii(*torch.tensor([0.01, 1e-5], dtype=torch.float64))
    starts = second_starts.Starts(torch.zeros(5, D, 1), torch.ones(5, dtype=torch.bool), 5, 5)
    monkeypatch.setattr(second_solutions, "make_starts", lambda *a, **k: starts)
    for agree, enough in ((0, False), (1, True)):
        again = torch.arange(5) < agree
        monkeypatch.setattr(
            second_solutions, "_ends", lambda *a, e=again: (e, torch.zeros(5).bool())
        )
        found = second_solutions.find_second_solution(
            shared, known, task_of(), radii, 1, nongeneric=False
        )
        assert bool(found.enough) is enough  # 11 rounds of one, or of none


def test_short_matrices_do_not_exclude_another_solution():
    """`M = z_1 A_1 + z_2 A_2` is positive beyond U, but an error of 1e-10 allows forms of 1e-4."""
    B = np.zeros((2, 2, 2))
    B[0, 0, 0], B[1, 1, 1] = 1.0, 1e-6
    z = np.array([0.0, 1.0])
    assert exclusion._is_dual(B[1:], z[1:], 1, 1e-6)
    assert not exclusion._is_dual(B, z, 1, 1e-5)


@pytest.mark.parametrize(
    ("form", "rank", "found"),
    [([1.0, -1.0, 0.0], 1, True), ([1.0, -1.0, 0.5], 1, True), ([1.0, 0.5, 0.2], 2, False)],
)
def test_forms_that_no_measurement_sees(form, rank, found):
    """`<A, uu'> = 0` has a solution beside zero unless A is definite."""
    A = torch.diag(torch.tensor(form, dtype=torch.float64))
    i, j = torch.triu_indices(3, 3)
    X = signs(d=3)
    prepared = compressed(X, X[:, 0] * X[:, 1]).prepared
    problem = replace(prepared.problem, operator=Packed(A[i, j][None]), y=torch.zeros(1).double())
    shared = ProblemCache(replace(prepared, problem=problem))
    evidence = answers._beside_zero(shared, task_of(), rank, Evidence.blank(1, np.dtype(float)))
    assert (bool(evidence.different[0]), bool(evidence.sought[0])) == (found, True)
    assert int(evidence.second_starts[0]) >= 1


def test_no_form_beside_a_constant():
    """On the sphere a multiple of the unit matrix is constant, and no form of a lower rank is."""
    G = np.random.default_rng(2).standard_normal((N, D))
    X, y = G / np.linalg.norm(G, axis=1, keepdims=True), np.full(N, 5.0)
    for inputs, status in ((G, "RECOVERED"), (X, "RECOVERED"), (signs(), "NOT_IDENTIFIED")):
        model = PositiveQuadraticRegressor(1, fit_intercept=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IdentifiabilityWarning)
            model.fit(rows.in_memory(inputs), y)
        assert (model.status_.name, model.rank_) == (status, 0)
        assert model.intercept_ == pytest.approx(5.0, rel=1e-14)


def test_full_rank_is_the_minimum_of_a_convex_problem():
    """The best fit of a negative form and noise is proved by the bound, as in memory."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((N, D))
    y = (X**2) @ [1.0, 0.5, -0.2, -0.1] + 0.1 * rng.standard_normal(N)
    found, whole = recover(rows.in_memory(X), y, D), recover(X, y, D)
    assert found.status is whole.status is Status.BEST_FIT
    np.testing.assert_allclose(found.residual, whole.residual, rtol=1e-9)
    np.testing.assert_allclose(found.residual_bound, whole.residual_bound, rtol=1e-7)
    np.testing.assert_allclose(found.Q.dense(), whole.Q.dense(), atol=1e-6)
