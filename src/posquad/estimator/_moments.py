"""A fit, its spectrum and its standard errors from the moments of a stream, without its rows."""

from __future__ import annotations

import math

import numpy as np

from posquad.core.linalg import eigenvalue_rounding
from posquad.estimator._model import count_unknowns
from posquad.estimator._uncertainty import DENSE_MOST, Uncertainty
from posquad.recovery import Compressed


def moment_spectrum(problem: Compressed, U: np.ndarray) -> np.ndarray:
    """Return the effective eigenvalues in the user's coordinates; of large problems, the two ends.

    `J'WJ` vanishes along rotations, so its other eigenvalues are those on the quotient.
    """
    d, r = U.shape
    back = (problem.back * problem.unit).numpy()  # [k, d]  V = back U
    J = problem.jacobian(U).reshape(-1, problem.k, r)
    J = np.einsum("mkr,kd->mdr", J, back).reshape(len(J), -1)
    size = np.abs(J).max() or 1.0  # the squares of J may overflow, those of J / size do not
    with np.errstate(over="ignore"):
        values = np.linalg.eigvalsh((J / size).T @ (J / size))[r * (r - 1) // 2 :] * size**2
    return values if count_unknowns(d, r) <= DENSE_MOST else values[[0, -1]]


def moment_uncertainty(problem: Compressed, U: np.ndarray) -> Uncertainty:
    """Return how well the samples determine the predictor and other terms in each direction."""
    k, d = problem.k, problem.d
    T, V = problem.T.numpy(), problem.enter(U).numpy()
    values, vectors = np.empty(0), np.empty((0, *V.shape))
    kernel = np.empty(0, dtype=bool)
    shares = np.zeros((0, len(problem.others)))
    if V.size:
        J = problem.jacobian(U)
        values, columns = np.linalg.eigh(J.T @ J)
        columns, gauge = _without_rotations(columns, values, V)
        values, rows = values[gauge:], columns.T
        kernel = values <= eigenvalue_rounding(len(values)) * values[-1]
        vectors = rows.reshape(-1, *V.shape)
        shares = rows @ problem.shares(U).T
    scale = 1 / np.sqrt(values[~kernel] * problem.count)
    unsvec = np.ones(len(problem.others))  # from the scale of svec to coefficients of t and 1
    back = np.zeros((len(problem.others), 0))
    if problem.terms == "constant":
        back = np.ones((1, 1))
    elif problem.terms == "linear":
        unsvec[:-1] = math.sqrt(2)
        back = np.zeros((k + 1, d + 1))
        back[:k, :d], back[k, d] = T.T, 1.0
    shares = shares * unsvec
    second = problem.others.numpy() / unsvec / unsvec[:, None] * problem.count
    return Uncertainty(
        unit=problem.unit.numpy(),
        origin=problem.origin.numpy(),
        root=scale[:, None, None] * (T @ vectors[~kernel]),
        shares=scale[:, None] * shares[~kernel] @ back,
        terms=_inverse_root(second) @ back,
        free=T @ vectors[kernel],
        free_shares=shares[kernel] @ back,
        unseen=problem.unseen.numpy(),
    )


def _without_rotations(
    columns: np.ndarray, values: np.ndarray, V: np.ndarray
) -> tuple[np.ndarray, int]:
    """Return eigenvectors without those that only rotate V, and how many these are."""
    r = V.shape[1]
    gauge = r * (r - 1) // 2
    flat = int((values <= eigenvalue_rounding(len(values)) * values[-1]).sum())
    if flat <= gauge or not gauge:
        return columns[:, gauge:], gauge
    turns = []
    for a in range(r):
        for b in range(a):
            turn = np.zeros((r, r))
            turn[a, b], turn[b, a] = 1.0, -1.0
            turns.append((V @ turn).ravel())
    vertical = np.linalg.qr(np.array(turns).T)[0]
    free = columns[:, :flat] - vertical @ (vertical.T @ columns[:, :flat])
    left = np.linalg.svd(free, full_matrices=False)[0][:, : flat - gauge]
    return np.hstack([left, columns[:, flat:]]), gauge


def _inverse_root(second: np.ndarray) -> np.ndarray:
    """Return `R[k, m]` with `R'R` the pseudo-inverse of a matrix `[m, m]`."""
    values, vectors = np.linalg.eigh(second)
    kept = values > eigenvalue_rounding(len(values)) * values[-1:] if len(values) else values > 0
    return vectors[:, kept].T / np.sqrt(values[kept])[:, None]
