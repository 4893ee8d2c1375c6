"""Search for z with `A*(z) U = 0` and `V'A*(z)V` positive definite; nothing here is a proof.

The first candidate solves `V'A*(z)V = I` over `{A*(z)U = 0}` by least squares, which suffices from
about three measurements per degree of freedom. The second maximises the smallest eigenvalue over
`||z|| <= 1` by an interior point method, for the best stability constant (statement 8). The Hessian
of its barrier is `tr(A_i R A_j R)`, for rank-one measurements a squared Gram matrix, so a Newton
step costs O(n^2 d + n^3). It finds a z whenever one exists. With too many measurements for an
n x n matrix, over-relaxed alternating projections are used, with products by A and A* only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import scipy.sparse.linalg

from posquad.certificates.proofs.bounded_operator import BoundedOperator
from posquad.geometry import dimension

_sparse: Any = scipy.sparse.linalg  # its type stubs lack the arguments of LinearOperator
_NEWTON_LIMIT = 2500  # maximum number of measurements for second-order steps
_POLISH_LIMIT = 400  # the same, for steps that only improve the constant
_STEPS = 120  # maximum number of Newton steps
_ALTERNATIONS, _FLOOR = 30, 0.1  # maximum number of projections, and their target eigenvalue
_STRETCHES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # over-relaxation factors that are tried


@dataclass(frozen=True)
class DualGuess:
    """A candidate z of norm 1, and the computed smallest eigenvalue of `V'A*(z)V`."""

    z: np.ndarray
    smallest: float
    method: str  # "least squares", "interior point" or "alternating projections"
    exhausted: bool = False  # the search converged without a positive definite matrix


class DualSearch:
    """The space `{z : A*(z) U = 0}` and the map `z -> V'A*(z)V` on it."""

    def __init__(self, operator: BoundedOperator, U: np.ndarray, factor: np.ndarray) -> None:
        """Take the lower Cholesky factor of the Gram matrix with its gauge term (`TangentGram`)."""
        self.operator, self.U, self.factor = operator, U, factor
        self.V = np.linalg.qr(U, mode="complete")[0][:, U.shape[1] :]  # [d, d - r]
        self.dense = operator.n <= _NEWTON_LIMIT
        if self.dense:
            # The columns of `range` span the complement of the space; range range' projects on it.
            rows = np.concatenate([block for block, _ in operator.tangent_rows(U)])  # [n, d r]
            self.range = scipy.linalg.solve_triangular(factor, rows.T, lower=True).T

    def project(self, z: np.ndarray) -> np.ndarray:
        """Project z onto the space, three times, because each pass reduces the rounding error."""
        for _ in range(3):
            normal = self.operator.adjoint_factor(z, self.U)[0]
            solved = scipy.linalg.cho_solve((self.factor, True), normal.ravel())
            z = z - self.operator.tangent(self.U, solved.reshape(self.U.shape))
        return z

    def compressed(self, z: np.ndarray) -> np.ndarray:
        """Return `V'A*(z)V`, `[d - r, d - r]`."""
        M = self.V.T @ self.operator.adjoint(z)[0] @ self.V
        return (M + M.T) / 2

    def find(self) -> DualGuess | None:
        """Return the best candidate found, or None if the space holds only z = 0 or r = d."""
        d, r = self.U.shape
        if self.operator.n <= dimension(d, r) or r == d:
            return None
        start = self._nearest_to(np.eye(d - r))
        guess = None if start is None else self._guess(start, "least squares")
        if start is None or guess is None:
            return None
        polished = None
        if self.dense and (guess.smallest <= 0 or self.operator.n <= _POLISH_LIMIT):
            polished = self._interior_point(guess.z)
        elif guess.smallest <= 0:
            polished = self._alternating_projections(start)
        if polished is not None and (polished.exhausted or polished.smallest > guess.smallest):
            return polished
        return guess

    def _nearest_to(self, target: np.ndarray) -> np.ndarray | None:
        """Return the z of the space with `V'A*(z)V` nearest to the target, by least squares."""
        right = self.project(self.operator.apply(self.V @ target @ self.V.T))
        if not self.dense:
            return self._conjugate_gradients(right)
        P = self.V @ self.V.T
        return self._solve(self._reduced(self.operator.weighted_gram(P)), right)

    def _conjugate_gradients(self, right: np.ndarray) -> np.ndarray:
        """Solve the least squares without an n x n matrix, by products with A and A*."""

        def product(z: np.ndarray) -> np.ndarray:
            lifted = self.V @ self.compressed(z) @ self.V.T
            return self.project(self.operator.apply(lifted))  # so every iterate lies in the space

        n = self.operator.n
        system = _sparse.LinearOperator((n, n), matvec=product, dtype=float)
        return _sparse.cg(system, right, rtol=1e-2, maxiter=30)[0]

    def _alternating_projections(self, z: np.ndarray) -> DualGuess | None:
        """Alternate projections between the space and `{M >= floor I}`, with over-relaxation.

        The space has a low dimension, so plain projections are short. Each is stretched by the
        factor that gives the largest smallest eigenvalue.
        """
        M = self.compressed(z)
        for _ in range(_ALTERNATIONS):
            values, vectors = np.linalg.eigh(M)
            if values[0] > 0.3 * _FLOOR:
                break
            short = np.maximum(_FLOOR - values, 0.0)
            step = self._nearest_to((vectors * short) @ vectors.T)
            if step is None:
                break
            moved = self.compressed(step)
            lowest = [float(np.linalg.eigvalsh(M + t * moved)[0]) for t in _STRETCHES]
            stretch = _STRETCHES[int(np.argmax(lowest))]
            z, M = z + stretch * step, M + stretch * moved
        return self._guess(z, "alternating projections")

    def _guess(self, z: np.ndarray, method: str, exhausted: bool = False) -> DualGuess | None:
        """Return the candidate for a projected z of norm 1; None if z is zero or not finite."""
        z = self.project(z)
        size = float(np.linalg.norm(z))
        if not (math.isfinite(size) and size > 0):
            return None
        z = self.project(z / size)
        return DualGuess(z, float(np.linalg.eigvalsh(self.compressed(z))[0]), method, exhausted)

    def _reduced(self, H: np.ndarray) -> np.ndarray:
        """Return `P H P` with P the projector on the space, plus a multiple of `I - P`."""
        Q = self.range
        HQ = H @ Q
        mixed = Q @ HQ.T
        scale = float(np.trace(H)) / len(H)
        inner = Q.T @ HQ + scale * np.eye(Q.shape[1])
        return H - mixed - mixed.T + Q @ (inner @ Q.T)

    @staticmethod
    def _solve(H: np.ndarray, right: np.ndarray) -> np.ndarray | None:
        try:
            factor = scipy.linalg.cho_factor(H, lower=True, check_finite=False)
        except (scipy.linalg.LinAlgError, ValueError):
            # The least-squares system may be singular if n - p exceeds the size of V'A*(z)V.
            ridge = 1e-12 * float(np.trace(H)) / len(H)
            try:
                factor = scipy.linalg.cho_factor(H + ridge * np.eye(len(H)), lower=True)
            except (scipy.linalg.LinAlgError, ValueError):
                return None
        return scipy.linalg.cho_solve(factor, right, check_finite=False)

    def _interior_point(self, start: np.ndarray) -> DualGuess | None:
        """Maximise s over `V'A*(z)V >= s I`, `||z|| < 1`, by the barrier method."""
        m = self.V.shape[1]
        z = 0.5 * start
        eigenvalues = np.linalg.eigvalsh(self.compressed(z))
        scale = float(np.abs(eigenvalues).max())
        if not scale > 0:
            return None
        s = float(eigenvalues[0]) - 0.1 * scale
        weight = m / scale
        for _ in range(_STEPS):
            S = self.compressed(z) - s * np.eye(m)
            try:
                inverse = np.linalg.inv(S)
            except np.linalg.LinAlgError:
                break
            room = 1 - float(z @ z)
            R = self.V @ inverse @ self.V.T
            gz = self.project(2 * z / room - self.operator.apply(R))
            gs = float(np.trace(inverse)) - weight
            H = self.operator.weighted_gram(R) + (4 / room**2) * np.outer(z, z)
            H[np.diag_indices(len(H))] += 2 / room
            cross = -self.project(self.operator.apply(self.V @ inverse @ inverse @ self.V.T))
            both = self._solve(self._reduced(H), np.stack([gz, cross], axis=1))
            if both is None:
                break
            ug, uc = self.project(both[:, 0]), self.project(both[:, 1])
            schur = float(np.square(inverse).sum()) - float(cross @ uc)
            if not schur > 0:
                break
            ds = -(gs - float(cross @ ug)) / schur
            dz = -ug - ds * uc
            decrement = -(float(gz @ dz) + gs * ds)
            z, s = self._damped_step(z, s, dz, ds)
            if decrement < 0.25:
                # The barrier has parameter m + 2, so s is within (m + 2) / weight of its maximum.
                if s > 0 and (m + 2) / weight < 0.05 * s:
                    break
                # If no such z exists, the maximum is s = 0, at z = 0.
                if s < 0 and (m + 2) / weight < 1e-9 * scale:
                    return self._guess(z, "interior point", exhausted=True)
                weight *= 8
        return self._guess(z, "interior point")

    def _damped_step(
        self, z: np.ndarray, s: float, dz: np.ndarray, ds: float
    ) -> tuple[np.ndarray, float]:
        """Take a Newton step, at most nine tenths of the way to the boundary."""
        direction = self.compressed(dz) - ds * np.eye(self.V.shape[1])
        S = self.compressed(z) - s * np.eye(self.V.shape[1])
        try:
            worst = float(scipy.linalg.eigvalsh(direction, S)[0])
        except np.linalg.LinAlgError:
            return z, s
        step = min(1.0, 0.9 / -worst) if worst < 0 else 1.0
        while float(np.square(z + step * dz).sum()) >= 1 and step > 1e-12:
            step /= 2
        return z + step * dz, s + step * ds
