"""The cells of the diagrams, and the committed results of their full runs."""

from __future__ import annotations

import clarabel
import numpy as np
import pytest
from scipy import sparse

from posquad.core.errors import DomainError
from posquad.geometry import dimension
from posquad.sweep import load_sweep
from posquad.sweep.declaration import DIAGRAMS
from posquad.sweep.diagrams import recovery
from posquad.sweep.diagrams.certifiability import planted_problem
from posquad.sweep.diagrams.ellipsoid import FOURTH_MOMENT, design, ellipsoid_cell
from posquad.sweep.diagrams.results import diagram_results, results_file
from posquad.sweep.grid import cell_text


@pytest.mark.parametrize("name", DIAGRAMS)
def test_the_committed_results_are_those_of_the_whole_grid(name):
    """An adaptive grid that is given the results asks for exactly these cells and no more."""
    table, grid = diagram_results(name), load_sweep(name).grid
    own = [column.tolist() for column in (table[n] for n in grid.names)]
    cells = [dict(zip(grid.names, row, strict=True)) for row in zip(*own, strict=True)]
    results = sorted(set(table.columns) - set(grid.names) - {"seconds", "versions"})
    known = {
        cell_text(cell): {n: table[n][k].item() for n in results} for k, cell in enumerate(cells)
    }
    assert {cell_text(cell) for cell in grid.cells(known)} == set(known)
    assert results_file(name).stat().st_size < 300_000


def test_every_design_of_the_ellipsoid_diagram_is_decided():
    table = diagram_results("ellipsoid")
    assert np.all(table["fits"] + table["refuted"] == 1)
    assert np.all(table["margin"][table["fits"] == 1] > 1000)


def test_no_answer_of_the_recovery_diagram_is_called_recovered_and_wrong():
    table = diagram_results("recovery")
    assert not table["wrong"].any()
    for smaller, larger in (("proved", "trace"), ("descent", "close"), ("claimed", "found")):
        assert np.all(table[smaller] <= table[larger])
    for d, r, ratio, n in zip(*(table[c] for c in ("d", "r", "ratio", "n")), strict=True):
        assert n == round(ratio * dimension(int(d), int(r)))


@pytest.mark.parametrize("kind", FOURTH_MOMENT)
def test_coordinates_have_variance_one_and_their_fourth_moment(kind):
    """Within five standard errors, estimated from the same sample."""
    x = design(kind, 400, 500, seed=1).ravel()
    for power, moment in ((1, 0.0), (2, 1.0), (4, FOURTH_MOMENT[kind])):
        error = (x**power).std() / np.sqrt(len(x))
        assert abs((x**power).mean() - moment) < 5 * error


@pytest.mark.parametrize("alpha", [0.15, 0.25, 0.4])
def test_the_ellipsoid_cell_agrees_with_a_conic_solver(alpha):
    d = 8
    for seed in range(3):
        cell = ellipsoid_cell({"coordinates": "gaussian", "d": d, "alpha": alpha}, seed)
        X = design("gaussian", cell["n"], d, seed)
        assert cell["fits"] + cell["refuted"] == 1
        assert bool(cell["fits"]) == _has_fit(X)


def _has_fit(X: np.ndarray) -> bool:
    """Whether the largest t with `R - tI` positive semidefinite and `x'Rx = 1` is positive."""
    n, d = X.shape
    places = [(i, j) for j in range(d) for i in range(j + 1)]  # Clarabel's order of the triangle
    scale = [1.0 if i == j else np.sqrt(2) for i, j in places]
    products = [s * X[:, i] * X[:, j] for s, (i, j) in zip(scale, places, strict=True)]
    m = len(places)
    A = np.zeros((n + m, m + 1))  # of the variables (R, t)
    A[:n, :m], A[n:, :m] = np.stack(products, axis=1), -np.eye(m)
    A[n:, m] = [float(i == j) for i, j in places]
    b = np.concatenate([np.ones(n), np.zeros(m)])
    cones = [clarabel.ZeroConeT(n), clarabel.PSDTriangleConeT(d)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    zero, objective = sparse.csc_matrix((m + 1, m + 1)), np.append(np.zeros(m), -1.0)
    solution = clarabel.DefaultSolver(
        zero, objective, sparse.csc_matrix(A), b, cones, settings
    ).solve()
    assert str(solution.status) == "Solved"
    assert abs(solution.x[m]) > 1e-5  # far above the accuracy of the solver
    return solution.x[m] > 0


def test_unknown_names_are_one_sentence():
    with pytest.raises(DomainError, match="coordinates: expected one of gaussian, uniform"):
        design("cauchy", 3, 2, seed=0)
    with pytest.raises(DomainError, match="name: expected one of certifiability, ellipsoid"):
        results_file("mine")


def test_a_problem_without_a_moment_initializer_is_not_found_by_descent():
    problems = [planted_problem(8, 4, 3, seed) for seed in range(40)]
    short = [p for p in problems if _positive_eigenvalues(p) < 3]
    usual = [p for p in problems if _positive_eigenvalues(p) >= 3]
    X, U, y = (np.stack(parts) for parts in zip(short[0], *usual[:2], strict=True))
    errors = recovery._descent_errors(X, U, y, 50)
    assert errors[0] == np.inf
    assert np.all(np.isfinite(errors[1:]))
    alone = recovery._descent_errors(X[1:], U[1:], y[1:], 50)
    assert np.allclose(errors[1:], alone, rtol=1e-10, atol=0)
    assert recovery._descent_errors(X[:1], U[:1], y[:1], 50).tolist() == [np.inf]


def _positive_eigenvalues(problem) -> int:
    """Those of `(1/2n) sum_i y_i (x_i x_i' - I)`."""
    X, _, y = problem
    moment = ((X.T * y) @ X / len(y) - y.mean() * np.eye(X.shape[1])) / 2
    return int((np.linalg.eigvalsh(moment) > 0).sum())
