"""Recovery at the information limit: what is determined, what is found, what is proved.

Random factors of rank r are measured by n Gaussian inputs, with n from p to 2p, where
`p = dr - r(r-1)/2` is the number of unknowns. Each problem is given to `recover`, to the paper's
gradient descent from its moment initializer, to minimum trace and to `certify`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from posquad.certificates import certify
from posquad.core.status import Status
from posquad.geometry import dimension
from posquad.problems import LeastSquares, RankOne
from posquad.recovery import data_driven_descent, recover, spectral_initializer
from posquad.sweep.declaration import Sweep
from posquad.sweep.diagrams.certifiability import planted_problem
from posquad.sweep.diagrams.recovery_panels import PANELS, findings
from posquad.sweep.grid import product

__all__ = ["ACCURACY", "DESCENT_STEPS", "SWEEP", "recovery_cell"]

ACCURACY = 1e-6
"""Relative error of Q at which a matrix counts as found, as in experiment 3."""

DESCENT_STEPS = 5000
"""Steps of gradient descent, with the step size `1 / lambda_max^eff` at the start."""

_REPRODUCED = 1e-10  # relative residual of an interpolant


def recovery_cell(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Give one problem to each method; all results but the errors are 0 or 1.

    `identified` says that the effective Hessian at the true factor is positive definite, proved;
    `found` that `recover` returned the true matrix, `claimed` that it said RECOVERED, `other` that
    it returned another interpolant; `descent` that gradient descent ended at the true matrix;
    `trace` that the true matrix is proved to have the least trace, so that minimum trace finds it;
    `proved` that it is proved to be the only positive semidefinite interpolant.

    >>> result = recovery_cell({"d": 5, "r": 1, "ratio": 3.0}, seed=0)
    >>> result["found"], result["claimed"], result["proved"]
    (1, 1, 1)
    """
    d, r = parameters["d"], parameters["r"]
    n = round(parameters["ratio"] * dimension(d, r))
    X, U, y = planted_problem(n, d, r, seed)
    answer = recover(X, y, rank=r)
    error = _relative_error(answer.U, U)
    path = data_driven_descent(X, y, spectral_initializer(X, y, r), max_steps=DESCENT_STEPS)
    descent_error = _relative_error(path.U, U)
    certificate = certify(LeastSquares(RankOne(X), y), U, compare=False)
    found = error <= ACCURACY
    return {
        "n": n,
        "identified": int(certificate.identifiability.proved),
        "found": int(found),
        "claimed": int(answer.status is Status.RECOVERED),
        "other": int(not found and float(answer.residual) <= _REPRODUCED),
        "descent": int(descent_error <= ACCURACY),
        "trace": int(certificate.minimum_trace.proved),
        "proved": int(certificate.proved),
        "error": error,
        "descent_error": descent_error,
    }


def _relative_error(V: np.ndarray, U: np.ndarray) -> float:
    """Return `||VV' - UU'||_F / ||UU'||_F`, capped at 1e6 where a descent has diverged."""
    with np.errstate(all="ignore"):
        ratio = np.linalg.norm(V @ V.T - U @ U.T) / np.linalg.norm(U @ U.T)
    return float(ratio) if ratio < 1e6 else 1e6


SWEEP = Sweep(
    key="recovery",
    title="Recovery at the information limit",
    question=(
        "With $n$ samples for $p = dr - r(r-1)/2$ unknowns, $n/p$ from 1 to 2: which problems are "
        "determined, which does each method solve, and which answers are proved to be the only ones?"
    ),
    cell=recovery_cell,
    grid=product(
        d=[10, 20, 40],
        r=[1, 2, 3],
        ratio=[round(1 + 0.1 * k, 1) for k in range(11)],
        trial=range(20),
    ),
    quick=product(d=[10], r=[1, 2], ratio=[1.0, 1.3, 1.6, 2.0], trial=range(6)),
    measure="found",
    axis="ratio",
    by="d",
    panels=PANELS,
    findings=findings,
)
