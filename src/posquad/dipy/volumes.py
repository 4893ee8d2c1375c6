"""Positive tensors of a whole image, slab by slab, as maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posquad.core.errors import DomainError, ShapeError
from posquad.dipy.gradients import GradientTable
from posquad.dipy.images import Image, open_image, write_image
from posquad.dipy.tensors import Flag, Method, TensorFits, fit_tensors

__all__ = ["MAPS", "Maps", "fit_image"]

_ENTRIES = 2**24  # signals of a slab: 128 MB in double precision

MAPS = {
    "tensor": "Dxx, Dxy, Dyy, Dxz, Dyz, Dzz, in mm^2/s",
    "fa": "fractional anisotropy",
    "md": "mean diffusivity, in mm^2/s",
    "s0": "signal without diffusion",
    "tensor_se": "standard errors of the entries of the tensor",
    "fa_se": "standard error of the fractional anisotropy",
    "md_se": "standard error of the mean diffusivity",
    "sigma": "standard deviation of the signals around the fit",
    "flags": "sum of 1 (the constraint is active), 2 (signals left out), 4 (too few signals), "
    "8 (optimum not reached to rounding), 16 (outside the mask), 32 (S0 out of range)",
}
"""The maps that are written, by file name, and what they hold."""


@dataclass(frozen=True, eq=False)
class Maps:
    """Maps of an image; zero outside the mask, and NaN where a standard error is not defined."""

    values: dict[str, np.ndarray]  # by the names of `MAPS`, [x, y, z] or [x, y, z, 6]

    @property
    def fitted(self) -> np.ndarray:
        """Whether a voxel has a tensor, `[x, y, z]`."""
        return (self.values["flags"] & (Flag.UNDETERMINED | Flag.OUTSIDE)) == 0

    def share(self, flag: Flag) -> float:
        """Share of the voxels inside the mask that have a flag."""
        flags = self.values["flags"]
        inside = (flags & Flag.OUTSIDE) == 0
        return float(((flags & flag) != 0)[inside].mean()) if inside.any() else 0.0


def read_mask(path: Path | None, image: Image) -> np.ndarray:
    """Return the voxels to fit, `[x, y, z]`: those where the mask is not zero, or all."""
    shape = image.shape[:3]
    if path is None:
        return np.ones(shape, dtype=bool)
    with open_image(path) as mask:
        found = mask.shape[:3] if set(mask.shape[3:]) <= {1} else mask.shape
        if found != shape:
            expected = f"the shape {shape} of the volumes of {image.path}"
            raise ShapeError(str(path), expected=expected, got=f"shape {mask.shape}")
        if not np.allclose(mask.content.affine, image.content.affine, rtol=1e-3, atol=1e-3):
            expected = f"the affine of {image.path}: the mask lies in another space"
            raise DomainError(str(path), expected=expected, got="another affine")
        return np.nan_to_num(mask.slab(0, shape[2])).reshape(shape) != 0


def fit_image(
    image: Image,
    gradients: GradientTable,
    mask: np.ndarray,
    method: Method = "wls",
    *,
    advance: Callable[[int], None] | None = None,
) -> Maps:
    """Fit the tensors of an image; `advance` is called with the number of voxels of each slab.

    >>> import nibabel
    >>> g = np.random.default_rng(0).standard_normal((9, 3))
    >>> g /= np.linalg.norm(g, axis=1, keepdims=True)
    >>> table = GradientTable(np.r_[0.0, np.full(9, 1000.0)], np.r_[np.zeros((1, 3)), g])
    >>> S = np.full((2, 2, 1, 10), 100.0) * np.exp(-1e-3 * table.bvals)
    >>> image = Image(Path("a.nii"), nibabel.Nifti1Image(S, np.eye(4)))
    >>> fit_image(image, table, np.ones((2, 2, 1), dtype=bool)).values["md"].round(6).max()
    np.float32(0.001)
    """
    shape = image.shape[:3]
    values = {name: _blank(name, shape) for name in MAPS}
    values["flags"][~mask] = Flag.OUTSIDE.value
    design = gradients.design_matrix
    for slab in _slabs(image):
        inside = mask[:, :, slab]
        if inside.any():
            signals = image.slab(slab.start, slab.stop)[inside]
            fits = fit_tensors(design, signals, method, errors=True)
            for name, found in _maps_of(fits).items():
                values[name][:, :, slab][inside] = found
        if advance is not None:
            advance(int(inside.sum()))
    return Maps(values)


def write_maps(maps: Maps, image: Image, folder: Path) -> None:
    """Write every map as `NAME.nii.gz`, with the header and affine of the image."""
    for name, data in maps.values.items():
        write_image(folder / f"{name}.nii.gz", data, image)


def _slabs(image: Image) -> Iterator[slice]:
    x, y, z, g = image.shape
    step = max(1, _ENTRIES // (x * y * g))
    for begin in range(0, z, step):
        yield slice(begin, min(begin + step, z))


def _blank(name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name == "flags":
        return np.zeros(shape, dtype=np.uint8)
    return np.zeros((*shape, 6) if name.startswith("tensor") else shape, dtype=np.float32)


def _maps_of(fits: TensorFits) -> dict[str, np.ndarray]:
    errors = fits.errors
    assert errors is not None, "asked for by fit_image"
    with np.errstate(over="ignore", under="ignore"):
        S0 = fits.S0.astype(np.float32)  # in which maps are stored, and whose range is smaller
    lost = ~(np.isfinite(S0) & (S0 > 0)) & ((fits.flags & Flag.UNDETERMINED) == 0)
    return {
        "tensor": fits.tensor,
        "fa": fits.fa,
        "md": fits.md,
        "s0": S0,
        "tensor_se": errors.tensor,
        "fa_se": errors.fa,
        "md_se": errors.md,
        "sigma": errors.sigma,
        "flags": fits.flags | (lost * Flag.OUT_OF_RANGE.value).astype(np.uint8),
    }
