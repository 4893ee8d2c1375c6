"""Attempts to find a lower loss of Geman and McClure than that of the answer.

Small problems with noise, in which up to 30% of the responses are outliers of four kinds. A promise
is broken if the true matrix has a lower loss than the answer at the scale that the answer reports,
or if SciPy reaches one from the truth, Huber's answer, the answer by least squares and ten random
factors. An estimated scale belongs to the answer: another factor is better only if its loss is
lower at the scale of either.
"""

from __future__ import annotations

import warnings
from collections import Counter
from functools import partial

import numpy as np
from scipy.optimize import minimize

from adversarial import Family, Outcome
from adversarial.recovery_problems import Rng, normal, responses, seeded
from posquad import recover
from posquad.estimator import PositiveQuadraticRegressor
from posquad.geometry import dimension

WIDTH = 3.7874187608  # 95% efficiency for normal noise
NOISE = 0.1
RANDOM = 10  # random starts of SciPy
SLACK = 1e-6  # relative difference of losses


def gross(rng: Rng, y: np.ndarray) -> np.ndarray:
    return y + rng.choice([-40.0, 40.0, 400.0], len(y))


def one_sided(rng: Rng, y: np.ndarray) -> np.ndarray:
    return y + 10 * rng.exponential(size=len(y))


def swapped(rng: Rng, y: np.ndarray) -> np.ndarray:
    """Responses of other rows, in another unit."""
    return 3 * rng.permutation(y)


def moderate(rng: Rng, y: np.ndarray) -> np.ndarray:
    return y + 30 * NOISE * normal(rng, len(y))


KINDS = (gross, one_sided, swapped, moderate)


def problem(rng: Rng, share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, factor and responses, of which a share are outliers; six to ten rows per unknown."""
    d = int(rng.integers(2, 8))
    r = int(rng.integers(1, min(d, 3) + 1))
    n = int(rng.uniform(6, 10) * dimension(d, r))
    X, U = normal(rng, n, d), normal(rng, d, r)
    y = responses(X, U) + NOISE * normal(rng, n)
    bad = rng.permutation(n)[: round(share * n)]
    y[bad] = KINDS[int(rng.integers(len(KINDS)))](rng, y[bad])
    return X, U, y


def loss_and_slope(
    u: np.ndarray, X: np.ndarray, y: np.ndarray, rank: int, scale: float
) -> tuple[float, np.ndarray]:
    """The loss of a factor, and its derivative."""
    Z = X @ u.reshape(-1, rank)
    z = (np.square(Z).sum(1) - y) / scale
    size = 1 + np.square(z / WIDTH)
    slope = 2 * X.T @ ((z / np.square(size) / scale)[:, None] * Z)
    return float((np.square(z) / size).sum() / 2), slope.ravel()


def by_scipy(X: np.ndarray, y: np.ndarray, U: np.ndarray, scale: float, rng: Rng) -> np.ndarray:
    """The factor of least loss that L-BFGS reaches from 13 starts."""
    r = U.shape[1]
    size = np.sqrt(np.median(np.abs(y)) / U.size)
    starts = [U, *(recover(X, y, r, loss=loss).U for loss in ("huber", "least-squares"))]
    starts += [size * normal(rng, *U.shape) for _ in range(RANDOM)]
    limits = {"maxiter": 5000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-10}
    ends = []
    for V in starts:
        wide = np.pad(V, ((0, 0), (0, r - V.shape[1])), constant_values=1e-3 * size).ravel()
        how = {"jac": True, "method": "L-BFGS-B", "options": limits}
        ends.append(minimize(loss_and_slope, wide, args=(X, y, r, scale), **how))
    return min(ends, key=lambda end: end.fun).x.reshape(U.shape)


def fitted(
    X: np.ndarray, y: np.ndarray, rank: int, scale: float | None, *, estimator: bool
) -> tuple[np.ndarray, float, str]:
    """The factor, its scale and the status, from one of the two ways to ask for them."""
    if not estimator:
        found = recover(X, y, rank, loss="geman-mcclure", scale=scale)
        return np.asarray(found.U), float(found.scale), found.status.name
    model = PositiveQuadraticRegressor(
        rank, loss="geman-mcclure", scale=scale, standard_errors=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    return model.components_.T, model.noise_std_, model.status_.name


def attempt(share: float, given: float | None, seed: int) -> Outcome:
    rng = seeded(seed, f"outliers {share} {given}")
    X, U, y = problem(rng, share)
    V, scale, word = fitted(X, y, U.shape[1], given, estimator=bool(seed % 2))
    outcome = Outcome(said=Counter([word]))

    def loss(W: np.ndarray, at: float) -> float:
        return loss_and_slope(W.ravel(), X, y, W.shape[1], at)[0]

    own = loss(V, scale)
    case = f"d, r, n = {X.shape[1]}, {U.shape[1]}, {len(y)}, {word} with the loss {own:.6g}"
    if own > loss(U, scale):
        outcome.broken.append(f"{case}: the truth has {loss(U, scale):.6g}")
    other = by_scipy(X, y, U, scale, rng)
    if own > loss(other, scale) * (1 + SLACK):
        errors = np.abs(np.square(X @ other).sum(1) - y)
        theirs = given or float(np.median(errors)) / 0.6744897501960817
        if loss(V, theirs) > loss(other, theirs):
            outcome.broken.append(f"{case}: SciPy reaches {loss(other, scale):.6g}")
        else:
            outcome.said["lower at this scale only"] += 1
    return outcome


FAMILIES = {
    f"{share:.0%}, scale {'estimated' if given is None else 'given'}": Family(
        partial(attempt, share, given), in_tests=8 if share else 2, in_full=200
    )
    for share in (0.0, 0.1, 0.3)
    for given in (None, NOISE)
}
