"""Simulated diffusion experiments for the tests of `posquad.dipy`."""

from __future__ import annotations

import numpy as np
from dipy.core.gradients import gradient_table
from dipy.reconst import dti

S0 = 1000.0


def table(directions: int = 40, zeros: int = 4, bvals=(800.0, 1600.0), seed: int = 0):
    """A gradient table of DIPY with several b-values."""
    rng = np.random.default_rng(seed)
    g = rng.standard_normal((directions, 3))
    g /= np.linalg.norm(g, axis=1, keepdims=True)
    b = np.concatenate([np.zeros(zeros), np.resize(bvals, directions)])
    return gradient_table(b, bvecs=np.concatenate([np.zeros((zeros, 3)), g]), b0_threshold=1)


def tensors(values, count: int, seed: int = 1) -> np.ndarray:
    """Tensors `[count, 3, 3]` with these eigenvalues and random axes."""
    axes = np.linalg.qr(np.random.default_rng(seed).standard_normal((count, 3, 3)))[0]
    return np.einsum("kir,r,kjr->kij", axes, np.asarray(values, dtype=float), axes)


def signals(gtab, D: np.ndarray, sigma: float, seed: int = 2) -> np.ndarray:
    """Noisy signals `[count, g]`, at least 1."""
    exponent = gtab.bvals * np.einsum("gi,kij,gj->kg", gtab.bvecs, D, gtab.bvecs)
    clean = S0 * np.exp(-exponent)
    noise = sigma * np.random.default_rng(seed).standard_normal(clean.shape)
    return np.maximum(clean + noise, 1.0)


def needles(count: int = 60):
    """A table, and signals of tensors near the boundary: for a third least squares is negative."""
    gtab = table()
    return gtab, signals(gtab, tensors([1.7e-3, 0.2e-3, 0.01e-3], count), 20.0)


def unconstrained(design: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """Smallest eigenvalues of tensors in DIPY's lower triangular order."""
    return np.linalg.eigvalsh(dti.from_lower_triangular(entries))[..., 0]
