"""Maps of whole images: slab by slab, inside a mask, against the tensors of the voxels."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import nibabel
import numpy as np
import pytest
from dti_support import signals, table, tensors

from posquad.core.errors import DomainError, ShapeError
from posquad.dipy import Flag, fit_tensors, volumes
from posquad.dipy.gradients import GradientTable
from posquad.dipy.images import Image, open_image
from posquad.dipy.volumes import MAPS, fit_image, read_mask, write_maps

SHAPE = (3, 2, 5)


@pytest.fixture
def brain():
    """An image of 30 voxels, some of which need the constraint, one without signals; a mask."""
    gtab = table(20)
    data = signals(gtab, tensors([1.7e-3, 0.2e-3, 0.01e-3], 30), 20.0).reshape(*SHAPE, -1)
    data[0, 0, 0] = 0.0
    mask = np.ones(SHAPE, dtype=bool)
    mask[:, :, 3], mask[1, 1, 1] = False, False
    image = Image(Path("brain.nii"), nibabel.Nifti1Image(data, np.diag([2.0, 2, 2, 1])))
    return image, GradientTable(gtab.bvals, gtab.bvecs), mask, data


@pytest.mark.parametrize(
    ("entries", "slabs"), [(2**24, [5]), (6 * 24 * 2, [2, 2, 1]), (1, [1] * 5)]
)
def test_maps_are_those_of_the_voxels(brain, monkeypatch, entries, slabs):
    """Whatever the size of a slab; the progress counts the voxels inside the mask."""
    image, gradients, mask, data = brain
    monkeypatch.setattr(volumes, "_ENTRIES", entries)
    told = []
    maps = fit_image(image, gradients, mask, advance=told.append)
    ends = np.cumsum([0, *slabs])
    assert told == [int(mask[:, :, a:b].sum()) for a, b in pairwise(ends)]
    fits = fit_tensors(gradients.design_matrix, data[mask], errors=True)
    expected = {
        "tensor": fits.tensor,
        "fa": fits.fa,
        "md": fits.md,
        "s0": fits.S0,
        "tensor_se": fits.errors.tensor,
        "fa_se": fits.errors.fa,
        "md_se": fits.errors.md,
        "sigma": fits.errors.sigma,
        "flags": fits.flags,
    }
    assert maps.values.keys() == expected.keys() == MAPS.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(maps.values[name][mask], values, rtol=1e-6, err_msg=name)
        outside = Flag.OUTSIDE if name == "flags" else 0
        assert (maps.values[name][~mask] == outside).all(), name


def test_shares_are_of_the_voxels_inside_the_mask(brain):
    image, gradients, mask, data = brain
    maps = fit_image(image, gradients, mask)
    fits = fit_tensors(gradients.design_matrix, data[mask])
    for flag in (Flag.POSITIVE, Flag.UNDETERMINED):
        assert 0 < maps.share(flag) == (fits.flags & flag > 0).mean()
    fitted = mask.copy()
    fitted[0, 0, 0] = False
    np.testing.assert_array_equal(maps.fitted, fitted)
    assert fit_image(image, gradients, np.zeros(SHAPE, dtype=bool)).share(Flag.POSITIVE) == 0


def test_maps_are_written_with_the_affine_of_the_image(brain, tmp_path):
    image, gradients, mask, _ = brain
    maps = fit_image(image, gradients, mask)
    write_maps(maps, image, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.nii.gz" for name in MAPS}
    for name, values in maps.values.items():
        with open_image(tmp_path / f"{name}.nii.gz") as written:
            np.testing.assert_array_equal(written.content.affine, image.content.affine)
            np.testing.assert_array_equal(written.slab(0, 5), values)


def test_a_mask_is_what_is_not_zero(brain, tmp_path):
    image, _, mask, _ = brain
    assert read_mask(None, image).all()
    kept = mask * np.where(np.arange(5) > 2, np.nan, -0.5)
    expected = mask & (np.arange(5) <= 2)
    for values in (kept, kept[..., None]):
        nibabel.Nifti1Image(values, image.content.affine).to_filename(tmp_path / "mask.nii")
        np.testing.assert_array_equal(read_mask(tmp_path / "mask.nii", image), expected)
    nibabel.Nifti1Image(kept, np.eye(4)).to_filename(tmp_path / "mask.nii")
    with pytest.raises(DomainError, match="the mask lies in another space"):
        read_mask(tmp_path / "mask.nii", image)
    nibabel.Nifti1Image(kept[:, :, :4], image.content.affine).to_filename(tmp_path / "mask.nii")
    with pytest.raises(ShapeError, match=r"the shape \(3, 2, 5\) of the volumes"):
        read_mask(tmp_path / "mask.nii", image)
