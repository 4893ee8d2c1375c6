"""Positive weighted least squares by CVXPY, voxel by voxel; called by `benchmarks/volumes.py`.

    python benchmarks/volumes_cvxpy.py VOXELS.npz ANSWERS.npz

It needs only NumPy and CVXPY, because CVXPY may be installed in another environment than DIPY. The
problem is formulated once with parameters, as CVXPY recommends: the triangular factor of the
weighted system and its right-hand side change from voxel to voxel.
"""

from __future__ import annotations

import sys
import time

import cvxpy as cp
import numpy as np

# DIPY's order of the entries of a tensor: xx, xy, yy, xz, yz, zz.
ROWS, COLUMNS = [0, 0, 1, 0, 1, 2], [0, 1, 1, 2, 2, 2]


def main(source: str, target: str) -> None:
    given = np.load(source)
    design, roots, logs = given["design"], given["roots"], given["logs"]
    unit = np.abs(design[:, :6]).max()
    A = np.column_stack([design[:, :6] / unit, design[:, 6:]])
    D, constant = cp.Variable((3, 3), PSD=True), cp.Variable(1)
    R, right = cp.Parameter((7, 7)), cp.Parameter(7)
    entries = [D[i, j] for i, j in zip(ROWS, COLUMNS, strict=True)]
    x = cp.hstack([*entries, constant])
    problem = cp.Problem(cp.Minimize(cp.sum_squares(R @ x - right)))
    answers = np.empty((len(logs), 7))
    begin = time.process_time()
    for k, (root, log) in enumerate(zip(roots, logs, strict=True)):
        basis, R.value = np.linalg.qr(root[:, None] * A)
        right.value = basis.T @ (root * log)
        problem.solve(solver=cp.CLARABEL)
        answers[k] = x.value
    seconds = time.process_time() - begin
    answers[:, :6] /= unit
    np.savez(target, answers=answers, seconds=seconds, version=cp.__version__)


if __name__ == "__main__":
    main(*sys.argv[1:])
