"""NIfTI images: read in slabs, checked to be complete, and written with their header kept."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from posquad.core.extras import import_extra
from posquad.core.files import FileError, write_file

__all__ = ["Image", "image_bytes", "open_image"]

_CHUNK = 2**22  # bytes decompressed at a time


@dataclass(frozen=True, eq=False)
class Image:
    """An open NIfTI image; its data stay in the file."""

    path: Path
    content: Any  # nibabel's image

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the data."""
        return tuple(int(k) for k in self.content.shape)

    def slab(self, begin: int, end: int) -> np.ndarray:
        """Values of the slices from `begin` to `end` along the third axis, scaled."""
        try:
            return np.asarray(self.content.dataobj[:, :, begin:end])
        except (OSError, ValueError, EOFError) as problem:
            raise _unreadable(self.path, str(problem)) from None


@contextmanager
def open_image(path: Path) -> Iterator[Image]:
    """Open a NIfTI image without reading its data.

    A compressed file is unpacked into a temporary folder, so that slabs can be read from it one by
    one. An image whose file ends early is refused. Needs the extra `posquad[dipy]`.

    >>> import nibabel
    >>> with TemporaryDirectory() as folder:
    ...     nibabel.Nifti1Image(np.ones((2, 3, 4)), np.eye(4)).to_filename(f"{folder}/a.nii.gz")
    ...     with open_image(Path(folder, "a.nii.gz")) as image:
    ...         image.shape, image.slab(0, 1).sum()
    ((2, 3, 4), np.float64(6.0))
    """
    nibabel = import_extra("nibabel", "dipy")
    if not path.is_file():
        raise _unreadable(path, "a folder" if path.is_dir() else "no such file")
    with TemporaryDirectory(prefix="posquad-") as folder:
        plain = path
        if path.suffix.lower() == ".gz":
            plain = Path(folder, "image.nii")
            _unpack(path, plain)
        try:
            content = nibabel.load(plain)
        except (OSError, nibabel.filebasedimages.ImageFileError) as problem:
            got = problem.strerror if isinstance(problem, OSError) else "a file of another format"
            raise _unreadable(path, got or "a file that cannot be read") from None
        if not isinstance(content, nibabel.Nifti1Image):  # Nifti2Image is one of them
            raise _unreadable(path, f"a {type(content).__name__}")
        if min(content.shape, default=0) < 1:
            raise _unreadable(path, f"an image of shape {tuple(content.shape)}")
        kind = content.get_data_dtype()
        if kind.kind not in "fiu":
            raise FileError(str(path), expected="an image of real numbers", got=f"type {kind}")
        _require_complete(path, plain, content)
        try:
            yield Image(path, content)
        finally:
            content.uncache()


def _unpack(path: Path, target: Path) -> None:
    try:
        with gzip.open(path) as packed, target.open("wb") as plain:
            while chunk := packed.read(_CHUNK):
                plain.write(chunk)
    except EOFError:
        raise _unreadable(path, "a file that ends early") from None
    except (OSError, zlib.error) as problem:
        got = getattr(problem, "strerror", None) or "a damaged compressed file"
        raise _unreadable(path, got) from None


def _require_complete(path: Path, plain: Path, content: Any) -> None:
    header = content.header
    offset = content.dataobj.offset
    needed = offset + int(np.prod(content.shape, dtype=np.int64)) * header.get_data_dtype().itemsize
    size = plain.stat().st_size
    if size < needed:
        got = f"a file that ends early: {needed - size} of {needed} bytes are missing"
        raise _unreadable(path, got)


def _unreadable(path: Path, got: str) -> FileError:
    return FileError(str(path), expected="a complete NIfTI image (.nii or .nii.gz)", got=got)


def image_bytes(data: np.ndarray, model: Image) -> bytes:
    """Return a compressed NIfTI file of these data, with the header and affine of another image.

    The same data give the same bytes.

    >>> import nibabel
    >>> model = Image(Path("a.nii"), nibabel.Nifti1Image(np.ones((2, 2, 2, 3)), 2 * np.eye(4)))
    >>> content = gzip.decompress(image_bytes(np.ones((2, 2, 2)), model))
    >>> image = nibabel.Nifti1Image.from_bytes(content)
    >>> image.shape, image.affine[0, 0]
    ((2, 2, 2), np.float64(2.0))
    """
    header = model.content.header.copy()
    header.set_data_dtype(data.dtype)
    header["cal_min"] = header["cal_max"] = 0  # the range of another quantity
    image = type(model.content)(data, model.content.affine, header)
    return gzip.compress(image.to_bytes(), compresslevel=6, mtime=0)


def write_image(path: Path, data: np.ndarray, model: Image) -> None:
    """Write data as a compressed NIfTI file, atomically."""
    write_file(path, image_bytes(data, model))
