"""Data for `benchmarks/volumes.py`: a simulated brain, written to disk, and random batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import nibabel
import numpy as np

SHAPE, VOXELS = (80, 92, 70), 200_000
DIRECTIONS, ZEROS, B = 64, 6, 1000.0
SNR = 20.0  # of the signal without diffusion in white matter
WHITE, GRAY, WATER = 1000.0, 1100.0, 2000.0  # signals without diffusion


@dataclass(frozen=True, eq=False)
class Brain:
    """The files of a simulated brain, and the truth."""

    image: Path
    bval: Path
    bvec: Path
    mask: Path
    tensors: np.ndarray  # [VOXELS, 3, 3]
    sigma: float


def sphere(count: int, rng: np.random.Generator) -> np.ndarray:
    """Unit vectors that repel each other and their opposites."""
    g = rng.standard_normal((count, 3))
    for _ in range(300):
        g /= np.linalg.norm(g, axis=1, keepdims=True)
        both = np.concatenate([g, -g])
        apart = g[:, None] - both
        size = np.linalg.norm(apart, axis=-1, keepdims=True)
        force = np.where(size > 1e-9, apart / np.maximum(size, 1e-9) ** 3, 0.0).sum(1)
        g = g + 0.5 / count * force
    return g / np.linalg.norm(g, axis=1, keepdims=True)


def tissue(place: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Tensors and signals without diffusion of voxels at `place[n, 3]`, within the unit ball."""
    radius = np.linalg.norm(place, axis=1)
    # White matter: bundles along a smooth field, with anisotropies from 0.4 to 1.
    x, y, z = 3.0 * place.T
    main = np.stack([np.sin(y) + 0.3 * z, np.cos(x - z), np.sin(z + 2 * x)], axis=1) + 1e-3
    main /= np.linalg.norm(main, axis=1, keepdims=True)
    spread = rng.uniform(0.0, 0.5, len(place))[:, None, None]
    along = main[:, :, None] * main[:, None, :]
    trace = 2.2e-3
    white = trace / (1 + 2 * spread) * (along + spread * (np.eye(3) - along))
    gray = trace / 3 * (0.9 * np.eye(3) + 0.3 * along)
    water = np.broadcast_to(3e-3 * np.eye(3), white.shape)
    inner, outer = radius < 0.22, radius > 0.8
    tensors = np.where(inner[:, None, None], water, np.where(outer[:, None, None], gray, white))
    return tensors, np.where(inner, WATER, np.where(outer, GRAY, WHITE))


def simulated_brain(folder: Path, seed: int = 0) -> Brain:
    """Write an ellipsoid of 200,000 voxels with Rician noise as NIfTI files."""
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*map(np.arange, SHAPE), indexing="ij"), axis=-1)
    place = (grid - (np.array(SHAPE) - 1) / 2) / (np.array(SHAPE) / 2)
    radius = np.linalg.norm(place, axis=-1)
    limit = np.partition(radius.ravel(), VOXELS)[VOXELS]
    mask = np.zeros(SHAPE, dtype=bool)
    mask.ravel()[np.argsort(radius.ravel(), kind="stable")[:VOXELS]] = True
    tensors, zero = tissue(place[mask] / limit, rng)
    bvecs = np.concatenate([np.zeros((ZEROS, 3)), sphere(DIRECTIONS, rng)])
    bvals = np.concatenate([np.zeros(ZEROS), np.full(DIRECTIONS, B)])
    exponent = bvals * np.einsum("gi,kij,gj->kg", bvecs, tensors, bvecs)
    sigma = WHITE / SNR
    signal = zero[:, None] * np.exp(-exponent)
    noise = sigma * rng.standard_normal((2, *signal.shape))
    measured = np.hypot(signal + noise[0], noise[1])
    volume = np.zeros((*SHAPE, len(bvals)), dtype=np.float32)
    volume[mask] = measured
    affine = np.diag([2.0, 2.0, 2.0, 1.0])
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in ("dwi.nii", "dwi.bval", "dwi.bvec", "mask.nii.gz")]
    nibabel.Nifti1Image(volume, affine).to_filename(paths[0])
    np.savetxt(paths[1], bvals[None], fmt="%g")
    np.savetxt(paths[2], bvecs.T, fmt="%.8f")
    nibabel.Nifti1Image(mask.astype(np.uint8), affine).to_filename(paths[3])
    return Brain(*paths, tensors, sigma)


def batch(
    d: int,
    n: int,
    count: int,
    weak: float,
    *,
    noise: float = 0.05,
    uneven: float = 1.0,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """One design `X[n, d]`, and responses `y[count, n]` with this share of noise.

    The last direction of each matrix has the share `weak` of the size of the others: the smaller it
    is, the more often least squares is not positive. A tenth of the rows is `uneven` times as long
    as the others.
    """
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    X[: n // 10] *= uneven
    axes = np.linalg.qr(rng.standard_normal((count, d, d)))[0]
    values = rng.uniform(0.5, 1.5, (count, d))
    values[:, -1] *= weak
    Q = np.einsum("kir,kr,kjr->kij", axes, values, axes)
    y = np.einsum("ni,kij,nj->kn", X, Q, X)
    size = np.sqrt((y**2).mean(1, keepdims=True))
    return X, y + noise * size * rng.standard_normal(y.shape)
