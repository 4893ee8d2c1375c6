"""Least squares over positive semidefinite matrices by the solver Clarabel, as a reference."""

from __future__ import annotations

import math

import clarabel
import numpy as np
import scipy.sparse


def system(X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows `svec(x x')` in Clarabel's order (columns of the upper triangle), and its indices."""
    j, i = np.tril_indices(X.shape[1])
    return X[:, i] * X[:, j] * np.where(i == j, 1.0, math.sqrt(2)), i, j


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
