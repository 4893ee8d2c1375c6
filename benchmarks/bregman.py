"""The Bregman projection against Clarabel's exponential cone, on the same problems in one run.

    python benchmarks/bregman.py

Clarabel gets the problem in its natural conic form, with its default tolerances. Accuracy is
measured by neither solver: the feasibility residual `||Bq - y|| / ||y||`, and how far `d log(q/q0)`
is from the range of B' (least squares), per entry.
"""

from __future__ import annotations

import statistics

import clarabel
import numpy as np
import scipy.sparse

from posquad.selection import bregman_projection
from timing import alternate, machine, median_ratio

SIZES = [(20, 1000, 1.0), (20, 1000, 1e-2), (5, 100, 1e-3)]
REQUIRED, GOAL = 20, 50


def exponential_cone(B, y, d, q0):
    """Minimise sum d (t - q) with (-t, q, q0) in the exponential cone: q exp(-t/q) <= q0."""
    n, m = B.shape
    eye = scipy.sparse.eye(m, format="csr")
    zero = scipy.sparse.csr_matrix((m, m))
    blocks = scipy.sparse.vstack(
        [scipy.sparse.hstack([zero, eye]), scipy.sparse.hstack([-eye, zero]),
         scipy.sparse.hstack([zero, zero])], format="csr")  # fmt: skip
    order = np.arange(3 * m).reshape(3, m).T.ravel()  # (x, y, z) of one coordinate together
    rows = scipy.sparse.vstack(
        [scipy.sparse.hstack([scipy.sparse.csr_matrix(B), scipy.sparse.csr_matrix((n, m))]),
         blocks[order]], format="csc")  # fmt: skip
    right = np.concatenate([y, np.concatenate([np.zeros(2 * m), q0])[order]])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    cones = [clarabel.ZeroConeT(n), *[clarabel.ExponentialConeT()] * m]
    cost = np.concatenate([-d, d]).astype(float)
    solver = clarabel.DefaultSolver(
        scipy.sparse.csc_matrix((2 * m, 2 * m)), cost, rows, right, cones, settings
    )
    return np.array(solver.solve().x[:m])


def accuracy(B, y, d, q0, q):
    misfit = np.linalg.norm(B @ q - y) / np.linalg.norm(y)
    if q.min() <= 0:
        return misfit, np.inf
    slope = d * np.log(q / q0)
    dual = np.linalg.lstsq(B.T, slope, rcond=None)[0]
    return misfit, np.abs(slope - B.T @ dual).max()


def main() -> None:
    print(machine())
    print("   n     m    eps   posquad ms  Clarabel ms  ratio   posquad (fit, kkt)    Clarabel")
    for n, m, epsilon in SIZES:
        rng = np.random.default_rng(n + m)
        B = rng.standard_normal((n, m))
        d = rng.integers(1, 4, m)
        y, q0 = B @ rng.exponential(size=m), np.full(m, epsilon**2)
        seconds = alternate(
            {
                "posquad": lambda a=(B, y, d, q0): bregman_projection(*a),
                "clarabel": lambda a=(B, y, d, q0): exponential_cone(*a),
            },
            rounds=9,
        )
        ratio = median_ratio(seconds["clarabel"], seconds["posquad"])
        ours = accuracy(B, y, d, q0, bregman_projection(B, y, d, q0).q)
        theirs = accuracy(B, y, d, q0, exponential_cone(B, y, d, q0))
        times = [1e3 * statistics.median(seconds[k]) for k in ("posquad", "clarabel")]
        note = f"  required >= {REQUIRED}, goal {GOAL}" if (n, m, epsilon) == SIZES[0] else ""
        print(
            f"{n:4d} {m:5d} {epsilon:6g} {times[0]:12.2f} {times[1]:12.1f} {ratio:6.0f}"
            f"   {ours[0]:.0e}, {ours[1]:.0e}   {theirs[0]:.0e}, {theirs[1]:.0e}{note}"
        )


if __name__ == "__main__":
    main()
