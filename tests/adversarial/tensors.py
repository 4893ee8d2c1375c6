"""Diffusion tensors of voxels whose signals span up to fifteen decades: what is returned is true.

The weighted sum of squares is computed again with 60 digits, from the tensor and log S0 that were
returned. So is a lower bound on that of every positive tensor. With `e = svec(D)` and `G = A'W(log
S - k + Ae)`, half the gradient, every positive semidefinite Y with `<Y, D> = 0` gives

    f(P) - f(D) >= 2 <G - Y, P - D> + |P - D|_H^2 >= -(G - Y)'H^{-1}(G - Y)   for all P >= 0.

Rounding is measured by what is summed, `sum w (log S)^2`: where signals are fitted exactly, the
residual itself is rounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import mpmath
import numpy as np

from adversarial import Family, Outcome
from posquad.dipy import Flag, TensorFits, fit_tensors

Rng = np.random.Generator
_DIGITS = 60
_ROUNDING = 60 * np.finfo(float).eps  # of `sum w (log S)^2`
_VOXELS = 200  # fitted together; of these, a few are judged
_JUDGED = 2
_PLACES = ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2))  # the entries of a tensor in DIPY


def gradients(rng: Rng) -> np.ndarray:
    """A design matrix as DIPY makes it: up to three b-values from 10 to 30,000."""
    g = rng.standard_normal((int(rng.integers(8, 30)), 3))
    g /= np.linalg.norm(g, axis=1, keepdims=True)
    b = np.resize(10 ** rng.uniform(1, 4.5, int(rng.integers(1, 4))), len(g))
    x, y, z = np.vstack([np.zeros((int(rng.integers(1, 5)), 3)), np.sqrt(b)[:, None] * g]).T
    one = np.ones(len(x))
    return -np.column_stack([x * x, 2 * x * y, y * y, 2 * x * z, 2 * y * z, z * z, one])


def scattered(rng: Rng, design: np.ndarray) -> np.ndarray:
    """Decades at random."""
    return rng.uniform(0, 15, (_VOXELS, len(design)))


def of_two_sizes(rng: Rng, design: np.ndarray) -> np.ndarray:
    """A part of the signals is fifteen decades above the others."""
    shape = _VOXELS, len(design)
    high = rng.random(shape) < rng.uniform(0.02, 0.98)
    return np.where(high, 15.0, 0.0) + 0.1 * rng.standard_normal(shape)


def decaying(rng: Rng, design: np.ndarray) -> np.ndarray:
    """Signals of a tensor, which falls through fifteen decades; exact or with noise."""
    axes = np.linalg.qr(rng.standard_normal((_VOXELS, 3, 3)))[0]
    D = np.einsum("kir,kr,kjr->kij", axes, rng.uniform(0, 1, (_VOXELS, 3)), axes)
    exponent = -np.stack([D[:, i, j] for i, j in _PLACES], 1) @ design[:, :6].T
    levels = 15 * (1 - exponent / exponent.max(1, keepdims=True))
    return levels + rng.choice([0.0, 0.01, 1.0]) * rng.standard_normal(levels.shape)


def judge(design: np.ndarray, S: np.ndarray, fits: TensorFits, voxel: int) -> list[str]:
    """What is wrong with one voxel, in words."""
    mp = mpmath.mp.clone()
    mp.dps = _DIGITS
    root = mp.sqrt(2)
    scale = [mp.mpf(1) if i == j else root for i, j in _PLACES]
    used = np.flatnonzero(fits.weights[voxel] > 0)
    w = [mp.mpf(x) for x in fits.weights[voxel, used].tolist()]
    A = [
        [-mp.mpf(x) / s for x, s in zip(row, scale, strict=False)] for row in design[used].tolist()
    ]
    logs = [mp.log(mp.mpf(x)) for x in S[voxel, used].tolist()]
    e = [mp.mpf(x) * s for x, s in zip(fits.tensor[voxel].tolist(), scale, strict=True)]
    fitted = [mp.fdot(row, e) for row in A]
    k, rows, total = mp.mpf(float(fits.log_S0[voxel])), range(len(used)), mp.fsum(w)
    residual = mp.fsum(w[i] * (logs[i] - k + fitted[i]) ** 2 for i in rows)
    means = [mp.fsum(w[i] * A[i][c] for i in rows) / total for c in range(6)]
    A = [[a - m for a, m in zip(row, means, strict=True)] for row in A]  # S0 is free
    H = mp.matrix(6, 6)
    for a in range(6):
        for b in range(6):
            H[a, b] = mp.fsum(w[i] * A[i][a] * A[i][b] for i in rows)
    errors = [logs[i] - k + fitted[i] for i in rows]
    G = mp.matrix([mp.fsum(w[i] * errors[i] * A[i][c] for i in rows) for c in range(6)])
    D, slope = (mp.matrix(3, 3) for _ in range(2))
    for c, (i, j) in enumerate(_PLACES):
        D[i, j] = D[j, i] = e[c] / scale[c]
        slope[i, j] = slope[j, i] = G[c] / scale[c]
    kernel = int((fits.evals[voxel] == 0).sum())
    if kernel:
        N = mp.eigsy(D)[1][:, :kernel]
        values, vectors = mp.eigsy(N.T * slope * N)
        Y = mp.matrix(3, 3)
        for q in range(kernel):
            Y += max(values[q], mp.mpf(0)) * (N * vectors[:, q]) * (N * vectors[:, q]).T
        G -= mp.matrix([Y[i, j] * scale[c] for c, (i, j) in enumerate(_PLACES)])
    gap = (G.T * mp.lu_solve(H, G))[0]
    size = mp.fsum(w[i] * logs[i] ** 2 for i in rows)
    wrong = []
    if not abs(mp.mpf(float(fits.residual[voxel])) - residual) <= _ROUNDING * size:
        wrong.append(f"a residual of {fits.residual[voxel]}, not {mp.nstr(residual, 12)}")
    if not gap <= fits.gap[voxel] + _ROUNDING * size and not fits.flags[voxel] & Flag.NOT_SOLVED:
        wrong.append(f"a gap of {fits.gap[voxel]}, not {mp.nstr(gap, 12)}")
    return wrong


def attempt(make: Callable[[Rng, np.ndarray], np.ndarray], seed: int) -> Outcome:
    rng = np.random.default_rng(seed)
    design = gradients(rng)
    S = 10.0 ** (rng.choice([-3.5, 0.0, 5.0]) + make(rng, design))
    fits = fit_tensors(design, S, ("ols", "wls", "rwls")[int(rng.integers(3))])
    outcome = Outcome(tried=_VOXELS)
    flags, S0 = fits.flags, fits.S0
    determined = (flags & Flag.UNDETERMINED) == 0
    finite = np.isfinite(fits.residual + fits.gap + fits.tensor.sum(1))
    if not finite.all():
        outcome.broken.append(f"voxel {np.argmin(finite)} has numbers that are not finite")
    ranged = (np.isfinite(S0) & (S0 > 0)) | ((flags & Flag.OUT_OF_RANGE) > 0)
    if not ranged[determined].all():
        outcome.broken.append(f"S0 of {S0[determined & ~ranged][0]} and no flag")
    if np.isnan(fits.log_S0).any() or not np.isfinite(fits.log_S0[determined]).all():
        outcome.broken.append("log S0 is not finite")
    outcome.said["undetermined"] = int((~determined).sum())
    outcome.said["S0 out of range"] = int(((flags & Flag.OUT_OF_RANGE) > 0).sum())
    outcome.said["not solved"] = int(((flags & Flag.NOT_SOLVED) > 0).sum())
    # The weights that differ most leave the worst conditioned equations.
    high = fits.weights.max(1) / np.where(fits.weights > 0, fits.weights, np.inf).min(1)
    order = np.flatnonzero(determined)[np.argsort(-high[determined])]
    chosen = [*np.flatnonzero(flags & Flag.OUT_OF_RANGE)[:1], *order[:_JUDGED]]
    for voxel in chosen:
        words = judge(design, S, fits, int(voxel))
        outcome.broken += [f"voxel {voxel}: {word}" for word in words]
    outcome.said += Counter({"judged": len(chosen)})
    return outcome


FAMILIES = {
    make.__name__.replace("_", "-"): Family(partial(attempt, make), 4, 200)
    for make in (scattered, of_two_sizes, decaying)
}
