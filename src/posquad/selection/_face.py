"""The optimal face through an optimal vertex, and the dual vector that proves it (section 4.4).

Every optimal x vanishes where one optimal dual vector has slack, so the face lies in the tight
columns. From the vertex, a tight coordinate at zero can grow if and only if there is a v with
`b v = 0` that is nonnegative on all tight coordinates at zero and positive on this one. The
positive coordinates may change with either sign, so only the parts of the other columns orthogonal
to their range matter. That gives a homogeneous program without small coordinates.
"""

from __future__ import annotations

import numpy as np
import scipy

from posquad.selection._vertex import SOLVER_OPTIONS, Program, Vertex


def face_support(program: Program, vertex: Vertex) -> np.ndarray:
    """Coordinates that are positive in some optimal solution, ascending."""
    b, positive = program.b, vertex.positive
    entering = np.setdiff1d(vertex.tight, positive)
    if not len(entering):
        return positive
    columns, _ = _normalized(b[:, entering])
    across, condition = _orthogonal_parts(b[:, positive], columns)
    size = np.linalg.norm(across, axis=0)
    grows = size <= 10 * max(b.shape) * program.eps * condition  # in the range: it can grow freely
    if not grows.all():
        grows[~grows] = _largest_support(across[:, ~grows] / size[~grows])
    return np.sort(np.append(positive, entering[grows]))


def complementary_dual(program: Program, vertex: Vertex, support: np.ndarray) -> np.ndarray:
    """Dual vector, tight on the support, that maximises the smallest `slack_a / c_a` off it."""
    b, c = program.b, program.c
    off = np.setdiff1d(np.arange(len(c)), support)
    # Move along directions that keep the support tight, to maximise the smallest slack.
    _, s, vh = np.linalg.svd(_normalized(b[:, support])[0].T, full_matrices=True)
    free = vh[int((s > 1e-12).sum()) :].T  # [n, k]
    if not off.size or not free.shape[1]:
        return vertex.dual
    columns = b[:, off] / c[off]  # slacks relative to the cost
    best = scipy.optimize.linprog(
        np.append(np.zeros(free.shape[1]), -1.0),
        A_ub=np.hstack([columns.T @ free, np.ones((len(off), 1))]),
        b_ub=1 - columns.T @ vertex.dual,
        bounds=[(None, None)] * free.shape[1] + [(None, 1)],
        method="highs",
        options=SOLVER_OPTIONS,
    )
    return vertex.dual + free @ best.x[:-1] if best.status == 0 else vertex.dual


def rank(columns: np.ndarray) -> int:
    """Rank of a set of columns, each scaled to length one."""
    if not columns.shape[1]:
        return 0
    s = np.linalg.svd(_normalized(columns)[0], compute_uv=False)
    return int((s > 1e-12 * s[0]).sum())


def _normalized(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns scaled to length one (zero columns stay zero), and their lengths."""
    size = np.linalg.norm(columns, axis=0)
    return columns / np.where(size > 0, size, 1.0), size


def _orthogonal_parts(basis: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, float]:
    """Parts of the columns orthogonal to the range of a basis, and the condition of the basis."""
    if not basis.shape[1]:
        return columns, 1.0
    Q, R = np.linalg.qr(_normalized(basis)[0])
    s = np.linalg.svd(R, compute_uv=False)
    for _ in range(2):  # the second pass removes the rounding of the first
        columns = columns - Q @ (Q.T @ columns)
    return columns, float(s[0] / s[-1])


def _largest_support(columns: np.ndarray) -> np.ndarray:
    """Which v_a can be positive under `C v = 0`, `v >= 0`.

    The linear program maximises the sum of `min(v_a, 1)`, so as many v_a as possible reach 1.
    """
    k = columns.shape[1]
    eye = scipy.sparse.eye(k, format="csr")
    program = scipy.optimize.linprog(
        np.append(np.zeros(k), -np.ones(k)),
        A_eq=scipy.sparse.hstack([columns, scipy.sparse.csr_matrix(columns.shape)]),
        b_eq=np.zeros(len(columns)),
        A_ub=scipy.sparse.hstack([-eye, eye]),
        b_ub=np.zeros(k),
        bounds=[(0, None)] * k + [(0, 1)] * k,
        method="highs",
        options=SOLVER_OPTIONS,
    )
    return program.x[k:] > 0.5 if program.status == 0 else np.zeros(k, dtype=bool)
