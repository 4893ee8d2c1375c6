"""The measurements as NumPy arrays, with a bound on the rounding of everything computed from them.

Two operators are known: `A_i = x_i x_i'` and a stack of symmetric matrices. Of a stack the
symmetric part is meant, as everywhere. Each method returns what it computed and the size against
which `gamma(depth)` bounds its error; `depth` counts the roundings on the longest way from data to
result. `measure` bounds its error outright.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from posquad.certificates.proofs.rounding import gamma, product_with_error
from posquad.core.errors import DomainError, DtypeError
from posquad.problems.measurements import Dense, RankOne
from posquad.problems.objectives import LeastSquares, Objective

_BLOCK = 2**22  # entries of a block of rows of the tangent map


class Forms(ABC):
    """What proofs and searches need of `A(Q)_i = <A_i, Q>`."""

    n: int
    d: int
    depth: int
    short: int  # the depth of what does not sum over the measurements

    @abstractmethod
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The data, in the order in which a fingerprint reads them."""

    @abstractmethod
    def measure(self, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`A(UU')` and a bound on its errors, `[n]` each."""

    @abstractmethod
    def tangent_rows(self, U: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Blocks of the rows `vec(A_i U)` `[block, d r]`, and the same in absolute values."""

    @abstractmethod
    def tangent(self, U: np.ndarray, Delta: np.ndarray) -> np.ndarray:
        """`<A_i U, Delta>` `[n]` (for searches; no bound is kept)."""

    @abstractmethod
    def adjoint(self, z: np.ndarray) -> tuple[np.ndarray, float]:
        """`A*(z)` `[d, d]`, symmetric, and the size of its error in spectral norm."""

    @abstractmethod
    def adjoint_factor(self, z: np.ndarray, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`A*(z) U` and the size of its errors, `[d, r]` each."""

    @abstractmethod
    def gram(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`<A_i, A_j>` `[n, n]`; `tr A_i` `[n]`; numbers s with errors of the size `s_i s_j`."""

    @abstractmethod
    def monomials(self, block: slice) -> tuple[np.ndarray, np.ndarray]:
        """Rows of A in the coordinates `H_ab`, a <= b, `[block, d(d+1)/2]`; their absolute size."""

    def monomial_gram(self) -> tuple[np.ndarray, np.ndarray]:
        """`sum_i m_i m_i'` over the rows of `monomials`; errors of the size `sqrt(s_j s_k)`, s."""
        q = self.d * (self.d + 1) // 2
        G, size = np.zeros((q, q)), np.zeros(q)
        rows = max(1, _BLOCK // q)
        for begin in range(0, self.n, rows):
            some, absolute = self.monomials(slice(begin, begin + rows))
            G += some.T @ some
            size += np.square(absolute).sum(0)
        return G, size

    @abstractmethod
    def weighted_gram(self, S: np.ndarray) -> np.ndarray:
        """`tr(A_i S A_j S)` `[n, n]` for a symmetric S (for searches; no bound is kept)."""

    @abstractmethod
    def second_moment(self) -> tuple[np.ndarray, float]:
        """`sum_i A_i^2` `[d, d]` and the size of its error in spectral norm."""

    @abstractmethod
    def apply(self, Q: np.ndarray) -> np.ndarray:
        """`A(Q)` (for searches; no bound is kept)."""

    @abstractmethod
    def apply_vector(self, v: np.ndarray) -> np.ndarray:
        """`A(vv')` (for searches; no bound is kept)."""


class RankOneForms(Forms):
    """`A_i = x_i x_i'` from the rows of X."""

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

    def apply_vector(self, v: np.ndarray) -> np.ndarray:
        return np.square(self.X @ v)

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
        return _mirrored(Y), float(np.abs(z) @ np.square(self.X).sum(1))

    def adjoint_factor(self, z: np.ndarray, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = self.absolute.T @ (np.abs(z)[:, None] * (self.absolute @ np.abs(U)))
        return self.X.T @ (z[:, None] * (self.X @ U)), size

    def gram(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        inner = self.X @ self.X.T
        squares = np.square(self.X).sum(1)
        return _mirrored(np.square(inner)), squares, squares

    def monomials(self, block: slice) -> tuple[np.ndarray, np.ndarray]:
        a, b = np.triu_indices(self.d)
        X = self.X[block]
        rows = X[:, a] * X[:, b] * np.where(a == b, 1.0, 2.0)
        return rows, np.abs(rows)

    def weighted_gram(self, S: np.ndarray) -> np.ndarray:
        return np.square(self.X @ S @ self.X.T)

    def second_moment(self) -> tuple[np.ndarray, float]:
        squares = np.square(self.X).sum(1)
        return self.adjoint(squares)


class DenseForms(Forms):
    """Any symmetric matrices `A[n, d, d]`."""

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

    def apply_vector(self, v: np.ndarray) -> np.ndarray:
        return (self.A @ v) @ v

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
        return _mirrored(np.tensordot(z, self.A, 1)), float(size.sum(1).max())

    def adjoint_factor(self, z: np.ndarray, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = np.tensordot(np.abs(z), self.absolute, 1) @ np.abs(U)
        return np.tensordot(z, self.A, 1) @ U, size

    def gram(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        flat = self.A.reshape(self.n, -1)
        size = np.sqrt(np.square(self.absolute).sum((1, 2))) * np.sqrt(self.d)
        return _mirrored(flat @ flat.T), np.trace(self.A, axis1=1, axis2=2), size

    def monomials(self, block: slice) -> tuple[np.ndarray, np.ndarray]:
        a, b = np.triu_indices(self.d)
        double = np.where(a == b, 1.0, 2.0)
        return self.A[block, a, b] * double, self.absolute[block, a, b] * double

    def weighted_gram(self, S: np.ndarray) -> np.ndarray:
        turned = (S @ self.A).reshape(self.n, -1)
        return turned @ (self.A @ S).transpose(0, 2, 1).reshape(self.n, -1).T

    def second_moment(self) -> tuple[np.ndarray, float]:
        stacked = self.A.reshape(-1, self.d)
        return _mirrored(stacked.T @ stacked), float(np.square(self.absolute).sum())


def forms_of(objective: Objective) -> tuple[Forms, np.ndarray]:
    """The measurements and responses of a least-squares objective, in double precision."""
    expected = "one LeastSquares objective over RankOne or Dense measurements"
    # A subclass may measure something else than what is read below.
    if type(objective) is not LeastSquares:
        raise DtypeError("objective", expected=expected, got=type(objective).__name__)
    if objective.batch_shape:
        got = f"a batch of shape {tuple(objective.batch_shape)}"
        raise DomainError("objective", expected=expected, got=got)
    operator, y = objective.measurements, objective.y.detach().double().cpu().numpy()
    if type(operator) is RankOne:
        return RankOneForms(operator.X.detach().double().cpu().numpy()), y
    if type(operator) is Dense:
        return DenseForms(operator.A.detach().double().cpu().numpy()), y
    raise DtypeError("objective", expected=expected, got=repr(operator))


def _mirrored(M: np.ndarray) -> np.ndarray:
    """The lower triangle on both sides: each entry is still within its own bound."""
    return np.tril(M) + np.tril(M, -1).T
