"""Measurement operators in NumPy, with bounds on the rounding errors of their products.

There are two operators: `A_i = x_i x_i'`, and a stack of matrices, of which the symmetric part
counts. A method returns its result and a size s, such that the error is at most `gamma(depth) s`;
`depth` counts the roundings on the longest path from the data to a result. `measure` returns a
bound on its error directly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from posquad.certificates.proofs.rounding import gamma, product_with_error
from posquad.core.arrays import doubles
from posquad.core.errors import DomainError, DtypeError
from posquad.problems.measurements import Dense, RankOne
from posquad.problems.objectives import LeastSquares, Objective

_BLOCK = 2**22  # entries of a block of rows of the tangent map


class BoundedOperator(ABC):
    """The operator `A(Q)_i = <A_i, Q>`, as proofs and searches need it."""

    n: int
    d: int
    depth: int
    short: int  # depth of results that do not sum over the measurements
    tag: str  # names the kind of measurements in fingerprints; files on disk depend on it

    @abstractmethod
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Return the data, in the order in which a fingerprint reads them."""

    @abstractmethod
    def measure(self, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return `A(UU')` and a bound on its errors, `[n]` each."""

    @abstractmethod
    def tangent_rows(self, U: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield blocks of the rows `vec(A_i U)` `[block, d r]`, and the same in absolute values."""

    @abstractmethod
    def tangent(self, U: np.ndarray, Delta: np.ndarray) -> np.ndarray:
        """Return `<A_i U, Delta>` `[n]`, without an error bound, for searches."""

    @abstractmethod
    def adjoint(self, z: np.ndarray) -> tuple[np.ndarray, float]:
        """Return `A*(z)` `[d, d]`, symmetric, and the size of its error in spectral norm."""

    @abstractmethod
    def adjoint_factor(self, z: np.ndarray, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return `A*(z) U` and the size of its errors, `[d, r]` each."""

    @abstractmethod
    def gram(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return `<A_i, A_j>` `[n, n]`, `tr A_i` `[n]`, and s `[n]`; errors have size `s_i s_j`."""

    @abstractmethod
    def monomials(self, block: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return rows of A in the coordinates `H_ab`, a <= b, `[block, d(d+1)/2]`; their size."""

    def monomial_gram(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the Gram matrix of the rows of `monomials`, and s; errors: `sqrt(s_j s_k)`."""
        return self._monomial_gram

    @cached_property
    def _monomial_gram(self) -> tuple[np.ndarray, np.ndarray]:  # for the search and the proof
        q = self.d * (self.d + 1) // 2
        G, size = np.zeros((q, q)), np.zeros(q)
        rows = max(1, _BLOCK // q)
        for begin in range(0, self.n, rows):
            some, absolute = self.monomials(slice(begin, begin + rows))
            G += some.T @ some
            size += np.square(absolute).sum(0)
        for array in (G, size):
            array.setflags(write=False)
        return G, size

    @abstractmethod
    def weighted_gram(self, S: np.ndarray) -> np.ndarray:
        """Return `tr(A_i S A_j S)` `[n, n]` for a symmetric S, without an error bound."""

    @abstractmethod
    def second_moment(self) -> tuple[np.ndarray, float]:
        """Return `sum_i A_i^2` `[d, d]` and the size of its error in spectral norm."""

    @abstractmethod
    def apply(self, Q: np.ndarray) -> np.ndarray:
        """Return `A(Q)`, without an error bound, for searches."""

    @abstractmethod
    def power_step(self, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return `N(vv')^2` `[k]` and `A*(A(vv')) v` `[d, k]` for the columns v of `V[d, k]`.

        These have no error bounds; they are for searches.
        """


class BoundedRankOne(BoundedOperator):
    """Rank-one measurements `A_i = x_i x_i'`, from the rows of X."""

    tag = "RankOneForms"

    def __init__(self, X: np.ndarray) -> None:
        self.X = X
        self.absolute = np.abs(X)
        self.n, self.d = X.shape
        self.short = 4 * self.d + 60
        self.depth = self.n + self.short

    def arrays(self) -> tuple[np.ndarray, ...]:
        return (self.X,)

    def apply(self, Q: np.ndarray) -> np.ndarray:
        return ((self.X @ Q) * self.X).sum(1)

    def power_step(self, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        products = self.X @ V
        squares = np.square(products)
        levels = np.einsum("ik,ik->k", squares, squares) / self.n
        squares *= products
        return levels, self.X.T @ squares

    def measure(self, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        product, error = product_with_error(self.X, U)
        values = np.square(product).sum(1)
        moved = ((2 * np.abs(product) + error) * error).sum(1)
        return values, gamma(U.shape[1] + 8) * values + 1.01 * moved

    def tangent_rows(self, U: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        rows = max(1, _BLOCK // U.size)
        for begin in range(0, self.n, rows):
            X, absolute = self.X[begin : begin + rows], self.absolute[begin : begin + rows]
            pair = [
                (x[:, :, None] * (x @ u)[:, None, :]).reshape(len(x), -1)
                for x, u in ((X, U), (absolute, np.abs(U)))
            ]
            yield pair[0], pair[1]

    def tangent(self, U: np.ndarray, Delta: np.ndarray) -> np.ndarray:
        return ((self.X @ U) * (self.X @ Delta)).sum(1)

    def adjoint(self, z: np.ndarray) -> tuple[np.ndarray, float]:
        Y = self.X.T @ (z[:, None] * self.X)
        return symmetrized(Y), float(np.abs(z) @ np.square(self.X).sum(1))

    def adjoint_factor(self, z: np.ndarray, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = self.absolute.T @ (np.abs(z)[:, None] * (self.absolute @ np.abs(U)))
        return self.X.T @ (z[:, None] * (self.X @ U)), size

    def gram(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        inner = self.X @ self.X.T
        squares = np.square(self.X).sum(1)
        return symmetrized(np.square(inner)), squares, squares

    def monomials(self, block: slice) -> tuple[np.ndarray, np.ndarray]:
        a, b = np.triu_indices(self.d)
        X = self.X[block]
        rows = np.take(X, a, 1)
        rows *= np.take(X, b, 1)
        rows *= np.where(a == b, 1.0, 2.0)
        return rows, np.abs(rows)

    def weighted_gram(self, S: np.ndarray) -> np.ndarray:
        return np.square(self.X @ S @ self.X.T)

    def second_moment(self) -> tuple[np.ndarray, float]:
        squares = np.square(self.X).sum(1)
        return self.adjoint(squares)


class BoundedDense(BoundedOperator):
    """Measurements by any symmetric matrices `A[n, d, d]`."""

    tag = "DenseForms"

    def __init__(self, A: np.ndarray) -> None:
        self.A = (A + A.transpose(0, 2, 1)) / 2
        self.absolute = np.abs(A) / 2 + np.abs(A.transpose(0, 2, 1)) / 2
        self.given = A
        self.n, self.d = A.shape[:2]
        self.short = self.d * (self.d + 4) + 60
        self.depth = self.n * self.d + self.short

    def arrays(self) -> tuple[np.ndarray, ...]:
        return (self.given,)

    def apply(self, Q: np.ndarray) -> np.ndarray:
        return np.einsum("iab,ab->i", self.A, Q)

    def power_step(self, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        products = self.A @ V
        measured = np.einsum("iak,ak->ik", products, V)
        levels = np.einsum("ik,ik->k", measured, measured) / self.n
        return levels, np.einsum("ik,iak->ak", measured, products)

    def measure(self, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        absolute = np.abs(U)
        size = ((self.absolute @ absolute) * absolute).sum((1, 2))
        return ((self.A @ U) * U).sum((1, 2)), gamma(self.short) * size

    def tangent_rows(self, U: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        rows = max(1, _BLOCK // (U.size * self.d))
        for begin in range(0, self.n, rows):
            block = slice(begin, begin + rows)
            size = (self.absolute[block] @ np.abs(U)).reshape(-1, U.size)
            yield (self.A[block] @ U).reshape(-1, U.size), size

    def tangent(self, U: np.ndarray, Delta: np.ndarray) -> np.ndarray:
        return np.tensordot(self.A, Delta @ U.T, 2)

    def adjoint(self, z: np.ndarray) -> tuple[np.ndarray, float]:
        size = np.tensordot(np.abs(z), self.absolute, 1)
        return symmetrized(np.tensordot(z, self.A, 1)), float(size.sum(1).max())

    def adjoint_factor(self, z: np.ndarray, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = np.tensordot(np.abs(z), self.absolute, 1) @ np.abs(U)
        return np.tensordot(z, self.A, 1) @ U, size

    def gram(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        flat = self.A.reshape(self.n, -1)
        size = np.sqrt(np.square(self.absolute).sum((1, 2))) * np.sqrt(self.d)
        return symmetrized(flat @ flat.T), np.trace(self.A, axis1=1, axis2=2), size

    def monomials(self, block: slice) -> tuple[np.ndarray, np.ndarray]:
        a, b = np.triu_indices(self.d)
        double = np.where(a == b, 1.0, 2.0)
        return self.A[block, a, b] * double, self.absolute[block, a, b] * double

    def weighted_gram(self, S: np.ndarray) -> np.ndarray:
        turned = (S @ self.A).reshape(self.n, -1)
        return turned @ (self.A @ S).transpose(0, 2, 1).reshape(self.n, -1).T

    def second_moment(self) -> tuple[np.ndarray, float]:
        stacked = self.A.reshape(-1, self.d)
        return symmetrized(stacked.T @ stacked), float(np.square(self.absolute).sum())


def bounded_problem(objective: Objective) -> tuple[BoundedOperator, np.ndarray]:
    """Return the measurements and responses of a least-squares objective, in double precision."""
    expected = "one LeastSquares objective over RankOne or Dense measurements"
    # A subclass may define other measurements than those read below.
    if type(objective) is not LeastSquares:
        raise DtypeError("objective", expected=expected, got=type(objective).__name__)
    if objective.batch_shape:
        got = f"a batch of shape {tuple(objective.batch_shape)}"
        raise DomainError("objective", expected=expected, got=got)
    measurements, y = objective.measurements, doubles(objective.y)
    if type(measurements) is RankOne:
        return BoundedRankOne(doubles(measurements.X)), y
    if type(measurements) is Dense:
        return BoundedDense(doubles(measurements.A)), y
    raise DtypeError("objective", expected=expected, got=repr(measurements))


def symmetrized(M: np.ndarray) -> np.ndarray:
    """Copy the lower triangle to the upper one; each entry stays within its error bound."""
    return np.tril(M) + np.tril(M, -1).T
