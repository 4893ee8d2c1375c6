"""Least squares over positive semidefinite matrices by the solver Clarabel, as a reference."""

from __future__ import annotations

import math

import clarabel
import numpy as np
import scipy.sparse


def system(X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows `svec(A_i)` in Clarabel's order (columns of the upper triangle), and its indices.

    `A_i = x_i x_i'` for inputs `X[n, d]`, and X itself for matrices `X[n, d, d]`.
    """
    j, i = np.tril_indices(X.shape[1])
    entries = X[:, i, j] if X.ndim == 3 else X[:, i] * X[:, j]
    return entries * np.where(i == j, 1.0, math.sqrt(2)), i, j


def symmetric(entries: np.ndarray, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    entries = entries / np.where(i == j, 1.0, math.sqrt(2))
    d = int(j.max()) + 1
    Q = np.zeros((*entries.shape[:-1], d, d))
    Q[..., i, j] = Q[..., j, i] = entries
    return Q


def clarabel_fit(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`argmin ||A(Q) - y||` over positive semidefinite Q, with the norm as a second-order cone."""
    A, i, j = system(X)
    m = A.shape[1]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    cone = np.block([[np.zeros((1, m)), -np.ones((1, 1))], [-A, np.zeros((len(A), 1))]])
    psd = np.hstack([-np.eye(m), np.zeros((m, 1))])
    solver = clarabel.DefaultSolver(
        scipy.sparse.csc_matrix((m + 1, m + 1)),
        np.append(np.zeros(m), 1.0),
        scipy.sparse.csc_matrix(np.vstack([cone, psd])),
        np.concatenate([[0.0], -y, np.zeros(m)]),
        [clarabel.SecondOrderConeT(len(A) + 1), clarabel.PSDTriangleConeT(X.shape[1])],
        settings,
    )
    return symmetric(np.array(solver.solve().x[:m]), i, j)


def extreme_trace(X: np.ndarray, y: np.ndarray, sign: int) -> float:
    """Least (sign 1) or greatest (sign -1) trace of a positive semidefinite Q with `A(Q) = y`."""
    A, i, j = system(X)
    m = A.shape[1]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    trace = np.where(i == j, 1.0, 0.0)
    solver = clarabel.DefaultSolver(
        scipy.sparse.csc_matrix((m, m)),
        sign * trace,
        scipy.sparse.csc_matrix(np.vstack([A, -np.eye(m)])),
        np.concatenate([y, np.zeros(m)]),
        [clarabel.ZeroConeT(len(A)), clarabel.PSDTriangleConeT(X.shape[1])],
        settings,
    )
    return float(trace @ np.array(solver.solve().x))


def largest_least_eigenvalue(A: np.ndarray) -> float:
    """The largest least eigenvalue of `sum_i w_i A_i` over `|w_i| <= 1`, for `A[n, d, d]`.

    It is 0 if no combination is positive definite, that is, if some positive semidefinite matrix
    but zero has measurements zero.
    """
    rows, i, j = system(A)
    n, m = rows.shape
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    box = np.vstack([np.eye(n, n + 1), -np.eye(n, n + 1)])
    cone = np.hstack([-rows.T, np.where(i == j, 1.0, 0.0)[:, None]])
    solver = clarabel.DefaultSolver(
        scipy.sparse.csc_matrix((n + 1, n + 1)),
        np.append(np.zeros(n), -1.0),
        scipy.sparse.csc_matrix(np.vstack([box, cone])),
        np.append(np.ones(2 * n), np.zeros(m)),
        [clarabel.NonnegativeConeT(2 * n), clarabel.PSDTriangleConeT(A.shape[1])],
        settings,
    )
    return float(solver.solve().x[n])
