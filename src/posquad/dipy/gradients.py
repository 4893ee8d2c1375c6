"""Gradient tables in FSL's format, and their design matrix."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posquad.core.errors import PosquadError

__all__ = ["GradientTable", "read_gradients"]

ZERO = 50.0  # b-values up to this many s/mm^2 count as zero, as in DIPY
_UNIT = 0.01  # how far the length of a b-vector may be from one, as in DIPY
_LARGEST = 1e6  # s/mm^2


class GradientError(PosquadError):
    """A gradient table cannot be used."""


@dataclass(frozen=True, eq=False)
class GradientTable:
    """b-values `[g]` and unit b-vectors `[g, 3]`, both zero for images without diffusion weight."""

    bvals: np.ndarray
    bvecs: np.ndarray

    @property
    def design_matrix(self) -> np.ndarray:
        """DIPY's design matrix `[g, 7]`: `-(Bxx, 2 Bxy, Byy, 2 Bxz, 2 Byz, Bzz, 1)`."""
        x, y, z = self.bvecs.T
        columns = [x * x, 2 * x * y, y * y, 2 * x * z, 2 * y * z, z * z]
        return -np.column_stack([*(self.bvals * column for column in columns), np.ones_like(x)])


def read_gradients(bval: Path, bvec: Path, volumes: int) -> GradientTable:
    """Read the b-values and b-vectors of an image with this many volumes.

    The b-vectors are in three rows or in three columns. Those of b-values up to 50 are not used.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     a, b = Path(folder, "a.bval"), Path(folder, "a.bvec")
    ...     written = a.write_text("0 1000 1000"), b.write_text("0 1 0\\n0 0 1\\n0 0 0\\n")
    ...     read_gradients(a, b, 3).bvecs.tolist()
    [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    bvals, bvecs = _numbers(bval).ravel(), _numbers(bvec)
    if len(bvals) != volumes:
        expected = f"one b-value for each of the {volumes} volumes of the image"
        raise GradientError(str(bval), expected=expected, got=str(len(bvals)))
    if bvecs.shape == (3, volumes):
        bvecs = bvecs.T
    if bvecs.shape != (volumes, 3):
        expected = f"one b-vector for each of the {volumes} volumes of the image, in 3 rows"
        rows, columns = bvecs.shape
        raise GradientError(str(bvec), expected=expected, got=f"{rows} rows of {columns} numbers")
    if not np.isfinite(bvals).all() or bvals.min() < 0 or bvals.max() > _LARGEST:
        expected, got = "b-values from 0 to 1e6 s/mm^2", f"{bvals.min():g} to {bvals.max():g}"
        raise GradientError(str(bval), expected=expected, got=got)
    weighted = bvals > ZERO
    lengths = np.linalg.norm(bvecs, axis=1)
    wrong = np.flatnonzero(weighted & ~(np.abs(lengths - 1) <= _UNIT))
    if len(wrong):
        got = f"length {lengths[wrong[0]]:.4g} for volume {wrong[0] + 1}"
        raise GradientError(str(bvec), expected="b-vectors of length 1 (within 0.01)", got=got)
    unit = np.zeros_like(bvecs)
    unit[weighted] = bvecs[weighted] / lengths[weighted, None]
    return GradientTable(np.where(weighted, bvals, 0.0), unit)


def _numbers(path: Path) -> np.ndarray:
    """Numbers of a text file, separated by blanks, tabs or commas, `[rows, columns]`."""
    try:
        lines = path.read_text(encoding="utf-8").replace(",", " ").splitlines()
        rows = [[float(word) for word in line.split()] for line in lines if line.strip()]
    except (OSError, UnicodeDecodeError, ValueError) as problem:
        got = getattr(problem, "strerror", None) or str(problem)
        raise GradientError(str(path), expected="a text file of numbers", got=got) from None
    if not rows or len({len(row) for row in rows}) > 1:
        got = "rows of different lengths" if rows else "none"
        raise GradientError(str(path), expected="rows of equally many numbers", got=got)
    return np.array(rows)
