"""Attempts to obtain an answer of `recover` that is not what its result says.

The residual of the returned factor is computed in exact fractions from the given rows, and compared
with the reported one; so are rank and bound. A best fit must be stationary: SciPy's
Levenberg-Marquardt method, started from it, may not find a lower loss. The problems have inputs of
rare values, units over twelve decades, weak eigenvalues, cancelling terms, uneven weights and
repeated rows.
"""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from adversarial import Family, Outcome
from adversarial.rational import form_errors
from adversarial.recovery_problems import Rng, normal, responses, rotation, seeded
from posquad import Recovery, recover
from posquad.estimator import PositiveQuadraticRegressor

EPS = float(np.finfo(float).eps)


class Data(NamedTuple):
    """Inputs, responses, the rank that they were made with, and weights."""

    X: np.ndarray
    y: np.ndarray
    rank: int
    weights: np.ndarray | None = None

    @property
    def roots(self) -> np.ndarray:
        """Square roots of the weights."""
        return np.ones(len(self.y)) if self.weights is None else np.sqrt(self.weights)


def noise_of(rng: Rng, n: int, low: float, high: float) -> np.ndarray:
    return 10.0 ** rng.uniform(low, high) * normal(rng, n)


def rare_values(rng: Rng) -> Data:
    """A column that is one in three rows, of a weak eigenvalue, beside a column in large units."""
    n = int(rng.integers(200, 1000))
    x, rare = normal(rng, n), np.arange(n) < 3
    X = np.column_stack([10.0 ** rng.uniform(3, 5) * x, rare])
    strength = 10.0 ** rng.uniform(-4, -2)
    return Data(X, x**2 + strength * rare + noise_of(rng, n, -4, -2), 2)


def mixed_units(rng: Rng) -> Data:
    """Columns over twelve decades."""
    d, r = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    n = int(rng.integers(20, 80))
    X = normal(rng, n, d)
    y = responses(X, normal(rng, d, r)) + noise_of(rng, n, -9, -1) * rng.integers(2)
    return Data(X * 10.0 ** rng.uniform(-6, 6, d), y, r)


def weak_eigenvalue(rng: Rng) -> Data:
    """Equal units, and one eigenvalue between 1e-10 and 1e-5 of the others."""
    d, r = int(rng.integers(3, 6)), int(rng.integers(2, 4))
    n = int(rng.integers(30, 80))
    X, U = normal(rng, n, d), rotation(rng, d)[:, :r]
    U[:, -1] *= 10.0 ** rng.uniform(-5, -2.5)
    return Data(X, responses(X, U) + noise_of(rng, n, -12, -3), r)


def cancelling_terms(rng: Rng) -> Data:
    """Inputs of a condition number up to 1e7; Q is large where they are small."""
    d, r = int(rng.integers(2, 6)), int(rng.integers(1, 3))
    n = int(rng.integers(30, 80))
    V = rotation(rng, d)
    T = (V * np.logspace(0, -rng.uniform(1, 7), d)) @ V.T
    X, U = normal(rng, n, d) @ T, np.linalg.solve(T, normal(rng, d, r))
    return Data(X, responses(X, U) + noise_of(rng, n, -12, -1) * rng.integers(2), r)


def uneven_weights(rng: Rng) -> Data:
    data = [weak_eigenvalue, mixed_units][int(rng.integers(2))](rng)
    return data._replace(weights=10.0 ** rng.uniform(-4, 4, len(data.y)))


def weights_of_all_sizes(rng: Rng) -> Data:
    """Noisy rows whose weights span up to sixteen decades evenly."""
    d = int(rng.integers(3, 9))
    r = int(rng.integers(1, min(d, 4)))
    n = int(rng.integers(2, 6)) * d * r
    X = normal(rng, n, d)
    y = responses(X, normal(rng, d, r)) * (1 + 0.2 * normal(rng, n))
    return Data(X, y, r, 10.0 ** rng.uniform(0, rng.uniform(8, 16), n))


def unit_diagonal(rng: Rng) -> Data:
    """Noisy rows, and the rows e_i with a large weight, to impose a unit diagonal."""
    d, r = int(rng.integers(6, 16)), int(rng.integers(1, 3))
    U = normal(rng, d, r)
    U /= np.linalg.norm(U, axis=1, keepdims=True)
    X = np.concatenate([normal(rng, 4 * d, d), np.eye(d)])
    y = responses(X, U)
    y[: 4 * d] += 0.5 * normal(rng, 4 * d)
    heavy = 10.0 ** rng.uniform(6, 18)
    return Data(X, y, r, np.where(np.arange(5 * d) < 4 * d, 1.0, heavy))


