"""The command `posquad dti`: positive diffusion tensors of an image."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import click

from posquad.cli.failure import reporting
from posquad.cli.options import FILE, folder_option
from posquad.cli.progress import voxel_progress
from posquad.core.errors import DomainError, ShapeError
from posquad.core.extras import import_extra
from posquad.core.files import FileError, require_folder, write_file
from posquad.dipy.design import TensorDesign
from posquad.dipy.gradients import read_gradients
from posquad.dipy.images import Image, open_image
from posquad.dipy.volumes import MAPS, fit_image, read_mask, write_maps
from posquad.dipy.weights import LEAST_SIGNAL
from posquad.report.dti_report import TensorImage, render, summary

__all__ = ["dti_command"]

REPORT = "report.html"


@click.command("dti")
@click.argument("image", type=FILE)
@click.argument("bval", type=FILE)
@click.argument("bvec", type=FILE)
@click.option("--mask", type=FILE, help="NIfTI image of the voxels to fit.  [default: all voxels]")
@click.option("--robust", is_flag=True, help="Leave out outliers before the last fit.")
@folder_option("dti", "Folder of the maps and the report.")
def dti_command(
    image: Path, bval: Path, bvec: Path, mask: Path | None, robust: bool, out: Path
) -> None:
    """Fit a positive semidefinite diffusion tensor to every voxel of IMAGE.

    IMAGE is a NIfTI file (.nii or .nii.gz) of four dimensions. BVAL and BVEC are its gradient table
    in FSL's format: b-values in s/mm^2, and unit b-vectors in three rows or three columns. b-values
    up to 50 count as zero.

    Each tensor minimises the weighted sum of the squared errors of log S over all positive
    semidefinite tensors and all S0, exactly. The weights are those of DIPY's WLS, with --robust
    those of its RWLS. Signals that are not finite or not above 0.0001 are left out.

    The command writes tensor, fa, md, s0, their standard errors (tensor_se, fa_se, md_se), sigma
    and flags as .nii.gz files with the header and affine of IMAGE, and report.html. Each file is
    written completely or not at all.

    Exit status: 0 if the maps were written; 2 for files or options that cannot be used; 130 after
    Ctrl-C, which writes nothing.

    \b
    Examples:
      posquad dti dwi.nii.gz dwi.bval dwi.bvec
      posquad dti dwi.nii.gz dwi.bval dwi.bvec --mask mask.nii.gz --robust --out tensors
    """
    began = time.monotonic()
    with reporting(f"{image}: the fit needs"):
        import_extra("nibabel", "dipy")
        written = [*(f"{name}.nii.gz" for name in MAPS), REPORT]
        _require_other_folder(out, written, [image, bval, bvec, mask])
        require_folder(out, written)
        with open_image(image) as volumes:
            _require_volumes(volumes)
            gradients = read_gradients(bval, bvec, volumes.shape[-1])
            try:
                TensorDesign.of(gradients.design_matrix)
            except DomainError as problem:
                where = f"{bval}, {bvec}"
                raise DomainError(where, expected=problem.expected, got=problem.got) from None
            inside = read_mask(mask, volumes)
            if not inside.any():
                raise DomainError(str(mask), expected="a voxel that is not zero", got="none")
            method = "rwls" if robust else "wls"
            with voxel_progress(int(inside.sum())) as advance:
                maps = fit_image(volumes, gradients, inside, method, advance=advance)
            if not maps.fitted.any():
                expected = f"a voxel whose signals above {LEAST_SIGNAL:g} determine a tensor"
                got = f"none in {inside.sum()} voxels"
                raise DomainError(str(image), expected=expected, got=got)
            command = shlex.join(["posquad", *sys.argv[1:]])
            seconds = time.monotonic() - began
            made = TensorImage(image, maps, gradients, method, command, seconds)
            text = render(made)
            write_maps(maps, volumes, out)
        write_file(out / REPORT, text.encode(errors="replace"))
    for name, value in summary(made):
        click.echo(click.wrap_text(f"{name:<18} {value}", 80, "", " " * 19))
    click.echo(f"\nMaps:   {out / 'fa.nii.gz'} and {len(MAPS) - 1} others")
    click.echo(f"Report: {out / REPORT}")


def _require_volumes(image: Image) -> None:
    if len(image.shape) != 4 or 0 in image.shape:
        expected = "an image of four dimensions, one volume per gradient"
        raise ShapeError(str(image.path), expected=expected, got=f"shape {image.shape}")


def _require_other_folder(out: Path, written: list[str], read: list[Path | None]) -> None:
    """Refuse to write over a file that is read."""
    targets = {(out / name).resolve() for name in written}
    for path in read:
        if path is not None and path.resolve() in targets:
            got = f"{out}, where {path} would be replaced"
            raise FileError("--out", expected="another folder", got=got)
