"""Recovery at the information limit: what is determined, what is found, what is proved.

Random factors of rank r are measured by n Gaussian inputs, with n from p to 2p, where
`p = dr - r(r-1)/2` is the number of unknowns. Each problem is given to `recover`, to the paper's
gradient descent from its moment initializer, to minimum trace and to `certify`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from posquad.certificates import certify
from posquad.core.errors import RankDeficientError
from posquad.core.status import Status
from posquad.geometry import dimension
from posquad.problems import LeastSquares, RankOne
from posquad.recovery import data_driven_descent, recover, spectral_initializer
from posquad.sweep.declaration import Sweep
from posquad.sweep.diagrams.certifiability import planted_problem
from posquad.sweep.diagrams.recovery_panels import findings, panels
from posquad.sweep.grid import product

__all__ = ["ACCURACY", "DESCENT_STEPS", "NEARLY", "SWEEP", "TRIALS", "recovery_cell"]

ACCURACY = 1e-6
"""Relative error of Q at which a matrix counts as found, as in experiment 3."""

NEARLY = 1e-2
"""Relative error at which gradient descent counts as close."""

DESCENT_STEPS = 20_000
"""Steps of gradient descent, with the step size `1 / lambda_max^eff` at the start."""

TRIALS = 24
"""Problems of a cell: gradient descent runs them as a batch, which costs little more than one."""

_REPRODUCED = 1e-10  # relative residual of an interpolant


def recovery_cell(
    parameters: dict[str, Any], seed: int, trials: int = TRIALS, steps: int = DESCENT_STEPS
) -> dict[str, float]:
    """Give some problems to each method; return how many of the `trials` each one solves.

    `identified` counts the problems whose effective Hessian at the true factor is proved to be
    positive definite; `found` those for which `recover` returned the true matrix, `claimed` those
    it called RECOVERED, `wrong` those among them that it did not find, `other` those for which it
    returned another interpolant; `descent` those for which gradient descent ended at the true
    matrix, `close` within 1% of it; `trace` those whose true matrix is proved to have the least
    trace, so that minimum trace finds it; `proved` those for which it is proved to be the only
    positive semidefinite interpolant. A problem whose moment matrix has fewer than r positive
    eigenvalues has no moment initializer, and counts as not found by gradient descent.

    >>> result = recovery_cell({"d": 5, "r": 1, "ratio": 3.0}, seed=0, trials=2, steps=10)
    >>> result["found"], result["claimed"], result["proved"], result["trials"]
    (2, 2, 2, 2)
    """
    d, r = parameters["d"], parameters["r"]
    n = round(parameters["ratio"] * dimension(d, r))
    seeds = np.random.SeedSequence(seed).generate_state(trials, np.uint64)
    problems = [planted_problem(n, d, r, int(each)) for each in seeds]
    X, U, y = (np.stack(parts) for parts in zip(*problems, strict=True))
    errors = _descent_errors(X, U, y, steps)
    counts: dict[str, int] = dict.fromkeys(_COUNTED, 0)
    for inputs, factor, responses in problems:
        for name in _outcomes(inputs, factor, responses):
            counts[name] += 1
    return {
        "n": n,
        "trials": trials,
        **counts,
        "descent": int((errors <= ACCURACY).sum()),
        "close": int((errors <= NEARLY).sum()),
    }


_COUNTED = ("identified", "found", "claimed", "wrong", "other", "trace", "proved")


def _outcomes(X: np.ndarray, U: np.ndarray, y: np.ndarray) -> Iterator[str]:
    """Yield what holds of one problem."""
    answer = recover(X, y, rank=U.shape[1])
    found = bool(_relative_error(answer.U, U) <= ACCURACY)
    claimed = answer.status is Status.RECOVERED
    certificate = certify(LeastSquares(RankOne(X), y), U, compare=False)
    holds = {
        "identified": certificate.identifiability.proved,
        "found": found,
        "claimed": claimed,
        "wrong": claimed and not found,
        "other": not found and float(answer.residual) <= _REPRODUCED,
        "trace": certificate.minimum_trace.proved,
        "proved": certificate.proved,
    }
    yield from (name for name, true in holds.items() if true)


def _descent_errors(X: np.ndarray, U: np.ndarray, y: np.ndarray, steps: int) -> np.ndarray:
    """Return the relative errors `[trials]` of gradient descent; infinite without a start."""
    errors = np.full(len(X), np.inf)
    exists = np.ones(len(X), dtype=bool)
    try:
        start = spectral_initializer(X, y, U.shape[-1])
    except RankDeficientError as problem:
        exists = np.asarray((problem.singular_values > 0).all(-1))
        if not exists.any():
            return errors
        start = spectral_initializer(X[exists], y[exists], U.shape[-1])
    path = data_driven_descent(X[exists], y[exists], start, max_steps=steps)
    errors[exists] = _relative_error(path.U, U[exists])
    return errors


def _relative_error(V: np.ndarray, U: np.ndarray) -> np.ndarray:
    """Return `||VV' - UU'||_F / ||UU'||_F`, `[...]`; NaN where a descent has diverged."""
    with np.errstate(all="ignore"):
        Q, target = V @ V.swapaxes(-1, -2), U @ U.swapaxes(-1, -2)
        return np.linalg.norm(Q - target, axis=(-2, -1)) / np.linalg.norm(target, axis=(-2, -1))


SWEEP = Sweep(
    key="recovery",
    title="Recovery at the information limit",
    question=(
        "With $n$ samples for $p = dr - r(r-1)/2$ unknowns, $n/p$ from 1 to 2: which problems are "
        "determined, which does each method solve, and which answers are proved to be the only "
        "ones?"
    ),
    cell=recovery_cell,
    grid=product(
        d=[10, 20, 40],
        r=[1, 2, 3],
        ratio=[round(1 + 0.1 * k, 1) for k in range(11)],
    ),
    quick=product(d=[10], r=[1, 2], ratio=[1.0, 1.3, 1.6, 2.0]),
    measure="found",
    axis="ratio",
    by="d",
    panels=panels,
    findings=findings,
)
