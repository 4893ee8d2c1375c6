"""The report of `posquad dti`: one HTML page with the main numbers, and slices of the maps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posquad.dipy.gradients import GradientTable
from posquad.dipy.tensors import Flag, Method
from posquad.dipy.volumes import MAPS, Maps
from posquad.report.dti_figures import PANELS
from posquad.report.figures import draw
from posquad.report.page import image, page

__all__ = ["TensorImage", "render", "summary"]

_METHODS = {
    "wls": "weighted least squares; the weights are the squared signals of a first fit",
    "rwls": "weighted least squares after outliers were left out (Geman and McClure)",
    "ols": "least squares with equal weights",
}
_UNIT = "µm²/ms"


@dataclass(frozen=True, eq=False)
class TensorImage:
    """What the report is about: the maps of an image and how they were made."""

    path: Path
    maps: Maps
    gradients: GradientTable
    method: Method
    command: str
    seconds: float


def summary(made: TensorImage) -> list[tuple[str, str]]:
    """Return the main numbers of the fit, as pairs of name and value.

    >>> shape, names = (2, 2, 2), ("fa", "md", "s0", "fa_se", "md_se", "sigma")
    >>> maps = Maps({name: np.ones(shape) for name in names} | {"flags": np.zeros(shape, np.uint8)})
    >>> table = GradientTable(np.array([0.0, 1000.0]), np.zeros((2, 3)))
    >>> dict(summary(TensorImage(Path("a.nii"), maps, table, "wls", "", 1.0)))["voxels"]
    '8 fitted of 8 in the mask'
    """
    maps, fitted = made.maps, made.maps.fitted
    inside = int(((maps.values["flags"] & Flag.OUTSIDE) == 0).sum())
    bvals = made.gradients.bvals
    shells = sorted({round(b / 100) * 100 for b in bvals[bvals > 0]})
    facts = [
        ("voxels", f"{int(fitted.sum())} fitted of {inside} in the mask"),
        ("gradients", f"{len(bvals)}, of which {int((bvals == 0).sum())} without weighting"),
        ("b-values", f"about {', '.join(map(str, shells[:6]))} s/mm²"),
        ("method", _METHODS[made.method]),
        ("constraint active", f"in {maps.share(Flag.POSITIVE):.2%} of the voxels"),
        ("signals left out", f"in {maps.share(Flag.LEFT_OUT):.2%} of the voxels"),
        ("too few signals", f"in {maps.share(Flag.UNDETERMINED):.2%} of the voxels"),
    ]
    if maps.share(Flag.NOT_SOLVED):
        facts.append(("not at the optimum", f"{maps.share(Flag.NOT_SOLVED):.2%} of the voxels"))
    if maps.share(Flag.OUT_OF_RANGE):
        facts.append(("S0 out of range", f"in {maps.share(Flag.OUT_OF_RANGE):.2%} of the voxels"))
    if fitted.any():
        facts += [
            ("FA", _median(made, "fa", 1.0, "")),
            ("mean diffusivity", _median(made, "md", 1e3, f" {_UNIT}")),
            ("noise", f"standard deviation {_middle(maps.values['sigma'][fitted]):.4g} (median)"),
        ]
    facts.append(("time", f"{made.seconds:.1f} s"))
    return facts


def _in_words(made: TensorImage) -> str:
    """What was computed, in sentences."""
    maps = made.maps
    words = (
        "Each tensor is the best one for its signals and weights among all positive semidefinite "
        f"tensors. In {maps.share(Flag.POSITIVE):.1%} of the voxels least squares alone is not "
        "positive, and the constraint changes the answer."
    )
    if maps.share(Flag.POSITIVE):
        words += (
            " There standard errors are approximate: if the true tensor has rank one, 95% "
            "intervals contain the truth in 87% of the cases for FA and 92% for MD."
        )
    if maps.share(Flag.NOT_SOLVED):
        words += (
            f" In {maps.share(Flag.NOT_SOLVED):.2%} of the voxels the best tensor was not reached "
            "to rounding; the map of flags marks them."
        )
    if maps.share(Flag.OUT_OF_RANGE):
        words += (
            f" In {maps.share(Flag.OUT_OF_RANGE):.2%} of the voxels the signals span so many "
            "decades that S0 is beyond the range of numbers; do not use these voxels."
        )
    if maps.share(Flag.UNDETERMINED):
        words += (
            f" In {maps.share(Flag.UNDETERMINED):.2%} of the voxels there are too few signals "
            "above zero, and the tensor is set to zero."
        )
    return words


def render(made: TensorImage) -> str:
    """Render the page; every text that comes from the files is escaped.

    >>> shape, names = (2, 2, 2), ("fa", "md", "s0", "fa_se", "md_se", "sigma")
    >>> maps = Maps({name: np.ones(shape) for name in names} | {"flags": np.zeros(shape, np.uint8)})
    >>> maps.values["tensor"] = np.ones((*shape, 6))
    >>> table = GradientTable(np.array([0.0, 1000.0]), np.zeros((2, 3)))
    >>> text = render(TensorImage(Path("<b>.nii"), maps, table, "wls", "posquad dti", 1.0))
    >>> "8 fitted of 8 in the mask" in text, "<b>" in text
    (True, False)
    """
    drawings = [(panel, draw(panel, made.maps, None)) for panel in PANELS]
    return page(
        "dti_report.html.j2",
        styles=("report.css", "fit_report.css"),
        name=made.path.name,
        command=made.command,
        facts=summary(made),
        words=_in_words(made),
        maps=list(MAPS.items()),
        panels=[{"panel": p, "words": d.words, "image": image(d.svg)} for p, d in drawings],
    )


def _median(made: TensorImage, name: str, scale: float, unit: str) -> str:
    """Median of a map and of its standard errors, in words."""
    fitted = made.maps.fitted
    value = scale * _middle(made.maps.values[name][fitted])
    error = scale * _middle(made.maps.values[f"{name}_se"][fitted])
    return f"median {value:.3g}{unit}; median standard error {error:.2g}"


def _middle(values: np.ndarray) -> float:
    """Median of the values that are defined; NaN if none is."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")
