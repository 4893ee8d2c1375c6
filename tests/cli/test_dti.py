"""The command `posquad dti`: maps against DIPY and the fit itself, headers, and refusals."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
from dipy.core.gradients import gradient_table
from dipy.reconst import dti

from cli_support import assert_refused, command
from posquad.dipy import Flag, fit_tensors, volumes
from posquad.dipy.volumes import MAPS
from posquad.report import dti_report

SHAPE = (4, 5, 6)
AFFINE = np.array([[2.0, 0.1, 0, -10], [0, 2.5, 0, 5], [0, 0, 3, 7], [0, 0, 0, 1]])


@pytest.fixture
def scan(tmp_path) -> Path:
    """A small image with its gradient table and mask; some voxels are needles, one is empty."""
    rng = np.random.default_rng(0)
    g = rng.standard_normal((30, 3))
    g /= np.linalg.norm(g, axis=1, keepdims=True)
    bvals = np.concatenate([[0, 5], np.full(30, 1000)])
    bvecs = np.concatenate([np.zeros((2, 3)), g])
    axes = np.linalg.qr(rng.standard_normal((*SHAPE, 3, 3)))[0]
    D = np.einsum("...ir,r,...jr->...ij", axes, [1.7e-3, 0.2e-3, 0.0], axes)
    exponent = bvals * np.einsum("gi,...ij,gj->...g", bvecs, D, bvecs)
    data = 800 * np.exp(-exponent) + 10 * rng.standard_normal(exponent.shape)
    data[0, 0, 0] = 0
    image = nibabel.Nifti1Image(data.round().astype(np.int16), AFFINE)
    image.header.set_xyzt_units("mm", "sec")
    image.header["descrip"] = b"a phantom"
    image.to_filename(tmp_path / "dwi.nii.gz")
    image.to_filename(tmp_path / "dwi.nii")
    np.savetxt(tmp_path / "dwi.bval", bvals[None], fmt="%g")
    np.savetxt(tmp_path / "dwi.bvec", bvecs.T, fmt="%.10f")
    mask = np.ones(SHAPE, dtype=np.uint8)
    mask[-1] = 0
    nibabel.Nifti1Image(mask, AFFINE).to_filename(tmp_path / "mask.nii.gz")
    return tmp_path


@pytest.fixture
def without_pictures(monkeypatch):
    """A report without figures, which take most of the time of a small image."""
    monkeypatch.setattr(dti_report, "PANELS", ())


def run(folder: Path, *options: object, image: str = "dwi.nii.gz"):
    paths = [folder / name for name in (image, "dwi.bval", "dwi.bvec")]
    return command("dti", *paths, "--out", folder / "out", *options)


def maps(folder: Path) -> dict[str, np.ndarray]:
    return {name: nibabel.load(folder / "out" / f"{name}.nii.gz").get_fdata() for name in MAPS}


@pytest.mark.parametrize("options", [(), ("--robust",)])
def test_maps_are_those_of_the_fit(scan, options, monkeypatch, without_pictures):
    monkeypatch.setattr(volumes, "_ENTRIES", 2000)  # slabs of three slices
    result = run(scan, "--mask", scan / "mask.nii.gz", *options)
    assert result.exit_code == 0, result.output
    assert "89 fitted of 90 in the mask" in result.stdout
    written = {path.name for path in (scan / "out").iterdir()}
    assert written == {f"{name}.nii.gz" for name in MAPS} | {"report.html"}
    found = maps(scan)
    bvals, bvecs = np.loadtxt(scan / "dwi.bval"), np.loadtxt(scan / "dwi.bvec").T
    gtab = gradient_table(bvals, bvecs=bvecs, b0_threshold=50)
    data = nibabel.load(scan / "dwi.nii").get_fdata()
    inside = nibabel.load(scan / "mask.nii.gz").get_fdata() > 0
    method = "rwls" if options else "wls"
    fits = fit_tensors(dti.design_matrix(gtab), data[inside], method, errors=True)
    assert found["tensor"][inside] == pytest.approx(fits.tensor, abs=1e-9)
    assert found["s0"][inside] == pytest.approx(fits.S0, rel=1e-6)
    assert found["fa"][inside] == pytest.approx(dti.fractional_anisotropy(fits.evals), abs=1e-6)
    assert found["md"][inside] == pytest.approx(fits.evals.mean(1), abs=1e-9)
    assert found["fa_se"][inside] == pytest.approx(fits.errors.fa, rel=1e-5, nan_ok=True)
    assert found["md_se"][inside] == pytest.approx(fits.errors.md, rel=1e-5, nan_ok=True)
    assert found["tensor_se"][inside] == pytest.approx(fits.errors.tensor, rel=1e-5, nan_ok=True)
    assert found["sigma"][inside] == pytest.approx(fits.errors.sigma, rel=1e-5, nan_ok=True)
    flags = found["flags"].astype(int)
    assert flags[inside].tolist() == fits.flags.tolist()
    assert set(flags[~inside]) == {int(Flag.OUTSIDE)}
    assert flags[0, 0, 0] == Flag.UNDETERMINED
    assert 0.1 < (flags[inside] & Flag.POSITIVE > 0).mean() < 0.9
    page = (scan / "out" / "report.html").read_text(encoding="utf-8")
    assert "There standard errors are approximate" in page
    assert not found["tensor"][~inside].any()
    values = np.linalg.eigvalsh(dti.from_lower_triangular(found["tensor"]))
    assert values.min() > -1e-9  # single precision of 1e-3


def test_headers_and_affine_are_kept(scan, without_pictures):
    assert run(scan).exit_code == 0
    source = nibabel.load(scan / "dwi.nii.gz")
    for name in MAPS:
        image = nibabel.load(scan / "out" / f"{name}.nii.gz")
        assert image.shape == (*SHAPE, 6) if name.startswith("tensor") else SHAPE
        assert np.allclose(image.affine, source.affine)
        assert image.header.get_xyzt_units() == ("mm", "sec")
        assert image.header["descrip"] == source.header["descrip"]
        assert image.get_data_dtype() == (np.uint8 if name == "flags" else np.float32)
    first = {name: (scan / "out" / f"{name}.nii.gz").read_bytes() for name in MAPS}
    assert run(scan, image="dwi.nii").exit_code == 0  # not compressed: the same maps
    assert first == {name: (scan / "out" / f"{name}.nii.gz").read_bytes() for name in MAPS}


def test_the_report_shows_slices_and_loads_nothing(scan):
    assert run(scan).exit_code == 0
    page = (scan / "out" / "report.html").read_text(encoding="utf-8")
    assert page.count('<img src="data:image/svg+xml;base64,') == 6
    assert "cannot be drawn" not in page
    assert "119 fitted of 120 in the mask" in page
    assert "too few signals above zero" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_the_report_says_where_S0_is_out_of_range(scan, monkeypatch, without_pictures):
    fit = volumes.fit_tensors

    def far(*given, **options):
        fits = fit(*given, **options)
        return replace(fits, log_S0=np.where(np.arange(len(fits.log_S0)) == 5, 100.0, fits.log_S0))

    monkeypatch.setattr(volumes, "fit_tensors", far)  # beyond single precision: exp(88.7)
    assert run(scan).exit_code == 0
    flags = maps(scan)["flags"].astype(np.uint8)
    assert (flags & Flag.OUT_OF_RANGE > 0).sum() == 1
    page = (scan / "out" / "report.html").read_text(encoding="utf-8")
    assert "S0 is beyond the range of numbers" in page


def test_tables_in_columns_and_with_commas_are_read(scan, without_pictures):
    assert run(scan).exit_code == 0
    first = maps(scan)["fa"]
    np.savetxt(scan / "dwi.bvec", np.loadtxt(scan / "dwi.bvec").T, fmt="%.10f", delimiter=", ")
    np.savetxt(scan / "dwi.bval", np.loadtxt(scan / "dwi.bval"), fmt="%g")
    assert run(scan).exit_code == 0
    assert np.array_equal(maps(scan)["fa"], first)


def shorten(path: Path, share: float = 0.5) -> None:
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def test_images_that_cannot_be_used_are_refused(scan):
    whole = (scan / "dwi.nii.gz").read_bytes()
    shorten(scan / "dwi.nii.gz")
    assert_refused(run(scan), "dwi.nii.gz", "a complete NIfTI image", "ends early")
    plain = gzip.decompress(whole)
    (scan / "dwi.nii.gz").write_bytes(gzip.compress(plain[:-100]))
    assert_refused(run(scan), "100 of", "bytes are missing")
    shorten(scan / "dwi.nii")
    assert_refused(run(scan, image="dwi.nii"), "ends early", "bytes are missing")
    header = bytearray(plain)
    header[42:44] = (-3).to_bytes(2, "little", signed=True)  # dim[1]
    (scan / "dwi.nii").write_bytes(header)
    assert_refused(run(scan, image="dwi.nii"), "an image of shape", "-3")
    (scan / "dwi.nii").write_bytes(b"nothing of the kind")
    assert_refused(run(scan, image="dwi.nii"), "a file of another format")
    (scan / "dwi.nii.gz").write_bytes(b"not compressed")
    assert_refused(run(scan), "a damaged compressed file")
    assert_refused(run(scan, image="missing.nii.gz"), "no such file")
    assert_refused(run(scan, image="missing.nii"), "no such file")
    for value in (np.nan, 0.0):
        empty = nibabel.Nifti1Image(np.full((*SHAPE, 32), value), AFFINE)
        empty.to_filename(scan / "empty.nii.gz")
        words = "a voxel whose signals above 0.0001 determine a tensor", "none in 120 voxels"
        assert_refused(run(scan, image="empty.nii.gz"), "empty.nii.gz", *words)
    assert not list((scan / "out").iterdir())
    nibabel.Nifti1Image(np.ones((*SHAPE, 32), np.complex64), AFFINE).to_filename(scan / "c.nii")
    assert_refused(run(scan, image="c.nii"), "c.nii", "an image of real numbers", "complex64")
    flat = nibabel.Nifti1Image(np.ones((3, 4, 5)), np.eye(4))
    flat.to_filename(scan / "flat.nii.gz")
    assert_refused(run(scan, image="flat.nii.gz"), "four dimensions", "(3, 4, 5)")


def test_tables_that_cannot_be_used_are_refused(scan):
    bval, bvec = (scan / name for name in ("dwi.bval", "dwi.bvec"))
    values, vectors = np.loadtxt(bval), np.loadtxt(bvec)
    np.savetxt(bval, values[None, :-1])
    assert_refused(run(scan), "dwi.bval", "one b-value for each of the 32 volumes", "31")
    np.savetxt(bval, -values[None])
    assert_refused(run(scan), "b-values from 0 to 1e6", "-1000")
    np.savetxt(bval, values[None])
    np.savetxt(bvec, vectors[:, :-1])
    assert_refused(run(scan), "dwi.bvec", "one b-vector for each", "3 rows of 31 numbers")
    long = vectors.copy()
    long[:, 4] *= 2
    np.savetxt(bvec, long)
    assert_refused(run(scan), "b-vectors of length 1", "length 2 for volume 5")
    bvec.write_text("0 1\n0\n")
    assert_refused(run(scan), "rows of equally many numbers")
    bvec.write_text("x y z\n")
    assert_refused(run(scan), "a text file of numbers")
    np.savetxt(bvec, np.tile(vectors[:, 2:3], 32))
    assert_refused(run(scan), "gradients that determine a tensor and S0", "dwi.bval, ")
    bvec.unlink()
    assert_refused(run(scan), "dwi.bvec", "No such file")


def test_masks_and_folders_that_cannot_be_used_are_refused(scan):
    mask = scan / "mask.nii.gz"
    nibabel.Nifti1Image(np.ones((4, 5, 7), dtype=np.uint8), AFFINE).to_filename(mask)
    assert_refused(run(scan, "--mask", mask), "mask.nii.gz", "(4, 5, 6)", "(4, 5, 7)")
    larger = AFFINE @ np.diag([1.5, 1.5, 1.5, 1.0])
    nibabel.Nifti1Image(np.ones(SHAPE, dtype=np.uint8), larger).to_filename(mask)
    assert_refused(run(scan, "--mask", mask), "mask.nii.gz", "the mask lies in another space")
    nibabel.Nifti1Image(np.zeros(SHAPE, dtype=np.uint8), AFFINE).to_filename(mask)
    assert_refused(run(scan, "--mask", mask), "a voxel that is not zero")
    colours = np.zeros(SHAPE, dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
    nibabel.Nifti1Image(colours, AFFINE).to_filename(mask)
    assert_refused(run(scan, "--mask", mask), "mask.nii.gz", "an image of real numbers")
    (scan / "out").rmdir()
    (scan / "out").write_text("a file")
    assert_refused(run(scan), "expected a folder")
    paths = [scan / name for name in ("dwi.nii.gz", "dwi.bval", "dwi.bvec")]
    paths[0].rename(scan / "fa.nii.gz")
    result = command("dti", scan / "fa.nii.gz", *paths[1:], "--out", scan)
    assert_refused(result, "another folder", "would be replaced")
