"""Slices of the maps of `posquad dti`, as panels of its report."""

from __future__ import annotations

from typing import Any

import numpy as np

from posquad.dipy.tensors import Flag
from posquad.dipy.volumes import Maps
from posquad.report.palette import COLOURS
from posquad.report.panel import Panel

__all__ = ["PANELS", "middle_slices"]

_LARGEST = 320  # pixels along a side of a slice that is drawn
_KINDS = (
    (Flag.POSITIVE, "constraint active", COLOURS[0]),
    (Flag.LEFT_OUT, "signals left out", COLOURS[4]),
    (Flag.UNDETERMINED, "too few signals", COLOURS[1]),
    (Flag.NOT_SOLVED, "not at the optimum", COLOURS[3]),
    (Flag.OUT_OF_RANGE, "S0 out of range", COLOURS[5]),
)


def middle_slices(values: np.ndarray, fitted: np.ndarray) -> list[np.ndarray]:
    """Return the slices through the middle of the fitted voxels: sagittal, coronal and axial.

    The first axis of a slice points down, as in an image.

    >>> values = np.arange(24.0).reshape(2, 3, 4)
    >>> [cut.shape for cut in middle_slices(values, np.ones((2, 3, 4), dtype=bool))]
    [(4, 3), (4, 2), (3, 2)]
    """
    where = np.argwhere(fitted)
    centre = np.median(where, axis=0).astype(int) if len(where) else np.array(fitted.shape) // 2
    cuts = [values.take(int(k), axis=axis) for axis, k in enumerate(centre)]
    cuts = [np.swapaxes(cut, 0, 1)[::-1] for cut in cuts]
    steps = [-(-max(cut.shape[:2]) // _LARGEST) for cut in cuts]
    return [cut[::step, ::step] for cut, step in zip(cuts, steps, strict=True)]


def _draw_slices(axes: Any, cuts: list[np.ndarray], **style: Any) -> Any:
    """Draw three slices beside each other, at one scale; return the last image."""
    axes.set_axis_off()
    widths = np.array([cut.shape[1] for cut in cuts], dtype=float)
    left, total = 0.0, widths.sum()
    shown = None
    for cut, width in zip(cuts, widths, strict=True):
        place = axes.inset_axes((left / total, 0.0, 0.97 * width / total, 1.0))
        place.set_axis_off()
        shown = place.imshow(cut, interpolation="nearest", **style)
        left += width
    return shown


def _map_panel(
    name: str, title: str, label: str, caption: str, *, high: float | None = None, scale: float = 1
) -> Panel[Maps]:
    """Return the panel of a map of numbers, whose colours end at `high` or at a high quantile."""

    def draw(axes: Any, maps: Maps) -> None:
        fitted = maps.fitted
        values = np.where(fitted, scale * maps.values[name], np.nan)
        known = values[np.isfinite(values)]
        most = high if high is not None else float(np.quantile(known, 0.98)) if len(known) else 1.0
        cuts = middle_slices(values, fitted)
        shown = _draw_slices(axes, cuts, cmap="viridis", vmin=0.0, vmax=most or 1.0)
        axes.figure.colorbar(shown, ax=axes, orientation="horizontal", label=label, shrink=0.7)

    return Panel(name.replace("_", "-"), title, caption, draw=draw)


def _draw_directions(axes: Any, maps: Maps) -> None:
    fitted = maps.fitted
    cuts = middle_slices(np.where(fitted[..., None], maps.values["tensor"], 0.0), fitted)
    shares = middle_slices(np.where(fitted, maps.values["fa"], 0.0), fitted)
    coloured = []
    for cut, fa in zip(cuts, shares, strict=True):
        i, j = np.array([0, 0, 1, 0, 1, 2]), np.array([0, 1, 1, 2, 2, 2])
        D = np.zeros((*cut.shape[:2], 3, 3))
        D[..., i, j] = D[..., j, i] = cut
        main = np.linalg.eigh(D)[1][..., -1]
        coloured.append(np.clip(np.abs(main) * fa[..., None], 0.0, 1.0))
    _draw_slices(axes, coloured)


def _draw_flags(axes: Any, maps: Maps) -> None:
    from_hex = [[int(c[k : k + 2], 16) / 255 for k in (1, 3, 5)] for _, _, c in _KINDS]
    flags = maps.values["flags"]
    colours = np.zeros((*flags.shape, 4))
    colours[maps.fitted] = (0.6, 0.6, 0.6, 0.35)
    for (flag, _, _), colour in zip(_KINDS, from_hex, strict=True):
        colours[(flags & flag) != 0] = (*colour, 1.0)
    _draw_slices(axes, middle_slices(colours, maps.fitted))
    for _, words, colour in _KINDS:
        axes.plot([], [], ls="", marker="s", color=colour, label=words)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2)


def _describe_flags(maps: Maps) -> str:
    parts = [f"{words} in {maps.share(flag):.2%}" for flag, words, _ in _KINDS]
    return f"Of the voxels: {', '.join(parts)}."


_QUANTILE = "The scale ends at the 98% quantile."

PANELS = (
    _map_panel(
        "fa",
        "Fractional anisotropy",
        "FA",
        "Slices through the middle of the fitted voxels: sagittal, coronal, axial in the axes of "
        "the file.",
        high=1.0,
    ),
    Panel(
        "directions",
        "Main direction",
        "Red, green and blue are the components of the main eigenvector along the axes of the "
        "b-vectors; the brightness is FA.",
        draw=_draw_directions,
    ),
    _map_panel("md", "Mean diffusivity", "MD, µm²/ms", _QUANTILE, scale=1e3),
    _map_panel(
        "fa_se",
        "Standard error of FA",
        "standard error of FA",
        f"Voxels where it is not defined are empty. {_QUANTILE}",
    ),
    _map_panel(
        "md_se",
        "Standard error of the mean diffusivity",
        "standard error of MD, µm²/ms",
        _QUANTILE,
        scale=1e3,
    ),
    Panel(
        "flags",
        "Quality",
        "Gray voxels are plain least squares fits.",
        draw=_draw_flags,
        describe=_describe_flags,
    ),
)
"""The panels of the report, in order."""
