"""Where CERTIFIED begins: how many samples does a proof of uniqueness need?

Random factors U of shape (d, r) are measured by n Gaussian inputs, and `certify` is asked whether
UU' is the only positive semidefinite matrix with these measurements, and whether it has the least
trace among them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from posquad.certificates import certify
from posquad.problems import LeastSquares, RankOne
from posquad.sweep.declaration import Sweep
from posquad.sweep.diagrams.certifiability_panels import findings, panels
from posquad.sweep.grid import Grid, listed
from posquad.sweep.thresholds import uniqueness_threshold

__all__ = ["SHAPES", "SWEEP", "certifiability_cell", "planted_problem"]

SHAPES = ((10, 2), (20, 2), (40, 3), (60, 3), (100, 5))
"""Shapes (d, r) of the factors."""


def planted_problem(n: int, d: int, r: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw Gaussian inputs `X[n, d]` and a Gaussian factor `U[d, r]`; return them with y.

    >>> X, U, y = planted_problem(5, 3, 1, seed=0)
    >>> X.shape, U.shape, y.shape
    ((5, 3), (3, 1), (5,))
    """
    rng = np.random.default_rng(seed)
    U, X = rng.standard_normal((d, r)), rng.standard_normal((n, d))
    return X, U, np.square(X @ U).sum(1)


def certifiability_cell(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Certify one true factor; each result is 1 if it is proved.

    >>> certifiability_cell({"d": 4, "r": 1, "n": 16}, seed=0)
    {'proved': 1, 'identified': 1, 'trace': 1}
    """
    X, U, y = planted_problem(parameters["n"], parameters["d"], parameters["r"], seed)
    certificate = certify(LeastSquares(RankOne(X), y), U, compare=False)
    return {
        "proved": int(certificate.proved),
        "identified": int(certificate.identifiability.proved),
        "trace": int(certificate.minimum_trace.proved),
    }


def _grid(shapes: tuple[tuple[int, int], ...], loads: np.ndarray, trials: int) -> Grid:
    """Return numbers of samples around the predicted one, for each shape."""
    predicted = {(d, r): uniqueness_threshold(r / d) * d * d for d, r in shapes}
    return listed(
        {"d": d, "r": r, "n": n, "trial": trial}
        for (d, r), centre in predicted.items()
        for n in sorted({round(float(load) * centre) for load in loads})
        for trial in range(trials)
    )


SWEEP = Sweep(
    key="certifiability",
    title="Where CERTIFIED begins",
    question=(
        "How many samples $n$ does it take to prove that a matrix of rank $r$ is the only positive "
        "semidefinite one with its measurements? The prediction $n = \\alpha(r/d) d^2$ is that of "
        "minimum-trace recovery."
    ),
    cell=certifiability_cell,
    grid=_grid(SHAPES, np.arange(0.8, 1.501, 0.05), 32),
    quick=_grid(SHAPES[:3], np.arange(0.8, 1.501, 0.1), 16),
    measure="proved",
    axis="n",
    by="d",
    panels=panels,
    findings=findings,
    sources=(
        "The threshold of minimum-trace recovery for centred measurements: S. Martin, G. Biroli "
        "and F. Bach, JMLR 27(136), 2026, arXiv:2601.10483. That uniqueness has the same "
        "transition for Gaussian inputs, because the mean of y fixes the trace, is an argument of "
        "ours.",
    ),
)
