"""Squared errors of a packed linear system: `||R svec(VV') - z||^2 + c`."""

from __future__ import annotations

import math

import numpy as np
import torch

from posquad.core.symmetric import (
    svec,
    symmetric_congruence,
    symmetric_jacobian,
    symmetric_matrix,
)
from posquad.recovery.damped import Eliminated


class PackedErrors:
    """The errors `(R q - z, sqrt(c))` with `q = svec(VV')`: a `damped.SquaredErrors`.

    `R[m, k(k+1)/2]`, `z[m]`, and c is what no V changes.
    """

    def __init__(self, R: np.ndarray, z: np.ndarray, least: float) -> None:
        self._R, self._z, self.least = R, z, least
        self.k = (math.isqrt(8 * R.shape[1] + 1) - 1) // 2
        self.size = float(z @ z) + least
        self._constant = np.array([math.sqrt(least)])
        self._last: tuple[np.ndarray, np.ndarray] | None = None

    def errors(self, V: np.ndarray) -> np.ndarray:
        """Return `(R q - z, sqrt(c))`."""
        return np.concatenate([self._image(V) - self._z, self._constant])

    def _image(self, V: np.ndarray) -> np.ndarray:
        return self._R @ svec(torch.from_numpy(V @ V.T)).numpy()

    def _adjoint(self, e: np.ndarray) -> np.ndarray:
        return symmetric_matrix(torch.from_numpy(self._R.T @ e[: len(self._R)]), self.k).numpy()

    def slope(self, V: np.ndarray, e: np.ndarray) -> np.ndarray:
        """Return `J'e`, `[k, r]`."""
        return 2 * self._adjoint(e) @ V

    def derivative(self, V: np.ndarray) -> np.ndarray:
        """Return J, `[rows of R, k r]`; the last one is kept."""
        if self._last is None or not np.array_equal(self._last[0], V):
            J = self._R @ symmetric_jacobian(torch.from_numpy(V)).numpy()
            self._last = V.copy(), J
        return self._last[1]

    def curvature(self, V: np.ndarray) -> np.ndarray:
        """Return `J'J`, `[k r, k r]`."""
        J = self.derivative(V)
        return J.T @ J

    def curved(self, V: np.ndarray, D: np.ndarray) -> np.ndarray:
        """Return `J'J D`, `[k, r]`."""
        moved = V @ D.T
        image = self._R @ svec(torch.from_numpy(moved + moved.T)).numpy()
        return self.slope(V, image)

    def bend(self, e: np.ndarray) -> np.ndarray:
        """Return `2 A*(e)`, `[k, k]`."""
        return 2 * self._adjoint(e)

    def system(self) -> tuple[np.ndarray, np.ndarray]:
        """Return R and z."""
        return self._R, self._z

    def total_curvature(self, V: np.ndarray) -> float:
        """Return the trace of `J'J`."""
        return float((self.derivative(V) ** 2).sum())

    def form_size(self, V: np.ndarray) -> float:
        """Return `||R q||` over the root of the size of the responses."""
        return float(np.linalg.norm(self._image(V)) / (math.sqrt(self.size) or 1.0))

    def loss(self, V: np.ndarray) -> float:
        """Return the sum of the squared errors."""
        e = self.errors(V)
        return float(e @ e)

    def scaled(self, V: np.ndarray) -> np.ndarray:
        """Return V times the factor of least loss; V itself if that is zero."""
        q = self._image(V)
        square = float(q @ self._z) / (float(q @ q) or 1.0)
        return V * math.sqrt(square) if square > 0 else V

    def correlation(self, V: np.ndarray) -> np.ndarray:
        """Return `-A*(e)`, `[k, k]`: an eigenvector of a positive eigenvalue lowers the loss."""
        return -self._adjoint(self.errors(V))

    def without(self, v: np.ndarray) -> Eliminated:
        """Return the errors with all products of `v's` with linear functions eliminated."""
        eye = np.eye(self.k)
        pairs = (v[:, None] * eye[:, None, :] + eye[:, :, None] * v) / 2
        columns = self._R @ svec(torch.from_numpy(pairs)).numpy().T
        N, s, _ = np.linalg.svd(columns, full_matrices=False)
        N = N[:, s > _INDEPENDENT * s[:1]]
        basis = np.linalg.svd(v[:, None])[0][:, 1:]  # [k, k - 1], orthogonal to v
        R = self._R @ symmetric_congruence(torch.from_numpy(basis)).numpy()
        inner = PackedErrors(R - N @ (N.T @ R), self._z - N @ (N.T @ self._z), self.least)

        def coefficients(W: np.ndarray) -> np.ndarray:
            return np.linalg.lstsq(columns, self._z - self._image(basis @ W))[0]

        return Eliminated(inner, basis, coefficients)


# Singular value of these products, over the largest, up to which they are dependent. A choice.
_INDEPENDENT = 1e-10