def repeated_rows(rng: Rng) -> Data:
    d, r = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    X = np.repeat(normal(rng, int(rng.integers(15, 40)), d), int(rng.integers(2, 6)), axis=0)
    y = responses(X, normal(rng, d, r)) + noise_of(rng, len(X), -3, 0)
    order = rng.permutation(len(X))
    return Data(X[order], y[order], r)


KINDS = {
    f.__name__: f
    for f in (
        rare_values, mixed_units, weak_eigenvalue, cancelling_terms, uneven_weights,
        weights_of_all_sizes, unit_diagonal, repeated_rows,
    )
}  # fmt: skip


def loss(data: Data, U: np.ndarray) -> float:
    """Sum of weighted squared errors, each of which is exact."""
    return math.fsum((data.roots * form_errors(data.X, U, data.y)) ** 2)


def false_residual(told: float, data: Data, U: np.ndarray) -> str | None:
    """Say how a residual differs from the exact one, if it does."""
    true = math.sqrt(loss(data, U) / math.fsum((data.roots * data.y) ** 2))
    if abs(told - true) <= max(1e-6 * true, 100 * EPS):
        return None
    return f"the residual is {true:.6e}, and {told:.6e} is reported"


def gain(data: Data, U: np.ndarray) -> float:
    """Share of the weighted loss that Levenberg-Marquardt steps of SciPy take away from U."""
    X, y, root, shape = data.X, data.y, data.roots, U.shape
    units = 1 / np.maximum(np.abs(X).max(0), 1e-300)[:, None]  # columns of one size

    def residuals(v: np.ndarray) -> np.ndarray:
        return root * (np.square(X @ (units * v.reshape(shape))).sum(1) - y)

    def jacobian(v: np.ndarray) -> np.ndarray:
        Z = X @ (units * v.reshape(shape))
        rows = 2 * root[:, None, None] * (X * units.T)[:, :, None] * Z[:, None, :]
        return rows.reshape(len(X), -1)

    start = (U / units).ravel()
    if len(y) < len(start):
        return 0.0
    options = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "max_nfev": 2000}
    end = least_squares(residuals, start, jac=jacobian, method="lm", **options)
    before, after = (loss(data, V) for V in (U, units * end.x.reshape(shape)))
    return 1 - after / before


def attempt(kind: str, seed: int) -> Outcome:
    """One problem, with the rank unknown, and given or one too high; and the estimator."""
    rng = seeded(seed, f"returned {kind}")
    data = KINDS[kind](rng)
    outcome = Outcome(tried=0)
    for rank in (None, min(data.rank + seed % 2, data.X.shape[1])):
        found = recover(data.X, data.y, rank, weights=data.weights)
        judge(outcome, f"rank {rank}", data, found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of searches that did not settle
        model = PositiveQuadraticRegressor(standard_errors=False)
        model.fit(data.X, data.y, data.weights)
    outcome.tried += 1
    told = false_residual(model.residual_, data, model.components_.T)
    if told is not None:
        outcome.broken.append(f"estimator: {told}")
    return outcome


def judge(outcome: Outcome, case: str, data: Data, found: Recovery) -> None:
    word, rank = found.status.name, int(found.rank)
    outcome.tried += 1
    outcome.said[word] += 1
    case = f"{case}, {word}"
    told = false_residual(float(found.residual), data, found.U)
    if told is not None:
        outcome.broken.append(f"{case}: {told}")
    if found.U[:, rank:].any() or (np.abs(found.U[:, :rank]).max(0, initial=1.0) == 0).any():
        outcome.broken.append(f"{case}: the factor does not have rank {rank}")
    if abs(float(found.history[-1]) - float(found.residual)) > 1e-6 * found.residual + 100 * EPS:
        outcome.broken.append(f"{case}: the history ends at {found.history[-1]:.6e}")
    path = found.rank_path
    at = None if path is None else path.residual[path.rank == rank]
    if at is not None and rank and abs(at[0] - found.residual) > 1e-6 * at[0] + 100 * EPS:
        outcome.broken.append(f"{case}: the path has {at[0]:.6e} at the rank of the answer")
    if not found.residual_bound <= found.residual:
        outcome.broken.append(f"{case}: the bound exceeds the residual")
    if word == "BEST_FIT" and rank > 0:
        lower = gain(data, found.U[:, :rank])
        if lower > 1e-6:
            outcome.broken.append(f"{case}: the loss can fall by {lower:.1e} of it")


FAMILIES: dict[str, Family] = {kind: Family(partial(attempt, kind), 6, 290) for kind in KINDS}
