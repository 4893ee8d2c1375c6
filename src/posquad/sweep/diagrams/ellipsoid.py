"""Ellipsoid fitting: is there a positive semidefinite R with `x_i'R x_i = 1` for all i?

The problem is convex, and either answer has a proof. A positive definite matrix R whose smallest
eigenvalue is far larger than the correction that makes it exact shows that a fit exists. A vector
z with `sum z_i x_i x_i' >= 0` and `sum z_i < 0`, checked with every rounding error bounded, shows
that none does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy
import torch

from posquad.certificates import proves_infeasible
from posquad.core.errors import DomainError
from posquad.problems import RankOne
from posquad.recovery.budget import Budget
from posquad.recovery.problem import Problem
from posquad.recovery.solvers.cone import positive_fit
from posquad.sweep.declaration import Sweep
from posquad.sweep.diagrams.ellipsoid_panels import findings, panels
from posquad.sweep.grid import joined, product
from posquad.sweep.transitions import transition

__all__ = ["FOURTH_MOMENT", "SWEEP", "design", "ellipsoid_cell"]

_SIGN_SHARE = 0.9**0.25  # weight of the sign in a sign-like coordinate; kappa = 3 - 2 * 0.9
_SAFETY = 1000.0  # the smallest eigenvalue of a fit exceeds the correction by this factor
_BUDGETS = (
    18,
    10_000,
)  # steps: 18 decide nearly all designs without a final descent, which is slow

FOURTH_MOMENT = {"gaussian": 3.0, "uniform": 1.8, "sign-like": 1.2, "laplace": 6.0}
"""Coordinates of variance one, with their fourth moments kappa.

A sign-like coordinate is `a s + b g` with a random sign s, a Gaussian g, `a^4 = 0.9` and
`a^2 + b^2 = 1`. For plain signs the question is empty: R = I/d always fits.
"""


def design(coordinates: str, n: int, d: int, seed: int) -> np.ndarray:
    """Draw n points `[n, d]` with independent coordinates of mean zero and variance one.

    >>> design("uniform", 3, 2, seed=0).shape
    (3, 2)
    """
    rng = np.random.default_rng(seed)
    if coordinates == "gaussian":
        return rng.standard_normal((n, d))
    if coordinates == "uniform":
        return rng.uniform(-math.sqrt(3), math.sqrt(3), (n, d))
    if coordinates == "laplace":
        return rng.laplace(scale=math.sqrt(0.5), size=(n, d))
    if coordinates == "sign-like":
        signs = rng.integers(0, 2, (n, d)) * 2.0 - 1.0
        rest = math.sqrt(1 - _SIGN_SHARE**2) * rng.standard_normal((n, d))
        return _SIGN_SHARE * signs + rest
    expected = f"one of {', '.join(FOURTH_MOMENT)}"
    raise DomainError("coordinates", expected=expected, got=repr(coordinates))


def ellipsoid_cell(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Decide one design; `fits` and `refuted` are 1 only with a proof.

    `residual` is the least relative residual, zero if a fit exists. `margin` is the smallest
    eigenvalue of a fit over the size of the correction that makes it exact.

    >>> parameters = {"coordinates": "gaussian", "d": 6, "alpha": 0.5}
    >>> result = ellipsoid_cell(parameters, seed=0)
    >>> result["n"], result["fits"], result["refuted"]
    (18, 0, 1)
    """
    d = parameters["d"]
    n = round(parameters["alpha"] * d * d)
    X = design(parameters["coordinates"], n, d, seed)
    points, ones = torch.as_tensor(X), torch.ones(n, dtype=torch.float64)
    problem = Problem(RankOne(points), ones)
    residual, margin, fits, refuted = 0.0, 0.0, False, False
    for steps in _BUDGETS:
        fit = positive_fit(problem, Budget(max_steps=steps))
        residual = float(fit.residual)
        if bool(fit.interpolates):
            margin = _margin(X, fit.factor.numpy())
            fits = margin > _SAFETY
        else:
            refuted = proves_infeasible(RankOne(points), ones, fit.farkas)
        if fits or refuted:
            break
    return {
        "n": n,
        "fits": int(fits),
        "refuted": int(refuted),
        "residual": 0.0 if fits else residual,
        "margin": margin,
    }


def _margin(X: np.ndarray, L: np.ndarray) -> float:
    """Return `lambda_min(R) / ||correction||_F` for `R = LL'`, as a finite number.

    The correction of least norm is `A*(K^-1 e)` with `K = A A*` and the residual e, and its norm is
    `sqrt(e'K^-1 e)`. R minus it is an exact fit, and positive definite if the ratio exceeds 1.
    """
    smallest = float(np.linalg.svd(L, compute_uv=False)[-1]) ** 2
    e = np.square(X @ L).sum(1) - 1
    # The computed residual has an error of a few units of rounding.
    e = np.abs(e) + 4 * len(L) * np.finfo(float).eps
    try:
        factor = scipy.linalg.cho_factor(np.square(X @ X.T), lower=True)
        lowest = 1 / _largest_eigenvalue(lambda v: scipy.linalg.cho_solve(factor, v), len(e))
    except np.linalg.LinAlgError:
        return 0.0
    return min(smallest * math.sqrt(lowest) / float(np.linalg.norm(e)), float(np.finfo(float).max))


def _largest_eigenvalue(product: Any, n: int) -> float:
    """Return the largest eigenvalue of a positive operator, by 30 power steps and a factor 2."""
    v = np.ones(n) / math.sqrt(n)
    value = 1.0
    for _ in range(30):
        v = product(v)
        value = float(np.linalg.norm(v))
        v /= value
    return 2 * value


_ALPHAS = [round(0.1 + 0.01 * k, 2) for k in range(51)]  # n = alpha d^2 >= d, an integer for d = 10

SWEEP = Sweep(
    key="ellipsoid",
    title="Ellipsoid fitting",
    question=(
        "Through $n = \\alpha d^2$ random points, is there an ellipsoid centred at the origin? "
        "Every answer is proved. The share of designs with a fit falls from 1 to 0 near the "
        "predicted $\\alpha_*(\\kappa)$, which depends on the fourth moment $\\kappa$ of the "
        "coordinates."
    ),
    cell=ellipsoid_cell,
    grid=joined(
        transition(
            "alpha",
            _ALPHAS,
            measure="fits",
            width=0.004,
            over=product(coordinates=list(FOURTH_MOMENT), d=[10, 20, 40, 60]),
            trials=8,
            limit=600,
        ),
        product(
            coordinates=list(FOURTH_MOMENT),
            d=[10, 20, 40, 60],
            alpha=[round(0.05 * k, 2) for k in range(2, 12)],
            trial=range(24),
        ),
    ),
    quick=joined(
        transition(
            "alpha",
            _ALPHAS,
            measure="fits",
            width=0.03,
            over=product(coordinates=["gaussian", "uniform"], d=[10, 20]),
            trials=6,
            limit=200,
        ),
        product(
            coordinates=["gaussian", "uniform"], d=[10, 20], alpha=[0.3, 0.4, 0.5], trial=range(6)
        ),
    ),
    measure="fits",
    axis="alpha",
    by="d",
    panels=panels,
    findings=findings,
    sources=(
        "F. Koehler and Y. Sohn, arXiv:2608.27372; see also arXiv:2608.10184 and arXiv:2608.12415.",
        "The conjecture is due to J. Saunderson, P. Parrilo and A. Willsky (2013).",
    ),
)
