"""Least squares in the factor alone: unconstrained terms are eliminated (variable projection).

For `f(t) = ||V't||^2 + z(t)'b`, the best b for a given V is a linear least-squares problem. With it
the residual is `P (||V't_i||^2 - y_i)`, where P projects on the complement of the columns z, and
its derivative is P times that of the quadratic form (Golub and Pereyra 1973).
"""

from __future__ import annotations

import numpy as np
import torch

from posquad.core.symmetric import symmetric_system
from posquad.recovery.damped import Eliminated

_BLOCK_ENTRIES = 2**21  # entries of a block of rows of the Jacobian


class Profiled:
    """The squared error as a function of V, `[k, r]`, minimised over the other terms."""

    def __init__(self, t: np.ndarray, y: np.ndarray, mass: np.ndarray, Z: np.ndarray) -> None:
        """Take inputs `t[n, k]`, responses `y[n]`, weights and the columns `Z[n, m]`."""
        self.t, self.mass, self.Z, self.given = t, mass, Z, y
        self.root = np.sqrt(mass)
        N, s, _ = np.linalg.svd(self.root[:, None] * Z, full_matrices=False)
        self.N = N[:, s > len(y) * np.finfo(float).eps * s[:1]]
        self.y = self.project(self.root * y)
        self.size = float(self.y @ self.y)

    def project(self, e: np.ndarray) -> np.ndarray:
        """Return the part of e that the other terms cannot explain; twice, to rounding."""
        for _ in range(2):
            e = e - self.N @ (self.N.T @ e)
        return e

    def errors(self, V: np.ndarray) -> np.ndarray:
        """Return the weighted errors `[n]` with the best other terms."""
        return self.project(self.root * ((self.t @ V) ** 2).sum(axis=1)) - self.y

    def loss(self, V: np.ndarray) -> float:
        """Return the sum of the squared weighted errors."""
        return float((self.errors(V) ** 2).sum())

    def coefficients(self, V: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the best coefficients b of the other terms, `[m]`."""
        left = self.root * (y - ((self.t @ V) ** 2).sum(axis=1))
        return np.linalg.lstsq(self.root[:, None] * self.Z, left)[0]

    def curvature(self, V: np.ndarray) -> np.ndarray:
        """Return `J'J` of the errors, `[k r, k r]`, by blocks of rows."""
        W, width = self.t @ V, V.size
        K = np.zeros((width, width))
        explained = np.zeros((self.N.shape[1], width))
        step = max(1, _BLOCK_ENTRIES // width)
        for begin in range(0, len(W), step):
            rows = slice(begin, begin + step)
            J = (self.t[rows, :, None] * W[rows, None, :]).reshape(-1, width)
            J *= 2 * self.root[rows, None]
            K += J.T @ J
            explained += self.N[rows].T @ J
        return K - explained.T @ explained

    def bend(self, e: np.ndarray) -> np.ndarray:
        """Return `2 sum_i w_i e_i t_i t_i'`, `[k, k]`, from second derivatives of the errors."""
        return 2 * (self.t.T @ ((self.root * e)[:, None] * self.t))

    def curved(self, V: np.ndarray, D: np.ndarray) -> np.ndarray:
        """Return `J'J D`, `[k, r]`."""
        moved = 2 * self.root * ((self.t @ V) * (self.t @ D)).sum(axis=1)
        return self.slope(V, self.project(moved))

    def correlation(self, V: np.ndarray) -> np.ndarray:
        """Return `-A*(e)`, `[k, k]`: an eigenvector of a positive eigenvalue lowers the loss."""
        return -self.bend(self.errors(V)) / 2

    def without(self, v: np.ndarray) -> Eliminated:
        """Return the errors with all products of `v't` with linear functions eliminated."""
        products = (self.t @ v)[:, None] * self.t
        basis = np.linalg.svd(v[:, None])[0][:, 1:]
        others = np.column_stack([self.Z, products])
        inner = Profiled(self.t @ basis, self.given, self.mass, others)

        def coefficients(W: np.ndarray) -> np.ndarray:
            return inner.coefficients(W, self.given)[self.Z.shape[1] :]

        return Eliminated(inner, basis, coefficients)

    def system(self) -> tuple[np.ndarray, np.ndarray]:
        """Return `S[n, k(k+1)/2]` and `z[n]` with `e = S svec(VV') - z`."""
        system = symmetric_system(torch.from_numpy(self.t)).numpy()
        return self.project(system * self.root[:, None]), self.y

    def total_curvature(self, V: np.ndarray) -> float:
        """Return an upper bound on the trace of `J'J`, that without other terms."""
        lengths = (self.t**2).sum(axis=1)
        return 4 * float((self.mass * lengths * ((self.t @ V) ** 2).sum(axis=1)).sum())

    def slope(self, V: np.ndarray, e: np.ndarray) -> np.ndarray:
        """Return `J'e`, `[k, r]`, for errors e that the other terms cannot explain."""
        return 2 * (self.t.T @ ((self.root * e)[:, None] * (self.t @ V)))

    def scaled(self, V: np.ndarray) -> np.ndarray:
        """Return V times the factor of least loss; V itself if that is zero."""
        q = self.project(self.root * ((self.t @ V) ** 2).sum(axis=1))
        square = float(q @ self.y) / (float(q @ q) or 1.0)
        return V * np.sqrt(square) if square > 0 else V

    def form_size(self, V: np.ndarray) -> float:
        """Return the size of the quadratic form over that of y beyond the other terms."""
        q = self.root * ((self.t @ V) ** 2).sum(axis=1)
        return float(np.linalg.norm(q) / (np.sqrt(self.size) or 1.0))
