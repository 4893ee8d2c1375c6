"""Bounds on rounding errors, on which every proof of a certificate rests.

Arithmetic is IEEE double precision with `u = 2^-53`. A sum of k products, in any order, with or
without fused operations, on one thread or many, is off by at most `gamma(k)` times the same sum of
absolute values (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1). The
proofs assume this of the BLAS, and nothing else; Strassen-like products would not satisfy it.
Underflow costs at most UNDERFLOW in the quantities compared here, because `in_range` requires that
the largest entry of every array is in the range `CERTIFIED_ENTRIES`.
"""

from __future__ import annotations

import math

import numpy as np

from posquad.core.ranges import CERTIFIED_ENTRIES

UNIT = 2.0**-53
UNDERFLOW = 1e-190
_SCALAR = 1e-14  # covers about ninety roundings of positive scalars


def gamma(k: int) -> float:
    """Return `k u / (1 - k u)`, rounded up; infinite if k is too large for a useful bound."""
    return up(k * UNIT / (1 - k * UNIT)) if k * UNIT < 0.1 else math.inf


def up(x: float) -> float:
    """Return an upper bound on a positive scalar expression that was evaluated as x."""
    return float(x) * (1 + _SCALAR) if x >= 0 else math.nan


def down(x: float) -> float:
    """Return a lower bound on a positive scalar expression that was evaluated as x."""
    return float(x) * (1 - _SCALAR) if x >= 0 else math.nan


def in_range(*arrays: np.ndarray) -> bool:
    """Return whether the largest entry of each array is in the range that the bounds assume."""
    sizes = [float(np.abs(array).max(initial=0.0)) for array in arrays]
    low, high = CERTIFIED_ENTRIES.of()
    return all(low <= size <= high for size in sizes)


def total(values: np.ndarray) -> float:
    """Return an upper bound on the sum of nonnegative numbers."""
    return up(float(values.sum()) * (1 + gamma(values.size))) + UNDERFLOW


def norm_above(values: np.ndarray) -> float:
    """Return an upper bound on the Frobenius norm."""
    return up(math.sqrt(total(np.square(values).ravel())))


def product_with_error(X: np.ndarray, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `XU`, computed in twice the working precision and rounded, and a bound on its error.

    The sums are compensated (Ogita, Rump and Oishi, 2005, algorithm Dot2). The error is at most
    `u |XU| + gamma(k)^2 |X||U|` for inner dimension k.
    """
    total_, lost = np.zeros((len(X), U.shape[1])), np.zeros((len(X), U.shape[1]))
    for k in range(X.shape[1]):
        x, w = X[:, k, None], U[None, k, :]
        product = x * w
        x1, w1 = _high_part(x), _high_part(w)
        x2, w2 = x - x1, w - w1
        lost_product = x2 * w2 - (((product - x1 * w1) - x2 * w1) - x1 * w2)
        new = total_ + product
        back = new - total_
        lost += ((total_ - (new - back)) + (product - back)) + lost_product
        total_ = new
    result = total_ + lost
    size = gamma(2 * X.shape[1] + 8) ** 2 * (np.abs(X) @ np.abs(U))
    return result, 2 * UNIT * np.abs(result) + 2 * size + UNDERFLOW


def _high_part(a: np.ndarray) -> np.ndarray:
    """Return the leading 26 bits, by Veltkamp's splitting."""
    c = 134217729.0 * a
    return c - (c - a)


def proves_above(G: np.ndarray, spread: np.ndarray, shift: float) -> bool:
    """Prove that every symmetric S with `|S - G|_ij <= spread_i spread_j` has `S >= shift I`.

    Choose weights `D^2 = diag(G) - shift` and a small rho, and factor `M = G - shift I - rho D^2`
    as `LL'` by any method, since the factor is only a witness. With a computed bound
    `|M - LL'|_ij <= F_ij`, `M >= -rho_2 D^2` for the largest row sum rho_2 of `D^-1 F D^-1`
    (Gershgorin), and `S - G >= -rho_1 D^2` with `rho_1 = sum spread_i^2 / D_ii^2`. So
    `rho_1 + rho_2 <= rho` completes the proof. A result of False proves nothing.
    """
    m = len(G)
    with np.errstate(all="ignore"):  # an overflow ends in False
        weights = G.diagonal() - shift
        if not (np.all(weights > 0) and np.isfinite(G).all() and math.isfinite(shift)):
            return False
        rho_1 = total((np.square(spread) + UNDERFLOW) / weights * (1 + gamma(8)))
        # The diagonal of M combines G_ii, the shift and twice the weight, with rounding.
        parts = (np.abs(G.diagonal()) + abs(shift)) / weights + 4
        diagonal_rounding = gamma(8) * float(parts.max())
        rho = 1.1 * (rho_1 + diagonal_rounding) + 8 * (m + 10) * m * UNIT
        if not rho < 1:
            return False
        diagonal = weights - rho * weights
        M = np.tril(G, -1)
        M += M.T
        M[np.diag_indices(m)] = diagonal
        try:
            L = np.linalg.cholesky(M)
        except np.linalg.LinAlgError:
            return False
        rho_2 = witness_error(M, L, weights, diagonal_rounding)
    return bool(up(rho_1 + rho_2) <= rho)


def witness_error(
    M: np.ndarray, L: np.ndarray, weights: np.ndarray, diagonal_rounding: float
) -> float:
    """Bound the largest row sum of `D^-1 |M - LL'| D^-1`, rounding included; overwrites M.

    `diagonal_rounding` bounds the error of the diagonal of M, relative to the weights.
    """
    m = len(M)
    M -= L @ L.T
    F = np.abs(M, out=M)
    inverse = 1 / np.sqrt(weights)
    F *= inverse[:, None]
    F *= inverse[None, :]
    rows = F.sum(1) * (1 + gamma(m + 20))
    lengths = np.square(L).sum(1) / weights
    # The error of LL' is at most gamma(m) |L||L'|, and the subtraction rounds once more.
    product = gamma(2 * m + 20) * total(lengths)
    rho_2 = up(float(rows.max()) + product + diagonal_rounding)
    return rho_2 + m * UNDERFLOW / float(weights.min())
